"""The process of one worker, a child of `headrace up` or `headrace broker`, started as a module.

The first line of stdin says what to serve. Further lines ask for steps, each answered by a line on
stdout when it is done: `serve` (start the broker, because the data nodes of all workers are there)
and, for an orderly stop, `retire` (take over nothing any more), `close broker` and `end` (close the
data nodes, then the process). When stdin ends without that, the parent was killed, and this process
ends at once, as it would have with the parent: the others are ending too, so there is nobody left
to hand anything over to.

Lines on stdout are JSON. One says that the worker is ready, and where, or why it is not; empty ones
say that it lives. The number of the worker is an argument only for people who list processes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from headrace.broker.service import RootCredentials
from headrace.broker.term.snapshot import Diagnostics
from headrace.config.settings import Settings, shown_settings
from headrace.errors import ConfigError, HeadraceError, UnavailableError
from headrace.observability.logging import RecentLines, configure_logging, get_logger
from headrace.process.startup.observing import (
    MachineFigures,
    list_processes,
    make_endpoint,
    observing,
)
from headrace.process.startup.serving import SWITCH_INTERVAL_SECONDS, unless_stopped
from headrace.process.worker_plane import WorkerPlane, port_again
from headrace.runtime.system import run, system_runtime

ALIVE_SECONDS = 5.0
CLOSE_SECONDS = 25.0  # less than the parent waits before it kills us
SERVE, RETIRE, CLOSE_BROKER, END = "serve", "retire", "close broker", "end"

log = get_logger(__name__)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    number: int
    nodes: tuple[int, ...]
    """Numbers of the data nodes that it runs."""
    placement_managers: tuple[str, ...]
    secret: bytes = b""
    """The cluster's; nothing: it is in the data directory."""
    machine: str = ""
    """What the workers of this machine have in common, in a cluster that has several."""
    cluster_uuid: str = ""
    waits: bool = False
    """The broker is started when the parent asks for it."""
    leads_first: bool = False
    """It is ready when its broker leads; the others follow."""
    log_format: Literal["text", "json"] = "text"
    before: dict[str, str] = {}
    """Where the worker of this number was, when this one follows it."""


class ParentPipe:
    """Our end of the pipe: the first line at once, the others from a thread that waits for them."""

    def __init__(self) -> None:
        self._received = b""

    def read_line(self) -> bytes:
        """Without its end; nothing when the pipe ended. Not through sys.stdin, which would keep
        what follows, and whose lock a thread that still waits would keep when we end."""
        while b"\n" not in self._received:
            data = os.read(0, 65536)
            if not data:
                return b""
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Hand over each line; returns only to end the process."""
        ending = False
        while line := self.read_line().decode():
            ending = ending or line == END
            on_line(line)
        if not ending:
            os._exit(1)


async def serve(told: Told, pipe: ParentPipe) -> int:
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    loop = asyncio.get_running_loop()
    steps: asyncio.Queue[str] = asyncio.Queue()
    asked = asyncio.Event()

    def on_step(step: str) -> None:
        steps.put_nowait(step)
        asked.set()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and tells us
    loop.add_signal_handler(signal.SIGTERM, on_step, END)
    watch = threading.Thread(
        target=pipe.watch,
        args=(lambda line: loop.call_soon_threadsafe(on_step, line),),
        daemon=True,
    )
    watch.start()
    settings = await _settings(told)
    plane = _make_plane(told, settings)
    endpoint = make_endpoint(settings, plane.observed())
    alive = asyncio.create_task(_tell_alive())
    await endpoint.start()
    try:
        started = await unless_stopped(asked, plane.start())
        if started and told.waits:
            _say({"nodes": plane.addresses()})
            await asked.wait()
            if steps.get_nowait() == SERVE:
                asked.clear()
            else:
                on_step(END)
                started = False
        if started and await unless_stopped(asked, plane.serve(leads=told.leads_first)):
            gc.freeze()  # as in `control_plane_process.py`
            addresses = {**plane.addresses(), **endpoint.addresses()}
            _say({"ready": addresses, "holder": plane.holder})
        await _take_steps(plane, steps)
        return 0
    finally:
        # Whatever holds the end up, the next one waits for it.
        watchdog = threading.Timer(CLOSE_SECONDS, os._exit, (1,))
        watchdog.daemon = True
        watchdog.start()
        await plane.close()
        await endpoint.close()
        alive.cancel()


async def _settings(told: Told) -> Settings:
    """With the port for metrics that the worker had before, where any will do."""
    settings = told.settings
    if settings.metrics_port == 0 and "metrics" in told.before:
        host = settings.observability.metrics_host
        port = await port_again(system_runtime(), host, told.before["metrics"])
        settings = msgspec.structs.replace(settings, metrics_port=port)
    return settings


def _make_plane(told: Told, settings: Settings) -> WorkerPlane:
    recent = RecentLines()
    logging.getLogger().addHandler(recent)
    return WorkerPlane(
        system_runtime(),
        settings,
        number=told.number,
        nodes=told.nodes,
        placement_managers=told.placement_managers,
        secret=told.secret,
        machine=told.machine,
        cluster_uuid=told.cluster_uuid,
        before=told.before,
        on_root=_tell_root,
        figures=MachineFigures(settings.data_dir),
        diagnostics=Diagnostics(
            data_dir=settings.data_dir,
            settings=shown_settings(settings),
            processes=list_processes,
            logs=recent.text,
        ),
    )


async def _take_steps(plane: WorkerPlane, steps: asyncio.Queue[str]) -> None:
    """Until it is to end, or its broker cannot go on."""
    while True:
        step = asyncio.ensure_future(steps.get())
        lost = asyncio.ensure_future(plane.lost.wait())
        await asyncio.wait([step, lost], return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if not step.done():
            step.cancel()
            raise plane.failure or UnavailableError("the worker's broker cannot go on")
        match step.result():
            case "retire":
                await plane.retire()
            case "close broker":
                await plane.close_broker()
            case _:
                return
        _say({"done": step.result()})


def _tell_root(root: RootCredentials) -> None:
    """Our parent has the terminal."""
    _say({"root": [root.username, root.password, root.generated]})


async def _tell_alive() -> None:
    """A line now and then: who hears none takes us for stuck."""
    while True:
        await asyncio.sleep(ALIVE_SECONDS)
        print(flush=True)


def _say(told: dict[str, Any]) -> None:
    print(msgspec.json.encode(told).decode(), flush=True)


def main() -> int:
    pipe = ParentPipe()
    told = msgspec.json.decode(pipe.read_line(), type=Told)
    configure_logging(format=told.log_format, role="worker", fields={"worker": told.number})
    try:
        with observing(told.settings, "worker", told.log_format):
            return run(serve(told, pipe))
    except HeadraceError as error:
        log.error("worker failed", reason=str(error))
        _say({"error": str(error), "config": isinstance(error, ConfigError)})
        return 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # No end that waits for threads: one sits in stdin for good, and one may be at work.
    os._exit(status)
