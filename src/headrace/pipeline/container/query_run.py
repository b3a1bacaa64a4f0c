"""One streaming query of a container, from its start to its end.

Its batches go to a topic of the user's, to a sink function, or to an edge that other containers
read. What it publishes between containers it publishes under the window that the window log gives
the batch, after the last window that its publisher closed; while it has nothing to do it lets
windows pass, so that whoever reads it together with others does not wait.

A batch costs Spark a tenth of a second and more, with or without rows, but readers of what a query
publishes wait for its windows. So whoever runs the query closes them, by the same compare-and-set
that a batch does: up to the window that all edges it reads have closed, if there is nothing in them
to read, and up to the window before now if it reads topics. `WindowLog.advance` sees to it that no
batch is under way meanwhile, and that the next one comes after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from headrace.ids import WindowId
from headrace.pipeline.container.window_log import BatchWindow, CheckpointLostError, WindowLog
from headrace.pipeline.declare.stores import Batch
from headrace.runtime.interfaces import Disk, Lock
from headrace.spark.edges.sink import EdgeSink, advance, last_closed
from headrace.spark.edges.source import quiet_through
from headrace.spark.options import Target
from headrace.spark.server import connect
from headrace.wire.umbilical.messages import DeployState
from headrace.wire.umbilical.windows import WindowGrid, format_window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.container.bad_batch import BadBatches
    from headrace.pipeline.container.query_positions import QueryPositions
    from headrace.pipeline.declare.graph import PropertyValues
    from headrace.pipeline.declare.queries import Query
    from headrace.spark.options import SinkOptions
    from headrace.spark.session.queries import QueryIdentity, RunningQuery

BATCHES_REMEMBERED = 1024
LONG_BATCH_SECONDS = 20.0  # after it a batch tells how far it has come
IDLE_MS = 2_000  # without a batch, until windows pass by themselves
RECORDED_ROWS_MAX = 100  # of a window


class ReachedWindow(Exception):
    """Ends a query that was started to read up to a window."""


@dataclass(slots=True)
class Recording:
    """Sample rows of the next windows, one file each."""

    folder: str
    windows_left: int


@dataclass(slots=True)
class QueryRun:
    query: Query
    windows: WindowLog
    lock: Lock
    disk: Disk
    monotonic: Callable[[], float]
    sink: SinkOptions | None = None
    edge: EdgeSink | None = None
    reads: tuple[Target, ...] = ()  # edges
    reads_topics: bool = True
    identity: str = ""  # what its output is known by
    bad_batches: BadBatches | None = None  # of a query that keeps no state
    positions: QueryPositions | None = None
    values: PropertyValues | None = None
    at_most_once: bool = False
    running: RunningQuery | None = None
    state: DeployState = DeployState.ACTIVE
    batches: dict[int, tuple[BatchWindow, int]] = field(default_factory=dict)
    until: WindowId | None = None  # read up to this window, then end
    stopped_at: WindowId | None = None
    checkpoint_lost: bool = False
    end_told: bool = False  # to those who read its edge
    recording: Recording | None = None
    in_batch: int | None = None
    _entered: float = 0.0
    _passed_ms: int = 0
    _suffix: str = field(init=False)  # of its publishers, which know batches by their numbers

    def __post_init__(self) -> None:
        # After a rollback of this query the same numbers come again, with other rows.
        number = self.windows.rollback()
        self._suffix = f"/{number}" if number else ""

    @property
    def is_starting(self) -> bool:
        """Spark does not have it yet."""
        return self.running is None and self.state is DeployState.ACTIVE

    def on_batch(self, frame: DataFrame, batch_id: int, identity: QueryIdentity) -> None:
        """Called by Spark for every micro-batch, in a thread of its own."""
        self.in_batch, self._entered = batch_id, self.monotonic()
        try:
            self._on_batch(frame, batch_id, identity)
        finally:
            self.in_batch = None

    def _on_batch(self, frame: DataFrame, batch_id: int, identity: QueryIdentity) -> None:
        if self.until is not None and self._read_until() > self.until:
            self.stopped_at = self.until  # the batch is left for whoever reads from there
            raise ReachedWindow(f"everything up to window {format_window(self.until)} is read")
        # On disk before anything is published.
        try:
            window = self.windows.enter(batch_id, self._closed)
        except CheckpointLostError:
            self.checkpoint_lost = True
            raise
        rows = 0
        if not (window.replay and self.at_most_once):
            rows = self._process(frame, batch_id, identity, window)
        self.batches[batch_id] = (window, max(rows, 0))
        self.batches.pop(batch_id - BATCHES_REMEMBERED, None)

    def _process(
        self,
        frame: DataFrame,
        batch_id: int,
        identity: QueryIdentity,
        window: BatchWindow,
    ) -> int:
        deliver = partial(self._deliver, window=window, batch_id=batch_id, identity=identity)
        try:
            return deliver(self.query.finish(frame))
        except Exception as error:  # whatever it is: either a record is to blame, or it stands
            publish = partial(self._publish, batch_id=batch_id, identity=identity)
            rest = self.bad_batches and self.bad_batches.rest(
                error, window.window, batch_id, publish
            )
            if rest is None:
                raise
            return deliver(rest)

    def _deliver(
        self,
        frame: DataFrame,
        *,
        window: BatchWindow,
        batch_id: int,
        identity: QueryIdentity,
    ) -> int:
        self._record(frame, window.window)
        if self.edge is not None:
            from headrace.spark.edges.sink import publish_window

            (closed,) = window.closed
            return publish_window(frame, self.edge, window=window.window, previous=closed)
        if self.sink is not None:
            key = self.query.key
            return self._publish(frame, self.sink, key, batch_id=batch_id, identity=identity)
        if self.query.stage is None:
            return -1
        from headrace.pipeline.declare.stages import give

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
        from headrace.spark.server import Window
        from headrace.spark.sink.publish import publish
        from headrace.spark.sink.sink import publisher_name

        publisher = publisher_name(identity.id, sink.target) + self._suffix
        window = Window(publisher, identity.run_id, batch_id)
        return publish(frame, sink, window, key)

    def _closed(self) -> tuple[int, ...]:
        """The last window its publisher closed; fences whoever published before this run."""
        if self.edge is None:
            return ()
        from headrace.spark.edges.sink import last_closed

        return (last_closed(self.edge),)

    def _record(self, frame: DataFrame, window: int) -> None:
        recording = self.recording
        if recording is None:
            return
        rows = frame.limit(RECORDED_ROWS_MAX).toJSON().collect()
        self.disk.make_folder(recording.folder)
        path = f"{recording.folder}/{format_window(window)}.jsonl"
        self.disk.write_atomic(path, "".join(f"{row}\n" for row in rows).encode())
        recording.windows_left -= 1
        if recording.windows_left <= 0:
            self.recording = None

    def store_positions(self) -> None:
        """Tell the broker how far this query has read its topics."""
        if self.running is not None and self.positions is not None:
            self.positions.store(self.running.ends())

    # while nothing happens

    def pass_windows(self, grid: WindowGrid, now_ms: int) -> None:
        """Let windows pass that have no rows, for those who read this query's edge."""
        if self.edge is None or self.in_batch is not None or now_ms - self._passed_ms < IDLE_MS:
            return

        self._passed_ms = now_ms
        pass_idle_windows(
            self.windows,
            grid,
            sinks=(self.edge,),
            edges=self.reads,
            now_ms=now_ms,
            reads_topics=self.reads_topics,
        )

    def end(self, grid: WindowGrid) -> None:
        """Nothing comes after this: for a run that reads what is there, then ends."""
        if self.edge is not None:
            end_streams(self.windows, grid, sinks=(self.edge,))

    def long_batch(self) -> int | None:
        """How far a batch has come that runs for long, as a number that grows with its tasks."""
        if self.in_batch is None or self.running is None:
            return None
        if self.monotonic() - self._entered < LONG_BATCH_SECONDS:
            return None
        return self.in_batch * 1_000_000 + self.running.tasks_finished()

    def is_caught_up(self) -> bool:
        """Whether nothing up to the window that it was let run to is left to read."""
        if self.until is None or self.in_batch is not None:
            return False
        from headrace.spark.edges.source import quiet_through
        from headrace.spark.server import connect

        server = connect(self.reads[0])
        through = server.run(quiet_through(server.remote, self.reads, self.windows.inputs()))
        if through is None or through < self.until:
            return False
        self.stopped_at = self.until
        return True

    def _read_until(self) -> int:
        """The window that the newest batch reads up to; -1 for none."""
        return min(self.windows.inputs().values(), default=-1)


