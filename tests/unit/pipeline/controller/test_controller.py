"""The controller's shell in the simulator: real RPC, journal and clock seams, fake containers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from headrace.config.controller import ControllerSettings
from headrace.errors import (
    AlreadyExistsError,
    FencedError,
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
)
from headrace.pipeline.container.umbilical import UmbilicalClient, load_token
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.controller.journal import Apply, Log, Restore, Snapshot
from headrace.pipeline.controller.launcher import LaunchRequest
from headrace.pipeline.controller.views import read_view, to_json
from headrace.pipeline.plan.packages import PackageSpec
from headrace.runtime.interfaces import Process, Runtime
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import WindowGrid
from tests.fake_process import FakeProcess
from tests.simulator.runtime import Simulation

FILES = {"shop.py": b"app = 1\n"}
PLAN: dict[str, Any] = {
    "name": "shop",
    "operators": [{"name": "revenue", "class": "shop:revenue", "ports": []}],
    "streams": [],
}


@dataclass
class MemoryLog:
    """Keeps events over lives of a controller, encoded as a StateLog would."""

    events: list[bytes] = field(default_factory=list)
    snapshot: tuple[int, list[bytes]] | None = None
    broken: HeadraceError | None = None

    async def open(self, apply: Apply, snapshot: Snapshot, restore: Restore) -> Log:
        if self.snapshot is not None:
            restore(*self.snapshot)
        for event in self.events:
            apply(*msgspec.msgpack.decode(event))
        return _Opened(self, apply, snapshot)

    def kinds(self) -> list[str]:
        return [msgspec.msgpack.decode(event)[1] for event in self.events]


class _Opened:
    def __init__(self, log: MemoryLog, apply: Apply, snapshot: Snapshot) -> None:
        self._log, self._apply, self._snapshot = log, apply, snapshot

    async def append(self, kind: str, body: object, version: int = 1) -> int:
        if self._log.broken is not None:
            raise self._log.broken
        self._log.events.append(msgspec.msgpack.encode([version, kind, body]))
        self._apply(*msgspec.msgpack.decode(self._log.events[-1]))
        return len(self._log.events)

    async def write_snapshot(self) -> None:
        version, chunks = self._snapshot()
        self._log.snapshot = (version, list(chunks))
        self._log.events.clear()

    async def close(self) -> None: ...


class FakeLauncher:
    """Containers are coroutines that speak the real umbilical."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.requests: list[LaunchRequest] = []
        self.processes: list[FakeProcess] = []
        self.committed: list[int] = []
        self.deployed: list[m.OperatorDeployInfo] = []
        self.hang = False
        self.finish_after: int | None = None
        self.refuse: HeadraceError | None = None
        self.described: dict[str, Any] | HeadraceError = PLAN

    async def launch(self, request: LaunchRequest) -> Process:
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        process = FakeProcess(100 + len(self.requests), self._container(request))
        self.processes.append(process)
        return process

    async def adopt(self, container_id: str, application_path: str) -> Process | None:
        for request, process in zip(self.requests, self.processes, strict=True):
            same = (request.container_id, request.application_path)
            if same == (container_id, application_path) and process.exit_status is None:
                return process
        return None

    async def describe(
        self, package_folder: str, entry: str, *, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        assert self.runtime.disk.read(f"{package_folder}/{entry}") == FILES[entry]
        if isinstance(self.described, HeadraceError):
            raise self.described
        return self.described

    async def _container(self, request: LaunchRequest) -> int:
        token = load_token(self.runtime.disk, request.login_environment)
        client = UmbilicalClient(self.runtime, request.umbilical_path, token)
        try:
            return await self._beat(client, request.container_id)
        finally:
            await client.close()

    async def _beat(self, client: UmbilicalClient, id_: str) -> int:
        context = await client.get_init_context(id_)
        if context is None:
            return 1
        await client.log(id_, "entering the heartbeat loop")
        grid = WindowGrid(context.start_window_millis, 500)
        running: dict[int, m.DeployState] = {}
        beats = 0
        while True:
            now_ms = self.runtime.clock.now_ms()
            window = grid.window_at(now_ms)
            stats = (
                m.OperatorStats(
                    window,
                    checkpoint=m.Checkpoint(window),
                    input_ports=(m.PortStats("in", 10, now_ms),),
                ),
            )
            if self.finish_after is not None and beats >= self.finish_after:
                running = dict.fromkeys(running, m.DeployState.SHUTDOWN)
            heartbeat = m.ContainerHeartbeat(
                jvm_name="1@k",
                stats=m.ContainerStats(
                    id_,
                    tuple(
                        m.OperatorHeartbeat(one, state, window_stats=stats)
                        for one, state in running.items()
                    ),
                ),
                sent_tms=now_ms,
            )
            response = await client.process_heartbeat(heartbeat)
            self.committed.append(response.committed_window_id)
            for one in response.undeploy_request:
                running.pop(one, None)
            if response.shutdown is not None:
                return 0
            self.deployed += response.deploy_request
            running |= {info.id: m.DeployState.ACTIVE for info in response.deploy_request}
            beats += 1
            await self.runtime.clock.sleep(3600 if self.hang else 1)


@dataclass
class World:
    simulation: Simulation
    log: MemoryLog = field(default_factory=MemoryLog)

    def __post_init__(self) -> None:
        self.runtime = self.simulation.runtime("c")
        self.launcher = FakeLauncher(self.runtime)

    async def controller(self, *, port_before: int = 0, **settings: Any) -> Controller:
        controller = Controller(
            self.runtime,
            ControllerSettings(**settings),
            data_dir="/data",
            open_log=self.log.open,
            launcher=self.launcher,
            secret=b"the cluster's",
            host="c",
            port_before=port_before,
        )
        await controller.start()
        return controller

    async def sleep(self, seconds: float) -> None:
        await self.runtime.clock.sleep(seconds)


def simulate(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    simulation = Simulation(1)
    simulation.run(main(World(simulation)))


def package(**more: Any) -> PackageSpec:
    return PackageSpec("shop.py", FILES, **more)


def types(controller: Controller) -> list[str]:
    return [event.type.value for event in controller.operations.events("shop")]


def test_submit_runs_and_shows_progress() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        shown = await controller.operations.submit(package())
        assert shown.state == "RUNNING"
        await world.sleep(5)
        shown = controller.operations.show("shop")
        (container,), (operator,) = shown.containers, shown.operators
        assert container.state == "ACTIVE"
        assert container.pid == 101
        assert operator.state == "ACTIVE"
        assert operator.rows_in >= 30
        assert operator.rows_in_per_second > 0
        assert world.launcher.committed[-1] > 0
        told = msgspec.json.decode(msgspec.json.encode(to_json(shown)))
        assert told == to_json(shown)
        assert read_view(told) == msgspec.structs.replace(shown, events=[])
        assert [one.name for one in controller.operations.list()] == ["shop"]
        uri = world.runtime.disk.read("/data/applications/shop/recovery/heartbeatUri").decode()
        assert uri.startswith(f"stram://c:{controller.umbilical_address[1]}?rpcTimeout=5000")
        (request,) = world.launcher.requests
        assert request.package_folder.startswith("/data/applications/shop/packages/")
        assert request.entry == "shop.py"
        await controller.close()

    simulate(main)


def test_a_killed_container_is_noticed_at_once_and_restarted() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package())
        await world.sleep(5)
        world.launcher.processes[0].kill()
        await world.sleep(0.05)
        assert controller.operations.show("shop").containers[0].state == "KILLED"
        await world.sleep(1.1)
        assert len(world.launcher.requests) == 2  # when it is due, not a tick later
        await world.sleep(3)
        shown = controller.operations.show("shop")
        assert shown.restarts == 1
        assert shown.containers[0].state == "ACTIVE"
        assert [info.run_id for info in world.launcher.deployed] == [1, 2]
        assert world.launcher.deployed[1].checkpoint != m.Checkpoint(-1)
        assert types(controller)[-4:] == [
            "StopContainer",
            "StartContainer",
            "StartOperator",
            "RecoverContainer",
        ]
        await controller.close()

    simulate(main)


def test_an_application_that_ended_is_removed_and_forgotten() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package())
        await world.sleep(5)
        with pytest.raises(AlreadyExistsError, match="stop it first"):
            await controller.operations.remove("shop")
        await controller.operations.stop("shop")
        await controller.operations.wait("shop")
        disk = world.runtime.disk
        assert disk.exists("/data/applications/shop/packages")
        await controller.operations.remove("shop")
        with pytest.raises(NotFoundError):
            controller.operations.show("shop")
        assert controller.operations.list() == []
        assert not disk.exists("/data/applications/shop")
        await controller.close()
        again = await world.controller()
        assert again.operations.list() == []
        await again.operations.submit(package())
        await world.sleep(5)
        assert world.launcher.deployed[-1].checkpoint == m.Checkpoint(-1)
        assert world.launcher.deployed[-1].run_id == 1
        await again.close()

    simulate(main)


