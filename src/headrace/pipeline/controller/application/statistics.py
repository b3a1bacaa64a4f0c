"""What heartbeats say about one operator, folded into a few numbers.

A heartbeat may arrive twice and a restarted query repeats its last batch, so a window is counted
once: rows of a window at or below the last counted one are not added again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.ids import WindowId
from headrace.pipeline.controller.views import WindowPoint
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.messages import Json, OperatorStats, PortStats, Value
from headrace.wire.umbilical.windows import NO_WINDOW

ROWS_LATE = "rows_late"  # metric: rows of this window that came after their watermark
ROWS_BAD = "bad_rows"  # metric, with the port before it: rows of this window that were set aside
STATE_ROWS = "state_rows"  # metric: rows that a stateful operator keeps
STATE_BYTES = "state_bytes"  # metric: memory they take
WATERMARK_MS = "watermark_ms"  # metric: event time behind which rows are late
BATCH_DURATION_MS = "batch_duration_ms"  # metric: how long the window's batch took
TASKS_FINISHED = "tasks_finished"  # metric of a query in the middle of a batch: tasks done in it
RATE_MS = 10_000  # THROUGHPUT_CALCULATION_INTERVAL
SAMPLES_MAX = 1_000  # THROUGHPUT_CALCULATION_MAX_SAMPLES
_TOTALS = ("window", "rows_in", "rows_out", "bytes_in", "rows_late", "rows_bad", "cpu_ns")


@dataclass(slots=True)
class OperatorStatistics:
    window: WindowId = NO_WINDOW
    batch_id: int | None = None
    run_id: str = ""
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    lag: int = 0
    rows_late: int = 0
    rows_bad: int = 0
    cpu_ns: int = 0
    end_window_ms: int = 0
    checkpoint_ms: int = 0
    metrics: dict[str, Value] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    _samples: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def fold(self, stats: OperatorStats, now_ms: int) -> bool:
        """Whether the window is a new one."""
        if stats.window_id <= self.window:
            return False
        rows_in, rows_out = _rows(stats.input_ports), _rows(stats.output_ports)
        self.window = WindowId(stats.window_id)
        self.batch_id, self.run_id = stats.batch_id, stats.run_id
        self.rows_in += rows_in
        self.rows_out += rows_out
        self.bytes_in += sum(port.buffer_server_bytes for port in stats.input_ports)
        # An input operator has no input port: what waits for it is reported where its rows leave.
        self.lag = sum(p.queue_size for p in (*stats.input_ports, *stats.output_ports))
        self.cpu_ns += stats.cpu_time_used
        ends = [port.end_window_timestamp for port in (*stats.input_ports, *stats.output_ports)]
        self.end_window_ms = max(ends, default=self.end_window_ms)
        if stats.checkpoint_stats is not None:
            self.checkpoint_ms = stats.checkpoint_stats.checkpoint_time
        if stats.metrics:
            self.metrics = dict(stats.metrics)
            late = stats.metrics.get(ROWS_LATE, 0)
            self.rows_late += late if isinstance(late, int) else 0
            self.rows_bad += sum(
                value
                for name, value in stats.metrics.items()
                if name.rpartition(".")[2] == ROWS_BAD and isinstance(value, int)
            )
        for port in (*stats.input_ports, *stats.output_ports):
            self.ports[port.id] = self.ports.get(port.id, 0) + port.tuple_count
        self._samples.append((now_ms, rows_in, rows_out))
        return True

    def totals(self) -> dict[str, Any]:
        """What a later life of the controller goes on counting from."""
        return {**{name: getattr(self, name) for name in _TOTALS}, "ports": dict(self.ports)}

    @classmethod
    def from_totals(cls, totals: Mapping[str, Any]) -> OperatorStatistics:
        given = {name: totals[name] for name in (*_TOTALS, "ports") if name in totals}
        return cls(**given)

    def rewind(self, window: WindowId) -> None:
        """Windows after this one will come again, and count again."""
        self.window = min(self.window, window)

    def rates(self, now_ms: int) -> tuple[float, float]:
        """Rows in and out per second, over the last ten seconds."""
        recent = [one for one in self._samples if now_ms - one[0] < RATE_MS]
        if not recent:
            return 0.0, 0.0
        seconds = RATE_MS / 1000
        return sum(one[1] for one in recent) / seconds, sum(one[2] for one in recent) / seconds


def _rows(ports: tuple[PortStats, ...]) -> int:
    return sum(port.tuple_count for port in ports)


def plain(value: Value) -> Any:
    if isinstance(value, Json):
        return value.text
    return value.hex() if isinstance(value, bytes) else value


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
