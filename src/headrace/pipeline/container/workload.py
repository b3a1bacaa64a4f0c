"""The operators that run in this container: their Spark session, queries, checkpoints, windows.

Blocking throughout; `container.py` calls it from threads, so queries fail, are undeployed and are
reported while others are being started. Operators deployed together whose names lead to the same
terminal stage are fused in one streaming query, and so is each stream that other containers read;
what each query has is its own checkpoint, `<application path>/<checkpoint folder>/<terminal>`, with
a lock beside it, because Spark's fastest checkpoint files do not guard against a second writer.

An operator is reported because its queries run, never because it was once deployed: one that lacks
a query is neither reported nor known, so that the controller deploys it again.

Calls the functions that an application declares with `@app.committed`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import ConfigError
from headrace.ids import WindowId
from headrace.observability import tracing
from headrace.observability.logging import get_logger
from headrace.pipeline import traces
from headrace.pipeline.container.container_plan import (
    ContainerPlan,
    EdgeOutput,
    make_container_plan,
    plain,
    properties_of,
    read_edges,
)
from headrace.pipeline.container.heartbeat import stack_traces
from headrace.pipeline.container.query_positions import EDGE, QueryPositions, group_of
from headrace.pipeline.container.query_run import QueryRun, Recording
from headrace.pipeline.container.reports import (
    BatchReport,
    Place,
    operator_stats,
    read_progress,
    with_bad_rows,
)
from headrace.pipeline.container.window_log import WindowLog, roll_back
from headrace.pipeline.controller.application.operator_requests import SET_PROPERTY
from headrace.pipeline.controller.application.statistics import TASKS_FINISHED
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.declarations import OUTPUT_PORT, SPARK, Hook, TopicInput
from headrace.pipeline.failures import readable
from headrace.pipeline.plan.deploy import (
    ACTIVATION,
    CHECKPOINT_LOST,
    ROLL_BACK_TO,
    ROLLBACKS,
    UNTIL,
)
from headrace.pipeline.plan.loading import load_application
from headrace.pipeline.plan.versions import CHECKPOINT_NAME
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
    Value,
)
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.container.bad_batch import FoundRecord
    from headrace.pipeline.declare.properties import PropertyValues
    from headrace.pipeline.declare.queries import Query
    from headrace.spark.edges.sink import EdgeSink
    from headrace.spark.options import Target
    from headrace.spark.session.queries import ProgressRings, RunningQuery


def call_hook(hook: Hook, window: int, spark: SparkSession | None) -> None:
    """With the window id under whatever name the function gives it."""
    names = inspect.signature(hook.function).parameters
    (first,) = (name for name in names if name != SPARK)
    extra = {SPARK: spark} if SPARK in names else {}
    hook.function(**{first: window}, **extra)


log = get_logger(__name__)

CHECKPOINTS = "checkpoints"  # folder, when the deployment names none
DEAD_LETTER_TRIGGER = "10 seconds"  # nobody waits for rejected rows
AT_MOST_ONCE = "AT_MOST_ONCE"


class WorkloadSettings(Protocol):
    """What of the container's settings matters here."""

    @property
    def application_path(self) -> str: ...
    @property
    def package(self) -> str: ...
    @property
    def entry(self) -> str: ...
    @property
    def broker(self) -> str: ...
    @property
    def master(self) -> str: ...
    @property
    def available_now(self) -> bool: ...
    @property
    def spark_conf(self) -> Any: ...