def pass_idle_windows(
    log: WindowLog,
    grid: WindowGrid,
    *,
    sinks: Sequence[EdgeSink],
    edges: Sequence[Target],
    now_ms: int,
    reads_topics: bool,
) -> WindowId | None:
    """The window that a query has reached by doing nothing, to be reported like that of a batch;
    None when it has something to do, or reached it before. Blocking."""
    window = idle_window(log, grid, edges=edges, now_ms=now_ms, reads_topics=reads_topics)
    if window is None or not log.advance(window, lambda each: _close(sinks, each, last=False)):
        return None
    return window


def end_streams(log: WindowLog, grid: WindowGrid, *, sinks: Sequence[EdgeSink]) -> WindowId | None:
    """A query that ended for good tells the readers of its edges: they need not wait for more.

    Returns its last window; None when a batch of it is not finished, so that it has not ended.
    """
    window = grid.next(log.passed())
    done = log.advance(window, lambda each: _close(sinks, each, last=True))
    return window if done else None


def idle_window(
    log: WindowLog,
    grid: WindowGrid,
    *,
    edges: Sequence[Target],
    now_ms: int,
    reads_topics: bool,
) -> WindowId | None:
    """How far windows may pass if the query is idle now."""
    bounds = []
    if reads_topics or not edges:
        bounds.append(grid.previous(grid.window_at(now_ms)))
    if edges:
        server = connect(edges[0])
        through = server.run(quiet_through(server.remote, edges, log.inputs()))
        if through is None:
            return None
        bounds.append(WindowId(through))
    window = min(bounds)
    return window if window > log.passed() else None


def _close(sinks: Sequence[EdgeSink], window: WindowId, *, last: bool) -> None:
    for sink in sinks:
        before = last_closed(sink)
        if window > before:
            advance(sink, window=window, previous=before, last=last)
