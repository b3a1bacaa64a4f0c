"""headrace pipeline init|deploy|diff: the project of a pipeline and the versions of its code.

`init` makes a project whose test passes as it is; `deploy` and `diff` send all of its files.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import click

from headrace.cli.connection import controls
from headrace.cli.control_api import control_api
from headrace.cli.declare import argument, json_option, option
from headrace.cli.output import print_fields, print_json, print_rows, working
from headrace.cli.pipeline.submission import check_script
from headrace.observability.escaping import note

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z")

FILES = {
    "pipeline.py": '''\
"""$name: what came in per kind and minute.

    headrace pipeline run pipeline.py

Reads `$name/events`, writes `$name/totals`:

    {"kind": "click", "value": 1.0, "at": "2026-01-01T12:00:00Z"}
    {"window": {"start": ..., "end": ...}, "kind": "click", "events": 1, "total": 1.0}
"""

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from headrace import Application

app = Application("$name", trigger="1 second")
app.topic(
    "events",
    "$name/events",
    schema="kind string, value double, at timestamp",
    on_bad_row="dead_letter",  # to $name/events.dead_letter, with the reason
)


@app.operator(expect={"kind is not null and at is not null": "drop"})
def valid(events: DataFrame) -> DataFrame:  # the parameter's name is what it reads
    return events.withWatermark("at", "10 seconds")


@app.operator(to="$name/totals", key="kind", output_mode="append")
def totals(valid: DataFrame, *, width: str = "1 minute") -> DataFrame:
    """One row per kind and minute, published once, when the minute is over."""
    return valid.groupBy(F.window("at", width), "kind").agg(
        F.count(F.lit(1)).alias("events"), F.sum("value").alias("total")
    )
''',
    "test_pipeline.py": '''\
"""Run with `pytest`. The fixtures come with Headrace: a Spark session, and a broker in a thread."""

from pipeline import app

EVENTS = [
    {"kind": "click", "value": 1.0, "at": "2026-01-01T12:00:10Z"},
    {"kind": "click", "value": 2.5, "at": "2026-01-01T12:00:50Z"},
    {"kind": "view", "value": 1.0, "at": "2026-01-01T12:01:00Z"},
]


def test_totals_per_minute(headrace_spark):
    results = app.test(headrace_spark, events=[*EVENTS, "not JSON"], close=True)
    found = sorted((row.kind, row.events, row.total) for row in results["totals"])
    assert found == [("click", 2, 3.5), ("view", 1, 1.0)]


def test_events_survive_the_broker(headrace_broker, headrace_stream):
    client = headrace_broker.connect()
    topic = f"{headrace_stream}/events"
    client.create_topic(topic, partitions=2)
    with client.producer(topic) as producer:
        for event in EVENTS:
            producer.send(event, key=event["kind"])
    found = [message.json() for message in client.read(topic)]
    assert sorted(found, key=lambda event: event["at"]) == EVENTS
''',
    "README.md": """\
# $name

A Headrace pipeline: `pipeline.py` reads the topic `$name/events` and writes `$name/totals`.

```console
$$ pip install -e '.[test]'
$$ pytest                     # no server needed
$$ headrace up --dev &        # or set HEADRACE_ADDRESS and HEADRACE_HTTP to those of a server
$$ headrace stream create $name && headrace topic create $name/events --partitions 2
$$ headrace pipeline run --detach pipeline.py
$$ headrace produce $name/events --file events.jsonl
$$ headrace consume --follow $name/totals
```

A window of time is published when later events have come, so `events.jsonl` spans a few minutes.

Change `pipeline.py` and run `pytest`. `headrace pipeline diff pipeline.py` says what a new version
keeps of the old one's state; `headrace pipeline deploy pipeline.py` lets it take over.
""",
    "events.jsonl": """\
{"kind": "click", "value": 1, "at": "2026-01-01T12:00:10Z"}
{"kind": "view", "value": 1, "at": "2026-01-01T12:00:30Z"}
{"kind": "click", "value": 2.5, "at": "2026-01-01T12:00:50Z"}
{"kind": "view", "value": 1, "at": "2026-01-01T12:03:00Z"}
""",
    "later.jsonl": """\
{"kind": "view", "value": 1, "at": "2026-01-01T12:05:00Z"}
{"kind": "view", "value": 1, "at": "2026-01-01T12:09:00Z"}
""",
    "pyproject.toml": """\
[project]
name = "$name"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["headrace[spark]"]

[project.optional-dependencies]
test = ["pytest"]

