"""One application's life: events in, actions out, no I/O and no clock.

An `Application` holds its parts, one subject each, over one `model` (what there is):
`supervision` (which containers run), `deployment` (what runs in them, by heartbeats), `requests`
(to operators), and what people change at run time: `rollback`, `changes`, `plan_changes`,
`scaling`. What concerns several parts at once is here: start, stop, tick, errors.

The shell carries out actions in order. A Record comes before the action it makes safe: the shell
waits until it is durable.
"""

from __future__ import annotations

from headrace.config.controller import ControllerSettings
from headrace.errors import NotFoundError
from headrace.ids import OperatorId
from headrace.pipeline.controller.application.changes import Changes, PlanChanges, Queries, Scaling
from headrace.pipeline.controller.application.container_liveness import ContainerSupervision
from headrace.pipeline.controller.application.deployment import Deployment
from headrace.pipeline.controller.application.events import Events, EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    Container,
    ContainerState,
    Operator,
    OperatorState,
    Phase,
    PurgeEdges,
)
from headrace.pipeline.controller.application.model import ApplicationModel, Checkpoints
from headrace.pipeline.controller.application.operator_requests import OperatorRequests
from headrace.pipeline.controller.application.rollback import Rollback
from headrace.pipeline.controller.journal import ApplicationRecord
from headrace.pipeline.failures import read_gap
from headrace.pipeline.plan.deploy import CHECKPOINT_LOST, init_context
from headrace.pipeline.plan.edges import purge_window
from headrace.pipeline.plan.logical import READ_TOPIC
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

ERROR_CHARACTERS_MAX = 4_096


