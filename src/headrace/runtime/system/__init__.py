"""The Runtime of a real machine: clock, randomness and threads here, files, sockets and processes
in the modules beside this one. Nothing else in the project may import what these import."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.runtime.interfaces import Clock, Random, Runtime
from headrace.runtime.system.disk import SystemDisk
from headrace.runtime.system.executor import SystemExecutor
from headrace.runtime.system.network import SystemTransport
from headrace.runtime.system.processes import SystemProcesses

T = TypeVar("T")


class SystemClock(Clock):
    monotonic = staticmethod(time.monotonic)  # asked several times for each request

    def time_ns(self) -> int:
        return time.time_ns()

    def now_us(self) -> int:
        return time.time_ns() // 1_000  # at once: it stamps every batch

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemRandom(Random):
    """The kernel's generator throughout: nobody then has to ask whether a use is a secret."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def bytes(self, length: int) -> bytes:
        return os.urandom(length)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def uniform(self) -> float:
        return self._random.random()


def system_runtime() -> Runtime:
    return Runtime(
        clock=SystemClock(),
        random=SystemRandom(),
        disk=SystemDisk(),
        transport=SystemTransport(),
        processes=SystemProcesses(),
        executor=SystemExecutor,
    )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program's main coroutine."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it exists (nowhere on Windows): it hands large writes on as they are."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
