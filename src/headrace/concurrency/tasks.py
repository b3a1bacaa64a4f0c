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

    A dict, not a set: its order is the order of creation, so that a simulated run cancels its
    tasks in the same order every time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T], *, name: str = "") -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name} {name}".rstrip())
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, HeadraceError):
            # Awaiting the task raises it too; one that nobody awaits would otherwise fail unseen.
            _log.error("task failed: %s", task.get_name(), exc_info=error)

    async def finish(self) -> None:
        """Wait for what runs, whatever its outcome."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended."""
        current = asyncio.current_task()
        while waiting := [task for task in self._tasks if task is not current]:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
