"""headrace pipeline deploy|diff: versions of a pipeline's code"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from headrace.cli.connection import controls
from headrace.cli.control_api import control_api
from headrace.cli.declare import argument, json_option, option
from headrace.cli.output import print_fields, print_json, print_rows, working
from headrace.cli.pipeline.pipeline_runs import check_script
from headrace.observability.escaping import note

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
