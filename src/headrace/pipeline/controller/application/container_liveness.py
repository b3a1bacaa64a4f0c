"""Whether a container that should run is dead, and what follows: launches, losses, restarts.

The end of a container's process needs no decision: the shell tells of it
(`ContainerSupervision.on_exit`). `why_dead` decides what no exit status says: that a container is
silent for too long, or stuck in a batch. Pure.

A container that is lost, failed or counts as dead is started again alone, from its own checkpoints,
after a delay that doubles with every failure and starts over with a new checkpoint; its neighbours
go on, because what they publish is closed window by window. An operator that failed more often than
RECOVERY_ATTEMPTS without progress ends the application. Failures that pass by themselves count only
where the attempts were stated: nobody wants a pipeline given up because a server was away for an
hour. The same mistake three times is enough, because the fourth attempt would make it, too.
"""

from __future__ import annotations

from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    Container,
    ContainerState,
    Kill,
    Launch,
    Operator,
    OperatorState,
    Phase,
    Record,
)
from headrace.pipeline.controller.application.model import ApplicationModel
from headrace.pipeline.failures import sentence
from headrace.runtime.interfaces import UNKNOWN_EXIT

FIRST_HEARTBEAT_FACTOR = 2


def why_dead(model: ApplicationModel, container: Container, now_ms: int) -> str:
    """The reason for which a container counts as dead; empty while it counts as alive."""
    if container.kill_deadline_ms is not None:
        return ""  # it is being killed already
    return _why_silent(model, container, now_ms) or _why_blocked(model, container, now_ms)


def _why_silent(model: ApplicationModel, container: Container, now_ms: int) -> str:
    limit_ms = model.heartbeat_timeout_ms
    if container.state is ContainerState.ALLOCATED:
        limit_ms = max(FIRST_HEARTBEAT_FACTOR * limit_ms, model.settings.first_heartbeat_ms)
        silent_ms, what = now_ms - container.allocated_ms, "no first heartbeat"
    elif container.state is ContainerState.ACTIVE:
        silent_ms, what = now_ms - container.heartbeat_ms, "no heartbeat"
    else:
        return ""
    return f"{what} for {silent_ms} ms" if silent_ms > limit_ms else ""


def _why_blocked(model: ApplicationModel, container: Container, now_ms: int) -> str:
    """A query is blocked when it is in the middle of a batch and its tasks have stopped to finish.
    One that waits for rows is not, however long it waits."""
    if container.state is not ContainerState.ACTIVE or model.phase is not Phase.RUNNING:
        return ""
    for operator in container.operators:
        count = model.plan.attribute(operator.physical, "TIMEOUT_WINDOW_COUNT")
        if not isinstance(count, int) or count <= 0:
            continue
        still_ms = now_ms - operator.progress_ms
        busy = operator.tasks_finished >= 0 and operator.state is OperatorState.ACTIVE
        if busy and still_ms > count * model.grid.width_ms:
            name = operator.name
            return f"operator {name} is blocked: nothing happened in its batch for {still_ms} ms"
    return ""


ATTEMPTS = "RECOVERY_ATTEMPTS"
MISTAKES_REPEATED = 2  # times that the same mistake is tried again
KILL_CONFIRM_MS = 30_000  # after it a killed container counts as gone


