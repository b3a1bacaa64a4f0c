"""What a heartbeat says, from a progress record as Spark 4.3 writes it."""

from __future__ import annotations

import json

from headrace.ids import WindowId
from headrace.pipeline.container.heartbeat import Place, operator_stats, read_progress
from headrace.pipeline.container.window_log import BatchWindow
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

GRID = WindowGrid(1_700_000_000_000, 500)


def window(ordinal: int) -> WindowId:
    return GRID.window_at(GRID.start_ms + ordinal * GRID.width_ms)


def offset(*positions: int) -> str:
    return json.dumps({"v": 1, "c": "", "p": {f"9/{i}": [0, at] for i, at in enumerate(positions)}})


PROGRESS = {
    "runId": "4c1f9f0e-3d0c-4e0a-bd5e-6a1f0a1b2c3d",
    "timestamp": "2023-11-14T22:13:25.000Z",
    "batchId": 7,
    "batchDuration": 800,
    "numInputRows": 120,
    "inputRowsPerSecond": 60.0,
    "processedRowsPerSecond": 150.0,
    "durationMs": {"addBatch": 600, "latestOffset": 40, "walCommit": 20, "commitOffsets": 30},
    "eventTime": {"max": "2023-11-14T22:13:20.000Z", "watermark": "2023-11-14T22:11:20.000Z"},
    "stateOperators": [
        {
            "commitTimeMs": 11,
            "numRowsTotal": 5,
            "numRowsDroppedByWatermark": 2,
            "memoryUsedBytes": 4096,
        }
    ],
    "observedMetrics": {
        "orders.output": {"rows": 110, "bad_rows": 1},
        "valid.ok": {"rows": 90, "units": 2.5},
    },
    "sources": [{"endOffset": offset(60, 60), "latestOffset": offset(90, 61)}],
}


def test_a_progress_record_becomes_a_report() -> None:
    report = read_progress(PROGRESS, BatchWindow(window(12), window(9), replay=False), 6)
    assert (report.batch_id, report.rows_in, report.rows_out) == (7, 120, 6)
    assert report.lag_messages == 31
    assert report.ended_ms == 1_700_000_005_800
    assert report.checkpoint_ms == 61
    assert report.observed["orders.output"] == {"rows": 110, "bad_rows": 1}
    assert report.state == {"state_rows": 5, "state_bytes": 4096, "rows_late": 2}
    assert report.watermark_ms == 1_699_999_880_000
    assert report.phases == {
        "ask_source_ms": 40,
        "process_ms": 600,
        "write_ahead_ms": 20,
        "commit_ms": 30,
        "rows_in_per_second": 60.0,
        "rows_processed_per_second": 150.0,
    }


def test_rows_stand_where_they_enter_and_where_they_leave() -> None:
    report = read_progress(PROGRESS, BatchWindow(window(12), window(9), replay=False), 6)
    first = operator_stats(report, GRID, Place("orders", topic=True, first=True))
    second = operator_stats(report, GRID, Place("returns", topic=True))
    middle = operator_stats(report, GRID, Place("valid", ("orders",), ("ok", "late")))
    last = operator_stats(report, GRID, Place("sums", ("enriched",), last=True, stateful=True))
    assert [stats.output_ports[0].tuple_count for stats in (first, middle, last)] == [110, 90, 6]
    assert first.output_ports[0].queue_size == 31
    assert second.output_ports[0].queue_size == 0, "a query has one lag"
    assert first.metrics["bad_rows"] == 1
    assert "rows_late" not in first.metrics
    assert middle.metrics["ok.units"] == 2.5
    assert [port.tuple_count for port in middle.output_ports] == [90, 0]
    assert last.metrics["rows_published"] == 6
    assert last.metrics["rows_late"] == 2
    assert last.metrics["state_bytes"] == 4096
    assert last.metrics["watermark_ms"] == report.watermark_ms
    assert (first.metrics["process_ms"], "process_ms" in last.metrics) == (600, False)
    assert [port.id for port in last.input_ports] == ["enriched"]
    for stats in (first, middle, last):
        assert stats.window_id == window(12)
        assert stats.checkpoint is not None
        assert stats.checkpoint.window_id == window(12)
        assert stats.window_count == 3
        assert stats.batch_id == 7


def test_a_source_that_is_not_ours_and_a_first_window_do_no_harm() -> None:
    bare = {**PROGRESS, "sources": [{"endOffset": "7", "latestOffset": None}], "stateOperators": []}
    report = read_progress(bare, BatchWindow(window(3), NO_WINDOW, replay=True), 0)
    assert report.lag_messages == 0
    assert operator_stats(report, GRID, Place("a", topic=True, last=True)).window_count == 1


def test_a_batch_without_a_watermark_or_time_says_nothing_of_them() -> None:
    bare = {
        **PROGRESS,
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "processedRowsPerSecond": float("inf"),
        "inputRowsPerSecond": float("nan"),
    }
    report = read_progress(bare, BatchWindow(window(3), NO_WINDOW, replay=False), 0)
    assert report.watermark_ms is None
    assert not {"rows_in_per_second", "rows_processed_per_second"} & set(report.phases)
    assert "watermark_ms" not in operator_stats(report, GRID, Place("a", topic=True)).metrics
