"""Finding the records that make a batch fail."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptionError
from headrace.pipeline.container.bad_records import (
    RECORDS_MAX,
    OffsetRange,
    Ranges,
    TooManyBadRecordsError,
    batch_ranges,
    find_bad_records,
    halve,
)
from headrace.spark.source.batch_plan import Offsets


class Batch:
    """Fails when it holds one of these offsets of partition 0, or of another by (partition, at)."""

    def __init__(self, *bad: int) -> None:
        self.bad = {(0, at) for at in bad}
        self.probes = 0

    def __call__(self, ranges: Ranges) -> str | None:
        self.probes += 1
        hit = [
            (each.partition, at)
            for each in ranges
            for at in range(each.start, each.end)
            if (each.partition, at) in self.bad
        ]
        return f"cannot do {hit[0]}" if hit else None


def whole(count: int = 1_000, partition: int = 0) -> OffsetRange:
    return OffsetRange("s/t", partition, 0, count)


def test_one_record_is_found_with_few_probes() -> None:
    batch = Batch(777)
    (found,) = find_bad_records([whole(100_000)], batch)
    assert (found.partition, found.offset, found.reason) == (0, 777, "cannot do (0, 777)")
    assert str(found) == "s/t partition 0 offset 777"
    assert batch.probes <= 2 + 2 * math.ceil(math.log2(100_000))


def test_a_batch_that_works_now_names_nobody() -> None:
    batch = Batch()
    assert find_bad_records([whole()], batch) == []
    assert batch.probes == 1


def test_a_batch_that_fails_only_sometimes_names_nobody() -> None:
    answers = iter(["out of memory"])
    assert find_bad_records([whole(8)], lambda _: next(answers, None)) == []


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 39)), max_size=12),
)
def test_exactly_the_bad_ones_are_found(sizes: list[int], bad: set[tuple[int, int]]) -> None:
    batch = Batch()
    batch.bad = {(p, at) for p, at in bad if p < len(sizes) and at < sizes[p]}
    ranges = [whole(size, partition) for partition, size in enumerate(sizes)]
    found = find_bad_records(ranges, batch)
    assert {(each.partition, each.offset) for each in found} == batch.bad
    assert len(found) == len(batch.bad)


def test_a_batch_in_which_everything_fails_is_given_up() -> None:
    with pytest.raises(TooManyBadRecordsError, match=str(RECORDS_MAX)):
        find_bad_records([whole(10_000)], lambda _: "always")


def test_halves_hold_all_records_once() -> None:
    ranges = (OffsetRange("s/a", 0, 5, 8), OffsetRange("s/a", 1, 0, 1), OffsetRange("s/b", 0, 7, 7))
    left, right = halve(ranges)
    assert left == (OffsetRange("s/a", 0, 5, 7),)
    assert right == (OffsetRange("s/a", 0, 7, 8), OffsetRange("s/a", 1, 0, 1))


def offsets(**positions: tuple[int, int]) -> Offsets:
    """`a0=(generation, next)` is partition 0 of the topic with uid a."""
    return Offsets("c", {(key[0], int(key[1:])): at for key, at in positions.items()})


def test_ranges_of_a_batch() -> None:
    before = [offsets(a0=(1, 10), a1=(1, 0))]
    after = [offsets(a0=(1, 20), a1=(1, 0), a2=(1, 3))]
    assert batch_ranges(before, after, {"a": "s/t"}) == (
        OffsetRange("s/t", 0, 10, 20),
        OffsetRange("s/t", 1, 0, 0),
        OffsetRange("s/t", 2, 0, 3),
    )
    skipped = [Offsets("c", {("a", 0): (1, 20)}, {("a", 0): 15})]
    assert batch_ranges(before, skipped, {"a": "s/t"}) == (OffsetRange("s/t", 0, 15, 20),)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([offsets(a0=(1, 10))], [offsets(a0=(2, 20))]),
        ([offsets()], [offsets(b0=(1, 20))]),
        ([offsets(a0=(1, 1)), offsets(a0=(1, 2))], [offsets(a0=(1, 3)), offsets(a0=(1, 3))]),
    ],
    ids=["purged", "unknown", "two sources"],
)
def test_offsets_that_say_nothing_of_ranges(before: list[Offsets], after: list[Offsets]) -> None:
    with pytest.raises(CorruptionError):
        batch_ranges(before, after, {"a": "s/t"})