[build-system]
requires = ["setuptools>=80"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["pipeline"]

[tool.pytest.ini_options]
pythonpath = ["."]
""",
    ".gitignore": """\
.venv/
__pycache__/
headrace-data/
""",
}


@argument("name", metavar="NAME", help="Of the pipeline and its folder.")
@option(
    "--folder", type=click.Path(path_type=Path), help="Where, if not in a folder of that name here."
)
@json_option
def init(name: str, folder: Path | None, as_json: bool) -> None:
    """Make a project with a pipeline and a test that passes."""
    from headrace.errors import ConfigError

    if not _NAME.match(name):
        raise click.BadParameter(f"{name!r}: begin with a letter; then letters, digits, '_', '-'")
    target = folder or Path(name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already and not empty; choose another --folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file, text in FILES.items():
            (target / file).write_text(Template(text).substitute(name=name))
    except OSError as error:
        raise ConfigError(f"cannot write to {target}: {error.strerror}") from error
    if as_json:
        print_json({"folder": str(target), "files": sorted(FILES)})
        return
    note(f"made {target}: {', '.join(FILES)}")
    note(f"next: cd {target} && pytest; then headrace pipeline run pipeline.py")


# What a project folder holds besides its code; never part of a package.
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "venv", "build", "dist", "headrace-data"}
PACKAGE_FILES_MAX = 2_000
PACKAGE_BYTES_MAX = 20 << 20
DEPLOY_SECONDS = 900.0  # requirements are installed, both versions are built, the old one stops

script_argument = argument(
    "script",
    type=click.Path(path_type=Path),
    metavar="SCRIPT.py",
    help="The file that declares the application.",
)
project_option = option(
    "--project",
    type=click.Path(path_type=Path),
    help="The project's folder, when the script is not at its top.",
    metavar="DIR",
)

VERDICTS = ("name", "verdict", "reasons")


def read_project(script: Path, project: Path | None) -> dict[str, Any]:
    """All files of a project but those that begin with a dot, as the API takes them."""
    from headrace.errors import ConfigError
    from headrace.pipeline.plan.packages import locked_requirements

    folder = (project or script.parent).resolve()
    check_script(script)
    if not script.resolve().is_relative_to(folder):
        raise ConfigError(f"{script} is not in the project {folder}")
    files: dict[str, bytes] = {}
    size = 0
    for path in _project_files(folder):
        if len(files) == PACKAGE_FILES_MAX:
            raise ConfigError(f"{folder} has more than {PACKAGE_FILES_MAX} files; is it a project?")
        try:
            size += path.stat().st_size
            if size > PACKAGE_BYTES_MAX:
                raise ConfigError(
                    f"{folder} is larger than {PACKAGE_BYTES_MAX >> 20} MiB, with {path}"
                )
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    locked_requirements(files)  # refused here before anything is sent
    return {
        "entry": script.resolve().relative_to(folder).as_posix(),
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
    }


def _project_files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS
        )
        yield from (
            path
            for name in sorted(names)
            if not name.startswith(".") and (path := Path(root, name)).is_file()
        )


@script_argument
@project_option
@option(
    "--new-state",
    multiple=True,
    metavar="OPERATOR",
    help="Begin a new checkpoint for it; repeatable.",
)
@option("--available-now", is_flag=True, help="Read what is there, then end.")
@json_option
@controls
def deploy(
    script: Path,
    project: Path | None,
    new_state: tuple[str, ...],
    available_now: bool,
    as_json: bool,
) -> None:
    """Deploy a version of a project: at a committed window it takes over from the running one."""
    package = read_project(script, project)
    body = {**package, "available_now": available_now, "new_state": list(new_state)}
    with working(f"deploying {script}: it is built, and takes over at a committed window"):
        view = control_api().post("/deployments", body, seconds=DEPLOY_SECONDS)
    fields = {name: view.get(name) for name in ("name", "state", "package", "committed_window")}
    print_fields(fields, as_json=as_json)


@script_argument
@project_option
@json_option
@controls
def diff(script: Path, project: Path | None, as_json: bool) -> None:
    """Say what deploying this version would keep; exit 0 only if it keeps everything."""
    api, package = control_api(), read_project(script, project)
    with working(f"building {script} and what runs, and comparing them"):
        answer = api.post("/deployments/diff", package, seconds=DEPLOY_SECONDS)
    if as_json:
        print_json(answer)
    else:
        same = " (the same code)" if answer["package"] == answer["deployed"] else ""
        note(f"{answer['name']}: {answer['deployed'][:12]} -> {answer['package'][:12]}{same}")
        rows = [one | {"reasons": "; ".join(one["reasons"])} for one in answer["operators"]]
        print_rows(rows, VERDICTS, as_json=False)
        note(answer["verdict"])
    if answer["verdict"] != "COMPATIBLE":
        raise click.exceptions.Exit(1)
