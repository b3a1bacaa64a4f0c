"""Rows on the standard output, for looking at: a window that is run again is printed again."""

from __future__ import annotations

from pyspark.sql import DataFrame


def print_window(frame: DataFrame, *, rows_max: int, window: str, replay: bool) -> int:
    """How many rows were printed."""
    rows = frame.limit(rows_max + 1).collect()
    print(f"window {window}{' (again)' if replay else ''}", flush=True)
    for row in rows[:rows_max]:
        print(f"  {row.asDict(recursive=True)}", flush=True)
    if len(rows) > rows_max:
        print(f"  ... and more: {rows_max} are shown", flush=True)
    return min(len(rows), rows_max)
