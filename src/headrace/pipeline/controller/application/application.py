"""One application's life: events in, actions out, no I/O and no clock.

The shell carries out actions in order. A Record comes before the action it makes safe: the shell
waits until it is durable. The class is built up in layers, one subject each: `roster` (what there
is), `supervision` (which containers run), `deployment` (heartbeats), `changes` and `replanning`
(at run time).
"""

from __future__ import annotations

from headrace.config.controller import ControllerSettings
from headrace.errors import NotFoundError
from headrace.ids import OperatorId, WindowId
from headrace.pipeline.controller.application.changes import SET_PROPERTY, live_properties
from headrace.pipeline.controller.application.deployment import Outcome
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    Container,
    ContainerState,
    Operator,
    OperatorState,
    Phase,
    PurgeEdges,
)
from headrace.pipeline.controller.application.replanning import Replanning
from headrace.pipeline.controller.journal import ApplicationRecord
from headrace.pipeline.plan.deploy import CHECKPOINT_LOST, init_context
from headrace.pipeline.plan.edges import purge_window
from headrace.pipeline.plan.logical import READ_TOPIC
from headrace.spark.source.losses import read_gap
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import NO_WINDOW

__all__ = ["Application", "Outcome"]

ERROR_CHARACTERS_MAX = 4_096


