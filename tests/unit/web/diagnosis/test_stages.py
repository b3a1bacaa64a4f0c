"""Which stage limits a pipeline."""

from __future__ import annotations

from headrace.web.diagnosis.stages import Stage, Trend, bottleneck, pressure


def stage(
    name: str, container: str, busy: float, lag: int = 0, *, terminal: bool = True, **phases: int
) -> Stage:
    trend = Trend(busy=busy, lag_rows=lag, batch_ms=round(1_000 * busy))
    return Stage(
        id=1,
        operator=name,
        container=container,
        source=False,
        first=True,
        terminal=terminal,
        trend=trend,
        phases=phases,
    )


def test_a_busy_stage_that_nothing_waits_for_limits_nobody() -> None:
    found = bottleneck([stage("fast", "a", 0.99), stage("slow", "b", 0.7, 5)])
    assert found is not None
    assert (found.operator, found.container) == ("slow", "b")


def test_without_lag_the_busiest_is_named_and_idle_ones_are_not() -> None:
    found = bottleneck([stage("one", "a", 0.9), stage("two", "b", 0.7)])
    assert found is not None
    assert found.operator == "one"
    assert bottleneck([stage("one", "a", 0.3)]) is None
    assert bottleneck([]) is None


def test_of_fused_operators_the_last_is_named_with_where_the_time_goes() -> None:
    stages = [
        stage("orders", "a", 0.9, 5, terminal=False, process_ms=100, commit_ms=700),
        stage("revenue", "a", 0.9),
    ]
    found = bottleneck(stages)
    assert found is not None
    assert (found.operator, found.phase, found.batch_ms) == ("revenue", "commit_ms", 900)
    assert "90% of the time (0.9 s each, mostly committing the checkpoint)" in found.reason


def test_colours() -> None:
    assert [pressure(one) for one in (0.0, 0.59, 0.6, 0.85, 1.0)] == [
        "low",
        "low",
        "some",
        "high",
        "high",
    ]
