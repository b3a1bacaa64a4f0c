"""One caller at a time: by key among the tasks of a loop, and among threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType


@dataclass(slots=True)
class _KeyState:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedLock:
    """A lock for each key; a key costs nothing while nobody holds it or waits for it."""

    def __init__(self) -> None:
        self._keys: dict[Hashable, _KeyState] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _KeyState()
        state.users += 1
        try:
            async with state.lock:
                yield
        finally:
            state.users -= 1
            if not state.users:
                del self._keys[key]


class ThreadLock:
    """Held in a `with`, not twice by the same thread. Spark calls back in threads of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
