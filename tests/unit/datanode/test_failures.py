"""A data node whose disk fails, and the order of write, sync and acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.errors import HeadraceError, SealedError
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import PRODUCER
from tests.log_cluster import Cluster, batch, eventually, read_all
from tests.simulator.runtime import SimulatedDisk, Simulation


def simulate(
    test: Callable[[Cluster, SbpClient, SimulatedDisk], Coroutine[Any, Any, None]],
) -> None:
    simulation = Simulation(7)

    async def main() -> None:
        cluster = Cluster(simulation.runtime("host"), "/data", tcp=False, sqlite=False)
        await cluster.start()
        await test(cluster, cluster.client(), simulation.disk("host"))
        await cluster.close()

    simulation.run(main())


def test_an_append_is_acknowledged_after_its_sync() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream = await client.create_stream()
        await client.append(stream.stream_id, batch(b"first"))
        before = len(disk.operations)
        await client.append(stream.stream_id, batch(b"second"))
        operations = [name for name, path in disk.operations[before:] if path.endswith(".log")]
        synced, closed = operations[-2:]
        assert "sync" in synced, operations
        assert "write" in closed, "the mark that says so"
        assert any("write" in name for name in operations[:-2]), operations

    simulate(body)


def test_written_durability_does_not_wait_for_a_sync() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream = await client.create_stream(durability=Durability.WRITTEN)
        await client.append(stream.stream_id, batch(b"first"))
        before = len(disk.operations)
        await client.append(stream.stream_id, batch(b"second"))
        operations = [name for name, path in disk.operations[before:] if path.endswith(".log")]
        assert operations
        assert not any("sync" in name for name in operations)
        described = await client.describe_range(stream.stream_id, 0, sync=True)
        assert described.range is not None
        assert described.range.next_offset == 2
        after = [name for name, path in disk.operations[before:] if path.endswith(".log")]
        assert any("sync" in name for name in after), "DESCRIBE with sync makes it durable"
        assert [(s.base, s.end) for s in described.segments] == [(0, 2)]

    simulate(body)


def test_a_failed_write_fails_the_range_and_the_stream_goes_on() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream = await client.create_stream()
        await client.append(stream.stream_id, batch(b"a"))
        disk.full = True
        with pytest.raises(HeadraceError):
            await client.append(stream.stream_id, batch(b"x" * (1 << 20)), timeout=0.5)
        assert cluster.node is not None
        failed = cluster.node.state.ranges(stream.stream_id)[0]
        with pytest.raises(SealedError):
            cluster.node.state.check_append(failed, writer_epoch=-1, expected_offset=-1)
        disk.full = False
        offset = await client.append(stream.stream_id, batch(b"b"))
        found = await read_all(client, stream.stream_id)
        assert found[0] == (0, b"a")
        assert found[-1] == (offset, b"b")
        assert len(await client.list_ranges(stream.stream_id)) >= 2

    simulate(body)


def test_load_is_reported_to_the_placement_manager() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream = await client.create_stream()
        assert cluster.placement is not None
        for _ in range(200):
            await client.append(stream.stream_id, batch(b"x" * 1000))
        await asyncio.sleep(0)
        await client.fetch(stream.stream_id, 0, max_bytes=10_000)
        await cluster.runtime.clock.sleep(0.5)
        metrics = cluster.placement.state.nodes.metrics(0)
        assert metrics is not None
        assert metrics.disk_free_space > 0
        assert metrics.range_active_cnt == 1
        assert cluster.node is not None
        assert cluster.node.counters.appends == 200
        assert cluster.node.counters.fetches == 1

    simulate(body)


def test_a_mistake_in_a_report_does_not_make_a_node_look_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        assert cluster.node is not None
        assert cluster.placement is not None
        with monkeypatch.context() as patch:
            patch.setattr(cluster.node.contact, "_reporter", None)
            await asyncio.sleep(1)
        timeout = cluster.placement_settings.node_timeout_ms / 1000
        await asyncio.sleep(2 * timeout)
        assert cluster.placement.state.nodes.is_alive(cluster.node.node_id)

    simulate(body)


# Three nodes, each with a disk of its own


def simulate_three(
    test: Callable[[Cluster, SbpClient, Callable[[int], SimulatedDisk]], Coroutine[Any, Any, None]],
    *,
    nodes: int = 4,
) -> None:
    simulation = Simulation(8)

    async def main() -> None:
        cluster = Cluster(
            simulation.runtime("host"),
            "/data",
            tcp=False,
            sqlite=False,
            nodes=nodes,
            node_runtime=lambda at: simulation.runtime(f"dn{at}"),
        )
        await cluster.start()
        await test(cluster, cluster.client(), lambda at: simulation.disk(f"dn{at}"))
        await cluster.close()

    simulation.run(main())


@pytest.mark.parametrize("role", ["primary", "secondary"])
def test_f15_a_full_disk_makes_the_range_move(role: str) -> None:
    async def body(
        cluster: Cluster, client: SbpClient, disk: Callable[[int], SimulatedDisk]
    ) -> None:
        stream = await client.create_stream(replica_nums=3)
        await client.append(stream.stream_id, batch(b"a"))
        (range_,) = await client.list_ranges(stream.stream_id)
        members = [n.data_node.node_id for n in range_.replica_nodes if n.data_node is not None]
        node_id = members[0 if role == "primary" else 1]
        at = cluster.at(node_id)
        disk(at).full = True
        large = batch(b"x" * (1 << 20), attributes=PRODUCER, producer_id=1, sequence=0)
        await client.append(stream.stream_id, large, timeout=10)
        placement = cluster.placement
        assert placement is not None

        async def moved() -> bool:
            last = (await client.list_ranges(stream.stream_id))[-1]
            now = [n.data_node.node_id for n in last.replica_nodes if n.data_node is not None]
            return last.range_index > 0 and node_id not in now

        await eventually(cluster.runtime, moved, seconds=30)
        metrics = placement.state.nodes.metrics(node_id)
        assert metrics is not None
        assert metrics.disk_free_space == 0
        disk(at).full = False
        found = await read_all(client, stream.stream_id)
        assert [body[:1] for _, body in found] == [b"a", b"x"]

    simulate_three(body)


def test_what_the_executors_do_is_reported() -> None:
    """Rate, in flight, pending and latency of the I/O threads; nothing is a constant."""

    async def body(
        cluster: Cluster, client: SbpClient, disk: Callable[[int], SimulatedDisk]
    ) -> None:
        stream = await client.create_stream(replica_nums=3)
        for _ in range(50):
            await client.append(stream.stream_id, batch(b"x" * 1000))
        await cluster.runtime.clock.sleep(0.5)
        placement = cluster.placement
        assert placement is not None
        (range_,) = await client.list_ranges(stream.stream_id)
        for node in range_.replica_nodes:
            assert node.data_node is not None
            at = cluster.at(node.data_node.node_id)
            load = await cluster.live(at).load()
            assert load.io.tasks >= 50
            assert load.io.average_seconds(load.now) > 0
            assert load.short_ranges == 0
            assert load.active_ranges == 1

    simulate_three(body)


def test_a_node_starts_on_a_full_disk_and_waits_for_space() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream = await client.create_stream()
        await client.append(stream.stream_id, batch(b"a"))
        await cluster.kill_node()
        disk.full = True
        await cluster.start_node()
        assert await read_all(client, stream.stream_id) == [(0, b"a")]
        with pytest.raises(HeadraceError):
            await client.append(stream.stream_id, batch(b"x" * (1 << 20)), timeout=0.5)
        await cluster.stop_node()  # in order, and yet it must not be taken for a clean stop
        await cluster.start_node()
        assert cluster.node is not None
        assert cluster.node.state.interrupted, "its tail may be longer elsewhere: it is sealed"
        assert await read_all(client, stream.stream_id) == [(0, b"a")]
        disk.full = False
        await client.append(stream.stream_id, batch(b"b"))
        found = await read_all(client, stream.stream_id)
        assert (found[0], found[-1][1]) == ((0, b"a"), b"b")
        await cluster.stop_node()
        await cluster.start_node()
        assert not cluster.node.state.interrupted

    simulate(body)
