"""Messages as columns and back; the vectorised ways against the plain ones."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from headrace.errors import LocalProtocolError
from headrace.wire.iggy import batch
from headrace.wire.iggy.columns import (
    build_area,
    checked_headers,
    columns,
    headers_in_place,
    key_headers,
    keys,
    narrow,
    widen,
)
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError
from headrace.wire.iggy.messages.messages import (
    Message,
    SendMessages,
    decode_messages,
    encode_send,
)
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header

OTHER = encode_headers([UserHeader.of("a", 1), UserHeader.of("b", "two")])
SETS: dict[str, list[Message]] = {
    "one": [Message(b"payload")],
    "empty payloads": [Message(b"")] * 3,
    "one size": [Message(b"%05d" % i, id=i) for i in range(50)],
    "sizes differ": [Message(b"x" * (i % 7), origin_timestamp_us=i) for i in range(50)],
    "headers": [Message(b"y" * i, headers=(b"", OTHER, key_header(b"k"))[i % 3]) for i in range(9)],
    "headers of one size": [Message(b"abc", headers=key_header(b"k%d" % i)) for i in range(9)],
}


def sent(messages: list[Message]) -> SendMessages:
    request = encode_send("s", "t", Partitioning.balanced(), messages)
    batch.stamp(
        request.area,
        request.starts,
        base_offset=100,
        timestamp_us=77,
        new_ids=lambda count: bytes(range(1, 17)) * count,
    )
    return request


def rows(data: NDArray[Any], offsets: NDArray[Any]) -> list[bytes]:
    return [data[a:b].tobytes() for a, b in pairwise(offsets)]


@pytest.mark.parametrize("name", SETS)
def test_columns_hold_what_messages_hold(name: str) -> None:
    request = sent(SETS[name])
    expected = decode_messages(request.area)
    found = columns(request.area, request.starts)
    assert len(found) == len(expected)
    assert found.offset.tolist() == [m.offset for m in expected]
    assert found.timestamp_us.tolist() == [77] * len(expected)
    assert found.origin_timestamp_us.tolist() == [m.origin_timestamp_us for m in expected]
    assert [row.tobytes() for row in found.id] == [m.id.to_bytes(16, "little") for m in expected]
    assert rows(found.payload_data, found.payload_offsets) == [m.payload for m in expected]
    assert rows(found.headers_data, found.headers_offsets) == [m.headers for m in expected]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("offset_type", [np.int32, np.int64])
def test_build_area_equals_encode_send(name: str, offset_type: type) -> None:
    messages = SETS[name]
    expected = encode_send("s", "t", Partitioning.balanced(), messages)
    payloads = b"???" + b"".join(m.payload for m in messages)  # a sliced Arrow array starts later
    lengths = [3] + [len(m.payload) for m in messages]
    offsets: NDArray[Any] = np.cumsum(lengths).astype(offset_type)
    area, starts = build_area(
        payloads,
        offsets,
        headers_data=b"".join(m.headers for m in messages),
        headers_offsets=np.cumsum([0] + [len(m.headers) for m in messages]),
        ids=np.frombuffer(b"".join(m.id.to_bytes(16, "little") for m in messages), np.uint8),
        origin_timestamp_us=np.array([m.origin_timestamp_us for m in messages], np.uint64),
    )
    assert bytes(area) == bytes(expected.area)
    assert starts.tolist() == expected.starts.tolist()
    request = SendMessages("s", "t", Partitioning.balanced(), starts, area)
    assert request.encode() == expected.encode()


def test_build_area_checks_what_it_is_given() -> None:
    with pytest.raises(LocalProtocolError):
        build_area(b"abc", np.array([0, 4]))
    with pytest.raises(LocalProtocolError):
        build_area(b"abc", np.array([0, 3, 2]))
    with pytest.raises(LocalProtocolError):
        build_area(b"abc", np.array([0]))
    with pytest.raises(LocalProtocolError):
        build_area(bytes(10_000_001), np.array([0, 10_000_001]))
    with pytest.raises(LocalProtocolError):
        build_area(
            b"abc",
            np.array([0, 3]),
            headers_data=bytes(100_001),
            headers_offsets=np.array([0, 100_001]),
        )


KEYS: dict[str, list[bytes]] = {
    "short": [b"a", b"bc", b"d" * 255],
    "some without": [b"", b"a", b"", b""],
    "none": [b"", b""],
    "long": [b"x" * 256, b"y", b"", b"z" * 1000],
    "no rows": [],
}


@pytest.mark.parametrize("name", KEYS)
def test_key_headers_equal_key_header(name: str) -> None:
    offsets = np.cumsum([0] + [len(key) for key in KEYS[name]])
    data, block_offsets = key_headers(b"".join(KEYS[name]), offsets)
    assert rows(data, block_offsets) == [key_header(key) for key in KEYS[name]]
    key_data, key_offsets, valid = keys(data, block_offsets)
    assert rows(key_data, key_offsets) == KEYS[name]
    assert valid.tolist() == [bool(key) for key in KEYS[name]]


def test_keys_among_other_headers() -> None:
    blocks = [key_header(b"k1"), OTHER, OTHER + key_header(b"k2"), b"", key_header(b"k" * 300)]
    offsets = np.cumsum([0] + [len(block) for block in blocks])
    data, key_offsets, valid = keys(np.frombuffer(b"".join(blocks), np.uint8), offsets)
    assert rows(data, key_offsets) == [b"k1", b"", b"k2", b"", b"k" * 300]
    assert valid.tolist() == [True, False, True, False, True]


def test_a_header_that_only_looks_like_a_key() -> None:
    similar = encode_headers([UserHeader(b"headrace.kez", b"v")])
    offsets = np.array([0, len(similar)])
    _, _, valid = keys(np.frombuffer(similar, np.uint8), offsets)
    assert valid.tolist() == [False]


def test_columns_refuse_starts_that_do_not_fit() -> None:
    request = sent(SETS["sizes differ"])
    for starts in (request.starts[1:], request.starts[:-1], request.starts + np.uint32(1)):
        with pytest.raises(DecodeError):
            columns(request.area, starts)
    with pytest.raises(DecodeError):
        columns(request.area, np.array([0, 2**32 - 1], np.uint32))
    with pytest.raises(DecodeError):
        columns(b"", np.array([0], np.uint32))
    with pytest.raises(DecodeError):
        columns(request.area, request.starts[:0])


@pytest.mark.parametrize("name", SETS)
def test_headers_in_place_are_the_copies_and_as_strict(name: str) -> None:
    request = sent(SETS[name])
    area, starts = bytearray(request.area), request.starts
    assert (headers_in_place(area, starts) == checked_headers(area, starts)).all()
    at = int(starts[-1]) + batch.LENGTHS_AT + 4
    area[at] += 1  # the last payload is said to be longer than it is
    with pytest.raises(DecodeError):
        headers_in_place(area, starts)
    for each in starts.tolist():  # and all of them
        area[each + batch.LENGTHS_AT + 4] = area[at]
    with pytest.raises(DecodeError):
        headers_in_place(area, starts)
    with pytest.raises(DecodeError):
        headers_in_place(area, starts[:0])


def test_no_messages() -> None:
    found = columns(b"", np.array([], np.uint32))
    assert len(found) == len(found.payload_data) == 0
    assert found.payload_offsets.tolist() == found.headers_offsets.tolist() == [0]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dialect", [Dialect.A, Dialect.B1])
def test_narrow_and_widen(name: str, dialect: Dialect) -> None:
    request = sent(SETS[name])
    area, starts = narrow(request.area, request.starts, dialect)
    assert batch.walk(area, 56) == starts.tolist()
    for begin, end in zip(starts, [*starts[1:], len(area)], strict=True):
        rest = area[begin + 8 : end]
        digest = zlib.crc32(rest) if dialect is Dialect.A else xxhash.xxh3_64_intdigest(rest)
        assert int.from_bytes(area[begin : begin + 8], "little") == digest
    back, back_starts = widen(area, starts)
    assert decode_messages(back) == decode_messages(request.area)
    assert back_starts.tolist() == request.starts.tolist()


def test_headers_that_outgrow_their_limit_in_translation() -> None:
    entry = UserHeader(b"k", b"v")
    narrow_block = encode_headers([entry] * 9090, Dialect.B1)
    assert len(narrow_block) <= 100_000
    message = bytes(48) + len(narrow_block).to_bytes(4, "little") + bytes(4) + narrow_block
    assert len(encode_headers([entry] * 8000)) < 100_000
    with pytest.raises(DecodeError):
        widen(message, np.array([0], np.uint32))
