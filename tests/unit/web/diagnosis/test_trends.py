"""Rates, ages and times to catch up, from made-up windows."""

from __future__ import annotations

import pytest

from headrace.pipeline.controller.views import WindowPoint
from headrace.web.diagnosis.stages import trend

NOW = 1_700_000_100_000


def points(
    lags: list[int], rows: int = 100, *, step_ms: int = 1_000, duration_ms: int = 500
) -> list[WindowPoint]:
    """One window each second up to NOW."""
    first = NOW - (len(lags) - 1) * step_ms
    return [
        WindowPoint(
            at_ms=first + index * step_ms,
            window=index,
            duration_ms=duration_ms,
            checkpoint_ms=10,
            rows_in=0,
            rows_out=rows,
            lag=lag,
            rows_late=0,
            rows_bad=0,
            state_rows=0,
            state_bytes=0,
            watermark_ms=0,
        )
        for index, lag in enumerate(lags)
    ]


def test_nothing_is_known_before_the_first_window() -> None:
    found = trend([], NOW)
    assert (found.catch_up, found.lag_seconds, found.silent_ms) == ("unknown", None, None)


def test_a_pipeline_without_lag_is_caught_up() -> None:
    found = trend(points([0] * 10), NOW)
    assert (found.catch_up, found.catch_up_seconds, found.lag_seconds) == ("caught up", 0.0, 0.0)
    assert found.rows_per_second == pytest.approx(100)
    assert found.arrival_per_second == pytest.approx(100)
    assert found.busy == pytest.approx(0.5, abs=0.05)


def test_a_lag_that_grows_is_never_caught_up() -> None:
    found = trend(points([50 * one for one in range(1, 11)]), NOW)
    assert (found.catch_up, found.catch_up_seconds) == ("never", None)
    assert found.arrival_per_second == pytest.approx(150)
    # 150 arrive each second and 500 wait.
    assert found.lag_seconds == pytest.approx(500 / 150, rel=0.01)


def test_a_lag_that_stands_is_never_caught_up() -> None:
    assert trend(points([300] * 10), NOW).catch_up == "never"


def test_a_lag_that_falls_tells_when_it_is_over() -> None:
    found = trend(points([1_000 - 50 * one for one in range(10)]), NOW)
    assert found.catch_up == "catching up"
    assert found.catch_up_seconds == pytest.approx(550 / 50)
    assert found.arrival_per_second == pytest.approx(50)


def test_the_oldest_row_may_be_older_than_what_is_remembered() -> None:
    found = trend(points([100_000] * 5), NOW)
    assert found.arrival_per_second == pytest.approx(100)
    # All that wait came at 100 a second, as far as anybody knows.
    assert found.lag_seconds == pytest.approx(1_000, rel=0.01)


def test_waiting_rows_grow_older_while_no_batch_ends() -> None:
    stuck = points([0, 50, 100, 150])
    before, after = trend(stuck, NOW), trend(stuck, NOW + 30_000)
    assert before.lag_seconds is not None
    assert after.lag_seconds is not None
    assert after.lag_seconds == pytest.approx(before.lag_seconds + 30, rel=0.2)
    assert after.silent_ms == 30_000
    assert after.rows_per_second < before.rows_per_second


def test_two_points_make_no_slope() -> None:
    assert trend(points([10, 20]), NOW).catch_up == "unknown"


def test_batches_without_a_pause_are_full_time() -> None:
    assert trend(points([0] * 10, duration_ms=1_000), NOW).busy == pytest.approx(1.0)
