"""Avro's binary encoding of plain values, by one schema: what is written is what is read.

A schema becomes a tree of nodes, each with a function that reads a value off bytes and one that
writes it. Values are Python's own, as `pa.array` takes them: dicts for records, pairs for maps,
microseconds for timestamps, days for dates. No resolution between two schemas, no containers and no
registry prefixes; those are files' and registries' business. Reading costs some microseconds a
record; nothing that is read says how much memory to take before it is known to be there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from headrace.errors import ConfigError

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
Write: TypeAlias = Callable[[bytearray, Any], None]

DEPTH_MAX = 64
DECIMAL_BYTES_MAX = 48  # more than a hundred digits; Python takes minutes for a million
_VARINT_BITS_MAX = 63
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


@dataclass(slots=True)
class Node:
    """One type of a schema."""

    kind: str
    """Avro's type, or the logical type where it is one of those that are understood."""
    read: Read
    write: Write
    bytes_min: int
    """The fewest bytes that a value takes."""
    fields: dict[str, Node] = field(default_factory=dict)
    items: Node | None = None
    branches: tuple[Node, ...] = ()
    scale: int = 0

    @property
    def nullable(self) -> bool:
        return self.kind == "null" or any(each.kind == "null" for each in self.branches)

    def solid(self) -> Node:
        """Without the choice to be null."""
        others = [each for each in self.branches if each.kind != "null"]
        return others[0] if len(others) == 1 else self


def parse_record(text: str) -> Node:
    """ConfigError unless it is the schema of a record that can be read."""
    try:
        node = _Parser().parse(json.loads(text), 0)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"avroSchema is not JSON: {error}") from None
    if node.kind != "record":
        raise ConfigError(f"avroSchema must be a record, it is {node.kind}")
    return node


# --- primitives -----------------------------------------------------------------------------------


def read_long(data: bytes, at: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _VARINT_BITS_MAX:
            raise ValueError("a number of more than ten bytes")
    if value >> 64:
        raise ValueError("a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def write_long(out: bytearray, value: int) -> None:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r} is no long")
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _read_int(data: bytes, at: int) -> tuple[int, int]:
    value, at = read_long(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} is no int")
    return value, at


def _write_int(out: bytearray, value: int) -> None:
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value!r} is no int")
    write_long(out, value)


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise ValueError("a length beyond the payload's end")
    return data[at : at + length], at + length


def _write_bytes(out: bytearray, value: bytes) -> None:
    write_long(out, len(value))
    out += value


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    value, at = _read_bytes(data, at)
    return value.decode(), at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError("a boolean that is neither 0 nor 1")
    return data[at] == 1, at + 1


def _write_null(out: bytearray, value: Any) -> None:
    if value is not None:
        raise ValueError("a value where only null fits")


_PRIMITIVES: dict[str, tuple[Read, Write, int]] = {
    "null": (lambda data, at: (None, at), _write_null, 0),
    "boolean": (_read_boolean, lambda out, value: out.append(bool(value)), 1),
    "int": (_read_int, _write_int, 1),
    "long": (read_long, write_long, 1),
    "float": (
        lambda data, at: (_FLOAT.unpack_from(data, at)[0], at + 4),
        lambda out, value: out.extend(_FLOAT.pack(value)),
        4,
    ),
    "double": (
        lambda data, at: (_DOUBLE.unpack_from(data, at)[0], at + 8),
        lambda out, value: out.extend(_DOUBLE.pack(value)),
        8,
    ),
    "bytes": (_read_bytes, _write_bytes, 1),
    "string": (_read_string, lambda out, value: _write_bytes(out, value.encode()), 1),
}
_MICROSECONDS = {"millis": 1000, "micros": 1}  # of one unit


# --- the tree -------------------------------------------------------------------------------------


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def parse(self, schema: Any, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise ConfigError(f"avroSchema is nested deeper than {DEPTH_MAX}")
        if isinstance(schema, list):
            return _union(tuple(self.parse(each, depth + 1) for each in schema))
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, dict | list):
            return self.parse(kind, depth + 1)
        if kind in _PRIMITIVES:
            return _logical(Node(kind, *_PRIMITIVES[kind]), schema)
        if kind in ("array", "map"):
            return _many(kind, self.parse(schema.get(_ITEMS[kind]), depth + 1))
        if kind in ("record", "enum", "fixed"):
            return self._define(kind, schema, depth)
        if kind in self._named:
            return self._named[kind]
        raise ConfigError(f"avroSchema has a type that is not known before its use: {kind!r}")

    def _define(self, kind: str, schema: dict[str, Any], depth: int) -> Node:
        if kind == "record":
            fields = schema.get("fields")
            if not isinstance(fields, list) or not all(
                isinstance(each, dict) and isinstance(each.get("name"), str) for each in fields
            ):
                raise ConfigError("a record in avroSchema has no list of named fields")
            node = _record({each["name"]: self.parse(each, depth + 1) for each in fields})
        elif kind == "enum":
            node = _enum(schema.get("symbols"))
        else:
            node = _logical(_fixed(schema.get("size")), schema)
        name, space = schema.get("name"), schema.get("namespace")
        if isinstance(name, str):
            self._named[name] = self._named[f"{space}.{name}"] = node
        return node


