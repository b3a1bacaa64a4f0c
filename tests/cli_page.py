"""The tables of docs/cli.md, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

from headrace.cli.command_table import COMMANDS, load
from headrace.cli.connection import CONTROL_OPTIONS as CONTROL
from headrace.cli.connection import OPTIONS as CONNECTION


class UndescribedError(Exception):
    """A command without a sentence that says what it does."""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its whole name, in the order of `--help`."""
    for name in COMMANDS:
        yield from _walk(f"headrace {name}", load(name))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for each, found in inner.items():
        yield from _walk(f"{name} {each}", found)


# Options that are told once, above the table, and the mark of the commands that take them.
SHARED = ((" ¹", CONNECTION.keys()), (" ²", CONTROL.keys()))


def shared(command: Any) -> tuple[str, Any]:
    names = {parameter.name for parameter in command.params}
    return next(((mark, keys) for mark, keys in SHARED if keys <= names), ("", frozenset()))


def parameters(command: Any) -> Iterator[str]:
    _, common = shared(command)
    for parameter in command.params:
        hidden = getattr(parameter, "hidden", False)
        if parameter.name in common or parameter.name == "help" or hidden:
            continue
        if parameter.param_type_name == "argument":
            yield f"`{parameter.metavar or parameter.name.upper()}`"
            continue
        text = f"`{'`, `'.join(parameter.opts)}`"
        described = getattr(parameter, "help", "") or ""
        yield f"{text}: {described}" if described else text


def rows() -> list[list[str]]:
    found = []
    for name, command in commands():
        text = cleandoc(command.help or "").split("\n\n")[0].replace("\n", " ")
        if not text:
            raise UndescribedError(f"{name}: no description")
        mark, _ = shared(command)
        listed = "<br>".join(each.replace("|", "\\|") for each in parameters(command))
        found.append([f"`{name}`{mark}", text, listed])
    return found
