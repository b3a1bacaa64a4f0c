"""The life of `headrace up`: start, report, wait, stop; the control plane is a child of it.

With one worker the data plane is in this process. With several it is in as many children, and this
process has the placement manager and watches over them (`worker_supervision.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any, TextIO

import msgspec

from headrace.broker.term.snapshot import Diagnostics
from headrace.config.settings import Settings, shown_settings
from headrace.errors import ConfigError, UnavailableError
from headrace.observability.escaping import note
from headrace.observability.logging import Format, RecentLines
from headrace.process.data_plane import DataPlane
from headrace.process.node_folders import find_nodes
from headrace.process.roles import Role
from headrace.process.secrets import load_http_token
from headrace.process.startup.child_process import ControlChild
from headrace.process.startup.observing import MachineFigures, list_processes, make_endpoint
from headrace.process.startup.server_note import remove_note, write_note
from headrace.process.startup.serving import (
    print_ready,
    stop_on_signals,
    tell_root,
    unless_stopped,
    write_ready_file,
)
from headrace.process.startup.worker_supervision import (
    SupervisedPlane,
    count_workers,
    on_one_host,
    usable_cores,
)
from headrace.runtime.system import system_runtime

READY_LINE = b"ready\n"  # what a server in the background writes for whoever started it


class Background:
    """The server's side: its log, and the moment from which it has no terminal any more."""

    def __init__(self, log_file: str) -> None:
        self.log_file = log_file
        self.log: TextIO = open_log(log_file)

    def tell_ready(self) -> None:
        os.write(1, READY_LINE)
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


async def serve(
    settings: Settings,
    *,
    ready_file: str,
    log_format: Format,
    background: Background | None = None,
) -> None:
    stop = stop_on_signals()
    log_file, output = (background.log_file, background.log) if background else ("", None)
    workers = count_workers(settings.workers, usable_cores())
    nodes = max(workers, len(await find_nodes(system_runtime(), settings.data_dir)))
    settings = on_one_host(settings, nodes)
    plane = (
        _make_plane(settings)
        if workers == 1
        else SupervisedPlane(
            system_runtime(),
            settings,
            workers=workers,
            log_format=log_format,
            output=output,
            on_root=tell_root,
        )
    )
    endpoint = make_endpoint(settings, plane.observed())
    child: ControlChild | None = None
    await endpoint.start()
    try:
        if not await unless_stopped(stop, plane.start()):
            return
        write_note(settings.data_dir, plane.addresses(), log_file)
        child = ControlChild(_told(settings, plane.addresses(), log_format=log_format), output)
        if not await unless_stopped(stop, child.start()):
            return
        addresses = {**plane.addresses(), **child.addresses, **endpoint.addresses()}
        write_note(settings.data_dir, addresses, log_file)
        https = settings.tls.mode == "required"
        print_ready(
            addresses,
            plane.authority_path,
            https=https,
            attached=background is None,
            token=_http_token(settings) if settings.dev else "",
        )
        if ready_file:
            write_ready_file(ready_file, addresses)
        if background is not None:
            background.tell_ready()
        await _wait(stop, plane, child)
    finally:
        if child is not None:
            note("stopping")
            await child.stop()
            remove_note(settings.data_dir)
        await plane.close()
        await endpoint.close()


def _make_plane(settings: Settings) -> DataPlane:
    recent = RecentLines()
    logging.getLogger().addHandler(recent)
    return DataPlane(
        system_runtime(),
        settings,
        on_root=tell_root,
        figures=MachineFigures(settings.data_dir),
        diagnostics=Diagnostics(
            data_dir=settings.data_dir,
            settings=shown_settings(settings),
            processes=list_processes,
            logs=recent.text,
        ),
    )


def _http_token(settings: Settings) -> str:
    """The control plane made it before it said that it is ready."""
    runtime = system_runtime()
    return load_http_token(runtime.disk, runtime.random, settings.data_dir)


def _told(settings: Settings, addresses: dict[str, str], *, log_format: Format) -> dict[str, Any]:
    if settings.metrics_port > 0:
        settings = msgspec.structs.replace(settings, metrics_port=settings.metrics_port + 1)
    return {"settings": settings, "addresses": addresses, "log_format": log_format}


async def _wait(stop: asyncio.Event, plane: Role, child: ControlChild) -> None:
    """Until somebody asks to stop, or the broker is no longer the leader."""
    waits = [
        asyncio.create_task(stop.wait()),
        asyncio.create_task(plane.lost.wait()),
        asyncio.create_task(child.keep()),
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    if plane.lost.is_set():
        raise UnavailableError("another broker took over the leadership; this one stops")
