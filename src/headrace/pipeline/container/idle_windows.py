"""Windows pass without a batch while a query has nothing to do.

A batch costs Spark a tenth of a second and more, with or without rows, but readers of what a query
publishes wait for its windows. So whoever runs the query closes them, by the same compare-and-set
that a batch does: up to the window that all edges it reads have closed, if there is nothing in them
to read, and up to the window before now if it reads topics. `WindowLog.advance` sees to it that no
batch is under way meanwhile, and that the next one comes after them.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.ids import WindowId
from headrace.pipeline.container.window_log import WindowLog
from headrace.pipeline.windows import WindowGrid
from headrace.spark.edges.edge_following import quiet_through
from headrace.spark.edges.sink import EdgeSink, advance, last_closed
from headrace.spark.options import Target
from headrace.spark.server import connect


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
