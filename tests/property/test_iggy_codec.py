"""Iggy codecs under arbitrary values and arbitrary bytes."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.wire.iggy import batch
from headrace.wire.iggy.classic_frames import (
    RequestDecoder,
    RequestEvent,
    RequestFrame,
    ResponseDecoder,
    encode_request,
    encode_response,
)
from headrace.wire.iggy.columns import build_area, columns, key_headers, keys, narrow, widen
from headrace.wire.iggy.commands import TABLE, AnyCommand
from headrace.wire.iggy.detection import candidates
from headrace.wire.iggy.dialects import CLASSIC, Dialect
from headrace.wire.iggy.fields import Body
from headrace.wire.iggy.messages import consumers, system, topics, users
from headrace.wire.iggy.messages.messages import (
    Message,
    Placed,
    PolledMessages,
    SendMessages,
    decode_messages,
    decode_send,
    encode_send,
)
from headrace.wire.iggy.primitives import Consumer, ConsumerKind, Partitioning, Strategy
from headrace.wire.iggy.primitives import StrategyKind as Kind
from headrace.wire.iggy.user_headers import (
    HeaderKind,
    UserHeader,
    convert_headers,
    decode_headers,
    encode_headers,
    key_header,
    split_key,
)

# --- values ---------------------------------------------------------------------------------------

u8, u16 = st.integers(0, 2**8 - 1), st.integers(0, 2**16 - 1)
u32, u64 = st.integers(0, 2**32 - 2), st.integers(0, 2**64 - 1)  # A adds one to ids
text = st.text(max_size=20)
names = st.text(min_size=1, max_size=20)
identifiers = u32 | names
classic = st.sampled_from(sorted(CLASSIC, key=lambda dialect: dialect.value))

_BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "U8": u8,
    "U16": u16,
    "U32": u32,
    "U64": u64,
    "F32": st.floats(width=32, allow_nan=False),
    "Flag": st.booleans(),
    "Str8": text,
    "AccessToken": text,
    "Str32": text,
    "Id": u32,
    "Partition": u32,
    "OptionalPartition": st.none() | u32,
    "RequestedId": st.none(),  # exists in A alone, see the recorded frames
    "LoggedInUser": st.none() | u32,
    "Reference": identifiers,
    "ConsumerField": st.builds(Consumer, st.sampled_from(ConsumerKind), identifiers),
    "StrategyField": st.builds(Strategy, st.sampled_from(Kind), u64),
    "ClassicU8": u8,
    "ClassicU64": u64,
    "OptionsToEnd": st.just(()),
    "OptionsBlock": st.just(()),
    "_Acknowledge": st.just(True),
}
_options = st.lists(
    st.builds(UserHeader.of, names.filter(lambda name: len(name.encode()) < 256), names | u32),
    max_size=3,
).map(tuple)
_BY_TYPE_C = {
    **_BY_TYPE,
    "ClassicU8": st.just(0),
    "ClassicU64": st.just(0),
    "OptionsToEnd": _options,
    "OptionsBlock": _options,
    "_Acknowledge": st.booleans(),
}
permissions = st.builds(
    users.Permissions,
    st.builds(users.GlobalPermissions, *[st.booleans()] * 10),
    st.lists(
        st.builds(
            users.StreamPermissions,
            u32,
            *[st.booleans()] * 6,
            st.lists(st.builds(users.TopicPermissions, u32, *[st.booleans()] * 4), max_size=3).map(
                tuple
            ),
        ),
        max_size=3,
    ).map(tuple),
)
_BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "compression": st.sampled_from(topics.Compression),
    "status": st.sampled_from(users.UserStatus),
    "permissions": st.none() | permissions,
    "transport": st.sampled_from(system.TransportKind),
    "archive": st.binary(max_size=50),
    "partitions": st.lists(u32, max_size=4).map(tuple),
    "threads_count": u32,
    "free_disk_space": u64,
    "total_disk_space": u64,
    "scope": st.sampled_from(system.OptionScope),
    "default": st.binary(max_size=20),
    "placed": st.just(()),
}
_SPECIAL: dict[type, st.SearchStrategy[Any]] = {
    system.GetSnapshot: st.builds(
        system.GetSnapshot,
        st.sampled_from(system.SnapshotCompression),
        st.lists(st.sampled_from(system.SnapshotType), max_size=5).map(tuple),
    ),
    system.ClusterMetadata: st.builds(
        system.ClusterMetadata,
        text,
        st.lists(
            st.builds(
                system.ClusterNode,
                *(text, text, u16, u16, u16, u16),
                st.sampled_from(system.NodeRole),
                st.sampled_from(system.NodeStatus),
            ),
            max_size=3,
        ).map(tuple),
    ),
    users.UpdateUser: st.builds(
        users.UpdateUser,
        identifiers,
        st.none() | text,
        st.none() | st.sampled_from(users.UserStatus),
    ),
}


def values_of(cls: type[Body], *, in_c: bool = False) -> st.SearchStrategy[Any]:
    """Any value of a body, put together from the wire types its fields are declared with."""
    by_type = _BY_TYPE_C if in_c else _BY_TYPE
    if cls in _SPECIAL:
        return _SPECIAL[cls]
    if cls is system.ClientDetails:
        return st.lists(values_of(system.ClientGroup), max_size=3).flatmap(_client_details)
    parts: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(cls):  # type: ignore[arg-type]  # every Body is a dataclass
        declared = str(field.type)
        if declared in by_type:
            parts[field.name] = by_type[declared]
        elif in_c and "_CLASSIC_COMPRESSION" in declared:
            parts[field.name] = st.just(topics.Compression.NONE)
        elif in_c and field.name == "placed":
            parts[field.name] = st.lists(values_of(Placed), max_size=3).map(tuple)
        elif field.name in _BY_FIELD and "Info" not in declared:
            parts[field.name] = _BY_FIELD[field.name]
        else:
            parts[field.name] = _nested(declared, in_c=in_c)
    return st.builds(cls, **parts)


def _client_details(members: list[system.ClientGroup]) -> st.SearchStrategy[Any]:
    client = st.builds(
        system.ClientInfo,
        u32,
        st.none() | u32,
        st.sampled_from(system.TransportKind),
        text,
        st.just(len(members)),
    )
    return st.builds(system.ClientDetails, client, st.just(tuple(members)))


_NESTED: dict[str, type[Body]] = {
    cls.__name__: cls
    for module in (system, users, topics, consumers)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Body)
}


def _nested(declared: str, *, in_c: bool) -> st.SearchStrategy[Any]:
    """`Annotated[X, ...]` or `Annotated[tuple[X, ...], ...]`."""
    inner = declared.removeprefix("Annotated[").split(",")[0]
    if inner.startswith("tuple["):
        body = _body(inner.removeprefix("tuple["))
        return st.lists(values_of(body, in_c=in_c), max_size=3).map(tuple)
    return values_of(_body(inner), in_c=in_c)


def _body(name: str) -> type[Body]:
    from headrace.wire.iggy.messages.topics import Stream

    return Stream if name == "Stream" else _NESTED[name]


BODIES = sorted(
    {cls for row in TABLE.values() for cls in (row.request, row.response) if issubclass(cls, Body)},
    key=lambda cls: cls.__name__,
)
bodies = st.sampled_from(BODIES).flatmap(values_of)
bodies_in_c = st.sampled_from(BODIES).flatmap(lambda cls: values_of(cls, in_c=True))

headers = st.lists(
    st.builds(
        UserHeader,
        st.binary(min_size=1, max_size=20),
        st.binary(min_size=1, max_size=20),
        st.sampled_from([HeaderKind.RAW, HeaderKind.STRING]),
    ),
    max_size=3,
)
messages = st.lists(
    st.builds(
        Message,
        payload=st.binary(max_size=40),
        headers=headers.map(encode_headers),
        id=st.just(0) | st.integers(0, 2**128 - 1),
        origin_timestamp_us=u64,
    ),
    min_size=1,
    max_size=8,
)
partitionings = (
    st.just(Partitioning.balanced())
    | st.builds(Partitioning.to_partition, u32)
    | st.builds(Partitioning.by_key, st.binary(min_size=1, max_size=255))
)
# Few messages are taken one by one and many by array operations: both ways are drawn.
few_or_many = st.builds(lambda some, copies: some * copies, messages, st.sampled_from([1, 20]))
sends = st.builds(encode_send, identifiers, identifiers, partitionings, few_or_many)


# --- round trips ----------------------------------------------------------------------------------


@given(bodies, classic)
@settings(max_examples=400)
def test_bodies_come_back(body: Body, dialect: Dialect) -> None:
    encoded = body.encode(dialect)
    decoded = type(body).decode(encoded, dialect)
    if isinstance(body, system.ClusterMetadata) and dialect is Dialect.A:
        assert decoded.encode(dialect) == encoded  # A has no room for three of the ports
    elif isinstance(body, system.Stats) and dialect is not Dialect.B2:
        # A and B1 do not have the last three.
        assert decoded == replace(body, threads_count=0, free_disk_space=0, total_disk_space=0)
    else:
        assert decoded == body


@given(bodies_in_c)
@settings(max_examples=300)
def test_bodies_come_back_in_dialect_c(body: Body) -> None:
    assert type(body).decode(body.encode(Dialect.C), Dialect.C) == body


@given(bodies_in_c, st.data())
def test_a_body_of_dialect_c_cut_short(body: Body, data: st.DataObject) -> None:
    encoded = body.encode(Dialect.C)
    cut = data.draw(st.integers(0, max(0, len(encoded) - 1)))
    with suppress(RemoteProtocolError):
        type(body).decode(encoded[:cut], Dialect.C)


@given(bodies, classic, st.data())
def test_a_body_cut_short_is_refused_or_shorter(
    body: Body, dialect: Dialect, data: st.DataObject
) -> None:
    encoded = body.encode(dialect)
    cut = data.draw(st.integers(0, max(0, len(encoded) - 1)))
    try:
        decoded = type(body).decode(encoded[:cut], dialect)
    except RemoteProtocolError:
        return
    if dialect is Dialect.A and isinstance(body, topics.CreateTopic):
        return  # its two forms are told by their length: a part of one may be the other
    if not isinstance(body, system.ClientDetails):  # it counts its groups, so it cannot be shorter
        assert decoded.encode(dialect).startswith(encoded[:cut])


@given(sends, classic)
def test_sends_come_back(request: SendMessages, dialect: Dialect) -> None:
    decoded = decode_send(request.encode(dialect), dialect)
    assert (decoded.stream, decoded.topic) == (request.stream, request.topic)
    assert decoded.partitioning == request.partitioning
    assert bytes(decoded.area) == bytes(request.area)
    assert decoded.starts.tolist() == request.starts.tolist()


@given(sends, classic, st.integers(0, 2**32 - 2), u64)
def test_polls_come_back(
    request: SendMessages, dialect: Dialect, partition: int, current: int
) -> None:
    reply = PolledMessages(partition, current, request.count, (request.area,))
    decoded = PolledMessages.decode(reply.encode(dialect), dialect)
    assert (decoded.partition, decoded.current_offset, decoded.count) == (
        partition,
        current,
        request.count,
    )
    assert decoded.messages() == decode_messages(request.area)


@given(sends, classic)
def test_a_request_is_a_candidate_of_its_dialect(request: SendMessages, dialect: Dialect) -> None:
    assert dialect in candidates(101, request.encode(dialect))


# --- arbitrary bytes ------------------------------------------------------------------------------

rows = st.sampled_from(sorted(TABLE.values(), key=lambda row: row.code))


@given(rows, st.binary(max_size=300), st.sampled_from(Dialect))
@settings(max_examples=600)
def test_garbage_is_a_value_or_refused(row: AnyCommand, data: bytes, dialect: Dialect) -> None:
    for decode in (row.decode_request, row.decode_response):
        with suppress(RemoteProtocolError):
            decode(data, dialect)
    assert candidates(row.code, data) <= CLASSIC


@given(sends, st.data())
@settings(max_examples=300)
def test_a_damaged_send_is_a_value_or_refused(request: SendMessages, data: st.DataObject) -> None:
    payload = bytearray(request.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(u8)
    del payload[data.draw(st.integers(len(payload) // 2, len(payload))) :]
    candidates(101, payload)
    with suppress(RemoteProtocolError):
        decoded = decode_send(payload)
        decode_messages(decoded.area)
        columns(decoded.area, decoded.starts)


@given(st.binary(max_size=300), st.binary(max_size=320), st.integers(0, 80), st.integers(0, 80))
def test_slices_of_garbage(data: bytes, index: bytes, first: int, count: int) -> None:
    with suppress(RemoteProtocolError):
        part = batch.slice_batch(memoryview(data), memoryview(index), first, count)
        assert len(part) <= len(data)
        decode_messages(part)


@given(st.binary(max_size=200), classic)
def test_garbage_headers(data: bytes, dialect: Dialect) -> None:
    with suppress(RemoteProtocolError):
        assert encode_headers(decode_headers(data, dialect), dialect) == data


@given(headers, st.sampled_from([(Dialect.B1, Dialect.B2), (Dialect.B2, Dialect.A)]), st.data())
def test_translated_headers_are_the_same_headers(
    entries: list[UserHeader], way: tuple[Dialect, Dialect], data: st.DataObject
) -> None:
    """Also of blocks that were damaged: what does not decode is not translated either."""
    source, target = way
    block = bytearray(encode_headers(entries, source))
    for _ in range(data.draw(st.integers(0, 2)) if block else 0):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(u8)
    del block[data.draw(st.integers(0, len(block))) :]
    try:
        expected = encode_headers(decode_headers(block, source), target)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            convert_headers(bytes(block), source, target)
    else:
        assert convert_headers(bytes(block), source, target) == expected


@given(st.binary(max_size=200))
def test_msgpack_garbage(data: bytes) -> None:
    ticket = TABLE[9008]
    try:
        request = ticket.decode_request(data)
    except RemoteProtocolError:
        return
    again = msgspec.msgpack.decode(b"".join(ticket.encode_request(request)))
    assert again == {"topics": [list(pair) for pair in request.topics]}


# --- framing --------------------------------------------------------------------------------------

frames = st.lists(st.tuples(u32, st.binary(max_size=50)), max_size=6)


def fed(data: bytes, cuts: list[int]) -> list[RequestEvent]:
    decoder = RequestDecoder(frame_bytes_max=60, send_frame_bytes_max=80)
    events: list[RequestEvent] = []
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(bounds):
        events += decoder.feed(data[begin:end])
        assert decoder.buffered_bytes <= min(end, 84)
    return events


@given(frames, st.lists(st.integers(0, 2**16), max_size=8))
def test_requests_in_any_pieces(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(b"".join(encode_request(code, [body])) for code, body in sent)
    events = fed(data, cuts)
    assert [(e.code, bytes(e.payload)) for e in events if isinstance(e, RequestFrame)] == sent
    assert len(events) == len(sent)


@given(st.binary(max_size=300), st.lists(st.integers(0, 2**16), max_size=8))
def test_garbage_in_any_pieces_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    assert fed(data, cuts) == fed(data, []) == fed(data, list(range(len(data))))


@given(st.lists(st.binary(min_size=2, max_size=50) | st.just(b""), max_size=6), st.integers(1, 9))
def test_responses_in_any_pieces(sent: list[bytes], size: int) -> None:
    data = b"".join(b"".join(encode_response(0, [body])) for body in sent)
    decoder = ResponseDecoder()
    got = [f for at in range(0, len(data), size) for f in decoder.feed(data[at : at + size])]
    assert [bytes(frame.payload) for frame in got] == sent


# --- batches --------------------------------------------------------------------------------------


@given(sends, st.integers(0, 2**63), u64)
def test_stamped_messages_are_what_was_sent(
    request: SendMessages, base_offset: int, timestamp_us: int
) -> None:
    before = decode_messages(request.area)
    batch.stamp(
        request.area,
        request.starts,
        base_offset=base_offset,
        timestamp_us=timestamp_us,
        new_ids=lambda count: b"\xaa" * 16 * count,
    )
    bounds = [*request.starts.tolist(), len(request.area)]
    for i, (old, new) in enumerate(zip(before, decode_messages(request.area), strict=True)):
        assert (new.payload, new.headers) == (old.payload, old.headers)
        assert new.origin_timestamp_us == old.origin_timestamp_us
        assert new.id == (old.id or int.from_bytes(b"\xaa" * 16, "little"))
        assert (new.offset, new.timestamp_us) == (base_offset + i, timestamp_us)
        covered = request.area[bounds[i] + 8 : bounds[i + 1]]
        assert new.checksum == xxhash.xxh3_64_intdigest(covered)


@given(sends)
def test_columns_and_back(request: SendMessages) -> None:
    found = columns(request.area, request.starts)
    area, starts = build_area(
        found.payload_data,
        found.payload_offsets,
        headers_data=found.headers_data,
        headers_offsets=found.headers_offsets,
        ids=found.id,
        origin_timestamp_us=found.origin_timestamp_us,
    )
    assert bytes(area) == bytes(request.area)
    assert starts.tolist() == request.starts.tolist()


@given(sends, st.sampled_from([Dialect.A, Dialect.B1]))
def test_narrow_and_back(request: SendMessages, dialect: Dialect) -> None:
    area, starts = widen(*narrow(request.area, request.starts, dialect))
    assert bytes(area) == bytes(request.area)
    assert starts.tolist() == request.starts.tolist()


@given(st.lists(st.binary(max_size=600), max_size=8))
def test_keys_come_back(given_keys: list[bytes]) -> None:
    offsets = np.cumsum([0] + [len(key) for key in given_keys])
    data, block_offsets = key_headers(b"".join(given_keys), offsets)
    key_data, key_offsets, valid = keys(data, block_offsets)
    found = [key_data[a:b].tobytes() for a, b in pairwise(key_offsets)]
    assert found == given_keys
    assert valid.tolist() == [bool(key) for key in given_keys]


@given(st.binary(min_size=1, max_size=3000), headers)
def test_split_key(key: bytes, others: list[UserHeader]) -> None:
    others = [header for header in others if not header.key.startswith(b"headrace.key")]
    block = encode_headers(others) + key_header(key)
    assert split_key(block) == (key, tuple(others))


@given(st.lists(st.integers(0, 200), min_size=1, max_size=30), st.integers(1, 2000))
def test_split_covers_everything(sizes: list[int], bytes_max: int) -> None:
    area = b"".join(struct.pack("<48xIIQ", 0, size, 0) + bytes(size) for size in sizes)
    starts = batch.locate(area)
    parts = batch.split(memoryview(area), starts, bytes_max)
    assert sum(len(part_starts) for _, part_starts in parts) == len(sizes)
    assert b"".join(part for part, _ in parts) == area
