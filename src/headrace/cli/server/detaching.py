"""headrace up --detach, which returns when the server accepts clients, and headrace down.

The server is a process of its own session. Until it is ready it has the terminal of whoever
started it, so that a first password or the reason of a failure is read there; from then on
everything it says goes to its log. It tells that it is ready by a line on standard output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from headrace.cli.declare import command, option
from headrace.cli.output import note
from headrace.cli.server import role_options as o
from headrace.cli.server import running
from headrace.errors import ConfigError, LockedError, StateError, UnavailableError

if TYPE_CHECKING:
    from headrace.config.settings import Settings

STOP_SECONDS = 120.0
_ASK_SECONDS = 0.05
_READY = b"ready\n"


class Background:
    """The server's side: its log, and the moment from which it has no terminal any more."""

    def __init__(self, log_file: str) -> None:
        self.log_file = log_file
        self.log: TextIO = open_log(log_file)

    def tell_ready(self) -> None:
        os.write(1, _READY)
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor in (1, 2):
            os.dup2(self.log.fileno(), descriptor)


def open_log(path: str) -> TextIO:
    """Lines are added to it. For its owner alone: it names topics, users and addresses."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose --data-dir") from error
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1)


def run_detached(settings: Settings, arguments: list[str]) -> None:
    """Start `headrace up` with these arguments and wait until it is ready or has failed."""
    data_dir = settings.data_dir
    there = running.read_note(data_dir)
    if there is not None:
        raise LockedError(told_running(data_dir, there))
    try:
        os.makedirs(data_dir, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {data_dir}: {error.strerror}; choose --data-dir") from error
    log = str(Path(data_dir, running.LOG))
    open_log(log).close()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "up", *arguments, "--background-log", log],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline() == _READY
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    if not ready:
        status = process.wait()
        if status < 0:
            raise StateError(f"the server was ended by signal {-status}; its log is {log}")
        raise click.exceptions.Exit(status or 1)  # it has said why
    note(f"it runs in the background: process {process.pid}, log {log}")
    note(f"  stop it with  headrace down --data-dir {data_dir}")


def told_running(data_dir: str, there: running.Running) -> str:
    """In the words of an error."""
    where = f", Iggy clients on {there.addresses['iggy']}" if "iggy" in there.addresses else ""
    return (
        f"headrace already runs on {data_dir} (process {there.pid}{where}); "
        f"stop it with `headrace down --data-dir {data_dir}`, or choose another --data-dir"
    )


@command("down")
@option("--data-dir", help="The data directory it was started on.")
@o.config_option
def down(data_dir: str | None, config: str) -> None:
    """Stop a `headrace up` that runs in the background, or in another terminal; waits for it."""
    from headrace.cli.server.up import load_settings

    folder = load_settings(config, {"data_dir": data_dir}).data_dir
    there = running.read_note(folder)
    if there is None:
        raise UnavailableError(
            f"no `headrace up` runs on {folder}; name the one it runs on with --data-dir"
        )
    try:
        os.kill(there.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just ended by itself
    except PermissionError as error:
        raise StateError(f"process {there.pid} belongs to another user; stop it as that") from error
    deadline = time.monotonic() + STOP_SECONDS
    while there.is_alive():
        if time.monotonic() > deadline:
            raise StateError(
                f"process {there.pid} was asked to stop and has not yet; "
                f"see {there.log or 'what it says in its terminal'}"
            )
        time.sleep(_ASK_SECONDS)
    note(f"headrace on {folder} has stopped")
