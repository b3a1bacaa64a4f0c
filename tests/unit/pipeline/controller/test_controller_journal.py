"""The controller's journal on a real StateLog: placement manager and data node in the simulator."""

from __future__ import annotations

from headrace.config.controller import ControllerSettings
from headrace.errors import FencedError
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.controller.journal import LOG_NAME, VERSION, Apply, Log, Restore, Snapshot
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_log import StateLog
from headrace.wire.sbp.messages import ClientRole
from tests.sim.spine import NODE, PLACEMENT, Spine
from tests.simulator.runtime import Simulation
from tests.unit.pipeline.controller.test_controller import FakeLauncher, package


class Host:
    """One life of the controller's machine."""

    def __init__(self, spine: Spine, name: str, epoch: int) -> None:
        self.runtime = spine.simulation.runtime(name)
        self.launcher = FakeLauncher(self.runtime)
        placement, node = spine._connect(self.runtime, ClientRole.CUSTOMER)
        self._client = SbpClient(self.runtime, placement=placement, node=node, client_id=name)
        self._epoch = epoch
        self.controller = Controller(
            self.runtime,
            ControllerSettings(snapshot_events=4),
            data_dir="/data",
            open_log=self._open,
            launcher=self.launcher,
            host=name,
        )

    async def _open(self, apply: Apply, snapshot: Snapshot, restore: Restore) -> Log:
        return await StateLog.open(
            self._client,
            name=LOG_NAME,
            epoch=self._epoch,
            clean=False,
            apply=apply,
            snapshot=snapshot,
            restore=restore,
            runtime=self.runtime,
            version_max=VERSION,
        )

    async def close(self) -> None:
        await self.controller.close()
        await self._client.close()


def test_a_power_cut_of_the_controller_loses_no_application() -> None:
    simulation = Simulation(3)

    async def main() -> None:
        spine = Spine(simulation)
        await simulation.on(PLACEMENT, spine.start_placement())
        await simulation.on(NODE, spine.start_node())
        clock = simulation.runtime("watcher").clock
        first = Host(spine, "c", 1)
        await simulation.on("c", first.controller.start())
        await simulation.on("c", first.controller.operations.submit(package()))
        await clock.sleep(5)
        first.launcher.processes[0].kill()  # so that there is more history than one snapshot
        await clock.sleep(15)
        before = first.controller.operations.show("shop")
        assert before.restarts == 1
        simulation.crash("c")

        second = Host(spine, "c", 2)
        await simulation.on("c", second.controller.start())
        await clock.sleep(3)
        after = second.controller.operations.show("shop")
        assert after.state == "RUNNING"
        assert after.package == before.package
        assert after.start_window_ms == before.start_window_ms
        assert [info.run_id for info in second.launcher.deployed] == [3]
        assert second.launcher.committed[0] > 0
        await simulation.on("c", second.close())

    simulation.run(main())


def test_a_second_controller_fences_the_first() -> None:
    simulation = Simulation(4)

    async def main() -> None:
        spine = Spine(simulation)
        await simulation.on(PLACEMENT, spine.start_placement())
        await simulation.on(NODE, spine.start_node())
        clock = simulation.runtime("watcher").clock
        old = Host(spine, "c1", 1)
        await simulation.on("c1", old.controller.start())
        await simulation.on("c1", old.controller.operations.submit(package()))
        await clock.sleep(3)
        new = Host(spine, "c2", 2)
        await simulation.on("c2", new.controller.start())
        old.launcher.processes[0].kill()  # something to journal
        failure = await old.controller.wait_ended()
        assert isinstance(failure, FencedError)
        await clock.sleep(5)
        assert len(old.launcher.requests) == 1  # the fenced one starts nothing any more
        await simulation.on("c2", new.close())
        await simulation.on("c1", old.close())

    simulation.run(main())
