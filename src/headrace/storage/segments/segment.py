"""One segment file as the event loop knows it, and the write that a group commit makes to it."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.errors import DiskFullError, HeadraceError, StorageError
from headrace.observability.logging import get_logger
from headrace.runtime import Buffer, Disk, File
from headrace.storage.layout import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    CorruptSpan,
    Point,
    RangeKey,
    SegmentInfo,
    format_base,
)
from headrace.storage.segments.formats import (
    INDEX_BYTES_MAX,
    NO_TIMESTAMP,
    Checkpoint,
    Index,
    Mark,
    decode_checkpoint,
    encode_mark,
)
from headrace.wire.sbp.messages import Durability

log = get_logger(__name__)

_JOIN_BYTES_MAX = 16 * 1024


class AppendedBatch(msgspec.Struct, gc=False, eq=False):
    """An appended batch: first on its way to the disk, then in the cache.

    Nothing that it refers to may lead back to it: the garbage collector does not look here.
    """

    header: Buffer
    body: Sequence[Buffer]
    offset: int
    end: int
    size: int
    max_timestamp: int

    def on_stored(self) -> None:
        """The disk has it; only readers may want it from now on."""
        if self.size <= _JOIN_BYTES_MAX:
            self._join()

    def view(self) -> memoryview:
        """The whole batch in one piece; read-only, because many readers share it."""
        return memoryview(self._join())

    def pieces(self) -> tuple[memoryview, ...]:
        """The same as it is now; nothing is copied."""
        if not self.body:
            return (self.view(),)
        return tuple(memoryview(piece).toreadonly() for piece in (self.header, *self.body))

    def _join(self) -> bytes:
        if self.body or not isinstance(self.header, bytes):
            self.header, self.body = b"".join((self.header, *self.body)), ()
        return self.header


@dataclass(slots=True, eq=False)
class Handle:
    """An open file in the pool; it is closed only while nobody has it pinned."""

    file: File
    pins: int = 0


@dataclass(slots=True, eq=False)
class Segment:
    """What is committed in the file: written, and for `synced` ranges synced as well.

    Changed on the event loop only. Threads get the values they need as arguments.
    """

    key: RangeKey
    folder: str
    base: int
    binding: int
    position: int = 0  # where the next group is written
    end_offset: int = -1
    content_bytes: int = 0  # batches alone; the roll depends on nothing else
    max_timestamp: int = NO_TIMESTAMP
    group: int = -1
    synced_position: int = 0
    allocated: int = 0
    saved_position: int = 0  # what the index file covers
    index: Index | None = field(default_factory=Index)  # None: on disk, loaded when needed
    spans: list[CorruptSpan] = field(default_factory=list)
    closed: bool = False  # takes no more batches
    removed: bool = False
    journal_generation: int = -1  # that holds the last group of batches; -1: synced directly
    noted_position: int = -1  # up to here `WrittenPages` knows of what was written
    unnamed: bool = False  # the file was made by a journaled group: its name is not synced yet
    handle: Handle | None = None
    _indexed_bytes: int = -1

    def __post_init__(self) -> None:
        if self.end_offset < 0:
            self.end_offset = self.base

    @classmethod
    def from_checkpoint(
        cls, key: RangeKey, folder: str, base: int, binding: int, checkpoint: Checkpoint
    ) -> Segment:
        position, end_offset = checkpoint.end
        return cls(
            key, folder, base, binding,
            position=position, end_offset=end_offset, content_bytes=checkpoint.content_bytes,
            max_timestamp=checkpoint.max_timestamp, group=checkpoint.group,
            synced_position=position, allocated=position, index=checkpoint.index,
            spans=list(checkpoint.spans),
            _indexed_bytes=checkpoint.content_bytes if len(checkpoint.index.offsets) else -1,
        )  # fmt: skip

    @property
    def path(self) -> str:
        return f"{self.folder}/{format_base(self.base)}{LOG_SUFFIX}"

    @property
    def index_path(self) -> str:
        return f"{self.folder}/{format_base(self.base)}{INDEX_SUFFIX}"

    @property
    def end(self) -> Point:
        return Point(self.position, self.end_offset)

    def info(self) -> SegmentInfo:
        return SegmentInfo(self.base, self.end_offset, self.content_bytes, self.max_timestamp)

    def checkpoint(self) -> Checkpoint:
        """The segment as it is now, to be saved once it is synced up to here."""
        assert self.index is not None
        index = self.index
        return Checkpoint(
            self.end, self.content_bytes, self.max_timestamp, self.group,
            Index(index.offsets[:], index.positions[:], index.timestamps[:]), tuple(self.spans),
        )  # fmt: skip

    def on_batches(self, batches: Sequence[AppendedBatch], position: int, interval: int) -> None:
        """Batches stand in the file from `position` on."""
        index = self.index
        assert index is not None
        for batch in batches:
            if self._indexed_bytes < 0 or self.content_bytes - self._indexed_bytes >= interval:
                index.add(Point(position, batch.offset), self.max_timestamp)
                self._indexed_bytes = self.content_bytes
            position += batch.size
            self.content_bytes += batch.size
            if batch.max_timestamp > self.max_timestamp:
                self.max_timestamp = batch.max_timestamp
        if batches:
            self.end_offset = batches[-1].end
        self.position = position

    def take_over(self, found: Checkpoint) -> None:
        """The segment ends at `found` from now on: all of it is synced, none of it saved."""
        self.position, self.end_offset = found.end
        self.content_bytes, self.max_timestamp = found.content_bytes, found.max_timestamp
        self.index, self.spans = found.index, list(found.spans)
        self.synced_position, self.saved_position = self.position, 0

    def span_at(self, offset: int) -> CorruptSpan | None:
        """The corrupt span that contains `offset`."""
        at = bisect_right(self.spans, offset, key=lambda span: span.start) - 1
        return self.spans[at] if at >= 0 and offset < self.spans[at].end else None

    def next_span_start(self, offset: int) -> int | None:
        at = bisect_right(self.spans, offset, key=lambda span: span.start)
        return self.spans[at].start if at < len(self.spans) else None


class SegmentWriter(Protocol):
    """The writer of one range, as group commit and journal see it."""

    @property
    def key(self) -> RangeKey: ...

    @property
    def durability(self) -> Durability: ...

    @property
    def journaled(self) -> bool:
        """Whether the journal holds the last group: nothing in the file needs to note it then."""
        ...

    def take_write(self, level: Durability, group: int, budget: int) -> SegmentWrite | None:
        """The next write, for the committer of that level; None when there is none for now."""
        ...

    def on_written(self, write: SegmentWrite) -> None:
        """Acknowledge the write, or fail with its error."""
        ...

    def abandon(self, write: SegmentWrite) -> None:
        """Let go of a write whose outcome will not be known."""
        ...

    def fail(self, error: StorageError) -> None:
        """Write nothing of this range any more."""
        ...

    async def close_mark(self) -> None:
        """Note in the file what is synced, because the range went quiet."""
        ...

    def close_mark_nowait(self) -> bool:
        """As `close_mark` where a mark is all it takes; False where it is not."""
        ...


@dataclass(slots=True, eq=False)
class SegmentWrite:
    """One group's write to one file, carried out in a thread by `carry_out`."""

    writer: SegmentWriter
    segment: Segment
    batches: list[AppendedBatch]
    waiting: list[asyncio.Future[None]]  # for each of them
    pieces: list[Buffer]
    heads: list[Buffer]  # of the pieces: the mark and the batches' headers
    position: int
    size: int
    group: int
    sync: bool
    create: bool
    file: File | None
    allocate_to: int = 0  # grow the reservation to here, 0 = it suffices
    allocate_least: int = 0  # what is needed when the disk is too full for more
    keep_free_bytes: int = 0
    journal_generation: int = -1  # that made it durable; -1: it is synced directly
    error: HeadraceError | None = None

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end if self.batches else self.segment.end_offset


