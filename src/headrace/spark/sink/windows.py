"""Writing a window of rows once: what tasks stage, and what the driver closes.

Tasks stage their rows under the publisher's current run and tell the driver what they staged. The
driver closes the window with exactly that, so retried and speculative tasks leave no trace; a
window that was closed before is not published again. A server that does not know these commands
gets the rows directly, at least once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from headrace.errors import ConfigError
from headrace.spark.remote import Remote, Window
from headrace.wire.iggy.messages.extensions import StagedSpan

if TYPE_CHECKING:
    from headrace.spark.options import Delivery, Target
    from headrace.wire.iggy.batch import Positions

IN_FLIGHT_MAX = 4  # requests of one task: the next is made while the server syncs the last

Piece = tuple[int | None, memoryview, "Positions"]
"""Messages for a partition, or for one of the server's choice."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one task wrote. Without a window it is published already."""

    rows: int
    window: Window | None = None
    spans: tuple[StagedSpan, ...] = ()
    digest: bytes = b""
    labels: tuple[int, ...] = ()
    """What the messages of each span have in common, where somebody sorted them."""


async def publishes_windows(remote: Remote, target: Target, delivery: Delivery) -> bool:
    """Whether rows are delivered exactly once; ConfigError if they must be and cannot."""
    if delivery == "at-least-once":
        return False
    if await remote.publishes_windows():
        return True
    if delivery == "exactly-once":
        raise ConfigError(
            f"the server at {target.address} is a plain Iggy server, which cannot publish a window "
            "at once; set delivery=at-least-once, or delivery=auto to take what there is"
        )
    return False


class Delivering:
    """One task's rows on their way: staged for a window, or sent where that cannot be."""

    def __init__(self, remote: Remote, target: Target, window: Window | None) -> None:
        self._remote = remote
        self._target = target
        self._window = window
        self._digest = xxhash.xxh3_128()
        self._rows = 0
        self._spans: list[StagedSpan] = []
        self._under_way: deque[asyncio.Task[StagedSpan | int]] = deque()

    async def add(self, piece: Piece) -> None:
        """Returns while it is under way, unless too much is."""
        partition, area, starts = piece
        self._rows += len(starts)
        work: Coroutine[Any, Any, StagedSpan | int]
        if self._window is None:
            work = self._remote.send(self._target, partition, area, starts)
        else:
            self._digest.update(area)
            work = self._remote.stage(self._target, self._window, partition, area, starts)
        self._under_way.append(asyncio.get_running_loop().create_task(work))
        if len(self._under_way) >= IN_FLIGHT_MAX:
            await self._settle()

    async def finish(self) -> Delivered:
        """Acknowledged on return."""
        while self._under_way:
            await self._settle()
        if self._window is None:
            return Delivered(self._rows)
        return Delivered(self._rows, self._window, tuple(self._spans), self._digest.digest())

    async def cancel(self) -> None:
        """What was staged is never named to anyone; what was sent stays sent."""
        left, self._under_way = self._under_way, deque()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _settle(self) -> None:
        done = await self._under_way[0]
        self._under_way.popleft()
        if isinstance(done, StagedSpan):
            self._spans.append(done)


async def abandon(remote: Remote, window: Window) -> None:
    """Let go of what was staged for the only window of a publisher.

    It is closed without a row: tasks that are still at work are refused, and so is a close that is
    late. One that came before stands.
    """
    await remote.close_window(window, (), b"")


async def close(remote: Remote, delivered: Sequence[Delivered], index: bytes = b"") -> bool:
    """Publish what the tasks staged, in their order; False if the window was closed before.

    `index` is for who lists the windows of the topic.
    """
    windows = {each.window for each in delivered}
    if len(windows) != 1:
        raise ConfigError("the tasks of one write belong to different windows")
    (window,) = windows
    if window is None:
        return True
    spans = [span for each in delivered for span in each.spans]
    digest = xxhash.xxh3_128(b"".join(each.digest for each in delivered)).digest()
    rows = sum(each.rows for each in delivered)
    return await remote.close_window(window, spans, digest, rows=rows, index=index)