_ITEMS = {"array": "items", "map": "values"}


def _union(branches: tuple[Node, ...]) -> Node:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise ValueError(f"a union has no branch {index}")
        return branches[index].read(data, at)

    def write(out: bytearray, value: Any) -> None:
        for index, each in enumerate(branches):
            if (each.kind == "null") == (value is None):
                write_long(out, index)
                return each.write(out, value)
        raise ValueError("null where the schema has none")

    smallest = 1 + min((each.bytes_min for each in branches), default=0)
    return Node("union", read, write, smallest, branches=branches)


def _record(fields: dict[str, Node]) -> Node:
    parts = tuple(fields.items())

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, node in parts:
            found[name], at = node.read(data, at)
        return found, at

    def write(out: bytearray, value: dict[str, Any]) -> None:
        for name, node in parts:
            item = value.get(name)
            if item is None and not node.nullable:
                raise ValueError(f"{name} is null, the schema has a value there")
            node.write(out, item)

    return Node("record", read, write, sum(each.bytes_min for each in fields.values()), fields)


def _enum(symbols: Any) -> Node:
    if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
        raise ConfigError("an enum in avroSchema has no symbols")
    numbers = {name: number for number, name in enumerate(symbols)}

    def read(data: bytes, at: int) -> tuple[str, int]:
        number, at = read_long(data, at)
        if not 0 <= number < len(symbols):
            raise ValueError(f"an enum has no symbol {number}")
        return symbols[number], at

    def write(out: bytearray, value: str) -> None:
        if value not in numbers:
            raise ValueError(f"{value!r} is no symbol of the enum")
        write_long(out, numbers[value])

    return Node("enum", read, write, 1)


def _fixed(size: Any) -> Node:
    if type(size) is not int or size < 1:
        raise ConfigError(f"avroSchema has a fixed type of {size!r} bytes")

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        if len(data) - at < size:
            raise ValueError("the payload ends too early")
        return data[at : at + size], at + size

    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise ValueError(f"{len(value)} bytes where the schema has {size}")
        out += value

    return Node("fixed", read, write, size)


def _many(kind: str, item: Node) -> Node:
    """An array, or a map as pairs: blocks of items, each with its count, until a count of 0."""
    pairs = kind == "map"
    if not pairs and item.bytes_min == 0:
        raise ConfigError("avroSchema has an array of items without bytes")

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = read_long(data, at)
            if count < 0:  # its size in bytes follows, for those who skip it
                count = -count
                _, at = read_long(data, at)
            if count > len(data) - at:
                raise ValueError("more items than the payload has bytes")
            if not count:
                return found, at
            for _ in range(count):
                if pairs:
                    key, at = _read_string(data, at)
                    value, at = item.read(data, at)
                    found.append((key, value))
                else:
                    value, at = item.read(data, at)
                    found.append(value)

    def write(out: bytearray, value: list[Any]) -> None:
        if value:
            write_long(out, len(value))
        for each in value:
            if pairs:
                _write_bytes(out, each[0].encode())
                each = each[1]
            if each is None and not item.nullable:
                raise ValueError("a null item, the schema has none")
            item.write(out, each)
        out.append(0)

    return Node(kind, read, write, 1, items=item)


def _logical(node: Node, schema: dict[str, Any]) -> Node:
    """Logical types that are not understood count as what they are made of, as Avro asks."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return node
    if logical == "date" and node.kind == "int":
        return Node("date", node.read, node.write, 1)
    base, _, unit = logical.rpartition("-")
    if node.kind == "long" and base in ("timestamp", "local-timestamp") and unit in _MICROSECONDS:
        return _timestamp(node, base, _MICROSECONDS[unit])
    if logical == "decimal" and node.kind in ("bytes", "fixed"):
        return _decimal(node, schema.get("scale", 0))
    return node


def _timestamp(node: Node, kind: str, unit: int) -> Node:
    def read(data: bytes, at: int) -> tuple[int, int]:
        value, at = read_long(data, at)
        return value * unit, at

    return Node(kind, read, lambda out, value: write_long(out, value // unit), 1)


def _decimal(node: Node, scale: Any) -> Node:
    if type(scale) is not int or scale < 0:
        raise ConfigError(f"avroSchema has a decimal of scale {scale!r}")
    size = node.bytes_min if node.kind == "fixed" else 0

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        raw, at = node.read(data, at)
        if len(raw) > DECIMAL_BYTES_MAX:
            raise ValueError("a decimal of too many digits")
        sign, digits, _ = Decimal(int.from_bytes(raw, "big", signed=True)).as_tuple()
        return Decimal((sign, digits, -scale)), at

    def write(out: bytearray, value: Decimal) -> None:
        sign, digits, exponent = value.as_tuple()
        shift = scale + int(exponent)
        if shift < 0:
            raise ValueError(f"a decimal of more than {scale} places")
        number = int("".join(map(str, digits))) * 10**shift * (-1 if sign else 1)
        length = size or (number.bit_length() + 8) // 8
        node.write(out, number.to_bytes(length, "big", signed=True))

    return Node("decimal", read, write, node.bytes_min, scale=scale)