def test_the_umbilicals_port_is_the_one_it_was_if_that_is_free() -> None:
    async def main(world: World) -> None:
        first = await world.controller()
        address = first.umbilical_address
        await first.close()
        again = await world.controller(port_before=address[1])
        assert again.umbilical_address == address
        other = await world.controller(port_before=address[1])
        assert other.umbilical_address[1] not in (0, address[1])
        await other.close()
        await again.close()

    simulate(main)


def test_a_hung_container_is_killed_and_restarted() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        world.launcher.hang = True
        await controller.operations.submit(package())
        await world.sleep(29)
        assert len(world.launcher.requests) == 1
        world.launcher.hang = False
        await world.sleep(6)
        assert world.launcher.processes[0].exit_status == -9
        assert len(world.launcher.requests) == 2
        assert "no heartbeat" in (controller.operations.show("shop").last_error or "")
        await controller.close()

    simulate(main)


def test_stop_and_wait() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package())
        await world.sleep(3)
        waiting = asyncio.ensure_future(controller.operations.wait("shop"))
        await controller.operations.stop("shop")
        assert (await waiting).state == "STOPPED"
        assert world.launcher.processes[0].exit_status == 0
        await controller.close()

    simulate(main)


def test_an_application_that_has_read_everything_finishes() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        world.launcher.finish_after = 3
        await controller.operations.submit(package(available_now=True))
        assert (await controller.operations.wait("shop")).state == "FINISHED"
        assert world.launcher.requests[0].available_now
        await controller.close()

    simulate(main)


