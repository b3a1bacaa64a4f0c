"""Walking a segment from a known point: what is valid, what is corrupt, where the tail starts.

One scanner serves recovery at open, damage met by a read, and verification on request, so that all
three agree. The rules:

* A batch is valid when its header makes sense, its checksum holds and its base offset is the one
  expected. A mark is valid when its checksum (bound to file and position) holds.
* Damage at a position below which bytes are known to be synced is corruption. It is skipped up to
  the next point from which a valid chain leads on: the first batch in the damaged stretch whose
  successors reach the next valid mark exactly, else that mark; without a mark, the end of the file.
  What is skipped becomes a span, an empty one when only a mark was hit: readers have to go round
  it, but no batch is lost.
* Damage above every known synced position is the tail: the scan ends there.

Known synced positions come from marks *after* the damage, from a checkpoint, from a successor
segment (a segment is synced before the next is created) and from a sealed end.

Each synced group is closed by a mark of its own, written before the group is acknowledged; a group
in the journal stands twice instead. So damage to what was acknowledged is known as such even when
nothing was written after it. What remains is a power cut: the closing mark of a range's last group
is made durable by the next sync of its file, at the latest when the range was quiet for `idle_ms`.
Cut off before that *and* damaged on the medium, the group looks like a torn tail.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headrace.errors import RemoteProtocolError
from headrace.runtime import File
from headrace.storage.layout import CorruptSpan, Point
from headrace.storage.segments.formats import (
    MARK_BYTES,
    MARK_MAGIC,
    NO_TIMESTAMP,
    Checkpoint,
    Index,
    Mark,
    decode_mark,
)
from headrace.wire.sbp.records import HEADER_BYTES, BatchHeader, checksum, decode_header
from headrace.wire.sbp.records import MAGIC as BATCH_MAGIC

CHUNK_BYTES = 4 * 1024 * 1024
RESYNC_BYTES_MAX = 64 * 1024 * 1024  # a longer damaged stretch is skipped to its next mark

_BASE_OFFSET = struct.Struct(">q")
_BATCH_MAGIC_BYTE = bytes([BATCH_MAGIC])


@dataclass(frozen=True, slots=True)
class Scan:
    """A segment as its bytes tell it. `checkpoint.end` is where the next group would be written.

    That is over a mark with nothing behind it: what such a mark says needs no place of its own, and
    recovery has nothing to make durable where a range was quiet.
    """

    checkpoint: Checkpoint
    synced_position: int  # highest position that is known to be synced
    noted_position: int  # the same, as far as file and checkpoint tell it themselves
    torn_bytes: int  # tail above the end


class ScanWindow:
    """Forward access to a file through one buffer."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size
        self._start = 0
        self._buffer = memoryview(b"")

    def at(self, position: int, length: int) -> memoryview:
        """`length` bytes from `position`, fewer at the end of the file."""
        begin = position - self._start
        if begin < 0 or begin + length > len(self._buffer):
            wanted = min(max(length, CHUNK_BYTES), self._size - position)
            self._buffer = memoryview(self._file.pread(wanted, position))
            self._start = position
            begin = 0
        return self._buffer[begin : begin + length]


def decode_batch(view: memoryview) -> BatchHeader | None:
    """The header of the valid batch at the start of `view`, or None."""
    if len(view) < HEADER_BYTES or view[0] != BATCH_MAGIC:
        return None
    try:
        header = decode_header(view)
    except RemoteProtocolError:
        return None
    return header if is_intact(header, view) else None


def is_intact(header: BatchHeader, view: memoryview) -> bool:
    """Whether the batch with that header stands whole at the start of `view`."""
    if header.batch_bytes > len(view):
        return False
    body = view[HEADER_BYTES : header.batch_bytes]
    return checksum(view[:HEADER_BYTES], (body,)) == header.crc


