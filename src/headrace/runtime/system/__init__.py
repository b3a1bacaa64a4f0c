"""The Runtime of a real machine: clock, randomness, threads and memory here, files, sockets and
processes in the modules beside this one.

Nothing else in the project may import what these modules import.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeAlias, TypeVar

from headrace.runtime.interfaces import Clock, Random, Runtime
from headrace.runtime.system.disk import SystemDisk
from headrace.runtime.system.network import SystemTransport
from headrace.runtime.system.processes import SystemProcesses

P = ParamSpec("P")

_Call: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class SystemExecutor:
    """Named threads for blocking work. A cancelled `run` does not stop a function that has started.

    This is no ThreadPoolExecutor: the futures of one, their locks and the chain from them to
    asyncio's own take a third of the processor time of a call, and every group commit and every
    read of a file is such a call (`benchmarks/hot_steps.py`). Here a call is an item of a queue and
    a callback into the loop.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._threads_max = threads
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._outstanding = 0
        self._closed = False

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise RuntimeError(f"executor {self._name} is closed")
        call = functools.partial(function, *args, **kwargs) if args or kwargs else function
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._outstanding += 1
        if self._outstanding > len(self._threads) < self._threads_max:
            self._start_thread()
        self._calls.put((loop, done, call))
        return await done

    def close(self) -> None:
        """Wait for what was handed over."""
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        # Whoever ends without `close` must not be kept from ending by a thread that waits.
        thread = Thread(target=_work, args=(self._calls, self._finish), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _finish(self, done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._outstanding -= 1
        if done.done():  # nobody waits any more
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


def _work(calls: SimpleQueue[_Call | None], finish: Callable[..., None]) -> None:
    while (item := calls.get()) is not None:
        loop, done, call = item
        result: Any = None
        error: BaseException | None = None
        if not done.cancelled():
            try:
                result = call()
            except BaseException as raised:
                error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(finish, done, result, error)
        item = done = call = result = error = None  # type: ignore[assignment]  # let go meanwhile


T = TypeVar("T")


class SystemClock(Clock):
    monotonic = staticmethod(time.monotonic)  # asked several times for each request

    def time_ns(self) -> int:
        return time.time_ns()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

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


MAPPED_BYTES_MIN = 32 << 20  # larger buffers still come from the kernel, and go back to it
KEPT_BYTES_MAX = 128 << 20  # free at the end of the heap: above it the kernel gets it back

# <malloc.h> of glibc
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8


@cache
def keep_freed_memory() -> bool:
    """Have the C library keep up to KEPT_BYTES_MAX of freed memory for the next buffers.

    By default the C library gives large buffers back to the kernel, and every page of the next one
    costs a fault: 0.2 to 3 µs for 4 KiB, depending on the (virtual) machine, as much as copying the
    page ten times. Frames, batches and columns are such buffers, and the next one is always on its
    way. Spark's workers call this; servers, whose threads free what the loop made, are no faster.

    False where that cannot be said (another C library). Once per process is enough, before the
    process starts threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena: those of threads are cut into small heaps, which come and go with large buffers.
    settings = {
        _ARENA_MAX: 1,
        _MMAP_THRESHOLD: MAPPED_BYTES_MIN,
        _TRIM_THRESHOLD: KEPT_BYTES_MAX,
    }
    done = [mallopt(name, value) for name, value in settings.items()]
    return done == [1] * len(settings)
