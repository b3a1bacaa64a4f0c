"""Seal-and-new over several replicas: where a range ends, who goes on, what happens half-way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from headrace.errors import HeadraceError, NotEnoughNodesError
from headrace.placement.metadata.records import RangeRecord, decode_record
from headrace.placement.nodes import Nodes
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import SealUnansweredError, is_success
from headrace.wire.sbp.opcodes import Code
from tests.unit.placement.world import World, simulate


async def make(world: World, replicas: int, *ends: int, name: str = "") -> RangeRecord:
    """A stream whose replicas hold [0, end) each, the primary first."""
    created = await world.create(name, replicas)
    assert created.stream is not None
    leader = await world.leader()
    record = leader.state.last_range(created.stream.stream_id)
    for node, end in zip(world.holders(record), ends, strict=True):
        node.write(record.stream_id, 0, end)
    return record


async def settled(world: World) -> None:
    leader = await world.leader()
    await world.until(lambda: not leader.state.lacking_copies() and not leader.state.sealing())
    await world.clock.sleep(1)  # whoever was complete already is told with the next round


NONE = -1


@pytest.mark.parametrize(
    ("replicas", "ends", "expected", "incomplete"),
    [
        (3, (3, 2, 1), 2, {2}),  # sorted: the second smallest of three
        (3, (1, 2, 3), 2, {0}),
        (3, (3, NONE, 3), 3, {1}),
        (3, (1, NONE, 3), 3, {0, 1}),  # F4: the tail on one survivor only
        (3, (3, 3, 3), 3, set()),
        (2, (3, 2), 2, set()),  # both had to hold it: the smaller one
        (2, (NONE, 2), 2, {0}),
        (2, (3, NONE), 3, {1}),
        (1, (4,), 4, set()),
    ],
)
def test_where_a_range_ends(
    replicas: int, ends: tuple[int, ...], expected: int, incomplete: set[int]
) -> None:
    """Reference §6.2; and era defect 10: never the minimum of whoever answers."""

    async def body(world: World) -> None:
        record = await make(world, replicas, *(max(end, 0) for end in ends))
        holders = world.holders(record)
        for node, end in zip(holders, ends, strict=True):
            node.reachable = end != NONE
            node.copies = False
        new = await world.seal(record.stream_id, 0)
        assert (new.range_index, new.start_offset, new.end_offset) == (1, expected, -1)
        leader = await world.leader()
        sealed = leader.state.range(record.stream_id, 0)
        assert sealed.end == expected
        assert sealed.incomplete == tuple(holders[i].node_id for i in sorted(incomplete))

    simulate(body, nodes=replicas + 2)


def test_defect_10_the_minimum_of_any_answers_would_lose_acknowledged_records() -> None:
    """3 was acknowledged: it is on two of three. The one that lacks it must not decide."""

    async def body(world: World) -> None:
        record = await make(world, 3, 3, 3, 1)
        world.holders(record)[0].reachable = False
        new = await world.seal(record.stream_id, 0)
        assert new.start_offset == 3

    simulate(body, nodes=4)


@pytest.mark.parametrize(("replicas", "silent"), [(3, 2), (2, 2), (1, 1)])
def test_with_too_few_answers_no_end_is_guessed(replicas: int, silent: int) -> None:
    async def body(world: World) -> None:
        record = await make(world, replicas, *[5] * replicas)
        for node in world.holders(record)[:silent]:
            node.reachable = False
        with pytest.raises(SealUnansweredError):
            await world.seal(record.stream_id, 0)
        leader = await world.leader()
        assert [r.key for r in leader.state.sealing()] == [record.key]
        (listed,) = await world.list(record.stream_id)
        assert listed.end_offset == -1
        for node in world.holders(record):
            node.reachable = True
        await settled(world)  # goes on by itself
        ranges = await world.list(record.stream_id)
        assert [(r.start_offset, r.end_offset) for r in ranges] == [(0, 5), (5, -1)]

    simulate(body, nodes=4)


def test_all_replicas_hear_the_final_end_and_the_laggards_copy() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 7, 5, 4)
        holders = world.holders(record)
        for node in holders:
            node.copies = False
        await world.seal(record.stream_id, 0)
        leader = await world.leader()
        key = (record.stream_id, 0)
        await world.until(lambda: all(n.ranges[key].final == 5 for n in holders))
        assert [n.ranges[key].next for n in holders] == [5, 5, 4], "cut off, kept, to be copied"
        assert leader.state.range(*key).incomplete == (holders[2].node_id,)
        await world.clock.sleep(3)
        assert leader.state.range(*key).incomplete == (holders[2].node_id,)
        holders[2].copies = True
        await world.until(lambda: not leader.state.range(*key).incomplete)
        assert _durable(world, *key).incomplete == ()

    simulate(body, nodes=3)


def test_f5_an_old_primary_that_was_cut_off_learns_the_end() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 9, 5, 5)
        primary = world.holders(record)[0]
        primary.reachable = False
        new = await world.seal(record.stream_id, 0)
        assert new.start_offset == 5
        assert primary.node_id not in _members(new)
        primary.write(record.stream_id, 0, 3)  # it goes on, nothing is acknowledged
        primary.reachable = True
        await world.until(lambda: primary.ranges[record.stream_id, 0].final == 5)
        assert primary.ranges[record.stream_id, 0].next == 5
        await settled(world)

    simulate(body, nodes=4)


@pytest.mark.parametrize("managers", [0, 2])
def test_f9_a_repeated_seal_gets_the_same_successor(managers: int) -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 2)
        first = await world.seal(record.stream_id, 0)
        for _ in range(3):
            assert await world.seal(record.stream_id, 0) == first
        assert len(await world.list(record.stream_id)) == 2

    simulate(body, managers=managers, nodes=3)


def test_f10_two_clients_seal_the_same_index() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 2)
        world.holders(record)[1].reachable = False
        answers = await asyncio.gather(*(world.seal(record.stream_id, 0) for _ in range(5)))
        assert {a.range_index for a in answers} == {1}
        assert len(await world.list(record.stream_id)) == 2

    simulate(body, nodes=4)


@pytest.mark.parametrize("point", ["intent", "sealed", "successor"])
def test_f8_the_leader_dies_in_the_middle_of_a_seal(point: str) -> None:
    """After the intent, after the replicas sealed, after the commit: one successor, one end."""

    async def body(world: World) -> None:
        record = await make(world, 3, 4, 4, 2)
        (first,) = world.leaders()
        old = world.services[first]
        holders = world.holders(record)

        def reached() -> bool:
            if point == "intent":
                return any(isinstance(r, RangeRecord) and r.sealing for r in _records(world))
            if point == "sealed":
                return all(n.ranges[record.stream_id, 0].end >= 0 for n in holders)
            return len(old.state.ranges(record.stream_id)) == 2

        sealing = world.simulation.start(
            first, world.call(old, Code.SEAL_RANGES, _seal_request(record))
        )
        while not reached():
            await world.clock.sleep(0.0005)
        world.crash(first)
        await asyncio.wait([sealing])
        assert sealing.cancelled()
        retried = await world.seal(record.stream_id, 0)
        assert (retried.range_index, retried.start_offset) == (1, 4)
        await settled(world)
        ranges = await world.list(record.stream_id)
        assert [(r.start_offset, r.end_offset) for r in ranges] == [(0, 4), (4, -1)]
        assert all(n.ranges[record.stream_id, 0].final == 4 for n in holders), (
            "the new leader tells what the old one had not"
        )
        for node in world.nodes:
            if node.node_id in _members(ranges[1]):
                assert (record.stream_id, 1) in node.ranges

    simulate(body, managers=3, nodes=3)


def test_f3_without_a_spare_node_the_range_stays_sealing() -> None:
    async def body(world: World) -> None:
        record = await make(world, 2, 3, 3)
        other = world.holders(record)[1]
        other.reachable = False
        with pytest.raises(NotEnoughNodesError):
            await world.seal(record.stream_id, 0)
        leader = await world.leader()
        assert leader.state.sealing()
        other.reachable = True
        await settled(world)
        assert [r.end_offset for r in await world.list(record.stream_id)] == [3, -1]

    simulate(body, nodes=2)


def test_a_successor_opens_on_fewer_nodes_but_never_below_its_quorum() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 1, 1, 1)
        holders = world.holders(record)
        holders[0].reachable = False
        new = await world.seal(record.stream_id, 0)
        assert sorted(_members(new)) == sorted(n.node_id for n in holders[1:])
        assert new.ack_quorum == 2, "both of two"
        leader = await world.leader()
        assert leader.state.last_range(record.stream_id).replica_nums == 3
        for node in holders[1:]:
            node.write(record.stream_id, 1, 1)
        holders[1].reachable = False
        with pytest.raises(NotEnoughNodesError):
            await world.seal(record.stream_id, 1)
        holders[0].reachable = True
        holders[1].reachable = True

        def whole() -> bool:
            return len(leader.state.last_range(record.stream_id).replicas) == 3

        await world.until(whole)  # as soon as there are enough nodes it gets all it should have
        await settled(world)

    simulate(body, nodes=3)


def test_create_is_strict() -> None:
    async def body(world: World) -> None:
        with pytest.raises(NotEnoughNodesError):
            await world.create("", 3)
        created = await world.create("", 2)
        assert created.range is not None
        assert len(set(_members(created.range))) == 2, "I14"
        assert created.range.ack_quorum == 2

    simulate(body, nodes=2)


def test_the_node_that_failed_is_avoided() -> None:
    async def body(world: World) -> None:
        for _ in range(6):
            record = await make(world, 1, 1)
            failed = world.holders(record)[0]
            behind = await make(world, 3, 5, 5, 1)
            slow = world.holders(behind)[2].node_id
            old_primary = behind.replicas[0]
            new = await world.seal(behind.stream_id, 0)
            assert slow not in _members(new), "it lagged"
            assert _members(new)[0] != old_primary, "somebody gave up on it"
            failed.reachable = False
            with pytest.raises(SealUnansweredError):
                await world.seal(record.stream_id, 0)
            failed.reachable = True
            await world.beat()
            await settled(world)

    simulate(body, nodes=4)


def test_producers_of_a_replica_that_ends_there_go_on() -> None:
    """Another's table may know batches that were cut off: sent again they must be stored."""

    async def body(world: World) -> None:
        record = await make(world, 3, 3, 2, 1)
        for node, count in zip(world.holders(record), (3, 2, 1), strict=True):
            held = node.ranges[record.stream_id, 0]
            held.producers = (m.ProducerState(7, count, count - 1),)
        new = await world.seal(record.stream_id, 0)
        assert new.start_offset == 2
        successor = world.nodes[_members(new)[0]].ranges[record.stream_id, 1]
        assert successor.producers == (m.ProducerState(7, 2, 1),)

    simulate(body, nodes=3)


