"""The umbilical's ordering rules: a fake container says something, the controller answers.

Everything goes through tokens, frames and sockets of the simulated network, on its clock. Two
containers run an operator each; the second one is the one that is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.config.controller import ControllerSettings
from headrace.pipeline.container.umbilical import UmbilicalClient
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.controller.launcher import LaunchRequest
from headrace.pipeline.plan.packages import PackageSpec
from headrace.runtime.interfaces import Process, Runtime
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.tokens import parse_token
from tests.simulator.runtime import Simulation
from tests.unit.pipeline.controller.application.test_state import plan
from tests.unit.pipeline.controller.test_controller import MemoryLog

ACTIVE, SHUTDOWN, FAILED = m.DeployState.ACTIVE, m.DeployState.SHUTDOWN, m.DeployState.FAILED
FIRST, SECOND = 1, 2  # operators; one container each


class Silent:
    """A process that does nothing by itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def exit_status(self) -> int | None:
        return self._status.result() if self._status.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    def end(self, status: int) -> None:
        if not self._status.done():
            self._status.set_result(status)

    def terminate(self) -> None:
        self.end(0)

    def kill(self) -> None:
        self.end(-9)


class Launcher:
    def __init__(self) -> None:
        self.requests: list[LaunchRequest] = []
        self.processes: list[Silent] = []

    async def launch(self, request: LaunchRequest) -> Process:
        self.requests.append(request)
        self.processes.append(Silent(len(self.requests)))
        return self.processes[-1]

    async def adopt(self, container_id: str, application_path: str) -> Process | None:
        return None

    async def describe(self, *_: Any, **__: Any) -> dict[str, Any]:
        return plan(remote=True)


class Fake:
    """A container under the test's hand."""

    def __init__(self, runtime: Runtime, request: LaunchRequest) -> None:
        self.id = request.container_id
        self.client = UmbilicalClient(runtime, request.application_path, parse_token(request.token))

    async def beat(
        self, *reports: tuple[int, m.DeployState], windows: tuple[int, ...] = (), **more: Any
    ) -> m.ContainerHeartbeatResponse:
        stats = tuple(m.OperatorStats(one, checkpoint=m.Checkpoint(one)) for one in windows)
        operators = tuple(
            m.OperatorHeartbeat(id_, state, window_stats=stats) for id_, state in reports
        )
        container = m.ContainerStats(self.id, operators)
        return await self.client.process_heartbeat(m.ContainerHeartbeat(stats=container, **more))


class World:
    def __init__(self, simulation: Simulation, controller: Controller, launcher: Launcher) -> None:
        self.runtime = simulation.runtime("c")
        self.controller, self.launcher = controller, launcher
        self.one, self.two = (Fake(self.runtime, request) for request in launcher.requests)

    def state(self, operator: int = SECOND) -> str:
        found = next(
            o for o in self.controller.operations.show("shop").operators if o.id == operator
        )
        return found.state

    def events(self) -> list[str]:
        return [event.type.value for event in self.controller.operations.events("shop")]

    async def start_first(self) -> None:
        await self.one.beat()

    async def pending_deploy(self) -> None:
        """The second container's operator waits to be deployed."""
        await self.start_first()

    async def active(self) -> None:
        await self.start_first()
        await self.two.beat()
        await self.one.beat()
        await self.one.beat((FIRST, ACTIVE))
        await self.two.beat((SECOND, ACTIVE))

    async def inactive(self) -> None:
        await self.active()
        await self.two.beat((SECOND, SHUTDOWN))

    async def pending_undeploy(self) -> None:
        await self.active()
        await self.two.beat((SECOND, FAILED))