class Application:
    """Mutate only through the on_* methods, its own and those of its parts."""

    def __init__(
        self,
        record: ApplicationRecord,
        settings: ControllerSettings,
        *,
        path: str,
        broker: tuple[str, int] = ("127.0.0.1", 8090),
    ) -> None:
        model = self.model = ApplicationModel(record, settings, path=path)
        self.requests = OperatorRequests(model)
        self.supervision = ContainerSupervision(model)
        self.rollback = Rollback(model, self.supervision)
        self.deployment = Deployment(
            model, self.supervision, self.rollback, self.requests, broker=broker
        )
        queries = Queries(model)
        self.changes = Changes(model, self.requests, queries)
        self.plan_changes = PlanChanges(model, self.supervision, queries)
        self.scaling = Scaling(model, self.supervision, self.plan_changes)
        self._stop_deadline_ms: int | None = None
        self._purged = NO_WINDOW

    # what there is

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def record(self) -> ApplicationRecord:
        return self.model.record

    @property
    def path(self) -> str:
        return self.model.path

    @property
    def plan(self) -> PhysicalPlan:
        return self.model.plan

    @property
    def grid(self) -> WindowGrid:
        return self.model.grid

    @property
    def phase(self) -> Phase:
        return self.model.phase

    @property
    def finished(self) -> bool:
        return self.model.finished

    @property
    def last_error(self) -> str:
        return self.model.last_error

    @property
    def events(self) -> Events:
        return self.model.events

    @property
    def checkpoints(self) -> Checkpoints:
        return self.model.checkpoints

    @property
    def containers(self) -> list[Container]:
        return self.model.containers

    @property
    def operators(self) -> dict[OperatorId, Operator]:
        return self.model.operators

    # its life

    def on_start(self, now_ms: int, *, adopt: bool = False) -> list[Action]:
        """Launch every container. With `adopt` those that the journal knows may still be alive and
        are waited for instead; they find us through the URI file."""
        if self.model.finished:
            return []
        if self.model.record.stopping and not adopt:
            return self.on_stop(now_ms)
        actions: list[Action] = []
        for container in self.model.containers:
            known = self.model.record.containers.get(container.index)
            if known is not None:
                container.restarts = known.restarts
            if adopt and known is not None and known.state in ("ALLOCATED", "ACTIVE"):
                self.supervision.allocate(container, known.id, known.run, now_ms)
                for operator in container.operators:
                    operator.sent = True  # by an earlier life; until its container says otherwise
                    operator.stale = operator.physical.id in self.model.record.outdated
                    if operator.roll_back_to is not None or operator.held:
                        operator.take_down(self.model.run)
                    else:
                        self.requests.remind(operator)
            else:
                container.launch_after_ms = now_ms
        if self.model.record.stopping:
            return self.on_stop(now_ms)
        actions += self.supervision.launch_due(now_ms)
        return actions

    def on_not_found(self, container_id: str, now_ms: int) -> list[Action]:
        """A container of an earlier life is not there any more, nobody knows since when: the next
        one follows at once, and nothing is said of a failure."""
        container = self.model.find(container_id)
        assert container is not None, "it was allocated"
        container.state = ContainerState.NEW
        for operator in container.operators:
            operator.state = OperatorState.INACTIVE
        if self.model.phase is Phase.STOPPING:
            container.ended = True
            return self.supervision.finish_if_over(now_ms)
        container.launch_after_ms = container.lost_ms = now_ms
        return self.supervision.launch_due(now_ms)

    def on_launched(self, container_id: str, pid: int) -> None:
        container = self.model.find(container_id)
        if container is not None:
            container.pid = pid

    def on_stop(self, now_ms: int) -> list[Action]:
        """Drain and end; a second call changes nothing."""
        if self.model.finished or self.model.phase is Phase.STOPPING:
            return []
        self.model.phase = Phase.STOPPING
        self._stop_deadline_ms = now_ms + self.model.settings.stop_timeout_ms
        self.model.add_event(now_ms, EventType.STOP)
        actions: list[Action] = [self.model.journal("stop")]
        for container in self.model.containers:
            container.launch_after_ms = None
            if container.state in (ContainerState.NEW, ContainerState.KILLED):
                container.ended = True
        return actions + self.supervision.finish_if_over(now_ms)

    def on_kill(self, container_id: str, now_ms: int) -> list[Action]:
        """Somebody asks for a container to be killed; it is restarted and counts as no failure."""
        container = self.model.find(container_id)
        if container is None or container.state is ContainerState.KILLED:
            raise NotFoundError(f"there is no container {container_id!r} that runs")
        container.counts_as_failure = False
        return self.supervision.replace(container, now_ms)

    def on_tick(self, now_ms: int) -> list[Action]:
        if self.model.finished:
            return []
        actions: list[Action] = []
        for container in self.model.containers:
            actions += self.supervision.check(container, now_ms)
            deadline = container.kill_deadline_ms
            if deadline is not None and now_ms >= deadline:
                actions += self.supervision.on_exit(container.id, -9, now_ms)
        if self._stop_deadline_ms is not None and now_ms >= self._stop_deadline_ms:
            for container in self.model.living():
                actions += self.supervision.kill(container, now_ms)
        actions += self.rollback.on_undeployed(now_ms)
        actions += self.scaling.on_tick(now_ms)
        actions += self.supervision.launch_due(now_ms)
        committed = self.supervision.update_committed(now_ms)
        return [*actions, *committed, *(self._purge(now_ms) if committed else [])]

    def _purge(self, now_ms: int) -> list[Action]:
        """Edges keep what a rollback may want back, beside what is not committed."""
        if not self.model.plan.split_streams:
            return []
        window = purge_window(
            self.model.grid,
            self.model.checkpoints.committed,
            now_ms=now_ms,
            rollback_retention_ms=self.model.settings.rollback_retention_ms,
        )
        if window <= self._purged:
            return []
        self._purged = window
        return [PurgeEdges(window)]

    # umbilical, beside the heartbeat

    def on_init_context(self, container_id: str) -> m.StreamingContainerContext | None:
        container = self.model.find(container_id)
        if container is None or container.state is ContainerState.KILLED or self.model.finished:
            return None
        return init_context(
            self.model.plan,
            container_id=container_id,
            application_path=self.model.path,
            start_window_ms=self.model.grid.start_ms,
            available_now=self.model.record.available_now,
            attempt=container.run,
        )

    def on_error(self, request: m.ReportErrorRequest, now_ms: int) -> list[Action]:
        text = request.msg[:ERROR_CHARACTERS_MAX]
        position = request.log_file_info
        data = {
            "container": request.container_id,
            "log": {"file": position.file_name, "offset": position.file_offset}
            if position
            else None,
        }
        known = [
            self.model.operators[OperatorId(one)]
            for one in request.operators
            if one in self.model.operators
        ]
        gap = read_gap(text)
        if gap is not None and known:
            self._on_gap(known, text, {**data, **gap}, now_ms)
            return []
        self.model.last_error = text
        if not request.operators:
            self.model.add_event(now_ms, EventType.CONTAINER_ERROR, text, **data)
        for operator in known:
            operator.last_error = operator.cause = text
            name = operator.name
            self.model.add_event(now_ms, EventType.OPERATOR_ERROR, text, operator=name, **data)
        if known and text.startswith(CHECKPOINT_LOST):
            names = [one.name for one in known if one.physical.query]
            return self.rollback.on_checkpoint_lost(names, text, now_ms)
        return []

    def _on_gap(
        self, operators: list[Operator], text: str, data: dict[str, object], now_ms: int
    ) -> None:
        """Messages were gone: said once, of the topic they were to come from."""
        readers = [one for one in operators if one.physical.logical.function == READ_TOPIC]
        first = min(readers or operators, key=lambda one: one.physical.id)
        name = first.name
        self.model.add_event(now_ms, EventType.DATA_GAP, text, operator=name, **data)

    def on_stack_trace_wanted(self, container_id: str) -> Container:
        container = self.model.find(container_id)
        if container is None:
            raise NotFoundError(f"there is no container {container_id!r}")
        container.stack_trace_wanted = True
        container.stack_trace = ""
        return container
