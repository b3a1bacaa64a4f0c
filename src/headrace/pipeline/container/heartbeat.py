"""What a heartbeat says that no query knows by itself.

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
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.ids import WindowId
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import WindowGrid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
            ports = tuple(_count(port, info, stats.window_id, rows) for port in ports)
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


def _count(
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
