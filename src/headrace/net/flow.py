"""How much a connection may have in flight, and how a server under pressure asks its peers to
pause.

The pause is told in `throttle_time_ms`. Levels go from 0 (empty) to 1 (full: the next one is
refused). Below three quarters nobody is asked to pause; from there the pause rises to what it
takes, roughly, to work off what is queued. A peer whose APPEND was refused (status 1429) is always
told when to come again. Channels honour it: the next request to that node is delayed by it,
heartbeats are not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Protocol

from headrace.wire.sbp.errors import StatusCode
from headrace.wire.sbp.messages import OK, AppendResponse, FetchResponse, Message


class Pool(Protocol):
    """What several gates share."""

    def on_change(self, count: int) -> None:
        """So many bytes more, or fewer, are in flight."""

    def fits(self, size: int) -> bool: ...

    def call_when_roomy(self, gate: Gate) -> None:
        """`admit` is called when what did not fit may."""


class Gate:
    """Admits requests in the order they come while count and bytes in flight stay in bounds.

    When nothing is in flight a request of any size is admitted: its own limit is the frame's. With
    a pool, what all its gates have in flight has to fit as well.
    """

    def __init__(self, count_max: int, bytes_max: int, pool: Pool | None = None) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._pool = pool
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self.held = False
        self.count = 0
        self.bytes = 0

    async def enter(self, size: int) -> None:
        """Wait for room; without waiting when there is some and nobody came before."""
        if self.enter_at_once(size):
            return
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((admitted, size))
        if self._pool is not None:
            self._pool.call_when_roomy(self)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self.admit()  # drops it, and lets in who stood behind it
            else:
                self.leave(size)  # admitted in the same moment
            raise

    def enter_at_once(self, size: int) -> bool:
        """Without waiting, if it need not be."""
        if self._waiting or self.held or not self._fits(size):
            return False
        self._take(size)
        return True

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def hold(self) -> None:
        """Admit nobody until `release`."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self.admit()

    @property
    def is_full(self) -> bool:
        """Whether somebody would have to wait, however little it brings."""
        return bool(self._waiting) or not self._fits(0)

    def force(self, size: int) -> None:
        """Enter past whoever waits: for what is in memory already."""
        self._take(size)

    def resize(self, before: int, after: int) -> None:
        """Somebody inside turned out smaller, or larger, than it said."""
        self._change(after - before)
        self.admit()

    def leave(self, size: int) -> None:
        self.count -= 1
        self._change(-size)
        self.admit()

    def admit(self) -> None:
        while self._waiting:
            admitted, size = self._waiting[0]
            if not admitted.done():
                if self.held or not self._fits(size):
                    return
                self._take(size)
                admitted.set_result(None)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        if self._pool is not None and not self._pool.fits(size):
            return False
        if not self.count:
            return True
        return self.count < self._count_max and self.bytes + size <= self._bytes_max

    def _take(self, size: int) -> None:
        self.count += 1
        self._change(size)

    def _change(self, count: int) -> None:
        self.bytes += count
        if self._pool is not None:
            self._pool.on_change(count)


LEVEL_START = 0.75
ROLE_PAUSE_MS_MAX = 500  # 128 MiB before a disk of 250 MB/s
CONNECTION_PAUSE_MS_MAX = 50  # 32 MiB that are being worked on
REFUSED_PAUSE_MS_MIN = 100
HONOURED_SECONDS_MAX = 30.0
"""Whatever a peer says: a longer pause would look like a dead channel."""


def pause_ms(level: float, longest_ms: int) -> int:
    """Nothing below the start, `longest_ms` when full."""
    over = (min(level, 1.0) - LEVEL_START) / (1.0 - LEVEL_START)
    return max(0, round(over * longest_ms))


def with_pause(message: Message, pause: int) -> Message:
    """The answer to an APPEND or FETCH with that pause in it; others are not throttled."""
    if isinstance(message, AppendResponse):
        for result in message.append_responses:
            if result.status is not OK and _is_refused(result.status):
                pause = max(pause, REFUSED_PAUSE_MS_MIN)
        return replace(message, throttle_time_ms=pause) if pause else message
    if pause and isinstance(message, FetchResponse):
        return replace(message, throttle_time_ms=pause)
    return message


def _is_refused(status: object) -> bool:
    return getattr(status, "code", 0) == StatusCode.TOO_MANY_REQUESTS


def seconds_of(milliseconds: object) -> float:
    """How long to pause for what a peer sent; 0 or negative is none."""
    if not isinstance(milliseconds, int) or milliseconds <= 0:
        return 0.0
    return min(milliseconds / 1000, HONOURED_SECONDS_MAX)
