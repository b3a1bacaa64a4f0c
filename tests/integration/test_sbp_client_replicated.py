"""The SBP client on a replicated cluster: three data nodes, three placement managers, real sockets
and files in one process. A killed node is aborted: nothing finished, connections cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace.config.process import ClientSettings
from headrace.errors import FencedError, HeadraceError
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.sbp_client.producer import StreamProducer
from headrace.sbp_client.state_follower import POLL_WAIT_MS, StateFollower
from headrace.sbp_client.state_log import StateLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from tests.integration.test_sbp_client import put, records_of
from tests.log_cluster import Cluster, batch, bodies, eventually, read_all

RUNTIME = system_runtime()
PATIENT = ClientSettings(request_timeout_ms=30_000)
FAILOVER_SECONDS = 15.0  # no time-out of a request is waited for


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(RUNTIME, str(tmp_path), tcp=True, nodes=3, placements=3)
    await cluster.start()
    yield cluster
    for at, node in enumerate(cluster.nodes):
        if node is not None:
            await cluster.kill_node(at)  # a clean stop would look for others to hand over to
    await cluster.close()


async def primary(cluster: Cluster, client: SbpClient, stream_id: int) -> int:
    """Where the primary of the open range runs."""
    last = (await client.list_ranges(stream_id))[-1]
    (node,) = [n.data_node for n in last.replica_nodes if n.is_primary]
    assert node is not None
    return cluster.at(node.node_id)


async def create(client: SbpClient) -> int:
    return (await client.create_stream(replica_nums=3)).stream_id


async def leading_placement(cluster: Cluster) -> int:
    while True:
        for at, placement in enumerate(cluster.placements):
            if placement is not None and placement.leading:
                return at
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_i18_primaries_fall_under_a_producer(cluster: Cluster, how: str) -> None:
    client = cluster.client(settings=PATIENT)
    stream_id = await create(client)
    producer = StreamProducer(client)
    sent = [b"record %d" % n for n in range(2000)]
    answers: list[asyncio.Future[int]] = []
    reached = {count: asyncio.Event() for count in (300, 1000)}

    async def produce() -> None:
        for record in sent:
            answers.append(await producer.send(stream_id, [record]))
            if len(answers) in reached:
                reached[len(answers)].set()
            if len(answers) % 20 == 0:
                await asyncio.sleep(0.01)

    async def fell() -> None:
        for count in reached:
            await reached[count].wait()
            at = await primary(cluster, client, stream_id)
            await (cluster.kill_node(at) if how == "killed" else cluster.stop_node(at))
            await answers[count - 1]
            started = RUNTIME.clock.monotonic()
            await (await producer.send(stream_id, [b"probe"]))
            probes.append(RUNTIME.clock.monotonic() - started)
            await cluster.start_node(at)

    probes: list[float] = []
    await asyncio.gather(produce(), fell())
    await producer.flush()
    stored = await records_of(cluster.client(), stream_id)
    assert [record for record in stored if record != b"probe"] == sent
    assert stored.count(b"probe") == 2
    offsets = [answer.result() for answer in answers]
    assert [stored[offset] for offset in offsets] == sent
    assert max(probes) < FAILOVER_SECONDS
    await producer.close()


async def test_f1_an_owned_stream_goes_on_when_its_primary_is_killed(cluster: Cluster) -> None:
    client = cluster.client(settings=PATIENT)
    stream_id = await create(client)
    stream = await OwnedStream.open(client, stream_id, 1)
    await asyncio.gather(*[put(stream, b"%d" % n) for n in range(100)])
    answers = [put(stream, b"%d" % n) for n in range(100, 164)]
    killing = asyncio.create_task(cluster.kill_node(await primary(cluster, client, stream_id)))
    started = RUNTIME.clock.monotonic()
    assert await asyncio.gather(*answers) == list(range(100, 164))
    assert await put(stream, b"164") == 164
    assert RUNTIME.clock.monotonic() - started < FAILOVER_SECONDS
    await killing
    found = await read_all(cluster.client(), stream_id)
    assert found == [(n, b"%d" % n) for n in range(165)]
    await stream.close()


async def test_the_placement_managers_leader_falls_together_with_a_primary(
    cluster: Cluster,
) -> None:
    client = cluster.client()
    stream_id = await create(client)
    stream = await OwnedStream.open(client, stream_id, 1)
    await put(stream, b"0")
    at = await primary(cluster, client, stream_id)
    stopping = asyncio.create_task(cluster.stop_placement(await leading_placement(cluster)))
    await cluster.kill_node(at)
    answers = [put(stream, b"%d" % n) for n in range(1, 50)]
    assert await asyncio.gather(*answers) == list(range(1, 50))
    await stopping
    assert await read_all(cluster.client(), stream_id) == [(n, b"%d" % n) for n in range(50)]
    await stream.close()


async def test_a_stale_writer_is_fenced_on_all_replicas(cluster: Cluster) -> None:
    first, second = cluster.client(), cluster.client()
    stream_id = await create(first)
    old = await OwnedStream.open(first, stream_id, 1)
    await put(old, b"0")
    new = await OwnedStream.open(second, stream_id, 2)
    assert await put(new, b"1") == 1
    with pytest.raises(FencedError):
        await put(old, b"x")
    await cluster.kill_node(await primary(cluster, second, stream_id))
    assert await put(new, b"2") == 2
    assert await read_all(second, stream_id) == [(0, b"0"), (1, b"1"), (2, b"2")]
    await old.close()
    await new.close()


async def test_sealed_ranges_are_read_from_any_replica(cluster: Cluster) -> None:
    client = cluster.client()
    stream_id = await create(client)
    for n in range(20):
        await client.append(stream_id, batch(b"%d" % n))
    await client.seal(stream_id, 0)
    await client.append(stream_id, batch(b"20"))
    ranges = await client.list_ranges(stream_id)
    expected = [(n, b"%d" % n) for n in range(20)]

    async def read_sealed() -> list[tuple[int, bytes]]:
        fetched = await cluster.client().fetch(stream_id, 0, max_bytes=1 << 20)
        return bodies(fetched.pieces)

    async def all_complete() -> bool:
        request = m.DescribeRangesRequest(ranges=(m.RangeId(stream_id=stream_id, range_index=0),))
        for at in range(3):
            channel = await cluster.live(at).connect()
            reply = await channel.call(Code.DESCRIBE_RANGES, request)
            assert isinstance(reply.message, m.DescribeRangesResponse)
            (result,) = reply.message.describe_responses
            if result.range is None or result.range.next_offset < len(expected):
                return False
        return True

    await eventually(RUNTIME, all_complete)
    first = [n.data_node for n in ranges[0].replica_nodes if n.data_node is not None]
    for node in first[:2]:
        await cluster.kill_node(cluster.at(node.node_id))
        assert await read_sealed() == expected


async def test_a_reader_follows_a_writer_over_failovers(cluster: Cluster) -> None:
    writer, reader = cluster.client(), cluster.client()
    stream_id = await create(writer)
    stream = await OwnedStream.open(writer, stream_id, 1)
    total = 300

    async def write() -> None:
        for n in range(total):
            await put(stream, b"%d" % n)
            if n == 100:
                await cluster.kill_node(await primary(cluster, writer, stream_id))

    found: list[tuple[int, bytes]] = []

    async def read() -> None:
        offset = 0
        while offset < total:
            fetched = await reader.fetch(stream_id, offset, max_bytes=1 << 20, max_wait_ms=2000)
            found.extend(bodies(fetched.pieces))
            offset = fetched.next_offset

    async with asyncio.timeout(30):
        await asyncio.gather(write(), read())
    assert found == [(n, b"%d" % n) for n in range(total)]
    await stream.close()


async def test_a_state_log_lives_through_failovers(cluster: Cluster) -> None:
    client = cluster.client()

    async def open_log(epoch: int, state: list[Any]) -> StateLog:
        def restore(version: int, parts: Iterable[bytes]) -> None:
            raise AssertionError("no snapshot was written")

        return await StateLog.open(
            client,
            name="state",
            epoch=epoch,
            clean=False,
            apply=lambda version, kind, body: state.append(body),
            snapshot=lambda: (1, []),
            restore=restore,
            runtime=RUNTIME,
            replica_nums=3,
        )

    first: list[Any] = []
    log = await open_log(1, first)
    for n in range(10):
        await log.append("event", n)
    stream_id = log.stream.stream_id
    await cluster.stop_placement(await leading_placement(cluster))
    await cluster.kill_node(await primary(cluster, client, stream_id))
    for n in range(10, 20):
        await log.append("event", n)
    await log.close()
    second: list[Any] = []
    again = await open_log(2, second)
    assert first == second == list(range(20))
    await again.close()


async def test_a_state_log_is_followed_through_failovers(cluster: Cluster) -> None:
    """Over TCP, with a client of its own: writers change, the primary and the managers fall."""
    writer, reader = cluster.client(), cluster.client()
    followed: list[Any] = []
    failures: list[HeadraceError] = []

    def restore(version: int, parts: Iterable[bytes]) -> None:
        followed[:] = [int(part) for part in parts]

    async def open_log(epoch: int) -> tuple[StateLog, list[Any]]:
        state: list[Any] = []
        log = await StateLog.open(
            writer, name="state", epoch=epoch, clean=False,
            apply=lambda version, kind, body: state.append(body),
            snapshot=lambda: (1, [str(each).encode() for each in state]),
            restore=lambda version, parts: state.extend(int(part) for part in parts),
            runtime=RUNTIME, replica_nums=3,
        )  # fmt: skip
        return log, state

    log, _ = await open_log(1)
    await log.append("event", 0)
    follower = await StateFollower.open(
        reader, name="state", apply=lambda version, kind, body: followed.append(body),
        restore=restore, runtime=RUNTIME, on_failed=failures.append,
    )  # fmt: skip
    assert followed == [0]
    for n in range(1, 40):
        if n == 10:
            await cluster.stop_placement(await leading_placement(cluster))
            await cluster.kill_node(await primary(cluster, writer, log.stream.stream_id))
        if n in (20, 30):
            await log.write_snapshot()
            await log.close()
            log, state = await open_log(n)
            assert state == list(range(n))
        await log.append("event", n)
        await follower.wait_applied(log.applied_offset, FAILOVER_SECONDS)
        assert followed == list(range(n + 1))
    await eventually(RUNTIME, lambda: _is_current(follower))
    assert not failures
    await follower.close()
    await log.close()


async def _is_current(follower: StateFollower) -> bool:
    return follower.lag_seconds < 4 * POLL_WAIT_MS / 1000
