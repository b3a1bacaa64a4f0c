"""Changes that are interrupted half-way: by the store, by silent nodes, by impatient callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.errors import HeadraceError, StorageError, UnavailableError
from headrace.net.sbp_channel import Channel
from headrace.net.sbp_server import Payload, Reply
from headrace.placement.metadata.records import Operations, Put, RangeRecord
from headrace.placement.metadata.store import MemoryStore
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.messages import Message
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import Cluster, batch, eventually, read_all
from tests.simulator.runtime import Simulation


class FaultyStore(MemoryStore):
    """Fails the next transaction that opens a successor range, before or after it is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.fail = ""
        self.delay: asyncio.Event | None = None

    async def _commit(self, operations: Operations) -> None:
        if self.delay is not None:
            await self.delay.wait()
        opens = any(
            isinstance(o, Put) and isinstance(o.record, RangeRecord) and o.record.range_index > 0
            for o in operations
        )
        fail = self.fail if opens else ""
        if fail:
            self.fail = ""
        if fail == "before":
            raise StorageError("power")
        await super()._commit(operations)
        if fail == "after":
            raise StorageError("power")


class DeafChannel:
    """Loses requests of some kinds on their way to the data node."""

    def __init__(self, inner: Channel, deaf: set[Code]) -> None:
        self._inner = inner
        self._deaf = deaf

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        if code in self._deaf:
            raise UnavailableError("lost")
        return await self._inner.call(code, message, payload, timeout=timeout)

    async def close(self) -> None:
        await self._inner.close()


class FaultyCluster(Cluster):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._memory = FaultyStore()
        self.deaf: set[Code] = set()

    @property
    def store(self) -> FaultyStore:
        assert isinstance(self._memory, FaultyStore)
        return self._memory

    async def _connect_node(self, address: str, credential: bytes) -> Channel:
        return DeafChannel(await super()._connect_node(address, credential), self.deaf)


def simulate(test: Callable[[FaultyCluster, SbpClient], Coroutine[Any, Any, None]]) -> None:
    simulation = Simulation(3)

    async def main() -> None:
        cluster = FaultyCluster(
            simulation.runtime("host"),
            "/data",
            tcp=False,
            sqlite=False,
            placement_settings=PlacementSettings(
                tick_interval_ms=200, seal_timeout_ms=500, tombstone_ms=10_000
            ),
            node_settings=DataNodeSettings(heartbeat_interval_ms=300),
        )
        await cluster.start()
        await test(cluster, cluster.client())
        await cluster.close()

    simulation.run(main())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_between_seal_and_commit_leaves_one_successor(when: str) -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        stream = await client.create_stream()
        await client.append(stream.stream_id, batch(b"a"))
        cluster.store.fail = when
        with pytest.raises(HeadraceError):
            await client.seal(stream.stream_id, 0)
        with pytest.raises(HeadraceError):
            await client.create_stream()  # a store in doubt takes nothing more
        await cluster.stop_placement()
        await cluster.start_placement()
        new = await client.seal(stream.stream_id, 0)
        assert (new.range_index, new.start_offset) == (1, 1)
        assert await client.append(stream.stream_id, batch(b"b")) == 1
        assert [r.range_index for r in await client.list_ranges(stream.stream_id)] == [0, 1]

    simulate(body)


def test_a_seal_without_answer_stays_open_and_is_finished_later() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        stream = await client.create_stream()
        await client.append(stream.stream_id, batch(b"a"))
        cluster.deaf.add(Code.SEAL_RANGES)
        with pytest.raises(HeadraceError, match="too few data nodes"):
            await client.seal(stream.stream_id, 0)
        assert cluster.placement is not None
        state = cluster.placement.state
        assert [r.range_index for r in state.sealing()] == [0]
        assert [r.end_offset for r in await client.list_ranges(stream.stream_id)] == [-1], (
            "no end is guessed"
        )
        cluster.deaf.clear()

        async def finished() -> bool:
            return not state.sealing()

        await eventually(cluster.runtime, finished)
        ranges = await client.list_ranges(stream.stream_id)
        assert [(r.start_offset, r.end_offset) for r in ranges] == [(0, 1), (1, -1)]

    simulate(body)


