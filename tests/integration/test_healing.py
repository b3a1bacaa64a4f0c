"""Placement managers and data nodes together: what was lost is copied, and stays readable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.placement.service import PlacementService
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import SbpClient
from headrace.storage.layout import RangeKey
from headrace.wire.sbp import messages as m
from tests.log_cluster import Cluster, batch, eventually, read_all

RUNTIME = system_runtime()
SECONDS = 30.0


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Four nodes, three placement managers; what takes minutes takes seconds here."""
    cluster = Cluster(
        RUNTIME,
        str(tmp_path),
        tcp=True,
        nodes=4,
        placements=3,
        placement_settings=PlacementSettings(
            tick_interval_ms=50,
            node_timeout_ms=1_000,
            replace_after_ms=2_000,
            settle_ms=500,
            leader_ttl_ms=10_000,  # nobody waits for its end: a leader that stops resigns
            leader_margin_ms=1_000,
            election_poll_ms=50,
        ),
        node_settings=DataNodeSettings(heartbeat_interval_ms=100, unsettled_interval_ms=100),
    )
    await cluster.start()
    yield cluster
    for at, node in enumerate(cluster.nodes):
        if node is not None:
            await cluster.kill_node(at)  # a clean stop would look for others to hand over to
    await cluster.close()


def leader(cluster: Cluster) -> PlacementService | None:
    return next((p for p in cluster.placements if p is not None and p.leading), None)


async def fill(client: SbpClient, stream_id: int, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        await client.append(stream_id, batch(body))
    return bodies


async def wait_whole(cluster: Cluster, stream_id: int, *, without: int = -1) -> list[m.Range]:
    """Until every range has three whole replicas, none of them on node `without`."""

    async def whole() -> bool:
        leading = leader(cluster)
        if leading is None or leading.state.sealing() or leading.state.lacking_copies():
            return False
        ranges = leading.state.ranges(stream_id)
        return all(len(r.replicas) == 3 and without not in r.replicas for r in ranges)

    await eventually(RUNTIME, whole, seconds=SECONDS)
    return list(await cluster.client().list_ranges(stream_id))


def check_copies(cluster: Cluster, ranges: list[m.Range]) -> None:
    """What the placement manager believes is so: the files are there."""
    for range_ in ranges[:-1]:
        for replica in range_.replica_nodes:
            assert replica.data_node is not None
            node = cluster.live(cluster.at(replica.data_node.node_id))
            log = node.state.find(RangeKey(range_.stream_id, range_.range_index))
            assert log is not None
            assert log.final
            assert (log.durable_offset, log.missing) == (range_.end_offset, None)


async def test_f2_a_node_dies_for_good_and_its_copies_are_made_again(cluster: Cluster) -> None:
    client = cluster.client()
    stream_id = (await client.create_stream(replica_nums=3)).stream_id
    bodies = await fill(client, stream_id, 30)
    await client.seal(stream_id, 0)
    bodies += await fill(client, stream_id, 10)
    (first, last) = await client.list_ranges(stream_id)
    dead = first.replica_nodes[1].data_node
    assert dead is not None
    at = cluster.at(dead.node_id)
    await cluster.kill_node(at)
    ranges = await wait_whole(cluster, stream_id, without=dead.node_id)
    check_copies(cluster, ranges)
    assert [body for _, body in await read_all(cluster.client(), stream_id)] == bodies
    assert ranges[0].end_offset == last.start_offset
    # It comes back: nothing of the stream is its own any more.
    await cluster.start_node(at)
    returned = cluster.live(at)

    async def retired() -> bool:
        return not returned.state.ranges(stream_id)

    await eventually(RUNTIME, retired, seconds=SECONDS)
    assert [body for _, body in await read_all(cluster.client(), stream_id)] == bodies


async def test_a_node_leaves_in_good_order(cluster: Cluster) -> None:
    client = cluster.client()
    streams = [(await client.create_stream(replica_nums=3)).stream_id for _ in range(4)]
    for stream_id in streams:
        await fill(client, stream_id, 5)
    node = cluster.live(0)
    await cluster.stop_node(0)  # GOAWAY: others take its open ranges before it is gone
    assert all(log.sealed for log in node.logs())

    async def moved() -> bool:
        leading = leader(cluster)
        return leading is not None and all(
            0 not in leading.state.last_range(stream_id).replicas for stream_id in streams
        )

    await eventually(RUNTIME, moved, seconds=SECONDS)
    for stream_id in streams:
        assert await client.append(stream_id, batch(b"x")) == 5


async def test_the_leading_placement_manager_dies_while_copies_are_made(cluster: Cluster) -> None:
    client = cluster.client()
    streams = [(await client.create_stream(replica_nums=3)).stream_id for _ in range(5)]
    for stream_id in streams:
        await fill(client, stream_id, 10)
        await client.seal(stream_id, 0)
    victim = cluster.live(2).node_id
    await cluster.kill_node(2)

    async def copying() -> bool:
        leading = leader(cluster)
        return leading is not None and any(r.joining for r in leading.state.lacking_copies())

    await eventually(RUNTIME, copying, seconds=SECONDS)
    at = next(at for at, p in enumerate(cluster.placements) if p is not None and p.leading)
    await cluster.stop_placement(at)
    results = await asyncio.gather(
        *(wait_whole(cluster, stream_id, without=victim) for stream_id in streams)
    )
    for ranges in results:
        check_copies(cluster, ranges)
