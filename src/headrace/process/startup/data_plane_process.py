"""The life of `headrace up`: start, report, wait, stop; and the child that is the control plane.

The two processes share a pipe. The parent writes what the child must know as its first line and
then keeps it open; when it closes, by a clean stop or because the parent was killed, the child
ends. So nothing is ever orphaned.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

import msgspec

from headrace.broker.term.snapshot import Diagnostics
from headrace.config.settings import Settings, shown_settings
from headrace.errors import ConfigError, UnavailableError
from headrace.observability.escaping import note
from headrace.observability.logging import Format, RecentLines, get_logger
from headrace.process.data_plane import DataPlane
from headrace.process.secrets import load_http_token
from headrace.process.startup.announcing import print_ready, tell_root, write_ready_file
from headrace.process.startup.machine_figures import Figures, list_processes
from headrace.process.startup.observing import make_endpoint
from headrace.process.startup.server_note import remove_note, write_note
from headrace.process.startup.serving_loop import stop_on_signals, unless_stopped
from headrace.runtime.system import system_runtime

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
RESTART_SECONDS_MIN = 1.0
RESTART_SECONDS_MAX = 30.0
WELL_SECONDS = 60.0  # after so long an end counts as the first one
SILENT_SECONDS = 60.0
READY_LINE = b"ready\n"  # what a server in the background writes for whoever started it

log = get_logger(__name__)


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


def child_arguments() -> list[str]:
    return [sys.executable, "-m", "headrace.process.startup.control_plane_process"]


class ControlChild:
    """The control plane's process, started again when it dies."""

    def __init__(self, told: dict[str, Any], log: TextIO | None = None) -> None:
        self._told = told
        self._log = log
        """Where its messages go; None: where ours do."""
        self._process: asyncio.subprocess.Process | None = None
        self.addresses: dict[str, str] = {}

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *child_arguments(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the parent, who then closes the pipe
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # One that follows another takes its ports, so that its address stays good.
        order = {**self._told, "before": self.addresses}
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        try:
            async with asyncio.timeout(READY_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        told = json.loads(line) if line else {"error": "it said nothing; its messages tell more"}
        if "error" in told:
            await self.stop()
            if told.get("config"):
                raise ConfigError(told["error"])
            raise UnavailableError(f"the control plane did not start: {told['error']}")
        self.addresses = told

    async def keep(self) -> None:
        """Start it again whenever it ends; the log does not stop for a page."""
        pause, loop = RESTART_SECONDS_MIN, asyncio.get_running_loop()
        while True:
            began = loop.time()
            status = await self._wait_ended()
            if loop.time() - began >= WELL_SECONDS:
                pause = RESTART_SECONDS_MIN
            log.error("control plane ended", exit_status=status, restart_in_s=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RESTART_SECONDS_MAX)
            try:
                await self.start()
            except (UnavailableError, ConfigError, OSError) as error:  # no memory: later perhaps
                log.error("control plane not started", reason=str(error))

    async def _wait_ended(self) -> int:
        """It says something every few seconds while it lives. One that does not is stuck, holds the
        port, and is ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    if not await self._process.stdout.readline():
                        break  # it closed its end, so it is ending
            async with asyncio.timeout(STOP_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            log.error("control plane does not answer and is killed", silent_s=SILENT_SECONDS)
        except ValueError as error:  # a line without an end: not from us
            log.error("control plane is killed", reason=str(error))
        with suppress(ProcessLookupError):
            self._process.kill()
        return await self._process.wait()

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def serve(
    settings: Settings,
    *,
    ready_file: str,
    log_format: Format,
    background: Background | None = None,
) -> None:
    stop = stop_on_signals()
    plane = _make_plane(settings)
    endpoint = make_endpoint(settings, plane.observed())
    log_file, output = (background.log_file, background.log) if background else ("", None)
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
        figures=Figures(settings.data_dir),
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


async def _wait(stop: asyncio.Event, plane: DataPlane, child: ControlChild) -> None:
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
