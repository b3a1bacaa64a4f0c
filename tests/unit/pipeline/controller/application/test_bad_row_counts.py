"""Rows that were set aside, counted per operator over windows and lives."""

from __future__ import annotations

from headrace.pipeline.controller.application.statistics import OperatorStatistics
from headrace.wire.umbilical import messages as m


def test_bad_rows_of_all_ports_are_added_up_once_per_window() -> None:
    statistics = OperatorStatistics()
    first = m.OperatorStats(1, metrics={"bad_rows": 2, "small.bad_rows": 3, "rows": 9})
    assert statistics.fold(first, 1)
    assert not statistics.fold(first, 1)  # a heartbeat that arrived twice
    assert statistics.fold(m.OperatorStats(2, metrics={"bad_rows": 1}), 2)
    assert statistics.rows_bad == 6
    again = OperatorStatistics.from_totals(statistics.totals())
    assert again.rows_bad == 6
