"""The whole tree of commands: each is described, each that prints data prints JSON, each starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import completion
from headrace.cli.main import app
from tests.cli_page import commands

COMMANDS = dict(commands())
PAGE = Path("docs/cli.md").read_text()

# They run until they are stopped, or only say on standard error that something is done.
SERVE = {"up", "demo", "placement-manager", "data-node", "broker", "controller", "cluster start"}
CHANGE = {
    "add", "change", "delete", "disable", "enable", "kill", "log-level", "password", "purge",
    "remove", "rename", "replay", "resume", "roll-back", "scale", "set", "stop", "use",
}  # fmt: skip
TEXT = {
    "pipeline plan",  # JSON in any case
    "server snapshot",  # a file
}


def parameters(command: Any) -> dict[str, Any]:
    return {parameter.name: parameter for parameter in command.params}


def test_commands_are_noun_then_verb() -> None:
    nouns = {name.split()[1] for name in COMMANDS if len(name.split()) == 3}
    assert nouns >= {
        "stream", "topic", "partition", "segment", "group", "offset", "user", "permission", "token",
        "client", "cluster", "node", "range", "pipeline", "container", "operator", "window",
        "event", "profile",
    }  # fmt: skip
    assert all(len(name.split()) <= 3 for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name.removeprefix("headrace "))
def test_every_command_is_described(name: str) -> None:
    command, short = COMMANDS[name], name.removeprefix("headrace ")
    text = (command.help or "").strip()
    assert len(text) > 10
    assert text.split("\n\n")[0].rstrip().endswith((".", ":"))
    told = parameters(command)
    silent = short in SERVE | TEXT or short.split()[-1] in CHANGE
    if not silent:
        assert "--json" in told["as_json"].opts
    assert f"`{name}`" in PAGE


def test_help_is_shown() -> None:
    done = CliRunner().invoke(app, ["range", "show", "--help"])
    assert (done.exit_code, "STREAM-ID" in done.stdout) == (0, True)


def test_groups_are_described() -> None:
    root = typer.main.get_command(app)
    for name, group in getattr(root, "commands", {}).items():
        assert group.help, name


def test_wrong_usage_exits_with_2() -> None:
    for line in (["stream", "create"], ["nothing"], ["topic", "show", "no-slash"]):
        assert CliRunner().invoke(app, line).exit_code == 2, line


def test_completion_never_fails_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROFILE", "")
    context = typer.Context(typer.main.get_command(app))
    context.params = {"address": "127.0.0.1:1", "http": "127.0.0.1:1"}
    looks = (completion.streams, completion.topics, completion.users, completion.pipelines)
    for look in looks:
        assert look(context, "a") == []


def _seconds(*arguments: str) -> float:
    """Of processor: what else runs on the machine does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_command_line_starts_quickly() -> None:
    """Under 300 ms, or as many times a start of Python with its usual modules, for machines differ:
    0.2 s against 0.06 on an idle one. The best of several, taken in turn."""
    bare, ours = [], []
    for _ in range(4):
        bare.append(_seconds("-c", "import asyncio, json, inspect, typing"))
        ours.append(_seconds("-m", "headrace.cli.main", "--version"))
    assert min(ours) < 0.3 or min(ours) / min(bare) < 5, (ours, bare)


def test_nothing_heavy_is_imported_at_the_start() -> None:
    code = (
        "import sys, headrace.cli.main as m; m.typer.main.get_command(m.app); "
        "print([n for n in ('numpy', 'pyspark', 'pyarrow', 'httpx', 'rich.table', 'asyncio', "
        "'google.protobuf', 'cryptography', 'starlette') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
