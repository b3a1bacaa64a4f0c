"""The event loop of a process that serves until it is asked to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

# A busy event loop delays the thread that waits in fdatasync by up to this long each time.
SWITCH_INTERVAL_SECONDS = 0.0005


def stop_on_signals() -> asyncio.Event:
    """Prepare the running loop for serving. The event is set by SIGINT and SIGTERM."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def unless_stopped(stop: asyncio.Event, starting: Coroutine[Any, Any, None]) -> bool:
    """Whether `starting` came to its end; False when somebody asked to stop before."""
    started = asyncio.create_task(starting)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([started, stopped], return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            await started
        return started.done()
    finally:
        for task in (started, stopped):
            task.cancel()
        await asyncio.gather(started, stopped, return_exceptions=True)
