"""Reads, syncs and index files of a range's segments.

The event loop pins a file and hands values over; the file work itself is done in threads. Every
method that works on a file runs as a task of its own to its end, so that a file stays pinned for as
long as a thread uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.errors import CorruptionError, NotFoundError, OffsetOutOfRangeError
from headrace.observability.logging import get_logger
from headrace.runtime import Disk, Executor, File
from headrace.storage.layout import CorruptSpan, Point
from headrace.storage.segments.formats import Checkpoint, Index, encode_checkpoint
from headrace.storage.segments.reader import (
    FreshDamage,
    Located,
    MissingFileError,
    Stretch,
    find_time,
    read_batches,
)
from headrace.storage.segments.scan import Scanner, scan_below
from headrace.storage.segments.segment import Segment, load_checkpoint
from headrace.storage.shared import Shared

_MARKS_BYTES = 4096

T = TypeVar("T")
log = get_logger(__name__)


class SegmentFiles:
    """The segment files of one range, in its folder."""

    def __init__(self, shared: Shared, folder: str) -> None:
        self.folder = folder
        self._shared = shared
        self._disk = shared.disk
        self._settings = shared.settings

    async def read(
        self, segment: Segment, offset: int, *, stop: int, max_bytes: int
    ) -> list[memoryview]:
        await self.load_index(segment)
        _refuse_corrupt(segment.span_at(offset))
        assert segment.index is not None
        stretch = _stretch(segment, segment.index.floor(offset, segment.base), offset, stop)
        # An entry of the index may stand that far before the batch; at it only marks are passed.
        exact = stretch.start.offset == offset
        lead_bytes = _MARKS_BYTES if exact else self._settings.index_interval_bytes
        fetch_bytes = _fetch_bytes(segment.index, stretch, max_bytes + lead_bytes)
        return await self._with_file(
            segment,
            self._shared.read_executor,
            lambda file: read_batches(
                file, stretch, offset, max_bytes=max_bytes, fetch_bytes=fetch_bytes
            ),
        )

    async def locate(self, segment: Segment, offset: int, *, stop: int) -> Located | None:
        """Where the batches from the one that contains `offset` stand; None in known damage."""
        await self.load_index(segment)
        if segment.span_at(offset) is not None:
            return None
        path, identity = await self._shared.read_executor.run(self._disk.identify, segment.path)
        assert segment.index is not None
        floor = segment.index.floor(offset, segment.base)
        return Located(path, identity, _stretch(segment, floor, offset, stop))

    async def find_time(
        self, segment: Segment, timestamp: int, *, from_offset: int, stop: int
    ) -> int | None:
        """Walk the stretches between corrupt spans until a batch reaches the time."""
        await self.load_index(segment)
        index = segment.index
        assert index is not None
        fetch_bytes = 2 * self._settings.index_interval_bytes
        before = index.before_time(timestamp, segment.base)
        offset = max(before, index.floor(from_offset, segment.base)).offset
        while offset < min(stop, segment.end_offset):
            span = segment.span_at(offset)
            if span is not None:
                offset = span.end
                continue
            stretch = _stretch(segment, index.floor(offset, segment.base), offset, stop)

            def find(file: File, stretch: Stretch = stretch) -> int | None:
                return find_time(
                    file, stretch, timestamp, from_offset=from_offset, fetch_bytes=fetch_bytes
                )

            found = await self._with_file(segment, self._shared.read_executor, find)
            if found is not None:
                return found
            offset = stretch.stop.offset
        return None

    async def rescan(self, segment: Segment) -> None:
        """Walk the whole segment again and take over what is found: spans, index.

        All of it is known to be written, so nothing in it can pass for a tail.
        """
        end = segment.end
        interval = self._settings.index_interval_bytes
        base, binding = segment.base, segment.binding

        def scan(file: File) -> Checkpoint:
            scanner = Scanner(
                file, size=end.position, base=base, binding=binding,
                index_interval_bytes=interval, known=end,
            )  # fmt: skip
            return scanner.run().checkpoint

        try:
            found = await self._with_file(segment, self._shared.read_executor, scan)
        except MissingFileError:
            found = Checkpoint(
                end, segment.content_bytes, segment.max_timestamp, segment.group, Index(),
                (CorruptSpan(base, end.offset),),
            )  # fmt: skip
        self._take_over(segment, found, end)

    async def rescan_damaged(self, segment: Segment, error: FreshDamage) -> None:
        """Find out how far the damage goes; reading again then tells it from what is intact."""
        log.error("damage met by a read", path=segment.path, error=str(error))
        await self.rescan(segment)

    def _take_over(self, segment: Segment, found: Checkpoint, end: Point) -> None:
        new = [span for span in found.spans if span not in segment.spans]
        for span in new:
            log.error("corrupt batches or mark", path=segment.path, start=span.start, end=span.end)
        if new:
            segment.saved_position = 0  # what the index file says is no longer all
        segment.spans = list(found.spans)
        index = found.index
        if segment.index is not None:  # entries that were added while the scan ran
            for at, position in enumerate(segment.index.positions):
                if position >= end.position:
                    point = Point(position, segment.index.offsets[at])
                    index.add(point, segment.index.timestamps[at])
        segment.index = index

    async def sync(self, segment: Segment) -> None:
        target = segment.position
        await self._with_file(segment, self._shared.commit_executor, _sync)
        segment.synced_position = max(segment.synced_position, target)

    async def save_index(self, segment: Segment) -> None:
        """Checkpoint the segment as it is now, synced first."""
        if segment.removed or segment.index is None:
            return
        checkpoint = segment.checkpoint()
        if segment.synced_position < checkpoint.end.position:
            await self.sync(segment)
        data = encode_checkpoint(segment.key, segment.base, checkpoint)
        await self._shared.control_executor.run(self._disk.write_atomic, segment.index_path, data)
        segment.saved_position = checkpoint.end.position

    async def finish(self, segment: Segment) -> None:
        """Nothing more is appended for now: give back reserved space, save the index."""
        if segment.removed:
            return
        end = segment.position

        def release(file: File) -> None:
            if file.size() >= end:  # shorter: bytes were lost, and must stay visibly so
                file.truncate(end)

        await self._with_file(segment, self._shared.control_executor, release)
        segment.allocated = end
        await self.save_index(segment)

    async def cut(self, segment: Segment, end: int) -> None:
        """Give back the bytes of batches from `end` on; nobody may read those any more.

        The index goes first: between the two the file is longer than it says, which is harmless.
        """
        size, base, binding = segment.position, segment.base, segment.binding
        interval = self._settings.index_interval_bytes

        def scan(file: File) -> Checkpoint:
            return scan_below(file, end, size=size, base=base, binding=binding, interval=interval)

        found = await self._with_file(segment, self._shared.read_executor, scan)
        if found.end.offset == end:
            segment.take_over(found)
            await self.save_index(segment)
            await self.finish(segment)

    async def remove(self, segments: Sequence[Segment]) -> None:
        if not segments:
            return
        for segment in segments:
            self._shared.pool.discard(segment)
        paths = [path for segment in segments for path in (segment.path, segment.index_path)]
        await self._shared.control_executor.run(_remove_files, self._disk, self.folder, paths)

    async def load_index(self, segment: Segment) -> None:
        """Have the index in memory: it leaves with the file of a closed segment."""
        if segment.index is not None:
            return
        found = await self._shared.read_executor.run(
            load_checkpoint, self._disk, segment.key, segment.base, segment.index_path
        )
        if found is not None and found.end == segment.end:
            segment.index = found.index
        else:  # the index file was damaged since it was written
            segment.saved_position = 0
            await self._shared.tasks.run(self.rescan(segment))

    async def _with_file(
        self, segment: Segment, executor: Executor, work: Callable[[File], T]
    ) -> T:
        return await self._shared.tasks.run(self._pinned(segment, executor, work))

    async def _pinned(self, segment: Segment, executor: Executor, work: Callable[[File], T]) -> T:
        opened = _Opened(self._shared.pool.pin(segment))
        try:
            return await executor.run(opened.use, self._disk, segment.path, work)
        except NotFoundError as error:
            if segment.removed:
                raise OffsetOutOfRangeError("trimmed meanwhile", path=segment.path) from error
            raise MissingFileError("segment file is missing", path=segment.path) from error
        finally:
            self._shared.pool.unpin(segment, opened.file)


class _Opened:
    """A file that a thread opens when the pool had none."""

    def __init__(self, file: File | None) -> None:
        self.file = file

    def use(self, disk: Disk, path: str, work: Callable[[File], T]) -> T:
        if self.file is None:
            self.file = disk.open(path)
        return work(self.file)


def _stretch(segment: Segment, start: Point, offset: int, stop: int) -> Stretch:
    ends = [segment.end_offset, stop]
    next_span = segment.next_span_start(offset)
    if next_span is not None:
        ends.append(next_span)
    return Stretch(segment.binding, start, Point(segment.position, min(ends)))


def _fetch_bytes(index: Index, stretch: Stretch, limit: int) -> int:
    """At most `limit`, up to where a batch ends: half a large one would be read for nothing."""
    start = stretch.start.position
    end = index.last_within(start + limit)
    return end - start if start < end and start + limit < stretch.stop.position else limit


def _refuse_corrupt(span: CorruptSpan | None) -> None:
    if span is not None:
        raise CorruptionError("these batches are damaged", start=span.start, end=span.end)


def _sync(file: File) -> None:
    file.sync_data()


def _remove_files(disk: Disk, folder: str, paths: Sequence[str]) -> None:
    for path in paths:
        disk.remove(path)
    disk.sync_folder(folder)
