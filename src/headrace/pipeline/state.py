"""One application's life: events in, actions out, no I/O and no clock.

The shell carries out actions in order. A Record comes before the action it makes safe: the shell
waits until it is durable. Only the lost container is restarted, from its own checkpoints; its
neighbours go on, because what they publish is closed window by window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.config.controller import ControllerSettings
from headrace.errors import InvalidArgumentError, NotFoundError
from headrace.ids import OperatorId, WindowId
from headrace.pipeline.checkpoints import Checkpoints
from headrace.pipeline.deploy import deploy_info, init_context
from headrace.pipeline.events import Events, EventType
from headrace.pipeline.journal import ApplicationRecord
from headrace.pipeline.lifecycle import (
    DEPLOY_STEPS,
    ENDED,
    Action,
    Container,
    ContainerState,
    Kill,
    Launch,
    Operator,
    OperatorState,
    Phase,
    Record,
    Step,
)
from headrace.pipeline.plan import LogicalPlan, make_physical_plan
from headrace.pipeline.windows import WindowGrid
from headrace.wire.umbilical import messages as m

KILL_CONFIRM_MS = 30_000  # after it a killed container counts as gone
FIRST_HEARTBEAT_FACTOR = 2
REQUESTS_MAX = 1_000  # operator requests waiting for a heartbeat
RESPONSES_MAX = 100  # replies kept until somebody reads them
ERROR_CHARACTERS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Outcome:
    response: m.ContainerHeartbeatResponse
    actions: list[Action]


_ABORT = m.ContainerHeartbeatResponse(shutdown=m.ShutdownType.ABORT)


class Application:
    """Mutate only through the on_* methods."""

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
        self.plan = make_physical_plan(LogicalPlan.from_json(record.plan))
        self.grid = WindowGrid(
            record.start_window_ms, self._attribute("STREAMING_WINDOW_SIZE_MILLIS")
        )
        self.phase = Phase(record.state) if record.state else Phase.RUNNING
        self.events = Events(settings.events_max)
        self.checkpoints = Checkpoints(self.plan, WindowId(record.committed))
        self.last_error = record.reason if self.phase is Phase.FAILED else ""
        self.responses: dict[int, m.Value] = {}
        self._settings = settings
        self._broker = broker
        self._run = record.run
        self._first_start = record.run == 0
        self._stop_deadline_ms: int | None = None
        self._committed_recorded = (record.committed, 0)
        self._timeout_ms = self._attribute("HEARTBEAT_TIMEOUT_MILLIS")
        self.operators = {one.id: Operator(one) for one in self.plan.operators}
        self.containers = [
            Container(index, tuple(self.operators[one.id] for one in self.plan.in_container(index)))
            for index in range(self.plan.container_count)
        ]

    @property
    def finished(self) -> bool:
        return self.phase in ENDED

    # life

    def on_start(self, now_ms: int, *, adopt: bool = False) -> list[Action]:
        """Launch every container. With `adopt` those that the journal knows may still be alive and
        are waited for instead; they find us through the URI file."""
        if self.finished:
            return []
        if self.record.stopping:
            return self.on_stop(now_ms)
        actions: list[Action] = []
        for container in self.containers:
            known = self.record.containers.get(container.index)
            if known is not None:
                container.restarts = known.restarts
            if adopt and known is not None and known.state in ("ALLOCATED", "ACTIVE"):
                self._allocate(container, known.id, known.run, now_ms)
            else:
                container.launch_after_ms = now_ms
        actions += self._launch_due(now_ms)
        return actions

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
        actions: list[Action] = [Record("stop", {"application": self.name})]
        for container in self.containers:
            container.launch_after_ms = None
            if container.state in (ContainerState.NEW, ContainerState.KILLED):
                container.ended = True
        return actions + self._finish_if_over(now_ms)

    def on_kill(self, container_id: str, now_ms: int) -> list[Action]:
        """Somebody asks for a container to be killed; it is restarted and counts as no failure."""
        container = self._find(container_id)
        if container is None or container.state is ContainerState.KILLED:
            raise NotFoundError("no such container is running", container_id=container_id)
        container.counts_as_failure = False
        return self._kill(container, now_ms)

    def on_exit(self, container_id: str, status: int, now_ms: int) -> list[Action]:
        """The container's process ended. Status 0 is the end of its work, anything else a loss."""
        container = self._find(container_id)
        if container is None or container.state is ContainerState.KILLED:
            return []
        container.state = ContainerState.KILLED
        container.exit_status = status
        container.pid = None
        container.kill_deadline_ms = None
        self._event(now_ms, EventType.STOP_CONTAINER, container=container.id, exit_status=status)
        record = self._record(container)
        for operator in container.operators:
            operator.state = OperatorState.INACTIVE
        if self.finished:
            return [record]
        if status == 0 or self.phase is Phase.STOPPING:
            container.ended = True
            return [record, *self._finish_if_over(now_ms)]
        if container.counts_as_failure:
            for operator in container.operators:
                operator.failures += 1
                if reason := self._exhausted(operator):
                    return [record, *self._fail(reason, now_ms)]
        container.launch_after_ms = now_ms + self._delay_ms(max(1, container.failures))
        return [record]

    def on_tick(self, now_ms: int) -> list[Action]:
        if self.finished:
            return []
        actions: list[Action] = []
        for container in self.containers:
            actions += self._check_heartbeat(container, now_ms)
            deadline = container.kill_deadline_ms
            if deadline is not None and now_ms >= deadline:
                actions += self.on_exit(container.id, -9, now_ms)
        if self._stop_deadline_ms is not None and now_ms >= self._stop_deadline_ms:
            for container in self._living():
                actions += self._kill(container, now_ms)
        actions += self._launch_due(now_ms)
        return actions + self._update_committed(now_ms)

    # umbilical

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

    def on_error(self, request: m.ReportErrorRequest, now_ms: int) -> None:
        text = request.msg[:ERROR_CHARACTERS_MAX]
        self.last_error = text
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
        if not request.operators:
            self._event(now_ms, EventType.CONTAINER_ERROR, text, **data)
        for operator in known:
            operator.last_error = text
            name = operator.physical.logical.name
            self._event(now_ms, EventType.OPERATOR_ERROR, text, operator=name, **data)

    def on_request(self, request: m.StramToNodeRequest) -> None:
        """Queue an operator request for the next heartbeat of its container."""
        operator = self.operators.get(OperatorId(request.operator_id))
        if operator is None:
            raise NotFoundError("no such operator", operator_id=request.operator_id)
        if len(operator.requests) >= REQUESTS_MAX:
            raise InvalidArgumentError("too many requests wait for this operator")
        operator.requests.append(request)

    def on_stack_trace_wanted(self, container_id: str) -> None:
        container = self._find(container_id)
        if container is None:
            raise NotFoundError("no such container", container_id=container_id)
        container.stack_trace_wanted = True

    def on_heartbeat(self, heartbeat: m.ContainerHeartbeat, now_ms: int) -> Outcome:
        container = self._find(heartbeat.stats.id)
        if container is None or container.state is ContainerState.KILLED or self.finished:
            return Outcome(_ABORT, [])
        if container.kill_deadline_ms is not None:
            return Outcome(_ABORT, [])
        actions = self._greet(container, heartbeat, now_ms)
        undeploy: set[int] = set()
        deploy: list[Operator] = []
        reported: set[int] = set()
        for report in heartbeat.stats.operators:
            operator = self.operators.get(OperatorId(report.node_id))
            if operator is None or operator.physical.container != container.index:
                undeploy.add(report.node_id)
                continue
            reported.add(report.node_id)
            self._take_responses(report)
            actions += self._step(operator, report.state, undeploy, deploy, now_ms)
            self._fold(operator, report, now_ms)
            if self.phase in ENDED:  # that operator failed once too often
                return Outcome(_ABORT, actions)
        for operator in container.operators:
            if operator.physical.id not in reported:
                actions += self._step(operator, None, undeploy, deploy, now_ms)
        self.checkpoints.update(self._frozen())
        return Outcome(self._respond(container, undeploy, deploy, bool(reported), now_ms), actions)

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
            self._event(now_ms, EventType.START_CONTAINER, container=container.id)
            actions.append(self._record(container))
            if all(one.state is ContainerState.ACTIVE for one in self.containers):
                self._first_start = False
        if heartbeat.restart_requested:
            self._container_error(container, "the container asks to be replaced", now_ms)
            actions += self._kill(container, now_ms)
        return actions

    def _step(
        self,
        operator: Operator,
        reported: m.DeployState | None,
        undeploy: set[int],
        deploy: list[Operator],
        now_ms: int,
    ) -> list[Action]:
        operator.state, step = DEPLOY_STEPS[operator.state, reported]
        id_ = operator.physical.id
        if step is Step.STARTED:
            self._operator_event(operator, EventType.START_OPERATOR, now_ms)
        elif step is Step.DEPLOY:
            if now_ms >= operator.deploy_after_ms:
                deploy.append(operator)
        elif step is Step.UNDEPLOY:
            undeploy.add(id_)
        elif step is Step.STOPPED:
            undeploy.add(id_)
            self._operator_event(operator, EventType.STOP_OPERATOR, now_ms)
        elif step is Step.FAILED:
            undeploy.add(id_)
            return self._on_operator_failed(operator, now_ms)
        elif step is Step.GONE:
            return self._redeploy(operator, deploy, now_ms)
        return []

    def _on_operator_failed(self, operator: Operator, now_ms: int) -> list[Action]:
        self._operator_event(operator, EventType.STOP_OPERATOR, now_ms, "failed")
        if self.phase is Phase.STOPPING:
            operator.state = OperatorState.INACTIVE
            return []
        operator.failures += 1
        if reason := self._exhausted(operator):
            return self._fail(reason, now_ms)
        operator.deploy_after_ms = now_ms + self._delay_ms(operator.failures)
        return []

    def _redeploy(self, operator: Operator, deploy: list[Operator], now_ms: int) -> list[Action]:
        """The container undeployed it as asked: again, as the next run."""
        if self.phase is Phase.STOPPING:
            operator.state = OperatorState.INACTIVE
            return []
        operator.run = self._next_run()
        if now_ms >= operator.deploy_after_ms:
            deploy.append(operator)
        return [Record("run", {"application": self.name, "run": operator.run})]

    def _respond(
        self,
        container: Container,
        undeploy: set[int],
        deploy: list[Operator],
        any_reported: bool,
        now_ms: int,
    ) -> m.ContainerHeartbeatResponse:
        stopping = self.phase is Phase.STOPPING
        pending = False
        infos: tuple[m.OperatorDeployInfo, ...] = ()
        requests: list[m.StramToNodeRequest] = []
        if undeploy:
            pending = bool(deploy) and not stopping
        elif deploy and not stopping:
            pending = self._first_start or self._undeploying()
            if not pending:
                infos = tuple(self._deploy_info(operator) for operator in deploy)
        for operator in container.operators:
            if operator.state is OperatorState.ACTIVE and operator.requests:
                requests += operator.requests
                operator.requests.clear()
        wanted, container.stack_trace_wanted = container.stack_trace_wanted, False
        return m.ContainerHeartbeatResponse(
            shutdown=self._shutdown(any_reported),
            node_requests=tuple(requests),
            has_pending_requests=pending,
            undeploy_request=tuple(sorted(undeploy)),
            deploy_request=infos,
            committed_window_id=self.checkpoints.committed,
            stack_trace_required=wanted,
        )

    def _shutdown(self, any_reported: bool) -> m.ShutdownType | None:
        idle = all(one.state is OperatorState.INACTIVE for one in self.operators.values())
        if not any_reported and (idle or self.phase is Phase.STOPPING):
            return m.ShutdownType.ABORT
        return m.ShutdownType.WAIT_TERMINATE if self.phase is Phase.STOPPING else None

    def _fold(self, operator: Operator, report: m.OperatorHeartbeat, now_ms: int) -> None:
        for stats in report.window_stats:
            operator.statistics.fold(stats, now_ms)
            if stats.checkpoint is not None and self.checkpoints.on_checkpoint(
                operator.physical.id, WindowId(stats.checkpoint.window_id)
            ):
                # Progress: whatever went wrong before is over, for everything in this container.
                for neighbour in self.containers[operator.physical.container].operators:
                    neighbour.failures = 0

    def _take_responses(self, report: m.OperatorHeartbeat) -> None:
        for response in report.request_response:
            while len(self.responses) >= RESPONSES_MAX:
                del self.responses[next(iter(self.responses))]
            self.responses[response.response_id] = response.response

    # decisions

    def _launch_due(self, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        for container in self.containers:
            due = container.launch_after_ms
            if due is None or now_ms < due:
                continue
            if container.state is not ContainerState.NEW:
                container.restarts += 1
            run = self._next_run()
            self._allocate(container, f"{self.name}.{container.index + 1}.{run}", run, now_ms)
            actions += [self._record(container), Launch(container.id, container.index)]
        return actions

    def _allocate(self, container: Container, id_: str, run: int, now_ms: int) -> None:
        container.id, container.run = id_, run
        container.state = ContainerState.ALLOCATED
        container.allocated_ms = now_ms
        container.launch_after_ms = container.kill_deadline_ms = container.exit_status = None
        container.counts_as_failure = True
        for operator in container.operators:
            operator.state = OperatorState.PENDING_DEPLOY
            operator.run = run
            operator.deploy_after_ms = now_ms  # the container itself waited

    def _check_heartbeat(self, container: Container, now_ms: int) -> list[Action]:
        if container.kill_deadline_ms is not None:
            return []
        if container.state is ContainerState.ALLOCATED:
            limit = FIRST_HEARTBEAT_FACTOR * self._timeout_ms
            silent_ms, what = now_ms - container.allocated_ms, "no first heartbeat"
        elif container.state is ContainerState.ACTIVE:
            limit = self._timeout_ms
            silent_ms, what = now_ms - container.heartbeat_ms, "no heartbeat"
        else:
            return []
        if silent_ms <= limit:
            return []
        self._container_error(container, f"{what} for {silent_ms} ms", now_ms)
        return self._kill(container, now_ms)

    def _kill(self, container: Container, now_ms: int) -> list[Action]:
        if container.kill_deadline_ms is not None:
            return []
        container.kill_deadline_ms = now_ms + KILL_CONFIRM_MS
        return [Kill(container.id)]

    def _fail(self, reason: str, now_ms: int) -> list[Action]:
        """Abort everything: some operator failed more often than it may."""
        actions: list[Action] = [self._finish(Phase.FAILED, reason, now_ms)]
        for container in self._living():
            actions += self._kill(container, now_ms)
        return actions

    def _finish_if_over(self, now_ms: int) -> list[Action]:
        if not all(container.ended for container in self.containers):
            return []
        phase = Phase.STOPPED if self.phase is Phase.STOPPING else Phase.FINISHED
        return [*self._update_committed(now_ms, final=True), self._finish(phase, "", now_ms)]

    def _finish(self, phase: Phase, reason: str, now_ms: int) -> Record:
        self.phase = phase
        if reason:
            self.last_error = reason
        self._event(now_ms, EventType.FINISH, reason, state=phase.value)
        body = {"application": self.name, "state": phase.value, "reason": reason, "time_ms": now_ms}
        return Record("finished", body)

    def _update_committed(self, now_ms: int, *, final: bool = False) -> list[Action]:
        window = self.checkpoints.update(self._frozen())
        recorded, recorded_ms = self._committed_recorded
        due = final or now_ms - recorded_ms >= self._settings.committed_interval_ms
        if window <= recorded or not due:
            return []
        self._committed_recorded = (window, now_ms)
        return [Record("committed", {"application": self.name, "window": int(window)})]

    def _exhausted(self, operator: Operator) -> str:
        attempts = self.plan.attribute(operator.physical, "RECOVERY_ATTEMPTS")
        if not isinstance(attempts, int) or operator.failures <= attempts:
            return ""
        name = operator.physical.logical.name
        cause = f": {operator.last_error or self.last_error}".rstrip(": ")
        return f"operator {name} failed {operator.failures} times without progress{cause}"

    def _delay_ms(self, failures: int) -> int:
        least, most = self._settings.restart_delay_ms_min, self._settings.restart_delay_ms_max
        return min(most, least << min(failures - 1, 32))

    def _next_run(self) -> int:
        self._run += 1
        return self._run

    def _deploy_info(self, operator: Operator) -> m.OperatorDeployInfo:
        return deploy_info(
            self.plan,
            operator.physical,
            run_id=operator.run,
            recovery=self.checkpoints.recovery(operator.physical.id),
            broker=self._broker,
        )

    def _undeploying(self) -> bool:
        return any(one.state is OperatorState.PENDING_UNDEPLOY for one in self.operators.values())

    def _frozen(self) -> set[OperatorId]:
        return {
            id_
            for id_, operator in self.operators.items()
            if operator.state is OperatorState.PENDING_DEPLOY
        }

    def _living(self) -> Iterator[Container]:
        alive = (ContainerState.ALLOCATED, ContainerState.ACTIVE)
        return (container for container in self.containers if container.state in alive)

    def _find(self, container_id: str) -> Container | None:
        return next(
            (one for one in self.containers if container_id and one.id == container_id), None
        )

    def _attribute(self, name: str) -> int:
        value = self.plan.logical.attribute(name)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise InvalidArgumentError(f"{name} must be a positive number", value=value)
        return value

    def _record(self, container: Container) -> Record:
        return Record(
            "container",
            {
                "application": self.name,
                "index": container.index,
                "id": container.id,
                "state": container.state.value,
                "run": container.run,
                "restarts": container.restarts,
                "exit_status": container.exit_status,
            },
        )

    # events

    def _event(self, now_ms: int, type: EventType, reason: str = "", **data: Any) -> None:
        self.events.add(now_ms, type, reason, **data)

    def _container_error(self, container: Container, text: str, now_ms: int) -> None:
        self.last_error = text
        self._event(now_ms, EventType.CONTAINER_ERROR, text, container=container.id)

    def _operator_event(
        self, operator: Operator, type: EventType, now_ms: int, reason: str = ""
    ) -> None:
        container = self.containers[operator.physical.container]
        name = operator.physical.logical.name
        self._event(now_ms, type, reason, operator=name, run=operator.run, container=container.id)