def test_producers_survive_a_leader_that_died_before_it_told_them() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 2)
        known = (m.ProducerState(7, 2, 1),)
        for node in world.holders(record):
            node.ranges[record.stream_id, 0].producers = known
        for node in world.nodes:
            node.deaf.add(Code.SYNC_RANGES)
        (first,) = world.leaders()
        old = world.services[first]
        sealing = world.simulation.start(
            first, world.call(old, Code.SEAL_RANGES, _seal_request(record))
        )
        await world.until(lambda: len(old.state.ranges(record.stream_id)) == 2)
        world.crash(first)
        await asyncio.wait([sealing])
        for node in world.nodes:
            node.deaf.clear()
        new = await world.seal(record.stream_id, 0)
        await settled(world)
        for node_id in _members(new):
            assert world.nodes[node_id].ranges[record.stream_id, 1].producers == known

    simulate(body, managers=2, nodes=4)


def test_a_secondary_that_is_told_later_learns_the_producers_too() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 2)
        known = (m.ProducerState(7, 2, 1),)
        for node in world.holders(record):
            node.ranges[record.stream_id, 0].producers = known
        late = world.holders(record)[2]
        late.deaf.add(Code.SYNC_RANGES)
        with suppress(HeadraceError):
            await world.seal(record.stream_id, 0)
        late.deaf.clear()
        await world.until(lambda: (record.stream_id, 1) in late.ranges)
        assert late.ranges[record.stream_id, 1].producers == known

    simulate(body, nodes=3)


