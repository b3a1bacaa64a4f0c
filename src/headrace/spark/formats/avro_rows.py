"""Avro payloads as typed columns, and columns as Avro payloads: one record per message.

fastavro reads and writes the records, by one schema: no resolution between two schemas, no
containers and no registry prefixes, which are the business of files and registries. This module
turns the plain values that fastavro has into those of columns and back. A length or a count in a
payload says nothing about memory: bytes are read only if they are there.

A schema becomes a tree of types (`AvroType`), which tells the columns that it fits, and the plain
schema that fastavro works by. The plain schema has neither logical types nor enums:
timestamps, dates, decimals and symbols are the numbers and bytes that they are made of. fastavro
would make Python objects of them, at a cost that a payload decides, and would take the symbol -1
for the last one. What a payload could use to take memory or the process down is refused here: a
type inside itself (fastavro reads it by recursion in C), arrays of items without bytes (a count
alone would make them), and nesting deeper than `DEPTH_MAX`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from io import BytesIO
from typing import Any, TypeAlias

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import SchemaParseException, UnknownType

from headrace.errors import ConfigError, InvalidArgumentError
from headrace.spark.formats.decoding import Decoded, UnreadableError, halve, to_array

DEPTH_MAX = 64
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_ITEMS = {"array": "items", "map": "values"}
_MICROSECONDS = {"millis": 1000, "micros": 1}  # of one unit


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of a schema."""

    kind: str
    """Avro's type, or the logical type where it is one of those that are understood."""
    plain: Any
    """The type as fastavro takes it."""
    has_bytes: bool = True
    """Whether every value takes at least one byte."""
    fields: dict[str, AvroType] = field(default_factory=dict)
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    scale: int = 0
    size: int = 0
    """Bytes of a fixed decimal; 0: as many as it takes."""
    unit_us: int = 1
    """Microseconds of one unit of a timestamp."""

    @property
    def nullable(self) -> bool:
        return self.kind == "null" or any(each.kind == "null" for each in self.branches)

    def solid(self) -> AvroType:
        """Give the type without the choice to be null."""
        others = [each for each in self.branches if each.kind != "null"]
        return others[0] if len(others) == 1 else self


def parse_record(text: str) -> tuple[AvroType, Any]:
    """Give the tree of a record's schema, and the schema for fastavro's reader and writer.

    ConfigError unless it is the schema of a record that can be read.
    """
    try:
        found = _Parser().parse(json.loads(text), 0)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"avroSchema is not JSON: {error}") from None
    if found.kind != "record":
        raise ConfigError(f"avroSchema must be a record, it is {found.kind}")
    try:
        parsed = parse_schema(found.plain)
    except (SchemaParseException, UnknownType) as error:
        raise ConfigError(f"avroSchema: {error}") from None
    return found, parsed


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._names = 0

    def parse(self, schema: Any, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise ConfigError(f"avroSchema is nested deeper than {DEPTH_MAX}")
        if isinstance(schema, list):
            branches = tuple(self.parse(each, depth + 1) for each in schema)
            return AvroType("union", [each.plain for each in branches], branches=branches)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, dict | list):
            return self.parse(kind, depth + 1)
        if kind in _PRIMITIVES:
            return _logical(AvroType(kind, kind, has_bytes=kind != "null"), schema)
        if kind in _ITEMS:
            item = self.parse(schema.get(_ITEMS[kind]), depth + 1)
            if kind == "array" and not item.has_bytes:
                raise ConfigError("avroSchema has an array of items without bytes")
            return AvroType(kind, {"type": kind, _ITEMS[kind]: item.plain}, items=item)
        if kind in ("record", "enum", "fixed"):
            return self._define(kind, schema, depth)
        if kind in self._named:
            return self._named[kind]
        raise ConfigError(f"avroSchema has a type that is not known before its use: {kind!r}")

    def _define(self, kind: str, schema: dict[str, Any], depth: int) -> AvroType:
        """Define a named type; fastavro gets a name of our own, which is never missing or twice."""
        self._names += 1
        plain: dict[str, Any] = {"type": kind, "name": f"named_{self._names}"}
        again: Any = plain["name"]
        if kind == "record":
            made = self._record(plain, schema.get("fields"), depth)
        elif kind == "enum":
            made = AvroType(kind, again := "int", symbols=_symbols(schema.get("symbols")))
        else:
            plain["size"] = size = schema.get("size")
            if type(size) is not int or size < 1:
                raise ConfigError(f"avroSchema has a fixed type of {size!r} bytes")
            made = _logical(AvroType(kind, plain, size=size), schema)
        name, space = schema.get("name"), schema.get("namespace")
        if isinstance(name, str):
            self._named[name] = self._named[f"{space}.{name}"] = replace(made, plain=again)
        return made

    def _record(self, plain: dict[str, Any], fields: Any, depth: int) -> AvroType:
        if not isinstance(fields, list) or not all(
            isinstance(each, dict) and isinstance(each.get("name"), str) for each in fields
        ):
            raise ConfigError("a record in avroSchema has no list of named fields")
        parts = {each["name"]: self.parse(each, depth + 1) for each in fields}
        plain["fields"] = [{"name": name, "type": each.plain} for name, each in parts.items()]
        return AvroType(
            "record", plain, has_bytes=any(each.has_bytes for each in parts.values()), fields=parts
        )