class ContainerSupervision:
    """Launches containers, notices their ends, and ends the application when nothing is left to
    launch."""

    def __init__(self, model: ApplicationModel) -> None:
        self._model = model
        self._committed_recorded = (model.record.committed, 0)  # the window and when it was

    def on_exit(self, container_id: str, status: int, now_ms: int) -> list[Action]:
        """The container's process ended. Status 0 is the end of its work, anything else a loss."""
        container = self._model.find(container_id)
        if container is None or container.state is ContainerState.KILLED:
            return []
        if status == UNKNOWN_EXIT and _has_done_its_work(container):
            status = 0
        container.state = ContainerState.KILLED
        container.exit_status = status
        container.pid = None
        container.kill_deadline_ms = None
        self._model.add_event(
            now_ms, EventType.STOP_CONTAINER, container=container.id, exit_status=status
        )
        record = self._model.container_record(container)
        for operator in container.operators:
            operator.state = OperatorState.INACTIVE
            operator.sent = operator.stale = False
        if self._model.finished:
            return [record]
        if status == 0 or self._model.phase is Phase.STOPPING:
            container.ended = True
            return [record, *self.finish_if_over(now_ms)]
        container.lost_ms = now_ms if container.lost_ms is None else container.lost_ms
        if container.counts_as_failure:
            for operator in container.operators:
                operator.on_failure(operator.cause, lost=True)
            reasons = [self.why_exhausted(operator) for operator in container.operators]
            if found := [reason for reason in reasons if reason]:
                return [record, *self.fail(found[-1], now_ms)]  # of the one that rows leave by
        container.launch_after_ms = now_ms + self.delay_ms(max(1, container.failures))
        return [record]

    def launch_due(self, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        for container in self._model.containers:
            due = container.launch_after_ms
            if due is None or now_ms < due:
                continue
            if container.state is not ContainerState.NEW:
                container.restarts += 1
            run = self._model.next_run()
            self.allocate(container, f"{self._model.name}.{container.index + 1}.{run}", run, now_ms)
            actions += [
                self._model.container_record(container),
                Launch(container.id, container.index),
            ]
        return actions

    def allocate(self, container: Container, id_: str, run: int, now_ms: int) -> None:
        container.id, container.run = id_, run
        container.state = ContainerState.ALLOCATED
        container.allocated_ms = now_ms
        container.launch_after_ms = container.kill_deadline_ms = container.exit_status = None
        container.counts_as_failure = True
        container.told_to_end = container.ended = False
        for operator in container.operators:
            operator.state = OperatorState.PENDING_DEPLOY
            operator.run = run
            operator.deploy_after_ms = now_ms  # the container itself waited
            operator.progress_ms, operator.tasks_finished = now_ms, -1
            operator.sent = operator.stale = False
            operator.cause = ""

    def check(self, container: Container, now_ms: int) -> list[Action]:
        """Replace the container if it counts as dead."""
        reason = why_dead(self._model, container, now_ms)
        if not reason:
            return []
        self._model.add_container_error(container, reason, now_ms)
        return self.replace(container, now_ms)

    def replace(self, container: Container, now_ms: int) -> list[Action]:
        """Kill a container that is of no use any more; a new one follows when it is gone."""
        container.lost_ms = now_ms if container.lost_ms is None else container.lost_ms
        return self.kill(container, now_ms)

    def kill(self, container: Container, now_ms: int) -> list[Action]:
        if container.kill_deadline_ms is not None:
            return []
        container.kill_deadline_ms = now_ms + KILL_CONFIRM_MS
        return [Kill(container.id)]

    def fail(self, reason: str, now_ms: int) -> list[Action]:
        """Abort everything: some operator failed more often than it may."""
        actions: list[Action] = [self._finish(Phase.FAILED, reason, now_ms)]
        for container in self._model.living():
            actions += self.kill(container, now_ms)
        return actions

    def finish_if_over(self, now_ms: int) -> list[Action]:
        if not all(container.ended for container in self._model.containers):
            return []
        phase = Phase.STOPPED if self._model.phase is Phase.STOPPING else Phase.FINISHED
        return [*self.update_committed(now_ms, final=True), self._finish(phase, "", now_ms)]

    def _finish(self, phase: Phase, reason: str, now_ms: int) -> Record:
        self._model.phase = phase
        if reason:
            self._model.last_error = reason
        self._model.add_event(now_ms, EventType.FINISH, reason, state=phase.value)
        return self._model.journal("finished", state=phase.value, reason=reason, time_ms=now_ms)

    def update_committed(self, now_ms: int, *, final: bool = False) -> list[Action]:
        window = self._model.checkpoints.update(self._model.awaiting_deployment())
        recorded, recorded_ms = self._committed_recorded
        due = final or now_ms - recorded_ms >= self._model.settings.committed_interval_ms
        if window <= recorded or not due:
            return []
        self._committed_recorded = (window, now_ms)
        totals = {str(id_): one.statistics.totals() for id_, one in self._model.operators.items()}
        return [
            self._model.journal("committed", window=int(window)),
            self._model.journal("statistics", operators=totals),
        ]

    def why_exhausted(self, operator: Operator) -> str:
        attempts = self._model.plan.attribute(operator.physical, ATTEMPTS)
        if not isinstance(attempts, int) or attempts < 0:
            return ""
        stated = ATTEMPTS in operator.physical.logical.attributes
        counted = operator.failures - (0 if stated else operator.passing)
        mistaken = operator.mistakes > min(MISTAKES_REPEATED, attempts)
        if counted <= attempts and not mistaken:
            return ""
        name = operator.name
        cause = sentence(operator.cause or operator.last_error or self._model.last_error)
        how = "with the same mistake" if mistaken else "without progress"
        return f"operator {name} failed {operator.failures} times {how}: {cause}".rstrip(": ")

    def delay_ms(self, failures: int) -> int:
        least, most = (
            self._model.settings.restart_delay_ms_min,
            self._model.settings.restart_delay_ms_max,
        )
        return min(most, least << min(failures - 1, 32))


def _has_done_its_work(container: Container) -> bool:
    """Of an adopted process nobody learns how it ended: it did well if it was about to end."""
    done = all(one.state is OperatorState.INACTIVE for one in container.operators)
    return container.told_to_end or done
