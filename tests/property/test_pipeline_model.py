"""Window arithmetic by its laws, checkpoints against a search over all assignments, and the whole
application under random events."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.config.controller import ControllerSettings
from headrace.errors import InvalidArgumentError, UnavailableError
from headrace.ids import OperatorId, WindowId
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    ContainerState,
    Kill,
    Launch,
    PurgeEdges,
    Record,
    ResetEdges,
)
from headrace.pipeline.controller.application.model import Checkpoints
from headrace.pipeline.controller.journal import ApplicationRecord, Journal
from headrace.pipeline.plan.logical import Endpoint, LogicalPlan, Operator, Port, Stream
from headrace.pipeline.plan.physical import PhysicalPlan, make_physical_plan
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid, format_window, parse_window

GRIDS = st.builds(
    WindowGrid,
    start_ms=st.integers(0, 2_000_000_000).map(lambda seconds: seconds * 1000),
    width_ms=st.integers(1, 10_000),
)
ORDINALS = st.integers(0, 100_000)


@given(GRIDS, ORDINALS, st.data())
def test_a_window_holds_the_times_of_its_width(
    grid: WindowGrid, ordinal: int, data: st.DataObject
) -> None:
    begin = grid.start_ms + ordinal * grid.width_ms
    window = grid.window_at(begin + data.draw(st.integers(0, grid.width_ms - 1)))
    assert grid.millis(window) == begin
    assert grid.ordinal(window) == ordinal
    assert parse_window(format_window(window)) == window


@given(GRIDS, ORDINALS)
def test_ids_follow_the_formula_of_the_origin(grid: WindowGrid, ordinal: int) -> None:
    time_ms = grid.start_ms + ordinal * grid.width_ms
    rest = (time_ms - grid.start_ms) % (grid.width_ms * 16_000)
    expected = ((time_ms - rest) // 1000) << 32 | rest // grid.width_ms
    assert grid.window_at(time_ms) == expected


@given(GRIDS, ORDINALS)
def test_next_and_previous_are_neighbours_and_ids_grow(grid: WindowGrid, ordinal: int) -> None:
    window = grid.window_at(grid.start_ms + ordinal * grid.width_ms)
    after = grid.next(window)
    assert after > window
    assert grid.previous(after) == window
    assert grid.millis(after) - grid.millis(window) == grid.width_ms


# checkpoints


def edges(count: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Edges i -> j with i < j: a random acyclic graph."""
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    return st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([])


@st.composite
def plans(draw: st.DrawFn) -> PhysicalPlan:
    count = draw(st.integers(1, 5))
    drawn = draw(edges(count))
    terminal = draw(st.sets(st.integers(0, count - 1)))
    operators = tuple(
        Operator(
            f"o{i}",
            inputs=tuple(Port(f"from{a}") for a, b in drawn if b == i),
            outputs=(Port("output"),),
            # What nobody reads is terminal in any case.
            terminal=i in terminal or not any(a == i for a, _ in drawn),
        )
        for i in range(count)
    )
    streams = tuple(
        Stream(f"s{a}", Endpoint(f"o{a}", "output"), sinks)
        for a in range(count)
        if (sinks := tuple(Endpoint(f"o{b}", f"from{a}") for one, b in drawn if one == a))
    )
    return make_physical_plan(LogicalPlan("random", operators, streams))


def best_assignment(
    plan: PhysicalPlan, reported: dict[OperatorId, list[int]]
) -> dict[OperatorId, int]:
    """By trying all: the highest recovery windows such that none is above one downstream."""
    keepers = [one.id for one in plan.operators if one.query]

    def assignments() -> Iterator[dict[OperatorId, int]]:
        for chosen in itertools.product(*([-1, *reported[one]] for one in keepers)):
            values: dict[OperatorId, int] = dict(zip(keepers, chosen, strict=True))
            for operator in reversed(plan.operators):
                if operator.id not in values:
                    below = plan.downstream[operator.id]
                    values[operator.id] = min(values[one] for one in below)
            yield values

    best = dict.fromkeys(plan.by_id, -1)
    for values in assignments():
        if all(values[one] <= values[d] for one in values for d in plan.downstream[one]):
            best = {one: max(best[one], values[one]) for one in best}
    return best


