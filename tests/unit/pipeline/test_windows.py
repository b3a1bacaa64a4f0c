"""Window ids by example; the laws are in tests/property/test_pipeline_model.py."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidArgumentError
from headrace.ids import WindowId
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid, format_window, parse_window

GRID = WindowGrid(start_ms=1_700_000_000_000, width_ms=500)


def test_the_first_window_is_the_start_second_and_count_zero() -> None:
    assert GRID.window_at(GRID.start_ms) == 1_700_000_000 << 32
    assert GRID.window_at(GRID.start_ms + 499) == 1_700_000_000 << 32
    assert GRID.window_at(GRID.start_ms + 500) == 1_700_000_000 << 32 | 1


def test_the_base_moves_on_after_16000_windows() -> None:
    last = GRID.window_at(GRID.start_ms + 15_999 * 500)
    assert last == 1_700_000_000 << 32 | 15_999
    assert GRID.next(last) == 1_700_008_000 << 32
    assert GRID.previous(GRID.next(last)) == last


def test_no_window_comes_before_the_first() -> None:
    assert GRID.next(NO_WINDOW) == GRID.window_at(GRID.start_ms)
    assert GRID.previous(GRID.window_at(GRID.start_ms)) == NO_WINDOW
    assert format_window(NO_WINDOW) == "f" * 16
    assert parse_window("f" * 16) == NO_WINDOW


def test_a_clock_behind_the_start_gets_the_first_window() -> None:
    assert GRID.window_at(GRID.start_ms - 10_000) == GRID.window_at(GRID.start_ms)


@pytest.mark.parametrize("window", [0, 1_700_000_001 << 32, 1_700_000_000 << 32 | 16_000, 5, -7])
def test_ids_of_another_grid_are_refused(window: int) -> None:
    with pytest.raises(InvalidArgumentError):
        GRID.ordinal(WindowId(window))


@pytest.mark.parametrize("text", ["", "xyz", "1" * 17, "-1"])
def test_text_that_is_no_id(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_window(text)


@pytest.mark.parametrize(("start_ms", "width_ms"), [(1_500, 500), (1_000, 0), (-1_000, 500)])
def test_no_such_grid(start_ms: int, width_ms: int) -> None:
    with pytest.raises(InvalidArgumentError):
        WindowGrid(start_ms, width_ms)
