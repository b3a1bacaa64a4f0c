"""What a pipeline is made of and what it does: headrace container, operator, window and event.

`headrace pipeline show` prints from here too: what one asks first, within 80 columns; `--json` has
everything, `operator show` and `container show` have the rest of one of them. The commands call
`/api/v1/pipelines/<name>` of the control plane, as anyone may: see /openapi.json.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import click

from headrace.cli.connection import controls
from headrace.cli.control_api import control_api, null_unknown_windows, pipeline_api
from headrace.cli.declare import Group, argument, json_option, option
from headrace.cli.output import print_fields, print_json, print_rows, printable
from headrace.cli.server_names import pipeline_argument
from headrace.observability.escaping import escape, note
from headrace.pipeline.controller.views import (
    ApplicationView,
    ContainerView,
    OperatorView,
)

containers = Group(
    "container", help="Containers: the processes of a pipeline, one Spark driver each."
)
operators = Group("operator", help="Operators of a running pipeline.")
windows = Group("window", help="Windows: how far each operator is.")
events = Group("event", help="What happened to pipelines.")

container_argument = argument("container", metavar="CONTAINER")
CONTAINERS = ("id", "state", "jvmName", "numOperators", "memoryMBFree", "lastHeartbeat", "restarts")
OPERATORS = {
    "id": "id", "name": "name", "status": "status", "container": "container",
    "rows_in": "totalTuplesProcessed", "rows_out": "totalTuplesEmitted",
    "in_/s": "tuplesProcessedPSMA", "out_/s": "tuplesEmittedPSMA", "latency": "latencyMA",
}  # fmt: skip
"""What people see, and Apex's name for it; `window list` has the windows."""
WINDOWS = (
    "operator", "id", "currentWindowId", "checkpointWindowId", "recoveryWindowId",
    "checkpointTime", "latencyMA",
)  # fmt: skip
EVENTS = ("id", "time", "event", "of", "reason")
FOLLOW_SECONDS = 1.0


@containers.command("list")
@pipeline_argument
@option("--states", default="", help="Only these: ACTIVE, KILLED, ... with commas.")
@json_option
@controls
def list_containers(name: str, states: str, as_json: bool) -> None:
    """List a pipeline's containers."""
    wanted = f"?states={states}" if states else ""
    found = pipeline_api().get(f"/{name}/containers{wanted}")
    _print(found["containers"], CONTAINERS, as_json=as_json)


@containers.command("show")
@pipeline_argument
@container_argument
@json_option
@controls
def show_container(name: str, container: str, as_json: bool) -> None:
    """Show one container."""
    print_fields(pipeline_api().get(f"/{name}/containers/{container}"), as_json=as_json)


@containers.command("kill")
@pipeline_argument
@container_argument
@controls
def kill(name: str, container: str) -> None:
    """Kill a container; the controller starts it again."""
    pipeline_api().post(f"/{name}/containers/{container}/kill")
    note(f"{container} is killed and will be started again")


@containers.command("stack-trace")
@pipeline_argument
@container_argument
@json_option
@controls
def stack_trace(name: str, container: str, as_json: bool) -> None:
    """Ask a container what its threads, in Python and in the JVM, are doing now."""
    found = pipeline_api().get(f"/{name}/containers/{container}/stack-trace")
    if as_json:
        print_json(found)
        return
    for language in ("python", "jvm"):
        for thread in found[language]:
            named = f"{language} {thread.get('name')} {thread.get('state', '')}"
            print(escape(named.rstrip()))
            for line in thread.get("stack", []):
                print(f"    {escape(line.strip())}")


@operators.command("list")
@pipeline_argument
@json_option
@controls
def list_operators(name: str, as_json: bool) -> None:
    """List a pipeline's operators: rows, rates and latency."""
    found = pipeline_api().get(f"/{name}/operators")["operators"]
    rows = [{shown: one[theirs] for shown, theirs in OPERATORS.items()} for one in found]
    _print(found if as_json else rows, tuple(OPERATORS), as_json=as_json)


@operators.command("show")
@pipeline_argument
@argument("operator", type=int, metavar="OPERATOR-ID", help="See `operator list`.")
@json_option
@controls
def show_operator(name: str, operator: int, as_json: bool) -> None:
    """Show one operator with its ports and properties."""
    api = pipeline_api()
    found = api.get(f"/{name}/operators/{operator}")
    logical = found.get("logicalName") or found["name"]
    found["properties"] = api.get(f"/{name}/plan/operators/{logical}/properties")
    print_fields(found, as_json=as_json)


@windows.command("list")
@pipeline_argument
@json_option
@controls
def list_windows(name: str, as_json: bool) -> None:
    """List how far each operator is: its window, its checkpoint, and what is committed."""
    rows = pipeline_api().get(f"/{name}/operators")["operators"]
    told = [{"operator": one["name"], **one} for one in rows]
    kept = [{column: one.get(column) for column in WINDOWS} for one in told]
    view = control_api().get(f"/pipelines/{name}")
    committed = view.get("committed_window")
    if as_json:
        print_json({"committed_window": committed, "operators": kept})
        return
    print_rows(kept, WINDOWS, as_json=False)
    print(f"committed window {committed or '-'}")


@events.command("list")
@pipeline_argument
@option("--after", type=int, default=0, help="Only events with a higher id.")
@option("--follow", "-f", is_flag=True, help="Wait for more; Ctrl-C ends it.")
@json_option
@controls
def list_events(name: str, after: int, follow: bool, as_json: bool) -> None:
    """List what happened to a pipeline, newest last."""
    api = pipeline_api()
    found = api.get(f"/{name}/events?offset={after}")["events"]
    _print_events(found, as_json=as_json)
    try:
        while follow:
            after = max((int(one["id"]) for one in found), default=after)
            time.sleep(FOLLOW_SECONDS)
            found = api.get(f"/{name}/events?offset={after}")["events"]
            if found:
                _print_events(found, as_json=as_json)
    except KeyboardInterrupt:
        raise click.exceptions.Exit from None


def _print_events(found: list[dict[str, Any]], *, as_json: bool) -> None:
    rows = [{"id": one["id"], **event_row({**one["data"], **one})} for one in found]
    _print(found if as_json else rows, EVENTS, as_json=as_json)


def _print(rows: list[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)  # whole: a program chooses for itself
    else:
        print_rows(rows, columns, as_json=False)


SHOWN_CONTAINERS = ("id", "state", "pid", "restarts", "heartbeat", "memory_free")
SHOWN_OPERATORS = ("name", "state", "rows_in", "rows_out", "per_second", "lag", "window")
SHOWN_EVENTS = ("time", "event", "of", "reason")
EVENTS_MAX = 20
PACKAGE_DIGITS = 12


def show_pipeline(view: ApplicationView, events: list[dict[str, Any]]) -> None:
    """Print what the controller tells of a pipeline. A newer server has more kinds of events, so
    they come as they are."""
    print_fields(_application(view), as_json=False)
    parts = (
        ("containers", SHOWN_CONTAINERS, map(_container, view.containers)),
        ("operators", SHOWN_OPERATORS, map(_operator, view.operators)),
        ("events", SHOWN_EVENTS, map(event_row, events[-EVENTS_MAX:])),
    )
    for title, columns, rows in parts:
        print(f"\n{title}")
        print_rows(map(null_unknown_windows, rows), columns, as_json=False)
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
    return {name: value for name, value in null_unknown_windows(shown).items() if value is not None}


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
    """Make the row of an event as it stands in a view, or in the answer of Apex's path."""
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
