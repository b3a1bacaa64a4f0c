"""Bodies described by their fields: the wire order is the order of declaration.

A body is a frozen dataclass whose annotations name the wire type of each field:

    @dataclass(frozen=True, slots=True)
    class UpdateStream(Body):
        stream: Reference      # Identifier, numeric ids shifted to the dialect's base
        name: Str8             # u8 length, UTF-8

One declaration gives `decode` and `encode`, so the two cannot drift apart. All numbers are little
endian. Requests may carry trailing bytes (Node's DELETE_TOPIC does); they are ignored.
A number that is cut short is INVALID_NUMBER_ENCODING, anything else undecodable INVALID_COMMAND.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Annotated, Any, Generic, Self, TypeAlias, TypeVar, get_type_hints

from headrace.errors import LocalProtocolError
from headrace.wire.iggy.dialects import CLASSIC, Dialect
from headrace.wire.iggy.errors import DecodeError, Status

T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)
B = TypeVar("B", bound="Body")
Buffer: TypeAlias = bytes | bytearray | memoryview

_U32_MAX = 0xFFFF_FFFF


class Reader:
    """A cursor over one body. Every step checks that the bytes are there."""

    __slots__ = ("data", "dialect", "position")

    def __init__(self, data: Buffer, dialect: Dialect, position: int = 0) -> None:
        self.data = memoryview(data)
        self.dialect = dialect
        self.position = position

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def number(self, layout: struct.Struct) -> Any:
        try:
            (value,) = layout.unpack_from(self.data, self.position)
        except struct.error:
            raise DecodeError(
                Status.INVALID_NUMBER_ENCODING, position=self.position, length=len(self.data)
            ) from None
        self.position += layout.size
        return value

    def take(self, length: int) -> memoryview:
        start, end = self.position, self.position + length
        if end > len(self.data):
            raise DecodeError(
                Status.INVALID_COMMAND, "body ends inside a field", wanted=end, found=len(self.data)
            )
        self.position = end
        return self.data[start:end]

    def text(self, length: int) -> str:
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError:
            raise DecodeError(Status.INVALID_UTF8, position=self.position) from None

    def u8(self) -> int:
        return int(self.number(U8_LAYOUT))

    def u32(self) -> int:
        return int(self.number(U32_LAYOUT))


class Writer(bytearray):
    """A body being built for one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self.dialect = dialect

    def number(self, layout: struct.Struct, value: Any) -> None:
        try:
            self += layout.pack(value)
        except struct.error as error:
            raise LocalProtocolError("number does not fit its field", value=value) from error


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one field is read and written."""

    read: Callable[[Reader], T]
    write: Callable[[Writer, T], None]


class Body:
    """Base of all declared bodies."""

    __slots__ = ()

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(**{name: codec.read(reader) for name, codec in _layout(cls)})

    def write(self, writer: Writer) -> None:
        for name, codec in _layout(type(self)):
            codec.write(writer, getattr(self, name))

    @classmethod
    def decode(cls, data: Buffer, dialect: Dialect = Dialect.B2) -> Self:
        return cls.read(Reader(data, dialect))

    def encode(self, dialect: Dialect = Dialect.B2) -> bytes:
        writer = Writer(dialect)
        self.write(writer)
        return bytes(writer)


_LAYOUTS: dict[type, tuple[tuple[str, Codec[Any]], ...]] = {}


def _layout(cls: Any) -> tuple[tuple[str, Codec[Any]], ...]:
    if (known := _LAYOUTS.get(cls)) is not None:
        return known
    hints = get_type_hints(cls, include_extras=True)
    declared: list[tuple[str, Codec[Any]]] = []
    for field in fields(cls):
        codecs = [m for m in getattr(hints[field.name], "__metadata__", ()) if type(m) is Codec]
        if len(codecs) != 1:
            raise TypeError(f"{cls.__name__}.{field.name} names no wire type")
        declared.append((field.name, codecs[0]))
    return _LAYOUTS.setdefault(cls, tuple(declared))


# --- plain fields ---------------------------------------------------------------------------------

U8_LAYOUT = struct.Struct("<B")
U16_LAYOUT = struct.Struct("<H")
U32_LAYOUT = struct.Struct("<I")
U64_LAYOUT = struct.Struct("<Q")
F32_LAYOUT = struct.Struct("<f")


def _number(layout: struct.Struct) -> Codec[Any]:
    return Codec(lambda r: r.number(layout), lambda w, v: w.number(layout, v))


def _read_flag(reader: Reader) -> bool:
    return reader.u8() == 1


def _write_flag(writer: Writer, value: bool) -> None:
    writer.append(1 if value else 0)


def _write_text(writer: Writer, layout: struct.Struct, value: str) -> None:
    data = value.encode()
    most = (1 << 8 * layout.size) - 1
    if len(data) > most:
        raise LocalProtocolError(
            f"{len(data)} bytes are too many for this name or text: at most {most}"
        )
    writer.number(layout, len(data))
    writer += data


_U8 = _number(U8_LAYOUT)
U8: TypeAlias = Annotated[int, _U8]
U16: TypeAlias = Annotated[int, _number(U16_LAYOUT)]
U32: TypeAlias = Annotated[int, _number(U32_LAYOUT)]
_U64 = _number(U64_LAYOUT)
U64: TypeAlias = Annotated[int, _U64]
F32: TypeAlias = Annotated[float, _number(F32_LAYOUT)]
FLAG: Codec[bool] = Codec(_read_flag, _write_flag)
Flag: TypeAlias = Annotated[bool, FLAG]
STR8: Codec[str] = Codec(lambda r: r.text(r.u8()), lambda w, v: _write_text(w, U8_LAYOUT, v))
Str8: TypeAlias = Annotated[str, STR8]
Str32: TypeAlias = Annotated[
    str, Codec(lambda r: r.text(r.u32()), lambda w, v: _write_text(w, U32_LAYOUT, v))
]


def choice(cls: type[E], status: Status = Status.INVALID_COMMAND) -> Codec[E]:
    """One byte that must be a member of `cls`."""

    def read(reader: Reader) -> E:
        value = reader.u8()
        try:
            return cls(value)
        except ValueError:
            raise DecodeError(status, f"unknown {cls.__name__}", value=value) from None

    return Codec(read, lambda writer, value: writer.append(value))


def optional(codec: Codec[T]) -> Codec[T | None]:
    """A u8 that is 1 when the value follows."""

    def read(reader: Reader) -> T | None:
        return codec.read(reader) if _read_flag(reader) else None

    def write(writer: Writer, value: T | None) -> None:
        _write_flag(writer, value is not None)
        if value is not None:
            codec.write(writer, value)

    return Codec(read, write)


def nested(cls: type[B]) -> Codec[B]:
    return Codec(cls.read, lambda writer, value: value.write(writer))


def to_end(codec: Codec[T]) -> Codec[tuple[T, ...]]:
    """Values back to back until the body ends. Each takes at least one byte, so this ends."""

    def read(reader: Reader) -> tuple[T, ...]:
        values = []
        while reader.remaining:
            values.append(codec.read(reader))
        return tuple(values)

    return Codec(read, lambda writer, values: _write_all(writer, codec, values))


def counted(codec: Codec[T], count: struct.Struct = U32_LAYOUT) -> Codec[tuple[T, ...]]:
    """A count, then that many values. A false count fails at the body's end, before it costs."""

    def read(reader: Reader) -> tuple[T, ...]:
        return tuple([codec.read(reader) for _ in range(reader.number(count))])

    def write(writer: Writer, values: tuple[T, ...]) -> None:
        writer.number(count, len(values))
        _write_all(writer, codec, values)

    return Codec(read, write)


