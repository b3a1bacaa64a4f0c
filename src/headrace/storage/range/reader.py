"""The read half of a range: what may be read, from memory or from its segments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from headrace.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
)
from headrace.observability.logging import get_logger
from headrace.storage.layout import CorruptSpan, RangeState, SegmentInfo
from headrace.storage.range.tail_cache import Batch
from headrace.storage.range.writer import RangeWriter, Status
from headrace.storage.segments.reader import FreshDamage, Located
from headrace.storage.segments.segment import Segment
from headrace.wire.sbp.records import decode_header

log = get_logger(__name__)


class RangeReader(RangeWriter):
    def state(self) -> RangeState:
        return RangeState(
            key=self.key,
            start=self.start_offset,
            end=self.end_offset,
            next_offset=self.next_offset,
            writer_epoch=self.writer_epoch,
            durability=self.durability,
            sealed=self.sealed,
            failed=self.failed,
            corrupt=tuple(self.corrupt()),
            truncated_bytes=self._truncated_bytes,
            replicas=self.replicas,
            ack_quorum=self.ack_quorum,
            final=self.final,
            missing=self.missing,
        )

    def corrupt(self) -> list[CorruptSpan]:
        """Without what was trimmed; a mark that was hit costs nobody a batch."""
        front, start = self._missing_front(), self.start_offset
        spans = [front] if front is not None else []
        for segment in self._segments:
            for span in segment.spans:
                if max(span.start, start) < span.end:
                    spans.append(CorruptSpan(max(span.start, start), span.end))
        return spans

    def damaged(self) -> list[CorruptSpan]:
        """As `state().corrupt`, but one span for each segment: what a repair deals with at once."""
        whole: list[CorruptSpan] = []
        last: Segment | None = None
        for span in self.corrupt():
            front = self._missing_front()
            segment = None if front is not None and span == front else self._segment_at(span.start)
            if whole and segment is not None and segment is last:
                whole[-1] = CorruptSpan(whole[-1].start, span.end)
            else:
                whole.append(span)
            last = segment
        return whole

    def segments(self) -> list[SegmentInfo]:
        """Closed segments and the active one, oldest first; whole files, whatever was trimmed."""
        return [segment.info() for segment in self._segments if segment.content_bytes]

    async def read(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """Whole batches from the one that contains `offset`, at least one if any is committed.

        Each view holds one or more whole batches, in order. Empty at the committed end, unless the
        range is sealed and goes on elsewhere: RangeNotFoundError then, for another replica knows.
        """
        stop = self.committed_offset
        self._check_offset(offset, stop)
        if offset >= stop:
            if self._goes_on_elsewhere():
                raise self._not_here(offset)
            return []
        return self.read_cached(offset, max_bytes) or await self._read(offset, stop, max_bytes)

    async def locate(self, offset: int) -> Located | None:
        """The file that holds what `read` would return, and what follows it there, up to what is
        committed now; None where only a read can tell. The file may be removed at any time, and
        an offset be given up while its bytes are still there."""
        if not self._is_readable(offset):
            return None
        segment = self._segment_at(offset)
        located = await self._io.locate(segment, offset, stop=self.committed_offset)
        return located if self._is_readable(offset) and not segment.removed else None

    async def read_durable(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """As `read`, up to what this disk holds, committed or not: for other replicas alone."""
        stop = self.durable_offset
        self._check_offset(offset, stop)
        if offset >= stop:
            return []
        cached = self._read_tail(offset, stop, max_bytes)
        if cached:
            return [batch.view() for batch in cached]
        return await self._read(offset, stop, max_bytes)

    def read_cached(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """As `read`, of what is in memory; none when the offset is not, whatever the reason."""
        return [batch.view() for batch in self._read_committed_tail(offset, max_bytes)]

    def read_cached_pieces(self, offset: int, max_bytes: int) -> Sequence[Sequence[memoryview]]:
        """As `read_cached`, each batch in the pieces that it is in."""
        return [batch.pieces() for batch in self._read_committed_tail(offset, max_bytes)]

    def _read_committed_tail(self, offset: int, max_bytes: int) -> Sequence[Batch]:
        if not self._is_readable(offset):
            return ()
        return self._read_tail(offset, self.committed_offset, max_bytes)

    def _is_readable(self, offset: int) -> bool:
        inside = self.start_offset <= offset < self.committed_offset
        return inside and self._status is not Status.REMOVED

    def _read_tail(self, offset: int, stop: int, max_bytes: int) -> Sequence[Batch]:
        max_bytes = min(max_bytes, self._settings.read_bytes_max)
        cached = self._tail.read(offset, stop=stop, max_bytes=max_bytes)
        if not cached:
            return ()
        self._shared.cache.hits += 1
        return cached

    async def _read(self, offset: int, stop: int, max_bytes: int) -> Sequence[memoryview]:
        max_bytes = min(max_bytes, self._settings.read_bytes_max)
        self._shared.cache.misses += 1
        scanned = False
        while True:
            segment = self._segment_at(offset)
            try:
                return await self._io.read(segment, offset, stop=stop, max_bytes=max_bytes)
            except FreshDamage as error:
                if not segment.removed:
                    if scanned:
                        raise
                    scanned = True
                    await self._on_damage(segment, error)
            except (CorruptionError, OffsetOutOfRangeError):
                if not segment.removed:
                    raise
            self._check_offset(offset, stop)  # if not trimmed, then repaired meanwhile

    async def crc_at(self, offset: int) -> int | None:
        """The CRC of the durable batch whose base is `offset`; None where no such batch begins."""
        if not self.start_offset <= offset < self.durable_offset:
            return None
        views = await self.read_durable(offset, 1)
        header = decode_header(views[0])
        return header.crc if header.base_offset == offset else None

    def _check_offset(self, offset: int, stop: int) -> None:
        if self._status is Status.REMOVED:
            raise self._refusal()
        if offset < self.start_offset:
            raise OffsetOutOfRangeError(offset=offset, start=self.start_offset, end=stop)
        if offset <= stop:
            return
        if self._goes_on_elsewhere():
            raise self._not_here(offset)
        if self.sealed:
            raise OffsetOutOfRangeError(offset=offset, start=self.start_offset, end=stop)
        raise OffsetOverflowError(offset=offset, end=stop)

    def _goes_on_elsewhere(self) -> bool:
        """Whether this replica of a sealed range does not know, or not hold, what ends it."""
        return self.sealed and (not self.final or self.committed_offset < self.end_offset)

    def _not_here(self, offset: int) -> RangeNotFoundError:
        return RangeNotFoundError(
            "this replica does not have the rest of the range yet",
            **self.key._asdict(), offset=offset, end=self.committed_offset,
        )  # fmt: skip

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
        """The first batch whose highest timestamp reaches this; the committed end if none."""
        start, stop = self.start_offset, self.committed_offset
        for segment in list(self._segments):
            if segment.max_timestamp < timestamp_ms or segment.end_offset <= start:
                continue
            try:
                found = await self._find_time(segment, timestamp_ms, start, stop)
            except (CorruptionError, OffsetOutOfRangeError):
                if segment.removed:  # trimmed or repaired meanwhile
                    return await self.offset_at(timestamp_ms)
                raise
            if found is not None:
                return max(found, start)
        if self._goes_on_elsewhere():
            raise self._not_here(stop)
        return stop

    async def _find_time(
        self, segment: Segment, timestamp_ms: int, start: int, stop: int
    ) -> int | None:
        try:
            return await self._io.find_time(segment, timestamp_ms, from_offset=start, stop=stop)
        except FreshDamage as error:
            await self._on_damage(segment, error)
        return await self._io.find_time(segment, timestamp_ms, from_offset=start, stop=stop)
