"""The table of producers of a range: the same after every restart, and of that range alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.datanode.service import DataNodeService
from headrace.errors import RangeNotFoundError, SealedError
from headrace.net.sbp_channel import Channel
from headrace.sbp_client.client import SbpClient
from headrace.storage.layout import RangeKey
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import PRODUCER
from tests.log_cluster import Cluster, batch, eventually, read_all
from tests.simulator.runtime import SimulatedDisk, Simulation

Body = Callable[[Cluster, SbpClient, SimulatedDisk], Coroutine[Any, Any, None]]


def simulate(test: Body, *, nodes: int = 1, **settings: int) -> None:
    simulation = Simulation(7)

    async def main() -> None:
        cluster = Cluster(
            simulation.runtime("host"),
            "/data",
            tcp=False,
            sqlite=False,
            nodes=nodes,
            node_settings=msgspec.structs.replace(
                DataNodeSettings(heartbeat_interval_ms=200, unsettled_interval_ms=100), **settings
            ),
        )
        await cluster.start()
        await test(cluster, cluster.client(), simulation.disk("host"))
        await cluster.close()

    simulation.run(main())


async def send(client: SbpClient, stream_id: int, sequence: int, producer_id: int = 9) -> int:
    pieces = batch(
        b"%d" % sequence, attributes=PRODUCER, producer_id=producer_id, sequence=sequence
    )
    return await client.append(stream_id, pieces, timeout=15)


async def seal_on(node: DataNodeService, stream_id: int, index: int) -> m.SealRangesResult:
    """Ask the node itself, as a placement manager does."""
    channel: Channel = await node.connect()
    request = m.SealRangesRequest(ranges=(m.RangeId(stream_id, index),))
    reply = await channel.call(Code.SEAL_RANGES, request)
    assert isinstance(reply.message, m.SealRangesResponse)
    (result,) = reply.message.seal_responses
    await channel.close()
    return result


def facts(states: Sequence[m.ProducerState]) -> list[tuple[int, int]]:
    return [(state.next_sequence, state.last_base_offset) for state in states]


@pytest.mark.parametrize("kills", [1, 2])
@pytest.mark.parametrize("seals", [1, 2, 3])
def test_i18_a_table_survives_a_crash_before_the_first_batch(kills: int, seals: int) -> None:
    """It came with the range, and nothing in the range's own log tells it again."""

    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        for sequence in range(3):
            await send(client, stream_id, sequence)
        for index in range(seals):
            await client.seal(stream_id, index)
        for _ in range(kills):
            await cluster.kill_node()
            disk.power_cut()
            await cluster.start_node()
        assert await send(client, stream_id, 2) == 2, "stored before"
        assert await send(client, stream_id, 1) == 1
        assert await send(client, stream_id, 3) == 3
        assert len(await read_all(client, stream_id)) == 4

    simulate(body)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_seal_tells_the_table_of_that_range(restarted: bool) -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        for sequence in range(6):
            await send(client, stream_id, sequence)
            if sequence % 2:
                await client.seal(stream_id, sequence // 2)
        if restarted:
            await cluster.stop_node()
            await cluster.start_node()
        for index, known in enumerate((2, 4, 6)):
            told = await seal_on(cluster.live(0), stream_id, index)
            assert told.range is not None
            assert told.range.producers_whole
            assert facts(told.producers) == [(n + 1, n) for n in range(known)]

    simulate(body)


def test_a_late_sync_of_an_older_range_changes_no_table() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        await send(client, stream_id, 0)
        await client.seal(stream_id, 0)
        late = replace(
            (await client.list_ranges(stream_id))[-1],
            producers=(m.ProducerState(9, 1, 0),),
            producers_whole=True,
        )
        await client.seal(stream_id, 1)  # empty: dropped
        await send(client, stream_id, 1)
        node = cluster.live(0)

        async def dropped() -> bool:
            await node.contact.reconcile()
            return node.state.find(RangeKey(stream_id, 1)) is None

        await eventually(cluster.runtime, dropped)
        with pytest.raises(SealedError):
            await node.ranges.sync(late)
        assert await send(client, stream_id, 2) == 2
        assert await send(client, stream_id, 1) == 1

    simulate(body)


def test_no_range_is_opened_without_its_table() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        await send(client, stream_id, 0)
        (first,) = await client.list_ranges(stream_id)
        second = replace(first, range_index=1, start_offset=1)
        node = cluster.live(0)
        with pytest.raises(RangeNotFoundError):
            await node.ranges.sync(second)
        assert node.state.find(RangeKey(stream_id, 1)) is None
        await node.ranges.sync(replace(second, producers_whole=True))
        await node.ranges.sync(second)  # it is here now

    simulate(body)


def test_a_node_that_missed_an_opening_asks_for_it() -> None:
    """A list of ranges says nothing of producers: the range is not made from it."""

    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        await send(client, stream_id, 0)
        await client.seal(stream_id, 0)
        node = cluster.live(0)
        key = RangeKey(stream_id, 1)
        await node.store.delete_range(key)  # as if it had never been made
        node.state.on_removed(key)
        node.tables.forget(key)
        await node.contact.reconcile()

        async def opened() -> bool:
            return node.state.find(key) is not None

        await eventually(cluster.runtime, opened)
        assert await send(client, stream_id, 0) == 0, "stored before"
        assert await send(client, stream_id, 1) == 1
        assert len(await client.list_ranges(stream_id)) == 2

    simulate(body)


def test_what_is_beyond_the_scan_refuses_nobody() -> None:
    """The end of a long range is read at start. A producer that is not in it may have gone on."""

    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream()).stream_id
        await send(client, stream_id, 0)
        await client.seal(stream_id, 0)
        await send(client, stream_id, 1)
        for sequence in range(20):
            await send(client, stream_id, sequence, producer_id=8)
        await cluster.stop_node()
        await cluster.start_node()
        assert await send(client, stream_id, 0) == 0, "that much is known"
        assert await send(client, stream_id, 2) == 22, "what it stored before is not"
        assert await send(client, stream_id, 19, producer_id=8) == 21

    simulate(body, producer_scan_records=10)


