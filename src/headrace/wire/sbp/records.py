"""Record batches, magic 0x23: the unit of append, storage, replication, index and fetch.

All integers big-endian, except the index trailer.

    0   u8   magic 0x23
    1   i64  base_offset     offset of the first record; 0 from clients, -1 reserved
    9   i32  batch_length    bytes after this field, so a batch takes 13 + batch_length bytes
    13  u32  crc             CRC32C over bytes 17..end: survives the assignment of base_offset
    17  u16  attributes      bits 0-2 compression (0 none, 1 zlib, 2 lz4, 3 zstd)
                             bit 3 the 16 bytes at 39 are producer id and first sequence
                             bit 4 the 16 bytes at 39 are publisher uid and window
                             bits 5-6 what the records are: opaque, Iggy messages, StateLog events
                             bit 7 the batch ends with an index
                             bit 8 the 16 bytes at 39 are session and number of a client's request
                             bit 9 Iggy messages without checksums: made when somebody asks
                             bit 10 but with those of the frames they came in (dialect C)
                             bit 11 StateLog events that the next batch holds once more
                             bit 12 that next batch
    19  i32  record_count    offsets advance by it
    23  i64  base_timestamp  ms
    31  i64  max_timestamp   ms
    39  i64  producer_id     -1 when unused
    47  i64  sequence        -1 when unused
    55       records, compressed as one block when compression is not 0

Index (attribute bit 7, never with compression): the last 4 * record_count bytes are u32
little-endian start positions of each record, relative to byte 55 of the batch. A reader finds any
record by an array operation and the records stay one contiguous slice.

Version 0, magic 0x22, is the original implementation's. It is only read, with FlatBuffers inside:

    0   i8   magic 0x22
    1   i64  base_offset      the data node assigns it here; the copy inside the meta is ignored
    9   i32  meta_length
    13       BatchMetaV0
             records, to the end of the buffer: the batch does not say how long it is
             i32 meta_length, i32 body_length, RecordMetaV0, body

Writers of version 0 disagreed on `last_offset_delta` (count, or count - 1) and on the unit of
timestamps, so the number of records comes from walking them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from crc32c import crc32c

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.sbp.flat import Buffer, Message, decode, i16, i32, i64, string, tables

MAGIC = 0x23
HEADER_BYTES = 55
MAGIC_V0 = 0x22
HEADER_BYTES_V0 = 13
BATCH_BYTES_MAX = 16 * 1024 * 1024  # a batch travels in one frame, and a frame is no longer

COMPRESSION = 0b111
PRODUCER = 1 << 3
PUBLISHED = 1 << 4
RECORDS = 3 << 5
RECORDS_OPAQUE = 0
RECORDS_IGGY = 1 << 5
RECORDS_STATE = 2 << 5
INDEXED = 1 << 7
NUMBERED = 1 << 8
UNSUMMED = 1 << 9
FRAMED = 1 << 10
COPIED = 1 << 11
COPY = 1 << 12

_HEADER = struct.Struct(">BqiIHiqqqq")
_EXTENT = struct.Struct(">BqiIHi")  # as far as a walk looks
_BASE_OFFSET = struct.Struct(">q")
_OFFSETS = struct.Struct(">xq10xi")
_LENGTH_END = 13  # batch_length counts from here
_CRC_START = 17  # what the checksum covers starts here
_CRC = struct.Struct(">I")
_HEADER_V0 = struct.Struct(">bqi")
_RECORD_V0 = struct.Struct(">ii")
_POSITION_BYTES = 4
_CRC_ALONE_BYTES = 512 * 1024  # about 20 µs


class BatchHeader(msgspec.Struct, frozen=True):
    base_offset: int
    batch_length: int
    crc: int
    attributes: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int  # publisher uid when PUBLISHED, session when NUMBERED
    sequence: int  # window when PUBLISHED, the request's number when NUMBERED

    @property
    def records(self) -> int:
        """What the records are: RECORDS_OPAQUE, RECORDS_IGGY or RECORDS_STATE."""
        return self.attributes & RECORDS

    @property
    def batch_bytes(self) -> int:
        """The whole batch, header included."""
        return _LENGTH_END + self.batch_length

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.record_count

    @property
    def records_end(self) -> int:
        """Position in the batch where the records end and the index, if any, starts."""
        if self.attributes & INDEXED:
            return self.batch_bytes - _POSITION_BYTES * self.record_count
        return self.batch_bytes


def encode_header(
    *,
    base_offset: int,
    body: Sequence[Buffer],
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    producer_id: int = -1,
    sequence: int = -1,
) -> bytearray:
    """The 55 bytes that go before `body`; the base offset may be patched afterwards."""
    length = sum(map(_bytes_of, body)) + HEADER_BYTES - _LENGTH_END
    if length + _LENGTH_END > BATCH_BYTES_MAX:
        raise LocalProtocolError("batch too large", bytes=length, limit=BATCH_BYTES_MAX)
    header = bytearray(HEADER_BYTES)
    try:
        _HEADER.pack_into(
            header, 0, MAGIC, base_offset, length, 0, attributes, record_count,
            base_timestamp, max_timestamp, producer_id, sequence,
        )  # fmt: skip
    except struct.error as error:
        raise LocalProtocolError("batch header field out of range") from error
    problem = _problem(length, attributes, record_count)
    if problem:
        raise LocalProtocolError(problem, record_count=record_count, batch_length=length)
    _CRC.pack_into(header, _LENGTH_END, checksum(header, body))
    return header


def decode_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`; the body need not be there yet, nor is its checksum tried."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise RemoteProtocolError("record batch shorter than its header")
    fields = _HEADER.unpack_from(buffer, position)
    if fields[0] != MAGIC:
        raise RemoteProtocolError("unknown record batch magic", magic=fields[0])
    header = BatchHeader(*fields[1:])
    problem = _problem(header.batch_length, header.attributes, header.record_count)
    if problem:
        raise RemoteProtocolError(
            problem, record_count=header.record_count, batch_length=header.batch_length
        )
    return header


def decode_extent(buffer: Buffer, position: int) -> tuple[int, int, int, int]:
    """What a walk over many batches needs of a header: base offset, next offset, size, CRC.

    As `decode_header` and as strict, for a third of its time.
    """
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise RemoteProtocolError("record batch shorter than its header")
    magic, base_offset, length, crc, attributes, count = _EXTENT.unpack_from(buffer, position)
    if magic != MAGIC or _problem(length, attributes, count):
        decode_header(buffer, position)  # says what is wrong
    return base_offset, base_offset + count, _LENGTH_END + length, crc


def checksum_at(buffer: memoryview, position: int, size: int) -> int:
    """CRC32C of a batch of that size that stands in one piece."""
    return _crc32c(buffer[position + _CRC_START : position + size])


def _problem(length: int, attributes: int, record_count: int) -> str:
    """Why a header makes no sense, or nothing."""
    body = length - (HEADER_BYTES - _LENGTH_END)
    if not 0 <= body <= BATCH_BYTES_MAX - HEADER_BYTES:
        return "record batch length out of bounds"
    if record_count < 1:
        return "record batch without records"  # it would lie at no offset
    if attributes & INDEXED:
        if attributes & COMPRESSION:
            return "record batch both compressed and indexed"
        if record_count * _POSITION_BYTES > body:
            return "record batch shorter than its index"
    return ""


def decode_offsets(header: Buffer) -> tuple[int, int]:
    """Offset of the first record and the one after the last, of a header that was made here."""
    base_offset, record_count = _OFFSETS.unpack_from(header)
    return base_offset, base_offset + record_count


def patch_base_offset(header: bytearray | memoryview, offset: int) -> None:
    """Assign the offset in place; batches of version 0 keep theirs at the same bytes."""
    _BASE_OFFSET.pack_into(header, 1, offset)


def checksum(header: Buffer, body: Sequence[Buffer]) -> int:
    """CRC32C of a batch given as its 55 header bytes and the pieces after them."""
    crc = _crc32c(memoryview(header)[_CRC_START:HEADER_BYTES])
    for piece in body:
        crc = _crc32c(piece, crc)
    return crc


def verify(header: Buffer, body: Sequence[Buffer]) -> BatchHeader:
    """Check length and checksum of a batch in pieces; RemoteProtocolError when they do not hold."""
    decoded = decode_header(header)
    found = HEADER_BYTES + sum(map(_bytes_of, body))
    if found != decoded.batch_bytes:
        raise RemoteProtocolError(
            "record batch length mismatch", expected=decoded.batch_bytes, found=found
        )
    crc = checksum(header, body)
    if crc != decoded.crc:
        raise RemoteProtocolError("record batch checksum mismatch", expected=decoded.crc, found=crc)
    return decoded


def split(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Walk batches that stand one after the other; each is a slice, checksums are not tried."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        header = decode_header(view, position)
        end = position + header.batch_bytes
        if end > len(view):
            raise RemoteProtocolError("record batch cut short", missing=end - len(view))
        yield header, view[position:end]
        position = end


def encode_index(positions: Sequence[int]) -> bytes:
    """The trailer of an INDEXED batch, from start positions relative to byte 55."""
    return struct.pack(f"<{len(positions)}I", *positions)


def index_of(header: BatchHeader, batch: Buffer) -> memoryview:
    """The trailer of an INDEXED batch: record_count u32 little-endian, unchecked values."""
    if not header.attributes & INDEXED:
        raise RemoteProtocolError("record batch has no index")
    return memoryview(batch)[header.records_end : header.batch_bytes]


def decode_index(header: BatchHeader, batch: Buffer) -> tuple[int, ...]:
    """Start positions relative to byte 55, checked: they rise and lie inside the records."""
    positions = struct.unpack(f"<{header.record_count}I", index_of(header, batch))
    limit = header.records_end - HEADER_BYTES
    previous = -1
    for position in positions:
        if not previous < position <= limit:
            raise RemoteProtocolError("record batch index out of order", position=position)
        previous = position
    return positions


def _crc32c(piece: Buffer, crc: int = 0) -> int:
    # Up to there it is over sooner than another thread gives the interpreter back.
    keep = len(piece) < _CRC_ALONE_BYTES
    return int(crc32c(piece, crc, gil_release_mode=0 if keep else 1))


def _bytes_of(piece: Buffer) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


# Version 0


@dataclass(frozen=True, slots=True)
class KeyValueV0(Message):
    key: str = string(0)
    value: str = string(1)


@dataclass(frozen=True, slots=True)
class BatchMetaV0(Message):
    stream_id: int = i64(0)
    flags: int = i16(1)
    base_offset: int = i64(2)
    last_offset_delta: int = i32(3)
    base_timestamp: int = i64(4)
    properties: tuple[KeyValueV0, ...] = tables(5, KeyValueV0)


@dataclass(frozen=True, slots=True)
class RecordMetaV0(Message):
    offset_delta: int = i32(0)
    timestamp_delta: int = i32(1)
    headers: tuple[KeyValueV0, ...] = tables(2, KeyValueV0)
    properties: tuple[KeyValueV0, ...] = tables(3, KeyValueV0)


@dataclass(frozen=True, slots=True)
class RecordV0:
    meta: RecordMetaV0
    body: memoryview


@dataclass(frozen=True, slots=True)
class BatchV0:
    base_offset: int
    meta: BatchMetaV0
    records: tuple[RecordV0, ...]


def decode_batch_v0(buffer: Buffer) -> BatchV0:
    """One whole batch. RemoteProtocolError when it is not one."""
    view = memoryview(buffer)
    base_offset, meta_end = _header_v0(view)
    records = tuple(
        RecordV0(decode(RecordMetaV0, meta) if meta else RecordMetaV0(), body)
        for meta, body in _walk_v0(view, meta_end)
    )
    return BatchV0(base_offset, decode(BatchMetaV0, view[HEADER_BYTES_V0:meta_end]), records)


def count_records_v0(buffer: Buffer) -> int:
    """How far the batch moves the offset; looks at lengths only."""
    view = memoryview(buffer)
    _, meta_end = _header_v0(view)
    return sum(1 for _ in _walk_v0(view, meta_end))


def _header_v0(view: memoryview) -> tuple[int, int]:
    if len(view) < HEADER_BYTES_V0:
        raise RemoteProtocolError("version 0 batch shorter than its header")
    magic, base_offset, meta_length = _HEADER_V0.unpack_from(view)
    if magic != MAGIC_V0:
        raise RemoteProtocolError("not a version 0 batch", magic=magic)
    if not 0 <= meta_length <= len(view) - HEADER_BYTES_V0:
        raise RemoteProtocolError("version 0 batch meta out of bounds", length=meta_length)
    return base_offset, HEADER_BYTES_V0 + meta_length


def _walk_v0(view: memoryview, position: int) -> Iterator[tuple[memoryview, memoryview]]:
    while position < len(view):
        start = position + _RECORD_V0.size
        if start > len(view):
            raise RemoteProtocolError("version 0 record cut short")
        meta_length, body_length = _RECORD_V0.unpack_from(view, position)
        body = start + meta_length
        position = body + body_length
        if meta_length < 0 or body_length < 0 or position > len(view):
            raise RemoteProtocolError("version 0 record out of bounds")
        yield view[start:body], view[body:position]
