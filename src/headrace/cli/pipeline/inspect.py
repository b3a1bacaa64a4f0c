"""headrace container, operator, window, event: what a pipeline is made of and what it does.

Over `/api/v1/pipelines/<name>`, which anyone may call: see /openapi.json.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from headrace.cli.control_api import Pipeline, control_api, controls, pipeline_api
from headrace.cli.options import AsJson
from headrace.cli.output import note, print_fields, print_json, print_rows
from headrace.cli.pipeline.pipeline_view import event_row
from headrace.observability.escaping import escape

containers = typer.Typer(
    help="Containers: the processes of a pipeline, one Spark driver each.", no_args_is_help=True
)
operators = typer.Typer(help="Operators of a running pipeline.", no_args_is_help=True)
windows = typer.Typer(help="Windows: how far each operator is.", no_args_is_help=True)
events = typer.Typer(help="What happened to pipelines.", no_args_is_help=True)

Container = Annotated[str, typer.Argument(metavar="CONTAINER")]
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
@controls
def list_containers(
    name: Pipeline,
    states: Annotated[
        str, typer.Option("--states", help="Only these: ACTIVE, KILLED, ... with commas.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List a pipeline's containers."""
    wanted = f"?states={states}" if states else ""
    found = pipeline_api().get(f"/{name}/containers{wanted}")
    _print(found["containers"], CONTAINERS, as_json=as_json)


@containers.command("show")
@controls
def show_container(name: Pipeline, container: Container, as_json: AsJson = False) -> None:
    """Show one container."""
    print_fields(pipeline_api().get(f"/{name}/containers/{container}"), as_json=as_json)


@containers.command("kill")
@controls
def kill(name: Pipeline, container: Container) -> None:
    """Kill a container; the controller starts it again."""
    pipeline_api().post(f"/{name}/containers/{container}/kill")
    note(f"{container} is killed and will be started again")


@containers.command("stack-trace")
@controls
def stack_trace(name: Pipeline, container: Container, as_json: AsJson = False) -> None:
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
@controls
def list_operators(name: Pipeline, as_json: AsJson = False) -> None:
    """List a pipeline's operators: rows, rates and latency."""
    found = pipeline_api().get(f"/{name}/operators")["operators"]
    rows = [{shown: one[theirs] for shown, theirs in OPERATORS.items()} for one in found]
    _print(found if as_json else rows, tuple(OPERATORS), as_json=as_json)


@operators.command("show")
@controls
def show_operator(
    name: Pipeline,
    operator: Annotated[int, typer.Argument(metavar="OPERATOR-ID", help="See `operator list`.")],
    as_json: AsJson = False,
) -> None:
    """Show one operator with its ports and properties."""
    api = pipeline_api()
    found = api.get(f"/{name}/operators/{operator}")
    logical = found.get("logicalName") or found["name"]
    found["properties"] = api.get(f"/{name}/plan/operators/{logical}/properties")
    print_fields(found, as_json=as_json)


@windows.command("list")
@controls
def list_windows(name: Pipeline, as_json: AsJson = False) -> None:
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
@controls
def list_events(
    name: Pipeline,
    after: Annotated[int, typer.Option("--after", help="Only events with a higher id.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more; Ctrl-C ends it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
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
        raise typer.Exit from None


def _print_events(found: list[dict[str, Any]], *, as_json: bool) -> None:
    rows = [{"id": one["id"], **event_row({**one["data"], **one})} for one in found]
    _print(found if as_json else rows, EVENTS, as_json=as_json)


def _print(rows: list[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)  # whole: a program chooses for itself
    else:
        print_rows(rows, columns, as_json=False)
