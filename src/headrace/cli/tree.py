"""The first level of commands: known by their rows in `table.py`, imported when one is called.

Importing all of them and reading their signatures took longer than everything else that
`headrace --help` does.
"""

from __future__ import annotations

import os
import select
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from headrace.cli import plain_values
from headrace.cli.command_table import COMMANDS, SECTIONS

HELP_COLUMNS_MAX = 100


_Formatter: Any = typer.Context.formatter_class


class HelpFormatter(_Formatter):  # type: ignore[misc]  # of click, or of typer's copy of it
    """Headings and names stand out on a terminal. Not by rich: loading it doubles the time."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, _bold("Usage: ") if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{_bold(heading)}:\n")

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(_cyan(name), text) for name, text in rows], col_max, col_spacing)


class QuickContext(typer.Context):
    """One call of one command; made when all its parameters are known."""

    formatter_class = HelpFormatter

    def __init__(self, command: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(command, *arguments, **named)
        plain_values.use(command.get_params(self))


class Tree(TyperGroup):
    """The root. What stands in `commands` knows its name and its sentence alone."""

    context_class = QuickContext

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=entry.sentence)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if found is not None and name is not None else found, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            if not _is_unread(1):
                raise
            # The reader of a pipe (head, less) went away: that is its right.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(0) from None
        return result

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        column = max(map(len, COMMANDS))
        for section, entries in SECTIONS.items():
            with formatter.section(section):
                rows = [(f"{name:<{column}}", entry.sentence) for name, entry in entries.items()]
                formatter.write_dl(rows)


def _is_unread(descriptor: int) -> bool:
    """Whether the other end of this pipe is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def load(name: str) -> Any:
    """The command itself, ready to be called."""
    module, _, attribute = COMMANDS[name].home.partition(":")
    found = getattr(import_module(f"headrace.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = None
        command: Any = get_group(found)
        command.name = name
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(found)
        command = get_command(alone)
    _dress(command)
    return command


def _dress(command: Any) -> None:
    command.context_class = QuickContext
    for each in getattr(command, "commands", {}).values():
        _dress(each)


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if _is_coloured() else text


def _cyan(text: str) -> str:
    return f"\x1b[36m{text}\x1b[0m" if _is_coloured() else text


def _is_coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
