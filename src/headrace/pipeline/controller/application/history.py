"""The last windows of an operator, as points of a curve. Pure."""

from __future__ import annotations

from typing import NamedTuple

from headrace.pipeline.controller.application.statistics import (
    BATCH_DURATION_MS,
    ROWS_BAD,
    ROWS_LATE,
    STATE_BYTES,
    STATE_ROWS,
    WATERMARK_MS,
)
from headrace.wire.umbilical import messages as m


class WindowPoint(NamedTuple):
    """One window. A tuple, because many are kept; what is not known is 0."""

    at_ms: int  # when the controller heard of it
    window: int
    duration_ms: int  # of the batch
    checkpoint_ms: int
    rows_in: int
    rows_out: int
    lag: int  # rows that waited when the batch was planned
    rows_late: int
    rows_bad: int
    state_rows: int
    state_bytes: int
    watermark_ms: int


def window_point(stats: m.OperatorStats, now_ms: int) -> WindowPoint:
    metrics = stats.metrics or {}

    def number(name: str) -> int:
        value = metrics.get(name, 0)
        return int(value) if isinstance(value, int | float) else 0

    checkpoint = stats.checkpoint_stats
    return WindowPoint(
        at_ms=now_ms,
        window=stats.window_id,
        duration_ms=number(BATCH_DURATION_MS),
        checkpoint_ms=checkpoint.checkpoint_time if checkpoint is not None else 0,
        rows_in=sum(port.tuple_count for port in stats.input_ports),
        rows_out=sum(port.tuple_count for port in stats.output_ports),
        lag=sum(port.queue_size for port in (*stats.input_ports, *stats.output_ports)),
        rows_late=number(ROWS_LATE),
        rows_bad=sum(number(name) for name in metrics if name.rpartition(".")[2] == ROWS_BAD),
        state_rows=number(STATE_ROWS),
        state_bytes=number(STATE_BYTES),
        watermark_ms=number(WATERMARK_MS),
    )