class Workload:
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
        self._disk = runtime.disk
        self._monotonic = runtime.clock.monotonic
        self._settings = settings
        self._grid = WindowGrid(context.start_window_millis, width)
        self._spark: SparkSession | None = None
        self._rings: ProgressRings | None = None
        self._app: Application | None = None
        self._operators: dict[int, OperatorDeployInfo] = {}
        self._owned: dict[int, frozenset[str]] = {}  # the queries that end in an operator
        self._expected: dict[int, OperatorDeployInfo] = {}
        self._called_off: set[int] = set()  # of those that are expected
        self._runs: dict[str, QueryRun] = {}
        self._failures: list[tuple[tuple[int, ...], str]] = []
        self._responses: dict[int, list[OperatorResponse]] = {}

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
        plan = make_container_plan(self._load(), known)
        app = plan.app
        spark = self._session()
        from headrace.pipeline.declare.properties import PropertyValues
        from headrace.pipeline.declare.stages import build_queries

        nothing = f"{self._settings.application_path}/cache/empty"
        self._disk.make_folder(nothing)
        skip = self._skips_backlog(infos)
        given = read_edges(
            plan,
            spark,
            address=self._settings.broker,
            grid=self._grid,
            folder=nothing,
            skip_until=self._closed_by_all(plan) if skip else NO_WINDOW,
        )
        values = PropertyValues(app, properties_of(app, known))
        queries = build_queries(
            app,
            spark,
            partial(self._read_topic, skip_backlog=skip),
            values,
            terminals=plan.terminals,
            given=given,
            outlets={feed: output.topic for feed, output in plan.outputs.items()},
        )
        owners = {info.name: info for info in infos}
        owned: dict[int, set[str]] = {info.id: set() for info in infos}
        for query in _distinct(queries, plan):
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
        from headrace.pipeline.container.bad_batch import make_bad_batches
        from headrace.pipeline.declare.queries import store_settings
        from headrace.spark.session.queries import start_query

        relative = checkpoint_of(query.name, owner)
        checkpoint = f"{self._settings.application_path}/{relative}"
        run = self._prepare(plan, query, owner, checkpoint)
        if run.checkpoint_lost:
            run.state = DeployState.FAILED
            self._runs[query.name] = run
            text = f"{CHECKPOINT_LOST}{checkpoint} is empty, and the controller knows of windows"
            self._failures.append((self._ids_of({owner.name}), text))
            return
        run.values = values
        run.identity = f"{plan.app.name}.{relative.partition('/')[2].replace('/', '.')}"
        run.bad_batches = make_bad_batches(
            plan.app,
            self._session(),
            query,
            address=self._settings.broker,
            disk=self._disk,
            checkpoint=checkpoint,
            on_found=self._on_bad_record,
        )
        self._runs[query.name] = run
        assert self._rings is not None
        run.running = start_query(
            self._rings,
            query.frame,
            name=query.name,
            mode=query.mode,
            checkpoint=checkpoint,
            trigger=self._trigger(plan, query),
            on_batch=run.on_batch,
            conf=store_settings(query.frame),
        )

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
        if self._spark is None:
            return False
        from headrace.spark.session.queries import is_stopped

        return is_stopped(self._spark)

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

    def memory(self) -> tuple[int, int, int]:
        if self._spark is None:
            return 0, 0, 0
        from headrace.spark.session.queries import memory

        return memory(self._spark)

    def stack_trace(self) -> str:
        return stack_traces(self._spark)

    def committed(self, window: int) -> None:
        """Tell the application's hooks, those of operators that run here."""
        here = {info.name for info in self._operators.values()}
        for hook in self._app.hooks if self._app is not None else ():
            if hook.operator is None or hook.operator in here:
                call_hook(hook, window, self._spark)

    def close(self) -> None:
        for run in self._runs.values():
            self._end(run)
        self._runs.clear()
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def _load(self) -> Application:
        if self._app is None:
            self._app = load_application(self._settings.package, self._settings.entry)
        return self._app

    def _session(self) -> SparkSession:
        if self._spark is None:
            from headrace.spark.session.queries import ProgressRings
            from headrace.spark.session.session import session

            app = self._load()
            conf = {
                **code_for_executors(self._settings.master),
                **self._settings.spark_conf,
                **app.spark_conf,
            }
            self._spark = session(app.name, master=self._settings.master, conf=conf)
            self._rings = ProgressRings()
            self._spark.streams.addListener(self._rings)
        return self._spark

    def _read_topic(
        self, topic: TopicInput, columns: tuple[str, ...], *, skip_backlog: bool
    ) -> DataFrame:
        from headrace.pipeline.declare.inputs import read_stream

        assert self._spark is not None
        return read_stream(
            self._spark,
            topic,
            columns,
            address=self._settings.broker,
            skip_backlog=skip_backlog,
        )

    def _skips_backlog(self, infos: Sequence[OperatorDeployInfo]) -> bool:
        """AT_MOST_ONCE: who comes back goes on with what comes from now on. Queries that start
        together read the same frames, so only if all of them want it so; a batch that is run again
        is left out by each for itself."""
        owners = [info for info in infos if info.query]
        return bool(owners) and all(
            _mode(owner) == AT_MOST_ONCE
            and self._disk.list(
                f"{self._settings.application_path}/{checkpoint_of(owner.name, owner)}/windows"
            )
            for owner in owners
        )

    def _closed_by_all(self, plan: ContainerPlan) -> int:
        """The last window that every edge read here has closed."""
        from headrace.spark.edges.source import last_window
        from headrace.spark.server import connect

        targets = [self._target(one.topic) for one in plan.inputs.values()]
        if not targets:
            return NO_WINDOW
        server = connect(targets[0])
        return server.run(last_window(server.remote, targets))

    def _prepare(
        self, plan: ContainerPlan, query: Query, owner: OperatorDeployInfo, checkpoint: str
    ) -> QueryRun:
        from headrace.spark.options import parse_sink
        from headrace.spark.server import connect

        self._disk.make_folder(checkpoint)
        lock = self._disk.lock(f"{checkpoint}.lock")
        windows = WindowLog(self._disk, checkpoint, self._grid)
        target = owner.context_attributes.get(ROLL_BACK_TO)
        if isinstance(target, int):
            number = owner.context_attributes.get(ROLLBACKS)
            number = number if isinstance(number, int) else 0
            roll_back(self._disk, checkpoint, windows, WindowId(target), number)
        elif windows.passed() == NO_WINDOW and _had_windows(query, owner):
            return QueryRun(query, windows, lock, self._disk, self._monotonic, checkpoint_lost=True)
        activation = owner.context_attributes.get(ACTIVATION)
        if isinstance(activation, int) and activation >= 0 and windows.last() == NO_WINDOW:
            windows.start_after(WindowId(activation))
        run = QueryRun(query, windows, lock, self._disk, self._monotonic)
        run.at_most_once = _mode(owner) == AT_MOST_ONCE
        until = owner.context_attributes.get(UNTIL)
        run.until = WindowId(until) if isinstance(until, int) else None
        run.reads = tuple(self._target(one.topic) for one in plan.above(query.operators).values())
        run.reads_topics = any(name in plan.app.topics for name in query.operators)
        run.positions = self._positions(plan.app, query)
        output = plan.outputs.get(query.name.removesuffix(EDGE))
        if output is not None and query.topic == output.topic:
            run.edge = self._edge(query, output)
        elif query.topic is not None:
            options = {"address": self._settings.broker, "topic": query.topic}
            if _mode(owner) == "EXACTLY_ONCE":
                options["delivery"] = "exactly-once"  # refused where it cannot be
            run.sink = parse_sink(options)
            connect(run.sink.target).create_topic(run.sink.target)
        return run

    def _positions(self, app: Application, query: Query) -> QueryPositions:
        from headrace.spark.options import parse_source

        topics = {
            name: parse_source(
                {"address": self._settings.broker, "topic": app.topics[name].topic}, streaming=True
            )
            for name in query.operators
            if name in app.topics and app.topics[name].ending is None  # a backfill's are nobody's
        }
        former = [group_of(app.name, port) for port in topics]
        return QueryPositions(group_of(app.name, query.name), topics, former)

    def _on_bad_record(self, found: FoundRecord, window: str) -> None:
        self._failures.append((self._ids_of({found.operator}), found.describe(window)))

    def _target(self, topic: str) -> Target:
        from headrace.spark.options import parse_sink

        return parse_sink({"address": self._settings.broker, "topic": topic}).target

    def _edge(self, query: Query, output: EdgeOutput) -> EdgeSink:
        from headrace.spark.edges.sink import EdgeSink

        key: tuple[str, ...] = ()
        if output.key is not None:
            key = tuple(query.frame.columns if output.key == "*" else output.key.split(","))
        return EdgeSink(
            self._target(output.topic),
            output.publisher,
            output.partition,
            output.epoch,
            key,
            output.mask,
        )

    def _trigger(self, plan: ContainerPlan, query: Query) -> str | None:
        if self._settings.available_now:
            return None
        declared = query.name in plan.app.stages or query.name in plan.outputs
        return plan.app.trigger if declared else DEAD_LETTER_TRIGGER

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
        from headrace.spark.source.losses import skipped

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
        stage = self._load().stages.get(operator)
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


