"""Spans of batches and windows. Used only while traces are on.

Spark tells of a batch when it is over, so its span is made afterwards. It names the offsets it read
and the window it published: no context travels through Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.ids import WindowId
from headrace.observability import tracing
from headrace.pipeline.container.heartbeat import BatchReport, positions
from headrace.wire.umbilical.windows import NO_WINDOW, format_window

if TYPE_CHECKING:
    from headrace.pipeline.controller.application.application import Application

_NS = 1_000_000  # in a millisecond


def on_batch(operator: str, report: BatchReport, progress: Mapping[str, Any]) -> None:
    begin_ms = report.ended_ms - report.duration_ms
    span = tracing.begin_aside(
        "headrace.pipeline.batch",
        kind=tracing.Kind.CONSUMER,
        at_ns=begin_ms * _NS,
        operator=operator,
        batch=report.batch_id,
        run=report.run_id,
        window=format_window(report.window.window),
        rows_in=report.rows_in,
        rows_out=report.rows_out,
        lag=report.lag_messages,
        offsets=_offsets(progress),
    )
    span.end(at_ns=report.ended_ms * _NS)


def _offsets(progress: Mapping[str, Any]) -> list[str]:
    """`topic uid/partition:from-to` of what the batch read."""
    found = []
    for source in progress.get("sources", []):
        start, end = positions(source.get("startOffset")), positions(source.get("endOffset"))
        found += [f"{key}:{start.get(key, 0)}-{at}" for key, at in end.items()]
    return found


def on_committed(application: Application, before: WindowId, now_ms: int) -> None:
    """A window is committed when every operator has checkpointed it."""
    window = application.checkpoints.committed
    if window in (before, NO_WINDOW):
        return
    span = tracing.begin_aside(
        "headrace.pipeline.window",
        at_ns=application.grid.millis(window) * _NS,
        application=application.name,
        window=format_window(window),
        before=format_window(before),
    )
    span.end(at_ns=now_ms * _NS)
