"""A data node whose disk cannot keep up: its clients pause, and nothing is lost or sealed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from headrace.runtime.system import system_runtime
from headrace.runtime.system.disk import SystemFile
from tests.log_cluster import STORAGE, Cluster, batch, read_all

KIB = 1024


async def test_appends_beyond_what_may_wait_for_the_disk_arrive_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_data = SystemFile.sync_data

    def slowly(file: SystemFile) -> None:
        time.sleep(0.05)
        sync_data(file)

    monkeypatch.setattr(SystemFile, "sync_data", slowly)
    storage = msgspec.structs.replace(STORAGE, queued_bytes_max=1024 * KIB)
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=True, sqlite=False, storage=storage)
    await cluster.start()
    client = cluster.client()
    stream = await client.create_stream()
    bodies = [b"%04d" % n + bytes(120 * KIB) for n in range(64)]
    offsets = await asyncio.gather(
        *(client.append(stream.stream_id, batch(body), timeout=60) for body in bodies)
    )
    server = cluster.live(0)._server
    assert server is not None
    assert server.statistics()["answers_throttled"] > 0
    assert sorted(offsets) == list(range(64))
    stored = dict(await read_all(client, stream.stream_id))
    assert [stored[offset] for offset in offsets] == bodies
    assert len(await client.list_ranges(stream.stream_id)) == 1, "busy is no reason to seal"
    await cluster.close()