@settings(max_examples=150)
@given(plans(), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), max_size=16))
def test_recovery_and_committed_against_a_search_over_all_assignments(
    plan: PhysicalPlan, reports: list[tuple[int, int]]
) -> None:
    checkpoints = Checkpoints(plan)
    keepers = [one.id for one in plan.operators if one.query]
    reported: dict[OperatorId, list[int]] = {one: [] for one in keepers}
    committed = NO_WINDOW
    for which, window in reports:
        operator = keepers[which % len(keepers)]
        before = {one: checkpoints.recovery(one) for one in plan.by_id}
        news = checkpoints.on_checkpoint(operator, WindowId(window))
        assert news == (window > max(reported[operator], default=-1))
        if news:
            reported[operator].append(window)
        checkpoints.update()
        expected = best_assignment(plan, reported)
        assert {one: checkpoints.recovery(one) for one in plan.by_id} == expected
        assert checkpoints.committed == min(expected.values())
        assert checkpoints.committed >= committed
        assert all(expected[one] >= before[one] for one in before)
        committed = checkpoints.committed


@given(plans(), st.integers(0, 20))
def test_frozen_operators_keep_their_recovery_window(plan: PhysicalPlan, window: int) -> None:
    checkpoints = Checkpoints(plan)
    for operator in plan.operators:
        checkpoints.on_checkpoint(operator.id, WindowId(window))
    checkpoints.update(frozen=set(plan.by_id))
    assert {checkpoints.recovery(one) for one in plan.by_id} == {NO_WINDOW}
    checkpoints.update()
    assert checkpoints.committed == window


def test_a_new_controller_never_goes_behind_what_was_committed() -> None:
    plan = make_physical_plan(LogicalPlan("one", (Operator("o"),)))
    checkpoints = Checkpoints(plan, WindowId(10))
    assert checkpoints.update() == 10
    assert not checkpoints.on_checkpoint(OperatorId(1), WindowId(7))
    assert checkpoints.on_checkpoint(OperatorId(1), WindowId(12))
    assert checkpoints.update() == 12


# the application as a whole

START = 1_700_000_000_000


def _operator(name: str, *inputs: str) -> dict[str, Any]:
    ports = [{"name": one, "kind": "input"} for one in inputs]
    ports.append({"name": "output", "kind": "output"})
    return {"name": name, "ports": ports, "properties": {"p": 0}}


PLAN: dict[str, Any] = {
    "name": "shop",
    "attributes": {"HEARTBEAT_TIMEOUT_MILLIS": 5_000},
    "operators": [_operator("a"), _operator("b", "in"), _operator("c", "in")],
    "streams": [
        {
            "name": "s",
            "source": {"operatorName": "a", "portName": "output"},
            "sinks": [{"operatorName": "b", "portName": "in"}],
            "remote": True,
        },
        {
            "name": "t",
            "source": {"operatorName": "b", "portName": "output"},
            "sinks": [{"operatorName": "c", "portName": "in"}],
        },
    ],
}


