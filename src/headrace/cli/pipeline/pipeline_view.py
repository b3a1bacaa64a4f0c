"""What `headrace pipeline show` prints for people: what one asks first, within 80 columns.

`--json` has everything, `operator show` and `container show` have the rest of one of them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headrace.cli.control_api import told_windows
from headrace.cli.output import print_fields, print_rows, printable
from headrace.pipeline.controller.views import (
    ApplicationView,
    ContainerView,
    OperatorView,
)

CONTAINERS = ("id", "state", "pid", "restarts", "heartbeat", "memory_free")
OPERATORS = ("name", "state", "rows_in", "rows_out", "per_second", "lag", "window")
EVENTS = ("time", "event", "of", "reason")
EVENTS_MAX = 20
PACKAGE_DIGITS = 12


def show(view: ApplicationView, events: list[dict[str, Any]]) -> None:
    """Print what the controller tells of a pipeline. A newer server has more kinds of events, so
    they come as they are."""
    print_fields(_application(view), as_json=False)
    parts = (
        ("containers", CONTAINERS, map(_container, view.containers)),
        ("operators", OPERATORS, map(_operator, view.operators)),
        ("events", EVENTS, map(event_row, events[-EVENTS_MAX:])),
    )
    for title, columns, rows in parts:
        print(f"\n{title}")
        print_rows(map(told_windows, rows), columns, as_json=False)
    for names, text in _errors(view.operators):
        print(f"\nlast error of {', '.join(names)}\n{printable(text)}")


def _errors(operators: list[OperatorView]) -> list[tuple[list[str], str]]:
    """Operators of one query fail together, each with the same story."""
    found: dict[str, tuple[list[str], str]] = {}
    for one in operators:
        if one.last_error:
            names, _ = found.setdefault(_first_line(one.last_error), ([], one.last_error))
            names.append(one.name)
    return list(found.values())


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _application(view: ApplicationView) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": view.name, "state": view.state}
    shown |= {"submitted": _time(view.submitted_ms), "finished": _time(view.finished_ms)}
    shown |= {"entry": view.entry, "package": view.package[:PACKAGE_DIGITS]}
    for name in (
        "window", "committed_window", "rows", "rows_per_second", "rows_late", "rows_bad", "lag",
        "restarts", "last_error", "path",
    ):  # fmt: skip
        shown[name] = getattr(view, name)
    shown["last_error"] = _first_line(view.last_error or "") or None
    return {name: value for name, value in told_windows(shown).items() if value is not None}


def _container(one: ContainerView) -> dict[str, Any]:
    age_ms = one.heartbeat_age_ms
    return {
        "id": one.id,
        "state": one.state,
        "pid": one.pid,
        "restarts": one.restarts,
        "heartbeat": None if age_ms is None else f"{age_ms / 1000:.1f} s ago",
        "memory_free": f"{one.memory_mb_free} MB" if one.memory_mb_free else None,
    }


def _operator(one: OperatorView) -> dict[str, Any]:
    instance = f" #{one.instance}" if one.instance else ""
    return {
        "name": f"{one.name}{instance}",
        "state": one.state,
        "rows_in": one.rows_in,
        "rows_out": one.rows_out,
        "per_second": max(one.rows_in_per_second, one.rows_out_per_second),
        "lag": one.lag,
        "window": one.window,
    }


def event_row(one: dict[str, Any]) -> dict[str, Any]:
    """As it stands in a view, or in the answer of Apex's path."""
    return {
        "time": _time(int(one["time_ms"] if "time_ms" in one else one["timestamp"])),
        "event": one["type"],
        "of": one.get("operator") or one.get("container"),
        "reason": _first_line(one["reason"]) or None,
    }


def _time(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
