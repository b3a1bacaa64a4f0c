"""Placement managers under random faults, against what data nodes and writers saw.

Nodes are models (`FakeNode`) and appends are modelled with the real acknowledgement rule: on the
primary and as many secondaries as the quorum asks. Leaders crash and are cut off from their
metadata, nodes come and go, several clients seal at once. Checked over the whole history of the
metadata and at the end: invariants I2, I4, I5, I6, I11, I12, I13, I14, and that everything is
replicated again once the faults are over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from headrace.errors import HeadraceError
from headrace.placement.metadata.guarded_store import RECORDS
from headrace.placement.metadata.records import (
    CounterRecord,
    RangeRecord,
    StreamRecord,
    Table,
    decode_record,
)
from headrace.runtime.interfaces import Random
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from tests.unit.placement.world import FakeNode, World, simulate

SEEDS = 10
STEPS = 60


@dataclass
class Model:
    world: World
    random: Random
    acknowledged: dict[int, int] = field(default_factory=dict)  # stream -> records
    trimmed: dict[int, int] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)

    def node(self, node_id: int) -> FakeNode:
        return self.world.nodes[node_id]

    # Writers

    def append(self, stream_id: int) -> None:
        """Into every range that its primary still takes appends for, as stale writers would."""
        count = 1 + self.random.below(5)
        for primary in self.world.nodes:
            for (stream, index), held in list(primary.ranges.items()):
                first = held.members[:1] == (primary.node_id,)
                if stream != stream_id or held.end >= 0 or not first or not primary.reachable:
                    continue
                held.next += count
                self._replicate(primary, stream, index, held.next)

    def _replicate(self, primary: FakeNode, stream: int, index: int, offset: int) -> None:
        held = primary.ranges[stream, index]
        durable = []
        for node_id in held.members[1:]:
            node = self.node(node_id)
            copy = node.ranges.get((stream, index))
            reached = node.reachable and self.random.below(4) > 0
            if copy is not None and copy.end < 0 and reached:
                copy.next = offset
            durable.append(copy.next if copy is not None else 0)
        durable.sort(reverse=True)
        committed = held.next if held.quorum <= 1 else min(held.next, durable[held.quorum - 2])
        if stream not in self.deleted:
            self.acknowledged[stream] = max(self.acknowledged.get(stream, 0), committed)

    # Faults and requests

    async def step(self) -> None:
        world, random = self.world, self.random
        kind = random.below(12)
        streams = [s for s in self.acknowledged if s not in self.deleted]
        if kind == 0 or not streams:
            await self._create()
        elif kind <= 4:
            for _ in range(3):
                self.append(streams[random.below(len(streams))])
        elif kind <= 6:
            stream_id = streams[random.below(len(streams))]
            await asyncio.gather(*(self._seal(stream_id) for _ in range(1 + random.below(3))))
        elif kind == 7:
            node = world.nodes[random.below(len(world.nodes))]
            node.reachable = not node.reachable
        elif kind == 8:
            await self._trouble_leader()
        elif kind == 9:
            stream_id = streams[random.below(len(streams))]
            await self._trim(stream_id)
        elif kind == 10:
            if random.below(3) == 0:
                await self._delete(streams[random.below(len(streams))])
            elif random.below(2):
                world.goaway(world.nodes[random.below(len(world.nodes))])
        await world.clock.sleep(random.uniform() * 3)

    async def _create(self) -> None:
        try:
            created = await asyncio.wait_for(
                self.world.create(replicas=1 + self.random.below(3)), timeout=20
            )
        except (HeadraceError, TimeoutError):
            return
        assert created.stream is not None
        assert created.range is not None
        stream_id = created.stream.stream_id
        assert stream_id not in self.acknowledged, "I11"
        self.acknowledged[stream_id] = 0
        members = [r.data_node.node_id for r in created.range.replica_nodes if r.data_node]
        assert len(set(members)) == created.stream.replica_nums, "I14"

    async def _seal(self, stream_id: int) -> None:
        before = self.acknowledged[stream_id]
        ranges = [key[1] for n in self.world.nodes for key in n.ranges if key[0] == stream_id]
        if not ranges:
            return
        try:
            new = await asyncio.wait_for(self.world.seal(stream_id, max(ranges)), timeout=8)
        except (HeadraceError, TimeoutError):
            return
        assert new.start_offset >= before or new.range_index <= max(ranges), "I6"

    async def _trim(self, stream_id: int) -> None:
        offset = self.random.below(self.acknowledged[stream_id] + 1)
        trimmed = m.TrimmedStream(stream_id, offset)
        request = m.TrimStreamsRequest(trimmed_streams=(trimmed,))
        try:
            answer = await asyncio.wait_for(self.world.ask(Code.TRIM_STREAMS, request), timeout=8)
        except (HeadraceError, TimeoutError):
            return
        (result,) = answer.trim_responses
        if not result.status.code:
            assert offset >= self.trimmed.get(stream_id, 0), "I13"
            self.trimmed[stream_id] = offset

    async def _delete(self, stream_id: int) -> None:
        self.deleted.add(stream_id)
        request = m.DeleteStreamsRequest(streams=(m.Stream(stream_id=stream_id),))
        try:
            await asyncio.wait_for(self.world.ask(Code.DELETE_STREAMS, request), timeout=8)
        except (HeadraceError, TimeoutError):
            return

    async def _trouble_leader(self) -> None:
        world = self.world
        leaders = world.leaders()
        if not leaders:
            return
        (name,) = leaders
        if self.random.below(2):
            world.crash(name)
            await world.clock.sleep(self.random.uniform() * 5)
            await world.start(name)
        else:
            world.metadata.unreachable.add(name)
            await world.clock.sleep(self.random.uniform() * 5)
            world.metadata.unreachable.clear()

    # The end

    async def heal(self) -> None:
        world = self.world
        world.metadata.unreachable.clear()
        for node in world.nodes:
            node.reachable = True
        await world.beat()
        await world.leader()

        def whole() -> bool:
            leaders = world.leaders()
            if not leaders:
                return False
            state = world.services[leaders[0]].state
            return not state.sealing() and not state.lacking_copies()

        await world.until(whole, seconds=120)
        await world.clock.sleep(3)

    async def check(self) -> None:
        leader = await self.world.leader()
        state = leader.state
        for stream in state.streams():
            ranges = state.ranges(stream.stream_id)
            acknowledged = self.acknowledged.get(stream.stream_id, 0)
            assert all(a.end == b.start for a, b in pairwise(ranges)), "I2"
            assert all(not r.open for r in ranges[:-1]), "I4"
            assert ranges[-1].open
            assert ranges[0].start >= self.trimmed.get(stream.stream_id, 0), "I13"
            for record in ranges:
                self.check_copies(record, stream.replica_nums)
            last = ranges[-1]
            held = self.node(last.replicas[0]).ranges[last.stream_id, last.range_index]
            assert held.next >= acknowledged, "acknowledged records are there"

    def check_copies(self, record: RangeRecord, wanted: int) -> None:
        key = (record.stream_id, record.range_index)
        assert len(set(record.replicas)) == len(record.replicas) == wanted
        for node_id in record.replicas:
            held = self.node(node_id).ranges[key]
            if not record.open:
                assert held.final == record.end
                assert held.next == record.end, "every replica is whole"

    def check_history(self) -> None:
        ends: dict[tuple[int, int], int] = {}
        bounds: dict[str, int] = {}
        created: set[int] = set()
        for written in self.world.metadata.history:
            for key, value in written.transaction.puts.items():
                if not key.startswith(RECORDS):
                    continue
                record = decode_record(Table(key.split("/")[1]), value)
                match record:
                    case RangeRecord():
                        known = ends.setdefault((record.stream_id, record.range_index), record.end)
                        assert known in (-1, record.end), "I5: a sealed end never changes"
                        ends[record.stream_id, record.range_index] = record.end
                        assert len(set(record.replicas)) == len(record.replicas), "I14"
                        assert not set(record.joining) & set(record.replicas)
                    case StreamRecord(deleted_ms=-1):
                        created.add(record.stream_id)
                    case CounterRecord():
                        assert record.bound > bounds.get(record.name, -1), "I11: only upwards"
                        bounds[record.name] = record.bound
        assert len(created) <= bounds.get("stream", 0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_placement_under_faults(seed: int) -> None:
    async def body(world: World) -> None:
        model = Model(world, world.simulation.runtime("model").random)

        def reachable_source(me: FakeNode, key: tuple[int, int], end: int) -> bool:
            return any(
                other is not me
                and other.reachable
                and other.ranges.get(key) is not None
                and other.ranges[key].next >= end
                for other in world.nodes
            )

        for node in world.nodes:
            node.sources = lambda key, end, node=node: reachable_source(node, key, end)  # type: ignore[misc]
        for _ in range(STEPS):
            await model.step()
        await model.heal()
        await model.check()
        model.check_history()

    simulate(body, managers=3, nodes=5, seed=seed)
