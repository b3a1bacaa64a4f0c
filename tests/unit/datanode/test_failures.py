"""A data node whose disk fails, and the order of write, sync and acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.client.sbp import SbpClient
from headrace.errors import HeadraceError, SealedError
from headrace.runtime.simulated import SimulatedDisk, Simulation
from headrace.wire.sbp.messages import Durability
from tests.log_cluster import Cluster, batch, read_all


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
        assert "sync" in operations[-1], operations
        assert any("write" in name for name in operations[:-1]), operations

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
