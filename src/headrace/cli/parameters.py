"""Parameters that many commands share, and the question before something is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from headrace.cli.declare import option
from headrace.observability.escaping import LINES, escape

json_option = option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
yes_option = option("--yes", "-y", is_flag=True, help="Do not ask first.")


def split_topic(name: str) -> tuple[str, str]:
    stream, slash, topic = name.partition("/")
    if not slash or not stream or not topic:
        raise click.BadParameter(f"{name!r} is not of the form STREAM/TOPIC")
    return stream, topic


def confirm(question: str | Callable[[], str], *, yes: bool) -> None:
    """Ends the command unless it is answered with yes. A script is not asked: it has no terminal.

    A question that takes a look at the server is a function, called only when it is asked.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    text = question if isinstance(question, str) else question()
    click.confirm(escape(text, LINES), abort=True, err=True)