def test_replicas_together_know_at_least_what_the_best_of_them_knows() -> None:
    """One that restarted has read only the end of its log."""

    async def body(world: World) -> None:
        record = await make(world, 3, 5, 5, 4)
        tables = (
            (m.ProducerState(7, 5, 4),),
            (m.ProducerState(8, 9, 1), m.ProducerState(7, 4, 3)),
            (m.ProducerState(6, 1, 0),),  # too short to know the last ones
        )
        for node, table in zip(world.holders(record), tables, strict=True):
            node.ranges[record.stream_id, 0].producers = table
        new = await world.seal(record.stream_id, 0)
        assert new.start_offset == 5
        successor = world.nodes[_members(new)[0]].ranges[record.stream_id, 1]
        assert successor.producers == (
            m.ProducerState(8, 9, 1),
            m.ProducerState(7, 4, 3),
            m.ProducerState(7, 5, 4),
        )

    simulate(body, nodes=3)


@pytest.mark.parametrize("replicas", [1, 3])
def test_no_range_is_opened_while_nobody_tells_its_producers(replicas: int) -> None:
    async def body(world: World) -> None:
        record = await make(world, replicas, *[2] * replicas)
        known = (m.ProducerState(7, 2, 1),)
        for node in world.holders(record):
            node.ranges[record.stream_id, 0].producers = known
        others = [n for n in world.nodes if n not in world.holders(record)]
        for node in world.holders(record):  # the next range is opened elsewhere
            world.goaway(node)
        for node in others:
            node.deaf.add(Code.SYNC_RANGES)
        with pytest.raises(HeadraceError):
            await world.seal(record.stream_id, 0)
        for node in world.holders(record):
            node.deaf.add(Code.SEAL_RANGES)
        for node in others:
            node.deaf.clear()
        with pytest.raises(SealUnansweredError):
            await world.seal(record.stream_id, 0)
        assert not any((record.stream_id, 1) in node.ranges for node in world.nodes)
        for node in world.holders(record):
            node.deaf.clear()
        new = await world.seal(record.stream_id, 0)
        for node_id in _members(new):
            held = world.nodes[node_id].ranges.get((record.stream_id, new.range_index))
            assert held is None or held.producers == known

    simulate(body, nodes=2 * replicas)