def test_copies_do_not_pass_for_tables() -> None:
    """A replica that got its range by copying knows only what is in the log."""

    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        stream_id = (await client.create_stream(replica_nums=3)).stream_id
        await send(client, stream_id, 0)
        await client.seal(stream_id, 0)
        await send(client, stream_id, 1)
        await client.seal(stream_id, 1)
        listed = (await client.list_ranges(stream_id))[1]
        holder = listed.replica_nodes[1].data_node
        assert holder is not None
        node = cluster.live(cluster.at(holder.node_id))
        key = RangeKey(stream_id, 1)

        async def complete() -> bool:
            log = node.state.find(key)
            return log is not None and log.final and log.missing is None

        await eventually(cluster.runtime, complete)
        assert (await told(node)).producers_whole
        await node.ranges.delete(key)
        await node.ranges.sync(listed)
        await eventually(cluster.runtime, complete)
        assert not (await told(node)).producers_whole

    async def told(node: DataNodeService) -> m.Range:
        (stream_id,) = node.state.streams()
        answer = await seal_on(node, stream_id, 1)
        assert answer.range is not None
        return answer.range

    simulate(body, nodes=3)


def test_what_is_still_being_copied_tells_no_table() -> None:
    async def body(cluster: Cluster, client: SbpClient, disk: SimulatedDisk) -> None:
        node = cluster.live(0)
        own = m.ReplicaNode(data_node=m.DataNode(node_id=node.node_id))
        primary = m.ReplicaNode(data_node=m.DataNode(node_id=99), is_primary=True)
        wanted = m.Range(
            stream_id=500,
            range_index=1,
            start_offset=4,
            replica_nodes=(primary, own),
            ack_quorum=2,
            producers=(m.ProducerState(9, 4, 3),),
            producers_whole=True,
        )
        log = await node.ranges.sync(wanted)
        await node.ranges.sync(replace(wanted, end_offset=7))
        assert log.missing == (4, 7)
        told = await seal_on(node, 500, 1)
        assert told.range is not None
        assert (told.range.producers_whole, told.producers) == (False, ())

    simulate(body)
