"""What `headrace pipeline run` says about one run: properties, and the span of a backfill."""

from __future__ import annotations

import base64
from collections.abc import Sequence
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
