"""What an application consists of: its plan, its containers and operators, how far they are, and
how they are named in the journal and in events.

The parts of an application (`containers`, `deployment`, `rollback`, `changes`, `scaling`) share one
`ApplicationModel`; what only one of them needs, that part holds itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from headrace.config.controller import ControllerSettings
from headrace.errors import InvalidArgumentError, NotFoundError
from headrace.ids import OperatorId, WindowId
from headrace.pipeline.controller.application.events import Events, EventType
from headrace.pipeline.controller.application.lifecycle import (
    ENDED,
    Container,
    ContainerState,
    Operator,
    OperatorState,
    Phase,
    Record,
)
from headrace.pipeline.controller.application.statistics import OperatorStatistics
from headrace.pipeline.controller.journal import ApplicationRecord
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import Identities, PhysicalPlan, make_physical_plan
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

CHECKPOINTS_MAX = 1000  # reported and not yet passed by `recovery`; the oldest are forgotten


class Checkpoints:
    """Recovery checkpoints and the committed window.

        recovery(op)  = newest own checkpoint <= min(recovery(downstream))
        committed     = min of recovery over all operators

    An operator without a query of its own keeps no checkpoint: it is as far as those it feeds.
    Neither number ever moves back, because reported checkpoints only grow;
    tests/property/test_pipeline_model.py holds this against a search over all assignments.
    """

    def __init__(self, plan: PhysicalPlan, committed: WindowId = NO_WINDOW) -> None:
        """`committed` is what an earlier life of the controller had reached: every operator
        recovers at least there."""
        self._plan = plan
        self._reported: dict[OperatorId, list[WindowId]] = {
            operator.id: [] for operator in plan.operators if operator.query
        }
        self._recovery = dict.fromkeys(plan.by_id, committed)
        self.committed = committed

    def on_checkpoint(self, operator: OperatorId, window: WindowId) -> bool:
        """Whether it is news; a repeated heartbeat brings old ones."""
        reported = self._reported.get(operator)
        if reported is None or window <= self.newest(operator):
            return False
        reported.append(window)
        # Dropping an old one can only hold `recovery` back, never move it too far.
        del reported[:-CHECKPOINTS_MAX]
        return True

    def rewind(self, operators: Collection[OperatorId], window: WindowId) -> None:
        """These go back to `window` and report what comes after it again. The committed window
        stays: what was promised is not taken back, it only grows later."""
        for operator in self._plan.by_id:
            if operator in operators:
                self._recovery[operator] = min(self._recovery[operator], window)
                reported = self._reported.get(operator, [])
                del reported[bisect_right(reported, window) :]

    def newest(self, operator: OperatorId) -> WindowId:
        reported = self._reported.get(operator)
        return reported[-1] if reported else self._recovery[operator]

    def recovery(self, operator: OperatorId) -> WindowId:
        return self._recovery[operator]

    def update(self, frozen: Collection[OperatorId] = ()) -> WindowId:
        """Compute again; `frozen` operators (about to be deployed) keep what they have."""
        for operator in reversed(self._plan.operators):
            if operator.id not in frozen:
                self._recovery[operator.id] = self._recovery_of(operator.id)
        demanded = [self._recovery[one.id] for one in self._plan.operators if one.query]
        self.committed = max(self.committed, min(demanded, default=NO_WINDOW))
        return self.committed

    def _recovery_of(self, operator: OperatorId) -> WindowId:
        before = self._recovery[operator]
        below = [self._recovery[one] for one in self._plan.downstream[operator]]
        reported = self._reported.get(operator)
        if reported is None:
            return max(before, min(below, default=before))
        bound = min(below, default=None)
        count = len(reported) if bound is None else bisect_right(reported, bound)
        if count == 0:
            return before
        chosen = reported[count - 1]
        del reported[: count - 1]
        return max(before, chosen)

    def change_plan(self, plan: PhysicalPlan) -> Checkpoints:
        """The same for another plan: known operators keep what they have, new ones begin at the
        committed window."""
        after = Checkpoints(plan, self.committed)
        for operator in plan.operators:
            if operator.id in self._recovery:
                after._recovery[operator.id] = self._recovery[operator.id]
            if operator.id in self._reported and operator.id in after._reported:
                after._reported[operator.id] = self._reported[operator.id]
        return after


class ApplicationModel:
    def __init__(
        self,
        record: ApplicationRecord,
        settings: ControllerSettings,
        *,
        path: str,
    ) -> None:
        self.name = record.name
        self.record = record
        self.path = path
        self.plan = plan_of(record)
        width_ms = self._attribute("STREAMING_WINDOW_SIZE_MILLIS")
        self.grid = WindowGrid(record.start_window_ms, width_ms)
        self.phase = Phase(record.state) if record.state else Phase.RUNNING
        self.events = Events(settings.events_max, record.events)
        self.checkpoints = Checkpoints(self.plan, WindowId(record.committed))
        self.last_error = record.reason if self.phase is Phase.FAILED else ""
        self.settings = settings
        self.run = record.run  # the last one that was given out
        self.heartbeat_timeout_ms = self._attribute("HEARTBEAT_TIMEOUT_MILLIS")
        self.operators: dict[OperatorId, Operator] = {}
        self.containers: list[Container] = []
        self._place_operators()

    def _place_operators(self) -> None:
        """Containers and operators as the plan has them; those that stay keep what they know."""
        before = {one.index: one for one in self.containers}
        known = self.operators
        self.operators = {}
        for physical in self.plan.operators:
            operator = known.get(physical.id) or Operator(
                physical,
                statistics=OperatorStatistics.from_totals(
                    self.record.statistics.get(str(physical.id), {})
                ),
            )
            operator.physical = physical
            operator.outdated = max(operator.outdated, self.record.outdated.get(physical.id, 0))
            operator.fresh = operator.fresh or physical.id in self.record.fresh
            self.operators[physical.id] = operator
        self.containers = []
        for index in self.plan.containers:
            operators = tuple(self.operators[one.id] for one in self.plan.in_container(index))
            container = before.get(index) or Container(index, operators)
            container.operators = operators
            self.containers.append(container)

    def change_plan(self, plan: PhysicalPlan) -> None:
        """The new plan in place of the old one; what stays keeps what it knows."""
        self.plan = plan
        self.checkpoints = self.checkpoints.change_plan(plan)
        self._place_operators()

    @property
    def finished(self) -> bool:
        return self.phase in ENDED

    def container(self, index: int) -> Container:
        return next(one for one in self.containers if one.index == index)

    def named(self, name: str) -> list[Operator]:
        """All instances of a logical operator."""
        found = [one for one in self.operators.values() if one.name == name]
        if not found:
            raise NotFoundError(f"there is no operator {name!r}")
        return found

    def downstream_of(self, names: Iterable[str]) -> set[str]:
        """These operators and everything that reads what they make, by name."""
        wanted = set(names)
        for stream in sorted(
            self.plan.logical.streams,
            key=lambda one: self.plan.logical.topological.index(one.source.operator),
        ):
            if stream.source.operator in wanted:
                wanted |= {sink.operator for sink in stream.sinks}
        return wanted

    def find(self, container_id: str) -> Container | None:
        return next(
            (one for one in self.containers if container_id and one.id == container_id), None
        )

    def living(self) -> Iterator[Container]:
        alive = (ContainerState.ALLOCATED, ContainerState.ACTIVE)
        return (container for container in self.containers if container.state in alive)

    def awaiting_deployment(self) -> set[OperatorId]:
        return {
            id_
            for id_, operator in self.operators.items()
            if operator.state is OperatorState.PENDING_DEPLOY
        }

    def _attribute(self, name: str) -> int:
        value = self.plan.logical.attribute(name)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise InvalidArgumentError(f"{name} must be a positive number", value=value)
        return value

    def next_run(self) -> int:
        self.run += 1
        return self.run

    def check_running(self) -> None:
        """InvalidArgumentError when the application cannot be changed because it does not run."""
        if self.phase is not Phase.RUNNING:
            raise InvalidArgumentError(
                f"the application is {self.phase.value}; resume it first", name=self.name
            )

    # journal and events

    def journal(self, kind: str, **body: Any) -> Record:
        return Record(kind, {"application": self.name, **body})

    def container_record(self, container: Container) -> Record:
        return self.journal(
            "container",
            index=container.index,
            id=container.id,
            state=container.state.value,
            run=container.run,
            restarts=container.restarts,
            exit_status=container.exit_status,
        )

    def add_event(self, now_ms: int, type: EventType, reason: str = "", **data: Any) -> None:
        self.events.add(now_ms, type, reason, **data)

    def add_container_error(self, container: Container, text: str, now_ms: int) -> None:
        self.last_error = text
        self.add_event(now_ms, EventType.CONTAINER_ERROR, text, container=container.id)

    def add_operator_event(
        self, operator: Operator, type: EventType, now_ms: int, reason: str = ""
    ) -> None:
        container = self.container(operator.physical.container)
        name = operator.name
        self.add_event(
            now_ms, type, reason, operator=name, run=operator.run, container=container.id
        )


def plan_of(record: ApplicationRecord) -> PhysicalPlan:
    known = Identities(record.operator_ids, record.container_ids)
    return make_physical_plan(LogicalPlan.from_json(record.plan), known)
