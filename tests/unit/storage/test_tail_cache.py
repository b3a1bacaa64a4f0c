"""The tail cache against a plain list."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.segments.segment import AppendedBatch
from headrace.storage.shared import RangeTail, TailCache

LIMIT = 1000


def batch(offset: int, records: int, size: int) -> AppendedBatch:
    content = bytes([offset % 256]) * size
    return AppendedBatch(bytearray(content[:5]), [content[5:]], offset, offset + records, size, 0)


def contents(found: list[AppendedBatch] | None) -> list[bytes]:
    assert found is not None
    return [bytes(batch.view()) for batch in found]


steps = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(5, 400)),
        st.tuples(st.integers(0, 2), st.just(0), st.just(0)),  # forget
    ),
    max_size=60,
)


@given(steps)
def test_it_holds_the_newest_batches_within_its_bound(steps: list[tuple[int, int, int]]) -> None:
    cache = TailCache(LIMIT)
    tails = [RangeTail() for _ in range(3)]
    offsets = [0, 0, 0]
    model: list[tuple[int, int, int]] = []  # range, offset, size; oldest first
    for at, records, size in steps:
        if not records:
            cache.forget(tails[at])
            model = [each for each in model if each[0] != at]
        else:
            cache.add(tails[at], batch(offsets[at], records, size))
            model.append((at, offsets[at], size))
            offsets[at] += records
            while sum(each[2] for each in model) > LIMIT:
                model.pop(0)
        assert cache.bytes == sum(each[2] for each in model)
    for at, tail in enumerate(tails):
        held = [(offset, size) for each, offset, size in model if each == at]
        assert len(tail) == len(held)
        views = tail.read(offsets[at], stop=offsets[at], max_bytes=1 << 20)
        if held:
            assert views is not None
            first, _ = held[0]
            assert contents(tail.read(first, stop=offsets[at], max_bytes=1 << 20)) == [
                bytes([offset % 256]) * size for offset, size in held
            ]
            assert first == 0 or tail.read(first - 1, stop=offsets[at], max_bytes=1) is None
        else:
            assert views is None


def test_a_long_tail_forgets_its_front() -> None:
    cache = TailCache(100)
    tail = RangeTail()
    for offset in range(5000):
        cache.add(tail, batch(offset, 1, 10))
    assert len(tail) == 10
    assert tail.read(4989, stop=5000, max_bytes=1) is None
    assert contents(tail.read(4990, stop=5000, max_bytes=25)) == [
        bytes([at % 256]) * 10 for at in (4990, 4991)
    ]
    assert contents(tail.read(4995, stop=4996, max_bytes=1000)) == [bytes([4995 % 256]) * 10]


def test_small_batches_that_are_stored_are_nothing_to_the_garbage_collector() -> None:
    cache = TailCache(1 << 20)
    tail = RangeTail()
    cache.add(tail, batch(0, 1, 1024))  # the lists and the queue are there
    before = len(gc.get_objects())
    for offset in range(1, 500):
        each = batch(offset, 1, 1024)
        cache.add(tail, each)
        each.on_stored()
    assert len(gc.get_objects()) - before < 50
    assert contents(tail.read(498, stop=500, max_bytes=2048)) == [
        bytes([at % 256]) * 1024 for at in (498, 499)
    ]


def test_a_batch_is_read_as_it_was_whether_it_was_joined_or_not() -> None:
    for size in (5, 16 * 1024, 16 * 1024 + 1):
        stored, fresh = batch(7, 1, size), batch(7, 1, size)
        stored.on_stored()
        assert bool(stored.body) == (size > 16 * 1024)
        for each in (stored, fresh):
            assert b"".join(each.pieces()) == bytes([7]) * size
            assert all(piece.readonly for piece in each.pieces())
        for _ in range(2):
            assert stored.view() == fresh.view() == bytes([7]) * size
        assert stored.view().readonly
