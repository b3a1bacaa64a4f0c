"""One range: an open one takes appends, every one serves reads.

Operations that change metadata run one at a time and to their end, even when their caller is
cancelled: the metadata on disk is never older than what was answered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from headrace.errors import CorruptionError, FencedError, OffsetOutOfRangeError, OffsetOverflowError
from headrace.observability.logging import get_logger
from headrace.storage.metadata import RangeMetadata
from headrace.storage.model import CorruptSpan, RangeState, SegmentInfo
from headrace.storage.reader import FreshDamage
from headrace.storage.segment import Segment
from headrace.storage.writer import RangeWriter, Status

log = get_logger(__name__)


class RangeLog(RangeWriter):
    """See `LogStore`. Not constructed by callers."""

    def state(self) -> RangeState:
        spans = [
            span for segment in self._segments for span in segment.spans if span.start < span.end
        ]
        missing = self._missing_front()
        return RangeState(
            key=self.key,
            start=self.start_offset,
            end=self.end_offset,
            next_offset=self.next_offset,
            writer_epoch=self.writer_epoch,
            durability=self.durability,
            sealed=self.sealed,
            failed=self.failed,
            corrupt=tuple([missing, *spans] if missing else spans),
            truncated_bytes=self._truncated_bytes,
        )

    def segments(self) -> list[SegmentInfo]:
        """Closed segments and the active one, oldest first; whole files, whatever was trimmed."""
        return [segment.info() for segment in self._segments if segment.content_bytes]

    # Reading

    async def read(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """Whole batches from the one that contains `offset`, at least one if any is acknowledged.

        Each view holds one or more whole batches, in order. Empty at the acknowledged end.
        """
        stop = self.durable_offset
        if offset == stop and offset >= self.start_offset:
            return []
        self._check_offset(offset, stop)
        cached = self.read_cached(offset, max_bytes)
        if cached:
            return cached
        max_bytes = min(max_bytes, self._settings.read_bytes_max)
        self._shared.cache.misses += 1
        segment = self._segment_at(offset)
        try:
            return await self._io.read(segment, offset, stop=stop, max_bytes=max_bytes)
        except FreshDamage as error:
            await self._on_damage(segment, error)
        return await self._io.read(segment, offset, stop=stop, max_bytes=max_bytes)

    def read_cached(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """As `read`, of what is in memory; none when the offset is not, whatever the reason."""
        stop = self.durable_offset
        if not self.start_offset <= offset < stop or self._status is Status.REMOVED:
            return ()
        max_bytes = min(max_bytes, self._settings.read_bytes_max)
        cached = self._tail.read(offset, stop=stop, max_bytes=max_bytes)
        if not cached:
            return ()
        self._shared.cache.hits += 1
        return cached

    def _check_offset(self, offset: int, stop: int) -> None:
        if self._status is Status.REMOVED:
            raise self._refusal()
        if offset < self.start_offset or (self.sealed and offset > stop):
            raise OffsetOutOfRangeError(offset=offset, start=self.start_offset, end=stop)
        if offset > stop:
            raise OffsetOverflowError(offset=offset, end=stop)

    def _segment_at(self, offset: int) -> Segment:
        at = bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1
        if at < 0:
            missing = self._missing_front() or CorruptSpan(offset, offset + 1)
            raise CorruptionError("segment file is missing", start=missing.start, end=missing.end)
        return self._segments[at]

    def _missing_front(self) -> CorruptSpan | None:
        first = self._segments[0].base if self._segments else self.durable_offset
        return CorruptSpan(self.start_offset, first) if first > self.start_offset else None

    async def _on_damage(self, segment: Segment, error: FreshDamage) -> None:
        """Find out how far the damage goes; reading again then tells it from what is intact."""
        log.error("damage met by a read", path=segment.path, error=str(error))
        await self._io.rescan(segment)

    async def offset_at(self, timestamp_ms: int) -> int:
        """The first batch whose highest timestamp reaches this; the acknowledged end if none."""
        start, stop = self.start_offset, self.durable_offset
        for segment in list(self._segments):
            if segment.max_timestamp < timestamp_ms or segment.end_offset <= start:
                continue
            try:
                found = await self._io.find_time(
                    segment, timestamp_ms, from_offset=start, stop=stop
                )
            except FreshDamage as error:
                await self._on_damage(segment, error)
                found = await self._io.find_time(
                    segment, timestamp_ms, from_offset=start, stop=stop
                )
            if found is not None:
                return max(found, start)
        return stop

    # Control

    async def seal(self, *, writer_epoch: int = -1, end: int | None = None) -> int:
        """End the range for ever; persisted before return. Returns its end, the same every time.

        Queued appends are refused, a group already being written is awaited. `end` lowers the end
        to what the placement manager decided; batches from it on are no longer part of the range.
        """
        return await self._shared.tasks.run(self._seal(writer_epoch, end))

    async def _seal(self, writer_epoch: int, end: int | None) -> int:
        async with self._control:
            self._check_epoch(writer_epoch)
            if self._status in (Status.REMOVED, Status.CLOSED):
                raise self._refusal()
            if self._status is Status.OPEN:
                self._status = Status.SEALING
                self._drop_pending()
                await self._settled.wait()
            active = self._active()
            if active is not None and self._status is Status.SEALING:
                await self._sync_or_fail(active)
            found = self._metadata.end if self.sealed else self.durable_offset
            if end is not None and self.start_offset <= end < found:
                found = end
            epoch = max(writer_epoch, self.writer_epoch)
            await self._save(end=found, sealed=True, writer_epoch=epoch)
            self._status = Status.SEALED
            self.next_offset = self.durable_offset = found
            self._shared.active.pop(self, None)
            self._wake_waiters(everyone=True)
            if active is not None and not active.closed:
                active.closed = True
                self._shared.tasks.spawn(self._finish_segment(active))
            return found

    async def set_epoch(self, epoch: int) -> None:
        """Raise the writer epoch; persisted before return. A lower one is fenced."""
        await self._shared.tasks.run(self._set_epoch(epoch))

    async def _set_epoch(self, epoch: int) -> None:
        async with self._control:
            self._check_epoch(epoch)
            await self._save(writer_epoch=max(epoch, self.writer_epoch))

    def _check_epoch(self, epoch: int) -> None:
        if -1 < epoch < self.writer_epoch:
            raise FencedError(
                "a higher writer epoch exists", found=epoch, current=self.writer_epoch
            )

    async def trim(self, offset: int) -> None:
        """Give up everything below `offset`; persisted before return. Below the start: no change.

        Whole segments below it are removed, but never the active one: where a segment ends depends
        on its content alone.
        """
        await self._shared.tasks.run(self._trim(offset))

    async def _trim(self, offset: int) -> None:
        async with self._control:
            if self._status is Status.REMOVED:
                raise self._refusal()
            if offset > self.durable_offset:
                raise OffsetOutOfRangeError(offset=offset, end=self.durable_offset)
            if offset > self.start_offset:
                await self._save(start=offset)
                self.start_offset = offset
            gone = [each for each in self._segments if each.closed and each.end_offset <= offset]
            self._segments = [each for each in self._segments if each not in gone]
            await self._io.remove(gone)

    async def sync(self) -> None:
        """Everything appended so far is durable when this returns, whatever the level."""
        await self._shared.tasks.run(self._sync())

    async def _sync(self) -> None:
        target = self.next_offset
        while self.durable_offset < target:
            if self._status in (Status.FAILED, Status.REMOVED):
                raise self._refusal()
            if self._status is not Status.OPEN:  # a seal drops what it cannot keep
                break
            await self.wait_for(target - 1)
        active = self._active()
        if active is not None and active.synced_position < active.position:
            await self._sync_or_fail(active)

    async def verify(self) -> tuple[CorruptSpan, ...]:
        """Read everything and check it; the corrupt spans."""
        for segment in list(self._segments):
            if not segment.removed:
                await self._shared.tasks.run(self._io.rescan(segment))
        return self.state().corrupt

    async def _save(self, **changes: object) -> None:
        metadata: RangeMetadata = msgspec.structs.replace(self._metadata, **changes)
        if metadata != self._metadata:
            await self._io.save_metadata(metadata)
            self._metadata = metadata

    # Keeping: what the store calls

    async def close(self) -> bool:
        """Sync and save; whether the next open may go on where this one ended."""
        async with self._control:
            failed = self.failed
            for segment in self._segments:
                if not failed and segment.saved_position < segment.position:
                    await self._io.finish(segment)
            return not failed

    async def remove(self) -> None:
        """Refuse everything from now on and let go of the files."""
        self._status = Status.REMOVED
        self._drop_pending()
        self._shared.active.pop(self, None)
        self._wake_waiters(everyone=True)
        async with self._control:
            await self._settled.wait()
            self._shared.cache.forget(self._tail)
            for segment in self._segments:
                self._shared.pool.discard(segment)
