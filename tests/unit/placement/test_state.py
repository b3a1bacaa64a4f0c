"""Decisions of the placement manager as lists of requests and what they lead to."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.errors import (
    AlreadyExistsError,
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotEnoughNodesError,
    NotFoundError,
    RangeNotFoundError,
)
from headrace.placement.metadata.records import (
    CounterRecord,
    NodeRecord,
    Put,
    RangeRecord,
    Record,
    Remove,
    StreamRecord,
)
from headrace.placement.nodes import Nodes, load_score
from headrace.placement.state import (
    BIRTH_EPOCH,
    Counter,
    PlacementState,
    Seal,
    Writable,
    sealed_end,
)
from headrace.wire.sbp.messages import ReportMetricsRequest, Stream


def make_state(*records: Record) -> PlacementState:
    state = PlacementState(nodes=Nodes(timeout_ms=100), replicas_max=3)
    state.recover(records, now_ms=0)
    return state


def two_ranges(*, end: int = -1) -> PlacementState:
    """[0, 42) and [42, end), as in the original's own trim tests."""
    return make_state(
        StreamRecord(stream_id=1),
        RangeRecord(stream_id=1, range_index=0, start=0, end=42, replicas=(0,)),
        RangeRecord(stream_id=1, range_index=1, start=42, end=end, replicas=(0,)),
    )


def bounds(state: PlacementState) -> list[tuple[int, int, int]]:
    return [(r.range_index, r.start, r.end) for r in state.ranges(1)]


# Trim (reference table)


@pytest.mark.parametrize(
    ("offset", "end", "next_offset", "expected"),
    [
        (21, -1, -1, [(0, 21, 42), (1, 42, -1)]),
        (42, -1, -1, [(1, 42, -1)]),
        (84, -1, 84, [(1, 84, -1)]),
        (84, -1, 100, [(1, 84, -1)]),
        (84, 84, -1, [(1, 84, 84)]),
        (0, -1, -1, [(0, 0, 42), (1, 42, -1)]),
    ],
)
def test_trim(
    offset: int, end: int, next_offset: int, expected: list[tuple[int, int, int]]
) -> None:
    state = two_ranges(end=end)
    state.apply(state.trim(1, offset, next_offset=next_offset))
    assert bounds(state) == expected


@pytest.mark.parametrize(
    ("offset", "end", "next_offset"),
    [
        (84, -1, 83),  # beyond what was written to the open range
        (168, 84, -1),  # beyond the last sealed end
        (-1, -1, -1),
    ],
)
def test_trim_outside_changes_nothing(offset: int, end: int, next_offset: int) -> None:
    state = two_ranges(end=end)
    with pytest.raises(InvalidArgumentError):
        state.trim(1, offset, next_offset=next_offset)


def test_trim_never_goes_back() -> None:
    state = two_ranges()
    state.apply(state.trim(1, 21))
    with pytest.raises(InvalidArgumentError):
        state.trim(1, 20)
    assert state.trim(1, 21) == []


def test_trim_asks_for_the_next_offset_only_inside_the_open_range() -> None:
    state = two_ranges()
    assert state.needs_next(1, 42) is None
    needed = state.needs_next(1, 43)
    assert needed is not None
    assert needed.range_index == 1
    assert two_ranges(end=84).needs_next(1, 50) is None


def test_trim_of_an_unknown_or_deleted_stream() -> None:
    state = two_ranges()
    with pytest.raises(NotFoundError):
        state.trim(2, 0)
    state.apply(state.delete_stream(1, 5))
    with pytest.raises(NotFoundError):
        state.trim(1, 50)


def test_long_trims_may_be_cut_anywhere() -> None:
    """The oldest range goes first, so each prefix of the operations is a valid stream."""
    records: list[Record] = [StreamRecord(stream_id=1)]
    records += [
        RangeRecord(stream_id=1, range_index=i, start=i, end=i + 1, replicas=(0,))
        for i in range(250)
    ]
    records.append(RangeRecord(stream_id=1, range_index=250, start=250, replicas=(0,)))
    operations = make_state(*records).trim(1, 240)
    assert len(operations) == 240
    for count in range(0, 240, 17):
        state = make_state(*records)
        state.apply(operations[:count])
        ranges = state.ranges(1)
        assert all(a.end == b.start for a, b in pairwise(ranges))


# Seal


def test_seal_and_new() -> None:
    state = two_ranges()
    decision = state.seal(1, 1, -1)
    assert isinstance(decision, Seal)
    assert decision.range.sealing
    state.apply(decision.operations)
    assert [r.range_index for r in state.sealing()] == [1]
    state.apply(state.succeed(decision.range, 50, (3,)))
    assert bounds(state) == [(0, 0, 42), (1, 42, 50), (2, 50, -1)]
    assert state.last_range(1).replicas == (3,)
    assert state.sealing() == []


