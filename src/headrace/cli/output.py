"""Results on stdout as a table for people or JSON for programs; messages on stderr.

A table fits the terminal: columns of text are wrapped, those of names last, since people copy them
into the next command. Into a pipe or a file it goes in one line a row.

Numbers as people read them. What a number is follows from the name of its field, which is the
same in `--json`: there it stays a number.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import zip_longest
from typing import Any

from headrace.observability.escaping import LINES, escape, note

NEVER = 0xFFFF_FFFF_FFFF_FFFF  # Iggy's number for "never" and "unlimited"

_SIZES = ("KiB", "MiB", "GiB", "TiB", "PiB")
_MOMENTS = ("_at_us", "_at_ms", "start_time_us", "timestamp_us", "timestamp_ms")
_UNITS = {"_us": 1e-6, "_ms": 1e-3, "_seconds": 1.0}
_STEPS = (("d", 86400), ("h", 3600), ("min", 60))
_EMPTY = {"expiry_seconds": "never", "expires_at_us": "never", "max_bytes": "unlimited"}
"""What is said of a field whose value is null."""


_NAMED = {
    "lastHeartbeat": "last_heartbeat_at_ms", "checkpointTime": "checkpoint_ms",
    "latencyMA": "latency_ms", "latency": "latency_ms", "max_timestamp": "timestamp_ms",
}  # fmt: skip
"""Names that are not ours to choose, and what they would be called here."""


def humanly(name: str, value: object) -> str | None:
    """The value of a field in a table; None when its name says nothing about it."""
    name = _NAMED.get(name, name)
    if value is None:
        return _EMPTY.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if name == "bytes" or name.endswith("_bytes"):
        return size(value)
    if name.endswith("_percent"):
        return f"{value:.1f} %"
    if name.endswith(_MOMENTS):
        return moment(value * _UNITS[name[-3:]])
    unit = next((unit for unit in _UNITS if name.endswith(unit)), None)
    return None if unit is None else duration(value * _UNITS[unit])


def heading(name: str) -> str:
    """The heading of a column: its name without the unit, which the values have."""
    if name == "bytes":
        return "size"
    if name == "max_bytes":
        return "max size"
    for unit in ("_at_us", "_at_ms", *_UNITS, "_percent", "_bytes"):
        if name.endswith(unit):
            return name.removesuffix(unit).replace("_", " ")
    return _words(name)


def _words(name: str) -> str:
    """`memory_free` and `memoryMBFree` alike."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parted.replace("_", " ").lower() if parted != name else name.replace("_", " ")


def size(count: float) -> str:
    if count < 1024:
        return f"{count:g} B"
    step = 0
    count /= 1024
    while count >= 1023.95 and step < len(_SIZES) - 1:
        count /= 1024
        step += 1
    return f"{count:.1f} {_SIZES[step]}"


def duration(seconds: float) -> str:
    """Write seconds in two units at most: `2 d 3 h`, `1 min 5 s`, `0.25 s`, `12 ms`."""
    if seconds < 0.1:
        return f"{seconds * 1e3:.3g} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{seconds:.3g} s"
    left, parts = round(seconds), []
    for name, length in (*_STEPS, ("s", 1)):
        if left >= length:
            parts.append(f"{left // length} {name}")
            left %= length
        elif parts:
            break
    return " ".join(parts[:2])


def moment(seconds: float) -> str:
    """Local, with the distance from UTC, as `--from` takes it too."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


NAMES = ("id", "name", "container", "stream", "topic", "address", "member")
_GAP = "  "
_COLUMN_MIN = 8  # of text that is wrapped


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, default=str))


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    listed = [{name: row.get(name) for name in columns} for row in rows]
    if as_json:
        print_json(listed)
        return
    cells = [[" ".join(shown(name, row[name]).split("\n")) for name in columns] for row in listed]
    right = [_is_number([row[name] for row in listed]) for name in columns]
    for line in draw([heading(name) for name in columns], cells, columns, right):
        print(line)


def _is_number(values: list[object]) -> bool:
    there = [value for value in values if value is not None]
    return bool(there) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in there
    )


def draw(
    headings: list[str], cells: list[list[str]], columns: Sequence[str], right: Sequence[bool]
) -> Iterator[str]:
    widths = [
        max(map(columns_of, texts), default=0) for texts in zip(headings, *cells, strict=True)
    ]
    _fit(widths, columns, right)
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for number, row in enumerate([headings, *cells]):
        wrapped = [_wrap(text, width) for text, width in zip(row, widths, strict=True)]
        for lines in zip_longest(*wrapped, fillvalue=""):
            padded = [
                _pad(text, width, right=align)
                for text, width, align in zip(lines, widths, right, strict=True)
            ]
            line = _GAP.join(padded).rstrip()
            yield f"\x1b[1m{line}\x1b[0m" if bold and number == 0 else line


def _fit(widths: list[int], columns: Sequence[str], right: Sequence[bool]) -> None:
    """Make the widest columns of text narrower until the terminal has room for all, those of names
    last."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return
    room = shutil.get_terminal_size().columns - len(_GAP) * (len(widths) - 1)
    numbers = range(len(widths))
    texts = [one for one in numbers if not right[one] and columns[one] not in NAMES]
    names = [one for one in numbers if columns[one] in NAMES]
    for some in (texts, names):
        while sum(widths) > room and any(widths[one] > _COLUMN_MIN for one in some):
            widths[max(some, key=lambda one: widths[one])] -= 1


def columns_of(text: str) -> int:
    """How many columns of a terminal it takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most that many columns, broken between words where there are some."""
    lines = [""]
    for word in text.split(" ") if columns_of(text) > width else [text]:
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if columns_of(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        while columns_of(word) > width:
            fits = len(word)
            while columns_of(word[:fits]) > width and fits > 1:
                fits -= 1
            lines[-1] = word[:fits]
            word = word[fits:]
            lines.append("")
        lines[-1] = word
    return lines


def _pad(text: str, width: int, *, right: bool) -> str:
    blank = " " * (width - columns_of(text))
    return blank + text if right else text + blank


def print_fields(values: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(dict(values))
        return
    width = max((len(heading(name)) for name in values), default=0)
    for name, value in values.items():
        # A second line of a value does not look like another field.
        text = shown(name, value).replace("\n", "\n" + " " * (width + len(_GAP)))
        print(f"{heading(name):<{width}}{_GAP}{text}")


def shown(name: str, value: object) -> str:
    """The value of a field as people read it."""
    text = humanly(name, value)
    return format_value(value) if text is None else text


def format_value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(printable(str(each)) for each in value)
    return printable(str(value))


def printable(text: str) -> str:
    """Take out what would move the cursor or change colours: anybody chooses names."""
    return escape(text, LINES)


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


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that work of unknown length goes on: by a spinner with the time on a terminal, else by
    the bare words."""
    if not sys.stderr.isatty():
        note(what)
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(what, total=None)
        yield