def chained(codec: Codec[T]) -> Codec[tuple[T, ...]]:
    """A u8 that is 1 while another value follows: one before the first, one after each."""

    def read(reader: Reader) -> tuple[T, ...]:
        values = []
        while _read_flag(reader):
            values.append(codec.read(reader))
        return tuple(values)

    def write(writer: Writer, values: tuple[T, ...]) -> None:
        for value in values:
            writer.append(1)
            codec.write(writer, value)
        writer.append(0)

    return Codec(read, write)


def _write_all(writer: Writer, codec: Codec[T], values: tuple[T, ...]) -> None:
    for value in values:
        codec.write(writer, value)


def tail(codec: Codec[T], default: T) -> Codec[T]:
    """A field that older peers do not send: its default when the body has ended before it."""
    return Codec(lambda r: codec.read(r) if r.remaining else default, codec.write)


def in_dialects(codec: Codec[T], dialects: frozenset[Dialect], default: T) -> Codec[T]:
    """A field that only these dialects have; in the others it is not there and has its default."""

    def read(reader: Reader) -> T:
        return codec.read(reader) if reader.dialect in dialects else default

    def write(writer: Writer, value: T) -> None:
        if writer.dialect in dialects:
            codec.write(writer, value)

    return Codec(read, write)


def by_dialect(codec: Codec[T], dialects: frozenset[Dialect], other: Codec[T]) -> Codec[T]:
    """A field that these dialects write as `codec` says, and the others as `other` does."""

    def read(reader: Reader) -> T:
        return (codec if reader.dialect in dialects else other).read(reader)

    def write(writer: Writer, value: T) -> None:
        (codec if writer.dialect in dialects else other).write(writer, value)

    return Codec(read, write)


