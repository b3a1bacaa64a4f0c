"""What a heartbeat says: of each query, out of Spark's progress records, and of the container.

No query knows these by itself:

* Rows at an input port are the rows at the output port it reads, in the same window; the
  deployment says which that is. Rows from other containers are counted where they enter.
* Processor time is known of the whole container: it is shared evenly by the records that its
  operators report, because Spark does not tell fused operators apart.
* A checkpoint names the streaming windows that have passed in the application window and in the
  checkpoint interval it falls into.

`stack_traces` is what the threads of a container are doing, in Python and in the JVM.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.ids import WindowId
from headrace.pipeline.container.window_log import BatchWindow
from headrace.pipeline.controller.application.statistics import (
    ROWS_LATE,
    STATE_BYTES,
    STATE_ROWS,
    WATERMARK_MS,
)
from headrace.pipeline.declare.declarations import OUTPUT_PORT
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.messages import (
    Checkpoint,
    CheckpointStats,
    OperatorStats,
    PortStats,
    Value,
)
from headrace.wire.umbilical.windows import WindowGrid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Spark's names of the parts of a batch's time, and ours.
_PHASES = {
    "latestOffset": "ask_source_ms",
    "queryPlanning": "plan_ms",
    "addBatch": "process_ms",
    "walCommit": "write_ahead_ms",
    "commitOffsets": "commit_ms",
}


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A micro-batch that committed."""

    batch_id: int
    run_id: str
    window: BatchWindow
    rows_in: int
    rows_out: int
    lag_messages: int
    duration_ms: int
    ended_ms: int
    checkpoint_ms: int
    observed: Mapping[str, Mapping[str, Value]]  # by `operator.port`
    state: Mapping[str, Value]  # rows that Spark keeps, and those that came too late to count
    watermark_ms: int | None = None  # event time; None where nothing has one yet
    phases: Mapping[str, Value] = field(default_factory=dict)  # where the batch's time went


def read_progress(progress: Mapping[str, Any], window: BatchWindow, rows_out: int) -> BatchReport:
    durations = progress.get("durationMs", {})
    sources = progress.get("sources", [])
    started_ms = int(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)
    duration_ms = int(progress.get("batchDuration", 0))
    state_ms = sum(int(each.get("commitTimeMs", 0)) for each in progress.get("stateOperators", []))
    return BatchReport(
        batch_id=int(progress["batchId"]),
        run_id=str(progress["runId"]),
        window=window,
        rows_in=int(progress.get("numInputRows") or 0),
        rows_out=rows_out,
        lag_messages=sum(_lag(source) for source in sources),
        duration_ms=duration_ms,
        ended_ms=started_ms + duration_ms,
        checkpoint_ms=durations.get("walCommit", 0) + durations.get("commitOffsets", 0) + state_ms,
        observed=_observed(progress),
        state=_state(progress),
        watermark_ms=_watermark_ms(progress),
        phases=_phases(progress),
    )


