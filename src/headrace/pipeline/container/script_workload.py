"""A container's work when its package is an ordinary PySpark script: one operator per query.

It answers what `Workload` answers. Spark keeps the checkpoints; a batch belongs to the window in
which it was planned. A query lives with its script: one that failed beside others cannot be started
alone, so the container asks to be replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.ids import WindowId
from headrace.observability import tracing
from headrace.pipeline import traces
from headrace.pipeline.container.heartbeat import (
    BatchReport,
    Place,
    operator_stats,
    read_progress,
    stack_traces,
)
from headrace.pipeline.container.window_log import BatchWindow
from headrace.pipeline.failures import readable
from headrace.pipeline.plan.scripts import RUN_SCRIPT, operator_name
from headrace.runtime.interfaces import Lock, Runtime
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical.messages import (
    DeployState,
    OperatorDeployInfo,
    OperatorHeartbeat,
    OperatorStats,
    StramToNodeRequest,
    StreamingContainerContext,
)
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

if TYPE_CHECKING:
    from headrace.pipeline.container.container_session import WorkloadSettings
    from headrace.spark.session.queries import RunningQuery
    from headrace.spark.session.script import ScriptRun

CHECKPOINTS = "checkpoints"
STOP_SECONDS = 10.0


@dataclass(slots=True)
class _Seen:
    """What is known of one query."""

    window: WindowId = NO_WINDOW
    state: DeployState = DeployState.ACTIVE
    run_id: str = ""
    stats: list[OperatorStats] = field(default_factory=list)


class ScriptWorkload:
    def __init__(
        self, runtime: Runtime, settings: WorkloadSettings, context: StreamingContainerContext
    ) -> None:
        width = attributes.look_up(
            "STREAMING_WINDOW_SIZE_MILLIS", context.attributes, defaults=attributes.DAG
        )
        assert isinstance(width, int)
        self._disk = runtime.disk
        self._settings = settings
        self._grid = WindowGrid(context.start_window_millis, width)
        self._operators: dict[int, OperatorDeployInfo] = {}
        self._seen: dict[str, _Seen] = {}
        self._script: ScriptRun | None = None
        self._lock: Lock | None = None
        self._failures: list[tuple[tuple[int, ...], str]] = []
        self._told = False
        self._broken = False

    def knows(self, operator: int) -> bool:
        return operator in self._operators

    def expect(self, infos: Sequence[OperatorDeployInfo]) -> None:
        self._operators |= {info.id: info for info in infos}

    def deploy(self, infos: Sequence[OperatorDeployInfo]) -> None:
        for info in infos:
            if info.function != RUN_SCRIPT:
                raise ConfigError(
                    f"the controller deploys {info.name} as {info.function!r}, "
                    "the package is a script"
                )
        if self._script is not None:
            return
        from headrace.spark.session.script import ScriptRun

        settings = self._settings
        folder = f"{settings.application_path}/{CHECKPOINTS}"
        self._disk.make_folder(folder)
        self._lock = self._disk.lock(f"{folder}.lock")
        self._script = ScriptRun(
            f"{settings.package}/{settings.entry}",
            checkpoints=folder,
            available_now=settings.available_now,
            master=settings.master,
            conf=settings.spark_conf,
            address=settings.broker,
        )
        self._script.start()

    def undeploy(self, operators: Sequence[int]) -> None:
        """A script is deployed as a whole: without any of its queries it is stopped."""
        for each in operators:
            info = self._operators.pop(each, None)
            seen = self._seen.pop(info.name, None) if info is not None else None
            failed = seen is not None and seen.state is DeployState.FAILED
            self._broken = self._broken or failed
        if not self._operators:
            self._end()
            self._broken = self._told = False

    def heartbeats(self, now_ms: int, interval_ms: int) -> tuple[OperatorHeartbeat, ...]:
        if self._script is None:
            return ()  # it is being started
        self._look()
        beats = []
        for id_, info in list(self._operators.items()):
            seen = self._seen.setdefault(info.name, _Seen())
            stats, seen.stats = seen.stats, []
            beats.append(
                OperatorHeartbeat(
                    node_id=id_,
                    state=seen.state,
                    generated_tms=now_ms,
                    interval_ms=interval_ms,
                    window_stats=tuple(stats),
                    run_id=info.run_id,
                )
            )
        return tuple(beats)

    def handle(self, requests: Sequence[StramToNodeRequest]) -> None:
        """A script's queries are its own: nobody changes them from outside."""

    def pass_windows(self, now_ms: int) -> None:
        """Nobody reads a script's queries by windows."""

    def is_broken(self) -> bool:
        """Whether a query failed that only a new run of the whole script can bring back."""
        return self._broken

    def take_failures(self) -> list[tuple[tuple[int, ...], str]]:
        failures, self._failures = self._failures, []
        return failures

    def memory(self) -> tuple[int, int, int]:
        session = self._script.session if self._script is not None else None
        if session is None or session.sparkContext._jsc is None:  # the script stopped it
            return 0, 0, 0
        from headrace.spark.session.queries import memory

        return memory(session)

    def stack_trace(self) -> str:
        return stack_traces(self._script.session if self._script is not None else None)

    def committed(self, window: int) -> None:
        """A script has nobody to tell."""

    def close(self) -> None:
        session = self._script.session if self._script is not None else None
        self._end()
        if session is not None:
            session.stop()

    def _look(self) -> None:
        script = self._script
        if script is None:
            return
        over = script.over  # before the queries: none is started after it
        states: dict[str, list[DeployState]] = {}
        for name, query in script.queries():
            operator = self._operator_of(name)
            states.setdefault(operator, []).append(self._state(operator, query))
            self._collect(operator, query)
        for info in self._operators.values():
            seen = self._seen.setdefault(info.name, _Seen())
            found = states.get(info.name)
            if found:
                # One that failed is told; else it lives as long as one of its queries does.
                order = (DeployState.FAILED, DeployState.ACTIVE, DeployState.SHUTDOWN)
                seen.state = next(state for state in order if state in found)
            elif over:
                seen.state = DeployState.SHUTDOWN
            if script.error:
                seen.state = DeployState.FAILED
        if script.error and not self._told:
            self._told = True
            self._failures.append((tuple(self._operators), script.error))

    def _state(self, operator: str, query: RunningQuery) -> DeployState:
        status = query.status()
        if status.active:
            return DeployState.ACTIVE
        if not status.error:
            return DeployState.SHUTDOWN
        seen = self._seen.setdefault(operator, _Seen())
        if seen.run_id != query.run_id:
            seen.run_id = query.run_id
            ids = tuple(id_ for id_, info in self._operators.items() if info.name == operator)
            self._failures.append((ids, readable(status.error)))
        return DeployState.FAILED

    def _operator_of(self, query: str) -> str:
        names = [info.name for info in self._operators.values()]
        operator = operator_name(query)
        return operator if operator in names or not names else names[0]

    def _collect(self, operator: str, query: RunningQuery) -> None:
        seen = self._seen.setdefault(operator, _Seen())
        for progress in query.take_progress():
            report = self._report(seen, progress)
            if tracing.active:
                traces.on_batch(operator, report, progress)
            place = Place(operator, outputs=(), topic=True, first=True, last=True, stateful=True)
            seen.stats.append(operator_stats(report, self._grid, place))

    def _report(self, seen: _Seen, progress: Mapping[str, Any]) -> BatchReport:
        planned_ms = int(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)
        previous = seen.window
        seen.window = max(self._grid.next(previous), self._grid.window_at(planned_ms))
        written = (progress.get("sink") or {}).get("numOutputRows") or 0
        window = BatchWindow(seen.window, previous, replay=False)
        return read_progress(progress, window, max(0, int(written)))

    def _end(self) -> None:
        if self._script is not None:
            self._script.stop()
            self._script.wait(STOP_SECONDS)
            self._script = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
