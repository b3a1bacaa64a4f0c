"""Rules of a placement manager by the names of the reference.

`defect N` are faults of the original implementation, `F N` failure scenarios, `I N` invariants.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.errors import (
    AlreadyExistsError,
    CorruptionError,
    FencedError,
    HeadraceError,
    InvalidArgumentError,
    NotEnoughNodesError,
    NotFoundError,
    UnavailableError,
)
from headrace.placement.metadata.records import NodeRecord, Put, RangeRecord, StreamRecord
from headrace.placement.nodes import Nodes
from headrace.placement.state import PlacementState, Seal, Writable
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.messages import ReportMetricsRequest, Stream
from headrace.wire.sbp.multipart import HEADER_BYTES, encode_answer
from headrace.wire.sbp.opcodes import Code
from tests.unit.placement.test_sealing import make, settled
from tests.unit.placement.world import SETTINGS, World, simulate

# Defects of the original


def test_defect_11_update_never_creates() -> None:
    async def body(world: World) -> None:
        wanted = m.Stream(stream_id=5, replica_nums=2)
        answer = await world.ask(Code.UPDATE_STREAMS, m.UpdateStreamsRequest(streams=(wanted,)))
        (result,) = answer.update_responses
        assert result.status.code == 1404
        assert (await world.leader()).state.streams() == []

    simulate(body, nodes=1)


def test_defect_12_heartbeats_come_three_times_before_a_node_counts_as_lost() -> None:
    interval_ms = DataNodeSettings().heartbeat_interval_ms
    settings = PlacementSettings()
    assert 3 * interval_ms <= settings.node_timeout_ms
    assert settings.settle_ms >= interval_ms, "a new leader hears everybody once before it judges"
    assert settings.replace_after_ms > settings.node_timeout_ms


def test_defect_13_what_never_ends_leaves_nothing_behind() -> None:
    """A data node that never answers: the request ends, and so does all that it began."""

    async def body(world: World) -> None:
        record = await make(world, 3, 1, 1, 1)
        for node in world.holders(record):
            node.deaf.update(Code)
        with pytest.raises(HeadraceError):
            await world.seal(record.stream_id, 0)
        with pytest.raises(HeadraceError):
            await world.create("", 3)
        leader = await world.leader()
        for node in world.nodes:
            node.deaf.clear()
        await settled(world)
        await world.until(lambda: len(leader._changing) == 0)
        assert len(leader.changes.term.mutex) == 0

    simulate(body, nodes=3)


def test_defect_18_what_is_over_is_really_removed() -> None:
    """The original's filter for stale entries matched nothing, ever."""

    async def body(world: World) -> None:
        record = await make(world, 1, 1)
        await world.ask(
            Code.DELETE_STREAMS,
            m.DeleteStreamsRequest(streams=(m.Stream(stream_id=record.stream_id),)),
        )
        before = [r for r in world.metadata.records() if isinstance(r, StreamRecord)]
        assert [r.stream_id for r in before] == [record.stream_id], "a tombstone"
        await world.clock.sleep(20)
        records = world.metadata.records()
        assert not any(isinstance(r, StreamRecord | RangeRecord) for r in records)

    settings = PlacementSettings(node_timeout_ms=3_000, tick_interval_ms=200, tombstone_ms=10_000)
    simulate(body, managers=1, nodes=1, settings=settings)


# Seal and create (the original's own expectations, in our terms)


@pytest.mark.parametrize(
    ("index", "epoch", "expected"),
    [
        (0, 3, Writable),  # sealed before: what is writable now
        (1, 3, Seal),
        (1, 4, Seal),  # a new owner
        (0, 4, Seal),  # never the range of an older owner
        (2, 3, InvalidArgumentError),  # an index with a gap
        (-1, 3, InvalidArgumentError),
        (1, 2, FencedError),  # a stale epoch
        (0, 2, FencedError),
        (1, -1, FencedError),  # nobody at all
    ],
)
def test_seal_expectations(index: int, epoch: int, expected: type) -> None:
    state = PlacementState(nodes=Nodes(timeout_ms=1))
    state.recover(
        [
            StreamRecord(stream_id=1),
            RangeRecord(stream_id=1, range_index=0, start=0, end=42, replicas=(0,), writer_epoch=3),
            RangeRecord(stream_id=1, range_index=1, start=42, replicas=(0,), writer_epoch=3),
        ],
        0,
    )
    if issubclass(expected, Exception):
        with pytest.raises(expected):
            state.seal(1, index, epoch)
    else:
        assert isinstance(state.seal(1, index, epoch), expected)


