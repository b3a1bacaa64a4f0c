"""Background tasks of a store, all of them ended by its `close`.

Not an asyncio.TaskGroup: one failed read must not cancel the store's other work, and the store is
no block of code that a `with` could surround.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskSet:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry the work to its end even when the caller is cancelled.

        A thread cannot be called back: giving up its file or its lock before it is done would hand
        them to somebody else.
        """
        return await asyncio.shield(self.spawn(work))

    async def join(self) -> None:
        """Wait for everything, including what it spawns."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.join()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; a caller that left does not want it
