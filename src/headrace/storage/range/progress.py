"""How far a range has come: its offsets, its status and the segments that hold it.

The parts of a `RangeLog` share one `RangeProgress`. It lives on the event loop and does no I/O.

Two offsets end what a range holds. Below `durable_offset` lies what this disk keeps by the range's
durability level; below `committed_offset` what enough replicas keep, which alone may be read. They
are one while this node's copy suffices, and again once the placement manager has decided the end
and enough replicas hold it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from enum import Enum

from headrace.errors import (
    CorruptionError,
    HeadraceError,
    RangeNotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.storage.layout import CorruptSpan, RangeState
from headrace.storage.range.recovery import RecoveredRange
from headrace.storage.segments.segment import Segment

NO_LIMIT = 1 << 63  # above every offset


class Status(Enum):
    OPEN = "open"
    SEALING = "sealing"  # refuses appends, not yet persisted
    SEALED = "sealed"
    COPYING = "being copied"  # sealed at a decided end that this disk has not reached
    FAILED = "failed"  # a write or sync failed
    REMOVED = "removed"
    CLOSED = "closed"  # the store stops


WRITABLE = (Status.OPEN, Status.COPYING)


def readable_limit(doubtful: int) -> int:
    """The offset that reads may not pass in a final range, see `RangeMetadata.doubtful`."""
    return NO_LIMIT if doubtful < 0 else doubtful


class OffsetWaiters:
    """Tasks that wait until an offset is reached."""

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
        """End the wait of every task whose offset lies below `reached`."""
        if not self._offsets:
            return
        for waiter, offset in list(self._offsets.items()):
            if offset < reached and not waiter.done():
                waiter.set_result(None)


class RangeProgress:
    """Mutated by the range's writer and by its control operations; everybody else only looks."""

    def __init__(self, recovered: RecoveredRange) -> None:
        metadata = recovered.metadata
        self.key = recovered.key
        self.metadata = metadata
        self.status = Status.SEALED if metadata.sealed else Status.OPEN
        self.segments = recovered.segments
        self.truncated_bytes = recovered.truncated_bytes
        self.start_offset = metadata.start
        self.next_offset = recovered.next_offset  # written or queued
        self.durable_offset = recovered.next_offset  # on this disk
        # Which offsets were committed before a restart is known only where nobody else is asked.
        alone = metadata.final or metadata.ack_quorum == 1
        self.commit_limit = readable_limit(metadata.doubtful) if alone else metadata.start
        self.committed_offset = min(self.durable_offset, self.commit_limit)
        # Held by whoever changes metadata or files: these operations run one at a time.
        self.exclusive = asyncio.Lock()
        self._committed_waiters = OffsetWaiters()
        self._durable_waiters = OffsetWaiters()

    @property
    def missing(self) -> tuple[int, int] | None:
        """[next offset, end) of a final range that copies have not filled durably yet."""
        if self.metadata.incomplete and self.durable_offset < self.metadata.end:
            return self.next_offset, self.metadata.end
        return None

    def set_committed(self, offset: int) -> None:
        """Raise what may be read; see `RangeLog.set_committed`."""
        if offset > self.commit_limit:
            self.commit_limit = offset
            self.advance()

    def advance(self) -> None:
        """Tell the waiting tasks that `durable_offset` or `commit_limit` rose."""
        self._durable_waiters.wake(self.durable_offset)
        committed = min(self.durable_offset, self.commit_limit)
        if committed > self.committed_offset:
            self.committed_offset = committed
            self._committed_waiters.wake(committed)

    async def wait_committed(self, offset: int) -> None:
        """Return when `offset` can be read, or never will be here."""
        while self.committed_offset <= offset and self.status is Status.OPEN:
            await self._committed_waiters.wait(offset)

    async def wait_durable(self, offset: int) -> None:
        """Return when `offset` is durable, or the range's status changed."""
        await self._durable_waiters.wait(offset)

    def wake_everyone(self) -> None:
        self._committed_waiters.wake(NO_LIMIT)
        self._durable_waiters.wake(NO_LIMIT)

    def refusal(self) -> HeadraceError:
        """Why the range refuses what was asked of it."""
        data = {"stream_id": self.key.stream_id, "range_index": self.key.range_index}
        if self.status is Status.REMOVED:
            return RangeNotFoundError("the stream was deleted", **data)
        if self.status is Status.CLOSED:
            return UnavailableError("the store is closing", **data)
        return SealedError(f"the range is {self.status.value}", **data)

    # Segments

    def active_segment(self) -> Segment | None:
        """The segment that takes batches, where there is one."""
        if self.segments and not self.segments[-1].closed:
            return self.segments[-1]
        return None

    def segment_at(self, offset: int) -> Segment:
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base) - 1
        if at < 0:
            missing = self.missing_front() or CorruptSpan(offset, offset + 1)
            raise CorruptionError("segment file is missing", start=missing.start, end=missing.end)
        return self.segments[at]

    def missing_front(self) -> CorruptSpan | None:
        """What segment files held that were lost before the first one that is there."""
        first = self.segments[0].base if self.segments else self.durable_offset
        return CorruptSpan(self.start_offset, first) if first > self.start_offset else None

    def corrupt(self) -> list[CorruptSpan]:
        """Without what was trimmed; a mark that was hit costs nobody a batch."""
        front, start = self.missing_front(), self.start_offset
        spans = [front] if front is not None else []
        for segment in self.segments:
            for span in segment.spans:
                if max(span.start, start) < span.end:
                    spans.append(CorruptSpan(max(span.start, start), span.end))
        return spans

    def damaged(self) -> list[CorruptSpan]:
        """As `corrupt`, but one span for each segment: what a repair deals with at once."""
        whole: list[CorruptSpan] = []
        last: Segment | None = None
        for span in self.corrupt():
            front = self.missing_front()
            segment = None if front is not None and span == front else self.segment_at(span.start)
            if whole and segment is not None and segment is last:
                whole[-1] = CorruptSpan(whole[-1].start, span.end)
            else:
                whole.append(span)
            last = segment
        return whole

    def state(self) -> RangeState:
        metadata = self.metadata
        return RangeState(
            key=self.key,
            start=self.start_offset,
            end=metadata.end,
            next_offset=self.next_offset,
            writer_epoch=metadata.writer_epoch,
            durability=metadata.durability,
            sealed=metadata.sealed,
            failed=self.status is Status.FAILED,
            corrupt=tuple(self.corrupt()),
            truncated_bytes=self.truncated_bytes,
            replicas=metadata.replicas,
            ack_quorum=metadata.ack_quorum,
            final=metadata.final,
            missing=self.missing,
        )
