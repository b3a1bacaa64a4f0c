"""Sending, polling, flushing (codes 100 to 102): the hot path. `batch.py` knows the messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, NamedTuple

from headrace.errors import LocalProtocolError
from headrace.wire.iggy import batch
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import (
    ONLY_C,
    OPTIONAL_PARTITION,
    U32,
    U32_LAYOUT,
    U64,
    Body,
    Buffer,
    Flag,
    Id,
    OptionalPartition,
    Partition,
    Reader,
    Writer,
    counted,
    in_dialects,
    nested,
)
from headrace.wire.iggy.primitives import (
    CONSUMER,
    REFERENCE,
    Consumer,
    ConsumerField,
    Identifier,
    Partitioning,
    PartitioningKind,
    Reference,
    Strategy,
    StrategyField,
    StrategyKind,
    read_partitioning,
    write_partitioning,
)
from headrace.wire.iggy.user_headers import (
    USER_HEADERS_BYTES_MAX,
    UserHeader,
    decode_headers,
    headers_too_large,
    split_key,
)
from headrace.wire.iggy.vsr import batch as vsr_batch
from headrace.wire.iggy.vsr import reply

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions

_HEADER = struct.Struct("<Q16sQQQIIQ")
_INDEX_ENTRY = struct.Struct("<IIQ")
POLL_HEAD = struct.Struct("<IQI")
_SENT = struct.Struct("<IIIIQ")
_U32 = struct.Struct("<I")
_STRATEGIES = {int(kind): kind for kind in StrategyKind}
_FLAGS = {0: False, 1: True}
_KEPT_MAX = 1024  # of each kind of repeated bytes; an entry has at most 800

POLL_TAIL = struct.Struct("<BQIB")
POLL_TAIL_BYTES = POLL_TAIL.size
"""Strategy, count and auto-commit at the end of a POLL: what is before them seldom changes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. To send one only `payload` is needed; the server fills in the rest."""

    payload: bytes
    headers: bytes = b""
    """The user headers as they stand on the wire (B2)."""
    id: int = 0
    offset: int = 0
    timestamp_us: int = 0
    origin_timestamp_us: int = 0
    checksum: int = field(default=0, compare=False)

    @property
    def user_headers(self) -> tuple[UserHeader, ...]:
        return decode_headers(self.headers)

    @property
    def key(self) -> bytes | None:
        return split_key(self.headers)[0]


# --- SEND_MESSAGES --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)  # not frozen, which makes it twice as dear to make
class SendMessages:
    """`u32 metadata length, stream, topic, partitioning, u32 count, count * 16 index, messages`.

    `area` holds canonical messages, checked; it can be written to when the request could.
    """

    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    starts: Positions
    area: memoryview
    header_bytes: int = batch.HEADER_BYTES
    """The size of a message's header as it stood on the wire."""
    framed: bool = False
    """See `vsr_batch.Decoded`."""
    frames: vsr_batch.Frames | None = None
    """In the memory of the request."""

    @property
    def count(self) -> int:
        return len(self.starts)

    @classmethod
    def decode(cls, data: Buffer, dialect: Dialect = Dialect.B2) -> SendMessages:
        return decode_send(data, dialect)

    def pieces(self, dialect: Dialect = Dialect.B2) -> list[Buffer]:
        area, starts = self.area, self.starts
        if dialect is Dialect.C:
            head = _send_head(self.stream, self.topic, self.partitioning, self.count, dialect)
            return [head, vsr_batch.encode_produced(area, starts)]
        if dialect is not Dialect.B2:
            from headrace.wire.iggy.columns import narrow

            area, starts = narrow(area, starts, dialect)
        head = _send_head(self.stream, self.topic, self.partitioning, self.count, dialect)
        return [head, _send_index(starts, len(area)), area]

    def encode(self, dialect: Dialect = Dialect.B2) -> bytes:
        return b"".join(self.pieces(dialect))


def decode_send(
    payload: Buffer, dialect: Dialect = Dialect.B2, room: memoryview | None = None
) -> SendMessages:
    """Decode and check a SEND. The header size is read off the messages, not off the dialect.

    In dialect C one batch (`vsr/batch.py`) stands in the place of index and messages; `room` is the
    payload and what may be written behind it: see `decode_batch`.
    """
    data = memoryview(payload)
    metadata_bytes = _read_u32(data, 0)
    (stream, topic, partitioning), end = _read_target(data, dialect)
    count = _read_u32(data, end)
    if end != metadata_bytes:  # which counts the count, and not itself
        raise DecodeError(Status.INVALID_COMMAND, "metadata length", stated=metadata_bytes)
    data = data[end + _U32.size :]
    if dialect is Dialect.C:
        beyond = None if room is None else room[end + _U32.size :]
        area, starts, framed, frames = vsr_batch.decode_batch(data, count, beyond)
        return SendMessages(stream, topic, partitioning, starts, area, framed=framed, frames=frames)
    index_bytes = count * batch.INDEX_ENTRY_BYTES
    if index_bytes > len(data):
        raise DecodeError(Status.INVALID_INDEXES_BYTE_SIZE, count=count, found=len(data))
    index, area = data[:index_bytes], data[index_bytes:]
    starts, header_bytes = batch.check_messages(index, area)
    if header_bytes == batch.HEADER_BYTES:
        return SendMessages(stream, topic, partitioning, starts, area)
    from headrace.wire.iggy.columns import widen

    area, starts = widen(area, starts)
    return SendMessages(stream, topic, partitioning, starts, area, header_bytes)