def test_sealing_an_old_index_gives_the_writable_range() -> None:
    state = two_ranges()
    assert state.seal(1, 0, -1) == Writable(state.last_range(1))


def test_sealing_an_old_index_finishes_a_seal_that_was_begun() -> None:
    state = two_ranges()
    state.apply(state.seal_last(1, -1).operations)
    assert isinstance(state.seal(1, 0, -1), Seal)


def test_a_begun_seal_is_not_written_again() -> None:
    state = two_ranges()
    state.apply(state.seal_last(1, -1).operations)
    assert state.seal_last(1, -1).operations == []


def test_sealing_a_future_index_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        two_ranges().seal(1, 2, -1)


def test_an_empty_range_is_dropped_by_its_seal() -> None:
    state = two_ranges()
    state.apply(state.succeed(state.last_range(1), 42, (0,)))
    assert bounds(state) == [(0, 0, 42), (2, 42, -1)]


def test_a_shrunken_log_is_never_papered_over() -> None:
    state = two_ranges()
    with pytest.raises(CorruptionError):
        state.succeed(state.last_range(1), 41, (0,))


def test_a_range_is_succeeded_once() -> None:
    state = two_ranges()
    last = state.last_range(1)
    state.apply(state.succeed(last, 50, (0,)))
    with pytest.raises(CorruptionError):
        state.succeed(last, 50, (0,))


# Epochs


def test_open_for_writing_raises_the_epoch_and_keeps_the_range() -> None:
    state = two_ranges()
    decision = state.open_for_writing(1, 4)
    assert isinstance(decision, Writable)
    state.apply(decision.operations)
    assert (state.last_range(1).range_index, state.last_range(1).writer_epoch) == (1, 4)
    again = state.open_for_writing(1, 4)
    assert (again.range, list(again.operations)) == (state.last_range(1), [])
    assert state.is_owned(1)


def test_open_for_writing_seals_what_was_being_sealed() -> None:
    state = two_ranges()
    state.apply(state.seal_last(1, -1).operations)
    assert isinstance(state.open_for_writing(1, 2), Seal)


@pytest.mark.parametrize("epoch", [-1, 0, 4])
def test_lower_epochs_are_fenced(epoch: int) -> None:
    state = two_ranges()
    state.apply(state.open_for_writing(1, 5).operations)
    with pytest.raises(FencedError):
        state.seal(1, 1, epoch)
    with pytest.raises(FencedError):
        state.seal(1, 0, epoch)
    if epoch >= 0:
        with pytest.raises(FencedError):
            state.open_for_writing(1, epoch)


def test_a_higher_epoch_never_gets_the_range_of_a_lower_one() -> None:
    state = two_ranges()
    state.apply(state.open_for_writing(1, 5).operations)
    decision = state.seal(1, 0, 6)
    assert isinstance(decision, Seal)
    state.apply(decision.operations)
    with pytest.raises(FencedError):
        state.seal(1, 1, 5)  # the intent fences already
    state.apply(state.succeed(decision.range, 50, (0,)))
    assert state.last_range(1).writer_epoch == 6


def test_streams_of_the_cluster_are_owned_from_birth() -> None:
    state = make_state()
    for stream_id, name in enumerate(["p/1/0/0", "s/catalogue", "orders"]):
        wanted = Stream(name=name, replica_nums=1)
        state.apply(state.create_stream(wanted, stream_id=stream_id, replicas=(0,)))
    assert [state.last_range(i).writer_epoch for i in range(3)] == [BIRTH_EPOCH, BIRTH_EPOCH, -1]


# Streams


def test_names_are_unique_among_the_living() -> None:
    state = make_state()
    state.apply(state.create_stream(Stream(name="a", replica_nums=1), stream_id=1, replicas=(0,)))
    found = state.stream_named("a")
    assert found is not None
    assert found.stream_id == 1
    state.apply(state.delete_stream(1, 99))
    assert state.stream_named("a") is None
    state.apply(state.create_stream(Stream(name="a", replica_nums=1), stream_id=2, replicas=(0,)))
    found = state.stream_named("a")
    assert found is not None
    assert found.stream_id == 2


def test_delete_leaves_a_tombstone_first() -> None:
    state = two_ranges()
    operations = state.delete_stream(1, 99)
    assert isinstance(operations[0], Put)
    assert all(isinstance(operation, Remove) for operation in operations[1:])
    state.apply(operations)
    assert state.delete_stream(1, 100) == [], "a second time it is done"
    with pytest.raises(NotFoundError):
        state.delete_stream(2, 100)
    assert state.ranges_of_node(0) == []
    assert state.expired_tombstones(99) == []
    state.apply(state.expired_tombstones(100))
    with pytest.raises(NotFoundError):
        state.delete_stream(1, 101)