@pytest.mark.parametrize(
    ("end", "index", "fails"),
    [
        (50, 1, False),
        (42, 1, False),  # nothing was written: the range is dropped
        (41, 1, True),  # an end below the start
        (50, 0, True),  # sealed already, with another end
        (42, 0, True),
    ],
)
def test_successor_expectations(end: int, index: int, fails: bool) -> None:
    """Create before seal, twice, with a gap or another start: none of it can be said at all; the
    successor is made by the seal, at its end."""
    state = PlacementState(nodes=Nodes(timeout_ms=1))
    state.recover(
        [
            StreamRecord(stream_id=1),
            RangeRecord(stream_id=1, range_index=0, start=0, end=42, replicas=(0,)),
            RangeRecord(stream_id=1, range_index=1, start=42, replicas=(0,)),
        ],
        0,
    )
    sealed = state.range(1, index)
    if fails:
        with pytest.raises(CorruptionError):
            state.succeed(sealed, end, (0,))
        return
    state.apply(state.succeed(sealed, end, (0,)))
    assert state.last_range(1).start == end
    assert state.last_range(1).range_index == 2


# LIST_RANGES


def test_long_lists_take_several_frames_of_a_mebibyte() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 1, 1, 1)
        leader = await world.leader()
        ranges = [
            RangeRecord(
                stream_id=record.stream_id, range_index=i, start=i, end=i + 1, replicas=(0, 1, 2)
            )
            for i in range(12_000)
        ]
        leader.state._ranges[record.stream_id] = [
            *ranges,
            RangeRecord(
                stream_id=record.stream_id, range_index=12_000, start=12_000, replicas=(0, 1, 2)
            ),
        ]
        criteria = m.RangeCriteria(stream_id=record.stream_id)
        answer = await world.call(
            leader, Code.LIST_RANGES, m.ListRangesRequest(range_criteria=(criteria,))
        )
        frames = [header for header, _ in encode_answer(answer, ())]
        assert len(frames) > 1
        assert max(map(len, frames)) <= HEADER_BYTES
        assert len(answer.list_responses[0].ranges) == 12_001
        leader.state._ranges[record.stream_id] = [record]

    simulate(body, nodes=3)


@pytest.mark.parametrize(("stream_id", "node_id", "found"), [(0, -1, 2), (-1, 0, 2), (0, 0, 2)])
def test_list_criteria(stream_id: int, node_id: int, found: int) -> None:
    async def body(world: World) -> None:
        record = await make(world, 1, 4)
        await world.seal(record.stream_id, 0)
        assert record.stream_id == 0
        assert len(await world.list(stream_id, node_id)) == found
        assert await world.list() == (), "neither: an empty list"
        with pytest.raises(NotFoundError):
            await world.list(99)
        assert await world.list(node_id=99) == ()

    simulate(body, nodes=1)


# Trim, retention and deletion over replicas


async def trim(world: World, stream_id: int, offset: int) -> m.TrimStreamResult:
    request = m.TrimStreamsRequest(trimmed_streams=(m.TrimmedStream(stream_id, offset),))
    answer = await world.ask(Code.TRIM_STREAMS, request)
    (result,) = answer.trim_responses
    raise_for_status(result.status)
    assert isinstance(result, m.TrimStreamResult)
    return result


def test_a_trim_of_an_open_range_asks_whoever_knows() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 9, 9, 5)
        holders = world.holders(record)
        await trim(world, record.stream_id, 2)
        assert all(n.trimmed[record.stream_id] == 2 for n in holders)
        with pytest.raises(InvalidArgumentError):
            await trim(world, record.stream_id, 10)  # the primary knows: there is no such offset
        holders[0].deaf.add(Code.DESCRIBE_RANGES)
        await trim(world, record.stream_id, 4)  # a secondary knows enough
        with pytest.raises(UnavailableError):
            await trim(world, record.stream_id, 10)  # perhaps, perhaps not
        with pytest.raises(InvalidArgumentError):
            await trim(world, record.stream_id, 3)  # I13
        assert holders[0].trimmed[record.stream_id] == 4

    simulate(body, nodes=3)


