"""Whether a container that should run is dead: silent for too long, or stuck in a batch.

The end of a container's process needs no decision: the shell tells of it
(`ContainerSupervision.on_exit`). What is decided here is what no exit status says. Pure.
"""

from __future__ import annotations

from headrace.pipeline.controller.application.lifecycle import (
    Container,
    ContainerState,
    OperatorState,
    Phase,
)
from headrace.pipeline.controller.application.model import ApplicationModel

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
