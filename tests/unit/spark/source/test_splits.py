"""Spans: exactly what lies between two offsets, cut into tasks."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.partition_reader import PartitionState, SourceState, TopicState
from headrace.spark.source.batch_plan import (
    TASKS_PER_PARTITION_MAX,
    DataLossError,
    OffsetRange,
    Offsets,
    OnDataLoss,
    OtherTopicError,
    after,
    plan,
    split,
)

TOPIC = TopicState("12", "shop", "orders", (PartitionState(0, 2, 5, 105, 1000),))
STATE = SourceState("here", (TOPIC,))
KEY = ("12", 0)
START, END = Offsets("here", {KEY: (2, 10)}), Offsets("here", {KEY: (2, 90)})


def changed(**partition: int) -> SourceState:
    return replace(
        STATE, topics=(replace(TOPIC, partitions=(replace(TOPIC.partitions[0], **partition),)),)
    )


def spans(start: Offsets, end: Offsets, state: SourceState = STATE) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in plan(start, end, state, "fail", by_name=True)]


def test_a_batch_is_what_lies_between_its_offsets() -> None:
    (span,) = plan(START, END, STATE, "fail", by_name=True)
    assert span == OffsetRange("orders", KEY, 2, 10, 90, cluster="here")
    assert spans(END, END) == []
    assert spans(Offsets("here", {}), END, changed(start=0)) == [(0, 90)]
    assert spans(Offsets("here", {}), replace(END, begins={KEY: 7})) == [(7, 90)]
    assert spans(START, replace(END, begins={KEY: 50})) == [(50, 90)]
    other_cluster = Offsets("there", {KEY: (2, 60)})
    assert spans(other_cluster, END, changed(start=0)) == [(0, 90)]


def test_what_is_passed_over_ends_in_the_middle_of_a_span() -> None:
    batch = plan(START, END, STATE, "fail", by_name=True)
    assert list(after(batch, {KEY: 5})) == batch
    assert list(after(batch, {("other", 0): 50})) == batch
    assert list(after(batch, {KEY: 50})) == [replace(batch[0], start=50)]
    assert list(after(batch, {KEY: 90})) == []


def test_what_vanished_since_the_offset_was_written() -> None:
    def planned(
        state: SourceState, on_loss: OnDataLoss, *, by_name: bool = True
    ) -> list[OffsetRange]:
        return plan(START, END, state, on_loss, by_name=by_name)

    with pytest.raises(DataLossError, match="retention removed"):
        planned(changed(start=20), "fail")
    with pytest.raises(DataLossError, match="ends at 50"):
        planned(changed(end=50), "fail")
    with pytest.raises(OtherTopicError, match="purged"):
        planned(changed(generation=3), "fail")
    (kept,) = planned(changed(start=20, end=50), "skip")
    assert (kept.start, kept.end) == (20, 50)
    assert planned(changed(generation=3), "skip") == []
    assert planned(changed(start=95), "skip") == []
    fewer = replace(STATE, topics=(replace(TOPIC, partitions=()),))
    with pytest.raises(DataLossError, match=r"partition 0 of shop/orders was deleted.*onDataLoss"):
        planned(fewer, "fail")
    assert planned(fewer, "skip") == []


def test_a_planned_batch_is_of_the_cluster_and_the_topic_that_its_offsets_name() -> None:
    """Neither another cluster's rows nor those of a topic's next life are this batch's."""
    elsewhere = replace(STATE, cluster="there")
    with pytest.raises(OtherTopicError, match=r"another cluster.*new checkpoint.*onDataLoss=skip"):
        plan(START, END, elsewhere, "fail", by_name=True)
    assert plan(START, END, elsewhere, "skip", by_name=True) == []
    # A query's first batch: its start is asked for again, and is the other cluster's by now.
    first = replace(END, begins={KEY: 10})
    with pytest.raises(OtherTopicError, match="another cluster"):
        plan(replace(START, cluster="there"), first, elsewhere, "fail", by_name=True)
    assert plan(replace(START, cluster="there"), first, elsewhere, "skip", by_name=True) == []

    again = replace(STATE, topics=(replace(TOPIC, uid="13"),))
    with pytest.raises(OtherTopicError, match=r"created again.*new checkpoint.*onDataLoss=skip"):
        plan(START, END, again, "fail", by_name=True)
    assert plan(START, END, again, "skip", by_name=True) == []
    for state, by_name in ((again, False), (replace(STATE, topics=()), True)):
        with pytest.raises(OtherTopicError, match=r"uid 12.* was deleted.*new checkpoint"):
            plan(START, END, state, "skip", by_name=by_name)


def test_large_partitions_become_several_tasks() -> None:
    whole = plan(START, END, STATE, "fail", by_name=True)  # 80 messages of ten bytes
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
    span = OffsetRange("orders", KEY, 2, start, start + count, cluster="here")
    state = changed(start=start, end=start + count, bytes=size)
    tasks = list(split([span], state, bytes_max))
    assert 1 <= len(tasks) <= TASKS_PER_PARTITION_MAX
    at = start
    for task in tasks:
        assert task.start == at < task.end
        at = task.end
    assert at == start + count
