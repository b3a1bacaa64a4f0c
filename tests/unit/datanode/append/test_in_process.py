"""The way from a writer to a data node in its process, which takes neither messages nor tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.config.datanode import StorageSettings
from headrace.config.process import ClientSettings
from headrace.errors import (
    FencedError,
    InvalidArgumentError,
    RangeNotFoundError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.net.sbp_routes import LocalNode
from headrace.runtime.system import system_runtime
from headrace.sbp_client.owned_stream import OwnedStream
from tests.log_cluster import Cluster, batch, read_all

MIB = 1 << 20
PATIENT = ClientSettings(request_timeout_ms=30_000)  # with a disk that takes its time


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    storage = StorageSettings(commit_threads=2, min_free_bytes=0, queued_bytes_max=MIB)
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=False, sqlite=False, storage=storage)
    await cluster.start()
    yield cluster
    await cluster.close()


def local_of(cluster: Cluster) -> LocalNode:
    assert cluster.node is not None
    assert cluster.node.routes.local is not None
    return cluster.node.routes.local


def append(stream: OwnedStream, *payloads: bytes) -> asyncio.Future[int]:
    header, body = batch(*payloads, base_offset=stream.next_offset)
    assert isinstance(header, bytearray)
    return stream.append(header, [body])


async def test_batches_are_stored_in_order_and_counted(cluster: Cluster) -> None:
    client = cluster.client(settings=PATIENT)
    stream = await client.create_stream(name="s/a")
    writer = await OwnedStream.open(client, stream.stream_id, 1)
    before = asyncio.all_tasks()
    answers = [append(writer, b"%03d" % n, b"x") for n in range(100)]
    assert asyncio.all_tasks() == before
    assert [await answer for answer in answers] == list(range(0, 200, 2))
    assert cluster.node is not None
    assert cluster.node.counters.appends == 100
    assert cluster.node.counters.appends_in_flight == 0
    stored = await read_all(client, stream.stream_id)
    assert stored == [(2 * n, b"%03dx" % n) for n in range(100)]
    await writer.close()


async def test_more_than_may_wait_is_throttled_and_sent_later(cluster: Cluster) -> None:
    client = cluster.client(settings=PATIENT)
    stream = await client.create_stream(name="s/a")
    writer = await OwnedStream.open(client, stream.stream_id, 1)
    ranges = len(await client.list_ranges(stream.stream_id))
    answers = [append(writer, bytes([n]) * 300_000) for n in range(12)]
    assert [await answer for answer in answers] == list(range(12))
    assert cluster.node is not None
    assert cluster.node.counters.appends_failed > 0
    assert [body[0] for _, body in await read_all(client, stream.stream_id)] == list(range(12))
    assert len(await client.list_ranges(stream.stream_id)) == ranges
    await writer.close()


async def test_a_higher_epoch_ends_the_writer(cluster: Cluster) -> None:
    client = cluster.client()
    stream = await client.create_stream(name="s/a")
    old = await OwnedStream.open(client, stream.stream_id, 1)
    await append(old, b"a")
    new = await OwnedStream.open(client, stream.stream_id, 2)
    with pytest.raises(FencedError):
        await append(old, b"b")
    with pytest.raises(FencedError):
        append(old, b"c")
    await append(new, b"d")
    assert await read_all(client, stream.stream_id) == [(0, b"a"), (1, b"d")]
    await old.close()
    await new.close()


async def test_a_node_that_does_not_answer_is_left_by_a_seal(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = cluster.client()
    stream = await client.create_stream(name="s/a")
    writer = await OwnedStream.open(client, stream.stream_id, 1, request_timeout=0.1)
    await append(writer, b"a")
    ranges = len(await client.list_ranges(stream.stream_id))
    local = local_of(cluster)
    with monkeypatch.context() as patch:
        lost = asyncio.get_running_loop().create_future()
        patch.setattr(local, "append", lambda *_, **__: lost)
        answers = [append(writer, b"b"), append(writer, b"c")]
        await asyncio.sleep(0.05)
        assert not answers[0].done()
    assert [await answer for answer in answers] == [1, 2]
    lost.set_result(None)  # too late: it belongs to a session that is over
    assert await append(writer, b"d") == 3
    assert await read_all(client, stream.stream_id) == [
        (0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"),
    ]  # fmt: skip
    assert len(await client.list_ranges(stream.stream_id)) > ranges
    await writer.close()


async def test_a_stopping_node_finishes_what_it_took_and_takes_no_more(cluster: Cluster) -> None:
    client = cluster.client()
    stream = await client.create_stream(name="s/a")
    writer = await OwnedStream.open(client, stream.stream_id, 1)
    newest = (await client.list_ranges(stream.stream_id))[-1]
    accepted = append(writer, b"a")
    local = local_of(cluster)
    await cluster.stop_node()
    assert await accepted == 0
    header, body = batch(b"b", base_offset=1)
    assert isinstance(header, bytearray)
    with pytest.raises(UnavailableError):
        local.append(
            stream.stream_id,
            newest.range_index,
            writer_epoch=1,
            expected_offset=1,
            header=header,
            body=[body],
        )
    await writer.close()


async def test_refusals(cluster: Cluster) -> None:
    client = cluster.client()
    stream = await client.create_stream(name="plain")
    header, body = batch(b"a")
    assert isinstance(header, bytearray)
    await client.append(stream.stream_id, [header, body])
    (range_,) = await client.list_ranges(stream.stream_id)
    local = local_of(cluster)
    for stream_id, offset, error in (
        (stream.stream_id, 1, InvalidArgumentError),  # no epoch protects it
        (stream.stream_id, 7, UnexpectedOffsetError),
        (999, 0, RangeNotFoundError),
    ):
        with pytest.raises(error):
            local.append(
                stream_id,
                range_.range_index,
                writer_epoch=-1,
                expected_offset=offset,
                header=header,
                body=[body],
            )


async def test_cached_batches_are_those_a_fetch_returns(cluster: Cluster) -> None:
    client = cluster.client()
    stream = await client.create_stream(name="s/a")
    writer = await OwnedStream.open(client, stream.stream_id, 1)
    for n in range(10):
        await append(writer, b"%d" % n * 100)
    local = local_of(cluster)
    fetched = await client.fetch(stream.stream_id, 4, max_bytes=400)
    cached = local.read_cached(stream.stream_id, 4, 400)
    assert [b"".join(pieces) for pieces in cached] == fetched.pieces
    assert not local.read_cached(stream.stream_id, 10, 400)
    assert not local.read_cached(stream.stream_id, 11, 400)
    assert not local.read_cached(999, 0, 400)
    await client.trim(stream.stream_id, 5)
    assert not local.read_cached(stream.stream_id, 4, 400)
    await writer.close()
