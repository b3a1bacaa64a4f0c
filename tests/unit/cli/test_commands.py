"""The whole tree of commands: each is described, each that prints data prints JSON, each starts."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from headrace.cli import main, server_names
from headrace.cli.command_table import COMMANDS as FIRST
from headrace.cli.command_table import load
from headrace.cli.main import app
from tests.cli_page import commands

COMMANDS = dict(commands())
PAGE = Path("docs/cli.md").read_text()

# They run until they are stopped, or only say on standard error that something is done.
SERVE = {"up", "demo", "placement-manager", "data-node", "broker", "controller", "cluster start"}
CHANGE = {
    "add", "change", "delete", "disable", "down", "enable", "kill", "log-level", "password",
    "purge", "remove", "rename", "replay", "resume", "roll-back", "scale", "set", "stop", "use",
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


@pytest.mark.parametrize("name", FIRST)
def test_a_row_of_the_table_says_what_its_command_is(name: str) -> None:
    command = load(name)
    assert (command.name, bool(command.help)) == (name, True)
    assert FIRST[name].sentence.endswith(".")


def test_the_help_lists_every_command_with_its_sentence() -> None:
    for width in ("80", "100"):
        done = CliRunner().invoke(app, ["--help"], env={"COLUMNS": width})
        assert done.exit_code == 0
        for name, entry in FIRST.items():
            assert re.search(rf"^  {name} +{re.escape(entry.sentence)}$", done.stdout, re.M), name
        assert max(map(len, done.stdout.splitlines())) < int(width)


def test_nothing_at_all_is_the_help() -> None:
    done = CliRunner().invoke(app, [])
    assert (done.exit_code, "Topics and consumers:" in done.output) == (2, True)
    assert "stack-trace" in CliRunner().invoke(app, ["container"]).output


def test_a_name_with_a_slip_gets_a_suggestion() -> None:
    done = CliRunner().invoke(app, ["toppic", "list"])
    assert (done.exit_code, "Did you mean 'topic'" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("headrace to", {"top", "topic", "token"}),
        ("headrace topic ", {"create", "list", "show", "update", "purge", "delete"}),
        ("headrace topic create --part", {"--partitions"}),
        ("headrace bench pro", {"produce"}),
    ],
)
def test_a_shell_is_offered_what_fits(line: str, offered: set[str]) -> None:
    words = line.split(" ")
    completing = {
        "_HEADRACE_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = _run("--no-such-option", **completing)
    assert set(done.stdout.split()) == {f"plain,{each}" for each in offered}
    assert not {"pydantic", "rich", "asyncio"} & _modules(done)


def test_wrong_usage_exits_with_2() -> None:
    for line in (["stream", "create"], ["nothing"], ["topic", "show", "no-slash"]):
        assert CliRunner().invoke(app, line).exit_code == 2, line


def test_completion_never_fails_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROFILE", "")
    context = click.Context(app)
    parameter = click.Argument(["name"])
    context.params = {"address": "127.0.0.1:1", "http": "127.0.0.1:1"}
    looks = (server_names.streams, server_names.topics, server_names.users, server_names.pipelines)
    for look in looks:
        assert look(context, parameter, "a") == []


_PROGRAM = (
    "import sys; sys.argv[0] = 'headrace'; from headrace.cli.main import main\n"
    "try: main()\n"
    "finally: print('MODULES', *sys.modules, file=sys.stderr)"
)


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def _modules(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(done.stderr.split("MODULES")[1].split())


HEAVY = {
    "asyncio", "cryptography", "google.protobuf", "httpx", "numpy", "pandas", "pyarrow", "pydantic",
    "pyspark", "rich", "starlette", "uvicorn",
}  # fmt: skip


@pytest.mark.parametrize("line", ["--help", "--version", "topic --help", "topic create --help"])
def test_nothing_heavy_is_imported_to_answer(line: str) -> None:
    done = _run(*line.split())
    assert done.returncode == 0
    assert "headrace" in done.stdout
    found = _modules(done)
    assert not HEAVY & found
    others = {name for name in found if name.startswith("headrace.cli.")}
    assert ("headrace.cli.topics.topics" in others, "headrace.cli.topics.users" in others) == (
        line.startswith("topic"),
        False,
    )


def test_a_command_imports_what_it_needs_to_connect_and_no_more() -> None:
    done = _run("topic", "list", "shop", "--address", "127.0.0.1:1")
    assert (done.returncode, "cannot connect" in done.stderr) == (1, True)
    assert HEAVY & _modules(done) == {"asyncio"}
    done = _run("pipeline", "list", "--http", "127.0.0.1:1")
    assert (done.returncode, "refused" in done.stderr) == (1, True)
    assert not (HEAVY - {"asyncio"}) & _modules(done)


def _seconds(environment: dict[str, str], *arguments: str) -> float:
    """Of processor: what else runs on the machine does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    subprocess.run(command, check=False, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_command_line_starts_quickly(tmp_path: Path) -> None:
    """On an idle machine `--help` takes 0.08 s and a command 0.2 s until it connects; machines
    differ, so they may also take so many times what the library's own import takes there. The best
    of several, in turn, until it is enough; with modules compiled as an installation has them."""
    lines = {
        "--help": 1.7, "--version": 2.0, "topic list shop --address 127.0.0.1:1": 4.0,
        "pipeline list --http 127.0.0.1:1": 4.0,
    }  # fmt: skip
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    compiled.pop("PYTHONDONTWRITEBYTECODE", None)
    library: list[float] = []
    ours: dict[str, list[float]] = {line: [] for line in lines}
    for _ in range(15):  # the first one compiles
        library.append(_seconds(compiled, "-c", "import click, click.shell_completion"))
        for line, taken in ours.items():
            taken.append(_seconds(compiled, "-m", "headrace.cli.main", *line.split()))
        slow = [
            line for line, times in lines.items()
            if min(ours[line]) > max(0.22, times * min(library))
        ]  # fmt: skip
        if not slow:
            break
    assert not slow, (ours, library)


@pytest.mark.parametrize(
    ("shell", "path", "settings"),
    [
        ("bash", ".bash_completions/headrace.sh", ".bashrc"),
        ("zsh", ".zfunc/_headrace", ".zshrc"),
        ("fish", ".config/fish/completions/headrace.fish", None),
    ],
)
def test_completion_is_installed_once_however_often(
    shell: str, path: str, settings: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_current_shell", lambda: shell)
    monkeypatch.setenv("HOME", str(tmp_path))
    if settings is not None:
        (tmp_path / settings).write_text("alias a=b\n")
    for _ in range(2):
        done = CliRunner().invoke(app, ["--install-completion"])
        assert (done.exit_code, str(tmp_path / path) in done.output) == (0, True)
    assert f"{shell}_complete" in (tmp_path / path).read_text()
    assert (tmp_path / path).read_text() in CliRunner().invoke(app, ["--show-completion"]).output
    if settings is not None:
        lines = (tmp_path / settings).read_text().splitlines()
        assert lines[0] == "alias a=b"
        assert len(set(lines)) == len(lines) > 1


def test_a_shell_that_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_current_shell", lambda: "tcsh")
    for line in ("--install-completion", "--show-completion"):
        done = CliRunner().invoke(app, [line])
        assert (done.exit_code, "tcsh is not supported" in done.output) == (1, True)


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.profiles.load", interrupt)
    assert CliRunner().invoke(app, ["profile", "list"]).exit_code == 130
