"""What a checkpoint counts on and is gone: told apart, refused or skipped, and recorded."""

import json
import logging
from dataclasses import replace

import pytest

from headrace.client.partition_reader import PartitionState, SourceState, TopicState
from headrace.pipeline.failures import read_gap, skipped
from headrace.spark.source.batch_plan import (
    DataLossError,
    Offsets,
    OtherTopicError,
    admit,
    decide,
    find_losses,
    surviving,
)

TOPIC = TopicState("12", "shop", "orders", (PartitionState(0, 0, 5, 105),))
STATE = SourceState("here", (TOPIC,))
OFFSETS = Offsets("here", {("12", 0): (0, 60)})
KEY = ("12", 0)


def changed(**partition: int) -> SourceState:
    return replace(
        STATE, topics=(replace(TOPIC, partitions=(replace(TOPIC.partitions[0], **partition),)),)
    )


RECREATED = replace(STATE, topics=(replace(TOPIC, uid="13"),))


def test_nothing_is_lost_while_everything_can_be_read() -> None:
    assert find_losses(OFFSETS, STATE, by_name=True) == []
    assert find_losses(OFFSETS, changed(start=60, end=60), by_name=True) == []
    more = replace(STATE, topics=(TOPIC, replace(TOPIC, uid="13", topic="returns")))
    assert find_losses(OFFSETS, more, by_name=False) == []


@pytest.mark.parametrize(
    ("now", "error", "text", "resumed"),
    [
        (replace(STATE, cluster="there"), OtherTopicError, "another cluster", {}),
        (RECREATED, OtherTopicError, "deleted and created again", {}),
        (changed(generation=1), OtherTopicError, "was purged", {KEY: 5}),
        (changed(end=59), DataLossError, "ends at 59", {KEY: 59}),
        (changed(start=61), DataLossError, "retention removed", {KEY: 61}),
        (
            replace(STATE, topics=(replace(TOPIC, partitions=()),)),
            DataLossError,
            "partition 0 of shop/orders was deleted",
            {},
        ),
    ],
)
def test_a_loss_is_a_typed_error_or_an_event(
    now: SourceState,
    error: type[Exception],
    text: str,
    resumed: dict[tuple[str, int], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = find_losses(OFFSETS, now, by_name=True)
    with pytest.raises(error, match=text):
        decide(losses, "fail")
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert decide(losses, "skip") == resumed
    (record,) = caplog.records
    assert "data loss skipped kind=" in record.getMessage()
    assert "position=60" in record.getMessage()


def test_skipping_goes_on_where_there_is_data_and_is_recorded() -> None:
    def end_of(now: SourceState) -> Offsets:
        losses = find_losses(OFFSETS, now, by_name=True)
        start = surviving(OFFSETS, losses, now)
        return admit(start, now, resumed=decide(losses, "skip"))

    assert end_of(changed(start=61)) == Offsets("here", {KEY: (0, 105)}, {KEY: 61})
    assert end_of(changed(generation=1)) == Offsets("here", {KEY: (1, 105)}, {KEY: 5})
    assert end_of(RECREATED) == Offsets("here", {("13", 0): (0, 105)}, {("13", 0): 5})
    wiped = replace(STATE, cluster="there")
    assert end_of(wiped) == Offsets("there", {KEY: (0, 105)}, {KEY: 5})
    assert surviving(OFFSETS, [], STATE) is OFFSETS


def test_a_deleted_topic_is_an_error_whatever_is_chosen() -> None:
    other = replace(TOPIC, uid="14", topic="returns")
    two = Offsets("here", {KEY: (0, 60), ("14", 0): (0, 60)})
    with pytest.raises(OtherTopicError, match=r"uid 12.* deleted"):
        find_losses(two, replace(STATE, topics=(other,)), by_name=True)
    # Under a pattern nobody can tell a topic that came from one that was created again.
    with pytest.raises(OtherTopicError, match=r"uid 12.* deleted"):
        find_losses(OFFSETS, RECREATED, by_name=False)


def told(start: object, end: object) -> list[str]:
    return skipped({"sources": [{"startOffset": start, "endOffset": end}]})


def test_a_pipeline_learns_of_what_was_skipped_from_two_offsets() -> None:
    start = json.dumps(OFFSETS.to_json())
    end = Offsets("here", {KEY: (0, 105), ("13", 0): (0, 9)}, {KEY: 61, ("13", 0): 4})
    (lost,) = told(start, json.dumps(end.to_json()))
    assert "partition 0 of the topic with uid 12 was read up to 60 and went on at 61" in lost
    assert told(start, end.to_json()) == [lost]
    assert told(start, start) == []
    assert read_gap(lost) == {
        "topic_uid": "12", "partition": 0, "position": 60, "resumed": 61, "lost": 1
    }  # fmt: skip
    (gone,) = told(start, Offsets("here", {}).to_json())
    assert "uid 12 is gone" in gone
    assert read_gap(gone) == {"topic_uid": "12", "partition": 0}
    assert read_gap("boom") is None
    assert told(None, start) == [], "the first batch"
    first = Offsets("here", {KEY: (0, 105)}, {KEY: 60})
    assert told(start, first.to_json()) == [], "which says where it begins"
    assert told(first.to_json(), first.to_json()) == [], "a batch without data after it"
    assert told(7, '{"shard": 1}') == [], "another kind of source"
