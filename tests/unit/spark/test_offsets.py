"""Offsets: their text is fixed, another topic is told apart, limits are kept."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptionError, InvalidArgumentError, OffsetOutOfRangeError
from headrace.spark.offsets import (
    DataLossError,
    OtherTopicError,
    PartitionState,
    TopicOffsets,
    TopicState,
    admit,
    check,
    resolve,
)

CLUSTER = "7f1ad5a2-93d4-4c9f-9b8e-3b1f2c6d7e80"
STATE = TopicState(
    CLUSTER,
    uid=12,
    stream="shop",
    topic="orders",
    partitions=(PartitionState(0, 0, 5, 105, 1000), PartitionState(1, 3, 0, 300, 3000)),
)
GOLDEN = (
    '{"v":1,"c":"7f1ad5a2-93d4-4c9f-9b8e-3b1f2c6d7e80",'
    '"p":{"12/0":[0,5],"12/1":[3,0],"12/10":[0,7],"12/2":[1,4]}}'
)


def test_the_text_of_an_offset_is_fixed() -> None:
    offsets = TopicOffsets(CLUSTER, 12, {10: (0, 7), 2: (1, 4), 1: (3, 0), 0: (0, 5)})
    assert json.dumps(offsets.to_json(), separators=(",", ":")) == GOLDEN
    assert TopicOffsets.from_json(json.loads(GOLDEN)).to_json() == json.loads(GOLDEN)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"v": 2, "c": "", "p": {}},
        {"v": 1, "p": {}},
        {"v": 1, "c": "", "p": {"1": [0, 1]}},
        {"v": 1, "c": "", "p": {"1/0": [0]}},
        {"v": 1, "c": "", "p": {"1/0": [0, 1], "2/0": [0, 1]}},
        {"v": 1, "c": "", "p": []},
    ],
)
def test_damaged_offsets_are_corruption(bad: dict[str, object]) -> None:
    with pytest.raises(CorruptionError):
        TopicOffsets.from_json(bad)


def test_named_and_explicit_positions() -> None:
    assert resolve(STATE, "earliest").positions == {0: (0, 5), 1: (3, 0)}
    assert resolve(STATE, "latest").positions == {0: (0, 105), 1: (3, 300)}
    assert resolve(STATE, {0: 50}).positions == {0: (0, 50), 1: (3, 0)}
    assert resolve(STATE, {0: 50}, rest="latest").positions == {0: (0, 50), 1: (3, 300)}
    with pytest.raises(InvalidArgumentError, match=r"no partition \[7\]"):
        resolve(STATE, {7: 0})
    with pytest.raises(OffsetOutOfRangeError, match="5 to 105, not 4"):
        resolve(STATE, {0: 4})


def changed(**partition: int) -> TopicState:
    return replace(STATE, partitions=(replace(STATE.partitions[0], **partition),))


@pytest.mark.parametrize(
    ("now", "error", "text"),
    [
        (replace(STATE, cluster="other"), OtherTopicError, "belongs to cluster"),
        (replace(STATE, uid=13), OtherTopicError, "deleted and created again"),
        (changed(generation=1), OtherTopicError, "was purged"),
        (changed(end=59), DataLossError, "ends at 59"),
        (changed(start=61), DataLossError, "retention removed"),
        (replace(STATE, partitions=()), DataLossError, "was deleted"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    now: TopicState, error: type[Exception], text: str
) -> None:
    offsets = TopicOffsets(CLUSTER, 12, {0: (0, 60)})
    check(offsets, STATE)
    check(offsets, changed(start=60, end=60))
    with pytest.raises(error, match=text):
        check(offsets, now)


def test_limits_are_shared_by_lag() -> None:
    start = resolve(STATE, "earliest")
    assert admit(start, STATE).positions == {0: (0, 105), 1: (3, 300)}
    assert admit(start, STATE, messages_max=40).positions == {0: (0, 15), 1: (3, 30)}
    # 4000 bytes in 400 messages: ten bytes each.
    assert admit(start, STATE, bytes_max=400).positions == {0: (0, 15), 1: (3, 30)}
    assert admit(start, STATE, messages_max=8, bytes_max=400).positions == {0: (0, 7), 1: (3, 6)}
    tiny = admit(start, STATE, bytes_max=1)
    assert tiny.positions == {0: (0, 5), 1: (3, 1)}, "progress even below one message"


def test_a_partition_that_came_later_is_read_from_its_start() -> None:
    start = TopicOffsets(CLUSTER, 12, {0: (0, 105)})
    assert admit(start, STATE).positions == {0: (0, 105), 1: (3, 300)}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10**6)), min_size=1, max_size=20),
    st.integers(1, 10**6),
)
def test_a_limit_is_kept_and_used_up(lags: list[tuple[int, int]], limit: int) -> None:
    state = replace(
        STATE,
        partitions=tuple(PartitionState(i, 0, at, at + lag) for i, (at, lag) in enumerate(lags)),
    )
    start = resolve(state, "earliest")
    end = admit(start, state, messages_max=limit)
    check(end, state)
    took = [end.positions[i][1] - at for i, (at, _) in enumerate(lags)]
    assert sum(took) == min(limit, sum(lag for _, lag in lags))
    assert all(0 <= one <= lag for one, (_, lag) in zip(took, lags, strict=True))
