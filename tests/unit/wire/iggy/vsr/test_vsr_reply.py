"""Replies of dialect C against slow code that takes their messages one by one."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError
from headrace.wire.iggy import batch
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import Message, PolledMessages, decode_messages
from headrace.wire.iggy.vsr import batch as vsr_batch
from headrace.wire.iggy.vsr import reply
from headrace.wire.iggy.vsr.reply import Run
from tests.unit.wire.iggy.vsr_by_hand import COUNTS, KINDS, area_of, by_hand, of, stamped


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_polls_batch(count: int, kind: str) -> None:
    messages = stamped(of(count, kind))
    (data,) = reply.encode_areas([canonical(messages)], partition=3)
    assert bytes(data) == by_hand(messages, partition=3, polled=True)
    (read,) = reply.decode_batches(memoryview(bytes(data)))
    assert decode_messages(read) == messages


def canonical(messages: list[Message]) -> bytearray:
    area, starts = area_of(messages)
    for start, message in zip(starts.tolist(), messages, strict=True):
        struct.pack_into("<QQ", area, start + 24, message.offset, message.timestamp_us)
    return area


def batches_of(data: memoryview) -> list[memoryview]:
    found = []
    while len(data):
        (length,) = struct.unpack_from("<Q", data, 32)
        found.append(data[:length])
        data = data[length:]
    return found


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
    (made,) = reply.encode_areas([canonical(messages)], partition=3)
    counts = [struct.unpack_from("<I", one, 48)[0] for one in batches_of(made)]
    assert sum(counts) == count
    assert all(abs(n - share * count) < 1 for n, share in zip(counts, lengths, strict=True))
    read = reply.decode_batches(made)
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


# --- many stored batches together -----------------------------------------------------------------


def sent(messages: list[Message], base_offset: int) -> bytearray:
    """What is stored of a producer's SEND."""
    data = by_hand(messages)
    area, starts, framed, _ = vsr_batch.decode_batch(memoryview(data), len(messages))
    assert framed
    batch.stamp(
        area, starts, base_offset=base_offset, timestamp_us=base_offset + 5, new_ids=bytes,
        summed=False,
    )  # fmt: skip
    return bytearray(area)


SHAPES = {
    "singles": ([1] * 50, "equal"),
    "singles that differ": ([1] * 50, "mixed"),
    "tens": ([10] * 7, "equal"),
    "tens that differ": ([10] * 7, "mixed large"),
    "any": ([1, 30, 2, 17, 1], "equal"),
    "any that differ": ([1, 30, 2, 17, 1], "mixed"),
    "one": ([300], "equal"),
    "one that differs": ([300], "mixed"),
    "few": ([2, 1, 3], "mixed"),
    "a long one": ([700], "equal large"),
}


@pytest.mark.parametrize("skip", [0, 1, 5])
@pytest.mark.parametrize("framed", [True, False], ids=["framed", "not framed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_stored_batches_become_those_of_a_reply(shape: str, framed: bool, skip: int) -> None:
    """The first and the last one in part, as polls begin and end anywhere."""
    counts, kind = SHAPES[shape]
    area, starts, expected, offset = bytearray(), [], b"", 1000
    taken, bases, oldest = [], [], {}
    for number, count in enumerate(counts):
        stored = sent(of(count, kind), offset)
        messages = decode_messages(stored)
        offset += count
        first = min(skip, count - 1) if number == 0 else 0
        last = max(first + 1, count - skip) if number == len(counts) - 1 else count
        some = messages[first:last]
        places = [*batch.walk(stored), len(stored)]
        begin, end = places[first], places[last]
        if not framed:
            for start in places[:-1]:
                stored[start : start + 8] = b"anything"
        starts += [place - begin + len(area) for place in places[first:last]]
        area += stored[begin:end]
        taken.append(len(some))
        bases.append(messages[0].offset)
        if len(some) < count:
            oldest[number] = min(m.origin_timestamp_us for m in messages)
        expected += by_hand(some, partition=7, polled=True, of=messages if framed else some)
    positions = np.array(starts, np.uint32)
    lengths = []

    def memory(length: int) -> memoryview:
        lengths.append(length)
        return memoryview(bytearray(b"?" * length))

    run = Run(taken, bases, oldest) if framed else Run(taken)
    made = reply.encode_batches(area, positions, run, partition=7, memory=memory)
    assert bytes(made) == expected
    assert lengths in ([], [len(expected)])
    read = reply.decode_batches(made)
    assert [m for part in read for m in decode_messages(part)] == decode_messages(area)


@given(st.lists(st.integers(1, 25), min_size=1, max_size=12), st.sampled_from(KINDS), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_stored_batches(counts: list[int], kind: str, framed: bool) -> None:
    area, offset, expected, bases = bytearray(), 0, b"", []
    for count in counts:
        stored = sent(of(count, kind), offset)
        messages = decode_messages(stored)
        expected += by_hand(messages, partition=1, polled=True)
        bases.append(offset)
        area += stored
        offset += count
    starts = np.array(batch.walk(area), np.uint32)
    run = Run(counts, bases if framed else None)
    made = reply.encode_batches(area, starts, run, partition=1)
    assert bytes(made) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_senders_frames_are_those_of_a_reply(kind: str) -> None:
    messages = of(100, kind)
    data = by_hand(messages)
    area, starts, framed, frames = vsr_batch.decode_batch(memoryview(data), 100)
    assert framed
    assert frames is not None
    batch.stamp(area, starts, base_offset=70, timestamp_us=9, new_ids=bytes, summed=False)
    header = reply.header_of(frames, partition=4, base_offset=70, timestamp_us=9)
    stored = decode_messages(area)
    assert header + frames.data == by_hand(stored, partition=4, polled=True)
