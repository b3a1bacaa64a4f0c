"""Threads for blocking work.

Not a ThreadPoolExecutor: its futures, their locks and the chain from them to asyncio's own take
a third of the processor time of a call, and every group commit and every read of a file is
such a call (`benchmarks/hot_steps.py`). Here it is a queue's item and a callback into the loop.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Call: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class SystemExecutor:
    """Named threads. A cancelled `run` does not stop a function that has started."""

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
