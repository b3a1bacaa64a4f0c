"""Points of a topic as people write them: `--from 2h --until 2026-05-01T12:00`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.declare import option

if TYPE_CHECKING:
    from headrace.transfer.spans import Point

FORMS = "earliest, latest, an offset, a time (2026-05-01T12:00) or how long ago (15m, 2h, 1d)"
from_option = option("--from", "start", default="earliest", help=f"{FORMS}.")
until_option = option("--until", default="latest", help="The same; this point itself is left out.")
one_partition_option = option(
    "--partition", type=click.IntRange(min=-1), default=-1, help="Only this partition; -1 = all."
)


def parse_point(text: str) -> Point:
    """An offset is a number, everything else is as `headrace consume --from` has it."""
    from headrace.cli.messages.consume import parse_time_us
    from headrace.transfer.spans import EARLIEST, LATEST, Point

    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if text.isdecimal():
        return Point("offset", int(text))
    return Point("time", parse_time_us(text))
