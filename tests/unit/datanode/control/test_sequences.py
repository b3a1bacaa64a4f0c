"""Producers of plain streams across seals and restarts of everybody."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.datanode.control.node_files import load_interrupted
from headrace.errors import HeadraceError, InvalidArgumentError, SealedError
from headrace.sbp_client.client import SbpClient
from headrace.storage.layout import RangeKey
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import HEADER_BYTES, PRODUCER
from tests.log_cluster import Cluster, batch
from tests.simulator.runtime import Simulation

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


@pytest.mark.parametrize("replicas", [1, 3])
def test_another_batch_that_ends_where_a_stored_one_does_is_refused(replicas: int) -> None:
    """It used to be answered as stored, and was not."""

    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream(replica_nums=replicas)

        def two() -> list[Any]:
            return batch(b"a", b"b", attributes=PRODUCER, producer_id=5, sequence=0)

        assert await client.append(stream.stream_id, two()) == 0
        for wrong in (
            sequenced(1),
            batch(b"a", b"c", attributes=PRODUCER, producer_id=5, sequence=0),
        ):
            with pytest.raises(InvalidArgumentError):
                await client.append(stream.stream_id, wrong)
        assert await client.append(stream.stream_id, two()) == 0, "the same one is a repetition"
        await client.seal(stream.stream_id, 0)
        with pytest.raises(InvalidArgumentError):
            await client.append(stream.stream_id, sequenced(1))
        assert await client.append(stream.stream_id, two()) == 0, "across a seal, too"
        assert await client.append(stream.stream_id, sequenced(2)) == 2

    simulate(body)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_batch_that_was_changed_on_its_way_is_not_stored(replicas: int) -> None:
    """Its first reader would be the one to find out, when no good copy is left."""

    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream(replica_nums=replicas)
        assert await client.append(stream.stream_id, batch(b"good")) == 0
        range_ = (await client.list_ranges(stream.stream_id))[-1]
        channel = await client.node(range_).channel()
        for position in (HEADER_BYTES, HEADER_BYTES + 3, HEADER_BYTES - 10):
            data = bytearray(b"".join(batch(b"sent")))
            data[position] ^= 1
            info = m.AppendInfo(range=range_, batch_length=len(data))
            request = m.AppendRequest(1000, (info,))
            reply = await channel.call(Code.APPEND, request, (bytes(data),))
            assert isinstance(reply.message, m.AppendResponse)
            (result,) = reply.message.append_responses
            with pytest.raises(HeadraceError):
                raise_for_status(result.status)
        assert await client.append(stream.stream_id, batch(b"next")) == 1

    simulate(body)


def test_a_range_that_was_open_at_an_unclean_stop_stays_interrupted() -> None:
    """Its end may be wrong until it is sealed; a clean stop before that must not heal it."""

    async def body(cluster: Cluster, client: SbpClient) -> None:
        stream = await client.create_stream()
        await client.append(stream.stream_id, batch(b"x"))
        key = RangeKey(stream.stream_id, 0)
        (at,) = [n for n, node in enumerate(cluster.nodes) if node and node.state.find(key)]
        await cluster.kill_node(at)
        await cluster.start_node(at)
        node = cluster.live(at)
        assert node.state.interrupted == {key}
        disk = node.runtime.disk
        assert load_interrupted(disk, node._folder) == {key}, "durable before it serves"
        await cluster.stop_node(at)
        await cluster.start_node(at)
        assert cluster.live(at).state.interrupted == {key}
        state = cluster.live(at).state
        with pytest.raises(SealedError):
            state.check_append(state.range(key), writer_epoch=-1, expected_offset=-1)
        assert await client.append(stream.stream_id, batch(b"y")) == 1, "in the next range"

    simulate(body)
