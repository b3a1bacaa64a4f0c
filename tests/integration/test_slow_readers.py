"""Peers that ask for much and take little: they stop themselves, and cost a bounded memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.net.addresses import parse_address
from headrace.net.sbp_server import ServerLimits
from headrace.runtime.system import system_runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.frames import Frame, encode_frame
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import Cluster, batch, read_all
from tests.unit.net.sbp_fixtures import until

MIB = 1 << 20
LIMIT = ServerLimits().reply_bytes_max
FRAME = 4 * MIB  # what is found in memory goes past the limit once


@pytest.mark.parametrize(
    ("cached", "fetch_bytes", "requests"),
    [(True, 8 * MIB, 200), (False, 8 * MIB, 200), (True, MIB, 900)],
    ids=["from memory", "from disk", "a frame at a time"],
)
async def test_fetched_bytes_are_bounded_for_a_reader_that_takes_nothing(
    tmp_path: Path, cached: bool, fetch_bytes: int, requests: int
) -> None:
    runtime = system_runtime()
    cluster = Cluster(runtime, str(tmp_path), tcp=True, plain_streams=True)
    if not cached:
        cluster.storage = type(cluster.storage)(tail_cache_bytes=0, min_free_bytes=0)
    await cluster.start()
    client = cluster.client()
    stream = await client.create_stream()
    for _ in range(8):
        await client.append(stream.stream_id, batch(bytes(MIB - 55)))
    assert cluster.node is not None
    server = cluster.node._server
    assert server is not None

    greedy = await runtime.transport.connect(*parse_address(server.address))
    info = m.FetchInfo(stream_id=stream.stream_id, batch_max_bytes=fetch_bytes)
    header = encode(m.FetchRequest(fetch_requests=(info,)))
    for stream_id in range(1, requests + 1):  # 900 MiB of answers and more
        greedy.write(encode_frame(Frame(Code.FETCH, 0, stream_id, header)))
    await greedy.drain()
    await until(lambda: server.statistics()["requests_in_flight"] >= 0.75 * requests)
    await until(lambda: server.statistics()["reply_bytes_held"] > LIMIT // 2)
    for _ in range(20):
        assert server.statistics()["reply_bytes_held"] <= LIMIT + FRAME
        await asyncio.sleep(0.01)
    assert len(await read_all(client, stream.stream_id)) == 8, "others are served"
    greedy.abort()
    await greedy.wait_closed()
    await until(lambda: server.statistics()["reply_bytes_held"] == 0)
    await cluster.close()