def code_for_executors(master: str) -> dict[str, str]:
    """Settings that give a cluster's executors the path of the driver, and so the package and what
    it requires: both are in the application's folder, which all nodes see. A local session's
    workers inherit it."""
    path = os.environ.get("PYTHONPATH", "")
    if master.startswith("local") or not path:
        return {}
    return {"spark.executorEnv.PYTHONPATH": path}


def checkpoint_of(query: str, owner: OperatorDeployInfo) -> str:
    """A query's checkpoint, relative to the application path, under the name its operator had when
    the checkpoint was begun: `checkpoints/revenue`, `checkpoints/revenue~2_dead_letter`."""
    name = owner.context_attributes.get(CHECKPOINT_NAME)
    identity = name if isinstance(name, str) else owner.name
    rest = query.removeprefix(owner.name)
    return f"{owner.checkpoint_folder or CHECKPOINTS}/{identity}{rest}"


def _had_windows(query: Query, owner: OperatorDeployInfo) -> bool:
    """Whether the controller knows of windows in this very checkpoint. An operator that publishes
    to a topic and for other containers has two, and nobody can say which one it means."""
    attributes_ = owner.context_attributes
    for_others = any(one.buffer_server_host for one in owner.outputs)
    if query.name != owner.name or (for_others and attributes_.get("OUTPUT_TOPIC")):
        return False
    began = attributes_.get(ACTIVATION)
    known = owner.checkpoint.window_id if owner.checkpoint is not None else NO_WINDOW
    return known > (began if isinstance(began, int) else NO_WINDOW)


def _mode(owner: OperatorDeployInfo) -> Value:
    return owner.context_attributes.get("PROCESSING_MODE")


def _distinct(queries: Sequence[Query], plan: ContainerPlan) -> list[Query]:
    """A stream that leaves for a topic of the user's and for other containers is two queries."""
    found = []
    for query in queries:
        both = query.name in plan.outputs and query.name in plan.app.stages
        stage = plan.app.stages.get(query.name)
        if both and query.topic == plan.outputs[query.name].topic and stage and stage.to:
            query = replace(query, name=f"{query.name}{EDGE}")
        found.append(query)
    return found


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
