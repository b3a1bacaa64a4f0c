"""An event loop in a thread of its own, for callers that block.

A notebook has a loop running in the caller's thread already, and a producer must send while its
caller does something else: neither goes with running a loop only during each call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Started at once; the thread ends with `close`, or with the process."""

    def __init__(self, name: str = "headrace") -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False after `close`, and in a process that was forked: its threads stayed behind."""
        return self._process == os.getpid() and not self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for it. Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

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
