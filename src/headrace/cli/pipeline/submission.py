"""What a pipeline is submitted with: its files, its properties, and the span of a backfill."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.declare import option

if TYPE_CHECKING:
    from headrace.pipeline.plan.loading import Position, Run

from_option = option(
    "--from",
    "starting",
    multiple=True,
    metavar="[PORT=]POSITION",
    help='Backfill from here: earliest, a time, or offsets like {"0": 100}.',
)
to_option = option(
    "--to",
    "ending",
    multiple=True,
    metavar="[PORT=]POSITION",
    help="Backfill up to here, exclusive.",
)
backfill_name_option = option(
    "--backfill-name",
    default="",
    help="Of the backfill; it runs as APPLICATION.NAME and publishes to TOPIC.NAME. "
    "The same name goes on from its checkpoint. [default: made from the positions]",
)
set_option = option(
    "--set", "settings", multiple=True, metavar="OPERATOR.PROPERTY=VALUE", help="Set a property."
)


# What a project folder holds besides code; never part of a package.
SKIPPED_FOLDERS = {".git", ".venv", "__pycache__", "node_modules", "headrace-data"}
PACKAGE_FILE_BYTES_MAX = 4 << 20


def check_script(script: Path) -> None:
    """ConfigError when it is no file that can be a pipeline."""
    from headrace.errors import ConfigError

    if not script.is_file():
        raise ConfigError(f"there is no file {script}")
    if script.suffix not in (".py", ".json"):
        raise ConfigError(f"{script} is neither Python (.py) nor a plan (.json)")


def read_package(script: Path) -> dict[str, Any]:
    """The script and the Python files beside and below it, as the API takes them."""
    from headrace.errors import ConfigError

    check_script(script)
    folder = script.resolve().parent
    files = {}
    for path in [script.resolve(), *sorted(folder.rglob("*.py"))]:
        relative = path.relative_to(folder)
        if SKIPPED_FOLDERS.intersection(relative.parts) or not path.is_file():
            continue
        try:
            if path.stat().st_size > PACKAGE_FILE_BYTES_MAX:
                raise ConfigError(f"{path} is too large for a package of code")
            files[relative.as_posix()] = base64.b64encode(path.read_bytes()).decode()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return {"entry": script.name, "files": files}


def make_run(
    starting: Sequence[str] | None,
    ending: Sequence[str] | None,
    name: str,
    settings: Sequence[str] | None,
) -> Run:
    from headrace.pipeline.plan.loading import Run

    properties: dict[str, dict[str, Any]] = {}
    for each in settings or ():
        place, equals, value = each.partition("=")
        operator, dot, key = place.partition(".")
        if not equals or not dot or not operator or not key:
            raise click.BadParameter(f"{each!r} is not OPERATOR.PROPERTY=VALUE")
        properties.setdefault(operator, {})[key] = value
    first, last = _position(starting), _position(ending)
    if first is None and last is None:
        if name:
            raise click.BadParameter("--backfill-name is for a backfill: add --from or --to")
        return Run(properties=properties)
    return Run(
        name=name or _default_name(starting, ending),
        starting=first,
        ending=last,
        properties=properties,
    )


def add_run(package: dict[str, Any], run: Run) -> dict[str, Any]:
    """The package with the run's file in it, if the run says anything."""
    from headrace.pipeline.plan.loading import RUN_FILE, Run, format_run

    if run == Run():
        return package
    data = base64.b64encode(format_run(run)).decode()
    return {**package, "files": {**package["files"], RUN_FILE: data}}


def _position(given: Sequence[str] | None) -> Position | None:
    """One for all ports, or `port=position` each."""
    if not given:
        return None
    by_port: dict[str, str] = {}
    for each in given:
        port, equals, position = each.partition("=")
        if not equals or not port.isidentifier():
            if len(given) > 1:
                raise click.BadParameter(f"of several positions each names its port: {each!r}")
            return each
        by_port[port] = position
    return by_port


def _default_name(starting: Sequence[str] | None, ending: Sequence[str] | None) -> str:
    """The same positions are the same backfill."""
    import hashlib

    text = repr((list(starting or ()), list(ending or ())))
    return f"backfill-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
