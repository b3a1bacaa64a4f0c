"""Marks: what each group's write to a segment file starts with, and what closes it once synced.

All integers big-endian.

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
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from headrace.runtime import Buffer
from headrace.storage.layout import RangeKey

MAGIC = b"\xa5hrm"
MAGIC_BYTE = MAGIC[0]
MARK_BYTES = 32

_MARK = struct.Struct(">4sIQQq")
_FIELDS = struct.Struct(">QQQq")  # position, then what stands at byte 8
_BINDING = struct.Struct(">16sqqq")


class Mark(NamedTuple):
    group: int
    synced_position: int
    first_offset: int


def binding_of(store_uuid: UUID, key: RangeKey, base: int) -> int:
    """A seed for the checksum of every mark in one file."""
    return int(crc32c(_BINDING.pack(store_uuid.bytes, key.stream_id, key.range_index, base)))


def encode_mark(mark: Mark, *, binding: int, position: int) -> bytes:
    crc = crc32c(_FIELDS.pack(position, *mark), binding)
    return _MARK.pack(MAGIC, crc, *mark)


def decode_mark(buffer: Buffer, at: int, *, binding: int, position: int) -> Mark | None:
    """The mark at `at` of the buffer, which is `position` of the file; None: not valid."""
    if len(buffer) - at < MARK_BYTES:
        return None
    magic, crc, group, synced_position, first_offset = _MARK.unpack_from(buffer, at)
    if magic != MAGIC:
        return None
    fields = _FIELDS.pack(position, group, synced_position, first_offset)
    if crc32c(fields, binding) != crc:
        return None
    return Mark(group, synced_position, first_offset)
