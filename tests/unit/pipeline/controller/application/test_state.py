"""The controller's decisions about one application: events in, actions out, time as an argument."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.controller import ControllerSettings
from headrace.errors import NotFoundError
from headrace.ids import OperatorId
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.application.deployment import Outcome
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    ContainerState,
    Kill,
    Launch,
    OperatorState,
    Phase,
    Record,
)
from headrace.pipeline.controller.journal import ApplicationRecord, Journal
from headrace.wire.umbilical import messages as m

START = 1_700_000_000_000
ABORT, WAIT = m.ShutdownType.ABORT, m.ShutdownType.WAIT_TERMINATE
ACTIVE, SHUTDOWN, FAILED = m.DeployState.ACTIVE, m.DeployState.SHUTDOWN, m.DeployState.FAILED


def plan(*, remote: bool = False, attempts: int | None = None) -> dict[str, Any]:
    attributes = {} if attempts is None else {"RECOVERY_ATTEMPTS": attempts}
    return {
        "name": "shop",
        "attributes": {},
        "operators": [
            {
                "name": "orders",
                "class": "",
                "properties": {"topic": "shop/orders"},
                "ports": [{"name": "output", "kind": "output"}],
            },
            {
                "name": "revenue",
                "class": "shop:revenue",
                "attributes": attributes,
                "ports": [{"name": "orders", "kind": "input"}],
            },
        ],
        "streams": [
            {
                "name": "orders",
                "source": {"operatorName": "orders", "portName": "output"},
                "sinks": [{"operatorName": "revenue", "portName": "orders"}],
                "remote": remote,
            }
        ],
    }


class Driver:
    """Plays shell and journal, so that what is recorded is also replayed."""

    def __init__(self, record: ApplicationRecord | None = None, **options: Any) -> None:
        self.journal = Journal()
        record = record or ApplicationRecord(
            name="shop",
            plan=plan(**options),
            package="0" * 64,
            entry="shop.py",
            start_window_ms=START,
            submitted_ms=START,
        )
        self.journal.applications["shop"] = record
        self.now = START
        self.application = Application(record, ControllerSettings(), path="/a/shop")
        self.done: list[Action] = []

    def perform(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Record):
                self.journal.apply(1, action.kind, action.body)
        self.done += actions
        return [one for one in actions if not isinstance(one, Record)]

    def start(self, **more: bool) -> list[Action]:
        return self.perform(self.application.on_start(self.now, **more))

    def tick(self, ms: int = 0) -> list[Action]:
        self.now += ms
        return self.perform(self.application.on_tick(self.now))

    def exit(self, container_id: str, status: int) -> list[Action]:
        return self.perform(self.application.supervision.on_exit(container_id, status, self.now))

    def stop(self) -> list[Action]:
        return self.perform(self.application.on_stop(self.now))

    def beat(
        self, container_id: str, *operators: m.OperatorHeartbeat, ms: int = 0, **more: Any
    ) -> m.ContainerHeartbeatResponse:
        self.now += ms
        stats = m.ContainerStats(container_id, operators)
        outcome = self.application.deployment.on_heartbeat(
            m.ContainerHeartbeat(stats=stats, **more), self.now
        )
        assert isinstance(outcome, Outcome)
        self.killed = self.perform(outcome.actions)
        return outcome.response

    def types(self) -> list[EventType]:
        return [event.type for event in self.application.events.list()]

    def run_both(self) -> str:
        """To the state in which both operators run."""
        self.start()
        self.beat("shop.1.1")
        self.beat("shop.1.1", up(1), up(2))
        return "shop.1.1"


def up(id_: int, *windows: int, state: m.DeployState = ACTIVE, run: int = 0) -> m.OperatorHeartbeat:
    stats = tuple(m.OperatorStats(one, checkpoint=m.Checkpoint(one)) for one in windows)
    return m.OperatorHeartbeat(id_, state, window_stats=stats, run_id=run)


def state_of(driver: Driver, operator: int) -> OperatorState:
    return driver.application.operators[OperatorId(operator)].state


def ids(response: m.ContainerHeartbeatResponse) -> list[int]:
    return [info.id for info in response.deploy_request]


def window(count: int) -> int:
    return (START // 1000) << 32 | count


# §1.4: who is answered what


def test_a_start_is_recorded_before_it_happens() -> None:
    driver = Driver()
    driver.start()
    record, launch = driver.done
    assert isinstance(record, Record)
    assert record.body["state"] == "ALLOCATED"
    assert record.body["run"] == 1
    assert launch == Launch("shop.1.1", 0)


def test_an_unknown_container_is_told_to_abort_and_nothing_else() -> None:
    driver = Driver()
    driver.run_both()
    assert driver.beat("shop.1.9", up(1)) == m.ContainerHeartbeatResponse(shutdown=ABORT)
    assert driver.application.on_init_context("shop.1.9") is None


def test_deploy_comes_with_the_first_response() -> None:
    driver = Driver()
    driver.start()
    response = driver.beat("shop.1.1")
    assert ids(response) == [1, 2]
    assert response.undeploy_request == ()
    assert not response.has_pending_requests
    assert driver.application.containers[0].state is ContainerState.ACTIVE
    assert EventType.START_CONTAINER in driver.types()
    # Until the container reports them they are sent again, as the same run.
    assert driver.beat("shop.1.1").deploy_request == response.deploy_request
    assert driver.beat("shop.1.1", up(1), up(2)).deploy_request == ()
    assert driver.types().count(EventType.START_OPERATOR) == 2


def test_deploy_info_says_what_to_run_and_where_its_checkpoint_is() -> None:
    driver = Driver()
    driver.start()
    orders, revenue = driver.beat("shop.1.1").deploy_request
    assert orders.type is m.OperatorType.INPUT
    assert orders.properties == {"topic": "shop/orders"}
    assert orders.outputs[0].buffer_server_host is None
    assert revenue.function == "shop:revenue"
    assert revenue.query == "revenue"
    assert revenue.run_id == 1
    assert revenue.checkpoint_folder == "checkpoints"
    assert revenue.checkpoint == m.Checkpoint(-1)
    assert revenue.inputs[0].locality is m.Locality.CONTAINER_LOCAL
    assert revenue.inputs[0].source_node_id == orders.id


def test_the_first_start_waits_for_every_container() -> None:
    driver = Driver(remote=True)
    assert driver.start() == [Launch("shop.1.1", 0), Launch("shop.2.2", 1)]
    early = driver.beat("shop.1.1")
    assert early.has_pending_requests
    assert early.deploy_request == ()
    late = driver.beat("shop.2.2")  # the last to arrive releases everybody
    assert ids(late) == [2]
    assert late.deploy_request[0].inputs[0].buffer_server_port == 8090
    assert ids(driver.beat("shop.1.1")) == [1]


def test_a_restart_does_not_wait_for_the_others() -> None:
    driver = Driver(remote=True)
    driver.start()
    driver.beat("shop.1.1")
    driver.beat("shop.2.2")
    driver.beat("shop.1.1", up(1))
    driver.beat("shop.2.2", up(2))
    driver.exit("shop.1.1", -9)
    driver.exit("shop.2.2", -9)
    assert driver.tick(1_000) == [Launch("shop.1.3", 0), Launch("shop.2.4", 1)]
    response = driver.beat("shop.1.3")
    assert ids(response) == [1]
    assert not response.has_pending_requests


def test_operators_that_do_not_belong_there_are_undeployed() -> None:
    driver = Driver(remote=True)
    driver.start()
    driver.beat("shop.1.1")
    driver.beat("shop.2.2")
    response = driver.beat("shop.1.1", up(1), up(2), up(77))
    assert response.undeploy_request == (2, 77)


def test_undeploys_are_sent_alone() -> None:
    driver = Driver()
    driver.start()
    response = driver.beat("shop.1.1", up(77))
    assert response.undeploy_request == (77,)
    assert response.deploy_request == ()
    assert response.has_pending_requests
    assert ids(driver.beat("shop.1.1")) == [1, 2]


def test_deploy_waits_while_any_operator_is_being_undeployed() -> None:
    driver = Driver(remote=True)
    driver.start()
    driver.beat("shop.1.1")
    driver.beat("shop.2.2")
    driver.beat("shop.1.1", up(1))
    driver.beat("shop.2.2", up(2))
    driver.exit("shop.2.2", 1)
    driver.tick(1_000)
    driver.beat("shop.1.1", up(1, state=FAILED))
    held = driver.beat("shop.2.3")
    assert held.has_pending_requests
    assert held.deploy_request == ()
    driver.beat("shop.1.1")  # it is gone there
    assert ids(driver.beat("shop.2.3")) == [2]


def test_a_silent_operator_of_an_active_container_is_left_alone() -> None:
    driver = Driver()
    driver.run_both()
    assert driver.beat("shop.1.1", up(1)).deploy_request == ()


def test_an_operator_that_its_container_does_not_run_any_more_is_deployed_again() -> None:
    driver = Driver()
    id_ = driver.run_both()
    assert not ids(driver.beat(id_, up(1)))  # silent for a moment,
    assert not ids(driver.beat(id_, up(1), up(2), ms=4_000))  # and there again
    for _ in range(5):
        assert not ids(driver.beat(id_, up(1), ms=1_000))
    driver.beat(id_, up(1), ms=1_000)
    assert state_of(driver, 2) is OperatorState.PENDING_DEPLOY
    assert "does not run it any more" in driver.application.operators[2].last_error  # type: ignore[index]
    response = driver.beat(id_, up(1), ms=1_000)
    assert [(info.id, info.run_id) for info in response.deploy_request] == [(2, 2)]
    driver.beat(id_, up(1), up(2, run=2))
    assert state_of(driver, 2) is OperatorState.ACTIVE


def test_a_report_of_an_earlier_deployment_is_not_taken_for_the_one_that_was_sent() -> None:
    """A container that tells of what it was asked to undeploy does not run what follows."""
    driver = Driver()
    id_ = driver.run_both()
    driver.beat(id_, up(1, run=1), up(2, run=1, state=FAILED))
    driver.beat(id_, up(1, run=1))  # it is gone, and will be deployed as run 2
    response = driver.beat(id_, up(1, run=1), up(2, run=1), ms=1_000)
    assert response.undeploy_request == (2,)
    assert state_of(driver, 2) is OperatorState.PENDING_UNDEPLOY
    (info,) = driver.beat(id_, up(1, run=1)).deploy_request
    assert info.run_id == 3
    driver.beat(id_, up(1, run=1), up(2, run=3))
    assert state_of(driver, 2) is OperatorState.ACTIVE


def test_an_operator_is_deployed_with_all_that_is_fused_above_it() -> None:
    """A query is built with their properties; they may have failed more often, and wait longer."""
    driver = Driver()
    id_ = driver.run_both()
    driver.beat(id_, up(1, state=FAILED), up(2))
    while not ids(driver.beat(id_, up(2), ms=500)):
        pass
    driver.beat(id_, up(1, run=2), up(2))
    driver.beat(id_, up(1, state=FAILED, run=2), up(2, state=FAILED))
    sent = [ids(driver.beat(id_, ms=500)) for _ in range(5)]
    assert sent == [[], [], [], [1, 2], [1, 2]]


@pytest.mark.parametrize("state", [SHUTDOWN, FAILED])
def test_an_operator_that_ended_before_it_was_seen_running_counts_first_as_running(
    state: m.DeployState,
) -> None:
    driver = Driver()
    driver.start()
    driver.beat("shop.1.1")
    response = driver.beat("shop.1.1", up(1), up(2, state=state))
    assert response.undeploy_request == ()
    assert driver.beat("shop.1.1", up(1), up(2, state=state)).undeploy_request == (2,)


def test_a_finished_operator_is_undeployed_and_the_last_one_ends_the_container() -> None:
    driver = Driver()
    id_ = driver.run_both()
    response = driver.beat(id_, up(1), up(2, state=SHUTDOWN))
    assert response.undeploy_request == (2,)
    assert response.shutdown is None
    assert driver.beat(id_, up(1), up(2, state=SHUTDOWN)).undeploy_request == (2,)
    driver.beat(id_, up(1, state=SHUTDOWN))
    assert driver.beat(id_).shutdown is ABORT
    driver.exit(id_, 0)
    assert driver.application.phase is Phase.FINISHED
    assert driver.journal.applications["shop"].state == "FINISHED"
    assert driver.types().count(EventType.STOP_OPERATOR) == 2


# §3.4: failures


def test_a_failed_operator_is_deployed_again_as_the_next_run_after_a_delay() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.application.on_error(m.ReportErrorRequest(id_, (2,), "boom"), driver.now)
    response = driver.beat(id_, up(1), up(2, state=FAILED))
    assert response.undeploy_request == (2,)
    assert driver.beat(id_, up(1), up(2, state=FAILED)).undeploy_request == (2,)
    assert driver.beat(id_, up(1), ms=500).deploy_request == ()  # undeployed, not yet time
    response = driver.beat(id_, up(1), ms=500)
    assert ids(response) == [2]
    assert response.deploy_request[0].run_id == 2
    assert driver.journal.applications["shop"].run == 2
    assert driver.application.operators[2].last_error == "boom"  # type: ignore[index]


def fail_once(driver: Driver, id_: str) -> int:
    """Let operator 2 fail and come back; the delay it was given."""
    driver.beat(id_, up(1), up(2, state=FAILED))
    failed_at = driver.now
    while not ids(driver.beat(id_, up(1), ms=100)):
        assert driver.now < failed_at + 100_000
    driver.beat(id_, up(1), up(2))
    return driver.now - failed_at


def test_the_delay_doubles_to_a_minute_and_a_checkpoint_resets_it() -> None:
    driver = Driver(attempts=20)
    id_ = driver.run_both()
    delays = [fail_once(driver, id_) for _ in range(8)]
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    driver.beat(id_, up(1), up(2, window(5)))
    assert fail_once(driver, id_) == 1_000
    driver.beat(id_, up(1), up(2, window(5)))  # the same checkpoint again is no progress
    assert fail_once(driver, id_) == 2_000


def test_too_many_failures_end_the_application() -> None:
    driver = Driver(attempts=2)
    id_ = driver.run_both()
    fail_once(driver, id_)
    fail_once(driver, id_)
    driver.application.on_error(m.ReportErrorRequest(id_, (2,), "boom"), driver.now)
    response = driver.beat(id_, up(1), up(2, state=FAILED))
    assert response == m.ContainerHeartbeatResponse(shutdown=ABORT)
    assert driver.killed == [Kill(id_)]
    record = driver.journal.applications["shop"]
    assert record.state == "FAILED"
    assert "revenue failed 3 times" in record.reason
    assert "boom" in record.reason
    assert driver.tick(100_000) == []
    assert driver.exit(id_, -9) == []
    assert driver.application.phase is Phase.FAILED


def test_a_lost_container_is_restarted_with_the_same_folder_and_the_next_run() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.beat(id_, up(1), up(2, window(7)))
    assert driver.exit(id_, -9) == []
    assert driver.tick(999) == []
    assert driver.tick(1) == [Launch("shop.1.2", 0)]
    (_, revenue) = driver.beat("shop.1.2").deploy_request
    assert revenue.run_id == 2
    assert revenue.checkpoint_folder == "checkpoints"
    assert revenue.checkpoint == m.Checkpoint(window(7))
    assert driver.application.containers[0].restarts == 1
    assert driver.beat(id_, up(1)).shutdown is ABORT  # the old one, should it come back
    stopped = driver.application.events.list(type=EventType.STOP_CONTAINER)
    assert stopped[0].data["exit_status"] == -9


def test_lost_containers_count_towards_recovery_attempts() -> None:
    driver = Driver(attempts=1)
    id_ = driver.run_both()
    driver.exit(id_, 1)
    driver.tick(1_000)
    driver.exit("shop.1.2", 1)
    assert driver.application.phase is Phase.FAILED


def test_a_container_killed_on_request_is_no_failure() -> None:
    driver = Driver(attempts=0)
    id_ = driver.run_both()
    assert driver.perform(driver.application.on_kill(id_, driver.now)) == [Kill(id_)]
    assert driver.beat(id_, up(1), up(2)) == m.ContainerHeartbeatResponse(shutdown=ABORT)
    driver.exit(id_, -9)
    assert driver.tick(1_000) == [Launch("shop.1.2", 0)]
    with pytest.raises(NotFoundError):
        driver.application.on_kill(id_, driver.now)


def test_a_hung_container_is_killed_after_the_heartbeat_timeout() -> None:
    driver = Driver()
    id_ = driver.run_both()
    assert driver.tick(30_000) == []
    assert driver.tick(1) == [Kill(id_)]
    assert driver.tick(1_000) == []  # one kill, one event
    assert driver.types().count(EventType.CONTAINER_ERROR) == 1
    driver.exit(id_, -9)
    assert driver.tick(1_000) == [Launch("shop.1.2", 0)]


def test_the_first_heartbeat_has_twice_the_time() -> None:
    driver = Driver()
    driver.start()
    assert driver.tick(60_000) == []
    assert driver.tick(1) == [Kill("shop.1.1")]


def test_a_kill_that_is_not_confirmed_does_not_hold_up_recovery() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.tick(30_001)
    assert driver.tick(29_999) == []
    assert driver.tick(1) == []  # counted as gone, its back-off starts
    assert driver.tick(1_000) == [Launch("shop.1.2", 0)]
    assert driver.exit(id_, -9) == []  # the late exit of the old one changes nothing
    assert driver.application.containers[0].state is ContainerState.ALLOCATED


def test_a_container_may_ask_to_be_replaced() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.beat(id_, up(1), up(2), restart_requested=True)
    assert driver.killed == [Kill(id_)]
    assert EventType.CONTAINER_ERROR in driver.types()


# stopping


def test_stop_drains_and_then_ends() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.stop()
    assert driver.journal.applications["shop"].stopping
    assert driver.beat(id_, up(1), up(2)).shutdown is WAIT
    response = driver.beat(id_, up(1, state=SHUTDOWN), up(2, state=SHUTDOWN))
    assert response.undeploy_request == (1, 2)
    assert driver.beat(id_).shutdown is ABORT
    driver.exit(id_, 0)
    assert driver.application.phase is Phase.STOPPED
    assert driver.stop() == []


def test_a_container_that_does_not_stop_is_killed() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.stop()
    assert driver.tick(29_999) == []
    assert driver.tick(1) == [Kill(id_)]
    driver.exit(id_, -9)
    assert driver.application.phase is Phase.STOPPED


def test_a_container_that_has_not_reported_yet_is_aborted_by_a_stop() -> None:
    driver = Driver()
    driver.start()
    driver.stop()
    assert driver.beat("shop.1.1") == m.ContainerHeartbeatResponse(shutdown=ABORT)


def test_a_stop_during_back_off_ends_at_once() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.exit(id_, 1)
    driver.stop()
    assert driver.application.phase is Phase.STOPPED
    assert driver.tick(60_000) == []


def test_a_failure_during_a_stop_is_not_repaired() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.stop()
    driver.beat(id_, up(1), up(2, state=FAILED))
    assert state_of(driver, 2) is OperatorState.INACTIVE
    driver.exit(id_, 1)
    assert driver.application.phase is Phase.STOPPED


# restart of the controller


def test_a_new_controller_launches_again_under_a_new_run() -> None:
    driver = Driver()
    id_ = driver.run_both()
    driver.beat(id_, up(1), up(2, window(7)), ms=20_000)
    driver.tick()
    again = Driver(driver.journal.applications["shop"])
    assert again.start() == [Launch("shop.1.2", 0)]
    assert again.beat(id_, up(1), up(2)).shutdown is ABORT
    response = again.beat("shop.1.2")
    assert response.committed_window_id == window(7)
    assert [info.run_id for info in response.deploy_request] == [2, 2]


def test_living_containers_are_adopted_where_the_launcher_lets_them_live() -> None:
    driver = Driver()
    id_ = driver.run_both()
    again = Driver(driver.journal.applications["shop"])
    assert again.start(adopt=True) == []
    response = again.beat(id_, up(1), up(2))
    assert response.deploy_request == ()
    assert response.undeploy_request == ()
    assert again.application.operators[2].state is OperatorState.ACTIVE  # type: ignore[index]


def test_a_container_that_does_not_come_back_to_a_new_controller_is_replaced() -> None:
    driver = Driver()
    id_ = driver.run_both()
    again = Driver(driver.journal.applications["shop"])
    again.start(adopt=True)
    assert again.tick(60_001) == [Kill(id_)]
    again.tick(30_000)
    assert again.tick(1_000) == [Launch("shop.1.2", 0)]


def test_a_stop_survives_the_controller() -> None:
    driver = Driver()
    driver.run_both()
    driver.stop()
    again = Driver(driver.journal.applications["shop"])
    assert again.start() == []
    assert again.application.phase is Phase.STOPPED


# the rest of the umbilical


def test_init_context_has_every_attribute_and_the_plans_own_win() -> None:
    driver = Driver()
    driver.application.plan.logical.attributes["HEARTBEAT_INTERVAL_MILLIS"] = 200  # type: ignore[index]
    driver.start()
    context = driver.application.on_init_context("shop.1.1")
    assert context is not None
    assert context.start_window_millis == START
    assert context.attributes["HEARTBEAT_INTERVAL_MILLIS"] == 200
    assert context.attributes["CHECKPOINT_WINDOW_COUNT"] == 60
    assert context.attributes["STREAMING_WINDOW_SIZE_MILLIS"] == 500
    assert context.attributes["APPLICATION_PATH"] == "/a/shop"
    assert context.attributes["IDENTIFIER"] == "shop.1.1"


def test_stack_traces_and_requests_go_out_once() -> None:
    driver = Driver()
    id_ = driver.run_both()
    request = m.StramToNodeRequest(2, m.RequestType.CUSTOM, cmd="setProperty", request_id=5)
    driver.application.requests.on_request(request)
    driver.application.on_stack_trace_wanted(id_)
    response = driver.beat(id_, up(1), up(2))
    assert response.node_requests == (request,)
    assert response.stack_trace_required
    answer = m.OperatorHeartbeat(2, ACTIVE, request_response=(m.OperatorResponse(5, "ok"),))
    response = driver.beat(id_, up(1), answer, stack_trace="[]")
    assert response.node_requests == ()
    assert not response.stack_trace_required
    assert driver.application.requests.responses == {5: "ok"}
    assert driver.application.containers[0].stack_trace == "[]"
    with pytest.raises(NotFoundError):
        driver.application.requests.on_request(m.StramToNodeRequest(99, m.RequestType.CUSTOM))


def test_errors_become_events_with_a_group() -> None:
    driver = Driver()
    id_ = driver.run_both()
    position = m.LogFileInfo("shop.1.1.log", 77)
    driver.application.on_error(m.ReportErrorRequest(id_, (), "whole", position), driver.now)
    driver.application.on_error(m.ReportErrorRequest(id_, (2, 99), "part"), driver.now)
    whole, part = driver.application.events.list()[-2:]
    assert (whole.type, part.type) == (EventType.CONTAINER_ERROR, EventType.OPERATOR_ERROR)
    assert whole.data["log"] == {"file": "shop.1.1.log", "offset": 77}
    assert part.data["operator"] == "revenue"
    assert part.group > whole.group
    driver.exit(id_, 1)
    assert driver.application.events.list()[-1].group == part.group
    assert driver.application.last_error == "part"


def test_a_gap_is_an_event_of_its_topic_and_no_failure() -> None:
    driver = Driver()
    id_ = driver.run_both()
    text = (
        "messages lost: partition 3 of the topic with uid 12 was read up to 60 and went on at 105"
    )
    assert driver.application.on_error(m.ReportErrorRequest(id_, (2, 1), text), driver.now) == []
    (gap,) = [e for e in driver.application.events.list() if e.type is EventType.DATA_GAP]
    assert gap.data["operator"] == "orders"
    told = {name: gap.data[name] for name in ("partition", "position", "resumed", "lost")}
    assert told == {"partition": 3, "position": 60, "resumed": 105, "lost": 45}
    assert gap.to_json()["type"] == "DataGap"
    assert driver.application.last_error == ""


def test_events_are_bounded_and_can_be_read_from_a_point() -> None:
    driver = Driver()
    driver.start()
    for _ in range(1_500):
        driver.application.on_error(m.ReportErrorRequest("shop.1.1", (), "x"), driver.now)
    events = driver.application.events.list()
    assert len(events) == 1_000
    assert driver.application.events.list(after=events[-1].id - 3) == events[-3:]


def test_statistics_count_a_window_once() -> None:
    driver = Driver()
    id_ = driver.run_both()
    port = m.PortStats("orders", 100, queue_size=4)
    stats = m.OperatorStats(window(3), input_ports=(port,), metrics={"users": 2}, run_id="r")
    beat = m.OperatorHeartbeat(2, ACTIVE, window_stats=(stats,))
    driver.beat(id_, up(1), beat)
    driver.beat(id_, up(1), beat)  # the heartbeat arrived twice
    numbers = driver.application.operators[2].statistics  # type: ignore[index]
    assert numbers.rows_in == 100
    assert numbers.lag == 4
    assert numbers.metrics == {"users": 2}
    assert numbers.rates(driver.now) == (10.0, 0.0)
    assert numbers.rates(driver.now + 10_000) == (0.0, 0.0)


def test_the_committed_window_is_journalled_now_and_then() -> None:
    driver = Driver()
    id_ = driver.run_both()
    response = driver.beat(id_, up(1), up(2, window(1)))
    assert response.committed_window_id == window(1)
    driver.tick(10_000)
    assert driver.journal.applications["shop"].committed == window(1)
    driver.beat(id_, up(1), up(2, window(2)))
    driver.tick(5_000)
    assert driver.journal.applications["shop"].committed == window(1)
    driver.beat(id_, up(1), up(2))
    driver.tick(5_000)
    assert driver.journal.applications["shop"].committed == window(2)