def test_an_unfinished_seal_survives_the_placement_manager() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        stream = await client.create_stream()
        await client.append(stream.stream_id, batch(b"a"))
        cluster.deaf.add(Code.SEAL_RANGES)
        with pytest.raises(HeadraceError):
            await client.seal(stream.stream_id, 0)
        await cluster.stop_placement()
        cluster.deaf.clear()
        await cluster.start_placement()
        assert cluster.placement is not None
        state = cluster.placement.state

        async def finished() -> bool:
            return not state.sealing()

        await eventually(cluster.runtime, finished)
        assert state.last_range(stream.stream_id).range_index == 1

    simulate(body)


def test_a_range_whose_sync_was_lost_is_made_when_it_is_needed() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        cluster.deaf.add(Code.SYNC_RANGES)
        stream = await client.create_stream(name="named")  # the second attempt finds it
        cluster.deaf.clear()
        assert cluster.node is not None
        assert cluster.node.state.ranges(stream.stream_id) == []
        assert await client.append(stream.stream_id, batch(b"a")) == 0
        assert await read_all(client, stream.stream_id) == [(0, b"a")]

    simulate(body)


def test_an_unnamed_stream_that_nobody_could_find_is_not_kept() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        cluster.deaf.add(Code.SYNC_RANGES)
        with pytest.raises(HeadraceError):
            await client.create_stream()
        assert cluster.placement is not None
        assert cluster.placement.state.streams() == []

    simulate(body)


def test_a_change_goes_on_when_its_caller_gives_up() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        cluster.store.delay = asyncio.Event()
        creating = asyncio.ensure_future(client.create_stream(name="late"))
        await cluster.runtime.clock.sleep(0.01)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        cluster.store.delay.set()
        cluster.store.delay = None
        assert cluster.placement is not None
        state = cluster.placement.state

        async def created() -> bool:
            return state.stream_named("late") is not None

        await eventually(cluster.runtime, created)
        found = state.stream_named("late")
        assert found is not None
        assert (await client.create_stream(name="late")).stream_id == found.stream_id

    simulate(body)


def test_nodes_are_told_again_what_they_missed() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        gone, trimmed = [await client.create_stream() for _ in range(2)]
        for stream in (gone, trimmed):
            await client.append(stream.stream_id, batch(b"a"))
            await client.append(stream.stream_id, batch(b"b"))
        cluster.deaf.update({Code.DELETE_STREAMS, Code.TRIM_STREAMS})
        await client.delete_stream(gone.stream_id)
        await client.trim(trimmed.stream_id, 1)
        assert cluster.node is not None
        node = cluster.node.state
        assert node.ranges(gone.stream_id)
        cluster.deaf.clear()

        async def told() -> bool:
            return not node.ranges(gone.stream_id) and (
                node.ranges(trimmed.stream_id)[0].start_offset == 1
            )

        await eventually(cluster.runtime, told)

    simulate(body)


def test_a_lost_node_gets_no_ranges_until_it_is_heard_again() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        assert cluster.placement is not None
        nodes = cluster.placement.state.nodes
        assert nodes.alive() == [0]
        await cluster.stop_node()
        await cluster.runtime.clock.sleep(16)
        assert nodes.alive() == []
        await cluster.start_node()
        assert nodes.alive() == [0]
        assert (await client.create_stream()).stream_id >= 0

    simulate(body)


def test_tombstones_are_forgotten_in_time() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        stream = await client.create_stream()
        await client.delete_stream(stream.stream_id)
        assert cluster.placement is not None
        state = cluster.placement.state
        assert state.is_deleted(stream.stream_id)
        await cluster.runtime.clock.sleep(8)
        assert state.is_deleted(stream.stream_id)
        await cluster.runtime.clock.sleep(5)
        assert not state.is_deleted(stream.stream_id)
        assert (await client.create_stream()).stream_id > stream.stream_id

    simulate(body)


def test_large_deletions_take_several_transactions() -> None:
    async def body(cluster: FaultyCluster, client: SbpClient) -> None:
        stream = await client.create_stream()
        for index in range(120):
            await client.append(stream.stream_id, batch(b"x"))
            await client.seal(stream.stream_id, index)
        before = len(cluster.store.transactions)
        await client.delete_stream(stream.stream_id)
        sizes = [len(t) for t in cluster.store.transactions[before:]]
        assert sizes == [100, 24], "each with its version"

    simulate(body)
