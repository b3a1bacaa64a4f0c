"""The first level of commands: known by their rows in `command_table.py`, imported when one is
called.

Importing all of them took longer than everything else that `headrace --help` does.
"""

from __future__ import annotations

import os
import select
import sys
from importlib import import_module
from typing import Any

import click

from headrace.cli.command_table import COMMANDS, SECTIONS
from headrace.cli.declare import Command, Group

INTERRUPTED = 130


class Tree(Group):
    """The root. Each of `commands` knows its name and its sentence alone."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        for name, entry in COMMANDS.items():
            self.commands[name] = Command(name, help=entry.sentence)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if found is not None and name is not None else found, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            if not _is_unread(1):
                raise
            # The reader of a pipe (head, less) went away: that is its right.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise click.exceptions.Exit(0) from None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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


def load(name: str) -> click.Command:
    """The command itself, ready to be called."""
    module, _, attribute = COMMANDS[name].home.partition(":")
    found: click.Command = getattr(import_module(f"headrace.cli.{module}"), attribute)
    return found
