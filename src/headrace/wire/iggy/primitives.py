"""Structures that many commands share: Identifier, Consumer, Partitioning, polling strategy.

Options of streams, topics and users (dialect C): entries like user headers, with text keys.

In requests they are what is left of the body, in replies a block with its length in front. Other
dialects have none: there they read as empty and are not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, TypeAlias

from headrace.errors import LocalProtocolError
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import (
    U32_LAYOUT,
    U64_LAYOUT,
    Codec,
    Reader,
    Writer,
    choice,
    shift_in,
)
from headrace.wire.iggy.user_headers import HeaderKind, UserHeader, decode_headers, encode_headers

_NUMERIC, _STRING = 1, 2

Identifier: TypeAlias = int | str
"""What a client calls a resource: its number or its name."""


def _read_identifier(reader: Reader, *, shifted: bool) -> Identifier:
    """`u8 kind (1 numeric, 2 string), u8 length, value`; numeric values are u32."""
    kind, length = reader.u8(), reader.u8()
    if kind == _NUMERIC:
        if length != 4:
            raise DecodeError(Status.INVALID_IDENTIFIER, "numeric id of odd length", length=length)
        value = reader.u32()
        return shift_in(value, reader.dialect) if shifted else value
    if kind != _STRING:
        raise DecodeError(Status.INVALID_COMMAND, "unknown identifier kind", kind=kind)
    if length == 0:
        raise DecodeError(Status.INVALID_IDENTIFIER, "empty name")
    return reader.text(length)


def _write_identifier(writer: Writer, value: Identifier, *, shifted: bool) -> None:
    if isinstance(value, int):
        writer += bytes((_NUMERIC, 4))
        writer.number(U32_LAYOUT, value + (writer.dialect.id_base if shifted else 0))
        return
    name = value.encode()
    if not 1 <= len(name) <= 255:
        raise LocalProtocolError("a name has 1 to 255 bytes", name=value)
    writer += bytes((_STRING, len(name)))
    writer += name


REFERENCE: Codec[Identifier] = Codec(
    lambda r: _read_identifier(r, shifted=True),
    lambda w, v: _write_identifier(w, v, shifted=True),
)
Reference: TypeAlias = Annotated[Identifier, REFERENCE]
"""An Identifier of something the server numbers, canonical from 0."""


class ConsumerKind(IntEnum):
    CONSUMER = 1
    GROUP = 2


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who polls. A single consumer chooses its number, so that stays; a group's is an id."""

    kind: ConsumerKind
    id: Identifier

    @classmethod
    def single(cls, id: Identifier = 0) -> Consumer:
        return cls(ConsumerKind.CONSUMER, id)

    @classmethod
    def group(cls, id: Identifier) -> Consumer:
        return cls(ConsumerKind.GROUP, id)


_CONSUMER_KIND = choice(ConsumerKind)


def _read_consumer(reader: Reader) -> Consumer:
    kind = _CONSUMER_KIND.read(reader)
    return Consumer(kind, _read_identifier(reader, shifted=kind is ConsumerKind.GROUP))


def _write_consumer(writer: Writer, value: Consumer) -> None:
    writer.append(value.kind)
    _write_identifier(writer, value.id, shifted=value.kind is ConsumerKind.GROUP)


CONSUMER: Codec[Consumer] = Codec(_read_consumer, _write_consumer)
ConsumerField: TypeAlias = Annotated[Consumer, CONSUMER]


class PartitioningKind(IntEnum):
    BALANCED = 1
    PARTITION = 2
    KEY = 3


@dataclass(frozen=True, slots=True)
class Partitioning:
    """`u8 kind, u8 length, value`. All messages of one SEND go to one partition."""

    kind: PartitioningKind
    partition: int = 0
    key: bytes = b""

    @classmethod
    def balanced(cls) -> Partitioning:
        return cls(PartitioningKind.BALANCED)

    @classmethod
    def to_partition(cls, partition: int) -> Partitioning:
        return cls(PartitioningKind.PARTITION, partition=partition)

    @classmethod
    def by_key(cls, key: bytes) -> Partitioning:
        return cls(PartitioningKind.KEY, key=key)


_PARTITIONING_KIND = choice(PartitioningKind)