def test_recovery_removes_what_an_interrupted_delete_left() -> None:
    state = PlacementState(nodes=Nodes(timeout_ms=100))
    left = RangeRecord(stream_id=1, range_index=3, start=0, replicas=(0,))
    leavings = state.recover([StreamRecord(stream_id=1, deleted_ms=7), left], now_ms=0)
    assert leavings == [Remove(left)]
    assert state.ranges_of_node(0) == []


def test_update_is_incremental() -> None:
    state = make_state(StreamRecord(stream_id=1, retention_period_ms=10, durability=1))
    state.apply(state.update_stream(Stream(stream_id=1, replica_nums=2, retention_period_ms=-1)))
    assert state.stream(1) == StreamRecord(
        stream_id=1, replica_nums=2, retention_period_ms=10, durability=1
    )
    state.apply(state.update_stream(Stream(stream_id=1, retention_period_ms=0, durability=0)))
    assert (state.stream(1).retention_period_ms, state.stream(1).durability) == (0, 0)
    with pytest.raises(NotFoundError):
        state.update_stream(Stream(stream_id=2))


@pytest.mark.parametrize(
    "wanted",
    [
        Stream(replica_nums=0),
        Stream(replica_nums=-1),
        Stream(replica_nums=4),
        Stream(replica_nums=1, name="x" * 256),
        Stream(replica_nums=1, durability=2),
    ],
)
def test_invalid_streams(wanted: Stream) -> None:
    with pytest.raises(InvalidArgumentError):
        make_state().check_new_stream(wanted)


def test_ranges_by_node_follow_every_change() -> None:
    state = two_ranges()
    assert [(r.stream_id, r.range_index) for r in state.ranges_of_node(0)] == [(1, 0), (1, 1)]
    assert state.open_ranges(0) == 1
    state.apply(state.succeed(state.last_range(1), 50, (7,)))
    assert [r.range_index for r in state.ranges_of_node(7)] == [2]
    assert (state.open_ranges(0), state.open_ranges(7)) == (0, 1)
    with pytest.raises(RangeNotFoundError):
        state.range(1, 9)


# Seal rule


@pytest.mark.parametrize(
    ("ends", "replicas", "quorum", "expected"),
    [
        ([1, 2, 3], 3, 1, 3),
        ([1, 2, 3], 3, 2, 2),
        ([1, 2, 3], 3, 3, 1),
        ([1, 3], 3, 1, None),
        ([1, 3], 3, 2, 3),
        ([1, 3], 3, 3, 1),
        ([], 1, 1, None),
        ([7], 1, 1, 7),
    ],
)
def test_sealed_end(ends: list[int], replicas: int, quorum: int, expected: int | None) -> None:
    assert sealed_end(ends, replicas=replicas, quorum=quorum) == expected


@pytest.mark.parametrize(
    ("ends", "replicas", "quorum", "acknowledged", "expected"),
    [
        ([5], 2, 2, 3, 3),  # the primary alone: what was in flight is sent again
        ([5, 3], 2, 2, 3, 3),
        ([5, 5], 2, 2, 3, 5),  # both have it: nobody has to send it again
        ([5], 3, 2, 4, None),  # two of three have to answer, whoever they are
        ([5, 2], 3, 2, 4, 4),  # the third one had it too
        ([5, 5, 2], 3, 2, 2, 5),
        ([0, 0, 0], 3, 2, 0, 0),
    ],
)
def test_a_primary_that_knows_what_it_acknowledged_ends_the_range_there(
    ends: list[int], replicas: int, quorum: int, acknowledged: int, expected: int | None
) -> None:
    found = sealed_end(ends, replicas=replicas, quorum=quorum, acknowledged=acknowledged)
    assert found == expected


# Ids


def test_ids_are_never_used_again() -> None:
    counter = Counter("stream", 3)
    assert counter.exhausted()
    with pytest.raises(CorruptionError):
        counter.take()
    state = PlacementState(nodes=Nodes(timeout_ms=100), stream_ids=counter)
    state.apply(counter.reserve())
    assert [counter.take() for _ in range(2)] == [0, 1]
    restarted = make_state(CounterRecord(name="stream", bound=3))
    assert restarted.stream_ids.exhausted(), "2 may have been given out"
    restarted.stream_ids.block = 3
    restarted.apply(restarted.stream_ids.reserve())
    assert restarted.stream_ids.take() == 3