def test_a_restarted_controller_goes_on() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package())
        await world.sleep(15)
        before = controller.operations.show("shop")
        await controller.close()
        assert world.launcher.processes[0].exit_status == -15
        controller = await world.controller()
        await world.sleep(3)
        after = controller.operations.show("shop")
        assert after.state == "RUNNING"
        assert after.start_window_ms == before.start_window_ms
        assert [info.run_id for info in world.launcher.deployed] == [1, 2]
        assert (
            world.launcher.requests[1].package_folder == world.launcher.requests[0].package_folder
        )
        await controller.close()

    simulate(main)


def test_a_container_that_outlives_the_controller_finds_the_next_one() -> None:
    async def main(world: World) -> None:
        first = await world.controller(retry_delay_ms=1_000)
        await first.operations.submit(package())
        await world.sleep(15)
        # As after kill -9 of the controller: nobody ends the container.
        first._applications.get("shop").processes.clear()
        await first.close()
        await world.sleep(2)
        second = await world.controller(retry_delay_ms=1_000)
        await world.sleep(5)
        shown = second.operations.show("shop")
        assert shown.containers[0].state == "ACTIVE"
        assert shown.operators[0].state == "ACTIVE"
        assert len(world.launcher.requests) == 1  # the same process
        assert len(world.launcher.deployed) == 1  # the same deployment
        await second.operations.stop("shop")
        await world.sleep(3)
        assert world.launcher.processes[0].exit_status == 0
        await second.close()

    simulate(main)


def test_snapshots_replace_events() -> None:
    async def main(world: World) -> None:
        controller = await world.controller(snapshot_events=3)
        await controller.operations.submit(package())
        await world.sleep(3)
        assert world.log.snapshot is not None
        assert len(world.log.events) < 3
        await controller.close()
        controller = await world.controller()
        assert controller.operations.show("shop").state == "RUNNING"
        await controller.close()

    simulate(main)


def test_what_is_started_is_journalled_first() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        seen: list[list[str]] = []
        launch = world.launcher.launch

        async def watch(request: LaunchRequest) -> Process:
            seen.append(world.log.kinds())
            return await launch(request)

        world.launcher.launch = watch  # type: ignore[method-assign]
        await controller.operations.submit(package())
        assert seen == [["submit", "container"]]
        await controller.close()

    simulate(main)


