"""headrace up and down: the data plane in this process, the control plane in a child of it. With
--workers the data plane is in several children, and this process watches over them.

With --detach the command returns when the server accepts clients. The server is then a process of
its own session. Until it is ready it has the terminal of whoever started it, so that a first
password or the reason of a failure is read there; from then on everything it says goes to its log.
It tells that it is ready by a line on standard output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from headrace.cli.declare import command, option
from headrace.cli.server import role_options as o
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.config.settings import Settings

STOP_SECONDS = 120.0
_ASK_SECONDS = 0.05


@command("up")
@o.data_dir_option
@o.host_option
@o.iggy_port_option
@o.iggy_host_option
@o.quic_port_option
@o.placement_port_option
@o.node_port_option
@o.http_port_option
@o.dev_option
@o.insecure_option
@o.ready_file_option
@o.config_option
@o.metrics_port_option
@o.workers_option
@o.log_format_option
@o.detach_option
@o.background_log_option
def up(
    data_dir: str | None,
    host: str | None,
    iggy_port: int | None,
    iggy_host: str | None,
    quic_port: int | None,
    placement_port: int | None,
    node_port: int | None,
    http_port: int | None,
    dev: bool,
    insecure: bool,
    ready_file: str,
    config: str,
    metrics_port: int | None,
    workers: int | None,
    log_format: Literal["text", "json"],
    detach: bool,
    background_log: str,
) -> None:
    """Run everything on this machine: log, broker, controller, dashboard. Ctrl-C stops it."""
    from headrace.observability.logging import configure_logging
    from headrace.process.startup.settings import load_settings
    from headrace.runtime.system import run

    overrides = {
        "data_dir": data_dir,
        "host": host,
        "iggy_port": iggy_port,
        "iggy_host": iggy_host,
        "quic_port": quic_port,
        "placement_port": placement_port,
        "node_port": node_port,
        "http_port": http_port,
        "dev": dev or None,
        "insecure": insecure or None,
        "metrics_port": metrics_port,
        "workers": workers,
    }
    settings = load_settings(config, overrides)
    if detach:
        given = {**overrides, "config": config, "ready_file": ready_file, "log_format": log_format}
        _run_detached(settings, _as_options(given))
        return
    from headrace.process.startup.data_plane_process import Background, serve
    from headrace.process.startup.observing import observing
    from headrace.process.startup.server_note import explaining_start

    background = Background(background_log) if background_log else None
    output = background.log if background is not None else None
    configure_logging(format=log_format, role="data-plane", output=output)
    with observing(settings, "data-plane", log_format), explaining_start(settings):
        run(serve(settings, ready_file=ready_file, log_format=log_format, background=background))


def _as_options(given: Mapping[str, Any]) -> list[str]:
    """As they would be typed."""
    options: list[str] = []
    for name, value in given.items():
        if value is True:
            options.append(f"--{name.replace('_', '-')}")
        elif value is not None and value != "":
            options.append(f"--{name.replace('_', '-')}={value}")
    return options


def _run_detached(settings: Settings, arguments: list[str]) -> None:
    """Start `headrace up` with these arguments and wait until it is ready or has failed."""
    from headrace.errors import ConfigError, LockedError, StateError
    from headrace.process.startup.data_plane_process import READY_LINE, open_log
    from headrace.process.startup.server_note import LOG, describe_running, read_note

    data_dir = settings.data_dir
    there = read_note(data_dir)
    if there is not None:
        raise LockedError(describe_running(data_dir, there))
    try:
        os.makedirs(data_dir, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {data_dir}: {error.strerror}; choose --data-dir") from error
    log = str(Path(data_dir, LOG))
    open_log(log).close()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "up", *arguments, "--background-log", log],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline() == READY_LINE
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


@command("down")
@option("--data-dir", help="The data directory it was started on.")
@o.config_option
def down(data_dir: str | None, config: str) -> None:
    """Stop a `headrace up` that runs in the background, or in another terminal; waits for it."""
    from headrace.errors import StateError, UnavailableError
    from headrace.process.startup.server_note import read_note
    from headrace.process.startup.settings import load_settings

    folder = load_settings(config, {"data_dir": data_dir}).data_dir
    there = read_note(folder)
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
