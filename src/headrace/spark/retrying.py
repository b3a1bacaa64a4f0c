"""Doing something again after failures that pass: a broker that restarts costs a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from headrace.errors import DeadlineError, NotLeaderError, UnavailableError

T = TypeVar("T")

SECONDS = 30.0
PAUSE_SECONDS = 0.2
TRANSIENT = (UnavailableError, DeadlineError, NotLeaderError)


async def retry(attempt: Callable[[], Awaitable[T]], seconds: float = SECONDS) -> T:
    deadline = monotonic() + seconds
    while True:
        try:
            return await attempt()
        except TRANSIENT:
            if monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_SECONDS)