def with_bad_rows(report: BatchReport, bad: Mapping[str, int]) -> BatchReport:
    """Records of the batch that were found to make it fail, by operator."""
    found = {
        f"{operator}.{OUTPUT_PORT}.bad": {"bad_rows": count} for operator, count in bad.items()
    }
    return replace(report, observed={**report.observed, **found}) if bad else report


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator stands in its query: rows are known where they enter it, where they leave
    it, and at every port that somebody observes."""

    operator: str
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = (OUTPUT_PORT,)
    topic: bool = False  # rows enter here
    first: bool = False  # of the query; a query has one lag, whatever it reads
    last: bool = False  # rows leave here
    stateful: bool = False  # late rows are dropped here


def operator_stats(report: BatchReport, grid: WindowGrid, place: Place) -> OperatorStats:
    """The record of one operator for one window."""
    window = report.window
    inputs = tuple(
        PortStats(id=port, end_window_timestamp=report.ended_ms) for port in place.inputs
    )
    rows = report.rows_in if place.topic else report.rows_out if place.last else 0
    metrics: dict[str, Value] = {"batch_duration_ms": report.duration_ms}
    if place.topic:
        metrics["rows"] = rows
    if report.watermark_ms is not None:
        metrics[WATERMARK_MS] = report.watermark_ms
    if place.first:
        metrics["lag_messages"] = report.lag_messages
        metrics |= report.phases
    if place.last:
        metrics["rows_published"] = report.rows_out
    if place.stateful:
        metrics |= report.state
    outputs = []
    for index, port in enumerate(place.outputs or (OUTPUT_PORT,)):
        seen = {
            **report.observed.get(f"{place.operator}.{port}", {}),
            **report.observed.get(f"{place.operator}.{port}.bad", {}),
        }
        prefix = "" if port == OUTPUT_PORT else f"{port}."
        metrics |= {f"{prefix}{name}": value for name, value in seen.items()}
        count = seen.get("rows", rows)
        outputs.append(
            PortStats(
                id=port,
                tuple_count=count if isinstance(count, int) else rows,
                end_window_timestamp=report.ended_ms,
                queue_size=report.lag_messages if place.first and index == 0 else 0,
            )
        )
    return OperatorStats(
        window_id=window.window,
        checkpoint=Checkpoint(window_id=window.complete),
        input_ports=inputs,
        output_ports=tuple(outputs),
        checkpoint_stats=CheckpointStats(
            checkpoint_start_time=report.ended_ms - report.checkpoint_ms,
            checkpoint_time=report.checkpoint_ms,
        ),
        metrics=metrics,
        window_count=_windows_passed(grid, window.previous, window.window),
        batch_id=report.batch_id,
        run_id=report.run_id,
    )


def _windows_passed(grid: WindowGrid, previous: WindowId, window: WindowId) -> int:
    """How many windows the batch spans: those in between had no rows."""
    return max(1, grid.ordinal(window) - grid.ordinal(previous)) if previous >= 0 else 1


def _lag(source: Mapping[str, Any]) -> int:
    """Messages that were there and not read when the batch was planned."""
    end, latest = positions(source.get("endOffset")), positions(source.get("latestOffset"))
    return sum(max(0, at - end.get(key, at)) for key, at in latest.items())


def positions(offset: Any) -> dict[str, int]:
    """Next offsets by partition out of the connector's offset; {} for anything else."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, Mapping) or not isinstance(offset.get("p"), Mapping):
        return {}
    return {str(key): int(at[1]) for key, at in offset["p"].items()}


def _observed(progress: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
    return {
        str(name): {
            key: value for key, value in row.items() if isinstance(value, bool | int | float | str)
        }
        for name, row in (progress.get("observedMetrics") or {}).items()
    }


def _state(progress: Mapping[str, Any]) -> dict[str, Value]:
    states = progress.get("stateOperators") or []
    if not states:
        return {}
    return {
        STATE_ROWS: sum(int(each.get("numRowsTotal", 0)) for each in states),
        STATE_BYTES: sum(int(each.get("memoryUsedBytes", 0)) for each in states),
        ROWS_LATE: sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in states),
    }


def _watermark_ms(progress: Mapping[str, Any]) -> int | None:
    """None before the first row: Spark then says 1970."""
    text = (progress.get("eventTime") or {}).get("watermark")
    if not isinstance(text, str):
        return None
    found = int(datetime.fromisoformat(text).timestamp() * 1000)
    return found if found > 0 else None


def _phases(progress: Mapping[str, Any]) -> dict[str, Value]:
    durations = progress.get("durationMs") or {}
    found: dict[str, Value] = {
        ours: int(durations[theirs]) for theirs, ours in _PHASES.items() if theirs in durations
    }
    for theirs, ours in (
        ("inputRowsPerSecond", "rows_in_per_second"),
        ("processedRowsPerSecond", "rows_processed_per_second"),
    ):
        rate = progress.get(theirs)
        # NaN and infinity are not JSON; Spark gives them for a batch that took no time.
        if isinstance(rate, int | float) and math.isfinite(rate):
            found[ours] = float(rate)
    return found


