"""What `headrace` runs in a process: started whole or not at all, closed in reverse order."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from headrace.errors import HeadraceError
from headrace.web.metrics.checks import Observed


class Role(ABC):
    def __init__(self) -> None:
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self.lost = asyncio.Event()
        """Set when it cannot go on and the process should end."""

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    @property
    def failure(self) -> HeadraceError | None:
        """Why it was lost, if it knows."""
        return None

    @abstractmethod
    async def _start(self) -> None:
        """Put a closer for each part that was started."""

    @abstractmethod
    def addresses(self) -> dict[str, str]:
        """Where clients and peers reach it, as `host:port`."""

    def observed(self) -> Sequence[Observed]:
        """What runs here, for `/metrics` and `/ready`; asked before it starts."""
        return ()

    async def close(self) -> None:
        """Each part outlives those that use it."""
        while self._closers:
            await self._closers.pop()()
