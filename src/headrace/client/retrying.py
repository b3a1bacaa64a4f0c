"""Doing something again after failures that pass: a broker that restarts costs a pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import DeadlineError, NotLeaderError, UnavailableError
from headrace.runtime.interfaces import Clock

T = TypeVar("T")

SECONDS = 30.0
PAUSE_SECONDS = 0.2
TRANSIENT = (UnavailableError, DeadlineError, NotLeaderError)


async def retry(attempt: Callable[[], Awaitable[T]], clock: Clock, seconds: float = SECONDS) -> T:
    deadline = clock.monotonic() + seconds
    while True:
        try:
            return await attempt()
        except TRANSIENT:
            if clock.monotonic() > deadline:
                raise
        await clock.sleep(PAUSE_SECONDS)