def test_a_copy_that_cannot_tell_is_asked_last() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 2)
        known = (m.ProducerState(7, 2, 1),)
        first, second, third = world.holders(record)
        third.ranges[record.stream_id, 0].producers = known
        await world.seal(record.stream_id, 0)
        for node in (first, second):
            node.ranges[record.stream_id, 0].whole = False
            node.ranges[record.stream_id, 0].producers = ()
        for node in world.nodes:
            node.ranges.pop((record.stream_id, 1), None)
        new = await world.seal(record.stream_id, 0)
        for node_id in _members(new):
            assert world.nodes[node_id].ranges[record.stream_id, 1].producers == known
        for node in world.nodes:
            node.ranges.pop((record.stream_id, 1), None)
        third.ranges[record.stream_id, 0].whole = False
        await world.seal(record.stream_id, 0)  # nobody knows better: it goes on

    simulate(body, nodes=3)


def test_one_that_has_yet_to_copy_the_range_does_not_tell_its_producers() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 1)
        first, second, behind = world.holders(record)
        behind.copies = False
        await world.seal(record.stream_id, 0)
        held = behind.ranges[record.stream_id, 0]
        await world.until(lambda: held.final == 2)
        held.whole = False
        for node in (first, second):
            node.deaf.add(Code.SEAL_RANGES)
        for node in world.nodes:
            node.ranges.pop((record.stream_id, 1), None)
        with pytest.raises(SealUnansweredError):
            await world.seal(record.stream_id, 0)
        for node in (first, second):
            node.deaf.clear()
        await world.seal(record.stream_id, 0)

    simulate(body, nodes=3)


