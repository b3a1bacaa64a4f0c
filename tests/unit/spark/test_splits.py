"""Spans: exactly what lies between two offsets, cut into tasks."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NotFoundError
from headrace.spark.losses import DataLossError, OtherTopicError
from headrace.spark.offsets import Offsets, PartitionState, SourceState, TopicState
from headrace.spark.splits import TASKS_PER_PARTITION_MAX, Span, after, plan, split

TOPIC = TopicState("12", "shop", "orders", (PartitionState(0, 2, 5, 105, 1000),))
STATE = SourceState("here", (TOPIC,))
KEY = ("12", 0)
START, END = Offsets("here", {KEY: (2, 10)}), Offsets("here", {KEY: (2, 90)})


def changed(**partition: int) -> SourceState:
    return replace(
        STATE, topics=(replace(TOPIC, partitions=(replace(TOPIC.partitions[0], **partition),)),)
    )


def spans(start: Offsets, end: Offsets, state: SourceState = STATE) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in plan(start, end, state, "fail")]


def test_a_batch_is_what_lies_between_its_offsets() -> None:
    assert plan(START, END, STATE, "fail") == [Span("orders", KEY, 2, 10, 90)]
    assert spans(END, END) == []
    assert spans(Offsets("here", {}), END, changed(start=0)) == [(0, 90)]
    assert spans(Offsets("here", {}), replace(END, begins={KEY: 7})) == [(7, 90)]
    assert spans(START, replace(END, begins={KEY: 50})) == [(50, 90)]
    other_cluster = Offsets("there", {KEY: (2, 60)})
    assert spans(other_cluster, END, changed(start=0)) == [(0, 90)]


def test_what_is_passed_over_ends_in_the_middle_of_a_span() -> None:
    batch = plan(START, END, STATE, "fail")
    assert list(after(batch, {KEY: 5})) == batch
    assert list(after(batch, {("other", 0): 50})) == batch
    assert list(after(batch, {KEY: 50})) == [replace(batch[0], start=50)]
    assert list(after(batch, {KEY: 90})) == []


def test_what_vanished_since_the_offset_was_written() -> None:
    with pytest.raises(DataLossError, match="retention removed"):
        plan(START, END, changed(start=20), "fail")
    with pytest.raises(DataLossError, match="ends at 50"):
        plan(START, END, changed(end=50), "fail")
    with pytest.raises(OtherTopicError, match="purged"):
        plan(START, END, changed(generation=3), "fail")
    (kept,) = plan(START, END, changed(start=20, end=50), "skip")
    assert (kept.start, kept.end) == (20, 50)
    assert plan(START, END, changed(generation=3), "skip") == []
    assert plan(START, END, changed(start=95), "skip") == []
    with pytest.raises(NotFoundError, match="was deleted"):
        plan(START, END, replace(STATE, topics=()), "skip")


def test_large_partitions_become_several_tasks() -> None:
    whole = plan(START, END, STATE, "fail")  # 80 messages of ten bytes
    assert list(split(whole, STATE, 800)) == whole
    halves = [(each.start, each.end) for each in split(whole, STATE, 799)]
    assert halves == [(10, 50), (50, 90)]
    assert len(list(split(whole, STATE, 1))) == 80, "a task has at least one message"
    unknown = changed(bytes=0)
    assert list(split(whole, unknown, 1)) == whole


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(0, 10**12), st.integers(1, 10**9))
def test_tasks_neither_overlap_nor_leave_gaps(
    start: int, count: int, size: int, bytes_max: int
) -> None:
    span = Span("orders", KEY, 2, start, start + count)
    state = changed(start=start, end=start + count, bytes=size)
    tasks = list(split([span], state, bytes_max))
    assert 1 <= len(tasks) <= TASKS_PER_PARTITION_MAX
    at = start
    for task in tasks:
        assert task.start == at < task.end
        at = task.end
    assert at == start + count