def test_a_trim_reaches_all_replicas_of_all_ranges_it_touches() -> None:
    async def body(world: World) -> None:
        record = await make(world, 2, 4, 4)
        await world.seal(record.stream_id, 0)
        await settled(world)
        result = await trim(world, record.stream_id, 4)
        assert result.range is not None
        assert result.range.range_index == 1
        assert [r.range_index for r in await world.list(record.stream_id)] == [1]
        for node in world.holders(record):
            assert node.trimmed[record.stream_id] == 4

    simulate(body, nodes=4)


def test_deletion_reaches_a_node_that_was_away() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 1, 1, 1)
        away = world.holders(record)[2]
        away.reachable = False
        await world.ask(
            Code.DELETE_STREAMS,
            m.DeleteStreamsRequest(streams=(m.Stream(stream_id=record.stream_id),)),
        )
        assert away.deleted == set()
        await world.clock.sleep(SETTINGS.replace_after_ms / 1000 + 1)
        away.reachable = True
        await world.until(lambda: away.deleted == {record.stream_id})
        assert await world.list(node_id=away.node_id) == (), "or it finds out by itself"

    simulate(body, nodes=3)


def test_a_stream_that_could_not_be_opened_is_deleted_where_it_was() -> None:
    async def body(world: World) -> None:
        for node in world.nodes[:2]:
            node.deaf.add(Code.SYNC_RANGES)
        with pytest.raises(HeadraceError):
            await world.create("", 3)
        left = world.nodes[2]
        await world.until(lambda: bool(left.deleted))
        assert left.ranges == {}

    simulate(body, nodes=3)


def test_retention_asks_any_replica() -> None:
    async def body(world: World) -> None:
        created = await world.create("", 3, retention_period_ms=1000)
        assert created.stream is not None
        stream_id = created.stream.stream_id
        leader = await world.leader()
        record = leader.state.last_range(stream_id)
        for node in world.holders(record):
            node.write(stream_id, 0, 5)
        await world.seal(stream_id, 0)
        await settled(world)
        world.holders(record)[0].deaf.add(Code.DESCRIBE_RANGES)
        await leader.enforce_retention()
        assert leader.state.ranges(stream_id)[0].start == 5

    simulate(body, nodes=3)


# Placement by load


def make_nodes(count: int, disk_free_bytes_min: int = 0) -> Nodes:
    nodes = Nodes(timeout_ms=100, disk_free_bytes_min=disk_free_bytes_min)
    for n in range(count):
        nodes.records[n] = NodeRecord(node_id=n, address=f"n{n}", store_id="s")
        nodes.on_heartbeat(n, 0, address=f"n{n}", store_id="s")
    return nodes


def draw(nodes: Nodes, count: int, tries: int, **more: object) -> list[tuple[int, ...]]:
    """Many choices with pseudo-random draws that repeat."""
    value = 12345

    def below(limit: int) -> int:
        nonlocal value
        value = (value * 1103515245 + 12345) % (1 << 31)
        return (value >> 16) % limit

    fields = {"load": lambda _: (0, 0), **more}
    return [nodes.choose(count, below=below, **fields) for _ in range(tries)]  # type: ignore[arg-type]


def test_replicas_are_distinct_and_live() -> None:
    nodes = make_nodes(5)
    nodes.on_unreachable(3)
    for chosen in draw(nodes, 3, 100):
        assert len(set(chosen)) == 3, "I14"
        assert 3 not in chosen


def test_loaded_nodes_get_fewer_ranges() -> None:
    nodes = make_nodes(4)
    nodes.on_metrics(0, ReportMetricsRequest(network_append_rate=30_000))
    for n in (1, 2, 3):
        nodes.on_metrics(n, ReportMetricsRequest(network_append_rate=100))
    chosen = [first for (first,) in draw(nodes, 1, 400)]
    assert chosen.count(0) < 50, "only when it is drawn twice"
    assert min(chosen.count(n) for n in (1, 2, 3)) > 70


