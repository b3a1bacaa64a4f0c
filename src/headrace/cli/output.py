"""Results on stdout as a table for people or JSON for programs; messages on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

NAMES = ("id", "name", "container")


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, default=str))


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    listed = [{name: row.get(name) for name in columns} for row in rows]
    if as_json:
        print_json(listed)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        numeric = bool(listed) and all(isinstance(row[name], int | float) for row in listed)
        table.add_column(
            name.replace("_", " "),
            justify="right" if numeric else "left",
            # Not cut: a name that cannot be read cannot be typed into the next command.
            overflow="fold" if name in NAMES else "ellipsis",
        )
    for row in listed:
        table.add_row(*(format_value(row[name]) for name in columns))
    Console().print(table)


def print_fields(values: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(dict(values))
        return
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        print(f"{name.replace('_', ' '):<{width}}  {format_value(value)}")


def format_value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


@contextmanager
def byte_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal; the function says how many bytes more are done."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


@contextmanager
def count_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that counts, where there is a terminal; the function says how many more are done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


def note(text: str) -> None:
    """A message for the person at the terminal; never part of the result."""
    print(text, file=sys.stderr)