def simulate(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    simulation = Simulation(1)

    async def run() -> None:
        launcher = Launcher()
        controller = Controller(
            simulation.runtime("c"),
            ControllerSettings(),
            data_dir="/data",
            open_log=MemoryLog().open,
            launcher=launcher,
            host="c",
        )
        await controller.start()
        await controller.operations.submit(PackageSpec("shop.py", {"shop.py": b""}))
        world = World(simulation, controller, launcher)
        await main(world)
        await world.one.client.close()
        await world.two.client.close()
        for process in launcher.processes:
            process.end(0)
        await controller.close()

    simulation.run(run())


def deployed(response: m.ContainerHeartbeatResponse) -> list[int]:
    return [info.id for info in response.deploy_request]


# (state here, reported) -> (state after, deployed, undeployed, event)
TABLE: dict[tuple[str, m.DeployState | None], tuple[str, list[int], tuple[int, ...], str]] = {
    ("PENDING_DEPLOY", None): ("PENDING_DEPLOY", [SECOND], (), ""),
    ("PENDING_DEPLOY", ACTIVE): ("ACTIVE", [], (), "StartOperator"),
    ("PENDING_DEPLOY", SHUTDOWN): ("ACTIVE", [], (), ""),
    ("PENDING_DEPLOY", FAILED): ("ACTIVE", [], (), ""),
    ("ACTIVE", None): ("ACTIVE", [], (), ""),
    ("ACTIVE", ACTIVE): ("ACTIVE", [], (), ""),
    ("ACTIVE", SHUTDOWN): ("INACTIVE", [], (SECOND,), "StopOperator"),
    ("ACTIVE", FAILED): ("PENDING_UNDEPLOY", [], (SECOND,), "StopOperator"),
    ("PENDING_UNDEPLOY", None): ("PENDING_DEPLOY", [], (), ""),  # deployed after the back-off
    ("PENDING_UNDEPLOY", ACTIVE): ("PENDING_UNDEPLOY", [], (SECOND,), ""),
    ("PENDING_UNDEPLOY", SHUTDOWN): ("PENDING_UNDEPLOY", [], (SECOND,), ""),
    ("PENDING_UNDEPLOY", FAILED): ("PENDING_UNDEPLOY", [], (SECOND,), ""),
    ("INACTIVE", None): ("INACTIVE", [], (), ""),
    ("INACTIVE", ACTIVE): ("INACTIVE", [], (SECOND,), ""),
    ("INACTIVE", SHUTDOWN): ("INACTIVE", [], (SECOND,), ""),
    ("INACTIVE", FAILED): ("INACTIVE", [], (SECOND,), ""),
}


@pytest.mark.parametrize(
    ("here", "reported"), TABLE, ids=[f"{s} {r.name if r else 'absent'}" for s, r in TABLE]
)
def test_the_deploy_state_table(here: str, reported: m.DeployState | None) -> None:
    async def main(world: World) -> None:
        await getattr(world, here.lower())()
        assert world.state() == here
        before = len(world.events())
        response = await world.two.beat(*([(SECOND, reported)] if reported else []))
        after, deploys, undeploys, event = TABLE[here, reported]
        assert world.state() == after
        assert deployed(response) == deploys
        assert response.undeploy_request == undeploys
        assert [one for one in world.events()[before:] if "Operator" in one] == (
            [event] if event else []
        )
        if undeploys:  # they come alone
            assert not response.deploy_request

    simulate(main)


def test_the_table_is_the_whole_one() -> None:
    states = {"PENDING_DEPLOY", "ACTIVE", "PENDING_UNDEPLOY", "INACTIVE"}
    assert {state for state, _ in TABLE} == states
    assert len(TABLE) == len(states) * 4


def test_a_failure_before_the_operator_was_seen_running_counts_at_the_next_heartbeat() -> None:
    async def main(world: World) -> None:
        await world.pending_deploy()
        await world.two.beat()
        await world.two.beat((SECOND, FAILED))
        assert world.state() == "ACTIVE"
        response = await world.two.beat((SECOND, FAILED))
        assert response.undeploy_request == (SECOND,)
        assert world.state() == "PENDING_UNDEPLOY"

    simulate(main)


def test_an_undeployed_operator_is_deployed_again_under_the_next_run() -> None:
    async def main(world: World) -> None:
        await world.active()
        first = world.controller.operations.show("shop").operators[1].run
        await world.two.beat((SECOND, FAILED))
        assert not (await world.two.beat()).deploy_request  # the back-off
        await world.runtime.clock.sleep(1.5)
        (info,) = (await world.two.beat()).deploy_request
        assert info.id == SECOND
        assert info.run_id > first

    simulate(main)


def test_nobody_is_deployed_before_every_container_has_come() -> None:
    async def main(world: World) -> None:
        for _ in range(3):
            early = await world.one.beat()
            assert early.has_pending_requests
            assert not early.deploy_request
        last = await world.two.beat()
        assert deployed(last) == [SECOND]
        assert not last.has_pending_requests
        assert deployed(await world.one.beat()) == [FIRST]

    simulate(main)


def test_nothing_is_deployed_while_an_operator_anywhere_is_being_undeployed() -> None:
    async def main(world: World) -> None:
        await world.active()
        await world.one.beat((FIRST, FAILED))
        await world.one.beat()  # gone as asked: it waits for its deployment
        await world.two.beat((SECOND, FAILED))
        await world.runtime.clock.sleep(1.5)
        held = await world.one.beat()
        assert held.has_pending_requests
        assert not held.deploy_request
        await world.two.beat()
        assert deployed(await world.one.beat()) == [FIRST]

    simulate(main)


def test_an_operator_of_another_container_is_undeployed() -> None:
    async def main(world: World) -> None:
        await world.active()
        response = await world.two.beat((SECOND, ACTIVE), (FIRST, ACTIVE), (99, ACTIVE))
        assert response.undeploy_request == (FIRST, 99)
        assert world.state(FIRST) == "ACTIVE"

    simulate(main)


def test_a_deployment_follows_the_undeployment_in_a_later_answer() -> None:
    async def main(world: World) -> None:
        await world.start_first()
        response = await world.two.beat((99, ACTIVE))  # a stray one, and its own is not there yet
        assert response.undeploy_request == (99,)
        assert not response.deploy_request
        assert response.has_pending_requests
        assert deployed(await world.two.beat()) == [SECOND]

    simulate(main)


def test_a_lost_container_gets_its_deployment_with_the_first_answer() -> None:
    async def main(world: World) -> None:
        await world.active()
        world.launcher.processes[1].end(-9)
        await world.runtime.clock.sleep(2)
        replacement = Fake(world.runtime, world.launcher.requests[2])
        response = await replacement.beat()
        assert deployed(response) == [SECOND]
        untouched = await world.one.beat((FIRST, ACTIVE))
        assert not untouched.deploy_request
        assert not untouched.undeploy_request
        await replacement.client.close()

    simulate(main)


def test_a_killed_container_is_told_to_abort_and_nothing_else() -> None:
    async def main(world: World) -> None:
        await world.active()
        request = world.launcher.requests[1]
        await world.controller.operations.kill_container("shop", request.container_id)
        # Its process is gone and its token with it; the connection that it had lives.
        response = await world.two.beat((SECOND, ACTIVE))
        assert response == m.ContainerHeartbeatResponse(shutdown=m.ShutdownType.ABORT)

    simulate(main)


def test_the_last_operators_end_is_the_containers() -> None:
    async def main(world: World) -> None:
        await world.active()
        await world.one.beat((FIRST, SHUTDOWN))
        await world.two.beat((SECOND, SHUTDOWN))
        for fake in (world.one, world.two):
            assert (await fake.beat()).shutdown is m.ShutdownType.ABORT

    simulate(main)


def test_a_shutdown_on_request_drains() -> None:
    async def main(world: World) -> None:
        await world.active()
        await world.controller.operations.stop("shop")
        response = await world.two.beat((SECOND, ACTIVE))
        assert response.shutdown is m.ShutdownType.WAIT_TERMINATE
        assert not response.deploy_request

    simulate(main)


def test_the_committed_window_is_what_every_operator_has_reached() -> None:
    async def main(world: World) -> None:
        await world.active()
        grid = world.controller.operations.show("shop").start_window_ms // 1000 << 32
        assert (await world.two.beat((SECOND, ACTIVE), windows=(grid + 5,))).committed_window_id < 0
        response = await world.one.beat((FIRST, ACTIVE), windows=(grid + 7,))
        assert response.committed_window_id == -1 or response.committed_window_id <= grid + 5

    simulate(main)


def test_a_stack_trace_is_asked_for_once_and_given_to_who_asked() -> None:
    async def main(world: World) -> None:
        await world.active()
        wanted = asyncio.ensure_future(
            world.controller.operations.stack_trace("shop", world.two.id)
        )
        await world.runtime.clock.sleep(0.01)
        first = await world.two.beat((SECOND, ACTIVE))
        assert first.stack_trace_required
        second = await world.two.beat((SECOND, ACTIVE), stack_trace='{"python": []}')
        assert not second.stack_trace_required
        assert await wanted == '{"python": []}'

    simulate(main)


def test_log_levels_reach_every_container_once() -> None:
    async def main(world: World) -> None:
        await world.active()
        await world.controller.operations.set_log_levels("shop", {"headrace.spark": "debug"})
        for fake, operator in ((world.one, FIRST), (world.two, SECOND)):
            (request,) = (await fake.beat((operator, ACTIVE))).node_requests
            assert request.request_type is m.RequestType.SET_LOG_LEVEL
            assert request.target_levels == {"headrace.spark": "DEBUG"}
            assert not (await fake.beat((operator, ACTIVE))).node_requests

    simulate(main)


def test_a_deployment_names_the_serving_broker_where_rows_leave_the_container() -> None:
    async def main(world: World) -> None:
        await world.start_first()
        (reader,) = (await world.two.beat()).deploy_request
        (writer,) = (await world.one.beat()).deploy_request
        ends: list[m.InputDeployInfo | m.OutputDeployInfo] = [*reader.inputs, *writer.outputs]
        for end in ends:
            assert (end.buffer_server_host, end.buffer_server_port) == ("127.0.0.1", 8090)
            assert end.buffer_server_token is not None
            assert end.buffer_server_token.startswith(b"headrace-grant-")
            assert dict(end.stream_codecs) == {1: m.StreamCodec("arrow")}
        assert reader.inputs[0].locality is None
        assert (reader.inputs[0].source_node_id, reader.inputs[0].source_port_name) == (1, "output")
        context = await world.one.client.get_init_context(world.one.id)
        assert context is not None
        assert context.deploy_buffer_server
        assert "broker's" not in repr(world.controller.operations.show("shop"))

    simulate(main)
