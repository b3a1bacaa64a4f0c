"""A `Process` that is a task of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class FakeProcess:
    def __init__(self, pid: int, work: Coroutine[Any, Any, int]) -> None:
        self.pid = pid
        self.exit_status: int | None = None
        self._task = asyncio.ensure_future(work)
        self._ended = asyncio.Event()
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[int]) -> None:
        if self.exit_status is None:
            failed = task.cancelled() or task.exception() is not None
            self.exit_status = 1 if failed else task.result()
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.exit_status is not None
        return self.exit_status

    def terminate(self) -> None:
        self._signal(-15)

    def kill(self) -> None:
        self._signal(-9)

    def _signal(self, status: int) -> None:
        if self.exit_status is None:
            self.exit_status = status
            self._task.cancel()
