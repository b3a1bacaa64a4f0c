"""Trying again after failures that pass, inside a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    MissingRecordsError,
    NotLeaderError,
    StateError,
    UnavailableError,
)
from headrace.runtime.interfaces import Runtime

T = TypeVar("T")

BACKOFF_MIN = 0.05
BACKOFF_MAX = 1.0


class Backoff:
    """Pauses that double from 50 ms to 1 s, jittered, until a deadline."""

    def __init__(
        self, runtime: Runtime, deadline: float, *, seconds_max: float = BACKOFF_MAX
    ) -> None:
        self._runtime = runtime
        self._deadline = deadline
        self._seconds_max = seconds_max
        self._delay = BACKOFF_MIN

    @property
    def left(self) -> float:
        return self._deadline - self._runtime.clock.monotonic()

    def next_delay(self) -> float | None:
        """The seconds of the next pause; None when it would pass the deadline."""
        delay = self._delay * (0.5 + self._runtime.random.uniform() / 2)
        self._delay = min(self._delay * 2, self._seconds_max)
        return delay if delay < self.left else None

    async def pause(self) -> bool:
        """False, at once, when the pause would pass the deadline."""
        delay = self.next_delay()
        if delay is None:
            return False
        await self._runtime.clock.sleep(delay)
        return True


TRANSIENT = (UnavailableError, DeadlineError, NotLeaderError, MissingRecordsError)
"""Failures of a request that a broker which restarts, or is replaced, explains."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which failures are tried again, how patiently, and whether a deadline ends an attempt."""

    errors: tuple[type[HeadraceError], ...]
    pause_seconds_max: float
    cut_off: bool
    """Whether the deadline ends an attempt that runs. Without, every attempt has its own."""


INSIDE = RetryPolicy((StateError,), BACKOFF_MAX, cut_off=True)
"""Between the services of a cluster."""
OUTSIDE = RetryPolicy(TRANSIENT, 0.2, cut_off=False)
"""For clients. A broker that restarts costs them a short pause."""


async def retry(
    runtime: Runtime,
    attempt: Callable[[float], Awaitable[T]],
    seconds: float,
    policy: RetryPolicy = INSIDE,
    *,
    on_failure: Callable[[HeadraceError], None] | None = None,
) -> T:
    """Repeat `attempt`, which is told the seconds left, while its errors are retryable.

    `on_failure` hears of each failure after which it is tried again. The error of a last attempt
    that got no answer says what the one before it failed with.
    """
    backoff = Backoff(
        runtime, runtime.clock.monotonic() + seconds, seconds_max=policy.pause_seconds_max
    )
    answered: HeadraceError | None = None
    while True:
        left = max(backoff.left, 0.001)
        try:
            async with asyncio.timeout(left if policy.cut_off else None):
                return await attempt(left)
        except TimeoutError:
            if not policy.cut_off:
                raise
            before = f" (before: {answered})" if answered is not None else ""
            raise DeadlineError(f"no answer in time{before}", timeout=seconds) from None
        except policy.errors as error:
            delay = backoff.next_delay() if error.retryable else None
            if delay is None:
                raise
            if on_failure is not None:
                on_failure(error)
            answered = error
        await runtime.clock.sleep(delay)
