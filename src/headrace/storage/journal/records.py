"""The bytes of the redo journal: two notes, then two halves of records.

All integers big-endian.

    0      note, 32 bytes: magic "hrjn", crc u32 over the store's uuid and bytes 8..32,
           oldest u64 (the oldest generation that is needed), first u64 (its first group),
           half bytes u64
    4096   a second one: they are written by turns, so that one is always whole
    8192   first half: generations 0, 2, 4, …
    …      second half: generations 1, 3, 5, …

A generation fills its half from the start with groups, a group is one or more records:

    0   4 bytes  magic "hrjr"
    4   u32      crc: CRC32C over the store's uuid, this record's position (u64) and bytes 8..88
    8   u64      generation
    16  u64      group: of the journal, one more than the one before it, over all generations
    24  u32      part: number of the record in its group, from 0
    28  u32      parts: records in its group
    32  i64      stream id
    40  i64      range index
    48  i64      base offset of the segment
    56  u64      position in the segment file
    64  i64      offset that follows the written bytes
    72  u32      kind: 1 = write, 2 = forget (whatever earlier records say about this stream, or
                 about this range of it when the index is not -1, was removed or replaced)
    76  u32      payload bytes
    80  u32      CRC32C of the payload's mark and batch headers; each batch's own covers its body
    84  u32      reserved, 0
    88           payload: the bytes that belong at that position, a mark first

Uuid and position enter the checksum without being stored: a record copied to another place, for
example inside a message, is none. A group is written only after the group before it was synced.
Hence damage with a valid record of a *later* group behind it lies in what was acknowledged:
corruption. Damage with none behind it is the tail: its group was not acknowledged, or not known to
be (a group may lose any of its pages, so other records of the same group say nothing).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from headrace.runtime import Buffer, File
from headrace.storage.layout import RangeKey
from headrace.storage.segments.formats import MARK_BYTES
from headrace.storage.segments.scan import ScanWindow, decode_batch
from headrace.wire.sbp.records import HEADER_BYTES

NOTE_POSITIONS = (0, 4096)
HALVES_START = 8192
RECORD_BYTES = 88
ALL_RANGES = -1

_NOTE_MAGIC = b"hrjn"
_RECORD_MAGIC = b"hrjr"
_CRC = struct.Struct(">4sI")
_NOTE = struct.Struct(">QQQ")
NOTE_BYTES = _CRC.size + _NOTE.size
_RECORD = struct.Struct(">QQIIqqqQqIIII")
_POSITION = struct.Struct(">Q")
_SEARCH_BYTES = 4 * 1024 * 1024


class RecordKind(IntEnum):
    WRITE = 1
    FORGET = 2


class JournalNote(NamedTuple):
    oldest: int
    first: int
    half_bytes: int


class JournalRecord(NamedTuple):
    generation: int
    group: int
    part: int
    parts: int
    key: RangeKey
    base: int
    position: int
    end_offset: int
    kind: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record as it stands in the journal."""

    record: JournalRecord
    at: int  # position of its payload
    intact: bool  # the payload's checksum holds


def half_of(journal_bytes: int) -> int:
    """Bytes of a generation in a journal of that size."""
    page = NOTE_POSITIONS[1]
    return (journal_bytes - HALVES_START) // 2 // page * page


def seed_of(store_uuid: UUID) -> int:
    """What binds a journal's checksums to its store."""
    return int(crc32c(store_uuid.bytes))


def encode_note(note: JournalNote, seed: int) -> bytes:
    body = _NOTE.pack(*note)
    return _CRC.pack(_NOTE_MAGIC, crc32c(body, seed)) + body


def decode_note(data: bytes, seed: int) -> JournalNote | None:
    if len(data) < NOTE_BYTES:
        return None
    magic, crc = _CRC.unpack_from(data)
    body = data[_CRC.size : NOTE_BYTES]
    if magic != _NOTE_MAGIC or crc32c(body, seed) != crc:
        return None
    return JournalNote(*_NOTE.unpack(body))


