"""How a command is declared: click's commands, options and arguments with the help of this program.

A command is a function under `@command("name")` or `@group.command("name")`, then one decorator a
parameter in the order of its help, and last what gives it options that many commands share.
Options that every kind of command may have (`--json`, `--yes`) are here too, with the question
before something is lost, and points of a topic as people write them: `--from 2h --until
2026-05-01T12:00`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.observability.escaping import LINES, escape

if TYPE_CHECKING:
    from headrace.client.topic_reader import Point

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class HelpFormatter(click.HelpFormatter):
    """Headings and names stand out on a terminal. Not by rich: loading it doubles the time."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, _styled("Usage: ", 1) if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{_styled(heading, 1)}:\n")

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        super().write_dl([(_styled(name, 36), text) for name, text in rows], col_max, col_spacing)


def _styled(text: str, code: int) -> str:
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{code}m{text}\x1b[0m" if is_coloured else text


class Context(click.Context):
    formatter_class = HelpFormatter


class Command(click.Command):
    context_class = Context

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [each for each in self.get_params(ctx) if isinstance(each, click.Argument)]
        if found:
            with formatter.section("Arguments"):
                formatter.write_dl([each.get_help_record(ctx) for each in found])


class Group(click.Group):
    """A noun. Its commands are listed in the order in which they are declared."""

    context_class = Context
    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            near = ", ".join(map(repr, error.possibilities or ()))  # the nearest one first
            meant = f" Did you mean {near}?" if near else ""
            raise click.UsageError(f"{error.message}{meant}", ctx) from None


class Option(click.Option):
    """An option whose help names its environment variable, and no default that is empty."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **{"show_envvar": True, **attributes})

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        if self.default == "":
            extra.pop("default", None)
        return extra


class Argument(click.Argument):
    """An argument whose help says whether it may be left out, and what it is then."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        name = self.make_metavar(ctx)
        return [name if self.required or name.startswith("[") else f"[{name}]"]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        name, text = super().get_help_record(ctx)
        default = self.get_default(ctx, call=False)
        extra = [f"default: {default}"] if isinstance(default, str | int) and default else []
        if isinstance(self.type, click.IntRange) and self.type.min is not None:
            extra.append(f"x>={self.type.min}")
        if self.required:
            extra.append("required")
        told = f"[{'; '.join(extra)}]" if extra else ""
        return name, "  ".join(each for each in (text, told) if each)


def command(name: str) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=Command)


def option(*declarations: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*declarations, cls=Option, **attributes)


def argument(name: str, **attributes: Any) -> Callable[[F], F]:
    return click.argument(name, cls=Argument, **attributes)


def shared_options(
    options: dict[str, Decorator],
    choose: Callable[[dict[str, Any]], AbstractContextManager[None]],
) -> Decorator:
    """What gives a command these options and runs the command inside of `choose(their values)`.

    It stands below the command's own parameters, so that help lists these options last.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            with choose({name: arguments.pop(name) for name in options}):
                command(**arguments)

        wrapped: Callable[..., None] = run
        for add in reversed(options.values()):
            wrapped = add(wrapped)
        return wrapped

    return decorate


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
    from headrace.client.topic_reader import AtTime

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
    from datetime import UTC, datetime

    ago = _AGO.fullmatch(text)
    if ago:
        return int((time.time() - int(ago[1]) * _SECONDS[ago[2]]) * 1e6)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"--from takes {FORMS}") from None
    return int(moment.astimezone(UTC).timestamp() * 1e6)
