"""The sparse index of a segment, and the file that keeps it.

The file is also the segment's checkpoint: it is written only after the log was synced up to its
end, so recovery scans from there. It is never trusted over the log: a file that fails its checks is
dropped and rebuilt by a scan, and every batch found through it is checked again when it is read.

File, all integers little-endian:

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

from crc32c import crc32c

from headrace.storage.layout import CorruptSpan, Point, RangeKey

NO_TIMESTAMP = -1
INDEX_BYTES_MAX = 64 * 1024 * 1024  # a larger file is none of ours and is not read into memory

_MAGIC = b"hrix"
_VERSION = 1
_HEAD = struct.Struct("<4sIIIqqqQqQqqII")
_CRC_START = 8
_ITEM_BYTES = 8


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
    head = _HEAD.pack(
        _MAGIC, 0, _VERSION, 0, key.stream_id, key.range_index, base,
        checkpoint.end.position, checkpoint.end.offset, checkpoint.content_bytes,
        checkpoint.max_timestamp, checkpoint.group, len(index.offsets), len(checkpoint.spans),
    )  # fmt: skip
    crc = crc32c(columns, crc32c(head[_CRC_START:]))
    return b"".join((_MAGIC, struct.pack("<I", crc), head[_CRC_START:], columns))


def decode_checkpoint(data: bytes, key: RangeKey, base: int) -> Checkpoint | None:
    """The checkpoint of that segment, or None when the file is damaged or another's."""
    if len(data) < _HEAD.size:
        return None
    (magic, crc, version, _, stream_id, range_index, found_base, position, offset, content_bytes,
     max_timestamp, group, entries, spans) = _HEAD.unpack_from(data)  # fmt: skip
    if (magic, version) != (_MAGIC, _VERSION) or crc != crc32c(memoryview(data)[_CRC_START:]):
        return None
    if (stream_id, range_index, found_base) != (*key, base):
        return None
    if len(data) != _HEAD.size + _ITEM_BYTES * (3 * entries + 2 * spans):
        return None
    flat = array("q", data[_HEAD.size :])
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