@dataclass(slots=True)  # see SendMessages
class Placed(Body):
    """Where the messages of a SEND went."""

    stream_id: Id
    topic_id: Id
    partition: Partition
    base_offset: U64


@dataclass(slots=True)
class SentMessages(Body):
    """The reply to a SEND: nothing but in dialect C."""

    placed: Annotated[tuple[Placed, ...], in_dialects(counted(nested(Placed)), ONLY_C, ())]

    @classmethod
    def decode(cls, data: Buffer, dialect: Dialect = Dialect.B2) -> SentMessages:
        return cls(()) if not len(data) else cls.read(Reader(data, dialect))


def encode_sent(stream_id: int, topic_id: int, partition: int, base_offset: int) -> bytes:
    """SentMessages of dialect C, all in one place, as every SEND is answered."""
    return _SENT.pack(1, stream_id, topic_id, partition, base_offset)


class SendTarget(NamedTuple):
    """Where the messages of a SEND go."""

    stream: Identifier
    topic: Identifier
    partitioning: Partitioning


def read_send_target(payload: Buffer, dialect: Dialect) -> SendTarget:
    """Of a SEND whose messages are not looked at; DecodeError."""
    return _read_target(memoryview(payload), dialect)[0]


def _read_u32(data: memoryview, at: int) -> int:
    if len(data) < at + _U32.size:
        raise DecodeError(Status.INVALID_NUMBER_ENCODING, position=at, length=len(data))
    return int(_U32.unpack_from(data, at)[0])


def _read_target(data: memoryview, dialect: Dialect) -> tuple[SendTarget, int]:
    """Where the messages of a SEND go, and where that ends. Producers name the same place over and
    over, so it is kept decoded; but not the keys, which differ."""
    begin = _U32.size
    try:
        middle = begin + 2 + data[begin + 1]
        end = middle + 2 + data[middle + 1]
        if data[end] != PartitioningKind.KEY:
            end += 2 + data[end + 1]
            return _decode_target(data[begin:end].tobytes(), dialect), end
    except (IndexError, DecodeError):
        pass  # said below, with its position
    reader = Reader(data, dialect)
    reader.position = begin
    return _decode_fields(reader), reader.position


def _decode_fields(reader: Reader) -> SendTarget:
    return SendTarget(REFERENCE.read(reader), REFERENCE.read(reader), read_partitioning(reader))


@lru_cache(_KEPT_MAX)
def _decode_target(data: bytes, dialect: Dialect) -> SendTarget:
    reader = Reader(data, dialect)
    target = _decode_fields(reader)
    if reader.remaining:
        raise DecodeError(Status.INVALID_COMMAND, "not these fields alone")
    return target


def encode_send(
    stream: Identifier,
    topic: Identifier,
    partitioning: Partitioning,
    messages: Iterable[Message],
    *,
    origin_timestamp_us: int = 0,
) -> SendMessages:
    """A request to send these messages; the origin timestamp is for those that have none."""
    import numpy as np

    area = bytearray()
    starts = []
    for message in messages:
        starts.append(len(area))
        area += _HEADER.pack(
            0,
            message.id.to_bytes(16, "little"),
            0,
            0,
            message.origin_timestamp_us or origin_timestamp_us,
            len(message.headers),
            _checked_length(message),
            0,
        )
        area += message.payload
        area += message.headers
    if not starts:
        raise LocalProtocolError("nothing to send")
    positions = np.array(starts, np.uint32)
    return SendMessages(stream, topic, partitioning, positions, memoryview(area))


def _checked_length(message: Message) -> int:
    if len(message.payload) > batch.PAYLOAD_BYTES_MAX:
        raise batch.payload_too_large(len(message.payload))
    if len(message.headers) > USER_HEADERS_BYTES_MAX:
        raise headers_too_large(len(message.headers))
    return len(message.payload)


def _send_head(
    stream: Identifier, topic: Identifier, partitioning: Partitioning, count: int, dialect: Dialect
) -> bytes:
    writer = Writer(dialect)
    REFERENCE.write(writer, stream)
    REFERENCE.write(writer, topic)
    write_partitioning(writer, partitioning)
    writer.number(U32_LAYOUT, count)
    return U32_LAYOUT.pack(len(writer)) + writer


def _send_index(starts: Positions, area_bytes: int) -> bytes:
    import numpy as np

    table = np.zeros((len(starts), 4), "<u4")
    table[:-1, 1] = starts[1:]
    table[-1, 1] = area_bytes
    return table.tobytes()


