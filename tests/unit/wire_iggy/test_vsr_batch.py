"""Batches of dialect C against slow code that takes their messages one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.iggy import batch, vsr_batch
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.messages.messages import (
    Message,
    PolledMessages,
    SendMessages,
    decode_messages,
    encode_send,
)
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.userheaders import UserHeader, encode_headers

FRAME = struct.Struct("<Q16sIIIIQ")
HEADERS = encode_headers([UserHeader.of("a", 7)])


def by_hand(messages: list[Message], *, partition: int = 0, polled: bool = False) -> bytes:
    """What the reference says, in the plainest way."""
    first = messages[0]
    base = (first.offset, first.timestamp_us) if polled else (0, 0)
    oldest = min(message.origin_timestamp_us for message in messages)
    pieces, sums = [], b""
    for index, message in enumerate(messages):
        time = message.origin_timestamp_us - oldest
        rest = FRAME.pack(
            0, message.id.to_bytes(16, "little"), index, time,
            len(message.headers), len(message.payload), 0,
        )[8:] + message.payload + message.headers  # fmt: skip
        checksum = xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little")
        sums += checksum
        pieces.append(checksum + rest)
    frames = b"".join(pieces)
    covered = struct.pack("<QQQQQ", partition, *base, oldest, 256 + len(frames))
    checksum = xxhash.xxh3_64_digest(covered + struct.pack("<I", len(messages)) + sums)[::-1]
    return covered + checksum + struct.pack("<I", len(messages)) + bytes(204) + frames


def area_of(messages: list[Message]) -> tuple[bytearray, np.ndarray]:
    request = encode_send("s", "t", Partitioning.balanced(), messages)
    return bytearray(request.area), request.starts


def stamped(messages: list[Message], base_offset: int = 1000) -> list[Message]:
    area, starts = area_of(messages)
    batch.stamp(
        area, starts, base_offset=base_offset, timestamp_us=5_000_000,
        new_ids=lambda n: batch.consecutive_ids(10**30, n),
    )  # fmt: skip
    return decode_messages(area)


def of(count: int, kind: str) -> list[Message]:
    kinds: dict[str, Callable[[int], int]] = {
        "equal": lambda n: 100,
        "equal large": lambda n: 2001,
        "mixed": lambda n: n * 7 % 90,
        "mixed large": lambda n: 500 + n * 13 % 900,
        "empty": lambda n: 0,
    }
    sizes = kinds[kind]
    return [
        Message(
            bytes([n % 256]) * sizes(n),
            HEADERS if kind.startswith("mixed") and n % 3 == 0 else b"",
            id=2**70 + n,
            origin_timestamp_us=1_700_000_000_000_000 + 31 * n % 97,
        )
        for n in range(count)
    ]


KINDS = ("equal", "equal large", "mixed", "mixed large", "empty")
COUNTS = (1, 2, 16, 17, 100, 4200)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_producers_batch(count: int, kind: str) -> None:
    messages = of(count, kind)
    data = by_hand(messages)
    area, starts = vsr_batch.decode_batch(memoryview(data), count)
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
    area, starts = vsr_batch.decode_batch(memory[: len(data)], count, memory[: -len(b"not ours")])
    assert decode_messages(area) == messages
    assert starts.tolist() == batch.walk(area)
    assert bytes(memory[-len(b"not ours") :]) == b"not ours"
    moved = count > batch.FEW and not kind.startswith("mixed")
    assert (area.obj is memory.obj) == moved
    tight = memoryview(bytearray(data) + bytes(16 * count - 1))
    area, _ = vsr_batch.decode_batch(tight[: len(data)], count, tight)
    assert area.obj is not tight.obj
    assert bytes(tight[: len(data)]) == data


def test_damage_is_found_in_the_memory_it_came_in() -> None:
    data = by_hand(of(4200, "equal"))
    for at in (40, 256, 264, 300, 256 + 148 * 2000 + 100, len(data) - 1):
        memory = memoryview(bytearray(data) + bytes(16 * 4200))
        memory[at] ^= 1
        with pytest.raises(DecodeError):
            vsr_batch.decode_batch(memory[: len(data)], 4200, memory)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_polls_batch(count: int, kind: str) -> None:
    messages = stamped(of(count, kind))
    (data,) = vsr_batch.encode_batches(canonical(messages), partition=3)
    assert bytes(data) == by_hand(messages, partition=3, polled=True)
    (read,) = vsr_batch.decode_batches(memoryview(bytes(data)))
    assert decode_messages(read) == messages


def canonical(messages: list[Message]) -> bytearray:
    area, starts = area_of(messages)
    for start, message in zip(starts.tolist(), messages, strict=True):
        struct.pack_into("<QQ", area, start + 24, message.offset, message.timestamp_us)
    return area


MINUTE = 60_000_000


@pytest.mark.parametrize("count", [10, 40])
@pytest.mark.parametrize(
    ("times", "origins", "lengths"),
    [
        ([5], [0, 71 * MINUTE], [1]),
        ([5], [0, 72 * MINUTE], [1 / 2, 1 / 2]),
        ([5], [72 * MINUTE, 0], [1 / 2, 1 / 2]),
        ([5], [0, 40 * MINUTE, 80 * MINUTE, 2**63], [1 / 2, 1 / 4, 1 / 4]),
        ([5, 6], [7], [1 / 2, 1 / 2]),
        ([5, 6, 6, 6], [7, 7, 72 * MINUTE, 7], [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ([5], [0, 2**64 - 1], [1 / 2, 1 / 2]),
    ],
    ids=["71 minutes", "72", "backwards", "thrice", "two timestamps", "both", "any"],
)
def test_what_does_not_fit_in_one_batch(
    count: int, times: list[int], origins: list[int], lengths: list[float]
) -> None:
    messages = [
        replace(
            message,
            timestamp_us=times[n * len(times) // count],
            origin_timestamp_us=origins[n * len(origins) // count],
        )
        for n, message in enumerate(stamped(of(count, "mixed")))
    ]
    made = vsr_batch.encode_batches(canonical(messages), partition=3)
    counts = [struct.unpack_from("<I", one, 48)[0] for one in made]
    assert sum(counts) == count
    assert all(abs(n - share * count) < 1 for n, share in zip(counts, lengths, strict=True))
    read = vsr_batch.decode_batches(memoryview(b"".join(made)))
    assert [message for area in read for message in decode_messages(area)] == messages
    area, starts = area_of(messages)
    if max(origins) - min(origins) >= 2**32:
        with pytest.raises(LocalProtocolError, match="71 minutes"):
            vsr_batch.encode_produced(area, starts)
    else:
        assert bytes(vsr_batch.encode_produced(area, starts)) == by_hand(messages)


def test_a_reply_has_a_batch_for_each_slice() -> None:
    slices = []
    for base in (0, 20, 21):
        area, starts = area_of(of(20 if base == 0 else 1, "mixed"))
        batch.stamp(area, starts, base_offset=base, timestamp_us=base + 1, new_ids=bytes)
        slices.append(area)
    polled = PolledMessages(2, 21, 22, slices)
    data = polled.encode(Dialect.C)
    assert struct.unpack_from("<IQI", data) == (2, 21, 22)
    back = PolledMessages.decode(data, Dialect.C)
    assert [message.offset for message in back.messages()] == list(range(22))
    assert len(back.slices) == 3
    assert PolledMessages(0, 0, 0).encode(Dialect.C) == bytes(16)


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
    area, starts = vsr_batch.decode_batch(memoryview(data), len(messages))
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
        vsr_batch.decode_batches(memoryview(bytes(data)))
