"""The reader of a range: what may be read, from memory or from the segment files."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
)
from headrace.storage.range.progress import RangeProgress, Status
from headrace.storage.segments.files import SegmentFiles
from headrace.storage.segments.reader import FreshDamage, Located
from headrace.storage.segments.segment import AppendedBatch, Segment
from headrace.storage.shared import RangeTail, Shared
from headrace.wire.sbp.records import decode_header


class RangeReader:
    """A method without a word here does what its namesake of `RangeLog` promises."""

    def __init__(
        self, shared: Shared, progress: RangeProgress, files: SegmentFiles, tail: RangeTail
    ) -> None:
        self._cache = shared.cache
        self._read_bytes_max = shared.settings.read_bytes_max
        self._progress = progress
        self._files = files
        self._tail = tail

    async def read(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """Whole batches from the one that contains `offset`, at least one if any is committed.

        Each view holds one or more whole batches, in order. Empty at the committed end, unless the
        range is sealed and goes on elsewhere: RangeNotFoundError then, for another replica knows.
        """
        stop = self._progress.committed_offset
        self._check_offset(offset, stop)
        if offset >= stop:
            if self._goes_on_elsewhere():
                raise self._not_here(offset)
            return []
        cached = self._read_tail(offset, stop, max_bytes)
        if cached:
            return [batch.view() for batch in cached]
        return await self._read(offset, stop, max_bytes)

    async def locate(self, offset: int) -> Located | None:
        if not self._is_readable(offset):
            return None
        segment = self._progress.segment_at(offset)
        located = await self._files.locate(segment, offset, stop=self._progress.committed_offset)
        return located if self._is_readable(offset) and not segment.removed else None

    async def read_durable(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        stop = self._progress.durable_offset
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

    def _read_committed_tail(self, offset: int, max_bytes: int) -> Sequence[AppendedBatch]:
        if not self._is_readable(offset):
            return ()
        return self._read_tail(offset, self._progress.committed_offset, max_bytes)

    def _is_readable(self, offset: int) -> bool:
        progress = self._progress
        inside = progress.start_offset <= offset < progress.committed_offset
        return inside and progress.status is not Status.REMOVED

    def _read_tail(self, offset: int, stop: int, max_bytes: int) -> Sequence[AppendedBatch]:
        max_bytes = min(max_bytes, self._read_bytes_max)
        cached = self._tail.read(offset, stop=stop, max_bytes=max_bytes)
        if not cached:
            return ()
        self._cache.hits += 1
        return cached

    async def _read(self, offset: int, stop: int, max_bytes: int) -> Sequence[memoryview]:
        max_bytes = min(max_bytes, self._read_bytes_max)
        self._cache.misses += 1
        scanned = False
        while True:
            segment = self._progress.segment_at(offset)
            try:
                return await self._files.read(segment, offset, stop=stop, max_bytes=max_bytes)
            except FreshDamage as error:
                if not segment.removed:
                    if scanned:
                        raise
                    scanned = True
                    await self._files.rescan_damaged(segment, error)
            except (CorruptionError, OffsetOutOfRangeError):
                if not segment.removed:
                    raise
            self._check_offset(offset, stop)  # if not trimmed, then repaired meanwhile

    async def crc_at(self, offset: int) -> int | None:
        if not self._progress.start_offset <= offset < self._progress.durable_offset:
            return None
        views = await self.read_durable(offset, 1)
        header = decode_header(views[0])
        return header.crc if header.base_offset == offset else None

    def _check_offset(self, offset: int, stop: int) -> None:
        progress = self._progress
        if progress.status is Status.REMOVED:
            raise progress.refusal()
        if offset < progress.start_offset:
            raise OffsetOutOfRangeError(offset=offset, start=progress.start_offset, end=stop)
        if offset <= stop:
            return
        if self._goes_on_elsewhere():
            raise self._not_here(offset)
        if progress.metadata.sealed:
            raise OffsetOutOfRangeError(offset=offset, start=progress.start_offset, end=stop)
        raise OffsetOverflowError(offset=offset, end=stop)

    def _goes_on_elsewhere(self) -> bool:
        """Whether this replica of a sealed range does not know, or not hold, what ends it."""
        metadata = self._progress.metadata
        is_complete = metadata.final and self._progress.committed_offset >= metadata.end
        return metadata.sealed and not is_complete

    def _not_here(self, offset: int) -> RangeNotFoundError:
        return RangeNotFoundError(
            "this replica does not have the rest of the range yet",
            **self._progress.key._asdict(), offset=offset, end=self._progress.committed_offset,
        )  # fmt: skip

    async def offset_at(self, timestamp_ms: int) -> int:
        start, stop = self._progress.start_offset, self._progress.committed_offset
        for segment in list(self._progress.segments):
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
            return await self._files.find_time(segment, timestamp_ms, from_offset=start, stop=stop)
        except FreshDamage as error:
            await self._files.rescan_damaged(segment, error)
        return await self._files.find_time(segment, timestamp_ms, from_offset=start, stop=stop)