def test_primaries_are_spread() -> None:
    led = dict.fromkeys(range(4), 0)
    nodes = make_nodes(4)
    led[0] = 100
    for _ in range(100):
        (chosen,) = draw(nodes, 3, 1, load=lambda n: (0, led[n]))
        assert chosen[0] != 0, "it leads more than its share already"
        led[chosen[0]] += 1
    counts = dict.fromkeys(range(4), 0)
    for chosen in draw(nodes, 3, 300, load=lambda n: (0, counts[n])):
        counts[chosen[0]] += 1
    assert max(counts.values()) - min(counts.values()) < 60


def test_a_primary_that_somebody_gave_up_on_leads_only_if_it_must() -> None:
    for chosen in draw(make_nodes(3), 3, 30, not_first=1):
        assert chosen[0] != 1
        assert 1 in chosen
    assert draw(make_nodes(1), 1, 1, not_first=0) == [(0,)]


def test_full_nodes_are_left_out_while_others_can() -> None:
    nodes = make_nodes(4, disk_free_bytes_min=1000)
    nodes.on_metrics(0, ReportMetricsRequest(disk_free_space=10))
    for chosen in draw(nodes, 3, 50):
        assert 0 not in chosen
    for chosen in draw(nodes, 4, 10):
        assert chosen[0] != 0, "and never lead while another can"
    nodes.on_metrics(1, ReportMetricsRequest(disk_free_space=10))
    for chosen in draw(nodes, 3, 50, at_least=2):
        assert sorted(chosen) == [2, 3], "two are enough to go on"
    for n in (2, 3):
        nodes.on_metrics(n, ReportMetricsRequest(disk_free_space=10))
    for chosen in draw(nodes, 3, 10, at_least=2):
        assert len(chosen) == 3, "nobody is better off than another"


@pytest.mark.parametrize(
    ("free", "total", "full"),
    [
        (51, 1000, False),
        (49, 1000, True),  # below five hundredths
        (51, -1, False),  # a node that does not tell: only the bytes count
        (9, -1, True),
        (9, 100, True),
    ],
)
def test_what_counts_as_full(free: int, total: int, full: bool) -> None:
    nodes = make_nodes(2, disk_free_bytes_min=10)
    nodes.disk_free_percent_min = PlacementSettings().disk_free_percent_min
    nodes.on_metrics(0, ReportMetricsRequest(disk_free_space=free, disk_total_space=total))
    assert nodes.placeable() == ([1] if full else [0, 1])


def test_streams_may_ask_for_up_to_the_limit() -> None:
    state = PlacementState(nodes=make_nodes(1), replicas_max=PlacementSettings().replicas_max)
    for wanted in (1, 2, 3):
        state.check_new_stream(Stream(replica_nums=wanted))
    for wanted in (-1, 0, 4):
        with pytest.raises(InvalidArgumentError):
            state.check_new_stream(Stream(replica_nums=wanted))


