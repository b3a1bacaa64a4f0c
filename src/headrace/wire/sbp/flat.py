"""FlatBuffers for the header tables, driven by the field declarations of the message classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Message:
    """Base of every header table."""

    __slots__ = ()


class Kind(Enum):
    BOOL = auto()
    I8 = auto()
    I16 = auto()
    I32 = auto()
    I64 = auto()
    STRING = auto()
    OCTETS = auto()
    TABLE = auto()
    TABLES = auto()
    I64_VECTOR = auto()


@dataclass(frozen=True, slots=True)
class FlatField:
    id: int
    kind: Kind
    default: int = 0
    written: bool = False  # write the field even when it holds its default
    table: type[Message] | None = None


def _field(spec: FlatField, default: object) -> Any:
    return field(default=default, metadata={"flat": spec})


def boolean(id: int) -> Any:
    return _field(FlatField(id, Kind.BOOL), False)


def i8(id: int, default: int = 0) -> Any:
    return _field(FlatField(id, Kind.I8, default), default)


def i16(id: int, default: int = 0) -> Any:
    return _field(FlatField(id, Kind.I16, default), default)


def i32(id: int, default: int = 0, *, written: bool = False) -> Any:
    return _field(FlatField(id, Kind.I32, default, written), default)


def i64(id: int, default: int = 0, *, written: bool = False) -> Any:
    return _field(FlatField(id, Kind.I64, default, written), default)


def string(id: int) -> Any:
    return _field(FlatField(id, Kind.STRING), "")


def octets(id: int) -> Any:
    return _field(FlatField(id, Kind.OCTETS), b"")


def table(id: int, of: type[Message]) -> Any:
    return _field(FlatField(id, Kind.TABLE, table=of), None)


def tables(id: int, of: type[Message]) -> Any:
    return _field(FlatField(id, Kind.TABLES, table=of), ())


def i64_vector(id: int) -> Any:
    return _field(FlatField(id, Kind.I64_VECTOR), ())
