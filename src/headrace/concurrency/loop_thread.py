"""An event loop in a thread of its own, for callers that block.

A notebook has a loop running in the caller's thread already, and a producer must send while its
caller does something else: neither goes with running a loop only during each call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from concurrent.futures import Future
from typing import TypeVar

from headrace.errors import DeadlineError, UnavailableError
from headrace.runtime.system import new_event_loop

T = TypeVar("T")


class LoopThread:
    """Started at once; the thread ends with `close`, or with the process."""

    def __init__(self, name: str = "headrace") -> None:
        self._process = os.getpid()
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False after `close`, and in a process that was forked: its threads stayed behind."""
        return self._process == os.getpid() and not self._loop.is_closed()

    def submit(self, work: Awaitable[T]) -> Future[T]:
        """Start the work and return at once. UnavailableError where no loop is alive."""
        if not self.alive:
            if isinstance(work, Coroutine):
                work.close()  # else Python warns that nobody waited for it
            raise UnavailableError("the client is closed, or was made before this process forked")

        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def run(self, work: Awaitable[T], seconds: float | None = None) -> T:
        """Wait for the work, DeadlineError after so many seconds. Ctrl-C cancels it."""
        future = self.submit(work)
        try:
            return future.result(seconds)
        except BaseException as error:
            future.cancel()
            if seconds is not None and isinstance(error, TimeoutError):
                raise DeadlineError("no answer from the server", seconds=seconds) from None
            raise

    def iterate(self, found: AsyncIterator[T], seconds: float | None = None) -> Iterator[T]:
        """What an asynchronous iterator gives; let go of when the caller stops looking."""
        ended = object()
        try:
            while (item := self.run(anext(found, ended), seconds)) is not ended:
                yield item  # type: ignore[misc]  # it is not the end, so it is an item
        finally:
            if self.alive and hasattr(found, "aclose"):
                self.run(found.aclose(), seconds)

    def close(self) -> None:
        """Cancel what runs, then end the thread. A second time it does nothing."""
        if not self.alive:
            return
        self.run(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
