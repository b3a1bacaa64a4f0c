"""Doing something again after failures that pass: a broker that restarts costs a pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    MissingRecordsError,
    NotLeaderError,
    UnavailableError,
)
from headrace.runtime.interfaces import Clock

T = TypeVar("T")

SECONDS = 30.0
PAUSE_SECONDS = 0.2
TRANSIENT = (UnavailableError, DeadlineError, NotLeaderError, MissingRecordsError)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    clock: Clock,
    seconds: float = SECONDS,
    *,
    on_failure: Callable[[HeadraceError], None] | None = None,
) -> T:
    """`on_failure` hears of each failure after which it is tried again."""
    deadline = clock.monotonic() + seconds
    while True:
        try:
            return await attempt()
        except TRANSIENT as error:
            if clock.monotonic() > deadline:
                raise
            if on_failure is not None:
                on_failure(error)
        await clock.sleep(PAUSE_SECONDS)