def test_an_empty_range_that_was_dropped_does_not_take_producers_along() -> None:
    async def body(world: World) -> None:
        record = await make(world, 1, 2)
        known = (m.ProducerState(7, 2, 1),)
        world.holders(record)[0].ranges[record.stream_id, 0].producers = known
        for index in (0, 1, 2):
            new = await world.seal(record.stream_id, index)
            held = world.nodes[_members(new)[0]].ranges[record.stream_id, index + 1]
            assert held.producers == known
            held.whole, held.producers = False, ()  # and its own file is rotten
        assert [r.range_index for r in await world.list(record.stream_id)] == [0, 3]

    simulate(body, nodes=3)


def test_producers_are_told_before_all_that_knows_them_is_trimmed() -> None:
    async def body(world: World) -> None:
        record = await make(world, 1, 2)
        known = (m.ProducerState(7, 2, 1),)
        world.holders(record)[0].ranges[record.stream_id, 0].producers = known
        for node in world.nodes:
            node.deaf.add(Code.SYNC_RANGES)
        with pytest.raises(HeadraceError):
            await world.seal(record.stream_id, 0)
        request = m.TrimStreamsRequest(
            trimmed_streams=(m.TrimmedStream(stream_id=record.stream_id, trim_offset=2),)
        )
        (refused,) = (await world.ask(Code.TRIM_STREAMS, request)).trim_responses
        assert not is_success(refused.status)
        for node in world.nodes:
            node.deaf.clear()
        await world.beat()
        (trimmed,) = (await world.ask(Code.TRIM_STREAMS, request)).trim_responses
        assert is_success(trimmed.status)
        (left,) = await world.list(record.stream_id)
        node = world.nodes[_members(left)[0]]
        assert node.ranges[record.stream_id, 1].producers == known

    simulate(body, nodes=2)


def test_a_replica_that_never_heard_of_the_range_answers_with_its_start() -> None:
    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 0)
        lacking = world.holders(record)[2]
        del lacking.ranges[record.stream_id, 0]
        new = await world.seal(record.stream_id, 0)
        assert new.start_offset == 2
        await settled(world)
        assert lacking.ranges[record.stream_id, 0].final == 2

    simulate(body, nodes=3)


def test_f7_an_emptied_node_does_not_count() -> None:
    """It has another id by now and refuses: not on the replica list."""

    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 2)
        emptied = world.holders(record)[1]
        emptied.ranges.clear()
        emptied.node_id = 77
        world.holders(record)[0].reachable = False
        with pytest.raises(SealUnansweredError):
            await world.seal(record.stream_id, 0)

    simulate(body, nodes=3)


def test_a_secondary_that_missed_the_opening_is_told_later() -> None:
    async def body(world: World) -> None:
        deaf = world.nodes[0]
        deaf.deaf.add(Code.SYNC_RANGES)
        opened = 0
        for _ in range(8):
            try:
                created = await world.create("", 3)
            except HeadraceError:
                continue  # the deaf one was to be its primary
            assert created.range is not None
            opened += 1
            assert _members(created.range)[0] != 0
        assert opened, "two of three have it: that is enough for an acknowledgement"
        deaf.deaf.clear()
        await world.until(lambda: len(deaf.ranges) >= opened)

    simulate(body, nodes=3)


