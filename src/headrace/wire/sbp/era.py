"""Record batches of the original implementation, magic 0x22: read only.

Big-endian, with FlatBuffers inside:

    0   i8   magic 0x22
    1   i64  base_offset      the data node assigns it here; the copy inside the meta is ignored
    9   i32  meta_length
    13       RecordBatchMeta
             records, to the end of the buffer: the batch does not say how long it is
             i32 meta_length, i32 body_length, RecordMeta, body

Writers disagreed on `last_offset_delta` (count, or count - 1) and on the unit of timestamps, so the
number of records comes from walking them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import RemoteProtocolError
from headrace.wire.sbp.flat import Buffer, Message, decode, i16, i32, i64, string, tables

MAGIC = 0x22
HEADER_BYTES = 13

_HEADER = struct.Struct(">bqi")
_RECORD = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class KeyValue(Message):
    key: str = string(0)
    value: str = string(1)


@dataclass(frozen=True, slots=True)
class RecordBatchMeta(Message):
    stream_id: int = i64(0)
    flags: int = i16(1)
    base_offset: int = i64(2)
    last_offset_delta: int = i32(3)
    base_timestamp: int = i64(4)
    properties: tuple[KeyValue, ...] = tables(5, KeyValue)


@dataclass(frozen=True, slots=True)
class RecordMeta(Message):
    offset_delta: int = i32(0)
    timestamp_delta: int = i32(1)
    headers: tuple[KeyValue, ...] = tables(2, KeyValue)
    properties: tuple[KeyValue, ...] = tables(3, KeyValue)


@dataclass(frozen=True, slots=True)
class Record:
    meta: RecordMeta
    body: memoryview


@dataclass(frozen=True, slots=True)
class Batch:
    base_offset: int
    meta: RecordBatchMeta
    records: tuple[Record, ...]


def decode_batch(buffer: Buffer) -> Batch:
    """One whole batch. RemoteProtocolError when it is not one."""
    view = memoryview(buffer)
    base_offset, meta_end = _header(view)
    records = tuple(
        Record(decode(RecordMeta, meta) if meta else RecordMeta(), body)
        for meta, body in _walk(view, meta_end)
    )
    return Batch(base_offset, decode(RecordBatchMeta, view[HEADER_BYTES:meta_end]), records)


def count_records(buffer: Buffer) -> int:
    """How far the batch moves the offset; looks at lengths only."""
    view = memoryview(buffer)
    _, meta_end = _header(view)
    return sum(1 for _ in _walk(view, meta_end))


def _header(view: memoryview) -> tuple[int, int]:
    if len(view) < HEADER_BYTES:
        raise RemoteProtocolError("era batch shorter than its header")
    magic, base_offset, meta_length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise RemoteProtocolError("not an era batch", magic=magic)
    if not 0 <= meta_length <= len(view) - HEADER_BYTES:
        raise RemoteProtocolError("era batch meta out of bounds", length=meta_length)
    return base_offset, HEADER_BYTES + meta_length


def _walk(view: memoryview, position: int) -> Iterator[tuple[memoryview, memoryview]]:
    while position < len(view):
        start = position + _RECORD.size
        if start > len(view):
            raise RemoteProtocolError("era record cut short")
        meta_length, body_length = _RECORD.unpack_from(view, position)
        body = start + meta_length
        position = body + body_length
        if meta_length < 0 or body_length < 0 or position > len(view):
            raise RemoteProtocolError("era record out of bounds")
        yield view[start:body], view[body:position]