def carry_out(disk: Disk, writes: Sequence[SegmentWrite], *, sync: bool = True) -> None:
    """Write, sync where asked for, and note each write's own outcome.

    Without `sync` the journal takes over what makes them durable.
    """
    for write in writes:
        try:
            file = write.file
            if file is None:
                file = write.file = disk.open(write.segment.path, create=write.create)
            if write.allocate_to:
                _reserve(disk, file, write)
            file.pwrite(write.pieces, write.position)
            if sync:
                _sync(disk, file, write)
        except HeadraceError as error:
            write.error = error


def sync_directly(disk: Disk, writes: Sequence[SegmentWrite]) -> None:
    """What `carry_out` left undone, after the journal failed."""
    for write in writes:
        assert write.file is not None
        try:
            _sync(disk, write.file, write)
        except HeadraceError as error:
            write.error = error


def _sync(disk: Disk, file: File, write: SegmentWrite) -> None:
    if write.sync:
        file.sync_data()
    if write.create or write.segment.unnamed:
        disk.sync_folder(write.segment.folder)
    if write.sync and write.batches:
        _close_group(file, write)


def _close_group(file: File, write: SegmentWrite) -> None:
    """Say that the group was synced, before anybody is told: damage to it is then no torn tail.

    The mark itself is not synced. A process that is killed leaves it in the page cache, a power cut
    may take it along, until the next group's sync or the range's quiet makes it durable.
    """
    end = write.position + write.size
    mark = Mark(write.group + 1, end, write.end_offset)
    try:
        file.pwrite([encode_mark(mark, binding=write.segment.binding, position=end)], end)
    except HeadraceError as error:  # the group is durable all the same
        log.warning("closing mark not written", path=write.segment.path, error=str(error))


def _reserve(disk: Disk, file: File, write: SegmentWrite) -> None:
    """Space is taken here and nowhere else, so this is where the reserve is kept."""
    start = write.segment.allocated
    free = disk.free_bytes(write.segment.folder) - write.keep_free_bytes
    if write.allocate_to - start > free:
        write.allocate_to = write.allocate_least
    if write.allocate_to - start > free:
        raise DiskFullError("the disk is full but for its reserve", path=write.segment.path)
    file.allocate(start, write.allocate_to - start)
    if disk.free_bytes(write.segment.folder) < write.keep_free_bytes:
        # Another thread took space between the look and the step: the reserve comes first.
        file.truncate(write.position)
        raise DiskFullError("the disk is full but for its reserve", path=write.segment.path)


def load_checkpoint(disk: Disk, segment_key: RangeKey, base: int, path: str) -> Checkpoint | None:
    """The saved index of a segment, or None when there is none that can be used."""
    if not disk.exists(path) or disk.size(path) > INDEX_BYTES_MAX:
        return None
    return decode_checkpoint(disk.read(path), segment_key, base)
