"""The life of `headrace up`: start, report, wait, stop; and the child that is the control plane.

The two processes share a pipe. The parent writes what the child must know as its first line and
then keeps it open; when it closes, by a clean stop or because the parent was killed, the child
ends. So nothing is ever orphaned.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from contextlib import suppress
from typing import Any

import msgspec

from headrace.assembly.data_plane import DataPlane
from headrace.broker.snapshot import Diagnostics
from headrace.cli.figures import Figures, list_processes
from headrace.cli.observing import make_endpoint
from headrace.cli.output import note
from headrace.cli.root import tell_root
from headrace.cli.up import (
    READY_SECONDS,
    SWITCH_INTERVAL_SECONDS,
    child_arguments,
    print_ready,
    write_ready_file,
)
from headrace.config.settings import Settings
from headrace.errors import UnavailableError
from headrace.observability.logging import Format, get_logger
from headrace.observability.recent import RecentLines
from headrace.runtime.system import system_runtime

STOP_SECONDS = 30.0
RESTART_SECONDS_MIN = 1.0
RESTART_SECONDS_MAX = 30.0

log = get_logger(__name__)


class ControlChild:
    """The control plane's process, started again when it dies."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._process: asyncio.subprocess.Process | None = None
        self.addresses: dict[str, str] = {}

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *child_arguments(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent, who then closes the pipe
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # One that follows another takes its ports, so that its address stays good.
        told = {**self._told, "before": self.addresses}
        self._process.stdin.write(msgspec.json.encode(told) + b"\n")
        try:
            async with asyncio.timeout(READY_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            await self.stop()
            raise UnavailableError("the control plane did not start; see its messages above")
        self.addresses = json.loads(line)

    async def keep(self) -> None:
        """Start it again whenever it ends; the log does not stop for a page."""
        pause = RESTART_SECONDS_MIN
        while True:
            assert self._process is not None
            status = await self._process.wait()
            log.error("control plane ended", exit_status=status, restart_in_s=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RESTART_SECONDS_MAX)
            with suppress(UnavailableError):
                await self.start()

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


async def serve(settings: Settings, *, ready_file: str, log_format: Format) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    figures = Figures(settings.data_dir)
    recent = RecentLines()
    logging.getLogger().addHandler(recent)
    plane = DataPlane(
        system_runtime(),
        settings,
        on_root=tell_root,
        figures=figures,
        diagnostics=Diagnostics(
            data_dir=settings.data_dir,
            settings=msgspec.to_builtins(settings),
            processes=list_processes,
            logs=recent.text,
        ),
    )
    endpoint = make_endpoint(settings, plane.observed())
    await endpoint.start()
    try:
        await plane.start()
    except BaseException:
        await endpoint.close()
        raise
    child = ControlChild(_told(settings, plane.addresses(), log_format=log_format))
    try:
        await child.start()
        addresses = {**plane.addresses(), **child.addresses, **endpoint.addresses()}
        https = settings.tls.mode == "required"
        print_ready(addresses, plane.authority_path, https=https)
        if ready_file:
            write_ready_file(ready_file, addresses)
        await _wait(stop, plane, child)
    finally:
        note("stopping")
        await child.stop()
        await plane.close()
        await endpoint.close()


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
