"""Lost, dead, draining and returning nodes: which ranges move, and how copies are made."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headrace.config.placement import PlacementSettings
from headrace.placement import healing
from headrace.placement.metadata.records import (
    NodeRecord,
    Put,
    RangeRecord,
    Record,
    StreamRecord,
)
from headrace.placement.nodes import Nodes
from headrace.placement.state import PlacementState
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.messages import ReportMetricsRequest, ack_quorum
from headrace.wire.sbp.opcodes import Code
from tests.unit.placement.test_sealing import make, settled
from tests.unit.placement.world import SETTINGS, World, simulate

LOST_MS = 100
DEAD_MS = 1000
NOW_MS = 10_000


def make_state(
    *records: Record, nodes: int, lost: tuple[int, ...] = (), dead: tuple[int, ...] = (),
    draining: tuple[int, ...] = (), full: tuple[int, ...] = (), wanted: int = 3, hosts: str = "",
) -> PlacementState:  # fmt: skip
    """Nodes 0.. in their conditions; stream 1 wants `wanted` replicas. `hosts`: a letter per node,
    else each is a host of its own."""
    state = PlacementState(
        nodes=Nodes(timeout_ms=LOST_MS, replace_after_ms=DEAD_MS, disk_free_bytes_min=1)
    )
    registered = [
        NodeRecord(node_id=n, address=f"n{n}", store_id=f"s{n}", host_id=hosts[n : n + 1])
        for n in range(nodes)
    ]
    state.recover([StreamRecord(stream_id=1, replica_nums=wanted), *registered, *records], 0)
    for n in range(nodes):
        silent_ms = DEAD_MS + 1 if n in dead else LOST_MS + 1 if n in lost else 0
        state.nodes.on_heartbeat(n, NOW_MS - silent_ms, address=f"n{n}", store_id=f"s{n}")
        if n in draining:
            state.nodes.on_goaway(n, object())
        if n in full:
            state.nodes.on_metrics(n, ReportMetricsRequest(disk_free_space=0))
    state.nodes.on_tick(NOW_MS)
    return state


def open_range(*replicas: int, wanted: int = 3) -> RangeRecord:
    return RangeRecord(
        stream_id=1, range_index=1, start=5, replicas=replicas,
        ack_quorum=ack_quorum(len(replicas)), replica_nums=wanted,
    )  # fmt: skip


def sealed_range(*replicas: int, **more: object) -> RangeRecord:
    fields = {"replica_nums": 3, "end": 5, **more}
    return RangeRecord(stream_id=1, range_index=0, start=0, replicas=replicas, **fields)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("replicas", "conditions", "moves"),
    [
        ((0, 1, 2), {}, False),
        ((0, 1, 2), {"lost": (0,)}, True),  # without a primary nothing is appended
        ((0, 1, 2), {"lost": (1,)}, False),  # two of three go on
        ((0, 1, 2), {"lost": (0, 1)}, False),  # too few answers to know the end
        ((0, 1, 2), {"dead": (1,)}, True),  # 0, 2, 3 are enough for three
        ((0, 1, 2), {"dead": (1,), "lost": (3,)}, False),  # no better off afterwards
        ((0, 1, 2), {"dead": (1,), "full": (3,)}, False),
        ((0, 1, 2), {"dead": (0,), "lost": (3,)}, True),  # the primary: two are better than none
        ((0, 1, 2), {"draining": (0,)}, True),
        ((0, 1, 2), {"draining": (2,)}, True),
        ((0, 1, 2), {"draining": (2,), "lost": (3,)}, False),
        ((0, 1), {}, True),  # opened on two of three, four are there
        ((0, 1), {"lost": (2, 3)}, False),
        ((0, 1), {"draining": (0,), "lost": (2, 3)}, False),  # one node is below the quorum
    ],
)
def test_which_open_ranges_move(
    replicas: tuple[int, ...], conditions: dict[str, tuple[int, ...]], moves: bool
) -> None:
    state = make_state(sealed_range(0), open_range(*replicas), nodes=4, **conditions)  # type: ignore[arg-type]  # by name
    assert [r.range_index for r in healing.to_move(state, NOW_MS)] == [1] * moves


@pytest.mark.parametrize(
    ("conditions", "moves"),
    [({"lost": (0,)}, False), ({"dead": (0,)}, False), ({"draining": (0,)}, True)],
)
def test_a_single_copy_moves_only_with_its_node_there(
    conditions: dict[str, tuple[int, ...]], moves: bool
) -> None:
    """The embedded node that is stopped for a while keeps its open ranges."""
    state = make_state(open_range(0, wanted=1), nodes=2, wanted=1, **conditions)  # type: ignore[arg-type]  # by name
    assert bool(list(healing.to_move(state, NOW_MS))) == moves


def test_the_only_node_that_drains_keeps_what_it_has() -> None:
    state = make_state(open_range(0, wanted=1), nodes=1, wanted=1, draining=(0,))
    assert list(healing.to_move(state, NOW_MS)) == []


@pytest.mark.parametrize(
    ("record", "conditions", "missing"),
    [
        (sealed_range(0, 1, 2), {}, 0),
        (sealed_range(0, 1, 2), {"lost": (2,)}, 0),  # it may come back
        (sealed_range(0, 1, 2), {"dead": (2,)}, 1),
        (sealed_range(0, 1), {}, 1),
        (sealed_range(0, 1, 2, joining=(3,)), {"dead": (2,)}, 0),
        (sealed_range(0, 1, 2, joining=(3,)), {"lost": (2,)}, 0),  # as after a take-over
        (sealed_range(0, 1, 2, joining=(3,)), {}, -1),  # it came back: not needed any more
        (sealed_range(0, 1, 2, joining=(3,)), {"dead": (2, 3)}, 1),
        (sealed_range(0, 1, 2, replica_nums=0), {"dead": (0, 1)}, 2),  # written by an older version
        (sealed_range(0, 1, replica_nums=2), {}, 0),  # UPDATE is for later ranges
    ],
)
def test_which_sealed_ranges_get_copies(
    record: RangeRecord, conditions: dict[str, tuple[int, ...]], missing: int
) -> None:
    state = make_state(record, open_range(0, 1, 2), nodes=4, **conditions)  # type: ignore[arg-type]  # by name
    assert healing.missing(state, record, NOW_MS) == missing
    expected = (
        [0] if missing or any(n in conditions.get("dead", ()) for n in record.joining) else []
    )
    assert [r.range_index for r in healing.to_heal(state, NOW_MS)] == expected


def test_fewer_copies_when_the_stream_needs_fewer_now() -> None:
    record = sealed_range(0, 1)
    state = make_state(record, open_range(0, 1, 2), nodes=4, wanted=2)
    assert healing.missing(state, record, NOW_MS) == 0


def test_a_complete_node_takes_the_place_of_the_dead_one() -> None:
    record = sealed_range(0, 1, 2, joining=(3,), incomplete=(1, 2))
    state = make_state(record, nodes=4, dead=(2,))
    after = healing.with_whole_copy(state, record, 3, NOW_MS)
    assert (after.replicas, after.joining, after.incomplete) == ((0, 1, 3), (), (1,))
    after = healing.with_whole_copy(state, after, 1, NOW_MS)
    assert after.incomplete == ()


@pytest.mark.parametrize(
    ("record", "conditions", "replicas", "joining"),
    [
        (sealed_range(0, 1, joining=(3,)), {}, (0, 1, 3), ()),
        (sealed_range(0, 1, 2, joining=(3,)), {"lost": (2,)}, (0, 1, 2), (3,)),  # wait and see
        (sealed_range(0, 1, 2, joining=(3,)), {}, (0, 1, 2), ()),
        (sealed_range(0, 1, 2, joining=(3, 4)), {"dead": (0, 1)}, (3, 1, 2), (4,)),
    ],
)
def test_a_complete_node_joins(
    record: RangeRecord,
    conditions: dict[str, tuple[int, ...]],
    replicas: tuple[int, ...],
    joining: tuple[int, ...],
) -> None:
    state = make_state(record, nodes=5, **conditions)  # type: ignore[arg-type]  # by name
    after = healing.with_whole_copy(state, record, 3, NOW_MS)
    assert (after.replicas, after.joining) == (replicas, joining)


# Two replicas on one host


@pytest.mark.parametrize(
    ("replicas", "wanted", "hosts", "conditions", "moves"),
    [
        ((0, 1), 2, "aab", {}, True),
        ((0, 1), 2, "aab", {"full": (2,)}, False),  # no better place
        ((0, 1), 2, "aab", {"lost": (2,)}, False),
        ((0, 1, 2), 3, "aabb", {}, False),  # fewer replicas would be worse
        ((0, 1, 2), 3, "aabc", {}, True),
        ((0, 1), 2, "aaa", {}, False),
        ((0, 2), 2, "aab", {}, False),
    ],
)
def test_which_open_ranges_leave_a_shared_host(
    replicas: tuple[int, ...], wanted: int, hosts: str, conditions: dict[str, Any], moves: bool
) -> None:
    record = open_range(*replicas, wanted=wanted)
    state = make_state(record, nodes=len(hosts), hosts=hosts, wanted=wanted, **conditions)
    assert bool(list(healing.to_move(state, NOW_MS))) == moves


@pytest.mark.parametrize(
    ("record", "hosts", "conditions", "missing"),
    [
        (sealed_range(0, 1, 2), "aabc", {}, 1),
        (sealed_range(0, 1, 2), "aaab", {}, 1),  # one of the two: there is no third host
        (sealed_range(0, 1, 2), "aaabc", {}, 2),
        (sealed_range(0, 1, 2, joining=(3,)), "aaabc", {}, 1),
        (sealed_range(0, 1, 2, joining=(3, 4)), "aaabc", {}, 0),  # kept while they are needed
        (sealed_range(0, 1, 2), "aabb", {}, 0),  # on all hosts already
        (sealed_range(0, 1, 2), "aabc", {"full": (3,)}, 0),
        (sealed_range(0, 1, 2), "aabc", {"lost": (1,)}, 0),  # first all are whole again
        (sealed_range(0, 1, 2, incomplete=(1,)), "aabc", {}, 0),
        (sealed_range(0, 1, 2), "aabc", {"dead": (1,)}, 1),  # that one is replaced anyway
    ],
)
def test_which_sealed_ranges_leave_a_shared_host(
    record: RangeRecord, hosts: str, conditions: dict[str, Any], missing: int
) -> None:
    state = make_state(record, open_range(0, 1, 2), nodes=len(hosts), hosts=hosts, **conditions)
    assert healing.missing(state, record, NOW_MS) == missing
    assert bool([r for r in healing.to_heal(state, NOW_MS) if not r.open]) == bool(missing)


@pytest.mark.parametrize(
    ("record", "hosts", "replicas", "joining"),
    [
        (sealed_range(0, 1, 2, joining=(3,)), "aabc", (0, 3, 2), ()),
        (sealed_range(0, 1, 2, joining=(3, 4)), "aaabc", (0, 1, 3), (4,)),
        (sealed_range(0, 1, 2, joining=(3,)), "aabb", (0, 1, 2), ()),  # no better: not needed
        (sealed_range(0, 1, 2, joining=(3,), incomplete=(2,)), "aabc", (0, 1, 2), (3,)),
        (sealed_range(0, 1, joining=(3,)), "aabc", (0, 1, 3), ()),  # first as many as asked for
    ],
)
def test_a_complete_node_takes_the_place_of_one_that_shares_a_host(
    record: RangeRecord, hosts: str, replicas: tuple[int, ...], joining: tuple[int, ...]
) -> None:
    state = make_state(record, nodes=len(hosts), hosts=hosts)
    after = healing.with_whole_copy(state, record, 3, NOW_MS)
    assert (after.replicas, after.joining) == (replicas, joining)


def test_ranges_are_looked_at_again_when_a_node_says_where_it_is() -> None:
    record = sealed_range(0, 1, 2)
    state = make_state(record, open_range(0, 2, 3), nodes=4, hosts="")
    assert list(state.sharing_host()) == []
    known = state.nodes.records
    for operation in [
        *state.nodes.register(0, "n0", "s0", host_id="a"),
        *state.nodes.register(1, "n1", "s1", host_id="a"),
    ]:
        state.apply([operation])
    assert known[1].host_id == "a"
    assert list(state.sharing_host()) == [record]
    state.apply([Put(replace(record, replicas=(0, 3, 2)))])
    assert list(state.sharing_host()) == []


def test_hosts_that_become_known_spread_open_and_sealed_ranges() -> None:
    """Copies are made before one is given up: at no time are there fewer than were asked for."""

    async def body(world: World) -> None:
        record = await make(world, 2, 4, 4)
        await world.seal(record.stream_id, 0)
        await settled(world)
        leader = await world.leader()
        last = leader.state.last_range(record.stream_id)
        together = {record.replicas, last.replicas}
        for node in world.nodes:
            shares = any(node.node_id in replicas for replicas in together)
            node.host_id = "a" if shares else f"b{node.node_id % 2}"
        await world.beat()

        def spread() -> bool:
            ranges = leader.state.ranges(record.stream_id)
            for each in ranges:
                assert len(each.replicas) == 2
            return all(not leader.state.nodes.sharing_host(r.replicas) for r in ranges)

        assert not spread()
        await world.until(spread)
        await world.until(lambda: not list(leader.state.lacking_copies()))
        for each in leader.state.ranges(record.stream_id):
            if not each.open:
                for node in world.holders(each):
                    assert node.ranges[each.stream_id, each.range_index].next == each.end

    simulate(body, nodes=6)


# With placement managers and nodes


def test_f2_a_dead_secondary_is_replaced_in_open_and_sealed_ranges() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 4, 4, 4)
        await world.seal(record.stream_id, 0)
        await settled(world)
        leader = await world.leader()
        second = leader.state.last_range(record.stream_id)
        for node in world.holders(second):
            node.write(second.stream_id, 1, 3)
        dead = world.holders(second)[1]
        in_first = dead.node_id in leader.state.range(record.stream_id, 0).replicas
        dead.reachable = False
        await world.clock.sleep(SETTINGS.node_timeout_ms / 1000 + 1)
        assert leader.state.last_range(record.stream_id) == second, "it may come back"

        def healed() -> bool:
            ranges = leader.state.ranges(record.stream_id)
            return all(
                dead.node_id not in r.replicas and len(r.replicas) == 3 and not r.incomplete
                for r in ranges
            )

        await world.until(healed)
        ranges = await world.list(record.stream_id)
        assert [(r.start_offset, r.end_offset) for r in ranges] == [(0, 4), (4, 7), (7, -1)]
        for r in ranges[:-1]:
            for replica in r.replica_nodes:
                assert replica.data_node is not None
                node = world.nodes[replica.data_node.node_id]
                assert node.ranges[r.stream_id, r.range_index].next == r.end_offset, "I9: whole"
        assert in_first or len(world.nodes) > 3

    simulate(body, nodes=5)


def test_a_joining_node_lists_itself_and_nobody_else_does() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 4, 4, 4)
        await world.seal(record.stream_id, 0)
        await settled(world)
        spare = next(n for n in world.nodes if n.node_id not in record.replicas)
        for node in world.nodes:
            node.copies = False
        dead = world.holders(record)[2]
        dead.reachable = False
        leader = await world.leader()
        await world.until(
            lambda: leader.state.range(record.stream_id, 0).joining == (spare.node_id,)
        )
        key = (record.stream_id, 0)
        await world.until(lambda: key in spare.ranges)
        assert set(spare.ranges[key].members) == {*record.replicas, spare.node_id}
        (own,) = [r for r in await world.list(node_id=spare.node_id) if r.range_index == 0]
        assert spare.node_id in _members(own), "so it does not think that it was retired"
        (seen, _) = (await world.list(record.stream_id))[:2]
        assert spare.node_id not in _members(seen)
        world.services["pm1"].state.nodes.on_unreachable(99)
        # A new leader goes on with the copy although nobody is dead for it yet.
        world.crash(world.leaders()[0])
        leader = await world.leader()
        await world.clock.sleep(2)
        assert leader.state.range(*key).joining == (spare.node_id,)
        spare.copies = True
        await world.until(lambda: spare.node_id in leader.state.range(*key).replicas)
        assert dead.node_id not in leader.state.range(*key).replicas
        dead.reachable = True
        await world.clock.sleep(2)
        assert all(r.range_index != 0 for r in await world.list(node_id=dead.node_id)), (
            "it learns by reconciliation that the range is not its own any more"
        )

    simulate(body, managers=2, nodes=4)


def test_a_node_that_returns_in_time_makes_its_replacement_needless() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 4, 4, 4)
        await world.seal(record.stream_id, 0)
        await settled(world)
        leader = await world.leader()
        for node in world.nodes:
            node.copies = False
        away = world.holders(record)[0]
        away.reachable = False
        await world.until(lambda: bool(leader.state.range(record.stream_id, 0).joining))
        away.reachable = True
        await world.until(lambda: not leader.state.range(record.stream_id, 0).joining)
        assert leader.state.range(record.stream_id, 0).replicas == record.replicas

    simulate(body, nodes=4)


def test_nothing_is_given_up_while_no_whole_copy_lives() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 4, 4, 4)
        await world.seal(record.stream_id, 0)
        await settled(world)
        leader = await world.leader()
        for node in world.holders(record):
            node.reachable = False
        await world.clock.sleep(SETTINGS.replace_after_ms / 1000 + 5)
        sealed = leader.state.range(record.stream_id, 0)
        assert (sealed.replicas, sealed.joining) == (record.replicas, ())
        for node in world.holders(record):
            node.reachable = True
        await settled(world)

    simulate(body, nodes=6)


def test_a_lost_primary_is_replaced_without_a_client() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 4, 4, 4)
        primary = world.holders(record)[0]
        primary.reachable = False
        leader = await world.leader()
        await world.until(lambda: leader.state.last_range(record.stream_id).range_index == 1)
        new = leader.state.last_range(record.stream_id)
        assert (new.start, len(new.replicas)) == (4, 3)
        assert primary.node_id not in new.replicas
        assert leader.state.range(record.stream_id, 0).incomplete == (primary.node_id,)

    simulate(body, nodes=4)


def test_after_a_take_over_unheard_nodes_are_not_lost_at_once() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 4, 4, 4)
        (first,) = world.leaders()
        followers = [name for name in world.names if name != first]
        world.cut = {(name, n.node_id) for name in followers for n in world.nodes}
        await world.clock.sleep(SETTINGS.replace_after_ms / 1000 + 2)
        world.crash(first)
        leader = await world.leader()
        world.cut.clear()
        await world.clock.sleep(5)
        assert leader.state.last_range(record.stream_id).range_index == 0

    simulate(body, managers=2, nodes=4)


@pytest.mark.parametrize("managers", [0, 3])
def test_goaway_moves_open_ranges_and_takes_no_new_ones(managers: int) -> None:
    async def body(world: World) -> None:
        records = [await make(world, 3, 2, 2, 2) for _ in range(6)]
        leader = await world.leader()
        leaving = world.nodes[0]
        world.goaway(leaving)
        await world.until(
            lambda: all(
                leaving.node_id not in leader.state.last_range(r.stream_id).replicas
                for r in records
            ),
            seconds=2,
        )
        for _ in range(5):
            created = await world.create("", 3)
            assert created.range is not None
            assert leaving.node_id not in _members(created.range)
        described = await world.ask(
            Code.DESCRIBE_CLUSTER, m.DescribeClusterRequest(count_ranges=True)
        )
        assert [bool(n.is_draining) for n in described.nodes] == [True, False, False, False]
        assert described.ranges_short == 0, "what it holds stays; it only leads nothing new"
        await world.beat([leaving])  # over a new connection: it is back
        assert not leader.state.nodes.is_draining(leaving.node_id)

    simulate(body, managers=managers, nodes=4)


def test_a_heartbeat_on_the_connection_of_its_goaway_changes_nothing() -> None:
    nodes = Nodes(timeout_ms=LOST_MS)
    nodes.records[1] = NodeRecord(node_id=1, address="a", store_id="s")
    connection, other = object(), object()
    nodes.on_heartbeat(1, 0, address="a", store_id="s", connection=connection)
    nodes.on_goaway(1, connection)
    assert (nodes.alive(), nodes.placeable()) == ([1], [])
    nodes.on_heartbeat(1, 1, address="a", store_id="s", connection=connection)
    assert nodes.placeable() == []
    nodes.on_heartbeat(1, 2, address="a", store_id="s", connection=other)
    assert nodes.placeable() == [1]


def test_nobody_is_silent_for_longer_than_we_listen() -> None:
    state = make_state(nodes=1)
    nodes = state.nodes
    nodes.liveness.sightings[0].heard_ms = 0
    nodes.on_recovered(NOW_MS)
    assert not nodes.is_lost(0, NOW_MS + LOST_MS)
    assert nodes.is_lost(0, NOW_MS + LOST_MS + 1)
    assert not nodes.is_dead(0, NOW_MS + DEAD_MS)
    assert nodes.is_dead(0, NOW_MS + DEAD_MS + 1)
    assert nodes.condition(0, NOW_MS + DEAD_MS + 1) == "dead"


def test_the_cluster_is_described_with_what_it_lacks() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 4, 4, 2)
        for node in world.nodes:
            node.copies = False
        await world.seal(record.stream_id, 0)

        async def describe() -> m.DescribeClusterResponse:
            answer = await world.ask(
                Code.DESCRIBE_CLUSTER, m.DescribeClusterRequest(count_ranges=True)
            )
            assert isinstance(answer, m.DescribeClusterResponse)
            return answer

        found = await describe()
        assert (found.streams, found.ranges, found.ranges_short) == (1, 2, 1)
        assert {n.name for n in found.placement_managers} == set(world.names)
        assert sum(bool(n.is_leader) for n in found.placement_managers) == 1
        for node in world.nodes:
            node.copies = True
        await settled(world)
        assert (await describe()).ranges_short == 0
        leader = await world.leader()
        figures = leader.statistics()
        assert figures["leading"] is True
        assert figures["ranges_open"] == 1
        assert figures["ranges_sealed"] == 1
        assert figures["ranges_short"] == 0

    simulate(body, managers=2, nodes=3)


def test_many_ranges_are_mended_in_bounded_rounds() -> None:
    async def body(world: World) -> None:
        records = [await make(world, 3, 1, 1, 1) for _ in range(150)]
        for record in records:
            await world.seal(record.stream_id, 0)
        await settled(world)
        leader = await world.leader()
        dead = world.nodes[0]
        dead.reachable = False

        def healed() -> bool:
            return not any(
                dead.node_id in r.replicas or r.joining or r.incomplete
                for s in leader.state.streams()
                for r in leader.state.ranges(s.stream_id)
            )

        await world.until(healed, seconds=120)
        sizes = [
            len(message.stream_ranges)
            for node in world.nodes
            for _, message in node.calls
            if isinstance(message, m.SyncRangesRequest)
        ]
        assert max(sizes) <= 256

    simulate(body, nodes=5, settings=PlacementSettings(
        node_timeout_ms=3_000, tick_interval_ms=200, seal_timeout_ms=500, replace_after_ms=6_000,
    ))  # fmt: skip


def _members(range_: m.Range) -> list[int]:
    return [r.data_node.node_id for r in range_.replica_nodes if r.data_node is not None]
