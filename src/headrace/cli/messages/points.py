"""Points of a topic as people write them: `--from 2h --until 2026-05-01T12:00`."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from headrace.cli.declare import option

if TYPE_CHECKING:
    from headrace.client.positions import Point

_AGO = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FORMS = "earliest, latest, an offset, a time (2026-05-01T12:00) or how long ago (15m, 2h, 1d)"
from_option = option("--from", "start", default="earliest", help=f"{FORMS}.")
until_option = option("--until", default="latest", help="The same; this point itself is left out.")
one_partition_option = option(
    "--partition", type=click.IntRange(min=-1), default=-1, help="Only this partition; -1 = all."
)


def parse_point(text: str) -> Point:
    """An offset is a number, everything else is as `headrace consume --from` has it."""
    from headrace.client.positions import AtTime

    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    return AtTime(parse_time_us(text))


def is_point(start: str) -> bool:
    return start in ("earliest", "latest") or start.isdecimal()


def parse_time_us(text: str) -> int:
    """Microseconds since 1970 of a moment, local unless it says otherwise, or of a while ago."""
    ago = _AGO.fullmatch(text)
    if ago:
        return int((time.time() - int(ago[1]) * _SECONDS[ago[2]]) * 1e6)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"--from takes {FORMS}") from None
    return int(moment.astimezone(UTC).timestamp() * 1e6)
