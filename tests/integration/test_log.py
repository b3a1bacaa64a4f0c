"""The log end to end: placement manager, data node, clients; over loopback TCP and in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.config.process import ClientSettings
from headrace.errors import (
    DeadlineError,
    FencedError,
    FormatError,
    InvalidArgumentError,
    NotEnoughNodesError,
    NotFoundError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    SealedError,
    UnauthenticatedError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.net.credentials import make_ticket
from headrace.placement.metadata.store import SqliteStore
from headrace.runtime.interfaces import Buffer
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import PRODUCER
from tests.log_cluster import SECRET, Cluster, batch, bodies, eventually, read_all


@pytest.fixture(params=["tcp", "in process"])
def tcp(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tcp")


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, tcp: bool) -> AsyncIterator[Cluster]:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=tcp)
    await cluster.start()
    yield cluster
    await cluster.close()


@pytest.fixture
def client(cluster: Cluster) -> SbpClient:
    return cluster.client()


def owned(pieces: list[Buffer]) -> tuple[bytearray, list[Buffer]]:
    header, *body = pieces
    assert isinstance(header, bytearray)
    return header, body


async def test_create_append_and_fetch(client: SbpClient) -> None:
    stream = await client.create_stream(name="plain")
    assert await client.append(stream.stream_id, batch(b"a", b"b")) == 0
    assert await client.append(stream.stream_id, batch(b"c")) == 2
    assert await client.bounds(stream.stream_id) == (0, 3)
    assert await read_all(client, stream.stream_id) == [(0, b"ab"), (2, b"c")]
    inside = await client.fetch(stream.stream_id, 1, max_bytes=1)
    assert bodies(inside.pieces) == [(0, b"ab")], "the batch that contains the offset, whole"
    assert inside.next_offset == 2


async def test_create_by_name_is_create_if_absent(client: SbpClient) -> None:
    first, second = await asyncio.gather(
        client.create_stream(name="same"), client.create_stream(name="same")
    )
    assert first.stream_id == second.stream_id
    assert (await client.create_stream()).stream_id != (await client.create_stream()).stream_id


async def test_a_stream_is_found_by_its_name_and_never_made_by_that(client: SbpClient) -> None:
    for _ in range(2):
        with pytest.raises(NotFoundError):
            await client.find_stream("looked for")
    made = await client.create_stream(name="looked for")
    assert await client.find_stream("looked for") == made
    await client.delete_stream(made.stream_id)
    with pytest.raises(NotFoundError):
        await client.find_stream("looked for")


async def test_create_reports_each_stream_by_itself(client: SbpClient) -> None:
    with pytest.raises(InvalidArgumentError):
        await client.create_stream(replica_nums=0)
    with pytest.raises(InvalidArgumentError):
        await client.create_stream(replica_nums=4)


async def test_create_needs_a_live_data_node(tmp_path: Path, tcp: bool) -> None:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=tcp)
    await cluster.start_placement()
    placement = await cluster.placement_connect()
    request = m.CreateStreamsRequest(streams=(m.Stream(replica_nums=1),))
    reply = await placement.call(Code.CREATE_STREAMS, request)
    assert isinstance(reply.message, m.CreateStreamsResponse)
    (result,) = reply.message.create_responses
    assert result.status is not None
    assert result.status.code == 1502
    await placement.close()
    await cluster.close()


async def test_long_poll_is_woken_by_an_append(client: SbpClient) -> None:
    stream = await client.create_stream()
    poll = asyncio.create_task(
        client.fetch(stream.stream_id, 0, max_bytes=1000, max_wait_ms=10_000)
    )
    await asyncio.sleep(0.05)
    assert not poll.done()
    await client.append(stream.stream_id, batch(b"late"))
    assert bodies((await asyncio.wait_for(poll, 8)).pieces) == [(0, b"late")]


async def test_long_poll_ends_empty_when_its_time_is_over(client: SbpClient) -> None:
    stream = await client.create_stream()
    fetched = await client.fetch(stream.stream_id, 0, max_bytes=1000, max_wait_ms=60)
    assert (fetched.pieces, fetched.next_offset) == ([], 0)


async def test_a_long_poll_does_not_hold_up_a_stop(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream()
    poll = asyncio.create_task(
        client.fetch(stream.stream_id, 0, max_bytes=1000, max_wait_ms=20_000)
    )
    await asyncio.sleep(0.05)
    started = asyncio.get_running_loop().time()
    await cluster.stop_node()
    assert asyncio.get_running_loop().time() - started < 10
    await cluster.start_node()
    await client.append(stream.stream_id, batch(b"after"))
    assert bodies((await asyncio.wait_for(poll, 10)).pieces) == [(0, b"after")], "it goes on"


async def test_min_bytes_waits_for_more(client: SbpClient) -> None:
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"x" * 100))
    poll = asyncio.create_task(
        client.fetch(stream.stream_id, 0, max_bytes=9999, max_wait_ms=10_000, min_bytes=200)
    )
    await asyncio.sleep(0.05)
    assert not poll.done()
    await client.append(stream.stream_id, batch(b"y" * 100))
    fetched = await asyncio.wait_for(poll, 8)
    assert [offset for offset, _ in bodies(fetched.pieces)] == [0, 1]


async def test_fetch_outside_the_stream(client: SbpClient) -> None:
    stream = await client.create_stream()
    for _ in range(3):
        await client.append(stream.stream_id, batch(b"r"))
    with pytest.raises(OffsetOverflowError):
        await client.fetch(stream.stream_id, 4, max_bytes=1)
    await client.trim(stream.stream_id, 2)
    with pytest.raises(OffsetOutOfRangeError):
        await client.fetch(stream.stream_id, 1, max_bytes=1)
    assert bodies((await client.fetch(stream.stream_id, 2, max_bytes=1)).pieces) == [(2, b"r")]


async def test_one_fetch_over_several_streams(cluster: Cluster, client: SbpClient) -> None:
    streams = [await client.create_stream() for _ in range(3)]
    await client.append(streams[2].stream_id, batch(b"third"))
    infos = tuple(
        m.FetchInfo(stream_id=s.stream_id, request_index=7 + i, batch_max_bytes=100)
        for i, s in enumerate(streams)
    )
    missing = m.FetchInfo(stream_id=999, request_index=1, batch_max_bytes=100)
    node = await cluster.node_connect(await node_address(client, streams[0].stream_id))()
    waiting = asyncio.ensure_future(
        node.call(
            Code.FETCH,
            m.FetchRequest(max_wait_ms=10_000, min_bytes=150, fetch_requests=infos),
            timeout=12,
        )
    )
    await asyncio.sleep(0.05)
    assert not waiting.done(), "60 bytes are there, 150 were asked for"
    await client.append(streams[0].stream_id, batch(b"first" * 20))
    reply = await asyncio.wait_for(waiting, 8)
    assert isinstance(reply.message, m.FetchResponse)
    lengths = {r.request_index: r.batch_length for r in reply.message.fetch_responses}
    assert lengths == {7: 155, 8: 0, 9: 60}
    wrong = await node.call(
        Code.FETCH, m.FetchRequest(max_wait_ms=5000, fetch_requests=(*infos, missing))
    )
    assert isinstance(wrong.message, m.FetchResponse)
    codes = {r.request_index: r.status.code for r in wrong.message.fetch_responses if r.status}
    assert codes == {7: 0, 8: 0, 9: 0, 1: 1462}
    await node.close()


async def test_an_answer_of_many_megabytes(client: SbpClient) -> None:
    stream = await client.create_stream()
    chunk = bytes(range(256)) * 4096  # 1 MiB
    for _ in range(11):
        await client.append(stream.stream_id, batch(chunk))
    fetched = await client.fetch(stream.stream_id, 0, max_bytes=16 << 20)
    found = bodies(fetched.pieces)
    assert [offset for offset, _ in found] == list(range(fetched.next_offset))
    assert fetched.next_offset >= 10
    assert all(body == chunk for _, body in found)
    assert await read_all(client, stream.stream_id, fetched.next_offset) == [
        (i, chunk) for i in range(fetched.next_offset, 11)
    ]


async def node_address(client: SbpClient, stream_id: int) -> str:
    (range_, *_) = await client.list_ranges(stream_id)
    node = range_.replica_nodes[0].data_node
    assert node is not None
    return node.advertise_addr


async def test_append_frame_with_several_entries(cluster: Cluster, client: SbpClient) -> None:
    one, two = [await client.create_stream() for _ in range(2)]
    entries = [
        (one.stream_id, batch(b"a", b"b")),
        (two.stream_id, batch(b"c")),
        (999, batch(b"lost")),
        (one.stream_id, batch(b"d")),
    ]
    damaged = batch(b"flipped")
    damaged[1] = b"FLIPPED"
    entries.append((two.stream_id, damaged))
    infos = tuple(
        m.AppendInfo(
            range=m.Range(stream_id=stream_id),
            request_index=10 + index,
            batch_length=sum(map(len, pieces)),
        )
        for index, (stream_id, pieces) in enumerate(entries)
    )
    payload = [b"".join(piece for _, pieces in entries for piece in pieces)]
    node = await cluster.node_connect(await node_address(client, one.stream_id))()
    reply = await node.call(Code.APPEND, m.AppendRequest(append_requests=infos), payload)
    assert isinstance(reply.message, m.AppendResponse)
    results = {
        r.request_index: (r.status.code if r.status else 0, r.base_offset)
        for r in reply.message.append_responses
    }
    assert results == {10: (0, 0), 11: (0, 0), 12: (1462, -1), 13: (0, 2), 14: (2, -1)}
    (first, *_) = reply.message.append_responses
    now_ms = cluster.runtime.clock.now_ms()
    assert now_ms - 60_000 < first.stream_append_time_ms <= now_ms, "milliseconds"
    with pytest.raises(InvalidArgumentError):  # one byte is missing: nothing of the frame lands
        await node.call(
            Code.APPEND, m.AppendRequest(append_requests=infos[:1]), [payload[0][: 56 + 0]]
        )
    assert await read_all(client, one.stream_id) == [(0, b"ab"), (2, b"d")]
    assert await read_all(client, two.stream_id) == [(0, b"c")]
    await node.close()


async def test_seal_and_new_keeps_offsets_contiguous(client: SbpClient) -> None:
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"a"))
    new = await client.seal(stream.stream_id, 0)
    assert (new.range_index, new.start_offset, new.end_offset) == (1, 1, -1)
    again = await client.seal(stream.stream_id, 0)
    assert again.range_index == 1, "sealing what is sealed gives the current range"
    with pytest.raises(InvalidArgumentError):
        await client.seal(stream.stream_id, 5)
    assert await client.append(stream.stream_id, batch(b"b")) == 1
    assert [(r.start_offset, r.end_offset) for r in await client.list_ranges(stream.stream_id)] == [
        (0, 1),
        (1, -1),
    ]
    assert await read_all(client, stream.stream_id) == [(0, b"a"), (1, b"b")]


async def test_concurrent_seals_make_one_successor(cluster: Cluster) -> None:
    clients = [cluster.client() for _ in range(4)]
    stream = await clients[0].create_stream()
    await clients[0].append(stream.stream_id, batch(b"a"))
    ranges = await asyncio.gather(*(c.seal(stream.stream_id, 0) for c in clients))
    assert {r.range_index for r in ranges} == {1}
    assert len(await clients[0].list_ranges(stream.stream_id)) == 2


async def test_a_sealed_range_is_noticed_by_writers_and_readers(cluster: Cluster) -> None:
    writer, reader, sealer = cluster.client(), cluster.client(), cluster.client()
    stream = await writer.create_stream()
    await writer.append(stream.stream_id, batch(b"a"))
    poll = asyncio.create_task(reader.fetch(stream.stream_id, 1, max_bytes=100, max_wait_ms=10_000))
    await asyncio.sleep(0.05)
    await sealer.seal(stream.stream_id, 0)
    assert await writer.append(stream.stream_id, batch(b"b")) == 1, "its cached range was sealed"
    assert bodies((await asyncio.wait_for(poll, 8)).pieces) == [(1, b"b")]


async def test_an_empty_range_leaves_no_trace(client: SbpClient) -> None:
    stream = await client.create_stream()
    new = await client.seal(stream.stream_id, 0)
    assert (new.range_index, new.start_offset) == (1, 0)
    assert [r.range_index for r in await client.list_ranges(stream.stream_id)] == [1]
    assert await client.append(stream.stream_id, batch(b"a")) == 0


async def test_trim_and_delete_reach_the_data_node(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream()
    for index in range(4):
        await client.append(stream.stream_id, batch(b"%d" % index))
        if index == 1:
            await client.seal(stream.stream_id, 0)
    smallest = await client.trim(stream.stream_id, 2)
    assert (smallest.range_index, smallest.start_offset) == (1, 2)
    smallest = await client.trim(stream.stream_id, 3)
    assert (smallest.range_index, smallest.start_offset) == (1, 3)
    assert await client.bounds(stream.stream_id) == (3, 4)
    for wrong in (2, 5):
        with pytest.raises(InvalidArgumentError):
            await client.trim(stream.stream_id, wrong)
    assert cluster.node is not None
    log = cluster.node.state.ranges(stream.stream_id)[-1]
    assert log.start_offset == 3

    await client.delete_stream(stream.stream_id)
    await client.delete_stream(stream.stream_id)
    assert cluster.node.state.ranges(stream.stream_id) == []
    with pytest.raises(NotFoundError):
        await client.describe_stream(stream.stream_id)
    with pytest.raises(NotFoundError):
        await client.append(stream.stream_id, batch(b"x"))
    with pytest.raises(NotFoundError):
        await client.delete_stream(12345)


async def test_describe_tells_bounds_and_segments_of_a_range(client: SbpClient) -> None:
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"a", b"b", b"c"))
    described = await client.describe_range(stream.stream_id, 0, sync=True)
    assert described.range is not None
    found = described.range
    assert (found.start_offset, found.next_offset, found.end_offset) == (0, 3, -1)
    assert [(segment.base, segment.end) for segment in described.segments] == [(0, 3)]
    assert described.segments[0].bytes > 0


async def test_update_changes_only_what_is_given(client: SbpClient) -> None:
    stream = await client.create_stream(name="u", retention_period_ms=5)
    updated = await client.update(stream.stream_id, retention_period_ms=9)
    assert (updated.retention_period_ms, updated.replica_nums, updated.name) == (9, 1, "u")
    assert (await client.describe_stream(stream.stream_id)).retention_period_ms == 9
    with pytest.raises(NotFoundError):
        await client.update(77, retention_period_ms=1)


async def test_list_ranges_by_stream_node_both_or_neither(
    cluster: Cluster, client: SbpClient
) -> None:
    streams = [await client.create_stream() for _ in range(2)]
    here, elsewhere = m.DataNode(node_id=0), m.DataNode(node_id=5)
    criteria = (
        m.RangeCriteria(stream_id=streams[0].stream_id),
        m.RangeCriteria(data_node=here),
        m.RangeCriteria(stream_id=streams[1].stream_id, data_node=here),
        m.RangeCriteria(stream_id=streams[1].stream_id, data_node=elsewhere),
        m.RangeCriteria(),
        m.RangeCriteria(stream_id=999),
    )
    placement = await cluster.placement_connect()
    reply = await placement.call(Code.LIST_RANGES, m.ListRangesRequest(range_criteria=criteria))
    assert isinstance(reply.message, m.ListRangesResponse)
    results = reply.message.list_responses
    assert [[r.stream_id for r in result.ranges] for result in results] == [
        [0], [0, 1], [1], [], [], [],
    ]  # fmt: skip
    assert [r.status.code for r in results if r.status] == [0, 0, 0, 0, 0, 1404]
    await placement.close()


async def test_clean_restart_of_everything_goes_on(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream(name="kept")
    await client.append(stream.stream_id, batch(b"a"))
    node_id = cluster.node.node_id if cluster.node else -1
    await cluster.stop_node()
    await cluster.stop_placement()
    await cluster.start_placement()
    await cluster.start_node()
    assert cluster.node is not None
    assert cluster.node.node_id == node_id, "the id belongs to the store"
    assert (await client.create_stream(name="kept")).stream_id == stream.stream_id
    assert await client.append(stream.stream_id, batch(b"b")) == 1
    assert len(await client.list_ranges(stream.stream_id)) == 1, "no seal after a clean stop"
    assert await read_all(client, stream.stream_id) == [(0, b"a"), (1, b"b")]
    other = await client.create_stream()
    assert other.stream_id > stream.stream_id


async def test_placement_manager_restarts_alone(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"a"))
    await cluster.stop_placement()
    assert await client.append(stream.stream_id, batch(b"b")) == 1, "data goes on without it"
    assert bodies((await client.fetch(stream.stream_id, 0, max_bytes=999)).pieces)
    await cluster.start_placement()
    new = await client.seal(stream.stream_id, 0)
    assert new.start_offset == 2
    assert (await client.create_stream()).stream_id > stream.stream_id


async def test_killed_data_node_seals_before_it_is_written_again(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"a"))
    await cluster.kill_node()
    await cluster.start_node()
    assert cluster.node is not None
    (log,) = cluster.node.state.ranges(stream.stream_id)
    with pytest.raises(SealedError):
        cluster.node.state.check_append(log, writer_epoch=-1, expected_offset=-1)
    assert bodies((await client.fetch(stream.stream_id, 0, max_bytes=999)).pieces) == [(0, b"a")]
    assert await client.append(stream.stream_id, batch(b"b")) == 1
    assert [r.end_offset for r in await client.list_ranges(stream.stream_id)] == [1, -1]
    assert await read_all(client, stream.stream_id) == [(0, b"a"), (1, b"b")]


async def test_interruption_outlives_a_clean_stop(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"a"))
    await cluster.kill_node()
    await cluster.start_node()
    await cluster.stop_node()
    await cluster.start_node()
    assert cluster.node is not None
    assert len(cluster.node.state.interrupted) == 1
    assert await client.append(stream.stream_id, batch(b"b")) == 1
    assert len(cluster.node.state.interrupted) == 0


async def test_node_learns_what_it_missed(cluster: Cluster, client: SbpClient) -> None:
    trimmed, deleted = [await client.create_stream() for _ in range(2)]
    for stream in (trimmed, deleted):
        for _ in range(3):
            await client.append(stream.stream_id, batch(b"x"))
    await client.seal(trimmed.stream_id, 0)
    await cluster.stop_node()
    await client.delete_stream(deleted.stream_id)
    await client.trim(trimmed.stream_id, 2)
    await cluster.start_node()
    assert cluster.node is not None
    assert cluster.node.state.ranges(deleted.stream_id) == []
    assert [log.start_offset for log in cluster.node.state.ranges(trimmed.stream_id)] == [2, 3]


async def test_a_node_of_another_cluster_keeps_its_data(tmp_path: Path) -> None:
    """A placement manager that lost its store must not talk nodes into deleting streams."""
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=False, sqlite=False)
    await cluster.start()
    client = cluster.client()
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"precious"))
    await cluster.stop_node()
    await cluster.stop_placement()
    cluster._memory = type(cluster._memory)()
    await cluster.start_placement()
    with pytest.raises(InvalidArgumentError, match="never given out"):
        await cluster.start_node()
    assert list((tmp_path / "node" / "log" / "streams" / str(stream.stream_id)).iterdir())
    cluster.node = None
    await cluster.close()


# Fencing


async def test_older_writer_is_fenced_and_nothing_of_it_lands(cluster: Cluster) -> None:
    old_client, new_client = cluster.client(), cluster.client()
    stream = await old_client.create_stream(name="p/1/0/0")
    old = await OwnedStream.open(old_client, stream.stream_id, 1, clean=True)
    await old.append(*owned(batch(b"old", base_offset=0)))
    for clean in (True, False):
        epoch = 3 if clean else 5
        new = await OwnedStream.open(new_client, stream.stream_id, epoch, clean=clean)
        assert new.next_offset == old.next_offset
        await new.append(*owned(batch(b"new", base_offset=new.next_offset)))
        stale = batch(b"stale", base_offset=old.next_offset)
        with pytest.raises(FencedError):
            await old.append(*owned(stale))
        with pytest.raises(FencedError):
            old.append(*owned(batch(b"again", base_offset=old.next_offset)))
        with pytest.raises(FencedError):
            await old_client.seal(stream.stream_id, 0, 1)
        await old.close()
        old = new
        old_client = new_client
        new_client = cluster.client()
    await old.close()
    found = [body for _, body in await read_all(new_client, stream.stream_id)]
    assert found == [b"old", b"new", b"new"]
    with pytest.raises(FencedError):
        await OwnedStream.open(new_client, stream.stream_id, 4, clean=False)


async def test_owned_streams_refuse_appends_without_epoch(client: SbpClient) -> None:
    stream = await client.create_stream(name="p/2/0/0")
    with pytest.raises(FencedError):
        await client.append(stream.stream_id, batch(b"anybody"))
    writer = await OwnedStream.open(client, stream.stream_id, 7, clean=True)
    with pytest.raises(FencedError):
        await client.append(stream.stream_id, batch(b"anybody"))
    with pytest.raises(UnexpectedOffsetError):
        await client.append(stream.stream_id, batch(b"x"), writer_epoch=7, expected_offset=3)
    with pytest.raises(RangeNotFoundError):
        await client.append(stream.stream_id, batch(b"x"), writer_epoch=8, expected_offset=0)
    with pytest.raises(FencedError):
        await client.seal(stream.stream_id, 0)
    assert await client.bounds(stream.stream_id) == (0, 0)
    await writer.close()


async def test_clean_open_keeps_the_range_and_unclean_open_seals(client: SbpClient) -> None:
    stream = await client.create_stream(name="p/3/0/0")
    for epoch, clean, ranges in ((1, True, 1), (2, True, 1), (3, False, 2)):
        writer = await OwnedStream.open(client, stream.stream_id, epoch, clean=clean)
        assert len(await client.list_ranges(stream.stream_id)) == ranges
        await writer.append(*owned(batch(b"e", base_offset=writer.next_offset)))
        await writer.close()
    assert await client.bounds(stream.stream_id) == (0, 3)


async def test_clean_open_seals_when_the_data_node_was_killed(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream(name="p/6/0/0")
    writer = await OwnedStream.open(client, stream.stream_id, 1, clean=True)
    await writer.append(*owned(batch(b"a", base_offset=0)))
    await writer.close()
    await cluster.kill_node()
    await cluster.start_node()
    writer = await OwnedStream.open(client, stream.stream_id, 2, clean=True)
    assert writer.next_offset == 1
    assert [r.end_offset for r in await client.list_ranges(stream.stream_id)] == [1, -1]
    await writer.append(*owned(batch(b"b", base_offset=1)))
    await writer.close()
    assert await read_all(client, stream.stream_id) == [(0, b"a"), (1, b"b")]


async def test_writer_survives_a_killed_data_node(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream(name="p/4/0/0")
    writer = await OwnedStream.open(client, stream.stream_id, 1, clean=True)
    acknowledged: list[int] = []

    async def write() -> None:
        for index in range(300):
            offset = writer.next_offset
            answer = writer.append(*owned(batch(b"%06d" % index, base_offset=offset)))
            answer.add_done_callback(lambda done: acknowledged.append(done.result()))
            if index % 20 == 0:
                await asyncio.sleep(0)

    task = asyncio.create_task(write())
    await eventually(cluster.runtime, lambda: _more_than(acknowledged, 50))
    await cluster.kill_node()
    await asyncio.sleep(0.1)
    await cluster.start_node()
    await task
    await writer.flush()
    await writer.close()
    assert sorted(acknowledged) == list(range(300))
    assert await read_all(client, stream.stream_id) == [(i, b"%06d" % i) for i in range(300)]


async def _more_than(values: list[int], count: int) -> bool:
    return len(values) > count


async def test_writer_survives_a_restarted_placement_manager(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream(name="p/5/0/0")
    writer = await OwnedStream.open(client, stream.stream_id, 1, clean=True)
    await writer.append(*owned(batch(b"a", base_offset=0)))
    await cluster.stop_placement()
    await writer.append(*owned(batch(b"b", base_offset=1)))
    await cluster.stop_node()
    pending = writer.append(*owned(batch(b"c", base_offset=2)))
    await asyncio.sleep(0.1)
    await cluster.start_placement()
    await cluster.start_node()
    assert await asyncio.wait_for(pending, 20) == 2
    await writer.close()
    assert [body for _, body in await read_all(client, stream.stream_id)] == [b"a", b"b", b"c"]


# Producers


async def test_a_repeated_producer_batch_is_stored_once(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream()

    async def send(sequence: int, *payloads: bytes) -> int:
        return await client.append(
            stream.stream_id,
            batch(*payloads, attributes=PRODUCER, producer_id=9, sequence=sequence),
        )

    assert await send(0, b"a", b"b") == 0
    assert await send(2, b"c") == 2
    assert await send(0, b"a", b"b") == 0
    assert await send(2, b"c") == 2
    with pytest.raises(InvalidArgumentError):
        await send(9, b"gap")
    await client.seal(stream.stream_id, 0)
    assert await send(2, b"c") == 2, "the table travels with seal and sync"
    await cluster.stop_node()
    await cluster.start_node()
    assert await send(0, b"a", b"b") == 0, "and is read back from the log after a restart"
    assert await send(3, b"d") == 3
    assert await read_all(client, stream.stream_id) == [(0, b"ab"), (2, b"c"), (3, b"d")]


# Leases


async def test_lease_epochs_survive_the_placement_manager(
    cluster: Cluster, client: SbpClient
) -> None:
    first = await client.lease("broker", "a", 60_000, "host:1")
    assert (first.granted, first.epoch) == (True, 1)
    refused = await client.lease("broker", "b", 60_000)
    assert (refused.granted, refused.holder, refused.address) == (False, "a", "host:1")
    renewed = await client.lease("broker", "a", 60_000, "host:1", epoch=1)
    assert (renewed.granted, renewed.epoch) == (True, 1)
    await cluster.stop_placement()
    await cluster.start_placement()
    still = await client.lease("broker", "b", 60_000)
    assert (still.granted, still.epoch) == (False, 1)
    incarnation = await client.lease("broker", "a", 60_000)
    assert (incarnation.granted, incarnation.epoch) == (True, 2)
    stale = await client.lease("broker", "a", 60_000, epoch=1)
    assert (stale.granted, stale.epoch) == (False, 2)
    released = await client.release("broker", "a", 2)
    assert released.granted
    queried = await client.query_lease("broker")
    assert (queried.holder, queried.epoch, queried.remaining_ms) == ("", 2, 0)
    taken = await client.lease("broker", "b", 60_000)
    assert (taken.granted, taken.epoch) == (True, 3)


async def test_the_cluster_describes_itself(cluster: Cluster, client: SbpClient) -> None:
    assert cluster.node is not None
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"a"))
    await client.seal(stream.stream_id, 0)
    await client.lease("broker", "a", 60_000, "host:1")
    await client.lease("gone", "b", 60_000)
    await client.release("gone", "b", 1)
    brief = await client.describe_cluster()
    assert [(node.data_node, node.is_alive, node.open_ranges) for node in brief.nodes] == [
        (m.DataNode(0, cluster.node.address or "node:0"), True, 1)
    ]
    assert [(lease.name, lease.holder, lease.address) for lease in brief.leases] == [
        ("broker", "a", "host:1")
    ]
    assert 0 < brief.leases[0].remaining_ms <= 60_000
    assert (brief.streams, brief.ranges, brief.nodes[0].ranges) == (1, -1, -1), "not counted"
    whole = await client.describe_cluster(count_ranges=True)
    assert (whole.ranges, whole.nodes[0].ranges) == (2, 2)
    assert (whole.ranges_sealing, whole.ranges_short, whole.ranges_unavailable) == (0, 0, 0)
    if cluster.tcp:  # in process everybody is a node
        with pytest.raises(UnauthenticatedError):
            await cluster.client(credential=b"").describe_cluster()


# Time


async def test_offset_at_a_time(client: SbpClient) -> None:
    stream = await client.create_stream()
    for index in range(6):
        await client.append(stream.stream_id, batch(b"t", timestamp=1_000 * (index + 1)))
        if index == 2:
            await client.seal(stream.stream_id, 0)
    found = [await client.offset_at(stream.stream_id, t) for t in (0, 1_000, 2_500, 6_000, 9_999)]
    assert found == [0, 0, 2, 5, 6]


async def test_plain_streams_are_trimmed_by_time(tmp_path: Path) -> None:
    cluster = Cluster(
        system_runtime(),
        str(tmp_path),
        tcp=False,
        placement_settings=PlacementSettings(tick_interval_ms=20, retention_interval_ms=100),
    )
    await cluster.start()
    client = cluster.client()
    stream = await client.create_stream(retention_period_ms=60_000)
    kept = await client.create_stream()
    now_ms = cluster.runtime.clock.now_ms()
    for each in (stream, kept):
        await client.append(each.stream_id, batch(b"old", timestamp=now_ms - 120_000))
        await client.seal(each.stream_id, 0)
        await client.append(each.stream_id, batch(b"new", timestamp=now_ms))

    async def trimmed() -> bool:
        return (await client.bounds(stream.stream_id))[0] == 1

    await eventually(cluster.runtime, trimmed)
    assert (await client.bounds(kept.stream_id))[0] == 0
    await cluster.close()


# Access


async def test_what_each_credential_may_do(tmp_path: Path) -> None:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=True, plain_streams=True)
    await cluster.start()
    node = cluster.client()
    secret_stream = await node.create_stream(name="p/1/0/0")
    other_stream = await node.create_stream(name="p/2/0/0")
    writer = await OwnedStream.open(node, secret_stream.stream_id, 1, clean=True)
    await writer.append(*owned(batch(b"secret", base_offset=0)))

    anonymous = cluster.client(credential=b"")
    plain = await anonymous.create_stream(name="mine")
    await anonymous.append(plain.stream_id, batch(b"hello"))
    assert await read_all(anonymous, plain.stream_id) == [(0, b"hello")]
    with pytest.raises(UnauthorizedError):
        await anonymous.create_stream(name="s/catalogue")
    with pytest.raises(UnauthorizedError):
        await anonymous.list_ranges(secret_stream.stream_id)
    with pytest.raises(UnauthorizedError):
        await anonymous.delete_stream(secret_stream.stream_id)
    with pytest.raises(UnauthorizedError):
        await anonymous.lease("broker", "x", 1000)
    anonymous.known_ranges[secret_stream.stream_id] = node.known_ranges[secret_stream.stream_id]
    with pytest.raises(UnauthorizedError):
        await anonymous.fetch(secret_stream.stream_id, 0, max_bytes=100)

    expires_ms = cluster.runtime.clock.now_ms() + 60_000
    reader = cluster.client(credential=make_ticket(SECRET, [secret_stream.stream_id], expires_ms))
    fetched = await reader.fetch(secret_stream.stream_id, 0, max_bytes=100)
    assert bodies(fetched.pieces) == [(0, b"secret")]
    with pytest.raises(UnauthorizedError):
        await reader.list_ranges(other_stream.stream_id)
    with pytest.raises(UnauthorizedError):
        await reader.append(secret_stream.stream_id, batch(b"no"), writer_epoch=1)
    with pytest.raises(UnauthorizedError):
        await reader.create_stream(name="no")
    wrong = cluster.client(credential=b"node:" + b"x" * 32)
    with pytest.raises(UnauthorizedError):
        await wrong.create_stream()
    await writer.close()
    await cluster.close()


# Store


async def test_placement_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "placement.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(FormatError):
        await SqliteStore.open(system_runtime(), str(path))


async def test_a_new_data_node_needs_the_placement_manager(tmp_path: Path) -> None:
    cluster = Cluster(
        system_runtime(),
        str(tmp_path),
        tcp=False,
        node_settings=DataNodeSettings(register_timeout_ms=100),
    )
    with pytest.raises(UnavailableError):
        await cluster.start_node()


async def test_stream_creation_retries_until_a_node_registers(tmp_path: Path, tcp: bool) -> None:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=tcp)
    await cluster.start_placement()
    client = cluster.client(settings=ClientSettings(metadata_timeout_ms=60_000))
    creating = asyncio.create_task(client.create_stream())
    await asyncio.sleep(0.05)
    await cluster.start_node()
    assert (await creating).stream_id >= 0
    await cluster.close()


async def test_not_enough_nodes_is_reported_in_the_end(tmp_path: Path) -> None:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=False)
    await cluster.start_placement()
    client = cluster.client()
    client.settings = ClientSettings(metadata_timeout_ms=1000)
    with pytest.raises((NotEnoughNodesError, DeadlineError), match="not enough data nodes"):
        await client.create_stream()
    await cluster.close()
