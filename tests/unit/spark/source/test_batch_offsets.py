"""Offsets: their text is fixed, positions are found, limits are kept."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.partition_reader import PartitionState, SourceState, TopicState
from headrace.client.topic_reader import AtTime
from headrace.errors import CorruptionError, InvalidArgumentError, OffsetOutOfRangeError
from headrace.spark.source.batch_plan import Offsets, admit, begun, find_losses, limited
from headrace.spark.source.positions import AtOffsets, resolve

CLUSTER = "7f1ad5a2-93d4-4c9f-9b8e-3b1f2c6d7e80"
ORDERS = TopicState(
    "12",
    stream="shop",
    topic="orders",
    partitions=(PartitionState(0, 0, 5, 105, 1000), PartitionState(1, 3, 0, 300, 3000)),
)
STATE = SourceState(CLUSTER, (ORDERS,))
RETURNS = TopicState("13", "shop", "returns", (PartitionState(0, 0, 7, 17, 100),))
BOTH = SourceState(CLUSTER, (ORDERS, RETURNS))
GOLDEN = (
    '{"v":1,"c":"7f1ad5a2-93d4-4c9f-9b8e-3b1f2c6d7e80",'
    '"p":{"12/0":[0,5],"12/1":[3,0],"12/10":[0,7],"12/2":[1,4],"13/0":[0,9]}}'
)
AT = {("12", 0): (0, 5), ("12", 1): (3, 0)}


def test_the_text_of_an_offset_is_fixed() -> None:
    offsets = Offsets(
        CLUSTER,
        {
            ("13", 0): (0, 9),
            ("12", 10): (0, 7),
            ("12", 2): (1, 4),
            ("12", 1): (3, 0),
            ("12", 0): (0, 5),
        },
    )
    assert json.dumps(offsets.to_json(), separators=(",", ":")) == GOLDEN
    assert Offsets.from_json(json.loads(GOLDEN)) == offsets
    begun = replace(offsets, begins={("12", 2): 3})
    assert begun.to_json() == {**json.loads(GOLDEN), "b": {"12/2": 3}}
    assert Offsets.from_json(begun.to_json()) == begun


def test_names_of_plain_servers_may_hold_anything() -> None:
    offsets = Offsets("", {("a/b@17", 3): (0, 9)})
    assert list(offsets.to_json()["p"]) == ["a/b@17/3"]
    assert Offsets.from_json(offsets.to_json()) == offsets


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"v": 2, "c": "", "p": {}},
        {"v": 1, "p": {}},
        {"v": 1, "c": "", "p": {"1": [0, 1]}},
        {"v": 1, "c": "", "p": {"/1": [0, 1]}},
        {"v": 1, "c": "", "p": {"1/x": [0, 1]}},
        {"v": 1, "c": "", "p": {"1/0": [0]}},
        {"v": 1, "c": "", "p": []},
        {"v": 1, "c": "", "p": {}, "b": {"1/0": "x"}},
    ],
)
def test_damaged_offsets_are_corruption(bad: dict[str, object]) -> None:
    with pytest.raises(CorruptionError):
        Offsets.from_json(bad)


def test_named_and_explicit_positions() -> None:
    assert resolve(STATE, "earliest").positions == AT
    assert resolve(STATE, "latest").positions == {("12", 0): (0, 105), ("12", 1): (3, 300)}
    some = AtOffsets({"orders": {0: 50}})
    assert resolve(STATE, some).positions == {("12", 0): (0, 50), ("12", 1): (3, 0)}
    assert resolve(BOTH, some, rest="latest").positions == {
        ("12", 0): (0, 50),
        ("12", 1): (3, 300),
        ("13", 0): (0, 17),
    }
    with pytest.raises(InvalidArgumentError, match=r"no partition \[7\]"):
        resolve(STATE, AtOffsets({"orders": {7: 0}}))
    with pytest.raises(InvalidArgumentError, match="no topic returns"):
        resolve(STATE, AtOffsets({"returns": {0: 0}}))
    below = AtOffsets({"orders": {0: 4, 1: 999}})
    with pytest.raises(OffsetOutOfRangeError, match="5 to 105, not 4"):
        resolve(STATE, below)
    assert resolve(STATE, below, clamp=True).positions == {("12", 0): (0, 5), ("12", 1): (3, 300)}


def test_a_time_stands_at_its_first_message_or_at_the_end() -> None:
    times = {("12", 0): 60}
    found = resolve(STATE, AtTime(1), times=times).positions
    assert found == {("12", 0): (0, 60), ("12", 1): (3, 300)}
    # Found a moment later than the state, or trimmed since: what the state holds counts.
    assert resolve(STATE, AtTime(1), times={("12", 0): 999}).positions[("12", 0)] == (0, 105)
    assert resolve(STATE, AtTime(1), times={("12", 0): 1}).positions[("12", 0)] == (0, 5)


def test_limits_are_shared_by_lag() -> None:
    start = resolve(STATE, "earliest")

    def ends(messages_max: int | None = None, bytes_max: int | None = None) -> list[int]:
        end = admit(start, STATE, messages_max=messages_max, bytes_max=bytes_max)
        return [at for _, at in end.positions.values()]

    assert ends() == [105, 300]
    assert ends(messages_max=40) == [15, 30]
    assert ends(bytes_max=400) == [15, 30], "4000 bytes in 400 messages: ten bytes each"
    assert ends(messages_max=8, bytes_max=400) == [7, 6]
    assert ends(bytes_max=1) == [5, 1], "progress even below one message"


def test_what_came_later_is_read_from_its_start_once_it_holds_something() -> None:
    start = Offsets(CLUSTER, {("12", 0): (0, 105), ("12", 1): (3, 300)})
    end = admit(start, BOTH)
    assert end.positions == {**start.positions, ("13", 0): (0, 17)}
    assert end.begins == {("13", 0): 7}, "the same offsets mean the same messages after a trim"
    empty = replace(RETURNS, partitions=(PartitionState(0, 0, 0, 0),))
    assert admit(start, SourceState(CLUSTER, (ORDERS, empty))) is start
    assert admit(start, STATE) is start
    # What a batch began with says nothing about the next one.
    assert admit(end, BOTH) is end


def test_lost_partitions_go_on_where_they_can() -> None:
    start = Offsets(CLUSTER, {("12", 0): (0, 1), ("12", 1): (2, 50)})
    end = admit(start, STATE, resumed={("12", 0): 5, ("12", 1): 0}, messages_max=4)
    assert end.positions == {("12", 0): (0, 6), ("12", 1): (3, 3)}
    assert end.begins == {("12", 0): 5, ("12", 1): 0}
    drained = SourceState(CLUSTER, (replace(ORDERS, partitions=(PartitionState(1, 3, 0, 0),)),))
    recorded = admit(Offsets(CLUSTER, {("12", 1): (2, 50)}), drained, resumed={("12", 1): 0})
    assert recorded.positions == {("12", 1): (3, 0)}, "recorded although there is nothing to read"
    assert admit(recorded, drained) is recorded


def test_a_run_ends_where_it_was_told_to() -> None:
    later = SourceState(
        CLUSTER,
        (
            replace(
                ORDERS,
                partitions=(
                    PartitionState(0, 0, 60, 200),
                    PartitionState(1, 4, 0, 9),  # purged since
                    PartitionState(2, 0, 0, 9),
                ),
            ),
            RETURNS,
        ),
    )
    (topic,) = limited(later, STATE).topics
    assert [(each.start, each.end) for each in topic.partitions] == [(60, 105), (0, 0)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10**6)), min_size=1, max_size=20),
    st.integers(1, 10**6),
)
def test_a_limit_is_kept_and_used_up(lags: list[tuple[int, int]], limit: int) -> None:
    partitions = tuple(PartitionState(i, 0, at, at + lag) for i, (at, lag) in enumerate(lags))
    state = SourceState(CLUSTER, (replace(ORDERS, partitions=partitions),))
    start = resolve(state, "earliest")
    end = admit(start, state, messages_max=limit)
    assert find_losses(end, state, by_name=True) == []
    took = [end.positions["12", i][1] - at for i, (at, _) in enumerate(lags)]
    assert sum(took) == min(limit, sum(lag for _, lag in lags))
    assert all(0 <= one <= lag for one, (_, lag) in zip(took, lags, strict=True))


def test_the_first_batch_says_itself_where_it_begins() -> None:
    """Its start is asked for again, and may be another one by then."""
    first = Offsets("here", {("12", 0): (0, 5), ("12", 1): (0, 0)})
    end = Offsets("here", {("12", 0): (0, 9), ("12", 1): (0, 2), ("12", 2): (0, 3)}, {("12", 2): 1})
    written = begun(first, end)
    assert written.begins == {("12", 0): 5, ("12", 1): 0, ("12", 2): 1}
    assert written.positions == end.positions
    assert Offsets.from_json(written.to_json()) == written