ONLY_C = frozenset((Dialect.C,))
ClassicU8: TypeAlias = Annotated[int, in_dialects(_U8, CLASSIC, 0)]
ClassicU64: TypeAlias = Annotated[int, in_dialects(_U64, CLASSIC, 0)]

# --- ids ------------------------------------------------------------------------------------------


def shift_in(value: int, dialect: Dialect, status: Status = Status.INVALID_IDENTIFIER) -> int:
    """A numeric id from the wire in canonical form (from 0)."""
    if value < dialect.id_base:
        raise DecodeError(status, "numeric id below the first one", value=value)
    return value - dialect.id_base


def _read_id(reader: Reader) -> int:
    return shift_in(reader.u32(), reader.dialect)


def _write_id(writer: Writer, value: int) -> None:
    writer.number(U32_LAYOUT, value + writer.dialect.id_base)


def _read_partition(reader: Reader) -> int:
    return shift_in(reader.u32(), reader.dialect, Status.PARTITION_NOT_FOUND)


def _read_requested_id(reader: Reader) -> int | None:
    if reader.dialect is not Dialect.A:
        return None
    value = reader.u32()
    return value - 1 if value else None


def _write_requested_id(writer: Writer, value: int | None) -> None:
    if writer.dialect is Dialect.A:
        writer.number(U32_LAYOUT, 0 if value is None else value + 1)


def _read_optional_partition(reader: Reader) -> int | None:
    if reader.dialect is Dialect.A:
        value = reader.u32()
        return value - 1 if value else None
    present, value = _read_flag(reader), reader.u32()
    return value if present else None


def _write_optional_partition(writer: Writer, value: int | None) -> None:
    if writer.dialect is not Dialect.A:
        _write_flag(writer, value is not None)
        writer.number(U32_LAYOUT, value or 0)
    else:
        writer.number(U32_LAYOUT, 0 if value is None else value + 1)


def _read_login(reader: Reader) -> int | None:
    value = reader.u32()
    if reader.dialect is Dialect.A:
        return value - 1 if value else None
    return None if value == _U32_MAX else value


def _write_login(writer: Writer, value: int | None) -> None:
    absent = 0 if writer.dialect is Dialect.A else _U32_MAX
    writer.number(U32_LAYOUT, absent if value is None else value + writer.dialect.id_base)


Id: TypeAlias = Annotated[int, Codec(_read_id, _write_id)]
"""u32 id of a stream, topic, group or user, canonical from 0."""
PARTITION: Codec[int] = Codec(_read_partition, _write_id)
Partition: TypeAlias = Annotated[int, PARTITION]
OPTIONAL_PARTITION: Codec[int | None] = Codec(_read_optional_partition, _write_optional_partition)
OptionalPartition: TypeAlias = Annotated[int | None, OPTIONAL_PARTITION]
RequestedId: TypeAlias = Annotated[int | None, Codec(_read_requested_id, _write_requested_id)]
"""In A a client may choose the id of what it creates (0: the server does); B has no such field."""
LoggedInUser: TypeAlias = Annotated[int | None, Codec(_read_login, _write_login)]
"""None for a connection that has not logged in: 0 in A, all ones in B."""
