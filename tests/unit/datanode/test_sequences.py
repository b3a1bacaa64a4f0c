"""Producers of plain streams across seals and restarts of everybody."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from headrace.client.sbp import SbpClient
from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.runtime.simulated import Simulation
from headrace.wire.sbp.records import PRODUCER
from tests.log_cluster import Cluster, batch

NODE = DataNodeSettings(heartbeat_interval_ms=200, unsettled_interval_ms=100)


def simulate(
    test: Callable[[Cluster, SbpClient], Coroutine[Any, Any, None]], *, nodes: int = 4
) -> None:
    simulation = Simulation(6)

    async def main() -> None:
        cluster = Cluster(
            simulation.runtime("host"),
            "/data",
            tcp=False,
            sqlite=False,
            nodes=nodes,
            node_settings=NODE,
            placement_settings=PlacementSettings(tick_interval_ms=100, node_timeout_ms=2_000),
            node_runtime=lambda at: simulation.runtime(f"dn{at}"),
        )
        await cluster.start()
        await test(cluster, cluster.client())
        await cluster.close()

    simulation.run(main())


def sequenced(sequence: int, *, producer_id: int = 5) -> list[Any]:
    return batch(b"x", attributes=PRODUCER, producer_id=producer_id, sequence=sequence)


def test_restarts_of_all_between_two_ranges_lose_no_sequence() -> None:
    """An empty range between two restarts once lost the table, and producers were refused."""

    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream(replica_nums=3)
        for sequence in range(3):
            await client.append(stream.stream_id, sequenced(sequence))
        for _ in range(3):
            for at in range(len(cluster.nodes)):
                await cluster.kill_node(at)
            for at in range(len(cluster.nodes)):
                await cluster.start_node(at)
            await cluster.runtime.clock.sleep(5)
        assert await client.append(stream.stream_id, sequenced(2), timeout=20) == 2, "stored once"
        assert await client.append(stream.stream_id, sequenced(3), timeout=20) == 3

    simulate(body)
