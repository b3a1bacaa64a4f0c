"""Every umbilical message survives the wire; no bytes raise anything but RemoteProtocolError."""

from __future__ import annotations

import contextlib
from dataclasses import MISSING, fields
from typing import Any, cast

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.umbilical import codec
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical._generated import umbilical_pb2

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    INT64,
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=8),
    TEXT.map(m.Json),
)
SCALARS = {
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_INT64: INT64,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
}


def one(column: FieldDescriptor) -> st.SearchStrategy[Any]:
    if column.enum_type is not None:
        return st.sampled_from(getattr(m, column.enum_type.name))
    if column.message_type is None:
        return SCALARS[column.type]
    if column.message_type.name == "Value":
        return VALUES
    return messages(getattr(m, column.message_type.name))


def many(column: FieldDescriptor) -> st.SearchStrategy[Any]:
    entry = column.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = (entry.fields_by_name[name] for name in ("key", "value"))
        return st.dictionaries(one(key), one(value), max_size=3)
    if column.is_repeated:
        return st.lists(one(column), max_size=3).map(tuple)
    return one(column)


def messages(cls: type[m.Message]) -> st.SearchStrategy[m.Message]:
    """Built from the descriptor, so that a field added to the protocol is tested by itself."""
    descriptor = getattr(umbilical_pb2, cls.__name__).DESCRIPTOR
    arguments: dict[str, st.SearchStrategy[Any]] = {}
    for f in fields(cast(Any, cls)):
        strategy = many(descriptor.fields_by_name[f.name])
        if f.default is None:
            strategy = st.none() | strategy
        elif f.default is not MISSING:
            strategy = st.just(f.default) | strategy
        arguments[f.name] = strategy
    return st.builds(cls, **arguments)


@pytest.mark.parametrize("cls", codec.MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_decode_inverts_encode(cls: type[m.Message], data: st.DataObject) -> None:
    message = data.draw(messages(cls))
    assert codec.decode(cls, codec.encode(message)) == message


@pytest.mark.parametrize("cls", codec.MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_damaged_bytes_decode_or_are_refused(cls: type[m.Message], data: st.DataObject) -> None:
    good = bytearray(codec.encode(data.draw(messages(cls))))
    for _ in range(data.draw(st.integers(0, 3))):
        if good:
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(good[: data.draw(st.integers(0, len(good)))])
    with contextlib.suppress(RemoteProtocolError):
        codec.decode(cls, damaged)


@given(st.binary(max_size=200))
def test_garbage_decodes_or_is_refused(garbage: bytes) -> None:
    for cls in codec.MESSAGES:
        with contextlib.suppress(RemoteProtocolError):
            codec.decode(cls, garbage)


@given(st.integers(2**63) | st.integers(max_value=-(2**63) - 1))
def test_an_integer_wider_than_64_bits_is_our_mistake(wide: int) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode(m.OperatorStats(metrics={"wide": wide}))
