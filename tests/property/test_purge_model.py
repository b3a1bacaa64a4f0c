"""Purging edges behind random graphs: never what an operator may still have to read again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.controller.application.model import Checkpoints
from headrace.pipeline.plan.edges import purge_window
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid
from tests.property.test_pipeline_model import plans

GRID = WindowGrid(1_700_000_000_000, 500)
REPORTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(0, 5_000)))


@settings(max_examples=150)
@given(plans(), REPORTS, st.sampled_from([0, 1_000, 10_000]), st.integers(0, 2))
def test_a_purge_never_passes_a_recovery_point(
    plan: object, reports: list[tuple[int, int, int]], retention_ms: int, restarts: int
) -> None:
    checkpoints = Checkpoints(plan)  # type: ignore[arg-type]  # the strategy's own plans
    operators = checkpoints._plan.operators
    keepers = [one.id for one in operators if one.query]
    now_ms = GRID.start_ms
    purged = committed = NO_WINDOW
    for number, (which, ordinal, passed_ms) in enumerate(reports):
        now_ms += passed_ms
        window = GRID.window_at(GRID.start_ms + ordinal * GRID.width_ms)
        checkpoints.on_checkpoint(keepers[which % len(keepers)], window)
        checkpoints.update()
        if restarts and number % 7 == restarts:  # a controller that knows the committed window only
            checkpoints = Checkpoints(checkpoints._plan, checkpoints.committed)
        assert checkpoints.committed >= committed
        committed = checkpoints.committed
        found = purge_window(GRID, committed, now_ms=now_ms, rollback_retention_ms=retention_ms)
        assert found >= purged, "what may go may go for good"
        purged = found
        if purged == NO_WINDOW:
            continue
        for operator in operators:
            recovery = checkpoints.recovery(operator.id)
            assert purged < recovery
            below = checkpoints._plan.downstream[operator.id]
            assert all(recovery <= checkpoints.recovery(one) for one in below)
        end_ms = GRID.millis(GRID.next(purged))
        assert end_ms <= now_ms - retention_ms, "it is kept for who wants to roll back"