def test_an_interrupted_primary_is_sealed_when_it_asks() -> None:
    """A primary that restarted takes no appends in the range it led; SYNC answers 1460."""

    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 2)
        primary = world.holders(record)[0]
        await world.seal(record.stream_id, 0)
        leader = await world.leader()
        second = leader.state.last_range(record.stream_id)
        primary = world.holders(second)[0]
        primary.interrupted = True
        again = await world.seal(record.stream_id, 0)
        assert again.range_index == 2, "a range that nobody can append to is no answer"
        primary.interrupted = False
        await settled(world)

    simulate(body, nodes=4)


def test_the_disk_reserve_is_for_control_state() -> None:
    async def body(world: World) -> None:
        control = await world.create("s/catalogue")
        data = await world.create("p/1/0/0")
        assert control.stream is not None
        assert data.stream is not None
        (node,) = world.nodes
        assert node.reserved == {control.stream.stream_id: True, data.stream.stream_id: False}

    simulate(body, nodes=1)


def test_defect_11_a_sealed_stream_is_listed_by_node_whole() -> None:
    """The original forgot the new range in the index by node, and ranges of deleted streams."""

    async def body(world: World) -> None:
        record = await make(world, 3, 2, 2, 2)
        await world.seal(record.stream_id, 0)
        await settled(world)
        for node in world.nodes:
            by_node = await world.list(node_id=node.node_id)
            by_stream = [
                r for r in await world.list(record.stream_id) if node.node_id in _members(r)
            ]
            assert [r.range_index for r in by_node] == [r.range_index for r in by_stream]
            both = await world.list(record.stream_id, node.node_id)
            assert [r.range_index for r in both] == [r.range_index for r in by_node]
        await world.ask(
            Code.DELETE_STREAMS,
            m.DeleteStreamsRequest(streams=(m.Stream(stream_id=record.stream_id),)),
        )
        for node in world.nodes:
            assert await world.list(node_id=node.node_id) == ()
        assert not any(isinstance(r, RangeRecord) for r in _records(world)), "none orphaned"

    simulate(body, managers=1, nodes=3)


def _members(range_: m.Range) -> list[int]:
    return [r.data_node.node_id for r in range_.replica_nodes if r.data_node is not None]


def _seal_request(record: RangeRecord) -> m.SealRangesRequest:
    return m.SealRangesRequest(ranges=(m.RangeId(record.stream_id, record.range_index),))


def _records(world: World) -> list[object]:
    return list(world.metadata.records())


def _durable(world: World, stream_id: int, range_index: int) -> RangeRecord:
    records = [decode_record(table, v) for (table, _), v in world.store._values.items()]
    return next(
        r
        for r in records
        if isinstance(r, RangeRecord) and (r.stream_id, r.range_index) == (stream_id, range_index)
    )


@pytest.mark.parametrize(
    ("replicas", "deaf", "opens"), [(3, 1, True), (3, 2, False), (2, 1, False)]
)
def test_a_range_is_open_when_as_many_have_it_as_acknowledge(
    replicas: int, deaf: int, opens: bool
) -> None:
    """The primary alone is not enough: its appends could not be acknowledged."""

    async def body(world: World) -> None:
        record = await make(world, replicas, *([2] * replicas))
        for node in world.nodes:
            node.deaf.add(Code.SYNC_RANGES)
        leader = await world.leader()
        primary = None
        heard: list[int] = []
        choose = leader.state.nodes.choose

        def note(*args: Any, **fields: Any) -> tuple[int, ...]:
            nonlocal primary
            chosen = choose(*args, **fields)
            primary = chosen[0]
            for node_id in chosen[: replicas - deaf]:
                world.nodes[node_id].deaf.discard(Code.SYNC_RANGES)
                heard.append(node_id)
            return chosen

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Nodes, "choose", lambda self, *args, **fields: note(*args, **fields))
            answer = await world.call(leader, Code.SEAL_RANGES, _seal_request(record))
        (result,) = answer.seal_responses
        assert primary in heard
        assert is_success(result.status) is opens

    simulate(body, nodes=replicas)
