"""headrace pipeline resume|set|scale|change|roll-back|replay|record|recording|log-level

Changes while a pipeline runs, over `/api/v1/pipelines/<name>`: see /openapi.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.control_api import Pipeline, controls, pipeline_api
from headrace.cli.options import AsJson
from headrace.cli.output import note, print_json
from headrace.cli.pipeline.pipelines import app

Operator = Annotated[str, typer.Argument(metavar="OPERATOR")]


def resume(
    name: Pipeline,
) -> None:
    """Start a pipeline that was stopped, or failed, again: from its checkpoints."""
    pipeline_api().post(f"/{name}/resume")
    note(f"{name} goes on")


def set_properties(
    name: Pipeline,
    operator: Operator,
    values: Annotated[list[str], typer.Argument(metavar="PROPERTY=VALUE...")],
) -> None:
    """Set properties of an operator; a value is JSON, anything else is text."""
    body = dict(_property(one) for one in values)
    path = f"/{name}/plan/operators/{operator}/properties"
    pipeline_api().post(path, body)
    note(f"{operator}: {', '.join(body)} set")


def scale(
    name: Pipeline,
    operator: Operator,
    instances: Annotated[int, typer.Argument(metavar="INSTANCES", min=1)],
) -> None:
    """Run a stateless operator in so many containers, from a committed window on."""
    path = f"/{name}/plan/operators/{operator}/instances"
    pipeline_api().post(path, {"instances": instances})
    note(f"{operator}: {instances} instances at a committed window")


def change(
    name: Pipeline,
    file: Annotated[Path, typer.Argument(metavar="REQUESTS.json", exists=True, dir_okay=False)],
) -> None:
    """Add and remove operators and streams: a JSON list of requests, all of them or none."""
    from headrace.errors import ConfigError

    try:
        requests = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from error
    body = requests if isinstance(requests, dict) else {"requests": requests}
    pipeline_api().post(f"/{name}/plan", body)
    note(f"{name}: {len(body.get('requests', []))} changes")


def roll_back(
    name: Pipeline,
    window: Annotated[str, typer.Argument(metavar="WINDOW", help="Its id, as `show` has it.")],
    operators: Annotated[
        list[str] | None, typer.Option("--operator", help="Only these and what reads them.")
    ] = None,
) -> None:
    """Take a pipeline back to a window."""
    body = {"windowId": window, "operators": operators or []}
    pipeline_api().post(f"/{name}/roll-back", body)
    note(f"{name} goes back to {window}")


def replay(
    name: Pipeline,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The pipeline's name of it.")],
    starting: Annotated[
        str, typer.Argument(metavar="FROM", help="earliest, latest, a time, or offsets as JSON")
    ],
) -> None:
    """Read a topic again from a point."""
    body = {"topic": topic, "starting": starting}
    pipeline_api().post(f"/{name}/replay", body)
    note(f"{name} reads {topic} from {starting}")


def record(
    name: Pipeline,
    operator: Annotated[int, typer.Argument(metavar="OPERATOR-ID", help="See `operator list`.")],
    windows: Annotated[int, typer.Option("--windows", min=1, help="How many.")] = 100,
    stop: Annotated[bool, typer.Option("--stop", help="Record no more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep sample rows of an operator's next windows; prints the recording's id."""
    api = pipeline_api()
    path = f"/{name}/operators/{operator}/recordings"
    if stop:
        api.post(f"{path}/stop")
    else:
        started = api.post(f"{path}/start", {"numWindows": windows})["id"]
        print(json.dumps({"id": started}) if as_json else started)


def recording(
    name: Pipeline,
    id_: Annotated[str, typer.Argument(metavar="RECORDING")],
    as_json: AsJson = False,
) -> None:
    """Print what a recording has so far, a line of JSON per window."""
    windows = pipeline_api().get(f"/{name}/recordings/{id_}")["windows"]
    if as_json:
        print_json(windows)
        return
    for one in windows:
        print(json.dumps(one, default=str))


def log_level(
    name: Pipeline,
    logger: Annotated[str, typer.Argument(metavar="LOGGER", help="Its name; root for all.")],
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="DEBUG, INFO, WARN, ERROR, OFF")],
) -> None:
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


for _name, _command in (
    ("resume", resume),
    ("set", set_properties),
    ("scale", scale),
    ("change", change),
    ("roll-back", roll_back),
    ("replay", replay),
    ("record", record),
    ("recording", recording),
    ("log-level", log_level),
):
    app.command(_name)(controls(_command))
