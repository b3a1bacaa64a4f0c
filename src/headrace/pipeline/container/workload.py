"""The operators that run in this container: which queries they have, and what is told of them.

Blocking throughout; `container.py` calls it from threads, so queries fail, are undeployed and are
reported while others are being started. Operators deployed together whose names lead to the same
terminal stage are fused in one streaming query, and so is each stream that other containers read;
`query_start.py` builds and starts them in the container's Spark session.

An operator is reported because its queries run, never because it was once deployed: one that lacks
a query is neither reported nor known, so that the controller deploys it again.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.observability import tracing
from headrace.observability.logging import get_logger
from headrace.pipeline import traces
from headrace.pipeline.container.container_plan import (
    ContainerPlan,
    make_container_plan,
    plain,
    properties_of,
)
from headrace.pipeline.container.container_session import ContainerSession, WorkloadSettings
from headrace.pipeline.container.heartbeat import (
    BatchReport,
    Place,
    operator_stats,
    read_progress,
    with_bad_rows,
)
from headrace.pipeline.container.query_run import QueryRun, Recording
from headrace.pipeline.container.query_start import QueryStarter
from headrace.pipeline.controller.application.operator_requests import SET_PROPERTY
from headrace.pipeline.controller.application.statistics import TASKS_FINISHED
from headrace.pipeline.declare.declarations import OUTPUT_PORT, SPARK, Hook
from headrace.pipeline.failures import readable
from headrace.pipeline.plan.deploy import CHECKPOINT_LOST
from headrace.runtime.interfaces import Runtime
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical.messages import (
    DeployState,
    OperatorDeployInfo,
    OperatorHeartbeat,
    OperatorResponse,
    OperatorStats,
    RequestType,
    StramToNodeRequest,
    StreamingContainerContext,
)
from headrace.wire.umbilical.windows import WindowGrid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.container.bad_batch import FoundRecord
    from headrace.pipeline.declare.graph import PropertyValues
    from headrace.pipeline.declare.queries import Query
    from headrace.spark.session.queries import RunningQuery


log = get_logger(__name__)


class Workload:
    """The operators of a container, by id, and the runs of their queries, by name."""

    def __init__(
        self,
        runtime: Runtime,
        settings: WorkloadSettings,
        context: StreamingContainerContext,
    ) -> None:
        width = attributes.look_up(
            "STREAMING_WINDOW_SIZE_MILLIS", context.attributes, defaults=attributes.DAG
        )
        assert isinstance(width, int)
        self._settings = settings
        self._grid = WindowGrid(context.start_window_millis, width)
        self._session = ContainerSession(settings)
        self._starter = QueryStarter(
            runtime.disk, runtime.clock.monotonic, settings, self._session, self._grid
        )
        self._operators: dict[int, OperatorDeployInfo] = {}
        self._owned: dict[int, frozenset[str]] = {}  # the queries that end in an operator
        self._expected: dict[int, OperatorDeployInfo] = {}
        self._called_off: set[int] = set()  # of those that are expected
        self._runs: dict[str, QueryRun] = {}
        self._failures: list[tuple[tuple[int, ...], str]] = []
        self._responses: dict[int, list[OperatorResponse]] = {}

    @property
    def session(self) -> ContainerSession:
        """The Spark session that the queries run in."""
        return self._session

    def knows(self, operator: int) -> bool:
        """Whether its queries are here, or are being started: there is nothing to deploy."""
        here = operator in self._operators and self._has_queries(operator)
        return here or operator in self._expected

    def expect(self, infos: Sequence[OperatorDeployInfo]) -> None:
        """These are being deployed, which may take a while; they are reported when they run."""
        self._called_off = set()
        self._expected = {info.id: info for info in infos}

    def deploy(self, infos: Sequence[OperatorDeployInfo]) -> None:
        """Start every query whose terminal stage is among these operators."""
        known = {**self._operators, **{info.id: info for info in infos}}
        self._end_queries_of({info.name for info in infos})  # nobody reported what is left of them
        from headrace.pipeline.declare.graph import PropertyValues

        plan = make_container_plan(self._session.application(), known)
        values = PropertyValues(plan.app, properties_of(plan.app, known))
        owners = {info.name: info for info in infos}
        owned: dict[int, set[str]] = {info.id: set() for info in infos}
        for query in self._starter.build(plan, infos, values):
            owner = owners.get(query.operators[-1])
            if owner is not None:
                owned[owner.id].add(query.name)
                self._start(plan, query, owner, values)
        self._settle(infos, owned)

    def _settle(
        self, infos: Sequence[OperatorDeployInfo], owned: Mapping[int, Collection[str]]
    ) -> None:
        """These run now. The others are as they are, not as they were when this deployment began:
        it took seconds, in which some may have failed and been undeployed."""
        self._owned.update((id_, frozenset(names)) for id_, names in owned.items())
        self._operators.update((info.id, info) for info in infos)
        self._expected = {}
        # Afterwards: who calls one off from now on finds it among the operators.
        called_off, self._called_off = self._called_off, set()
        if called_off:
            self.undeploy(sorted(called_off))

    def _start(
        self, plan: ContainerPlan, query: Query, owner: OperatorDeployInfo, values: PropertyValues
    ) -> None:
        run = self._starter.prepare(plan, query, owner)
        run.values = values
        self._runs[query.name] = run
        if run.checkpoint_lost:
            run.state = DeployState.FAILED
            checkpoint = self._starter.checkpoint(query, owner)
            text = f"{CHECKPOINT_LOST}{checkpoint} is empty, and the controller knows of windows"
            self._failures.append((self._ids_of({owner.name}), text))
            return
        self._starter.start(plan, run, owner, self._on_bad_record)

    def undeploy(self, operators: Sequence[int]) -> None:
        """Stop the queries that end in one of these operators, and forget them. What only passes
        through one of them, as the query of a neighbour that reads the same topic, goes on: nobody
        would start it again."""
        self._called_off.update(each for each in operators if each in self._expected)
        found = [self._operators.pop(each, None) for each in operators]
        for each in operators:
            self._responses.pop(each, None)
        self._end_queries_of({info.name for info in found if info is not None})

    def _end_queries_of(self, names: Collection[str]) -> None:
        for name, run in list(self._runs.items()):
            if run.query.operators[-1] in names:
                self._end(run)
                del self._runs[name]

    def handle(self, requests: Sequence[StramToNodeRequest]) -> None:
        """What the controller asks of operators; answers go with the next heartbeat."""
        for request in requests:
            info = self._operators.get(request.operator_id)
            if info is None:
                continue
            try:
                answer = self._handle(info.name, request)
            except ConfigError as error:
                answer = str(error)
            response = OperatorResponse(request.request_id, answer)
            self._responses.setdefault(request.operator_id, []).append(response)

    def _handle(self, operator: str, request: StramToNodeRequest) -> str:
        """Empty when it was done."""
        runs = [run for run in self._runs.values() if operator in run.query.operators]
        if request.request_type is RequestType.CUSTOM and request.cmd == SET_PROPERTY:
            for run in runs:
                for name, value in request.arguments.items():
                    assert run.values is not None
                    run.values.set(operator, name, plain(value))
            return ""
        if request.request_type is RequestType.SET_LOG_LEVEL:
            return ""  # the process's, not an operator's
        if request.request_type not in (RequestType.START_RECORDING, RequestType.STOP_RECORDING):
            raise ConfigError(f"a container knows no request {request.request_type.name}")
        leaving = [run for run in runs if run.query.operators[-1] == operator]
        if not leaving:
            others = sorted({run.query.operators[-1] for run in runs})
            raise ConfigError(
                f"{operator} is fused; its rows can be seen where they leave: {', '.join(others)}"
            )
        for run in leaving:
            folder = f"{self._settings.application_path}/recordings/{request.recording_id}"
            start = request.request_type is RequestType.START_RECORDING
            run.recording = Recording(folder, request.num_windows) if start else None
        return ""

    def heartbeats(self, now_ms: int, interval_ms: int) -> tuple[OperatorHeartbeat, ...]:
        """One per operator, with the windows that were finished since the last call."""
        states: dict[str, list[DeployState]] = {}
        stats: dict[str, list[OperatorStats]] = {}
        for run in list(self._runs.values()):
            if run.is_starting:
                continue
            reports = self._reports(run)
            for name in run.query.operators:
                states.setdefault(name, []).append(run.state)
                if self._owner(name) is run:
                    stats[name] = [self._stats(report, run, name) for report in reports]
                    stats[name] += _note(run) if name == run.query.operators[-1] else ()
        return tuple(
            OperatorHeartbeat(
                node_id=id_,
                state=_state_of(states[info.name]),
                generated_tms=now_ms,
                interval_ms=interval_ms,
                window_stats=tuple(stats.get(info.name, ())),
                request_response=tuple(self._responses.pop(id_, ())),
                run_id=info.run_id,
            )
            for id_, info in list(self._operators.items())
            if info.name in states and self._has_queries(id_)
        )

    def _has_queries(self, operator: int) -> bool:
        """Whether all queries that end in it are here; others that pass through it say nothing."""
        return self._owned.get(operator, frozenset()) <= self._runs.keys()

    def is_broken(self) -> bool:
        """Whether Spark has stopped under its queries: nothing here can go on."""
        return self._session.is_broken()

    def memory(self) -> tuple[int, int, int]:
        """Free memory in MiB, and the time and number of garbage collections, of the JVM."""
        return self._session.memory()

    def stack_trace(self) -> str:
        return self._session.stack_trace()

    def pass_windows(self, now_ms: int) -> None:
        """How far queries have read, and what those with nothing to do, or at their end, tell those
        who read them. It asks the broker, who may be away: so it is not part of a heartbeat."""
        for run in list(self._runs.values()):
            if run.running is None:
                continue
            run.store_positions()
            if run.state is not DeployState.ACTIVE:
                continue
            status = run.running.status()
            if status.active and run.is_caught_up():
                run.running.stop()
            elif status.active:
                run.pass_windows(self._grid, now_ms)
            elif not status.error and not run.end_told:
                run.end(self._grid)
                run.end_told = True

    def take_failures(self) -> list[tuple[tuple[int, ...], str]]:
        """(operators, message) of queries that failed since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def committed(self, window: int) -> None:
        """Tell the application's hooks, those of operators that run here."""
        here = {info.name for info in self._operators.values()}
        app = self._session.loaded
        for hook in app.hooks if app is not None else ():
            if hook.operator is None or hook.operator in here:
                call_hook(hook, window, self._session.running)

    def close(self) -> None:
        for run in self._runs.values():
            self._end(run)
        self._runs.clear()
        self._session.close()

    def _on_bad_record(self, found: FoundRecord, window: str) -> None:
        self._failures.append((self._ids_of({found.operator}), found.describe(window)))

    def _owner(self, operator: str) -> QueryRun | None:
        """The query whose windows an operator reports: the first one that it is part of, those of
        dead letters last, because they run now and then."""
        runs = [run for run in self._runs.values() if operator in run.query.operators]
        return min(runs, key=lambda run: run.query.letters, default=None)

    def _reports(self, run: QueryRun) -> list[BatchReport]:
        if run.running is None:
            return []
        if run.state is DeployState.ACTIVE:
            self._look_after(run, run.running)
        from headrace.pipeline.failures import skipped

        reports = []
        for progress in run.running.take_progress():
            self._failures += [(self._ids(run), text) for text in skipped(progress)]
            window, rows = run.batches.get(progress["batchId"], (None, 0))
            if window is not None:
                report = read_progress(progress, window, rows)
                if tracing.active:
                    traces.on_batch(run.query.name, report, progress)
                bad = run.bad_batches.take_bad_rows(report.batch_id) if run.bad_batches else {}
                reports.append(with_bad_rows(report, bad))
        return reports

    def _look_after(self, run: QueryRun, running: RunningQuery) -> None:
        status = running.status()
        if status.active:
            return
        if run.stopped_at is not None:
            run.state = DeployState.SHUTDOWN
        elif status.error:
            run.state = DeployState.FAILED
            lost = CHECKPOINT_LOST if run.checkpoint_lost else ""
            self._failures.append((self._ids(run), f"{lost}{readable(status.error)}"))
        elif run.end_told or run.edge is None:
            run.state = DeployState.SHUTDOWN

    def _ids(self, run: QueryRun) -> tuple[int, ...]:
        return self._ids_of(set(run.query.operators))

    def _ids_of(self, names: set[str]) -> tuple[int, ...]:
        """A query's first batch may come while others are being started."""
        known = {**self._operators, **self._expected}
        return tuple(id_ for id_, info in known.items() if info.name in names)

    def _stats(self, report: BatchReport, run: QueryRun, operator: str) -> OperatorStats:
        stage = self._session.application().stages.get(operator)
        query = run.query
        place = Place(
            operator,
            inputs=tuple(stage.ports) if stage is not None else (),
            outputs=stage.outputs if stage is not None else (OUTPUT_PORT,),
            topic=stage is None,
            first=operator == query.operators[0],
            last=operator == query.operators[-1],
            stateful=operator == (query.stateful or query.operators[-1]),
        )
        return operator_stats(report, self._grid, place)

    def _end(self, run: QueryRun) -> None:
        if run.running is not None:
            run.running.stop()
            try:
                run.store_positions()
            except Exception as error:  # a JVM that is gone; what was stored before stands
                log.warning("positions_not_read", query=run.query.name, reason=str(error))
        run.lock.release()


def _state_of(states: Sequence[DeployState]) -> DeployState:
    """Of an operator whose queries are in these states: it has ended when all of them have."""
    if DeployState.FAILED in states:
        return DeployState.FAILED
    ended = all(one is DeployState.SHUTDOWN for one in states)
    return DeployState.SHUTDOWN if ended else DeployState.ACTIVE


def _note(run: QueryRun) -> tuple[OperatorStats, ...]:
    """Of a batch that takes long: how far it has come, under the window before it."""
    finished = run.long_batch()
    if finished is None:
        return ()
    return (
        OperatorStats(
            window_id=run.windows.passed(),
            window_count=0,
            metrics={TASKS_FINISHED: finished},
        ),
    )


def call_hook(hook: Hook, window: int, spark: SparkSession | None) -> None:
    """With the window id under whatever name the function gives it."""
    names = inspect.signature(hook.function).parameters
    (first,) = (name for name in names if name != SPARK)
    extra = {SPARK: spark} if SPARK in names else {}
    hook.function(**{first: window}, **extra)
