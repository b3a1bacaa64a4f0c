"""A question before something is lost, where somebody is there to answer it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from headrace.observability.escaping import LINES, escape

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


def confirm(question: str | Callable[[], str], *, yes: bool) -> None:
    """Ends the command unless it is answered with yes. A script is not asked: it has no terminal.

    A question that takes a look at the server is a function, called only when it is asked.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    text = question if isinstance(question, str) else question()
    typer.confirm(escape(text, LINES), abort=True, err=True)