def test_embedded_rounds_look_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node, one copy: a mend round has nothing to find, however many ranges there are."""

    async def body(world: World) -> None:
        for _ in range(5):
            record = await make(world, 1, 1)
            await world.seal(record.stream_id, 0)
        leader = await world.leader()
        (node,) = world.nodes
        node.calls.clear()
        looked: list[object] = []
        monkeypatch.setattr(PlacementState, "find", lambda *key: looked.append(key))
        for _ in range(3):
            await leader._healer.round()
        assert (looked, node.calls) == ([], [])
        monkeypatch.undo()

    simulate(body, nodes=1)


# Nodes that hang


def test_a_node_that_hangs_delays_an_opening_only_for_a_moment() -> None:
    async def body(world: World) -> None:
        hanging = world.nodes[0]
        hanging.deaf.add(Code.SYNC_RANGES)
        for _ in range(12):
            started = world.clock.monotonic()
            try:
                created = await world.create("", 3)
            except HeadraceError:
                continue  # it was to be the primary
            assert world.clock.monotonic() - started < 0.5
            assert created.range is not None
        leader = await world.leader()
        hanging.deaf.clear()
        await world.until(
            lambda: all(
                (r.stream_id, 0) in world.nodes[n].ranges
                for s in leader.state.streams()
                for r in leader.state.ranges(s.stream_id)
                for n in r.replicas
            )
        )

    simulate(body, nodes=3)


def test_an_opening_without_its_primary_is_none() -> None:
    """However many secondaries have it."""

    async def body(world: World) -> None:
        refused = 0
        for node in world.nodes:
            node.deaf.add(Code.SYNC_RANGES)
            for _ in range(3):
                await world.beat()
                with suppress(HeadraceError):
                    await world.create("", 3)
                    continue
                refused += 1
            node.deaf.clear()
        leader = await world.leader()
        assert refused > 0
        assert len(leader.state.streams()) == 9 - refused, "nobody could find the others again"
        await world.until(lambda: len(leader._changing) == 0)

    simulate(body, nodes=3)


def test_a_node_that_hangs_holds_up_no_notice_to_others() -> None:
    async def body(world: World) -> None:
        records = [await make(world, 2, 1, 1) for _ in range(20)]
        hanging, other = world.nodes
        other.deaf.add(Code.DELETE_STREAMS)
        hanging.deaf.add(Code.DELETE_STREAMS)
        gone = tuple(m.Stream(stream_id=r.stream_id) for r in records)
        await world.ask(Code.DELETE_STREAMS, m.DeleteStreamsRequest(streams=gone))
        other.deaf.clear()
        started = world.clock.monotonic()
        await world.until(lambda: len(other.deleted) == 20)
        assert world.clock.monotonic() - started < 4
        hanging.deaf.clear()
        await world.until(lambda: len(hanging.deleted) == 20)

    simulate(body, nodes=2)


# Hosts


def on_hosts(*machines: str, address: str = "10.0.0.{n}:1", host_ids: Sequence[str] = ()) -> Nodes:
    nodes = Nodes(1_000)
    for n, machine in enumerate(machines):
        nodes.records[n] = NodeRecord(
            node_id=n,
            address=address.format(n=n),
            host=machine,
            host_id=host_ids[n] if host_ids else "",
        )
        nodes.on_heartbeat(n, 0, address=nodes.records[n].address)
    return nodes


def pick(nodes: Nodes, count: int, **fields: Any) -> tuple[int, ...]:
    return nodes.choose(count, load=lambda _: (0, 0), below=lambda _: 0, **fields)


def test_replicas_are_on_different_machines() -> None:
    nodes = on_hosts("a", "a", "b", "c")
    for _ in range(5):
        assert {nodes.host(n) for n in pick(nodes, 3)} == {"a", "b", "c"}
    with pytest.raises(NotEnoughNodesError) as raised:
        pick(nodes, 4)
    assert raised.value.data["machines"] == 3
    assert set(pick(nodes, 3, at_least=2)) & {2, 3} == {2, 3}
    assert nodes.hosts() == 3


def test_a_copy_goes_to_another_machine_than_those_that_live() -> None:
    nodes = on_hosts("a", "a", "b", "c")
    assert pick(nodes, 1, at_least=0, exclude=(0, 2), beside=(0, 2)) == (3,)
    assert pick(nodes, 1, at_least=0, exclude=(0, 2, 3), beside=(0, 2, 3)) == ()
    assert pick(nodes, 1, at_least=0, exclude=(0, 2, 3), beside=(2, 3)) == (1,), "0 is dead"


def test_where_all_are_on_one_machine_each_address_counts() -> None:
    alone = on_hosts("a", "a", "a")
    assert alone.on_one_machine()
    assert set(pick(alone, 3)) == {0, 1, 2}
    assert alone.host(1) == "a/10.0.0.1:1", "and it shows"
    local = on_hosts("a", "a", "a", "b", address="127.0.0.1:{n}")
    assert (local.hosts(), local.host(2)) == (4, "127.0.0.1:2")
    unsaid = on_hosts("", "", "", address="10.0.0.5:{n}")
    assert unsaid.on_one_machine(), "one address is one machine"


@pytest.mark.parametrize("address", ["10.0.0.{n}:1", "127.0.0.1:{n}"])
def test_nodes_of_one_host_id_are_one_host(address: str) -> None:
    """The workers of a machine: on loopback, and where there is no other machine, too."""
    workers = on_hosts("a", "a", "a", address=address, host_ids=("h", "h", "h"))
    assert workers.hosts() == 1
    assert len(pick(workers, 3, at_least=1)) == 1
    with pytest.raises(NotEnoughNodesError):
        pick(workers, 2)
    two = on_hosts("a", "a", "a", "a", address=address, host_ids=("h", "h", "i", "i"))
    assert two.hosts() == 2
    for _ in range(5):
        one, other = pick(two, 2)
        assert {one // 2, other // 2} == {0, 1}


def test_a_host_id_and_a_machine_both_bind() -> None:
    """Whichever of the two says that nodes are on one host is believed."""
    nodes = on_hosts("a", "a", "b", "c", "d", host_ids=("h", "", "h", "", ""))
    assert len({nodes.host(n) for n in (0, 1, 2)}) == 1
    assert nodes.hosts() == 3
    assert nodes.sharing_host((2, 3, 1, 0)) == (1, 0)
    assert nodes.hosts(beside=(2, 4)) == 1


def test_the_preferred_node_leads_if_it_may_get_ranges() -> None:
    nodes = on_hosts("a", "b", "c", "d")
    nodes.disk_free_bytes_min = 100
    busy: dict[str, Any] = {"load": lambda n: (9, 9) if n == 2 else (0, 0), "below": lambda _: 0}
    assert nodes.choose(2, **busy)[0] != 2, "as ever: who leads least"
    assert nodes.choose(2, preferred=2, **busy)[0] == 2
    assert nodes.choose(2, preferred=2, avoid=(2,), not_first=2, **busy)[0] == 2
    assert len(nodes.choose(3, preferred=2, **busy)) == 3
    assert nodes.choose(1, preferred=2, **busy) == (2,)
    as_ever = nodes.choose(2, **busy)
    assert nodes.choose(2, preferred=7, **busy) == as_ever, "nobody knows it"
    nodes.on_metrics(2, ReportMetricsRequest(disk_free_space=10))
    assert 2 not in nodes.choose(2, preferred=2, **busy), "short of disk"
    nodes.liveness.metrics.clear()
    nodes.on_goaway(2, object())
    assert nodes.choose(2, preferred=2, **busy) == as_ever, "it leaves"
    nodes.on_unreachable(3)
    assert 3 not in nodes.choose(2, preferred=3, **busy)


def test_replicas_of_a_preferred_node_are_on_other_hosts() -> None:
    nodes = on_hosts("a", "a", "b", "b", host_ids=("h", "h", "i", "i"))
    assert pick(nodes, 2, preferred=1)[0] == 1
    assert pick(nodes, 2, preferred=1)[1] in (2, 3)


def test_a_stream_opens_and_goes_on_at_the_node_its_owner_prefers() -> None:
    async def body(world: World) -> None:
        leader = await world.leader()
        for number in range(8):
            home = number % 4
            created = await world.create(f"p/{number}/0/0", 2, preferred_node=home)
            assert created.range is not None
            assert primary_of(created.range) == home
            stream_id = created.range.stream_id
            other = (home + 1) % 4
            moved = await world.seal(stream_id, 0, 1, preferred=other)
            assert primary_of(moved) == other
            assert primary_of(await world.seal(stream_id, 0, 1, preferred=home)) == other, "again"
            assert primary_of(await world.seal(stream_id, -1, 2, preferred=home)) == other, "open"
        dead = world.nodes[3]
        dead.reachable = False
        await world.until(lambda: dead.node_id not in leader.state.nodes.alive())
        moved = await world.seal(stream_id, moved.range_index, 2, preferred=3)
        assert primary_of(moved) != 3

    simulate(body, nodes=4)


def primary_of(range_: m.Range) -> int:
    (primary,) = [r.data_node for r in range_.replica_nodes if r.is_primary]
    assert primary is not None
    return primary.node_id


def test_a_new_node_at_an_address_ends_the_old_one_at_once() -> None:
    nodes = on_hosts("a", "b", "c")
    operations = nodes.register(7, "10.0.0.1:1", "new", "b")
    for operation in operations:
        assert isinstance(operation, Put)
        assert isinstance(operation.record, NodeRecord)
        nodes.records[operation.record.node_id] = operation.record
    nodes.on_heartbeat(7, 1, address="10.0.0.1:1", store_id="new")
    assert nodes.alive() == [0, 2, 7]
    assert (nodes.is_dead(1, 1), nodes.condition(1, 1)) == (True, "replaced")
    with pytest.raises(AlreadyExistsError, match="later data node"):
        nodes.register(1, "10.0.0.1:1", "")
    assert len(nodes.register(1, "10.0.0.9:1", "", "b")) == 1, "it was moved: it lives"
