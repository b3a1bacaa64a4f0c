"""What a heartbeat says and what it is answered: the deploy-state table, deployments, requests.

The order is the origin's: undeploys go alone; a deployment is sent with the first answer once every
container of a first start is there, and later only when nothing is being undeployed.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ids import OperatorId, WindowId
from headrace.pipeline.controller.application.container_liveness import ContainerSupervision
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    DEPLOY_STEPS,
    ENDED,
    Action,
    Container,
    ContainerState,
    Operator,
    OperatorState,
    Phase,
    Step,
)
from headrace.pipeline.controller.application.model import ApplicationModel
from headrace.pipeline.controller.application.operator_requests import OperatorRequests
from headrace.pipeline.controller.application.rollback import Rollback
from headrace.pipeline.controller.application.statistics import TASKS_FINISHED
from headrace.pipeline.plan.deploy import Deployed, deploy_info
from headrace.wire.umbilical import messages as m

MISSING_MS = 5_000  # an active operator that goes unreported for so long is deployed again


@dataclass(frozen=True, slots=True)
class Outcome:
    response: m.ContainerHeartbeatResponse
    actions: list[Action]


SMALL_PLAN = 16  # operators; the committed window is computed over all of them

_ABORT = m.ContainerHeartbeatResponse(shutdown=m.ShutdownType.ABORT)


class Deployment:
    """What every container runs, agreed with it heartbeat by heartbeat."""

    def __init__(
        self,
        model: ApplicationModel,
        containers: ContainerSupervision,
        rollback: Rollback,
        requests: OperatorRequests,
        *,
        broker: tuple[str, int],
    ) -> None:
        self._model = model
        self._containers = containers
        self._rollback = rollback
        self._requests = requests
        self._broker = broker
        self._first_start = model.record.run == 0

    def on_heartbeat(self, heartbeat: m.ContainerHeartbeat, now_ms: int) -> Outcome:
        container = self._model.find(heartbeat.stats.id)
        if container is None or container.state is ContainerState.KILLED or self._model.finished:
            return Outcome(_ABORT, [])
        if container.kill_deadline_ms is not None:
            return Outcome(_ABORT, [])
        actions = self._greet(container, heartbeat, now_ms)
        undeploy: set[int] = set()
        deploy: list[Operator] = []
        reported: set[int] = set()
        for report in heartbeat.stats.operators:
            operator = self._model.operators.get(OperatorId(report.node_id))
            if operator is None or operator.physical.container != container.index:
                undeploy.add(report.node_id)
                continue
            reported.add(report.node_id)
            self._requests.on_responses(report.request_response)
            actions += self._step(operator, report, undeploy, deploy, now_ms)
            self._fold(container, operator, report, now_ms)
            if self._model.phase in ENDED:  # that operator failed once too often
                return Outcome(_ABORT, actions)
        for operator in container.operators:
            if operator.physical.id not in reported:
                actions += self._step(operator, None, undeploy, deploy, now_ms)
        actions += self._on_missing(container, reported, deploy, now_ms)
        if self._model.phase in ENDED:
            return Outcome(_ABORT, actions)
        if (
            len(self._model.operators) <= SMALL_PLAN
        ):  # the others wait for the next tick, as in the origin
            self._model.checkpoints.update(self._model.awaiting_deployment())
        deploy = self._with_all_above(container, deploy)
        return Outcome(self._respond(container, undeploy, deploy, bool(reported)), actions)

    def _greet(
        self, container: Container, heartbeat: m.ContainerHeartbeat, now_ms: int
    ) -> list[Action]:
        actions: list[Action] = []
        container.heartbeat_ms = now_ms
        container.last = heartbeat
        if heartbeat.stack_trace is not None:
            container.stack_trace = heartbeat.stack_trace
        if container.state is ContainerState.ALLOCATED:
            container.state = ContainerState.ACTIVE
            self._model.add_event(now_ms, EventType.START_CONTAINER, container=container.id)
            actions.append(self._model.container_record(container))
            if all(one.state is ContainerState.ACTIVE for one in self._model.containers):
                self._first_start = False
        if heartbeat.restart_requested:
            self._model.add_container_error(container, "the container asks to be replaced", now_ms)
            actions += self._containers.replace(container, now_ms)
        return actions

    def _step(
        self,
        operator: Operator,
        report: m.OperatorHeartbeat | None,
        undeploy: set[int],
        deploy: list[Operator],
        now_ms: int,
    ) -> list[Action]:
        reported = None if report is None else report.state
        operator.state, step = DEPLOY_STEPS[operator.state, reported]
        id_ = operator.physical.id
        if step is Step.STARTED:
            operator.progress_ms = now_ms
            old = operator.is_outdated(report.run_id if report is not None else 0)
            operator.stale = False
            if old:
                operator.state = OperatorState.PENDING_UNDEPLOY
                undeploy.add(id_)
                return []
            operator.roll_back_to = None
            operator.cause = ""
            self._model.add_operator_event(operator, EventType.START_OPERATOR, now_ms)
            return self._rollback.on_started(now_ms)
        if step is Step.DEPLOY:
            actions = self._make_ready(operator, deploy, now_ms)
            if operator.stale:  # what was on its way is not there: it never came, or comes late
                operator.sent = operator.stale = False
                operator.run = self._model.next_run()
                record = self._model.journal("run", run=operator.run)
                return [*actions, record, *self._rollback.on_undeployed(now_ms)]
            return actions
        elif step is Step.UNDEPLOY:
            undeploy.add(id_)
        elif step is Step.STOPPED:
            undeploy.add(id_)
            self._model.add_operator_event(operator, EventType.STOP_OPERATOR, now_ms)
        elif step is Step.FAILED:
            undeploy.add(id_)
            return self._on_operator_failed(operator, now_ms)
        elif step is Step.GONE:
            return self._redeploy(operator, deploy, now_ms)
        return []

    def _on_missing(
        self, container: Container, reported: set[int], deploy: list[Operator], now_ms: int
    ) -> list[Action]:
        """Operators that were running and that their container reports no more have no query that
        lives. While something is deployed or undeployed there, one may go unreported for a time."""
        states = {one.state for one in container.operators}
        settled = states <= {OperatorState.ACTIVE, OperatorState.INACTIVE}
        missing = [
            one
            for one in container.operators
            if one.state is OperatorState.ACTIVE and one.physical.id not in reported
        ]
        if not missing or not settled or self._model.phase is not Phase.RUNNING:
            container.missing_ms = None
        elif container.missing_ms is None:
            container.missing_ms = now_ms
        elif now_ms - container.missing_ms >= MISSING_MS:
            container.missing_ms = None
            return self._deploy_missing(missing, deploy, now_ms)
        return []

    def _deploy_missing(
        self, missing: list[Operator], deploy: list[Operator], now_ms: int
    ) -> list[Action]:
        actions: list[Action] = []
        for operator in missing:
            operator.state = OperatorState.PENDING_DEPLOY
            operator.last_error = "its container does not run it any more, and does not say why"
            operator.cause = operator.last_error
            self._model.add_operator_event(
                operator, EventType.OPERATOR_ERROR, now_ms, reason=operator.last_error
            )
            actions += self._on_operator_failed(operator, now_ms)
            if self._model.phase in ENDED:
                return actions
            actions += self._redeploy(operator, deploy, now_ms)
        return actions

    def _with_all_above(self, container: Container, deploy: list[Operator]) -> list[Operator]:
        """An operator's query is built with the properties of all that is fused above it: it is
        deployed after them, or with them. They may wait for longer, having failed more often."""
        ready = {one.physical.id for one in deploy}
        waiting = {
            one.name
            for one in container.operators
            if one.state is OperatorState.PENDING_DEPLOY and one.physical.id not in ready
        }
        if not deploy or not waiting:
            return deploy
        below = self._model.downstream_of(waiting)
        return [one for one in deploy if one.name not in below]

    def _on_operator_failed(self, operator: Operator, now_ms: int) -> list[Action]:
        self._model.add_operator_event(operator, EventType.STOP_OPERATOR, now_ms, "failed")
        if self._model.phase is Phase.STOPPING:
            operator.state = OperatorState.INACTIVE
            return []
        operator.on_failure(operator.cause)
        if reason := self._containers.why_exhausted(operator):
            return self._containers.fail(reason, now_ms)
        operator.deploy_after_ms = now_ms + self._containers.delay_ms(operator.failures)
        return []

    def _redeploy(self, operator: Operator, deploy: list[Operator], now_ms: int) -> list[Action]:
        """The container undeployed it as asked: again, as the next run."""
        operator.sent = operator.stale = False
        if self._model.phase is Phase.STOPPING:
            operator.state = OperatorState.INACTIVE
            return []
        operator.outdated = max(operator.outdated, operator.run)  # should it be reported once more
        operator.run = self._model.next_run()
        return [
            self._model.journal("run", run=operator.run),
            *self._make_ready(operator, deploy, now_ms),
            *self._rollback.on_undeployed(now_ms),
        ]

    def _make_ready(self, operator: Operator, deploy: list[Operator], now_ms: int) -> list[Action]:
        """Deploy it if it may be. Nothing of it runs any more, so a new checkpoint can begin after
        all windows that may have been closed for those who read it."""
        if now_ms < operator.deploy_after_ms or operator.held:
            return []
        deploy.append(operator)
        if not operator.fresh or operator.stale:
            return []
        operator.fresh = False
        operator.activation = int(self._model.grid.window_at(now_ms))
        name = operator.name
        window = operator.activation
        return [
            self._model.journal("activation", operator=name, window=window, id=operator.physical.id)
        ]

    def _respond(
        self, container: Container, undeploy: set[int], deploy: list[Operator], any_reported: bool
    ) -> m.ContainerHeartbeatResponse:
        stopping = self._model.phase is Phase.STOPPING
        pending = False
        infos: tuple[m.OperatorDeployInfo, ...] = ()
        requests: list[m.StramToNodeRequest] = []
        if undeploy:
            pending = bool(deploy) and not stopping
        elif deploy and not stopping:
            pending = self._first_start or self._undeploying() or self._rollback.holds_deployments
            if not pending:
                infos = tuple(self._deploy_info(operator) for operator in deploy)
                for operator in deploy:
                    operator.sent = True
        for operator in container.operators:
            if operator.state is OperatorState.ACTIVE and operator.requests:
                requests += operator.requests
                operator.requests.clear()
        wanted, container.stack_trace_wanted = container.stack_trace_wanted, False
        shutdown = self._shutdown(any_reported)
        container.told_to_end = container.told_to_end or shutdown is not None
        return m.ContainerHeartbeatResponse(
            shutdown=shutdown,
            node_requests=tuple(requests),
            has_pending_requests=pending,
            undeploy_request=tuple(sorted(undeploy)),
            deploy_request=infos,
            committed_window_id=self._model.checkpoints.committed,
            stack_trace_required=wanted,
        )

    def _shutdown(self, any_reported: bool) -> m.ShutdownType | None:
        idle = all(one.state is OperatorState.INACTIVE for one in self._model.operators.values())
        if not any_reported and (idle or self._model.phase is Phase.STOPPING):
            return m.ShutdownType.ABORT
        return m.ShutdownType.WAIT_TERMINATE if self._model.phase is Phase.STOPPING else None

    def _fold(
        self, container: Container, operator: Operator, report: m.OperatorHeartbeat, now_ms: int
    ) -> None:
        if operator.roll_back_to is not None:
            return  # what is taken back goes on until its container hears of it
        tasks, moved = -1, False
        for stats in report.window_stats:
            finished = stats.metrics.get(TASKS_FINISHED)
            tasks = finished if isinstance(finished, int) else tasks
            moved = operator.statistics.fold(stats, now_ms) or moved
            if stats.checkpoint is not None and self._model.checkpoints.on_checkpoint(
                operator.physical.id, WindowId(stats.checkpoint.window_id)
            ):
                self._on_checkpoint(container, operator, now_ms)
        if moved or tasks < 0 or tasks != operator.tasks_finished:
            operator.progress_ms = now_ms
        operator.tasks_finished = tasks

    def _on_checkpoint(self, container: Container, operator: Operator, now_ms: int) -> None:
        """Progress: whatever went wrong before with the container is over for everything in it,
        and whatever went wrong with this operator and those that are only fused above it."""
        failed = [one for one in container.operators if one.failures]
        for each in failed:
            fused = not each.physical.query and operator.name in (
                self._model.downstream_of({each.name})
            )
            each.on_progress(own=each is operator or fused)
        for each in container.operators:
            each.cascaded = False
        if container.lost_ms is not None:
            container.recovery_ms = now_ms - container.lost_ms
            container.lost_ms = None
            self._model.add_event(
                now_ms,
                EventType.RECOVERED,
                container=container.id,
                recovery_ms=container.recovery_ms,
            )

    def _deploy_info(self, operator: Operator) -> m.OperatorDeployInfo:
        name = operator.name
        return deploy_info(
            self._model.plan,
            operator.physical,
            Deployed(
                run_id=operator.run,
                recovery=self._model.checkpoints.recovery(operator.physical.id),
                broker=self._broker,
                properties=self._model.record.properties.get(name, {}),
                generation=self._model.record.generations.get(name, 0),
                roll_back_to=operator.roll_back_to,
                until=operator.until,
                activation=self._model.record.activations.get(name)
                if operator.activation is None
                else operator.activation,
                rollbacks=self._model.record.rollbacks,
            ),
        )

    def _undeploying(self) -> bool:
        return any(
            one.state is OperatorState.PENDING_UNDEPLOY for one in self._model.operators.values()
        )
