"""Tasks owned by an object with a `close`: none outlives its owner, none fails unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.errors import HeadraceError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class TaskSet:
    """A TaskGroup for owners that are started and closed from different tasks.

    One failed task does not cancel the others. The tasks are in a dict, not in a set: its order is
    the order of creation, so that a simulated run cancels its tasks in the same order every time.
    """

    def __init__(self, name: str, *, log_failures: bool = True) -> None:
        """`log_failures` is off for an owner that keeps the outcome of its tasks by itself."""
        self._name = name
        self._log_failures = log_failures
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T], *, name: str = "") -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name} {name}".rstrip())
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry the work to its end even when the caller is cancelled.

        A thread cannot be called back: giving up its file or its lock before it is done would hand
        them to somebody else.
        """
        return await asyncio.shield(self.start(work))

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is None or isinstance(error, HeadraceError) or not self._log_failures:
            return
        # Awaiting the task raises it too; one that nobody awaits would otherwise fail unseen.
        _log.error("task failed: %s", task.get_name(), exc_info=error)

    async def finish(self) -> None:
        """Wait for what runs and for what that starts, whatever its outcome."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended."""
        current = asyncio.current_task()
        while waiting := [task for task in self._tasks if task is not current]:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
