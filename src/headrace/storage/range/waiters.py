"""Tasks that wait until an offset is reached."""

from __future__ import annotations

import asyncio


class Waiters:
    __slots__ = ("_offsets",)

    def __init__(self) -> None:
        self._offsets: dict[asyncio.Future[None], int] = {}

    async def wait(self, offset: int) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._offsets[waiter] = offset
        try:
            await waiter
        finally:
            self._offsets.pop(waiter, None)

    def wake(self, reached: int) -> None:
        """Whoever waits for an offset below `reached`."""
        if not self._offsets:
            return
        for waiter, offset in list(self._offsets.items()):
            if offset < reached and not waiter.done():
                waiter.set_result(None)
