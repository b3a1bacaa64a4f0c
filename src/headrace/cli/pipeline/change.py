"""headrace pipeline resume|set|scale|change|roll-back|replay|record|recording|log-level

Changes while a pipeline runs, over `/api/v1/pipelines/<name>`: see /openapi.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from headrace.cli.connection import controls
from headrace.cli.control_api import pipeline_api
from headrace.cli.declare import argument, json_option, option
from headrace.cli.output import print_json
from headrace.cli.pipeline.pipelines import app
from headrace.cli.server_names import pipeline_argument
from headrace.observability.escaping import note

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