_Counts = dict[tuple[int, str, int], int]  # rows by (operator, output port, window)


@dataclass(slots=True)
class HeartbeatFigures:
    """The figures of a container's heartbeats that need more than one query to be known."""

    grid: WindowGrid
    checkpoint_windows: int = 60  # CHECKPOINT_WINDOW_COUNT of the application
    _operators: dict[int, m.OperatorDeployInfo] = field(default_factory=dict)
    _cpu_ns: int = 0  # up to which it was reported

    @classmethod
    def from_context(cls, context: m.StreamingContainerContext) -> HeartbeatFigures:
        def number(name: str) -> int:
            value = attributes.look_up(name, context.attributes, defaults=attributes.DAG)
            return value if isinstance(value, int) and value > 0 else 1

        grid = WindowGrid(context.start_window_millis, number("STREAMING_WINDOW_SIZE_MILLIS"))
        return cls(grid, number("CHECKPOINT_WINDOW_COUNT"))

    def on_deploy(self, infos: Iterable[m.OperatorDeployInfo]) -> None:
        self._operators |= {info.id: info for info in infos}

    def on_undeploy(self, operators: Iterable[int]) -> None:
        for id_ in operators:
            self._operators.pop(id_, None)

    def complete(
        self, reports: Sequence[m.OperatorHeartbeat], cpu_ns: int
    ) -> tuple[m.OperatorHeartbeat, ...]:
        """`cpu_ns` is what the container has used since it began."""
        records = sum(len(report.window_stats) for report in reports)
        share = 0
        if records:  # what passes without one is in the next
            share = max(0, cpu_ns - self._cpu_ns) // records
            self._cpu_ns = cpu_ns
        rows: _Counts = {
            (report.node_id, port.id, stats.window_id): port.tuple_count
            for report in reports
            for stats in report.window_stats
            for port in stats.output_ports
        }
        return tuple(
            replace(
                report,
                window_stats=tuple(
                    self._complete(report.node_id, stats, rows, share)
                    for stats in report.window_stats
                ),
            )
            for report in reports
        )

    def _complete(
        self, operator: int, stats: m.OperatorStats, rows: _Counts, share: int
    ) -> m.OperatorStats:
        info = self._operators.get(operator)
        ports = stats.input_ports
        if info is not None:
            ports = tuple(_with_rows(port, info, stats.window_id, rows) for port in ports)
        return replace(
            stats,
            input_ports=ports,
            cpu_time_used=stats.cpu_time_used or share,
            checkpoint=self._checkpoint(stats.checkpoint, info),
        )

    def _checkpoint(
        self, checkpoint: m.Checkpoint | None, info: m.OperatorDeployInfo | None
    ) -> m.Checkpoint | None:
        if checkpoint is None or checkpoint.window_id < 0:
            return checkpoint
        own = info.context_attributes if info is not None else {}
        value = attributes.look_up("APPLICATION_WINDOW_COUNT", own, defaults=attributes.OPERATOR)
        windows = value if isinstance(value, int) and value > 0 else 1
        passed = self.grid.ordinal(WindowId(checkpoint.window_id)) + 1
        return replace(
            checkpoint,
            application_window_count=passed % windows,
            checkpoint_window_count=passed % self.checkpoint_windows,
        )


def _with_rows(
    port: m.PortStats, info: m.OperatorDeployInfo, window: int, rows: _Counts
) -> m.PortStats:
    if port.tuple_count:
        return port
    sources = [one for one in info.inputs if one.port_name == port.id]
    found = sum(rows.get((one.source_node_id, one.source_port_name, window), 0) for one in sources)
    return replace(port, tuple_count=found)


def stack_traces(spark: SparkSession | None) -> str:
    """As JSON."""
    python = [
        {"name": str(identity), "stack": traceback.format_stack(frame)}
        for identity, frame in sys._current_frames().items()
    ]
    jvm: list[dict[str, Any]] = []
    if spark is not None:
        from headrace.spark.session.queries import thread_dump

        jvm = thread_dump(spark)
    return json.dumps({"python": python, "jvm": jvm})
