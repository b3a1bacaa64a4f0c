"""Marks, index files and range metadata: round trips, and what is refused."""

from __future__ import annotations

from array import array
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptionError
from headrace.storage.layout import (
    CorruptSpan,
    Point,
    RangeKey,
    RangeMetadata,
    decode_metadata,
    encode_metadata,
    format_base,
    parse_base,
)
from headrace.storage.segments.formats import (
    MARK_BYTES,
    Checkpoint,
    Index,
    Mark,
    binding_of,
    decode_checkpoint,
    decode_mark,
    encode_checkpoint,
    encode_mark,
)
from headrace.wire.sbp.messages import Durability

KEY = RangeKey(7, 2)
STORE = UUID(int=12345)
BINDING = binding_of(STORE, KEY, 100)

u63 = st.integers(0, 2**63 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
marks = st.builds(Mark, u63, u63, u63)


@given(marks, u63, st.binary(max_size=20))
def test_a_mark_comes_back_at_its_own_place_alone(mark: Mark, position: int, before: bytes) -> None:
    data = encode_mark(mark, binding=BINDING, position=position)
    assert len(data) == MARK_BYTES
    buffer = before + data
    at = len(before)
    assert decode_mark(buffer, at, binding=BINDING, position=position) == mark
    assert decode_mark(buffer, at, binding=BINDING, position=position + 1) is None
    for other in (
        binding_of(UUID(int=12346), KEY, 100),
        binding_of(STORE, RangeKey(7, 3), 100),
        binding_of(STORE, KEY, 101),
    ):
        assert decode_mark(buffer, at, binding=other, position=position) is None


def test_the_bytes_of_a_mark() -> None:
    """Format version 1: changing this needs a migration."""
    mark = encode_mark(Mark(5, 4096, 77), binding=BINDING, position=8192)
    assert mark.hex() == (
        "a568726d" + mark[4:8].hex() + "0000000000000005" + "0000000000001000" + "000000000000004d"
    )
    assert mark[4:8].hex() == "be68c0bb"


@given(marks, st.integers(0, MARK_BYTES * 8 - 1))
def test_any_flipped_bit_spoils_a_mark(mark: Mark, bit: int) -> None:
    data = bytearray(encode_mark(mark, binding=BINDING, position=0))
    data[bit // 8] ^= 1 << bit % 8
    assert decode_mark(data, 0, binding=BINDING, position=0) is None
    assert decode_mark(data[:-1], 0, binding=BINDING, position=0) is None


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    columns = draw(st.lists(st.tuples(i64, i64, i64), max_size=20))
    index = Index(*(array("q", column) for column in zip(*columns, strict=True)))
    if not columns:
        index = Index()
    spans = draw(st.lists(st.builds(CorruptSpan, i64, i64), max_size=3))
    end = Point(draw(u63), draw(u63))
    return Checkpoint(end, draw(u63), draw(i64), draw(i64), index, tuple(spans))


@given(checkpoints())
def test_a_checkpoint_comes_back(checkpoint: Checkpoint) -> None:
    data = encode_checkpoint(KEY, 100, checkpoint)
    assert decode_checkpoint(data, KEY, 100) == checkpoint
    assert decode_checkpoint(data, KEY, 101) is None
    assert decode_checkpoint(data, RangeKey(7, 3), 100) is None
    assert decode_checkpoint(data + b"x", KEY, 100) is None


@given(checkpoints(), st.data())
def test_a_damaged_checkpoint_is_dropped(checkpoint: Checkpoint, data: st.DataObject) -> None:
    encoded = bytearray(encode_checkpoint(KEY, 100, checkpoint))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    assert decode_checkpoint(bytes(encoded), KEY, 100) is None
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert decode_checkpoint(bytes(encoded[:cut]), KEY, 100) is None


@given(st.binary(max_size=300))
def test_garbage_is_no_checkpoint(data: bytes) -> None:
    assert decode_checkpoint(data, KEY, 100) is None
    assert decode_mark(data, 0, binding=BINDING, position=0) is None
    with pytest.raises(CorruptionError):
        decode_metadata(data, "range.json")


def test_index_lookup() -> None:
    index = Index()
    assert index.floor(5, 3) == Point(0, 3)
    for offset, position, before in ((10, 100, -1), (20, 200, 7), (30, 300, 9)):
        index.add(Point(position, offset), before)
    assert index.floor(9, 3) == Point(0, 3)
    assert index.floor(10, 3) == Point(100, 10)
    assert index.floor(29, 3) == Point(200, 20)
    assert index.floor(99, 3) == Point(300, 30)
    assert index.before_time(7, 3) == Point(100, 10)  # 7 is reached before the second entry
    assert index.before_time(8, 3) == Point(200, 20)
    assert index.before_time(-1, 3) == Point(0, 3)


@pytest.mark.parametrize("level", list(Durability))
def test_metadata_comes_back_and_every_flipped_bit_is_noticed(level: Durability) -> None:
    metadata = RangeMetadata(
        start=10, end=20, sealed=True, writer_epoch=3, durability=level, reserved=True
    )
    data = encode_metadata(metadata)
    assert decode_metadata(data, "") == metadata
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_metadata(bytes(damaged), "")


def test_metadata_of_the_time_before_replicas() -> None:
    """A range that was sealed then was alone, and its end is final."""
    text = b'{"start":0,"end":3,"sealed":true,"writer_epoch":2,"durability":0,"version":1}'
    found = decode_metadata(b"%s\n%08x\n" % (text, crc32c(text)), "")
    assert (found.replicas, found.ack_quorum, found.final, found.complete) == ((), 1, True, True)
    assert not RangeMetadata(start=0, end=3, sealed=True, ack_quorum=2).final
    assert RangeMetadata(start=0, end=3, sealed=True, ack_quorum=2, decided=True).final
    assert not RangeMetadata(start=0).final


def test_segment_names() -> None:
    assert format_base(42) == "00000000000000000042"
    assert parse_base(f"{format_base(2**63 - 1)}.log") == 2**63 - 1
    for name in ("42.log", "0000000000000000004x.log", f"{format_base(1)}.index", "range.json"):
        assert parse_base(name) is None