def test_a_fenced_controller_ends_its_containers_and_says_so() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package())
        await world.sleep(3)
        world.log.broken = FencedError("another controller leads")
        with pytest.raises(FencedError):
            await controller.operations.stop("shop")
        assert isinstance(await controller.wait_ended(), FencedError)
        assert world.launcher.processes[0].exit_status == -9
        await world.sleep(5)
        assert len(world.launcher.requests) == 1
        await controller.close()

    simulate(main)


def test_an_ended_application_may_be_submitted_again_and_goes_on() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        first = await controller.operations.submit(package())
        with pytest.raises(AlreadyExistsError):
            await controller.operations.submit(package())
        await world.sleep(3)
        await controller.operations.stop("shop")
        await controller.operations.wait("shop")
        second = await controller.operations.submit(package())
        assert second.start_window_ms == first.start_window_ms
        assert second.containers[0].id == "shop.1.2"
        assert second.committed_window != "f" * 16
        await controller.close()

    simulate(main)


def test_a_changed_package_is_not_run() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package())
        await world.sleep(3)
        folder = world.launcher.requests[0].package_folder
        world.runtime.disk.write_atomic(f"{folder}/shop.py", b"edited")
        world.launcher.processes[0].kill()
        await world.sleep(5)
        assert len(world.launcher.requests) == 1
        shown = controller.operations.show("shop")
        assert "was changed" in (shown.last_error or "")
        assert shown.containers[0].exit_status == 127
        await controller.close()

    simulate(main)


def test_a_container_that_cannot_be_started_is_tried_again() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        world.launcher.refuse = NotFoundError("no such program")
        shown = await controller.operations.submit(package())
        assert "no such program" in (shown.last_error or "")
        world.launcher.refuse = None
        await world.sleep(3)
        assert len(world.launcher.requests) == 1
        await controller.close()

    simulate(main)


@pytest.mark.parametrize(
    ("described", "error"),
    [
        (InvalidArgumentError("shop.py: NameError"), InvalidArgumentError),
        ({"name": "../up", "operators": [{"name": "a"}]}, InvalidArgumentError),
        ({"name": "shop", "operators": []}, InvalidArgumentError),
        (
            {
                "name": "shop",
                "attributes": {"STREAMING_WINDOW_SIZE_MILLIS": 0},
                "operators": [{"name": "a"}],
            },
            InvalidArgumentError,
        ),
    ],
    ids=["script fails", "name", "empty", "width"],
)
def test_a_bad_plan_is_refused_and_leaves_nothing(
    described: Any, error: type[HeadraceError]
) -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        world.launcher.described = described
        with pytest.raises(error):
            await controller.operations.submit(package())
        assert controller.operations.list() == []
        assert world.log.events == []
        assert world.runtime.disk.list("/data/applications") == []
        await controller.close()

    simulate(main)


def test_unknown_names_are_not_found() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package(plan=PLAN, name="other"))
        assert controller.operations.show("other").name == "other"
        calls: Iterable[Callable[[], Any]] = (
            lambda: controller.operations.stop("shop"),
            lambda: controller.operations.wait("shop"),
            lambda: controller.operations.logs("shop"),
            lambda: controller.operations.kill_container("other", "other.1.99"),
        )
        for call in calls:
            with pytest.raises(NotFoundError):
                await call()
        with pytest.raises(NotFoundError):
            controller.operations.show("shop")
        await controller.close()

    simulate(main)


def test_logs_are_the_last_lines_over_restarts() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        await controller.operations.submit(package())
        disk, folder = world.runtime.disk, "/data/applications/shop/logs"
        for run in (9, 10):  # not in the order of the alphabet
            lines = "".join(f"run {run} line {one}\n" for one in range(3))
            disk.write_atomic(f"{folder}/shop.1.{run}.log", lines.encode())
        assert await controller.operations.logs("shop", 2) == "run 10 line 1\nrun 10 line 2\n"
        assert (await controller.operations.logs("shop", 4)).startswith(
            "run 9 line 2\nrun 10 line 0\n"
        )
        await controller.close()

    simulate(main)
