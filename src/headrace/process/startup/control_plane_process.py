"""The process of the control plane, a child of `headrace up` that is started as a module.

The first line of stdin says what to serve. When stdin ends the parent is gone or wants an end, and
so does this process; containers end with it. When it is killed they go on, and the next one adopts
them. One line on stdout says that it is ready, and where, or why it is not; empty ones follow as
long as it lives.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from typing import Any, Literal

import msgspec

from headrace.config.settings import Settings
from headrace.errors import ConfigError, HeadraceError
from headrace.observability.logging import configure_logging, get_logger
from headrace.process.control_plane import ControlPlane
from headrace.process.startup.observing import make_endpoint, observing
from headrace.runtime.system import run, system_runtime

ALIVE_SECONDS = 5.0
CLOSE_SECONDS = 25.0  # less than the parent waits before it kills us


class StartOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What `headrace up` gives the process of its control plane, as a line of JSON."""

    settings: Settings
    addresses: dict[str, str]
    """Where the parts of the data plane listen."""
    log_format: Literal["text", "json"] = "text"
    before: dict[str, str] = {}
    """Where the last control plane was, when this one follows it."""


async def serve(order: StartOrder) -> int:
    loop = asyncio.get_running_loop()
    orphaned = asyncio.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and closes the pipe
    loop.add_signal_handler(signal.SIGTERM, orphaned.set)

    def watch_parent() -> None:
        # Not through sys.stdin, whose lock a thread that still waits would keep when we end.
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(orphaned.set)

    threading.Thread(target=watch_parent, daemon=True).start()
    plane = ControlPlane(
        system_runtime(),
        order.settings,
        order.addresses,
        environment=dict(os.environ),
        before=order.before,
        alone=True,
    )
    endpoint = make_endpoint(order.settings, plane.observed())
    await endpoint.start()
    try:
        await plane.start()
        gc.freeze()  # what is loaded stays: to look it through again and again holds the loop up
        addresses = plane.addresses()
        if "metrics" in endpoint.addresses():
            addresses["control_metrics"] = endpoint.addresses()["metrics"]
        print(msgspec.json.encode(addresses).decode(), flush=True)
        alive = asyncio.create_task(_tell_alive())
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(orphaned.wait()),
            asyncio.create_task(plane.wait_ended()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        alive.cancel()
        await asyncio.gather(alive, *tasks, return_exceptions=True)
        return 0 if orphaned.is_set() else 1
    finally:
        # Whatever holds the end up, the next one waits for it.
        watchdog = threading.Timer(CLOSE_SECONDS, os._exit, (1,))
        watchdog.daemon = True
        watchdog.start()
        await plane.close()
        await endpoint.close()


async def _tell_alive() -> None:
    """A line now and then: who hears none takes us for stuck."""
    while True:
        await asyncio.sleep(ALIVE_SECONDS)
        print(flush=True)


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=StartOrder)
    configure_logging(format=order.log_format, role="control-plane")
    try:
        with observing(order.settings, "control-plane", order.log_format):
            return run(serve(order))
    except HeadraceError as error:
        get_logger(__name__).error("control plane failed", reason=str(error))
        failed = {"error": str(error), "config": isinstance(error, ConfigError)}
        print(msgspec.json.encode(failed).decode(), flush=True)
        return 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # No end that waits for threads: one sits in stdin for good, and one may be at work.
    os._exit(status)