class Scanner:
    """Scans one file once. `size` bounds it: bytes above are not looked at."""

    def __init__(
        self,
        file: File,
        *,
        size: int,
        base: int,
        binding: int,
        index_interval_bytes: int,
        checkpoint: Checkpoint | None = None,
        known: Point | None = None,
        synced_offset: int = 0,
        stop_offset: int | None = None,
    ) -> None:
        """Start at `checkpoint`, else at the start of the file. `known` is a point further on that
        is known to be synced; so are all offsets below `synced_offset`. Offsets from `stop_offset`
        on do not belong to the range."""
        self._file = file
        self._size = size
        self._binding = binding
        self._interval = index_interval_bytes
        self._known = known
        self._synced_offset = max(synced_offset, known.offset if known else 0)
        self._stop_offset = stop_offset
        start = checkpoint or Checkpoint(Point(0, base), 0, NO_TIMESTAMP, -1, Index(), ())
        self._position, self._offset = start.end
        self._content_bytes = start.content_bytes
        self._max_timestamp = start.max_timestamp
        self._group = start.group
        self._index = Index(
            start.index.offsets[:], start.index.positions[:], start.index.timestamps[:]
        )
        self._spans = list(start.spans)
        self._noted_position = start.end.position
        self._synced_position = max(start.end.position, known.position if known else 0)
        self._last_mark = -1  # position of a mark with nothing behind it
        self._indexed_bytes = self._content_bytes if len(self._index.offsets) else -self._interval
        self._window = ScanWindow(file, size)
        self._later_marks: list[tuple[int, Mark]] | None = None

    def run(self) -> Scan:
        torn = False
        while self._position < self._size and not self._past_stop():
            if self._take_mark() or self._take_batch():
                continue
            if not self._skip_damage():
                torn = True
                break
        if self._offset < self._synced_offset:
            self._spans.append(CorruptSpan(self._offset, self._synced_offset))
            self._offset = self._synced_offset
        if self._last_mark >= 0:
            self._position = self._last_mark
        if self._known is not None:
            self._position = max(self._position, self._known.position)
        end = Point(self._position, self._offset)
        return Scan(
            Checkpoint(
                end, self._content_bytes, self._max_timestamp, self._group, self._index,
                tuple(self._spans),
            ),
            synced_position=self._synced_position,
            noted_position=self._noted_position,
            torn_bytes=self._size - self._position if torn else 0,
        )  # fmt: skip

    def _past_stop(self) -> bool:
        return self._stop_offset is not None and self._offset >= self._stop_offset

    def _take_mark(self) -> bool:
        view = self._window.at(self._position, MARK_BYTES)
        mark = decode_mark(view, 0, binding=self._binding, position=self._position)
        # A mark that does not continue the file would be stale: never taken for what it was.
        if mark is None or mark.group <= self._group or mark.first_offset != self._offset:
            return False
        self._group = mark.group
        self._note(mark.synced_position)
        self._last_mark = self._position
        self._position += MARK_BYTES
        return True

    def _note(self, synced_position: int) -> None:
        self._noted_position = max(self._noted_position, synced_position)
        self._synced_position = max(self._synced_position, synced_position)

    def _take_batch(self) -> bool:
        view = self._window.at(self._position, HEADER_BYTES)
        if len(view) < HEADER_BYTES or view[0] != BATCH_MAGIC:
            return False
        try:
            header = decode_header(view)
        except RemoteProtocolError:
            return False
        if header.base_offset != self._offset:
            return False
        if not is_intact(header, self._window.at(self._position, header.batch_bytes)):
            return False
        if self._content_bytes - self._indexed_bytes >= self._interval:
            self._add_entry()
        self._last_mark = -1
        self._position += header.batch_bytes
        self._offset = header.next_offset
        self._content_bytes += header.batch_bytes
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        return True

    def _add_entry(self) -> None:
        self._index.add(Point(self._position, self._offset), self._max_timestamp)
        self._indexed_bytes = self._content_bytes

    def _skip_damage(self) -> bool:
        """Go on after corruption; False when the damage is the tail."""
        marks = self._marks_ahead()
        self._note(max((mark.synced_position for _, mark in marks), default=0))
        if self._position >= self._synced_position and self._offset >= self._synced_offset:
            return False
        self._last_mark = -1
        resume = self._after_hit_mark()
        following = self._next_point(marks) if resume is None else None
        if following is not None:
            resume = self._chain_before(following.position, following.offset) or following
        elif resume is None:
            resume = self._chain_before(self._size)
        if resume is None:  # synced, but nothing after it can be read
            self._content_bytes += self._size - self._position
            self._position = self._size
            return True
        self._content_bytes += resume.position - self._position
        position, offset = resume
        if self._stop_offset is not None:  # what follows it may be all that can be read
            offset = min(offset, self._stop_offset)
        self._spans.append(CorruptSpan(self._offset, offset))
        self._position, self._offset = position, offset
        self._add_entry()
        return True

    def _after_hit_mark(self) -> Point | None:
        """If only a mark was hit, the batch that follows it stands where it must, whole. What comes
        after that may be damaged too, so it need not lead anywhere."""
        at = self._position + MARK_BYTES
        try:
            header = decode_header(self._window.at(at, HEADER_BYTES))
        except RemoteProtocolError:
            return None
        if header.base_offset != self._offset:
            return None
        if not is_intact(header, self._window.at(at, header.batch_bytes)):
            return None
        return Point(at, self._offset)

    def _next_point(self, marks: list[tuple[int, Mark]]) -> Point | None:
        known = self._known
        points = [Point(position, mark.first_offset) for position, mark in marks[:1]]
        if known is not None and known.position > self._position:
            points.append(known)
        return min(points, default=None)

    def _chain_before(self, position: int, offset: int | None = None) -> Point | None:
        """The first batch between here and `position` from which valid batches reach it exactly.

        They have to reach `offset` there; None: any one that was synced.
        """
        length = position - self._position
        if length > RESYNC_BYTES_MAX:
            return None
        region = self._file.pread(length, self._position)
        if len(region) < length:  # the file is shorter than it was: nothing leads that far
            return None
        view = memoryview(region)
        highest = offset if offset is not None else self._synced_offset
        at = region.find(_BATCH_MAGIC_BYTE, 1)
        while 0 <= at <= length - HEADER_BYTES:
            (base_offset,) = _BASE_OFFSET.unpack_from(region, at + 1)
            if self._offset <= base_offset < highest:
                reached = _follow(view, Point(at, base_offset), length)
                if reached is not None and (reached == offset or offset is None):
                    return Point(self._position + at, base_offset)
            at = region.find(_BATCH_MAGIC_BYTE, at + 1)
        return None

    def _marks_ahead(self) -> list[tuple[int, Mark]]:
        """Every valid mark above the current position that can still follow it."""
        if self._later_marks is None:
            self._later_marks = self._find_marks(self._position + 1)
        usable: list[tuple[int, Mark]] = []
        group, offset = self._group, self._offset
        for position, mark in self._later_marks:
            if position > self._position and mark.group > group and mark.first_offset >= offset:
                usable.append((position, mark))
                group, offset = mark.group, mark.first_offset
        self._later_marks = usable
        return usable

    def _find_marks(self, position: int) -> list[tuple[int, Mark]]:
        found: list[tuple[int, Mark]] = []
        while position < self._size:
            chunk = self._file.pread(min(CHUNK_BYTES, self._size - position), position)
            at = chunk.find(MARK_MAGIC)
            while at >= 0:
                mark = decode_mark(chunk, at, binding=self._binding, position=position + at)
                if mark is not None:
                    found.append((position + at, mark))
                at = chunk.find(MARK_MAGIC, at + 1)
            if len(chunk) < MARK_BYTES:
                break
            position += len(chunk) - MARK_BYTES + 1  # a mark may lie across the border
        return found


def scan_below(
    file: File, end: int, *, size: int, base: int, binding: int, interval: int
) -> Checkpoint:
    """The segment up to offset `end`; everything below it is known to be synced."""
    scanner = Scanner(
        file, size=size, base=base, binding=binding, index_interval_bytes=interval,
        synced_offset=end, stop_offset=end,
    )  # fmt: skip
    return scanner.run().checkpoint


def _follow(view: memoryview, start: Point, end: int) -> int | None:
    """The offset after a chain of valid batches from `start` exactly to `end`, if there is one."""
    position, offset = start
    while position < end:
        header = decode_batch(view[position:])
        if header is None or header.base_offset != offset:
            return None
        position += header.batch_bytes
        offset = header.next_offset
    return offset if position == end else None
