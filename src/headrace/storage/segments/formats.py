"""The bytes of a segment beside its batches: marks in the log file, and the index file.

A mark is what each group's write to a log file starts with, and what closes it once synced. All
integers big-endian:

    0   4 bytes  magic A5 'h' 'r' 'm'; batches start with 0x22 or 0x23, unwritten space with 0
    4   u32      crc: CRC32C over the binding, this mark's position (u64) and bytes 8..32
    8   u64      group: number of the group commit, rising within a file
    16  u64      synced position: bytes of this file below it were synced before the mark was made
    24  i64      first offset: of the batch that follows, now or later

The binding (store uuid, stream, range, base offset) and the position enter the checksum without
being stored: a mark copied to another file or another place, for example inside a message, is none.

A mark is what tells a torn tail from corruption. Damage below the highest synced position of any
mark in the file lies in bytes that were synced, hence acknowledged: corruption. Damage above it is
the tail, because an unsynced group may lose any of its pages, not only the last. A group is closed
by a mark with nothing behind it, written after the sync and before the acknowledgement; the next
group's mark takes its place.

The index file keeps the sparse index of a segment. It is also the segment's checkpoint: it is
written only after the log was synced up to its end, so recovery scans from there. It is never
trusted over the log: a file that fails its checks is dropped and rebuilt by a scan, and every batch
found through it is checked again when it is read. All integers little-endian:

    0   4 bytes  magic "hrix"
    4   u32      crc: CRC32C over bytes 8..end
    8   u32      layout version, 1
    12  u32      reserved, 0
    16  i64      stream id, range index, base offset: which segment this belongs to
    40  u64      position: the log is covered below it
    48  i64      offset that follows there
    56  u64      bytes of batches below it
    64  i64      highest timestamp below it, ms; -1 when there is no batch
    72  i64      group number of the last mark below it; -1 when there is none
    80  u32      number of entries n
    84  u32      number of corrupt spans m
    88           n offsets i64, n positions i64, n timestamps i64, then m pairs (start, end) i64

An entry names the start of a batch (or of the mark before it). Its timestamp is the highest among
the batches *before* it, which rises even where a client's timestamps do not.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from headrace.runtime import Buffer
from headrace.storage.layout import CorruptSpan, Point, RangeKey

MARK_MAGIC = b"\xa5hrm"
MARK_MAGIC_BYTE = MARK_MAGIC[0]
MARK_BYTES = 32
NO_TIMESTAMP = -1
INDEX_BYTES_MAX = 64 * 1024 * 1024  # a larger file is none of ours and is not read into memory

_MARK = struct.Struct(">4sIQQq")
_FIELDS = struct.Struct(">QQQq")  # position, then what stands at byte 8
_BINDING = struct.Struct(">16sqqq")
_INDEX_MAGIC = b"hrix"
_INDEX_VERSION = 1
_INDEX_HEAD = struct.Struct("<4sIIIqqqQqQqqII")
_INDEX_CRC_START = 8
_INDEX_ITEM_BYTES = 8


class Mark(NamedTuple):
    group: int
    synced_position: int
    first_offset: int


def binding_of(store_uuid: UUID, key: RangeKey, base: int) -> int:
    """A seed for the checksum of every mark in one file."""
    return int(crc32c(_BINDING.pack(store_uuid.bytes, key.stream_id, key.range_index, base)))


def encode_mark(mark: Mark, *, binding: int, position: int) -> bytes:
    crc = crc32c(_FIELDS.pack(position, *mark), binding)
    return _MARK.pack(MARK_MAGIC, crc, *mark)


def decode_mark(buffer: Buffer, at: int, *, binding: int, position: int) -> Mark | None:
    """The mark at `at` of the buffer, which is `position` of the file; None: not valid."""
    if len(buffer) - at < MARK_BYTES:
        return None
    magic, crc, group, synced_position, first_offset = _MARK.unpack_from(buffer, at)
    if magic != MARK_MAGIC:
        return None
    fields = _FIELDS.pack(position, group, synced_position, first_offset)
    if crc32c(fields, binding) != crc:
        return None
    return Mark(group, synced_position, first_offset)


@dataclass(slots=True)
class Index:
    """Entries in rising order, as three columns."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))
    timestamps: array[int] = field(default_factory=lambda: array("q"))

    def add(self, point: Point, timestamp: int) -> None:
        self.offsets.append(point.offset)
        self.positions.append(point.position)
        self.timestamps.append(timestamp)

    def floor(self, offset: int, base: int) -> Point:
        """Where to start reading for `offset`; the start of the file when nothing is nearer."""
        at = bisect_right(self.offsets, offset) - 1
        return Point(self.positions[at], self.offsets[at]) if at >= 0 else Point(0, base)

    def last_within(self, position: int) -> int:
        """The last position of an entry that is not above `position`; 0 without one."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else 0

    def before_time(self, timestamp: int, base: int) -> Point:
        """Where to start looking for the first batch that reaches `timestamp`."""
        at = bisect_left(self.timestamps, timestamp) - 1
        return Point(self.positions[at], self.offsets[at]) if at >= 0 else Point(0, base)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A segment up to a synced point."""

    end: Point
    content_bytes: int
    max_timestamp: int
    group: int
    index: Index
    spans: tuple[CorruptSpan, ...]


def encode_checkpoint(key: RangeKey, base: int, checkpoint: Checkpoint) -> bytes:
    index = checkpoint.index
    flat = array("q", [bound for span in checkpoint.spans for bound in span])
    columns = b"".join(
        _little(column) for column in (index.offsets, index.positions, index.timestamps, flat)
    )
    head = _INDEX_HEAD.pack(
        _INDEX_MAGIC, 0, _INDEX_VERSION, 0, key.stream_id, key.range_index, base,
        checkpoint.end.position, checkpoint.end.offset, checkpoint.content_bytes,
        checkpoint.max_timestamp, checkpoint.group, len(index.offsets), len(checkpoint.spans),
    )  # fmt: skip
    crc = crc32c(columns, crc32c(head[_INDEX_CRC_START:]))
    return b"".join((_INDEX_MAGIC, struct.pack("<I", crc), head[_INDEX_CRC_START:], columns))


def decode_checkpoint(data: bytes, key: RangeKey, base: int) -> Checkpoint | None:
    """The checkpoint of that segment, or None when the file is damaged or another's."""
    if len(data) < _INDEX_HEAD.size:
        return None
    (magic, crc, version, _, stream_id, range_index, found_base, position, offset, content_bytes,
     max_timestamp, group, entries, spans) = _INDEX_HEAD.unpack_from(data)  # fmt: skip
    if (magic, version) != (_INDEX_MAGIC, _INDEX_VERSION) or crc != crc32c(
        memoryview(data)[_INDEX_CRC_START:]
    ):
        return None
    if (stream_id, range_index, found_base) != (*key, base):
        return None
    if len(data) != _INDEX_HEAD.size + _INDEX_ITEM_BYTES * (3 * entries + 2 * spans):
        return None
    flat = array("q", data[_INDEX_HEAD.size :])
    if sys.byteorder == "big":
        flat.byteswap()
    index = Index(flat[:entries], flat[entries : 2 * entries], flat[2 * entries : 3 * entries])
    bounds = flat[3 * entries :]
    return Checkpoint(
        end=Point(position, offset),
        content_bytes=content_bytes,
        max_timestamp=max_timestamp,
        group=group,
        index=index,
        spans=tuple(CorruptSpan(bounds[i], bounds[i + 1]) for i in range(0, 2 * spans, 2)),
    )


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    swapped = array("q", column)
    swapped.byteswap()
    return swapped.tobytes()