class JournalLayout:
    """Where the generations of one journal lie, and how its records are bound to it."""

    def __init__(self, seed: int, half_bytes: int) -> None:
        self.half_bytes = half_bytes
        self.size = HALVES_START + 2 * half_bytes
        self._seed = seed

    def start(self, generation: int) -> int:
        return HALVES_START + (generation % 2) * self.half_bytes

    def end(self, generation: int) -> int:
        return self.start(generation) + self.half_bytes

    def encode_record(self, record: JournalRecord, at: int) -> bytes:
        """The header of a record that stands at `at`; its payload follows."""
        body = _RECORD.pack(
            record.generation, record.group, record.part, record.parts, *record.key, record.base,
            record.position, record.end_offset, record.kind, record.length, record.crc, 0,
        )  # fmt: skip
        crc = crc32c(body, crc32c(_POSITION.pack(at), self._seed))
        return _CRC.pack(_RECORD_MAGIC, crc) + body

    def decode_record(self, view: Buffer, offset: int, at: int) -> JournalRecord | None:
        """The header at `offset` of the view, which is `at` of the journal; None: not valid."""
        if len(view) - offset < RECORD_BYTES:
            return None
        magic, crc = _CRC.unpack_from(view, offset)
        if magic != _RECORD_MAGIC:
            return None
        body = memoryview(view)[offset + _CRC.size : offset + RECORD_BYTES]
        if crc32c(body, crc32c(_POSITION.pack(at), self._seed)) != crc:
            return None
        (generation, group, part, parts, stream_id, range_index, base, position, end_offset, kind,
         length, payload_crc, _) = _RECORD.unpack(body)  # fmt: skip
        return JournalRecord(
            generation, group, part, parts, RangeKey(stream_id, range_index), base, position,
            end_offset, kind, length, payload_crc,
        )  # fmt: skip


def checksum(heads: Sequence[Buffer]) -> int:
    """The checksum of a payload's mark and headers; one over all of it would cost like a write."""
    crc = 0
    for head in heads:
        crc = crc32c(head, crc)
    return int(crc)


def _checksum_of(payload: memoryview) -> int | None:
    """The same of a payload read back; None when a batch in it is not what it was."""
    crc = int(crc32c(payload[:MARK_BYTES]))
    at = MARK_BYTES
    while at < len(payload):
        header = decode_batch(payload[at:])
        if header is None:
            return None
        crc = int(crc32c(payload[at : at + HEADER_BYTES], crc))
        at += header.batch_bytes
    return crc


class GenerationScan:
    """Every valid record of one generation, in order, and whether something between them is not."""

    def __init__(self, file: File, layout: JournalLayout, generation: int) -> None:
        self._file = file
        self._layout = layout
        self._generation = generation
        self._end = min(layout.end(generation), file.size())
        self._window = ScanWindow(file, self._end)

    def __iter__(self) -> Iterator[FoundRecord]:
        at = self._layout.start(self._generation)
        while True:
            record = self._header(at)
            if record is None:
                ahead = self._search(at + 1)
                if ahead is None:
                    return
                at, record = ahead
            payload = self._window.at(at + RECORD_BYTES, record.length)
            intact = len(payload) == record.length and _checksum_of(payload) == record.crc
            yield FoundRecord(record, at + RECORD_BYTES, intact)
            at += RECORD_BYTES + record.length

    def _header(self, at: int) -> JournalRecord | None:
        if at + RECORD_BYTES > self._end:
            return None
        return self._decode(self._window.at(at, RECORD_BYTES), 0, at)

    def _decode(self, view: Buffer, offset: int, at: int) -> JournalRecord | None:
        record = self._layout.decode_record(view, offset, at)
        # Behind what a generation wrote stand records of the last but one: never taken for its own.
        return record if record is not None and record.generation == self._generation else None

    def _search(self, at: int) -> tuple[int, JournalRecord] | None:
        """The next valid record of this generation from `at` on."""
        while at + RECORD_BYTES <= self._end:
            chunk = self._file.pread(min(_SEARCH_BYTES, self._end - at), at)
            offset = chunk.find(_RECORD_MAGIC)
            while offset >= 0:
                record = self._decode(chunk, offset, at + offset)
                if record is not None:
                    return at + offset, record
                offset = chunk.find(_RECORD_MAGIC, offset + 1)
            if len(chunk) < RECORD_BYTES:
                return None
            at += len(chunk) - RECORD_BYTES + 1  # a record may lie across the border
        return None