# --- POLL_MESSAGES --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PollMessages(Body):
    consumer: ConsumerField
    stream: Reference
    topic: Reference
    partition: OptionalPartition
    strategy: StrategyField
    count: U32
    auto_commit: Flag = False

    @classmethod
    def decode(cls, data: Buffer, dialect: Dialect = Dialect.B2) -> PollMessages:
        """Consumers send the same poll over and over, but for its offset: the rest is kept."""
        front = len(data) - POLL_TAIL_BYTES
        if 0 < front <= _POLL_FRONT_BYTES_MAX:
            try:
                who_and_where = _decode_poll_front(bytes(data[:front]), dialect)
                kind, value, count, auto_commit = POLL_TAIL.unpack_from(data, front)
                strategy = Strategy(_STRATEGIES[kind], value)
                return cls(*who_and_where, strategy, count, _FLAGS[auto_commit])
            except (DecodeError, KeyError):
                pass  # longer than it need be, or wrong: below it is said what is wrong
        return cls.read(Reader(data, dialect))


_POLL_FRONT_BYTES_MAX = 1 + 3 * 257 + 5


@lru_cache(_KEPT_MAX)
def _decode_poll_front(
    data: bytes, dialect: Dialect
) -> tuple[Consumer, Identifier, Identifier, int | None]:
    reader = Reader(data, dialect)
    consumer = CONSUMER.read(reader)
    stream, topic = REFERENCE.read(reader), REFERENCE.read(reader)
    partition = OPTIONAL_PARTITION.read(reader)
    if reader.remaining:
        raise DecodeError(Status.INVALID_COMMAND, "not these fields alone")
    return consumer, stream, topic, partition


NOWHERE = -1
"""The partition of a reply to a group member that has none: 0 on the wire, in every dialect."""


@dataclass(frozen=True, slots=True, eq=False)
class PolledMessages:
    """`u32 partition, u64 current offset, u32 count`, messages. Never shorter than 16 bytes.

    `current_offset` is the partition's last offset (0 when empty), not the last one returned.
    """

    partition: int
    current_offset: int
    count: int
    slices: Sequence[Buffer] = ()
    """Canonical messages; a slice holds whole ones. A decoded reply has one slice."""
    batches: Sequence[Buffer] | None = None
    """The same in dialect C's form, where somebody has made them already."""

    @classmethod
    def decode(cls, data: Buffer, dialect: Dialect = Dialect.B2) -> PolledMessages:
        if len(data) < POLL_HEAD.size:
            raise DecodeError(Status.INVALID_NUMBER_ENCODING, "poll reply", length=len(data))
        partition, current_offset, count = POLL_HEAD.unpack_from(data)
        canonical = max(0, partition - dialect.id_base)  # A's 0 is nowhere, see above
        area = memoryview(data)[POLL_HEAD.size :]
        if dialect is Dialect.C:
            return cls(canonical, current_offset, count, reply.decode_batches(area))
        if dialect is not Dialect.B2 and len(area):
            from headrace.wire.iggy.columns import widen

            area, _ = widen(area, batch.locate(area, dialect.header_bytes))
        return cls(canonical, current_offset, count, (area,) if len(area) else ())

    def pieces(self, dialect: Dialect = Dialect.B2) -> list[Buffer]:
        if dialect is Dialect.C and self.batches is not None:
            head = POLL_HEAD.pack(max(0, self.partition), self.current_offset, self.count)
            return [head, *self.batches]
        return encode_poll_response(
            self.partition, self.current_offset, self.count, self.slices, dialect
        )

    def encode(self, dialect: Dialect = Dialect.B2) -> bytes:
        return b"".join(self.pieces(dialect))

    def messages(self) -> list[Message]:
        return [message for area in self.slices for message in decode_messages(area)]


def encode_poll_response(
    partition: int,
    current_offset: int,
    count: int,
    slices: Sequence[Buffer],
    dialect: Dialect = Dialect.B2,
) -> list[Buffer]:
    head = POLL_HEAD.pack(max(0, partition + dialect.id_base), current_offset, count)
    if dialect is Dialect.B2:
        return [head, *slices]
    if dialect is Dialect.C:
        return [head, *reply.encode_areas(slices, partition)]
    from headrace.wire.iggy.columns import narrow

    return [head, *(narrow(area, batch.locate(area), dialect)[0] for area in slices)]


def decode_messages(area: Buffer) -> list[Message]:
    """The messages of an area, one object each: for clients that look at messages one by one."""
    view = memoryview(area)
    messages = []
    for start in batch.walk(view):
        checksum, id_, offset, time, origin, headers_bytes, payload_bytes, _ = _HEADER.unpack_from(
            view, start
        )
        payload_end = start + _HEADER.size + payload_bytes
        messages.append(
            Message(
                payload=bytes(view[start + _HEADER.size : payload_end]),
                headers=bytes(view[payload_end : payload_end + headers_bytes]),
                id=int.from_bytes(id_, "little"),
                offset=offset,
                timestamp_us=time,
                origin_timestamp_us=origin,
                checksum=checksum,
            )
        )
    return messages


@dataclass(frozen=True, slots=True)
class FlushUnsavedBuffer(Body):
    stream: Reference
    topic: Reference
    partition: Partition
    fsync: Flag = True