class Application(Replanning):
    """Mutate only through the on_* methods."""

    def __init__(
        self,
        record: ApplicationRecord,
        settings: ControllerSettings,
        *,
        path: str,
        broker: tuple[str, int] = ("127.0.0.1", 8090),
    ) -> None:
        super().__init__(record, settings, path=path, broker=broker)
        self.responses: dict[int, m.Value] = {}
        self._first_start = record.run == 0
        self._stop_deadline_ms: int | None = None
        self._committed_recorded = (record.committed, 0)
        self._purged = NO_WINDOW
        self._deploy_held = self._reset_due = self._scaling_done = False
        if record.rollback is not None and not self.finished:
            self._begin_rollback(record.rollback.window, record.rollback.operators)
        if record.scaling is not None and not self.finished:
            self._begin_scaling(record.scaling.operator)
            if record.scaling.window is not None:
                self._let_catch_up(
                    self.named(record.scaling.operator), WindowId(record.scaling.window)
                )

    def on_start(self, now_ms: int, *, adopt: bool = False) -> list[Action]:
        """Launch every container. With `adopt` those that the journal knows may still be alive and
        are waited for instead; they find us through the URI file."""
        if self.finished:
            return []
        if self.record.stopping and not adopt:
            return self.on_stop(now_ms)
        actions: list[Action] = []
        for container in self.containers:
            known = self.record.containers.get(container.index)
            if known is not None:
                container.restarts = known.restarts
            if adopt and known is not None and known.state in ("ALLOCATED", "ACTIVE"):
                self._allocate(container, known.id, known.run, now_ms)
                for operator in container.operators:
                    operator.sent = True  # by an earlier life; until its container says otherwise
                    operator.stale = operator.physical.id in self.record.outdated
                    if operator.roll_back_to is not None or operator.held:
                        operator.take_down(self._run)
                    else:
                        self._remind(operator)
            else:
                container.launch_after_ms = now_ms
        if self.record.stopping:
            return self.on_stop(now_ms)
        actions += self._launch_due(now_ms)
        return actions

    def _remind(self, operator: Operator) -> None:
        """Of its live properties: the earlier life may have ended before it told them."""
        logical = operator.physical.logical
        values = self.record.properties.get(logical.name, {})
        if live := {name: values[name] for name in live_properties(logical) & set(values)}:
            self._ask(operator, SET_PROPERTY, live)

    def on_not_found(self, container_id: str, now_ms: int) -> list[Action]:
        """A container of an earlier life is not there any more, nobody knows since when: the next
        one follows at once, and nothing is said of a failure."""
        container = self._find(container_id)
        assert container is not None, "it was allocated"
        container.state = ContainerState.NEW
        for operator in container.operators:
            operator.state = OperatorState.INACTIVE
        if self.phase is Phase.STOPPING:
            container.ended = True
            return self._finish_if_over(now_ms)
        container.launch_after_ms = container.lost_ms = now_ms
        return self._launch_due(now_ms)

    def on_launched(self, container_id: str, pid: int) -> None:
        container = self._find(container_id)
        if container is not None:
            container.pid = pid

    def on_stop(self, now_ms: int) -> list[Action]:
        """Drain and end; a second call changes nothing."""
        if self.finished or self.phase is Phase.STOPPING:
            return []
        self.phase = Phase.STOPPING
        self._stop_deadline_ms = now_ms + self._settings.stop_timeout_ms
        self._event(now_ms, EventType.STOP)
        actions: list[Action] = [self._journal("stop")]
        for container in self.containers:
            container.launch_after_ms = None
            if container.state in (ContainerState.NEW, ContainerState.KILLED):
                container.ended = True
        return actions + self._finish_if_over(now_ms)

    def on_kill(self, container_id: str, now_ms: int) -> list[Action]:
        """Somebody asks for a container to be killed; it is restarted and counts as no failure."""
        container = self._find(container_id)
        if container is None or container.state is ContainerState.KILLED:
            raise NotFoundError(f"there is no container {container_id!r} that runs")
        container.counts_as_failure = False
        return self._replace(container, now_ms)

    def on_tick(self, now_ms: int) -> list[Action]:
        if self.finished:
            return []
        actions: list[Action] = []
        for container in self.containers:
            actions += self._check_heartbeat(container, now_ms)
            actions += self._check_blocked(container, now_ms)
            deadline = container.kill_deadline_ms
            if deadline is not None and now_ms >= deadline:
                actions += self.on_exit(container.id, -9, now_ms)
        if self._stop_deadline_ms is not None and now_ms >= self._stop_deadline_ms:
            for container in self._living():
                actions += self._kill(container, now_ms)
        actions += self._on_undeployed(now_ms)
        actions += self._continue_scaling(now_ms)
        actions += self._launch_due(now_ms)
        committed = self._update_committed(now_ms)
        return [*actions, *committed, *(self._purge(now_ms) if committed else [])]

    def _purge(self, now_ms: int) -> list[Action]:
        """Edges keep what a rollback may want back, beside what is not committed."""
        if not self.plan.split_streams:
            return []
        window = purge_window(
            self.grid,
            self.checkpoints.committed,
            now_ms=now_ms,
            rollback_retention_ms=self._settings.rollback_retention_ms,
        )
        if window <= self._purged:
            return []
        self._purged = window
        return [PurgeEdges(window)]

    # umbilical, beside the heartbeat

    def on_init_context(self, container_id: str) -> m.StreamingContainerContext | None:
        container = self._find(container_id)
        if container is None or container.state is ContainerState.KILLED or self.finished:
            return None
        return init_context(
            self.plan,
            container_id=container_id,
            application_path=self.path,
            start_window_ms=self.grid.start_ms,
            available_now=self.record.available_now,
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
            self.operators[OperatorId(one)] for one in request.operators if one in self.operators
        ]
        gap = read_gap(text)
        if gap is not None and known:
            self._on_gap(known, text, {**data, **gap}, now_ms)
            return []
        self.last_error = text
        if not request.operators:
            self._event(now_ms, EventType.CONTAINER_ERROR, text, **data)
        for operator in known:
            operator.last_error = operator.cause = text
            name = operator.physical.logical.name
            self._event(now_ms, EventType.OPERATOR_ERROR, text, operator=name, **data)
        if known and text.startswith(CHECKPOINT_LOST):
            names = [one.physical.logical.name for one in known if one.physical.query]
            return self.on_checkpoint_lost(names, text, now_ms)
        return []

    def _on_gap(
        self, operators: list[Operator], text: str, data: dict[str, object], now_ms: int
    ) -> None:
        """Messages were gone: said once, of the topic they were to come from."""
        readers = [one for one in operators if one.physical.logical.function == READ_TOPIC]
        first = min(readers or operators, key=lambda one: one.physical.id)
        name = first.physical.logical.name
        self._event(now_ms, EventType.DATA_GAP, text, operator=name, **data)

    def on_stack_trace_wanted(self, container_id: str) -> Container:
        container = self._find(container_id)
        if container is None:
            raise NotFoundError(f"there is no container {container_id!r}")
        container.stack_trace_wanted = True
        container.stack_trace = ""
        return container
