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
from headrace.wire.umbilical import codec, rpc
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


@pytest.mark.parametrize("cls", m.FIELD_GROUPS.values(), ids=m.FIELD_GROUPS)
@settings(max_examples=40)
@given(data=st.data())
def test_decode_inverts_encode(cls: type[m.Message], data: st.DataObject) -> None:
    message = data.draw(messages(cls))
    assert codec.decode(cls, codec.encode(message)) == message


@pytest.mark.parametrize("cls", m.FIELD_GROUPS.values(), ids=m.FIELD_GROUPS)
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
    for cls in m.FIELD_GROUPS.values():
        with contextlib.suppress(RemoteProtocolError):
            codec.decode(cls, garbage)


@given(st.integers(2**63) | st.integers(max_value=-(2**63) - 1))
def test_an_integer_wider_than_64_bits_is_our_mistake(wide: int) -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode(m.OperatorStats(metrics={"wide": wide}))


CLIENT_ID = bytes(range(16))


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 2**31 - 1), TEXT, st.binary(max_size=300), st.integers(-1, 5)),
        max_size=5,
    ),
    chunk=st.integers(1, 64),
)
def test_requests_are_the_same_in_any_chunks(
    calls: list[tuple[int, str, bytes, int]], chunk: int
) -> None:
    client = rpc.ClientConnection("protocol", 7, CLIENT_ID)
    data = client.greet("ada") + client.ping()
    expected: list[rpc.ServerEvent] = [rpc.Context("ada", "protocol"), rpc.Ping()]
    for call_id, method, body, retry in calls:
        data += client.call(call_id, method, body, retry_count=retry)
        expected.append(rpc.Request(call_id, CLIENT_ID, retry, method, "protocol", 7, body))
    server = rpc.ServerConnection()
    events = [
        event
        for start in range(0, len(data), chunk)
        for event in server.feed(data[start : start + chunk])
    ]
    assert events == expected
    assert rpc.ServerConnection().feed(data) == expected


@given(
    call_id=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=300),
    text=st.text(max_size=20),
    chunk=st.integers(1, 64),
)
def test_responses_are_the_same_in_any_chunks(
    call_id: int, body: bytes, text: str, chunk: int
) -> None:
    request = rpc.Request(call_id, CLIENT_ID, 0, "m", "protocol", 7, b"")
    error = rpc.RpcError(rpc.IO_EXCEPTION, text, rpc.ErrorCode.ERROR_APPLICATION)
    data = rpc.encode_success(request, body) + rpc.encode_error(request, error)
    client = rpc.ClientConnection("protocol", 7, CLIENT_ID)
    responses = [
        response
        for start in range(0, len(data), chunk)
        for response in client.feed(data[start : start + chunk])
    ]
    assert [response.call_id for response in responses] == [call_id, call_id]
    assert responses[0] == rpc.Response(call_id, body)
    assert responses[1].error is not None
    assert responses[1].error.exception_class == rpc.IO_EXCEPTION
    assert responses[1].error.text == text.encode("utf-8", "replace").decode()


@given(st.data())
def test_damaged_connections_are_parsed_or_refused(data: st.DataObject) -> None:
    client = rpc.ClientConnection("protocol", 7, CLIENT_ID)
    request = rpc.Request(1, CLIENT_ID, 0, "m", "protocol", 7, b"")
    error = rpc.RpcError(rpc.IO_EXCEPTION, "text", rpc.ErrorCode.ERROR_APPLICATION)
    requests = bytearray(client.greet("ada") + client.call(1, "log", b"body"))
    replies = bytearray(rpc.encode_error(request, error) + rpc.encode_success(request, b"x"))
    for good, feed in ((requests, rpc.ServerConnection().feed), (replies, client.feed)):
        for _ in range(data.draw(st.integers(0, 4))):
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(RemoteProtocolError):
            feed(bytes(good))


@given(st.binary(max_size=100))
def test_garbage_frames_are_parsed_or_refused(garbage: bytes) -> None:
    framed = len(garbage).to_bytes(4, "big") + garbage
    for data in (garbage, rpc.PREAMBLE + framed):
        with contextlib.suppress(RemoteProtocolError):
            rpc.ServerConnection().feed(data)
    with contextlib.suppress(RemoteProtocolError):
        rpc.ClientConnection("protocol", 7, CLIENT_ID).feed(framed)