class ApplicationMachine(RuleBasedStateMachine):
    """Containers that do anything at any time; a model of them is kept here.

    Holds throughout: a run id is journalled before a container hears of it and never given out
    twice; the committed window never goes back; a purge never passes a recovery point, nor a
    rollback a purge; nothing runs while what it published is voided; one process per container; the
    journal, replayed, is where the application is; once ended it stays ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.record("submit", _submitted())
        self.now = START
        self.alive: dict[str, dict[int, m.DeployState]] = {}  # container: its operators
        self.killing: set[str] = set()
        self.runs: dict[int, str] = {}
        self.committed = self.purged = -1
        self.window = 0
        self.application = self.make()
        self.perform(self.application.on_start(self.now))

    def make(self) -> Application:
        record = self.journal.applications["shop"]
        settings = ControllerSettings(committed_interval_ms=0, rollback_retention_ms=2_000)
        return Application(record, settings, path="/a")

    def record(self, kind: str, body: dict[str, Any]) -> None:
        self.log.append((kind, body))
        self.journal.apply(1, kind, body)

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Record):
                self.record(action.kind, action.body)
            elif isinstance(action, Launch):
                run = int(action.container_id.rpartition(".")[2])
                assert run <= self.journal.applications["shop"].run
                assert run not in self.runs
                self.runs[run] = action.container_id
                others = {one.rpartition(".")[0] for one in self.alive if one not in self.killing}
                assert action.container_id.rpartition(".")[0] not in others
                self.alive[action.container_id] = {}
            elif isinstance(action, Kill):
                self.killing.add(action.container_id)
            elif isinstance(action, PurgeEdges):
                checkpoints = self.application.checkpoints
                assert action.window < checkpoints.committed
                for id_ in self.application.operators:
                    assert action.window <= checkpoints.recovery(id_)
                self.purged = max(self.purged, action.window)
            elif isinstance(action, ResetEdges):
                assert action.window >= self.purged
                # One that does not die of its kill is given up: its runs are fenced by the epoch.
                given_up = {
                    one.id
                    for one in self.application.containers
                    if one.state is ContainerState.KILLED
                }
                for id_, operator in self.application.operators.items():
                    reset = operator.roll_back_to is not None
                    running = [
                        name
                        for name, one in self.alive.items()
                        if one.get(id_) is m.DeployState.ACTIVE and name not in given_up
                    ]
                    assert not (reset and running), "what is voided may not go on"
                self.perform(self.application.rollback.on_edges_reset())

    @rule(ms=st.sampled_from([0, 100, 1_000, 4_000, 30_000]))
    def tick(self, ms: int) -> None:
        self.now += ms
        self.perform(self.application.on_tick(self.now))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        container = data.draw(st.sampled_from(sorted(self.alive)))
        operators = self.alive[container]
        reports = []
        for id_ in sorted(operators):
            if data.draw(st.integers(0, 5)) == 0:
                operators[id_] = data.draw(st.sampled_from(m.DeployState))
            stats: tuple[m.OperatorStats, ...] = ()
            if operators[id_] is m.DeployState.ACTIVE and data.draw(st.booleans()):
                self.window += 1
                window = WindowGrid(START, 500).window_at(START + 500 * self.window)
                stats = (m.OperatorStats(window, checkpoint=m.Checkpoint(window)),)
            reports.append(m.OperatorHeartbeat(id_, operators[id_], window_stats=stats))
        heartbeat = m.ContainerHeartbeat(stats=m.ContainerStats(container, tuple(reports)))
        outcome = self.application.deployment.on_heartbeat(heartbeat, self.now)
        self.perform(outcome.actions)
        self.obey(container, outcome.response)

    def obey(self, container: str, response: m.ContainerHeartbeatResponse) -> None:
        assert not (response.undeploy_request and response.deploy_request)
        known = self.journal.applications["shop"]
        for info in response.deploy_request:
            assert info.run_id <= known.run
            self.alive[container].setdefault(info.id, m.DeployState.ACTIVE)
        for id_ in response.undeploy_request:
            self.alive[container].pop(id_, None)
        if response.shutdown is not m.ShutdownType.ABORT:
            assert response.committed_window_id >= self.committed
            self.committed = response.committed_window_id

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), status=st.sampled_from([0, 1, -9]))
    def exit(self, data: st.DataObject, status: int) -> None:
        container = data.draw(st.sampled_from(sorted(self.alive)))
        del self.alive[container]
        self.killing.discard(container)
        self.perform(self.application.supervision.on_exit(container, status, self.now))

    @precondition(lambda self: not self.application.finished)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 9)) == 0:
            self.perform(self.application.on_stop(self.now))

    @precondition(lambda self: not self.application.finished)
    @rule(back=st.integers(0, 20), name=st.sampled_from("abc"))
    def roll_back(self, back: int, name: str) -> None:
        window = WindowGrid(START, 500).window_at(self.now - 500 * back)
        try:
            actions = self.application.rollback.on_rollback(window, self.now, [name])
        except (InvalidArgumentError, UnavailableError):
            return  # stopping, purged, or another one is under way
        self.perform(actions)

    @precondition(lambda self: not self.application.finished)
    @rule(name=st.sampled_from("bc"))
    def restart_queries(self, name: str) -> None:
        with contextlib.suppress(InvalidArgumentError):
            self.perform(self.application.changes.on_property(name, {"p": 1}, self.now)[1])

    @rule(adopt=st.booleans())
    def restart_the_controller(self, adopt: bool) -> None:
        before = self.application
        self.application = self.make()
        assert self.application.finished == before.finished
        if not adopt:
            self.alive.clear()  # the kernel ended them
            self.killing.clear()
        self.killing.update(self.alive if before.finished else ())
        self.perform(self.application.on_start(self.now, adopt=adopt))
        self.committed = min(self.committed, self.application.checkpoints.committed)

    @invariant()
    def the_journal_replays_to_the_same_place(self) -> None:
        replayed = Journal()
        for kind, body in self.log:
            replayed.apply(1, kind, body)
        copied = Journal()
        copied.restore(*replayed.snapshot())
        assert copied.applications == self.journal.applications
        known = self.journal.applications["shop"]
        assert bool(known.state) == self.application.finished
        for container in self.application.containers:
            if container.id and container.index in known.containers:
                assert known.containers[container.index].id == container.id
                assert known.containers[container.index].run == container.run


def _submitted() -> dict[str, Any]:
    record = ApplicationRecord(
        name="shop",
        plan=PLAN,
        package="0" * 64,
        entry="shop.py",
        start_window_ms=START,
        submitted_ms=START,
    )
    body: dict[str, Any] = msgspec.to_builtins(record)
    return body


ApplicationMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestApplicationMachine = ApplicationMachine.TestCase
