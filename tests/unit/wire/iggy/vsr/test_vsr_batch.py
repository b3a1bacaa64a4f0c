"""Batches of dialect C against slow code that takes their messages one by one."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.wire.iggy import batch
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.messages.messages import (
    Message,
    SendMessages,
    decode_messages,
    encode_send,
)
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.vsr import batch as vsr_batch
from headrace.wire.iggy.vsr import reply
from tests.unit.wire.iggy.vsr_by_hand import COUNTS, HEADERS, KINDS, by_hand, of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_producers_batch(count: int, kind: str) -> None:
    messages = of(count, kind)
    data = by_hand(messages)
    area, starts, *_ = vsr_batch.decode_batch(memoryview(data), count)
    assert decode_messages(area) == messages
    assert starts.tolist() == batch.walk(area)
    assert not area.readonly
    assert bytes(vsr_batch.encode_produced(area, starts)) == data


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_producers_batch_in_the_memory_it_came_in(count: int, kind: str) -> None:
    messages = of(count, kind)
    data = by_hand(messages)
    memory = memoryview(bytearray(data) + bytes(16 * count) + b"not ours")
    ours = memory[: -len(b"not ours")]
    area, starts, framed, frames = vsr_batch.decode_batch(memory[: len(data)], count, ours)
    assert framed
    assert decode_messages(area) == messages
    assert starts.tolist() == batch.walk(area)
    assert bytes(memory[-len(b"not ours") :]) == b"not ours"
    moved = count > batch.FEW and not kind.startswith("mixed")
    assert (area.obj is memory.obj) == moved
    assert (frames is None) == (moved or count == 1)
    tight = memoryview(bytearray(data) + bytes(16 * count - 1))
    area, *_ = vsr_batch.decode_batch(tight[: len(data)], count, tight)
    assert area.obj is not tight.obj
    assert bytes(tight[: len(data)]) == data


@pytest.mark.parametrize("odd", [1, 100, 300, 600, 997])
def test_sizes_that_differ_are_found_late(odd: int) -> None:
    """By the first message and by all of them together they are of one size; most have been moved
    when it turns out that they are not."""
    sizes = [1000] * 1000
    sizes[odd], sizes[odd + 1] = 990, 1010
    messages = [Message(bytes([n % 251]) * size, id=n + 1) for n, size in enumerate(sizes)]
    data = by_hand(messages)
    memory = memoryview(bytearray(data) + bytes(16 * 1000))
    area, starts, framed, frames = vsr_batch.decode_batch(memory[: len(data)], 1000, memory)
    assert framed
    assert decode_messages(area) == messages
    assert starts.tolist() == batch.walk(area)
    assert bytes(memory[: len(data)]) == data
    assert frames is not None
    assert bytes(frames.data) == data[256:]


def test_damage_is_found_in_the_memory_it_came_in() -> None:
    data = by_hand(of(4200, "equal"))
    for at in (40, 256, 264, 300, 256 + 148 * 2000 + 100, len(data) - 1):
        memory = memoryview(bytearray(data) + bytes(16 * 4200))
        memory[at] ^= 1
        with pytest.raises(DecodeError):
            vsr_batch.decode_batch(memory[: len(data)], 4200, memory)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_messages_have_the_checksums_of_their_frames(count: int, kind: str) -> None:
    data = by_hand(of(count, kind))
    area, _, framed, frames = vsr_batch.decode_batch(memoryview(data), count)
    assert framed
    sums, position = [], 256
    while position < len(data):
        sums.append(struct.unpack_from("<Q", data, position)[0])
        position += 48 + sum(struct.unpack_from("<II", data, position + 32))
    assert [message.checksum for message in decode_messages(area)] == sums
    if frames is not None:
        assert frames.sums == struct.pack(f"<{count}Q", *sums)
        assert frames.data.tobytes() == data[256:]
        assert frames.origin_us == struct.unpack_from("<Q", data, 24)[0]
        assert frames.messages == count
    assert (frames is None) == (count == 1)


@pytest.mark.parametrize("kind", ["equal", "mixed"])
@pytest.mark.parametrize("count", [1, 3, 30])
@pytest.mark.parametrize("at", ["number", "oldest", "wraps", "no id"])
def test_frames_that_a_reply_would_not_have(count: int, kind: str, at: str) -> None:
    """They are read all the same, but what is stored has no checksums: frames are made anew."""
    plain = by_hand(of(count, kind))
    if at == "number":
        data = changed(plain, 256 + 24, b"\7", sums=True)
    elif at == "no id":
        data = changed(plain, 256 + 8, bytes(16), sums=True)
    elif at == "oldest":
        moved = bytearray(plain)
        position = 256
        while position < len(plain):
            (delta,) = struct.unpack_from("<I", plain, position + 28)
            struct.pack_into("<I", moved, position + 28, delta + 1)
            position += 48 + sum(struct.unpack_from("<II", plain, position + 32))
        data = changed(bytes(moved), 24, b"", sums=True)
    else:
        data = changed(plain, 24, b"\xff" * 8, sums=True)
    area, _, framed, frames = vsr_batch.decode_batch(memoryview(data), count)
    assert frames is None
    assert framed == (at == "wraps" and count == 1)  # which has no other to count from
    assert framed or {message.checksum for message in decode_messages(area)} == {0}


def changed(data: bytes, at: int, value: bytes, *, sums: bool = False) -> bytes:
    out = bytearray(data)
    out[at : at + len(value)] = value
    if sums:  # everything adds up again but for what was changed
        frames, count = out[256:], struct.unpack_from("<I", out, 48)[0]
        starts, position = [], 0
        for _ in range(count):
            starts.append(position)
            position += 48 + sum(struct.unpack_from("<II", frames, position + 32))
        all_sums = b""
        for a, b in pairwise([*starts, position]):
            frames[a : a + 8] = xxhash.xxh3_64_digest(bytes(frames[a + 8 : b]))[::-1]
            all_sums += frames[a : a + 8]
        out[256:] = frames
        covered = bytes(out[:40] + out[48:52]) + all_sums
        out[40:48] = xxhash.xxh3_64_digest(covered)[::-1]
    return bytes(out)


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize(
    ("at", "value", "sums", "status"),
    [
        (40, b"\1\2\3\4", False, Status.INVALID_BATCH_CHECKSUM),
        (24, b"\1\2\3\4", False, Status.INVALID_BATCH_CHECKSUM),
        (256, b"\1\2\3\4", False, Status.INVALID_MESSAGE_CHECKSUM),
        (256 + 60, b"\xff", False, Status.INVALID_MESSAGE_CHECKSUM),
        (52, b"\1", False, Status.INVALID_RESERVED_FIELD),
        (255, b"\1", False, Status.INVALID_RESERVED_FIELD),
        (256 + 40, b"\1", True, Status.INVALID_RESERVED_FIELD),
        (32, b"\1\0\0\0", False, Status.INVALID_COMMAND),
        (48, b"\1\0\0\0", False, Status.INVALID_COMMAND),
        (256 + 36, b"\x65\0\0\0", False, None),
        (256 + 36, b"\xff\xff\xff\xff", False, None),
    ],
)
def test_what_is_refused(
    count: int, at: int, value: bytes, sums: bool, status: Status | None
) -> None:
    data = changed(by_hand(of(count, "equal")), at, value, sums=sums)
    with pytest.raises(DecodeError) as caught:
        vsr_batch.decode_batch(memoryview(data), count)
    if status is not None:
        assert caught.value.code == status
    assert caught.value.code in (
        *(Status.INVALID_MESSAGES_SIZE, Status.TOO_SMALL_MESSAGE, Status.INVALID_COMMAND),
        *(Status.INVALID_BATCH_CHECKSUM, Status.INVALID_MESSAGE_CHECKSUM),
        Status.INVALID_RESERVED_FIELD,
    )


@pytest.mark.parametrize("count", [1, 20])
def test_limits(count: int) -> None:
    others, now = of(count - 1, "equal"), 1_700_000_000_000_000
    too_long = b"x" * (batch.PAYLOAD_BYTES_MAX + 1)
    large = [Message(too_long, id=1, origin_timestamp_us=now), *others]
    headers = [Message(b"x", b"h" * 100_001, id=1, origin_timestamp_us=now), *others]
    for messages, status in (
        (large, Status.TOO_BIG_MESSAGE_PAYLOAD),
        (headers, Status.TOO_BIG_USER_HEADERS),
    ):
        with pytest.raises(DecodeError) as caught:
            vsr_batch.decode_batch(memoryview(by_hand(messages)), count)
        assert caught.value.code == status
    with pytest.raises(DecodeError) as caught:
        vsr_batch.decode_batch(memoryview(bytes(32) + struct.pack("<Q", 256) + bytes(216)), 0)
    assert caught.value.code == Status.INVALID_MESSAGES_COUNT


def test_other_dialects_read_the_same_messages() -> None:
    messages = of(40, "mixed")
    request = encode_send("s", "t", Partitioning.to_partition(1), messages)
    for source in Dialect:
        read = SendMessages.decode(bytearray(request.encode(source)), source)
        assert decode_messages(read.area) == messages
        assert read.partitioning == Partitioning.to_partition(1)


@given(
    st.lists(
        st.builds(
            Message,
            st.binary(max_size=60),
            st.sampled_from([b"", HEADERS]),
            st.integers(1, 2**128 - 1),
            origin_timestamp_us=st.integers(10**15, 10**15 + 10**6),
        ),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=100, deadline=None)
def test_any_messages_come_back(messages: list[Message]) -> None:
    data = by_hand(messages)
    area, starts, *_ = vsr_batch.decode_batch(memoryview(data), len(messages))
    assert decode_messages(area) == messages
    assert bytes(vsr_batch.encode_produced(area, starts)) == data


@given(
    st.integers(1, 30),
    st.sampled_from(KINDS),
    st.integers(0, 2**16),
    st.binary(min_size=1, max_size=9),
)
@settings(max_examples=200, deadline=None)
def test_damage_is_refused_or_read(count: int, kind: str, at: int, value: bytes) -> None:
    data = bytearray(by_hand(of(count, kind)))
    at %= len(data)
    before = bytes(data)
    data[at : at + len(value)] = value[: len(data) - at]
    if data == before:
        return
    with pytest.raises(RemoteProtocolError):
        vsr_batch.decode_batch(memoryview(bytes(data)), count)
    with pytest.raises(RemoteProtocolError):
        reply.decode_batches(memoryview(bytes(data)))
