"""The end of a simulated run: heal everything, seal every stream, wait until the cluster is whole
again, and read every replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.errors import HeadraceError, StateError, StorageError
from headrace.net.sbp_channel import Channel
from headrace.placement.metadata.records import RangeRecord, StreamRecord
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code
from tests.sim.check_ending import Final, Replica
from tests.sim.cluster import NODE_PORT, Cluster
from tests.sim.history import Stored, stored_batches

HEAL_SECONDS_MAX = 120.0
ACCEPT_SECONDS = 80.0  # before the end of that: what is lost with a disk is given up
START_SECONDS_MAX = 30.0
TOLD_SECONDS_MAX = 20.0


async def mend(cluster: Cluster) -> None:
    """Undo whatever is wrong with the hosts and the network."""
    simulation = cluster.simulation
    simulation.heal()
    cluster.metadata.unreachable.clear()
    for host in (*cluster.managers, *cluster.nodes):
        simulation.resume(host)
        simulation.slow(host)
        simulation.disk(host).full = False
        simulation.disk(host).forget_plans()
    for host in (*cluster.managers, *cluster.nodes):
        if not cluster.is_up(host):
            await come_back(cluster, host)


async def come_back(cluster: Cluster, host: str) -> None:
    """As a supervisor does it: started again until it is up."""
    disk = cluster.simulation.disk(host)
    while True:
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                await cluster.restart(host)
            return
        except (HeadraceError, TimeoutError):
            disk.full = False
            cluster.crash(host, power_cut=False)
            await asyncio.sleep(0.5)


async def insist(attempt: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    """Again until it succeeds or the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await attempt()
        except (StateError, StorageError) as error:
            fatal = isinstance(error, StateError) and not error.retryable
            if fatal or loop.time() > deadline:
                raise
            await asyncio.sleep(0.5)


async def finish(cluster: Cluster) -> Final:
    """When nobody writes any more."""
    await mend(cluster)
    await cluster.history.wait_repeated()
    await _seal_everything(cluster)
    await _until_complete(cluster)
    cluster.history.quiet = cluster.simulation.time()
    return await read_replicas(cluster)


def _final(cluster: Cluster) -> Final:
    records = cluster.records()
    streams = {r.stream_id: r for r in records if isinstance(r, StreamRecord) and r.deleted_ms < 0}
    ranges = {(r.stream_id, r.range_index): r for r in records if isinstance(r, RangeRecord)}
    return Final(streams, ranges)


async def _seal_everything(cluster: Cluster) -> None:
    """Nobody writes any more: what is there becomes sealed ranges, whose copies must agree."""
    client = cluster.client("operator")
    for stream_id in _final(cluster).streams:
        await insist(partial(_seal, client, cluster, stream_id))
    await client.close()


async def _seal(client: SbpClient, cluster: Cluster, stream_id: int) -> None:
    last = _final(cluster).ranges_of(stream_id)[-1]
    await client.seal(stream_id, last.range_index, last.writer_epoch)


async def _until_complete(cluster: Cluster) -> None:
    deadline = cluster.simulation.time() + HEAL_SECONDS_MAX
    while missing := list(_incomplete(cluster)):
        if cluster.history.lost and cluster.simulation.time() > deadline - ACCEPT_SECONDS:
            await _accept_losses(cluster)
        if cluster.simulation.time() > deadline:
            for text in missing:
                cluster.history.complain(f"healing: {text}")
            return
        await cluster.sleep(0.5)


async def _accept_losses(cluster: Cluster) -> None:
    """As an operator does who knows that a disk is gone: of ends that nobody was promised. Should
    something be lost that was, the checker finds it."""
    client = cluster.client("operator")
    described = await client.describe_cluster(count_ranges=True)
    for torn in described.ranges_torn:
        found = _final(cluster).ranges[torn.stream_id, torn.range_index]
        if 0 <= found.doubtful <= torn.held_offset:
            with suppress(HeadraceError):
                await client.accept_loss(torn.stream_id, torn.range_index, torn.held_offset)
    await client.close()


