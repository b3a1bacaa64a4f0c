"""Avro payloads as typed columns, and columns as Avro payloads: one record per message."""

from __future__ import annotations

import struct

import pyarrow as pa

from headrace.errors import ConfigError, InvalidArgumentError
from headrace.spark.formats.avro import Node, parse_record
from headrace.spark.formats.decoding import Decoded, UnreadableError, halve
from headrace.spark.formats.values import to_array

_INTEGERS = ("int", "long")
_FAILURES = (IndexError, ValueError, TypeError, ArithmeticError, AttributeError, struct.error)


class AvroDecoder:
    def __init__(self, schema: pa.Schema, avro_schema: str) -> None:
        self._schema = schema
        self._record = parse_record(avro_schema)
        for each in schema:
            if each.name not in self._record.fields:
                raise ConfigError(f"avroSchema has no field {each.name}")
            check(self._record.fields[each.name], each.type, each.name)

    def __call__(self, payloads: pa.BinaryArray) -> Decoded:
        return halve(payloads, self._schema, self._read)

    def _read(self, payloads: pa.BinaryArray) -> pa.Table:
        rows = []
        read = self._record.read
        try:
            for payload in payloads.to_pylist():
                row, end = read(payload, 0)
                if end != len(payload):
                    raise UnreadableError(f"{len(payload) - end} bytes after the record")
                rows.append(row)
        except IndexError:
            raise UnreadableError("the payload ends too early") from None
        except _FAILURES as error:
            raise UnreadableError(str(error)) from None
        arrays = [
            to_array([row[each.name] for row in rows], lambda value: value, each)
            for each in self._schema
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)


class AvroEncoder:
    """ConfigError for columns that the schema does not take."""

    def __init__(self, schema: pa.Schema, avro_schema: str) -> None:
        self._record = parse_record(avro_schema)
        for each in schema:
            if each.name not in self._record.fields:
                raise ConfigError(f"avroSchema has no field {each.name}")
            check(self._record.fields[each.name], each.type, each.name)
        for name, node in self._record.fields.items():
            if name not in schema.names and not node.nullable:
                raise ConfigError(f"avroSchema has a field {name}, the frame has no such column")
        self._plain = pa.schema([each.with_type(_plain(each.type)) for each in schema])

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """A payload per row. InvalidArgumentError for a value that does not fit."""
        payloads = []
        for row in batch.cast(self._plain).to_pylist():
            out = bytearray()
            try:
                self._record.write(out, row)
            except _FAILURES as error:
                raise InvalidArgumentError(f"a row does not fit avroSchema: {error}") from None
            payloads.append(bytes(out))
        return pa.array(payloads, pa.binary())


def _plain(kind: pa.DataType) -> pa.DataType:
    """Timestamps and dates as the numbers that they are."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_plain(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_plain(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def check(node: Node, kind: pa.DataType, name: str) -> None:
    """ConfigError unless values of the node are values of a column of this type."""
    solid = node.solid()
    if pa.types.is_struct(kind) and solid.kind == "record":
        for each in kind:
            if each.name not in solid.fields:
                raise ConfigError(f"avroSchema has no field {name}.{each.name}")
            check(solid.fields[each.name], each.type, f"{name}.{each.name}")
        return
    if solid.items is not None:
        if pa.types.is_list(kind) and solid.kind == "array":
            return check(solid.items, kind.value_type, f"{name}[]")
        if pa.types.is_map(kind) and solid.kind == "map" and pa.types.is_string(kind.key_type):
            return check(solid.items, kind.item_type, f"{name}{{}}")
    if not _fits(solid, kind):
        raise ConfigError(f"avroSchema has {solid.kind} for {name}, the column is {kind}")


def _fits(node: Node, kind: pa.DataType) -> bool:
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
