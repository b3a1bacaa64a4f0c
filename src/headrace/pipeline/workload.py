"""The operators that run in this container: their Spark session, queries, checkpoints, windows.

Blocking throughout; `container.py` calls it from threads. Operators deployed together whose names
lead to the same terminal stage are fused in one streaming query; what each query has is its own
checkpoint, `<application path>/<checkpoint folder>/<terminal>`, with a lock beside it, because
Spark's fastest checkpoint files do not guard against a second writer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import ConfigError
from headrace.pipeline.application import Application
from headrace.pipeline.declarations import OUTPUT_PORT, Batch, TopicInput
from headrace.pipeline.hooks import call_hook
from headrace.pipeline.loading import load_application
from headrace.pipeline.reports import (
    BatchReport,
    Place,
    operator_stats,
    read_progress,
    with_bad_rows,
)
from headrace.pipeline.stack_traces import stack_traces
from headrace.pipeline.versions import CHECKPOINT_NAME
from headrace.pipeline.windowlog import BatchWindow, WindowLog
from headrace.pipeline.windows import WindowGrid
from headrace.runtime.interfaces import Lock, Runtime
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical.messages import (
    DeployState,
    OperatorDeployInfo,
    OperatorHeartbeat,
    OperatorStats,
    StreamingContainerContext,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.isolating import FoundRecord
    from headrace.pipeline.salvage import Salvage
    from headrace.pipeline.stages import Query
    from headrace.spark.options import SinkOptions
    from headrace.spark.queries import ProgressRings, QueryIdentity, RunningQuery

CHECKPOINTS = "checkpoints"  # folder, when the deployment names none
DEAD_LETTER_TRIGGER = "10 seconds"  # nobody waits for rejected rows
BATCHES_REMEMBERED = 1024


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


@dataclass(slots=True)
class _Run:
    """One query that was started."""

    query: Query
    windows: WindowLog
    lock: Lock
    sink: SinkOptions | None
    identity: str = ""  # what its output is known by
    running: RunningQuery | None = None
    state: DeployState = DeployState.ACTIVE
    batches: dict[int, tuple[BatchWindow, int]] = field(default_factory=dict)

    salvage: Salvage | None = None  # of a query that keeps no state

    def on_batch(self, frame: DataFrame, batch_id: int, identity: QueryIdentity) -> None:
        """Called by Spark for every micro-batch, in a thread of its own."""
        window = self.windows.enter(batch_id)  # on disk before anything is published
        try:
            rows = self._deliver(self.query.finish(frame), window, batch_id, identity)
        except Exception as error:  # whatever it is: either a record is to blame, or it stands
            publish = partial(self._publish, batch_id=batch_id, identity=identity)
            rest = self.salvage and self.salvage.rest(error, window.window, batch_id, publish)
            if rest is None:
                raise
            rows = self._deliver(rest, window, batch_id, identity)
        self.batches[batch_id] = (window, max(rows, 0))
        self.batches.pop(batch_id - BATCHES_REMEMBERED, None)

    def _deliver(
        self, frame: DataFrame, window: BatchWindow, batch_id: int, identity: QueryIdentity
    ) -> int:
        from headrace.pipeline.stages import give

        if self.sink is not None:
            key = self.query.key
            return self._publish(frame, self.sink, key, batch_id=batch_id, identity=identity)
        batch = Batch(window.window, batch_id, window.replay, self.identity, self.query.mode)
        return give(self.query, frame, batch)

    def _publish(
        self,
        frame: DataFrame,
        sink: SinkOptions,
        key: str | None = None,
        *,
        batch_id: int,
        identity: QueryIdentity,
    ) -> int:
        from headrace.spark.publish import publish, to_messages
        from headrace.spark.sink import publisher_name
        from headrace.spark.windows import Window

        publisher = publisher_name(identity.id, sink.target)
        window = Window(publisher, identity.run_id, batch_id)
        return publish(to_messages(frame, key), sink, window)


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
        self._settings = settings
        self._grid = WindowGrid(context.start_window_millis, width)
        self._spark: SparkSession | None = None
        self._rings: ProgressRings | None = None
        self._app: Application | None = None
        self._operators: dict[int, OperatorDeployInfo] = {}
        self._runs: dict[str, _Run] = {}
        self._failures: list[tuple[tuple[int, ...], str]] = []

    def knows(self, operator: int) -> bool:
        return operator in self._operators

    def expect(self, infos: Sequence[OperatorDeployInfo]) -> None:
        """From now on these are reported; their queries may take a while to start."""
        self._operators |= {info.id: info for info in infos}

    def deploy(self, infos: Sequence[OperatorDeployInfo]) -> None:
        """Start every query whose terminal stage is among these operators."""
        app = self._load()
        self._check(app, infos)
        spark = self._session()
        from headrace.pipeline.salvage import make_salvage
        from headrace.pipeline.stages import build_queries
        from headrace.spark.queries import start_query

        properties = {info.name: _values(info.properties) for info in infos}
        properties = {name: values for name, values in properties.items() if name in app.stages}
        queries = build_queries(app, spark, self._read_topic, properties)
        owners = {info.name: info for info in infos}
        for query in queries:
            owner = owners.get(query.operators[-1])
            if owner is None or query.name in self._runs:
                continue
            relative = checkpoint_of(query.name, owner)
            checkpoint = f"{self._settings.application_path}/{relative}"
            run = self._prepare(query, checkpoint)
            run.identity = f"{app.name}.{relative.partition('/')[2].replace('/', '.')}"
            run.salvage = make_salvage(
                app,
                spark,
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
                trigger=self._trigger(app, query),
                on_batch=run.on_batch,
            )

    def undeploy(self, operators: Sequence[int]) -> None:
        """Stop every query that one of these operators is part of, and forget them."""
        names = {self._operators[each].name for each in operators if each in self._operators}
        for name, run in list(self._runs.items()):
            if names & set(run.query.operators):
                self._end(run)
                del self._runs[name]
        for each in operators:
            self._operators.pop(each, None)

    def heartbeats(self, now_ms: int, interval_ms: int) -> tuple[OperatorHeartbeat, ...]:
        """One per operator, with the windows that were finished since the last call."""
        states: dict[str, DeployState] = {}
        stats: dict[str, list[OperatorStats]] = {}
        for run in list(self._runs.values()):
            reports = self._reports(run)
            for name in run.query.operators:
                states[name] = max(states.get(name, run.state), run.state)
                if self._owner(name) is run:
                    stats[name] = [self._stats(report, run, name) for report in reports]
        return tuple(
            OperatorHeartbeat(
                node_id=id_,
                state=states.get(info.name, DeployState.ACTIVE),
                generated_tms=now_ms,
                interval_ms=interval_ms,
                window_stats=tuple(stats.get(info.name, ())),
            )
            for id_, info in list(self._operators.items())
        )

    def take_failures(self) -> list[tuple[tuple[int, ...], str]]:
        """(operators, message) of queries that failed since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def memory(self) -> tuple[int, int, int]:
        if self._spark is None:
            return 0, 0, 0
        from headrace.spark.queries import memory

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

    def _check(self, app: Application, infos: Sequence[OperatorDeployInfo]) -> None:
        """Nothing is imported by a name from the wire; the names must be the package's own."""
        for info in infos:
            stage = app.stages.get(info.name)
            declared = stage.reference if stage is not None else ""
            if info.name not in app.topics and (stage is None or info.function != declared):
                raise ConfigError(
                    f"the controller deploys {info.name} as {info.function!r}, "
                    f"the package declares {declared or 'no such operator'}"
                )

    def _session(self) -> SparkSession:
        if self._spark is None:
            from headrace.spark.queries import ProgressRings
            from headrace.spark.session import session

            app = self._load()
            conf = {**code_for_executors(self._settings.master), **self._settings.spark_conf}
            self._spark = session(app.name, master=self._settings.master, conf=conf)
            self._rings = ProgressRings()
            self._spark.streams.addListener(self._rings)
        return self._spark

    def _read_topic(self, topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
        from headrace.pipeline.topics import read_stream

        assert self._spark is not None
        return read_stream(self._spark, topic, columns, address=self._settings.broker)

    def _prepare(self, query: Query, checkpoint: str) -> _Run:
        from headrace.spark.options import parse_sink
        from headrace.spark.server import connect

        self._disk.make_folder(checkpoint)
        lock = self._disk.lock(f"{checkpoint}.lock")
        sink = None
        if query.topic is not None:
            sink = parse_sink({"address": self._settings.broker, "topic": query.topic})
            connect(sink.target).create_topic(sink.target)
        return _Run(query, WindowLog(self._disk, checkpoint, self._grid), lock, sink)

    def _on_bad_record(self, found: FoundRecord, window: str) -> None:
        ids = tuple(id_ for id_, info in self._operators.items() if info.name == found.operator)
        self._failures.append((ids, found.describe(window)))

    def _trigger(self, app: Application, query: Query) -> str | None:
        if self._settings.available_now:
            return None
        declared = app.stages.get(query.name)
        return app.trigger if declared is not None else DEAD_LETTER_TRIGGER

    def _owner(self, operator: str) -> _Run | None:
        """The query whose windows an operator reports: the first one that it is part of, those of
        dead letters last, because they run now and then."""
        runs = [run for run in self._runs.values() if operator in run.query.operators]
        return min(runs, key=lambda run: run.query.letters, default=None)

    def _reports(self, run: _Run) -> list[BatchReport]:
        if run.running is None:
            return []
        if run.state is DeployState.ACTIVE:
            status = run.running.status()
            if not status.active:
                run.state = DeployState.FAILED if status.error else DeployState.SHUTDOWN
                if status.error:
                    self._failures.append((self._ids(run), status.error))
        from headrace.spark.losses import skipped

        reports = []
        for progress in run.running.take_progress():
            self._failures += [(self._ids(run), text) for text in skipped(progress)]
            window, rows = run.batches.get(progress["batchId"], (None, 0))
            if window is not None:
                report = read_progress(progress, window, rows)
                bad = run.salvage.take_bad_rows(report.batch_id) if run.salvage else {}
                reports.append(with_bad_rows(report, bad))
        return reports

    def _ids(self, run: _Run) -> tuple[int, ...]:
        names = set(run.query.operators)
        return tuple(id_ for id_, info in self._operators.items() if info.name in names)

    def _stats(self, report: BatchReport, run: _Run, operator: str) -> OperatorStats:
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

    def _end(self, run: _Run) -> None:
        if run.running is not None:
            run.running.stop()
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


def _values(properties: Any) -> dict[str, Any]:
    return {
        name: json.loads(value.text) if hasattr(value, "text") else value
        for name, value in properties.items()
    }