# Nodes


def test_liveness() -> None:
    nodes = Nodes(timeout_ms=100)
    nodes.records[1] = NodeRecord(node_id=1, address="a:1")
    assert nodes.alive() == [], "unknown until the first heartbeat"
    nodes.on_heartbeat(1, 1000)
    assert nodes.on_tick(1100) == []
    assert nodes.on_tick(1101) == [1]
    assert nodes.alive() == []
    nodes.on_heartbeat(1, 1200)
    assert nodes.alive() == [1]
    nodes.on_unreachable(1)
    assert nodes.alive() == []


def test_registration_is_written_only_when_it_changes() -> None:
    nodes = Nodes(timeout_ms=100)
    (put,) = nodes.register(1, "a:1", "store-1")
    assert put == Put(NodeRecord(node_id=1, address="a:1", store_id="store-1"))
    nodes.records[1] = NodeRecord(node_id=1, address="a:1", store_id="store-1")
    assert nodes.register(1, "a:1", "store-1") == []
    assert len(nodes.register(1, "a:2", "store-1")) == 1
    with pytest.raises(AlreadyExistsError):
        nodes.register(1, "a:1", "store-2")


def test_a_new_node_takes_over_the_address() -> None:
    nodes = Nodes(timeout_ms=100)
    nodes.records[1] = NodeRecord(node_id=1, address="a:1", store_id="old")
    forgotten, taken = nodes.register(2, "a:1", "new")
    assert forgotten == Put(NodeRecord(node_id=1, address="", store_id="old", replaced=True))
    assert taken == Put(NodeRecord(node_id=2, address="a:1", store_id="new"))


def living(*node_ids: int, free_bytes_min: int = 0) -> Nodes:
    nodes = Nodes(timeout_ms=100, disk_free_bytes_min=free_bytes_min)
    for node_id in node_ids:
        nodes.records[node_id] = NodeRecord(node_id=node_id, address=f"n:{node_id}")
        nodes.on_heartbeat(node_id, 0)
    return nodes


def draw_last(limit: int) -> int:
    return limit - 1


def test_choice_prefers_healthy_nodes() -> None:
    nodes = living(1, 2, 3, free_bytes_min=100)
    nodes.on_metrics(3, ReportMetricsRequest(disk_free_space=50))
    chosen = nodes.choose(2, avoid=[2], load=lambda _: (0, 0), below=draw_last)
    assert chosen[0] == 1
    assert len(set(chosen)) == 2
    everybody = nodes.choose(3, avoid=[2], load=lambda _: (0, 0), below=draw_last)
    assert set(everybody) == {1, 2, 3}
    with pytest.raises(NotEnoughNodesError):
        nodes.choose(4, load=lambda _: (0, 0), below=draw_last)


def test_a_single_node_is_taken_whatever_its_disk() -> None:
    nodes = living(1, free_bytes_min=100)
    nodes.on_metrics(1, ReportMetricsRequest(disk_free_space=0))
    assert nodes.choose(1, avoid=[1], load=lambda _: (0, 0), below=draw_last) == (1,)


def test_choice_takes_the_better_of_two() -> None:
    nodes = living(1, 2)
    draws = iter([0, 1])
    nodes.on_metrics(1, ReportMetricsRequest(network_append_rate=10_000))
    nodes.on_metrics(2, ReportMetricsRequest(network_append_rate=10))
    chosen = nodes.choose(1, load=lambda _: (0, 0), below=lambda _: next(draws))
    assert chosen == (2,)
    draws = iter([0, 1])
    nodes = living(1, 2)
    chosen = nodes.choose(1, load=lambda n: (5 if n == 2 else 9, 0), below=lambda _: next(draws))
    assert chosen == (2,), "without metrics the fewest open ranges decide"


def test_unreported_load_is_neutral() -> None:
    nodes = living(1, 2, 3)
    nodes.on_metrics(1, ReportMetricsRequest(network_append_rate=25_600))
    nodes.on_metrics(2, ReportMetricsRequest(network_append_rate=2_560))
    assert nodes.score(1) < nodes.score(3) < nodes.score(2)


def test_load_score_signs() -> None:
    idle = load_score(ReportMetricsRequest())
    assert load_score(ReportMetricsRequest(disk_free_space=500 << 30)) > idle
    loads = (
        ReportMetricsRequest(disk_in_rate=10 << 30),
        ReportMetricsRequest(memory_used=10 << 30),
        ReportMetricsRequest(network_failed_append_rate=1000),
        ReportMetricsRequest(range_active_cnt=1000),
        ReportMetricsRequest(network_append_avg_latency=1000),
    )
    assert all(load_score(load) < idle for load in loads)
