"""Changes at run time: journalled first, then the affected queries and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError, InvalidArgumentError, NotFoundError, UnavailableError
from headrace.ids import WindowId
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    Kill,
    Launch,
    MakeEdges,
    OperatorState,
    Record,
    ResetEdges,
)
from headrace.pipeline.controller.application.operator_requests import SET_PROPERTY
from headrace.pipeline.controller.application.statistics import TASKS_FINISHED
from headrace.pipeline.controller.journal import ApplicationRecord
from headrace.pipeline.plan import deploy as d
from headrace.pipeline.plan.logical import READ_TOPIC
from headrace.pipeline.plan.plan_requests import apply_requests
from headrace.runtime.interfaces import UNKNOWN_EXIT
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import NO_WINDOW
from tests.unit.pipeline.controller.application.test_state import (
    ACTIVE,
    SHUTDOWN,
    START,
    Driver,
    ids,
    up,
    window,
)


def operator(name: str, *inputs: str, **more: Any) -> dict[str, Any]:
    ports = [{"name": one, "kind": "input"} for one in inputs]
    more.setdefault("class", f"shop:{name}")
    outputs = [] if more.pop("sink", False) else [{"name": "output", "kind": "output"}]
    return {"name": name, "ports": [*ports, *outputs], **more}


def stream(source: str, *sinks: str) -> dict[str, Any]:
    return {
        "name": source,
        "source": {"operatorName": source, "portName": "output"},
        "sinks": [
            dict(zip(("operatorName", "portName"), s.split("."), strict=True)) for s in sinks
        ],
    }


def make(*operators: dict[str, Any], streams: list[dict[str, Any]], **more: Any) -> Driver:
    record = ApplicationRecord(
        name="shop",
        plan={"name": "shop", "operators": list(operators), "streams": streams, **more},
        package="0" * 64,
        entry="shop.py",
        start_window_ms=START,
        submitted_ms=START,
    )
    return Driver(record)


def chain() -> Driver:
    """Three containers in a row: a topic and `valid`, `rich` alone, `store`."""
    return make(
        operator("orders", **{"class": READ_TOPIC}, properties={"starting": "earliest"}),
        operator("valid", "orders", properties={"limit": 3}),
        operator("rich", "valid", isolate=True, attributes={"STATELESS": True}),
        operator(
            "store",
            "rich",
            isolate=True,
            sink=True,
            properties={"path": "a", "rate": 1},
            attributes={"LIVE_PROPERTIES": ["path"]},
        ),
        streams=[
            stream("orders", "valid.orders"),
            stream("valid", "rich.valid"),
            stream("rich", "store.rich"),
        ],
    )


C1, C2, C3 = "shop.1.1", "shop.2.2", "shop.3.3"


def running() -> Driver:
    driver = chain()
    driver.start()
    for id_ in (C1, C2, C3):
        driver.beat(id_)
    deployed = [ids(driver.beat(id_)) for id_ in (C1, C2, C3)]
    assert deployed == [[1, 2], [3], [4]]
    for id_, operators in ((C1, (1, 2)), (C2, (3,)), (C3, (4,))):
        driver.beat(id_, *(up(one, window(1)) for one in operators))
    return driver


def test_each_container_gets_its_part_of_the_graph() -> None:
    driver = chain()
    driver.start()
    for id_ in (C1, C2):
        assert driver.beat(id_).has_pending_requests
    (info,) = driver.beat(C3).deploy_request
    (port,) = info.inputs
    assert (port.buffer_server_host, port.buffer_server_port) == ("127.0.0.1", 8090)
    assert port.context_attributes[d.TOPIC] == "_pipeline.shop/rich"
    assert port.locality is None
    assert set(port.stream_codecs) == {1}
    valid = driver.beat(C1).deploy_request[1]
    (output,) = valid.outputs
    assert output.context_attributes[d.TOPIC] == "_pipeline.shop/valid"
    assert output.context_attributes[d.HASH_KEY] == "*"  # its reader may get more instances
    assert output.context_attributes[d.PUBLISHER] == "pipeline/shop/valid/0"


def test_a_live_property_is_asked_for_and_confirmed() -> None:
    driver = running()
    requests, actions = driver.application.changes.on_property("store", {"path": "b"}, driver.now)
    assert driver.perform(actions) == []
    (sent,) = driver.beat(C3, up(4)).node_requests
    assert (sent.cmd, sent.request_id, sent.arguments) == (SET_PROPERTY, requests[0], {"path": "b"})
    answer = m.OperatorHeartbeat(4, ACTIVE, request_response=(m.OperatorResponse(requests[0], ""),))
    driver.beat(C3, answer)
    assert driver.application.requests.responses == {requests[0]: ""}
    assert driver.application.operators[4].state is OperatorState.ACTIVE  # type: ignore[index]


def test_another_property_restarts_its_queries_and_stays_for_later_deployments() -> None:
    driver = running()
    requests, actions = driver.application.changes.on_property("valid", {"limit": 5}, driver.now)
    driver.perform(actions)
    assert requests == []
    response = driver.beat(C1, up(1), up(2))
    assert response.undeploy_request == (2,)
    (info,) = driver.beat(C1, up(1)).deploy_request
    assert info.properties["limit"] == 5
    assert driver.beat(C2, up(3)).undeploy_request == ()  # nobody else is touched
    again = Driver(driver.journal.applications["shop"])
    again.start()
    for id_ in ("shop.1.5", "shop.2.6", "shop.3.7"):
        again.beat(id_)
    infos = {info.name: info for info in again.beat("shop.1.5").deploy_request}
    assert infos["valid"].properties["limit"] == 5


def test_wrong_properties_are_refused_before_anything_is_journalled() -> None:
    driver = running()
    with pytest.raises(InvalidArgumentError, match="no such property"):
        driver.application.changes.on_property("valid", {"size": 5}, driver.now)
    with pytest.raises(NotFoundError):
        driver.application.changes.on_property("nobody", {"size": 5}, driver.now)
    with pytest.raises(InvalidArgumentError, match="a property is text"):
        driver.application.changes.on_property("valid", {"limit": [1]}, driver.now)
    driver.stop()
    with pytest.raises(InvalidArgumentError, match="STOPPING"):
        driver.application.changes.on_property("valid", {"limit": 5}, driver.now)


def test_a_rollback_stops_all_that_reads_it_then_voids_then_starts() -> None:
    driver = running()
    target = WindowId(window(0))
    driver.perform(driver.application.rollback.on_rollback(target, driver.now + 5_000, ["rich"]))
    driver.now += 5_000
    assert driver.tick() == []
    assert driver.beat(C1, up(1), up(2)).undeploy_request == ()  # it is above
    assert driver.beat(C2, up(3)).undeploy_request == (3,)
    driver.beat(C2)
    assert driver.tick() == []  # the third still runs
    assert driver.beat(C3, up(4)).undeploy_request == (4,)
    assert driver.beat(C3).has_pending_requests  # held back until the edges are reset
    (reset,) = driver.killed
    assert isinstance(reset, ResetEdges)
    assert (reset.edges, reset.window) == (("rich",), target)
    assert ids(driver.beat(C2)) == []
    driver.perform(driver.application.rollback.on_edges_reset())
    (info,) = driver.beat(C2).deploy_request
    assert info.context_attributes[d.ROLL_BACK_TO] == target
    assert info.context_attributes[d.ROLLBACKS] == 1
    assert info.run_id > reset.epoch
    with pytest.raises(UnavailableError):
        driver.application.rollback.on_rollback(target, driver.now)
    driver.beat(C2, up(3))
    driver.beat(C3)
    assert rolling_back(driver)
    driver.beat(C3, up(4))
    assert not rolling_back(driver)
    assert driver.application.checkpoints.committed == window(1)  # it never goes back


def rolling_back(driver: Driver) -> bool:
    return driver.journal.applications["shop"].rollback is not None


def test_a_rollback_goes_on_after_the_controller() -> None:
    driver = running()
    driver.perform(driver.application.rollback.on_rollback(WindowId(window(0)), driver.now + 5_000))
    again = Driver(driver.journal.applications["shop"])
    again.now = driver.now + 5_000
    again.start(adopt=True)
    assert again.tick() == []  # the containers may run what is to be voided
    for container, *operators in ((C1, up(1), up(2)), (C2, up(3))):
        undeployed = again.beat(container, *operators).undeploy_request
        assert undeployed == tuple(one.node_id for one in operators)
        again.beat(container)
    assert again.tick() == []
    assert again.beat(C3).has_pending_requests  # it had been undeployed before
    resets = [one for one in again.killed if isinstance(one, ResetEdges)]
    assert [one.edges for one in resets] == [("valid", "rich")]
    assert again.beat(C2).has_pending_requests
    again.application.rollback.on_edges_not_reset()
    assert [one for one in again.tick() if isinstance(one, ResetEdges)]
    again.perform(again.application.rollback.on_edges_reset())
    assert ids(again.beat(C2)) == [3]


@pytest.mark.parametrize(
    ("target", "text"),
    [(window(9), "yet to come"), (12345, "not on this grid")],
    ids=["future", "garbage"],
)
def test_no_rollback_to_nowhere(target: int, text: str) -> None:
    driver = running()
    with pytest.raises(InvalidArgumentError, match=text):
        driver.application.rollback.on_rollback(WindowId(target), driver.now)


def test_a_replay_starts_what_reads_the_topic_under_a_new_checkpoint() -> None:
    driver = running()
    driver.perform(driver.application.changes.on_replay("orders", "latest", driver.now))
    driver.beat(C1, up(1), up(2))
    infos = driver.beat(C1).deploy_request
    assert [info.checkpoint_folder for info in infos] == ["checkpoints/generation-1"] * 2
    assert infos[0].properties["starting"] == "latest"
    began = driver.application.grid.window_at(driver.now)
    begun = [info.context_attributes["ACTIVATION_WINDOW_ID"] for info in infos]
    assert begun == [began] * 2, "after all windows that the earlier run can have closed"
    assert driver.beat(C2, up(3)).undeploy_request == ()
    with pytest.raises(InvalidArgumentError, match="began later"):
        driver.application.rollback.on_rollback(NO_WINDOW, driver.now)
    with pytest.raises(ConfigError, match="a time like"):
        driver.application.changes.on_replay("orders", "yesterday", driver.now)
    with pytest.raises(InvalidArgumentError, match="only a topic"):
        driver.application.changes.on_replay("valid", "latest", driver.now)


def restarted(driver: Driver) -> Driver:
    """The next life of the controller; the containers are still there."""
    again = Driver(driver.journal.applications["shop"])
    again.now = driver.now + 5_000
    again.start(adopt=True)
    return again


def test_a_replay_goes_on_after_the_controller() -> None:
    driver = running()
    driver.perform(driver.application.changes.on_replay("orders", "latest", driver.now))
    again = restarted(driver)
    assert again.beat(C2, up(3, run=2)).undeploy_request == ()
    answer = again.beat(C1, up(1, run=1), up(2, run=1))
    assert answer.undeploy_request == (1, 2), "they read under the checkpoint they had"
    infos = again.beat(C1).deploy_request
    assert [info.checkpoint_folder for info in infos] == ["checkpoints/generation-1"] * 2
    began = again.application.grid.window_at(again.now)
    assert [one.context_attributes["ACTIVATION_WINDOW_ID"] for one in infos] == [began] * 2

    third = restarted(again)  # before the container told of them
    assert ids(third.beat(C1)) == [1, 2]
    begun = third.application.record.activations
    assert begun == {"orders": began, "valid": began}, "a checkpoint begins once"
    new = [up(info.id, run=info.run_id) for info in third.beat(C1).deploy_request]
    assert third.beat(C1, *new).undeploy_request == ()
    fourth = restarted(third)
    assert fourth.beat(C1, *new).undeploy_request == ()


def test_a_deployment_that_starts_after_a_change_is_replaced() -> None:
    driver = chain()
    driver.start()
    for id_ in (C1, C2, C3):
        driver.beat(id_)
    (sent, _) = driver.beat(C1).deploy_request
    driver.perform(driver.application.changes.on_replay("orders", "latest", driver.now))
    driver.beat(C1)  # Spark takes its time to start
    (wanted, _) = driver.beat(C1).deploy_request
    assert wanted.run_id > sent.run_id
    late = [up(one, run=sent.run_id) for one in (1, 2)]
    assert driver.beat(C1, *late).undeploy_request == (1, 2)
    infos = driver.beat(C1).deploy_request
    assert {info.checkpoint_folder for info in infos} == {"checkpoints/generation-1"}
    new = [up(info.id, run=info.run_id) for info in infos]
    assert driver.beat(C1, *new).undeploy_request == ()
    assert {one.state for one in driver.application.model.named("valid")} == {OperatorState.ACTIVE}


def test_a_property_takes_effect_after_the_controller() -> None:
    driver = running()
    driver.perform(driver.application.changes.on_property("valid", {"limit": 9}, driver.now)[1])
    driver.perform(driver.application.changes.on_property("store", {"path": "b"}, driver.now)[1])
    again = restarted(driver)
    assert again.beat(C1, up(1, run=1), up(2, run=1)).undeploy_request == (2,)
    assert again.beat(C1, up(1, run=1)).deploy_request[0].properties["limit"] == 9
    (told,) = again.beat(C3, up(4, run=3)).node_requests  # a live one needs no new deployment
    assert (told.cmd, told.arguments) == (SET_PROPERTY, {"path": "b"})


def test_a_change_of_instances_goes_on_after_the_controller() -> None:
    driver = running()
    driver.perform(driver.application.scaling.on_instances("rich", 2, driver.now))
    again = restarted(driver)
    assert again.beat(C2, up(3, run=2)).undeploy_request == (3,)
    again.beat(C2)
    again.tick()
    scaling = again.application.record.scaling
    assert scaling is not None
    assert scaling.window is not None, "nothing runs any more: the window is known"


def test_what_is_rolled_back_counts_again_whatever_it_reports_meanwhile() -> None:
    driver = running()
    driver.perform(driver.application.rollback.on_rollback(WindowId(window(0)), driver.now + 5_000))
    driver.now += 5_000
    (one,) = driver.application.model.named("rich")
    driver.beat(C2, up(3, window(2)))
    assert one.statistics.window == window(0)
    assert driver.application.checkpoints.newest(one.physical.id) <= window(0)


def test_recordings_reach_every_instance() -> None:
    driver = running()
    id_ = driver.application.requests.on_recording("rich", 10, driver.now, start=True)
    (sent,) = driver.beat(C2, up(3)).node_requests
    assert (sent.request_type, sent.recording_id, sent.num_windows) == (
        m.RequestType.START_RECORDING,
        id_,
        10,
    )


# recovery


def busy(id_: int, finished: int) -> m.OperatorHeartbeat:
    note = m.OperatorStats(window(1), metrics={TASKS_FINISHED: finished}, window_count=0)
    return m.OperatorHeartbeat(id_, ACTIVE, window_stats=(note,))


def test_a_batch_whose_tasks_do_not_finish_is_blocked() -> None:
    driver = running()
    for _ in range(70):  # TIMEOUT_WINDOW_COUNT is 120 windows of 500 ms
        driver.beat(C1, up(1), up(2), ms=1_000)
        driver.beat(C2, busy(3, 5))
        driver.beat(C3, up(4))
        killed = driver.tick()
        if killed:
            break
    assert killed == [Kill(C2)]
    assert 60_000 < driver.now - START <= 63_000
    assert "operator rich is blocked" in driver.application.last_error


def test_a_batch_that_makes_progress_or_waits_is_not_blocked() -> None:
    driver = running()
    for second in range(200):
        driver.beat(C1, up(1), up(2), ms=1_000)  # waits for rows
        driver.beat(C2, busy(3, second // 50))  # a task every 50 s
        driver.beat(C3, up(4))
        assert driver.tick() == []


def test_the_time_to_the_first_new_window_is_told() -> None:
    driver = running()
    driver.beat(C1, up(1), up(2), ms=20_000)
    driver.beat(C3, up(4))
    assert driver.tick(11_000) == [Kill(C2)]  # silent for 31 s
    driver.exit(C2, -9)
    (launch,) = driver.tick(1_000)
    assert isinstance(launch, Launch)
    driver.beat(launch.container_id, ms=3_000)
    driver.beat(launch.container_id, up(3), ms=1_000)
    driver.beat(launch.container_id, up(3, window(9)), ms=1_000)
    (event,) = [one for one in driver.application.events.list() if one.type is EventType.RECOVERED]
    assert event.data["recovery_ms"] == 6_000
    states = [one.restarts for one in driver.application.containers]
    assert states == [0, 1, 0]  # it alone


def test_how_an_adopted_process_ended_is_inferred() -> None:
    driver = running()
    driver.exit(C2, UNKNOWN_EXIT)  # in the middle of its work
    assert driver.tick(1_000) == [Launch("shop.2.4", 1)]
    driver.beat(C3, up(4, state=SHUTDOWN))
    driver.exit(C3, UNKNOWN_EXIT)
    assert driver.application.containers[2].exit_status == 0
    assert driver.tick(60_000) != [Launch("shop.3.5", 2)]


def lost(driver: Driver, operator: int) -> list[Action]:
    report = m.ReportErrorRequest("", (operator,), f"{d.CHECKPOINT_LOST}it is empty")
    return driver.perform(driver.application.on_error(report, driver.now))


def test_a_lost_checkpoint_takes_back_all_that_reads_it() -> None:
    driver = running()
    lost(driver, 3)
    assert driver.beat(C1, up(1), up(2)).undeploy_request == ()
    assert driver.beat(C2, up(3)).undeploy_request == (3,)
    assert driver.beat(C3, up(4)).undeploy_request == (4,)
    driver.beat(C2)
    driver.beat(C3)
    (reset,) = driver.killed
    assert isinstance(reset, ResetEdges)
    assert (reset.edges, reset.window) == (("rich",), -1)
    driver.perform(driver.application.rollback.on_edges_reset())
    (info,) = driver.beat(C2).deploy_request
    assert info.context_attributes[d.ROLL_BACK_TO] == -1
    driver.beat(C2, up(3))
    driver.beat(C3)
    driver.beat(C3, up(4))
    lost(driver, 3)
    assert "again" in driver.application.last_error
    assert driver.application.finished


def test_a_lost_checkpoint_is_not_guessed_at_where_rows_must_come_once() -> None:
    driver = chain()
    store = driver.application.model.named("store")[0].physical.logical
    store.attributes["PROCESSING_MODE"] = "EXACTLY_ONCE"  # type: ignore[index]
    driver.start()
    killed = lost(driver, 3)
    assert driver.application.finished
    assert "store may not publish rows twice" in driver.application.last_error
    assert {one.container_id for one in killed if isinstance(one, Kill)} == {C1, C2, C3}


def test_events_and_totals_survive_the_controller() -> None:
    driver = running()
    driver.beat(C3, up(4, window(3)))
    driver.tick(20_000)
    for event in driver.application.events.take_unrecorded():
        body = {"application": "shop", "event": event.to_json()}
        driver.journal.apply(1, "event", body)
    before = driver.application.events.list()
    again = Driver(driver.journal.applications["shop"])
    assert [one.to_json() for one in again.application.events.list()] == [
        one.to_json() for one in before
    ]
    totals = again.application.operators[3].statistics  # type: ignore[index]
    assert totals.window == window(1)
    added = again.application.events.add(again.now, EventType.STOP)
    assert added.id == before[-1].id + 1


# the graph


def change(driver: Driver, *requests: dict[str, Any]) -> list[Action]:
    application = driver.application
    plan = application.plan.logical
    after = application.plan_changes.plan_with(apply_requests(plan, plan, requests))
    return driver.perform(application.plan_changes.on_plan(after, driver.now))


def test_a_removed_operator_is_undeployed_and_its_container_ends() -> None:
    driver = running()
    change(driver, {"requestType": "RemoveOperatorRequest", "operatorName": "store"})
    assert driver.beat(C3, up(4)).shutdown is m.ShutdownType.ABORT
    assert driver.exit(C3, 0) == []
    assert driver.beat(C1, up(1), up(2)).undeploy_request == ()
    assert not driver.application.finished
    again = Driver(driver.journal.applications["shop"])
    assert [one.logical.name for one in again.application.plan.operators] == [
        "orders",
        "valid",
        "rich",
    ]


def test_a_created_operator_gets_a_container_and_what_feeds_it_publishes() -> None:
    driver = make(
        operator("orders", **{"class": READ_TOPIC}),
        operator("valid", "orders"),
        streams=[stream("orders", "valid.orders")],
        outputs=[{"operator": "valid"}],
    )
    declared = {
        **driver.application.record.plan,
        "operators": [
            *driver.application.record.plan["operators"],
            operator("late", "valid", isolate=True, sink=True),
        ],
    }
    id_ = driver.run_both()
    from headrace.pipeline.plan.logical import LogicalPlan

    requests = [
        {"requestType": "CreateOperatorRequest", "operatorName": "late"},
        {
            "requestType": "CreateStreamRequest",
            "streamName": "valid",
            "sourceOperatorName": "valid",
            "sourceOperatorPortName": "output",
            "sinkOperatorName": "late",
            "sinkOperatorPortName": "valid",
        },
    ]
    application = driver.application
    plan = apply_requests(application.plan.logical, LogicalPlan.from_json(declared), requests)
    actions = driver.perform(
        application.plan_changes.on_plan(application.plan_changes.plan_with(plan), driver.now)
    )
    (launch,) = actions
    assert isinstance(launch, Launch)
    assert launch.index == 1
    assert driver.beat(id_, up(1), up(2)).undeploy_request == (2,)
    (info,) = driver.beat(id_, up(1)).deploy_request
    assert info.outputs[0].context_attributes[d.TOPIC] == "_pipeline.shop/valid"
    driver.beat(id_, up(1), up(2))
    assert ids(driver.beat(launch.container_id)) == [3]


def test_a_change_of_what_an_operator_reads_is_refused() -> None:
    driver = running()
    with pytest.raises(InvalidArgumentError, match="its checkpoint belongs"):
        change(
            driver,
            {"requestType": "RemoveStreamRequest", "streamName": "rich"},
            {
                "requestType": "AddStreamSinkRequest",
                "streamName": "valid",
                "sinkOperatorName": "store",
                "sinkOperatorPortName": "rich",
            },
        )


def test_instances_change_at_a_window_that_all_have_reached() -> None:
    driver = running()
    driver.perform(driver.application.scaling.on_instances("rich", 2, driver.now))
    assert driver.tick() == []
    assert driver.beat(C2, up(3)).undeploy_request == (3,)
    assert ids(driver.beat(C2)) == []  # held
    driver.tick()
    (made,) = driver.tick()
    assert isinstance(made, MakeEdges)
    assert (made.after, made.streams) == (window(1), ("rich",))
    (launch,) = driver.perform(driver.application.scaling.on_edges_made(driver.now))
    assert isinstance(launch, Launch)
    infos = driver.beat(C2).deploy_request
    infos += driver.beat(launch.container_id).deploy_request
    assert [info.context_attributes[d.ACTIVATION] for info in infos] == [window(1)] * 2
    assert [info.checkpoint_folder for info in infos] == [
        "checkpoints/generation-1/0",
        "checkpoints/generation-1/1",
    ]
    assert [info.inputs[0].partition_keys for info in infos] == [(0,), (1,)]
    assert infos[0].id == 3
    assert driver.beat(C3, up(4)).undeploy_request == ()  # downstream goes on
    driver.beat(C2, up(3, window(2)))
    driver.beat(launch.container_id, up(int(infos[1].id), window(4)))

    # And back, with one that is behind.
    driver.perform(driver.application.scaling.on_instances("rich", 1, driver.now))
    driver.beat(C2, up(3))
    driver.beat(launch.container_id, up(int(infos[1].id)))
    driver.beat(launch.container_id)
    driver.beat(C2)
    driver.tick()
    (behind,) = driver.beat(C2).deploy_request
    assert behind.context_attributes[d.UNTIL] == window(4)
    assert ids(driver.beat(launch.container_id)) == []
    driver.beat(C2, up(3))
    assert driver.tick() == []
    driver.beat(C2, up(3, window(4), state=SHUTDOWN))
    driver.beat(C2)
    (made,) = driver.tick()
    assert isinstance(made, MakeEdges)
    driver.perform(driver.application.scaling.on_edges_made(driver.now))
    assert [one.index for one in driver.application.containers] == [0, 1, 2]
    assert driver.beat(launch.container_id).shutdown is m.ShutdownType.ABORT
    (info,) = driver.beat(C2).deploy_request
    assert d.UNTIL not in info.context_attributes
    assert info.inputs[0].partition_mask is None
    assert driver.journal.applications["shop"].scaling is None


def test_instances_change_after_the_windows_that_passed_without_rows() -> None:
    driver = running()
    driver.perform(driver.application.scaling.on_instances("rich", 2, driver.now))
    driver.beat(C2, up(3))
    driver.beat(C2)
    driver.tick()
    (made,) = driver.tick()
    driver.perform(driver.application.scaling.on_windows_passed(WindowId(window(7))))
    (info,) = driver.beat(C2).deploy_request  # once more, up to there
    assert info.context_attributes[d.UNTIL] == window(7)
    driver.beat(C2, up(3, run=info.run_id))
    assert driver.tick() == []
    driver.beat(C2, up(3, run=info.run_id, state=SHUTDOWN))
    driver.beat(C2)
    (made,) = driver.tick()
    assert isinstance(made, MakeEdges)
    assert made.after == window(7)
    (launch,) = driver.perform(driver.application.scaling.on_edges_made(driver.now))
    assert isinstance(launch, Launch)
    (info,) = driver.beat(C2).deploy_request
    assert info.context_attributes[d.ACTIVATION] == window(7)


@pytest.mark.parametrize(
    ("name", "text"), [("valid", "stateless"), ("store", "stateless")], ids=["fused", "alone"]
)
def test_only_a_stateless_operator_gets_other_instances(name: str, text: str) -> None:
    driver = running()
    with pytest.raises(InvalidArgumentError, match=text):
        driver.application.scaling.on_instances(name, 2, driver.now)


def test_records_come_first() -> None:
    """What is decided is durable before any container hears of it."""
    driver = running()
    _, actions = driver.application.changes.on_property("valid", {"limit": 5}, driver.now)
    assert isinstance(actions[0], Record)
    for some in (
        driver.application.changes.on_replay("orders", "latest", driver.now),
        driver.application.rollback.on_rollback(WindowId(window(0)), driver.now + 5_000),
    ):
        assert isinstance(some[0], Record)