def _symbols(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ConfigError("an enum in avroSchema has no symbols")
    return tuple(found)


def _logical(made: AvroType, schema: dict[str, Any]) -> AvroType:
    """Logical types that are not understood count as what they are made of, as Avro asks."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return made
    if logical == "date" and made.kind == "int":
        return replace(made, kind="date")
    base, _, unit = logical.rpartition("-")
    if made.kind == "long" and base in ("timestamp", "local-timestamp") and unit in _MICROSECONDS:
        return replace(made, kind=base, unit_us=_MICROSECONDS[unit])
    if logical == "decimal" and made.kind in ("bytes", "fixed"):
        scale = schema.get("scale", 0)
        if type(scale) is not int or scale < 0:
            raise ConfigError(f"avroSchema has a decimal of scale {scale!r}")
        return replace(made, kind="decimal", scale=scale)
    return made


def with_checked_unions(parsed: Any) -> Any:
    """Give a copy of a parsed schema by which fastavro refuses the branches that a union lacks."""
    if isinstance(parsed, list):
        return _CheckedUnion([with_checked_unions(each) for each in parsed])
    if not isinstance(parsed, dict):
        return parsed
    return {
        key: [with_checked_unions(each) for each in value]
        if key == "fields"
        else with_checked_unions(value)
        for key, value in parsed.items()
    }


class _CheckedUnion(list[Any]):
    """A union for reading: a list, as fastavro wants it, that is asked for each branch.

    fastavro's C code would take the index -1 out of a payload for the last branch. It looks into a
    list by itself only where there is an item, so this one is empty and has its branches aside.
    """

    def __init__(self, branches: list[Any]) -> None:
        super().__init__()
        self._branches = branches

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self._branches):
            raise ValueError(f"a union has no branch {index}")
        return self._branches[index]


DECIMAL_BYTES_MAX = 48  # more than a hundred digits; Python takes minutes for a million

_FLOAT = struct.Struct("<f")
_INTEGERS = ("int", "long")
_FAILURES = (ValueError, TypeError, ArithmeticError, AttributeError)

Convert: TypeAlias = Callable[[Any], Any]


class AvroDecoder:
    """A decoder of payloads; ConfigError for columns that the schema does not have."""

    def __init__(self, schema: pa.Schema, avro_schema: str) -> None:
        self._schema = schema
        record, avro = parse_record(avro_schema)
        self._avro = with_checked_unions(avro)
        _check_columns(record, schema)
        self._convert = {each.name: _from_plain(record.fields[each.name]) for each in schema}

    def __call__(self, payloads: pa.BinaryArray) -> Decoded:
        return halve(payloads, self._schema, self._read)

    def _read(self, payloads: pa.BinaryArray) -> pa.Table:
        rows = [self._read_record(payload) for payload in payloads.to_pylist()]
        arrays = [
            to_array([row[each.name] for row in rows], self._convert[each.name] or _same, each)
            for each in self._schema
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _read_record(self, payload: bytes) -> dict[str, Any]:
        file = BytesIO(payload)
        try:
            row: Any = schemaless_reader(file, self._avro, None)
        except (EOFError, IndexError):  # IndexError: inside of a number
            raise UnreadableError("the payload ends too early") from None
        except _FAILURES as error:
            raise UnreadableError(str(error)) from None
        if file.tell() != len(payload):
            raise UnreadableError(f"{len(payload) - file.tell()} bytes after the record")
        return row  # type: ignore[no-any-return]  # a record's schema gives a dict


class AvroEncoder:
    """An encoder of rows; ConfigError for columns that the schema does not take."""

    def __init__(self, schema: pa.Schema, avro_schema: str) -> None:
        record, self._avro = parse_record(avro_schema)
        _check_columns(record, schema)
        for name, node in record.fields.items():
            if name not in schema.names and not node.nullable:
                raise ConfigError(f"avroSchema has a field {name}, the frame has no such column")
        self._convert = _to_plain(record)
        self._plain = pa.schema([each.with_type(_plain_column(each.type)) for each in schema])

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """A payload per row. InvalidArgumentError for a value that does not fit."""
        payloads = []
        for row in batch.cast(self._plain).to_pylist():
            file = BytesIO()
            try:
                schemaless_writer(file, self._avro, self._convert(row))
            except _FAILURES as error:
                raise InvalidArgumentError(f"a row does not fit avroSchema: {error}") from None
            payloads.append(file.getvalue())
        return pa.array(payloads, pa.binary())


def _same(value: Any) -> Any:
    return value


# --- plain values and those of columns ------------------------------------------------------------


def _from_plain(node: AvroType) -> Convert | None:
    """Give what turns plain values into those that `pa.array` takes; None: they are such."""
    solid = node.solid()
    if solid.items is not None:
        return _items_from_plain(solid.kind, _from_plain(solid.items))
    if solid.kind == "record":
        parts = {name: _from_plain(each) for name, each in solid.fields.items()}
        if not any(parts.values()):
            return None
        return lambda value: {name: _convert(parts[name], each) for name, each in value.items()}
    if solid.unit_us != 1:
        return lambda value: value * solid.unit_us
    if solid.kind == "decimal":
        return lambda value: _decimal(value, solid.scale)
    if solid.kind == "enum":
        return lambda value: _symbol(value, solid.symbols)
    return None


def _items_from_plain(kind: str, item: Convert | None) -> Convert | None:
    if kind == "map":
        return lambda value: [(key, _convert(item, each)) for key, each in value.items()]
    return (lambda value: [_convert(item, each) for each in value]) if item else None


def _convert(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _decimal(raw: bytes, scale: int) -> Decimal:
    if len(raw) > DECIMAL_BYTES_MAX:
        raise ValueError("a decimal of too many digits")
    sign, digits, _ = Decimal(int.from_bytes(raw, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -scale))


def _symbol(number: int, symbols: tuple[str, ...]) -> str:
    if not 0 <= number < len(symbols):
        raise ValueError(f"an enum has no symbol {number}")
    return symbols[number]


def _to_plain(node: AvroType) -> Convert:
    """Give what turns values of a row into plain ones; ValueError for one that does not fit."""
    solid = node.solid()
    if solid.items is not None:
        return _items_to_plain(solid.kind, solid.items)
    if solid.kind == "record":
        parts = {name: (each, _to_plain(each)) for name, each in solid.fields.items()}
        return lambda value: {
            name: _present(node, convert, value.get(name), f"{name} is null")
            for name, (node, convert) in parts.items()
        }
    if solid.kind == "int":
        return _int
    if solid.kind == "float":
        return _float
    if solid.kind == "enum":
        numbers = {symbol: number for number, symbol in enumerate(solid.symbols)}
        return lambda value: _number(value, numbers)
    if solid.unit_us != 1:
        return lambda value: value // solid.unit_us
    if solid.kind == "decimal":
        return lambda value: _decimal_bytes(value, solid.scale, solid.size)
    return _same


def _items_to_plain(kind: str, item: AvroType) -> Convert:
    convert = _to_plain(item)

    def plain(value: Any) -> Any:
        return _present(item, convert, value, "an item is null")

    if kind == "map":
        return lambda value: {key: plain(each) for key, each in value}
    return lambda value: [plain(each) for each in value]


def _present(node: AvroType, convert: Convert, value: Any, what: str) -> Any:
    if value is not None:
        return convert(value)
    if not node.nullable:
        raise ValueError(f"{what}, the schema has a value there")
    return None


def _int(value: int) -> int:
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value!r} is no int")
    return value


def _float(value: float) -> float:
    _FLOAT.pack(value)  # OverflowError for a number that fastavro would write as infinity
    return value


def _number(symbol: str, numbers: dict[str, int]) -> int:
    if symbol not in numbers:
        raise ValueError(f"{symbol!r} is no symbol of the enum")
    return numbers[symbol]


def _decimal_bytes(value: Decimal, scale: int, size: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    shift = scale + int(exponent)
    if shift < 0:
        raise ValueError(f"a decimal of more than {scale} places")
    number: int = int("".join(map(str, digits))) * 10**shift * (-1 if sign else 1)
    return number.to_bytes(size or (number.bit_length() + 8) // 8, "big", signed=True)


# --- schemas and columns --------------------------------------------------------------------------


def _check_columns(record: AvroType, schema: pa.Schema) -> None:
    for each in schema:
        if each.name not in record.fields:
            raise ConfigError(f"avroSchema has no field {each.name}")
        _check(record.fields[each.name], each.type, each.name)


def _plain_column(kind: pa.DataType) -> pa.DataType:
    """Give the type in which timestamps and dates are the numbers that they are."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_plain_column(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_plain_column(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_column(kind.value_type)))
    return kind


def _check(node: AvroType, kind: pa.DataType, name: str) -> None:
    """ConfigError unless values of the node are values of a column of this type."""
    solid = node.solid()
    if pa.types.is_struct(kind) and solid.kind == "record":
        for each in kind:
            if each.name not in solid.fields:
                raise ConfigError(f"avroSchema has no field {name}.{each.name}")
            _check(solid.fields[each.name], each.type, f"{name}.{each.name}")
        return
    if solid.items is not None:
        if pa.types.is_list(kind) and solid.kind == "array":
            return _check(solid.items, kind.value_type, f"{name}[]")
        if pa.types.is_map(kind) and solid.kind == "map" and pa.types.is_string(kind.key_type):
            return _check(solid.items, kind.item_type, f"{name}{{}}")
    if not _fits(solid, kind):
        raise ConfigError(f"avroSchema has {solid.kind} for {name}, the column is {kind}")


def _fits(node: AvroType, kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return node.kind == ("timestamp" if kind.tz is not None else "local-timestamp")
    if pa.types.is_decimal(kind):
        return node.kind == "decimal" and node.scale == kind.scale
    return (
        (pa.types.is_integer(kind) and node.kind in _INTEGERS)
        or (pa.types.is_floating(kind) and node.kind in ("float", "double"))
        or (pa.types.is_boolean(kind) and node.kind == "boolean")
        or (pa.types.is_string(kind) and node.kind in ("string", "enum"))
        or (pa.types.is_binary(kind) and node.kind in ("bytes", "fixed"))
        or (pa.types.is_date(kind) and node.kind == "date")
    )
