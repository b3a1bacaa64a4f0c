"""headrace pipeline run|list|show|stop|remove|logs, and what the modules `pipeline_*` add"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from headrace.cli.connection import controls
from headrace.cli.control_api import Api, control_api
from headrace.cli.declare import Group, argument, confirm, json_option, option, yes_option
from headrace.cli.output import format_value, print_fields, print_json, print_rows, printable
from headrace.cli.pipeline import deploy, init, pipeline_runs, pipeline_view, plan
from headrace.cli.server_names import pipeline_argument
from headrace.observability.escaping import note

app = Group("pipeline", help="Pipelines: PySpark code that the controller supervises.")
app.command("init")(init.init)
app.command("deploy")(deploy.deploy)
app.command("diff")(deploy.diff)

COLUMNS = ("name", "state", "rows", "rows_per_second", "lag", "window", "restarts")
FOLLOW_SECONDS = 0.5
ENDED = ("FINISHED", "FAILED", "STOPPED")

app.command("dry-run")(plan.dry_run)
app.command("plan")(plan.plan)
app.command("validate")(plan.validate)


@app.command("run")
@argument("script", type=click.Path(path_type=Path), metavar="SCRIPT.py")
@option("--available-now", is_flag=True, help="Read what is there, then end.")
@option("--detach", "-d", is_flag=True, help="Return once the controller has it.")
@pipeline_runs.from_option
@pipeline_runs.to_option
@pipeline_runs.backfill_name_option
@pipeline_runs.set_option
@json_option
@controls
def run(
    script: Path,
    available_now: bool,
    detach: bool,
    starting: tuple[str, ...],
    ending: tuple[str, ...],
    backfill_name: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Hand a pipeline to the controller and show its progress; Ctrl-C leaves it running.

    The file declares an Application (or is a plan, .json), or it is an ordinary PySpark script.
    With --from or --to it is a backfill: an application of its own, with its own checkpoint and
    output, that ends when it has read that far.
    """
    api = control_api()
    run_of = pipeline_runs.make_run(starting, ending, backfill_name, settings)
    package = pipeline_runs.add_run(pipeline_runs.read_package(script), run_of)
    ends = available_now or run_of.backfill
    submitted = api.post("/pipelines", {**package, "available_now": ends})
    if detach:
        print_fields({name: submitted.get(name) for name in COLUMNS}, as_json=as_json)
        return
    try:
        final = follow(api, submitted["name"])
    except KeyboardInterrupt:
        note(
            f"\n{submitted['name']} goes on; "
            f"stop it with: headrace pipeline stop {submitted['name']}"
        )
        raise click.exceptions.Exit from None
    if as_json:
        print_json(final)
    if final["state"] == "FAILED":
        raise click.exceptions.Exit(1)


def follow(api: Api, name: str) -> dict[str, Any]:
    """Print a line whenever something moved, until the pipeline ends."""
    last = ""
    while True:
        view, answer = api.application(name)
        line = (
            f"{name}: {view.state}  rows {view.rows:,}  "
            f"{view.rows_per_second:,.0f} rows/s  lag {format_value(view.lag)}  "
            f"window {view.window or '-'}  restarts {view.restarts}"
        )
        if line != last:
            note(line)
            last = line
        if view.state in ENDED:
            if view.last_error:
                note(view.last_error)
            return answer
        time.sleep(FOLLOW_SECONDS)


@app.command("list")
@json_option
@controls
def list_pipelines(as_json: bool) -> None:
    """List the pipelines."""
    rows = control_api().get("/pipelines")
    print_rows(rows, COLUMNS, as_json=as_json)


@app.command("show")
@pipeline_argument
@json_option
@controls
def show(name: str, as_json: bool) -> None:
    """Show one pipeline: its containers, operators and last events; with --json all of it."""
    view, answer = control_api().application(name)
    if as_json:
        print_json(answer)
    else:
        pipeline_view.show(view, answer["events"])


@app.command("stop")
@pipeline_argument
@controls
def stop(name: str) -> None:
    """Stop a pipeline; its checkpoint stays, and the next run goes on from it."""
    view = control_api().post(f"/pipelines/{name}/stop")
    note(f"{name}: {view['state']}")


@app.command("remove")
@pipeline_argument
@yes_option
@controls
def remove(name: str, yes: bool) -> None:
    """Remove a pipeline that has ended: its checkpoints, packages and logs. Its topics stay."""
    confirm(f"Remove pipeline {name} with its checkpoints and state?", yes=yes)
    control_api().delete(f"/pipelines/{name}")
    note(f"{name} is removed; a pipeline of this name begins anew")


@app.command("logs")
@pipeline_argument
@option("--lines", "-n", type=click.IntRange(min=1, max=10_000), default=100)
@json_option
@controls
def logs(name: str, lines: int, as_json: bool) -> None:
    """Print the last lines of a pipeline's log."""
    text = control_api().text(f"/pipelines/{name}/logs?lines={lines}")
    if as_json:
        print(json.dumps(text.splitlines()))
    else:
        print(printable(text) if sys.stdout.isatty() else text, end="")