def _incomplete(cluster: Cluster) -> list[str]:
    final = _final(cluster)
    alive = {service.node_id for service in cluster.services.values()}
    found: list[str] = []
    for (stream_id, index), range_ in final.ranges.items():
        name = f"range {stream_id}/{index}"
        wanted = final.streams[stream_id].replica_nums
        if len(range_.replicas) != wanted or not set(range_.replicas) <= alive:
            found.append(f"{name} is on {range_.replicas}, alive {sorted(alive)}, wanted {wanted}")
        elif range_.sealing or range_.joining or range_.incomplete:
            found.append(f"{name} is not done: {range_}")
    return found


async def read_replicas(cluster: Cluster) -> Final:
    final = _final(cluster)
    hosts = {service.node_id: host for host, service in cluster.services.items()}
    channels = {
        host: await cluster.channel("operator", f"{host}:{NODE_PORT}") for host in hosts.values()
    }
    for key, range_ in final.ranges.items():
        replicas = final.replicas[key] = []
        for node_id in range_.replicas:
            if node_id in hosts:
                host = hosts[node_id]
                replicas.append(await _read_replica(host, channels[host], range_))
    for stream_id in final.streams:
        first = final.ranges_of(stream_id)[0]
        for node_id in first.replicas:
            if first.start > 0 and node_id in hosts:
                final.served_below_start += await _read_below(channels[hosts[node_id]], first)
    for channel in channels.values():
        await channel.close()
    return final


async def _read_replica(host: str, channel: Channel, range_: RangeRecord) -> Replica:
    """A replica may not have been told yet that its range is final: that is waited for."""
    replica = Replica(host, [])
    offset = range_.start
    try:
        while offset < range_.content_end or range_.end < 0:
            wait = TOLD_SECONDS_MAX if range_.end >= 0 else 0.0
            batches = await insist(partial(_fetch, channel, range_.stream_id, offset), wait)
            if not batches:
                break
            replica.batches += batches
            offset = batches[-1].end
    except HeadraceError as error:
        if range_.end >= 0:
            replica.error = str(error)
    return replica


async def _read_below(channel: Channel, first: RangeRecord) -> list[str]:
    try:
        batches = await _fetch(channel, first.stream_id, first.start - 1)
    except HeadraceError:
        return []
    return [f"I13: stream {first.stream_id} serves {batches[:1]} below its start {first.start}"]


async def _fetch(channel: Channel, stream_id: int, offset: int) -> list[Stored]:
    info = m.FetchInfo(stream_id=stream_id, fetch_offset=offset, batch_max_bytes=1 << 20)
    request = m.FetchRequest(max_wait_ms=0, min_bytes=1, fetch_requests=(info,))
    reply = await channel.call(Code.FETCH, request)
    assert isinstance(reply.message, m.FetchResponse)
    for result in reply.message.fetch_responses:
        raise_for_status(result.status, stream_id=stream_id, offset=offset)
    return stored_batches(stream_id, b"".join(reply.payload))


async def cut_power(cluster: Cluster, before: Final) -> None:
    """I16: recovery finds all that was there, and finds the same the second time."""
    cluster.history.quiet = float("inf")
    for _ in range(2):
        for host in cluster.nodes:
            cluster.crash(host)
        for host in cluster.nodes:
            await cluster.start_node(host)
        after = await read_replicas(cluster)
        for key, replicas in before.replicas.items():
            if before.ranges[key].end < 0:
                continue
            found = {r.host: [b.batch for b in r.batches] for r in after.replicas.get(key, ())}
            for replica in replicas:
                if found.get(replica.host) != [b.batch for b in replica.batches]:
                    cluster.history.complain(f"I16: {key} on {replica.host} after a power cut")