def read_partitioning(reader: Reader) -> Partitioning:
    kind, length = _PARTITIONING_KIND.read(reader), reader.u8()
    if kind is PartitioningKind.PARTITION and length == 4:
        partition = shift_in(reader.u32(), reader.dialect, Status.PARTITION_NOT_FOUND)
        return Partitioning(kind, partition)
    if kind is PartitioningKind.KEY and length:
        return Partitioning(kind, key=bytes(reader.take(length)))
    if kind is PartitioningKind.BALANCED and not length:
        return Partitioning(kind)
    raise DecodeError(Status.INVALID_KEY_VALUE_LENGTH, kind=kind.name, length=length)


def write_partitioning(writer: Writer, value: Partitioning) -> None:
    if value.kind is PartitioningKind.KEY and not 1 <= len(value.key) <= 255:
        raise LocalProtocolError("a partitioning key has 1 to 255 bytes", length=len(value.key))
    length = {
        PartitioningKind.BALANCED: 0,
        PartitioningKind.PARTITION: 4,
        PartitioningKind.KEY: len(value.key),
    }[value.kind]
    writer += bytes((value.kind, length))
    if value.kind is PartitioningKind.PARTITION:
        writer.number(U32_LAYOUT, value.partition + writer.dialect.id_base)
    else:
        writer += value.key


class StrategyKind(IntEnum):
    OFFSET = 1
    TIMESTAMP = 2
    FIRST = 3
    LAST = 4
    NEXT = 5


@dataclass(frozen=True, slots=True)
class Strategy:
    """Where a poll starts: `u8 kind, u64 value` (an offset, or microseconds since the epoch)."""

    kind: StrategyKind
    value: int = 0

    @classmethod
    def offset(cls, offset: int) -> Strategy:
        return cls(StrategyKind.OFFSET, offset)

    @classmethod
    def timestamp(cls, timestamp_us: int) -> Strategy:
        return cls(StrategyKind.TIMESTAMP, timestamp_us)

    @classmethod
    def first(cls) -> Strategy:
        return cls(StrategyKind.FIRST)

    @classmethod
    def last(cls) -> Strategy:
        return cls(StrategyKind.LAST)

    @classmethod
    def next(cls) -> Strategy:
        return cls(StrategyKind.NEXT)


_STRATEGY_KIND = choice(StrategyKind)


def _read_strategy(reader: Reader) -> Strategy:
    return Strategy(_STRATEGY_KIND.read(reader), int(reader.number(U64_LAYOUT)))


def _write_strategy(writer: Writer, value: Strategy) -> None:
    writer.append(value.kind)
    writer.number(U64_LAYOUT, value.value)


StrategyField: TypeAlias = Annotated[Strategy, Codec(_read_strategy, _write_strategy)]


OPTIONS_BYTES_MAX = 16 * 1024

Options: TypeAlias = tuple[UserHeader, ...]


def decode_options(data: bytes | memoryview) -> Options:
    if len(data) > OPTIONS_BYTES_MAX:
        raise DecodeError(Status.OPTIONS_BLOCK_TOO_LARGE, length=len(data))
    options = decode_headers(data, Dialect.C)
    for option in options:
        if option.key_kind is not HeaderKind.STRING:
            raise DecodeError(Status.INVALID_HEADER_KEY, "an option's key is text")
    return options


def encode_options(options: Options) -> bytes:
    return encode_headers(options, Dialect.C)


def _read_rest(reader: Reader) -> Options:
    if reader.dialect is not Dialect.C:
        return ()
    return decode_options(reader.take(reader.remaining))


def _write_rest(writer: Writer, options: Options) -> None:
    if writer.dialect is Dialect.C:
        writer += encode_options(options)


def _read_block(reader: Reader) -> Options:
    if reader.dialect is not Dialect.C:
        return ()
    return decode_options(reader.take(reader.u32()))


def _write_block(writer: Writer, options: Options) -> None:
    if writer.dialect is Dialect.C:
        block = encode_options(options)
        writer.number(U32_LAYOUT, len(block))
        writer += block


OptionsToEnd: TypeAlias = Annotated[Options, Codec(_read_rest, _write_rest)]
OptionsBlock: TypeAlias = Annotated[Options, Codec(_read_block, _write_block)]
