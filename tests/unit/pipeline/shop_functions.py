"""Functions that the tests of plans name; none of them is ever called."""

from __future__ import annotations

from typing import Any


def split(orders: Any, *, minimum: int = 1, name: str = "x") -> Any: ...


def totals(rows: Any, prices: Any) -> Any: ...


def store(rows: Any, batch: Any, *, folder: str = "/tmp") -> None: ...


def on_commit(window_id: int) -> None: ...


NOT_A_FUNCTION = 3
