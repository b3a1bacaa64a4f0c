"""Checking, stamping and cutting messages, against slow code that takes them one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import xxhash

from headrace.wire.iggy import batch
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.messages.messages import (
    Message,
    SendMessages,
    decode_messages,
    decode_send,
    encode_send,
)
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header

HEADER = struct.Struct("<Q16sQQQIIQ")
MESSAGES = [
    Message(b"hello", origin_timestamp_us=5),
    Message(b"", headers=key_header(b"k"), id=7),
    Message(b"x" * 300, headers=encode_headers([UserHeader.of("a", 1)]), id=2**127 + 1),
    Message(b"last"),
]


def send(messages: list[Message] = MESSAGES) -> bytes:
    return encode_send("s", "t", Partitioning.balanced(), messages).encode()


def fresh_ids(count: int) -> bytes:
    return b"".join((1000 + i).to_bytes(16, "little") for i in range(count))


def stamp_one_by_one(area: bytes, base_offset: int, timestamp_us: int) -> bytes:
    """What `stamp` must do, in the plainest way."""
    out, position, given = b"", 0, 0
    while position < len(area):
        fields = HEADER.unpack_from(area, position)
        end = position + 64 + fields[5] + fields[6]
        id_ = fields[1]
        if not any(id_):
            id_ = (1000 + given).to_bytes(16, "little")
            given += 1
        rest = HEADER.pack(0, id_, base_offset, timestamp_us, *fields[4:])[8:]
        rest += area[position + 64 : end]
        out += xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little") + rest
        base_offset, position = base_offset + 1, end
    return out


def stamped(messages: list[Message], base_offset: int = 10) -> SendMessages:
    request = decode_send(bytearray(send(messages)))
    batch.stamp(
        request.area,
        request.starts,
        base_offset=base_offset,
        timestamp_us=123,
        new_ids=fresh_ids,
    )
    return request


@pytest.mark.parametrize("count", [1, 2, 4, 100])
@pytest.mark.parametrize("base_offset", [0, 2**63 - 1000])
def test_stamp_equals_one_by_one(count: int, base_offset: int) -> None:
    messages = (MESSAGES * 25)[:count]
    request = decode_send(bytearray(send(messages)))
    expected = stamp_one_by_one(bytes(request.area), base_offset, 1_700_000_000_000_000)
    batch.stamp(
        request.area,
        request.starts,
        base_offset=base_offset,
        timestamp_us=1_700_000_000_000_000,
        new_ids=fresh_ids,
    )
    assert bytes(request.area) == expected


EQUAL = {
    "no payload": [Message(b"", id=n % 3) for n in range(40)],
    "small": [Message(bytes([n]) * 100, origin_timestamp_us=n) for n in range(40)],
    "large": [Message(bytes([n]) * 2000, id=n << 64) for n in range(40)],
    "headers of different lengths": [
        Message(b"x" * (50 - n), headers=b"h" * n, id=1 + n) for n in range(40)
    ],
}


@pytest.mark.parametrize("name", EQUAL)
def test_stamp_of_messages_of_one_size_equals_one_by_one(name: str) -> None:
    request = decode_send(bytearray(send(EQUAL[name])))
    assert batch.stride_of(request.starts, len(request.area)) == len(request.area) // 40
    assert decode_messages(request.area) == EQUAL[name]
    expected = stamp_one_by_one(bytes(request.area), 7, 8)
    batch.stamp(request.area, request.starts, base_offset=7, timestamp_us=8, new_ids=fresh_ids)
    assert bytes(request.area) == expected


@pytest.mark.parametrize("field", [48, 52, 56])
def test_a_wrong_length_among_messages_of_one_size_is_found(field: int) -> None:
    payload = bytearray(send(EQUAL["small"]))
    payload[INDEX_AT + 16 * 40 + 164 * 30 + field] ^= 1
    with pytest.raises(DecodeError):
        decode_send(payload)


@pytest.mark.parametrize("field", range(16))
def test_a_wrong_index_of_messages_of_one_size_is_found(field: int) -> None:
    payload = bytearray(send(EQUAL["small"]))
    decode_send(payload)
    payload[INDEX_AT + 16 * 30 + field] ^= 1
    with pytest.raises(DecodeError):
        decode_send(payload)


def test_more_messages_of_one_size_than_are_kept() -> None:
    messages = [Message(b"", id=1 + n) for n in range(5000)]
    assert decode_messages(decode_send(send(messages)).area) == messages


def test_sizes_that_differ_are_no_stride() -> None:
    starts = np.array([0, 100, 300], np.uint32)
    assert batch.stride_of(starts, 400) == 0
    assert batch.stride_of(np.array([0, 100, 200], np.uint32), 301) == 0
    assert batch.stride_of(np.array([0, 100, 200], np.uint32), 300) == 100


@pytest.mark.parametrize("first", [0, 5, 2**64 - 2, 2**128 - 1])
def test_consecutive_ids_are_distinct_and_never_0(first: int) -> None:
    ids = batch.consecutive_ids(first, 100)
    found = {ids[at : at + 16] for at in range(0, len(ids), 16)}
    assert len(found) == 100
    assert bytes(16) not in found


@pytest.mark.parametrize("copies", [1, 5])
def test_stamp_asks_only_for_missing_ids(copies: int) -> None:
    asked: list[int] = []

    def new_ids(count: int) -> bytes:
        asked.append(count)
        return fresh_ids(count)

    for messages in (MESSAGES * copies, [Message(b"a", id=1)] * copies):
        request = decode_send(bytearray(send(messages)))
        batch.stamp(request.area, request.starts, base_offset=0, timestamp_us=0, new_ids=new_ids)
    assert asked == [2 * copies]


def test_stamp_overwrites_what_a_producer_wrote_there() -> None:
    payload = bytearray(send([Message(b"abc", id=1)]))
    area_at = len(payload) - 67
    payload[area_at : area_at + 8] = b"\xff" * 8
    payload[area_at + 24 : area_at + 40] = b"\xff" * 16
    request = decode_send(payload)
    batch.stamp(request.area, request.starts, base_offset=3, timestamp_us=4, new_ids=fresh_ids)
    (message,) = decode_messages(request.area)
    assert (message.offset, message.timestamp_us) == (3, 4)
    assert message.checksum == xxhash.xxh3_64_intdigest(request.area[8:])


# --- what is refused ------------------------------------------------------------------------------

INDEX_AT = 4 + 3 + 3 + 2 + 4  # metadata length, "s", "t", balanced, count


Place = int | Callable[[int], int]  # in a payload of so many messages
Change = Callable[[bytearray, int], object]


def changed(at: Place, value: bytes) -> Change:
    def change(payload: bytearray, count: int) -> None:
        place = at if isinstance(at, int) else at(count)
        payload[place : place + len(value)] = value

    return change


def index(entry: int, field: int) -> int:
    return INDEX_AT + 16 * entry + field


def last_index(field: int) -> Place:
    return lambda count: index(count - 1, field)


def header(entry: int, field: int) -> Place:
    starts = encode_send("s", "t", Partitioning.balanced(), MESSAGES).starts
    return lambda count: INDEX_AT + 16 * count + int(starts[entry]) + field


REFUSED: dict[str, tuple[Change, Status]] = {
    "offset in the index": (changed(index(1, 0), b"\x01"), Status.NON_ZERO_OFFSET),
    "time in the index": (changed(index(1, 8), b"\x01"), Status.NON_ZERO_TIMESTAMP),
    "time's upper half": (changed(index(2, 12), b"\x01"), Status.NON_ZERO_TIMESTAMP),
    "positions go back": (changed(index(1, 4), b"\x01\0"), Status.INVALID_MESSAGES_SIZE),
    "last position beyond": (changed(last_index(4), b"\xff"), Status.INVALID_MESSAGES_SIZE),
    "position off by one": (changed(index(0, 4), b"\x46"), Status.INVALID_MESSAGES_SIZE),
    "payload longer": (changed(header(2, 52), b"\x2d"), Status.INVALID_MESSAGES_SIZE),
    "first payload longer": (changed(header(0, 52), b"\x06"), Status.INVALID_MESSAGES_SIZE),
    "headers longer": (changed(header(1, 48), b"\xff"), Status.INVALID_MESSAGES_SIZE),
    "lengths wrap around": (
        changed(header(3, 48), struct.pack("<II", 2**32 - 1, 5)),
        Status.INVALID_MESSAGES_SIZE,
    ),
    "reserved": (changed(header(3, 63), b"\x01"), Status.INVALID_RESERVED_FIELD),
    "bytes missing": (lambda payload, _: payload.pop(), Status.INVALID_MESSAGES_SIZE),
    "bytes too many": (lambda payload, _: payload.append(0), Status.INVALID_MESSAGES_SIZE),
    "count too high": (
        changed(INDEX_AT - 4, b"\xff\xff\xff\xff"),
        Status.INVALID_INDEXES_BYTE_SIZE,
    ),
    "no messages": (changed(INDEX_AT - 4, b"\0"), Status.INVALID_MESSAGES_COUNT),
    "metadata length": (changed(0, b"\x0d"), Status.INVALID_COMMAND),
    "partitioning kind": (changed(10, b"\x04"), Status.INVALID_COMMAND),
    "partitioning length": (changed(11, b"\x01"), Status.INVALID_KEY_VALUE_LENGTH),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("count", [len(MESSAGES), 5 * len(MESSAGES)])
def test_refused(name: str, count: int) -> None:
    change, status = REFUSED[name]
    payload = bytearray(send(MESSAGES * (count // len(MESSAGES))))
    decode_send(payload)  # intact it is fine
    change(payload, count)
    with pytest.raises(DecodeError) as caught:
        decode_send(payload)
    assert caught.value.code == status


def raw_send(sizes: list[tuple[int, int, int]]) -> bytes:
    """A SEND of messages with (bytes, headers length, payload length), however wrong."""
    area, table = b"", b""
    for size, headers_length, payload_length in sizes:
        message = struct.pack("<48xII", headers_length, payload_length)
        area += message.ljust(size, b"\0")[:size]
        table += struct.pack("<IIQ", 0, len(area), 0)
    head = b"\x02\x01s\x02\x01t\x01\x00" + struct.pack("<I", len(sizes))
    return struct.pack("<I", len(head)) + head + table + area


@pytest.mark.parametrize(
    ("sizes", "status"),
    [
        ([(55, 0, 0)], Status.TOO_SMALL_MESSAGE),
        ([(64, 0, 0), (20, 0, 0)], Status.TOO_SMALL_MESSAGE),
        ([(0, 0, 0), (64, 0, 0)], Status.TOO_SMALL_MESSAGE),
        ([(0, 0, 0)] * 20, Status.TOO_SMALL_MESSAGE),
        ([(8, 0, 0)] * 20, Status.TOO_SMALL_MESSAGE),
        ([(60, 0, 0)], Status.INVALID_MESSAGES_SIZE),
        ([(64, 0, 0), (56, 0, 0)], Status.INVALID_MESSAGES_SIZE),
        ([(64 + 100_001, 100_001, 0)], Status.TOO_BIG_USER_HEADERS),
        ([(64 + 10_000_001, 0, 10_000_001)], Status.TOO_BIG_MESSAGE_PAYLOAD),
    ],
)
@pytest.mark.parametrize("before", [0, 20])
def test_sizes(sizes: list[tuple[int, int, int]], status: Status, before: int) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_send(raw_send([(64, 0, 0)] * before + sizes))
    assert caught.value.code == status


def test_sizes_at_the_limit_are_fine() -> None:
    for others in (0, 20):
        sizes = [(64, 0, 0)] * others
        assert decode_send(raw_send([*sizes, (64 + 100_000, 100_000, 0)])).count == others + 1
        large = raw_send([*sizes, (64 + 10_000_000, 0, 10_000_000)])
        assert decode_send(large).count == others + 1


@pytest.mark.parametrize("copies", [1, 5])
def test_the_published_form_of_the_index(copies: int) -> None:
    """`u64 reserved, u32 cumulative size, u32 reserved` is understood as well."""
    messages = MESSAGES * copies
    payload = bytearray(send(messages))
    for entry in range(len(messages)):
        at = index(entry, 0)
        (end,) = struct.unpack_from("<I", payload, at + 4)
        payload[at : at + 16] = struct.pack("<QII", 0, end, 0)
    assert decode_send(payload).starts.tolist() == decode_send(send(messages)).starts.tolist()
    for field, status in ((4, Status.NON_ZERO_OFFSET), (12, Status.NON_ZERO_TIMESTAMP)):
        broken = bytearray(payload)
        broken[index(1, field)] = 1
        with pytest.raises(DecodeError) as caught:
            decode_send(broken)
        assert caught.value.code == status


# --- finding messages -----------------------------------------------------------------------------


def test_walk_and_locate_find_what_the_index_says() -> None:
    request = decode_send(send())
    assert batch.walk(request.area) == request.starts.tolist()
    assert batch.locate(request.area).tolist() == request.starts.tolist()
    assert batch.walk(b"") == batch.locate(b"").tolist() == []
    same = decode_send(send([Message(b"abc")] * 5))
    assert batch.locate(same.area).tolist() == same.starts.tolist()
    # Sizes that divide the area without being equal are not taken for equal ones.
    odd = decode_send(send([Message(b"a" * 10), Message(b"b" * 4), Message(b"c" * 16)]))
    assert len(odd.area) % 74 == 0
    assert batch.locate(odd.area).tolist() == odd.starts.tolist()


def test_walk_refuses_a_torn_end() -> None:
    area = bytes(decode_send(send()).area)
    for cut in (1, 10, 67, len(area) - 1):
        with pytest.raises(DecodeError):
            batch.walk(area[:-cut])


def test_slices_of_an_indexed_batch() -> None:
    request = stamped(MESSAGES)
    body = memoryview(bytes(request.area) + batch.build_index(request.starts))
    index = body[len(request.area) :]
    everything = decode_messages(request.area)
    for first in range(5):
        for count in range(5 - first):
            part = batch.slice_batch(request.area, index, first, count)
            assert decode_messages(part) == everything[first : first + count]
            if count:
                area, starts = batch.subset(request.area, request.starts, first, count)
                assert bytes(area) == bytes(part)
                assert starts.tolist() == batch.walk(area)
    area, starts = batch.read_starts(body, 4)
    assert bytes(area) == bytes(request.area)
    assert starts.tolist() == request.starts.tolist()
    with pytest.raises(DecodeError):
        batch.slice_batch(request.area, index, 2, 3)
    with pytest.raises(DecodeError):
        batch.read_starts(body, len(body))


def test_a_slice_never_leaves_the_batch() -> None:
    index = memoryview(struct.pack("<II", 200, 10))
    with pytest.raises(DecodeError):
        batch.slice_batch(memoryview(bytes(64)), index, 0, 1)


@pytest.mark.parametrize("bytes_max", [1, 64, 100, 400, 1000, 5000])
def test_split(bytes_max: int) -> None:
    request = decode_send(send(MESSAGES * 3))
    parts = batch.split(request.area, request.starts, bytes_max)
    assert b"".join(area for area, _ in parts) == bytes(request.area)
    for area, starts in parts:
        assert starts.tolist() == batch.walk(area)
        assert len(area) <= bytes_max or len(starts) == 1
    for (area, _), (following, starts) in pairwise(parts):  # each is as large as it may be
        next_bytes = int(starts[1]) if len(starts) > 1 else len(following)
        assert len(area) + next_bytes > bytes_max


@pytest.mark.parametrize("copies", [1, 5])
def test_reading_a_request_that_cannot_be_written_to(copies: int) -> None:
    request = decode_send(send(MESSAGES * copies))  # bytes: decoding needs no writing
    with pytest.raises((ValueError, TypeError)):
        batch.stamp(request.area, request.starts, base_offset=0, timestamp_us=0, new_ids=fresh_ids)


def test_positions_are_unsigned_32_bits() -> None:
    assert decode_send(send()).starts.dtype == np.uint32
