"""What an application consists of: its plan, containers and operators, and how they are named in
the journal and in events. `supervision`, `deployment`, `changes` and `state` build on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.config.controller import ControllerSettings
from headrace.errors import InvalidArgumentError, NotFoundError
from headrace.ids import OperatorId, WindowId
from headrace.pipeline.controller.application.checkpoints import Checkpoints
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
from headrace.wire.umbilical.windows import WindowGrid


class Roster:
    def __init__(
        self,
        record: ApplicationRecord,
        settings: ControllerSettings,
        *,
        path: str,
        broker: tuple[str, int] = ("127.0.0.1", 8090),
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
        self._settings = settings
        self._broker = broker
        self._run = record.run
        self._timeout_ms = self._attribute("HEARTBEAT_TIMEOUT_MILLIS")
        self.operators: dict[OperatorId, Operator] = {}
        self.containers: list[Container] = []
        self._enroll()

    def _enroll(self) -> None:
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

    @property
    def finished(self) -> bool:
        return self.phase in ENDED

    def container(self, index: int) -> Container:
        return next(one for one in self.containers if one.index == index)

    def named(self, name: str) -> list[Operator]:
        """All instances of a logical operator."""
        found = [one for one in self.operators.values() if one.physical.logical.name == name]
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

    def _find(self, container_id: str) -> Container | None:
        return next(
            (one for one in self.containers if container_id and one.id == container_id), None
        )

    def _living(self) -> Iterator[Container]:
        alive = (ContainerState.ALLOCATED, ContainerState.ACTIVE)
        return (container for container in self.containers if container.state in alive)

    def _frozen(self) -> set[OperatorId]:
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

    def _next_run(self) -> int:
        self._run += 1
        return self._run

    # journal and events

    def _journal(self, kind: str, **body: Any) -> Record:
        return Record(kind, {"application": self.name, **body})

    def _record(self, container: Container) -> Record:
        return self._journal(
            "container",
            index=container.index,
            id=container.id,
            state=container.state.value,
            run=container.run,
            restarts=container.restarts,
            exit_status=container.exit_status,
        )

    def _event(self, now_ms: int, type: EventType, reason: str = "", **data: Any) -> None:
        self.events.add(now_ms, type, reason, **data)

    def _container_error(self, container: Container, text: str, now_ms: int) -> None:
        self.last_error = text
        self._event(now_ms, EventType.CONTAINER_ERROR, text, container=container.id)

    def _operator_event(
        self, operator: Operator, type: EventType, now_ms: int, reason: str = ""
    ) -> None:
        container = self.container(operator.physical.container)
        name = operator.physical.logical.name
        self._event(now_ms, type, reason, operator=name, run=operator.run, container=container.id)


def plan_of(record: ApplicationRecord) -> PhysicalPlan:
    known = Identities(record.operator_ids, record.container_ids)
    return make_physical_plan(LogicalPlan.from_json(record.plan), known)
