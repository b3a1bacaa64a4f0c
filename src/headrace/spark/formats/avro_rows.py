"""Avro payloads as typed columns, and columns as Avro payloads: one record per message.

fastavro reads and writes the records, by one schema: no resolution between two schemas, no
containers and no registry prefixes, which are the business of files and registries. This module
turns the plain values that fastavro has into those of columns and back. A length or a count in a
payload says nothing about memory: bytes are read only if they are there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from typing import Any, TypeAlias

import pyarrow as pa
from fastavro import schemaless_reader, schemaless_writer

from headrace.errors import ConfigError, InvalidArgumentError
from headrace.spark.formats.avro_schema import (
    AvroType,
    parse_record,
    with_checked_unions,
)
from headrace.spark.formats.decoding import Decoded, UnreadableError, halve
from headrace.spark.formats.values import to_array

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
