"""headrace pipeline: run, list, show, stop and remove pipelines, and change them while they run.

The commands call `/api/v1/pipelines` of the control plane: see /openapi.json. `projects.py` and
`plan.py` have those that need the files of a pipeline.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from headrace.cli.connection import controls
from headrace.cli.control_api import Api, control_api, pipeline_api
from headrace.cli.declare import Group, argument, confirm, json_option, option, yes_option
from headrace.cli.output import format_value, print_fields, print_json, print_rows, printable
from headrace.cli.pipeline import inspect, plan, projects, submission
from headrace.cli.server_names import pipeline_argument
from headrace.observability.escaping import note

app = Group("pipeline", help="Pipelines: PySpark code that the controller supervises.")
app.command("init")(projects.init)
app.command("deploy")(projects.deploy)
app.command("diff")(projects.diff)

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
@submission.from_option
@submission.to_option
@submission.backfill_name_option
@submission.set_option
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
    run_of = submission.make_run(starting, ending, backfill_name, settings)
    package = submission.add_run(submission.read_package(script), run_of)
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
    print_rows(map(asdict, control_api().pipelines()), COLUMNS, as_json=as_json)


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
        inspect.show_pipeline(view, answer["events"])


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


operator_argument = argument("operator", metavar="OPERATOR")


@app.command("resume")
@pipeline_argument
@controls
def resume(name: str) -> None:
    """Start a pipeline that was stopped, or failed, again: from its checkpoints."""
    pipeline_api().post(f"/{name}/resume")
    note(f"{name} goes on")


@app.command("set")
@pipeline_argument
@operator_argument
@argument("values", nargs=-1, required=True, metavar="PROPERTY=VALUE...")
@controls
def set_properties(name: str, operator: str, values: tuple[str, ...]) -> None:
    """Set properties of an operator; a value is JSON, anything else is text."""
    body = dict(_property(one) for one in values)
    path = f"/{name}/plan/operators/{operator}/properties"
    pipeline_api().post(path, body)
    note(f"{operator}: {', '.join(body)} set")


@app.command("scale")
@pipeline_argument
@operator_argument
@argument("instances", type=click.IntRange(min=1), metavar="INSTANCES")
@controls
def scale(name: str, operator: str, instances: int) -> None:
    """Run a stateless operator in so many containers, from a committed window on."""
    path = f"/{name}/plan/operators/{operator}/instances"
    pipeline_api().post(path, {"instances": instances})
    note(f"{operator}: {instances} instances at a committed window")


@app.command("change")
@pipeline_argument
@argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="REQUESTS.json"
)
@controls
def change(name: str, file: Path) -> None:
    """Add and remove operators and streams: a JSON list of requests, all of them or none."""
    from headrace.errors import ConfigError

    try:
        requests = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    body = requests if isinstance(requests, dict) else {"requests": requests}
    pipeline_api().post(f"/{name}/plan", body)
    note(f"{name}: {len(body.get('requests', []))} changes")


@app.command("roll-back")
@pipeline_argument
@argument("window", metavar="WINDOW", help="Its id, as `show` has it.")
@option("--operator", "operators", multiple=True, help="Only these and what reads them.")
@controls
def roll_back(name: str, window: str, operators: tuple[str, ...]) -> None:
    """Take a pipeline back to a window."""
    body = {"windowId": window, "operators": list(operators)}
    pipeline_api().post(f"/{name}/roll-back", body)
    note(f"{name} goes back to {window}")


@app.command("replay")
@pipeline_argument
@argument("topic", metavar="TOPIC", help="The pipeline's name of it.")
@argument("starting", metavar="FROM", help="earliest, latest, a time, or offsets as JSON")
@controls
def replay(name: str, topic: str, starting: str) -> None:
    """Read a topic again from a point."""
    body = {"topic": topic, "starting": starting}
    pipeline_api().post(f"/{name}/replay", body)
    note(f"{name} reads {topic} from {starting}")


@app.command("record")
@pipeline_argument
@argument("operator", type=int, metavar="OPERATOR-ID", help="See `operator list`.")
@option("--windows", type=click.IntRange(min=1), default=100, help="How many.")
@option("--stop", is_flag=True, help="Record no more.")
@json_option
@controls
def record(name: str, operator: int, windows: int, stop: bool, as_json: bool) -> None:
    """Keep sample rows of an operator's next windows; prints the recording's id."""
    api = pipeline_api()
    path = f"/{name}/operators/{operator}/recordings"
    if stop:
        api.post(f"{path}/stop")
    else:
        started = api.post(f"{path}/start", {"numWindows": windows})["id"]
        print(json.dumps({"id": started}) if as_json else started)


@app.command("recording")
@pipeline_argument
@argument("id_", metavar="RECORDING")
@json_option
@controls
def recording(name: str, id_: str, as_json: bool) -> None:
    """Print what a recording has so far, a line of JSON per window."""
    windows = pipeline_api().get(f"/{name}/recordings/{id_}")["windows"]
    if as_json:
        print_json(windows)
        return
    for one in windows:
        print(json.dumps(one, default=str))


@app.command("log-level")
@pipeline_argument
@argument("logger", metavar="LOGGER", help="Its name; root for all.")
@argument("level", metavar="LEVEL", help="DEBUG, INFO, WARN, ERROR, OFF")
@controls
def log_level(name: str, logger: str, level: str) -> None:
    """Set a log level in every container of a pipeline."""
    body = {"loggers": [{"target": logger, "logLevel": level}]}
    pipeline_api().post(f"/{name}/loggers", body)
    note(f"{logger}: {level.upper()} with the next heartbeats")


def _property(text: str) -> tuple[str, Any]:
    from headrace.errors import ConfigError

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"write PROPERTY=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
