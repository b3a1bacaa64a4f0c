"""Protobuf payloads as typed columns, by a descriptor set and the name of a message.

`protoc --include_imports --descriptor_set_out=FILE` makes the set. Columns are matched by field
name. A field that knows whether it was set is null when it was not; others have their default
value. Row by row: the parsing is C, taking the values out is Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from headrace.errors import ConfigError
from headrace.spark.formats.decoding import Decoded, UnreadableError, halve, to_array

Getter: TypeAlias = Callable[[Any], Any]

_TIMESTAMP = timestamp_pb2.Timestamp.DESCRIPTOR.full_name
_INTEGERS = frozenset(
    {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
    | {FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64}
)
_FLOATS = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})


class ProtobufDecoder:
    def __init__(self, schema: pa.Schema, descriptor_set: bytes, message: str) -> None:
        descriptor = _find(descriptor_set, message)
        self._schema = schema
        self._message = message_factory.GetMessageClass(descriptor)
        self._getters = [_field_getter(descriptor, each.name, each.type) for each in schema]

    def __call__(self, payloads: pa.BinaryArray) -> Decoded:
        return halve(payloads, self._schema, self._read)

    def _read(self, payloads: pa.BinaryArray) -> pa.Table:
        parse = self._message.FromString
        try:
            messages = [parse(payload) for payload in payloads.to_pylist()]
        except (DecodeError, UnicodeDecodeError) as error:
            raise UnreadableError(str(error)) from None
        arrays = [
            to_array(list(map(getter, messages)), _as_is, each)
            for getter, each in zip(self._getters, self._schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _as_is(value: Any) -> Any:
    return value


def _find(descriptor_set: bytes, message: str) -> Descriptor:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
    except DecodeError as error:
        raise ConfigError(f"protobufDescriptor is not a descriptor set: {error}") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        if timestamp_pb2.DESCRIPTOR.name not in {each.name for each in files.file}:
            pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        for each in files.file:
            pool.AddSerializedFile(each.SerializeToString())
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise ConfigError(f"the protobuf descriptor has no message {message}") from None
    except TypeError as error:
        raise ConfigError(
            f"the protobuf descriptor does not stand alone ({error}); make it with "
            "protoc --include_imports"
        ) from None


def _field_getter(descriptor: Descriptor, name: str, kind: pa.DataType) -> Getter:
    """From a message to the value of its field, as `pa.array` takes it for `kind`."""
    field = descriptor.fields_by_name.get(name)
    if field is None:
        raise ConfigError(f"message {descriptor.full_name} has no field {name}")
    if field.is_repeated:
        return _repeated_getter(field, kind)
    convert = _value_getter(field, kind)
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _repeated_getter(field: FieldDescriptor, kind: pa.DataType) -> Getter:
    name, entry = field.name, field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        if not pa.types.is_map(kind):
            raise _misfit(field, kind)
        key = _value_getter(entry.fields_by_name["key"], kind.key_type)
        item = _value_getter(entry.fields_by_name["value"], kind.item_type)
        return lambda message: [(key(k), item(v)) for k, v in getattr(message, name).items()]
    if not pa.types.is_list(kind):
        raise _misfit(field, kind)
    each = _value_getter(field, kind.value_type)
    return lambda message: [each(value) for value in getattr(message, name)]


def _value_getter(field: FieldDescriptor, kind: pa.DataType) -> Getter:
    if field.message_type is not None:
        return _message_getter(field, field.message_type, kind)
    if field.enum_type is not None and pa.types.is_string(kind):
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    fits = (
        (field.cpp_type in _INTEGERS and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)))
        or (field.cpp_type == FieldDescriptor.CPPTYPE_ENUM and pa.types.is_integer(kind))
        or (field.cpp_type in _FLOATS and pa.types.is_floating(kind))
        or (field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and pa.types.is_boolean(kind))
        or (field.type == FieldDescriptor.TYPE_STRING and pa.types.is_string(kind))
        or (field.type == FieldDescriptor.TYPE_BYTES and pa.types.is_binary(kind))
    )
    if not fits:
        raise _misfit(field, kind)
    return _as_is


def _message_getter(field: FieldDescriptor, inner: Descriptor, kind: pa.DataType) -> Getter:
    if pa.types.is_timestamp(kind) and inner.full_name == _TIMESTAMP:
        return lambda value: value.seconds * 1_000_000 + value.nanos // 1000
    if not pa.types.is_struct(kind):
        raise _misfit(field, kind)
    getters = {each.name: _field_getter(inner, each.name, each.type) for each in kind}
    return lambda value: {name: getter(value) for name, getter in getters.items()}


def _misfit(field: FieldDescriptor, kind: pa.DataType) -> ConfigError:
    return ConfigError(f"protobuf field {field.full_name} does not fit a column of type {kind}")
