"""Running streaming queries: the Spark half of a container.

Spark tells of its progress in a callback thread, which only copies what it hears into a ring; the
heartbeat drains it. What the ring missed (the callback is best effort) is taken from the query.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from pyspark import SparkContext, StatusTracker
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryListener

PROGRESS_KEPT = 1024  # per query, as many as the origin kept windows per operator
STOP_SECONDS = 5.0

IDENTITY_SECONDS = 60.0  # from a query's first batch until Spark has told its id


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    id: str
    """Kept by the checkpoint: the same after a restart."""
    run_id: str


OnBatch = Callable[[DataFrame, int, QueryIdentity], None]


@dataclass(slots=True)
class _Ring:
    records: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=PROGRESS_KEPT))
    newest: int = -1


class ProgressRings(StreamingQueryListener):  # type: ignore[misc]  # pyspark's classes are untyped
    """Progress per run of a query, until it is drained."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings: dict[str, _Ring] = {}
        self._adapter: Any = None

    def add(self, run_id: str, progress: dict[str, Any]) -> None:
        """Take the record of a batch that is not known yet.

        A trigger that found nothing also tells of its progress, under the id of the next batch.
        """
        if "addBatch" not in progress.get("durationMs", {}):
            return
        with self._lock:
            ring = self._rings.setdefault(run_id, _Ring())
            if progress["batchId"] > ring.newest:
                ring.newest = progress["batchId"]
                ring.records.append(progress)

    def drain(self, run_id: str) -> list[dict[str, Any]]:
        with self._lock:
            ring = self._rings.setdefault(run_id, _Ring())
            records = list(ring.records)
            ring.records.clear()
            return records

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = json.loads(event.progress().json())
        self.add(progress["runId"], progress)

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...

    @property
    def _jlistener(self) -> Any:
        """What Spark calls: this object itself.

        pyspark would put a translator between, which asks the JVM for each field of an event, a
        hundred calls for every micro-batch, and does so even where one text is all that is used.
        """
        if self._adapter is None:
            jvm: Any = SparkContext._jvm
            self._adapter = jvm.PythonStreamingQueryListenerWrapper(self)
        return self._adapter

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


@dataclass(frozen=True, slots=True)
class QueryStatus:
    active: bool
    error: str = ""  # why it ended, when it did not end well


class RunningQuery:
    """A started query. Its methods call into the JVM and may block."""

    def __init__(
        self, query: StreamingQuery, rings: ProgressRings, tracker: StatusTracker | None = None
    ) -> None:
        self._query = query
        self._rings = rings
        self._tracker = tracker
        self.run_id = str(query.runId)

    def status(self) -> QueryStatus:
        if self._query.isActive:
            return QueryStatus(active=True)
        error = self._query.exception()
        return QueryStatus(active=False, error=str(error) if error is not None else "")

    def take_progress(self) -> list[dict[str, Any]]:
        """Progress since the last call, one record per micro-batch that committed."""
        last = self._query.lastProgress
        if last is not None:
            self._rings.add(self.run_id, json.loads(last.json))
        return self._rings.drain(self.run_id)

    def ends(self) -> list[Any]:
        """Where the last committed batch ended, one for each source; none before the first."""
        last = self._query.lastProgress
        sources = [] if last is None else json.loads(last.json).get("sources", [])
        return [one.get("endOffset") for one in sources]

    def tasks_finished(self) -> int:
        """Of the jobs that its batch is at; 0 where nobody can say."""
        if self._tracker is None:
            return 0
        stages = [
            stage
            for job in self._tracker.getJobIdsForGroup(self.run_id)
            if (found := self._tracker.getJobInfo(job)) is not None
            for stage in found.stageIds
        ]
        infos = [self._tracker.getStageInfo(stage) for stage in stages]
        return sum(info.numCompletedTasks for info in infos if info is not None)

    def stop(self) -> None:
        """Stop between two batches if there is such a moment soon, else in the middle of one.

        A batch that was cut off is run again by the next start.
        """
        deadline = monotonic() + STOP_SECONDS
        while self._query.isActive and self._query.status["isTriggerActive"]:
            if monotonic() > deadline:
                break
            sleep(0.02)
        self._query.stop()


def start_query(
    rings: ProgressRings,
    frame: DataFrame,
    *,
    name: str,
    mode: str,
    checkpoint: str,
    trigger: str | None,
    on_batch: OnBatch,
    conf: Mapping[str, str] | None = None,
) -> RunningQuery:
    """Start a query whose batches go to `on_batch`; without a trigger it ends when it caught up.
    `conf` are settings for it alone."""
    identity: Future[QueryIdentity] = Future()  # the first batch may come before `start` returns

    def call(batch: DataFrame, batch_id: int) -> None:
        on_batch(batch, batch_id, identity.result(IDENTITY_SECONDS))

    writer = (
        frame.writeStream.queryName(name)
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .foreachBatch(call)
    )
    if trigger is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=trigger)
    with settings(frame.sparkSession, conf or {}):
        query = writer.start()
    identity.set_result(QueryIdentity(str(query.id), str(query.runId)))
    return RunningQuery(query, rings, frame.sparkSession.sparkContext.statusTracker())


@contextmanager
def settings(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """For queries that start meanwhile: each goes on with the settings of its start."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def is_stopped(spark: SparkSession) -> bool:
    """Whether its context is gone, by its own doing or because the JVM is."""
    context: Any = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def thread_dump(spark: SparkSession) -> list[dict[str, Any]]:
    """What the JVM's threads are doing."""
    jvm: Any = spark.sparkContext._jvm
    beans = jvm.java.lang.management.ManagementFactory.getThreadMXBean()
    return [
        {
            "name": info.getThreadName(),
            "state": str(info.getThreadState()),
            "stack": [str(frame) for frame in info.getStackTrace()],
        }
        for info in beans.dumpAllThreads(False, False)
    ]


def memory(spark: SparkSession) -> tuple[int, int, int]:
    """(free heap in MiB, milliseconds spent in garbage collection, collections)."""
    jvm: Any = spark.sparkContext._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()
    free = runtime.maxMemory() - runtime.totalMemory() + runtime.freeMemory()
    beans = list(jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans())
    time_ms = sum(bean.getCollectionTime() for bean in beans)
    return free >> 20, time_ms, sum(bean.getCollectionCount() for bean in beans)
