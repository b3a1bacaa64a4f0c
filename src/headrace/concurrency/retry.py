"""Trying again, inside a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import DeadlineError, StateError
from headrace.runtime.interfaces import Runtime

T = TypeVar("T")

BACKOFF_MIN = 0.05
BACKOFF_MAX = 1.0


class Backoff:
    """Pauses that double from 50 ms to 1 s, jittered, until a deadline."""

    def __init__(self, runtime: Runtime, deadline: float) -> None:
        self._runtime = runtime
        self._deadline = deadline
        self._delay = BACKOFF_MIN

    @property
    def left(self) -> float:
        return self._deadline - self._runtime.clock.monotonic()

    async def pause(self) -> bool:
        """False, at once, when the pause would pass the deadline."""
        delay = self._delay * (0.5 + self._runtime.random.uniform() / 2)
        self._delay = min(self._delay * 2, BACKOFF_MAX)
        if delay >= self.left:
            return False
        await self._runtime.clock.sleep(delay)
        return True


async def retrying(runtime: Runtime, attempt: Callable[[float], Awaitable[T]], timeout: float) -> T:
    """Repeat `attempt`, which is told the seconds left, while its errors are retryable.

    The error of a last attempt that got no answer says what the one before it failed with.
    """
    backoff = Backoff(runtime, runtime.clock.monotonic() + timeout)
    answered: StateError | None = None
    while True:
        try:
            async with asyncio.timeout(max(backoff.left, 0.001)):
                return await attempt(max(backoff.left, 0.001))
        except TimeoutError:
            before = f" (before: {answered})" if answered is not None else ""
            raise DeadlineError(f"no answer in time{before}", timeout=timeout) from None
        except StateError as error:
            if not error.retryable or not await backoff.pause():
                raise
            answered = error
