"""Readers on a data node's machine, which read its files themselves: real sockets and files.

Whatever happens to the files meanwhile, a reader gets the rows that FETCH gives, or an error.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import pytest_asyncio

from headrace.client.arrow import payloads_of, to_area
from headrace.client.partition_reader import Access, TicketReader
from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.process import ClientSettings
from headrace.errors import (
    CorruptionError,
    HeadraceError,
    NotFoundError,
    OffsetOutOfRangeError,
    RangeNotFoundError,
    StorageError,
    UnauthorizedError,
)
from headrace.net.addresses import parse_address
from headrace.net.credentials import make_ticket
from headrace.net.sbp_channel import TcpChannel
from headrace.runtime.system import system_runtime
from headrace.runtime.system.disk import SystemDisk, SystemFile
from headrace.sbp_client import fetch
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.ranges import Want
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import RECORDS_IGGY, encode_header
from tests.log_cluster import SECRET, Cluster, batch, bodies, eventually

RUNTIME = system_runtime()
STORAGE = StorageSettings(
    commit_threads=2,
    read_threads=2,
    min_free_bytes=0,
    segment_bytes_max=4 << 20,
    tail_cache_bytes=0,
)
RUN_BYTES = 1 << 20
Rows = list[tuple[int, bytes]]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(RUNTIME, str(tmp_path), tcp=True, storage=STORAGE)
    await cluster.start()
    yield cluster
    await cluster.close()


async def fill(client: SbpClient, stream_id: int, count: int = 24) -> Rows:
    """Batches of one record, of 3 bytes to 1.2 MB, over several segments."""
    sizes = (700_000, 3, 300_000, 1_200_000, 50_000, 450_000)
    rows = []
    for n in range(count):
        body = bytes([n]) * sizes[n % len(sizes)]
        rows.append((await client.append(stream_id, batch(body)), body))
    return rows


async def read(
    client: SbpClient,
    stream_id: int,
    offset: int,
    end: int,
    *,
    local: bool = True,
    keep: Callable[[Rows], None] = lambda rows: None,
) -> Rows:
    found: Rows = []
    while offset < end:
        fetched = await client.fetch(stream_id, offset, max_bytes=RUN_BYTES, local=local)
        assert fetched.pieces, f"nothing at {offset} of {end}"
        assert sum(map(len, fetched.pieces)) <= max(RUN_BYTES, 1_300_000)
        found += bodies(fetched.pieces)
        keep(bodies(fetched.pieces))
        offset = fetched.next_offset
    return found


def located(cluster: Cluster, at: int = 0) -> int:
    return cluster.live(at).counters.fetches_located


def segments(cluster: Cluster, at: int = 0) -> list[Path]:
    return sorted(Path(cluster.node_folder(at)).glob("log/streams/*/*/*.log"))


async def test_gives_the_rows_that_fetch_gives(cluster: Cluster) -> None:
    client = cluster.client()
    stream_id = (await client.create_stream(replica_nums=1)).stream_id
    rows = await fill(client, stream_id)
    end = len(rows)
    assert await read(client, stream_id, 0, end, local=False) == rows
    assert located(cluster) == 0
    sent = cluster.live(0).counters.bytes_out
    assert await read(client, stream_id, 0, end) == rows
    assert len(segments(cluster)) > 2
    assert located(cluster) >= 2
    assert cluster.live(0).counters.bytes_out - sent < (4 << 20)  # ends of segments, at most
    for start in range(end):
        found = await read(client, stream_id, start, start + 1)
        assert found == rows[start : start + len(found)]
    # What is appended later is there too, and after a restart everything still is.
    more = [(end + n, body) for n, (_, body) in enumerate(await fill(client, stream_id, 6))]
    assert await read(client, stream_id, 0, end + 6) == rows + more
    await cluster.stop_node()
    await cluster.start_node()
    before = located(cluster)
    assert await read(client, stream_id, 0, end + 6) == rows + more
    assert located(cluster) > before


async def test_a_trim_under_a_reader(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = cluster.client()
    stream_id = (await client.create_stream(replica_nums=1)).stream_id
    rows = await fill(client, stream_id)
    first = await client.fetch(stream_id, 0, max_bytes=RUN_BYTES, local=True)
    assert bodies(first.pieces) == rows[: first.next_offset]
    files = len(segments(cluster))
    await client.trim(stream_id, 20)
    assert len(segments(cluster)) < files
    # The file that is open is read to its end: those rows were there when they were located.
    second = await client.fetch(stream_id, first.next_offset, max_bytes=RUN_BYTES, local=True)
    assert bodies(second.pieces) == rows[first.next_offset : second.next_offset]
    # Nothing is located below the trim any more.
    with pytest.raises(OffsetOutOfRangeError):
        await read(client, stream_id, second.next_offset, 20)
    assert await read(client, stream_id, 20, 24) == rows[20:]
    # A stretch is asked for again after so many bytes, and then the trim holds in it, too.
    monkeypatch.setattr(fetch, "STRETCH_BYTES_MAX", 1)
    await client.fetch(stream_id, 20, max_bytes=1, local=True)
    await client.trim(stream_id, 24)
    with pytest.raises(OffsetOutOfRangeError):
        await client.fetch(stream_id, 21, max_bytes=1, local=True)


async def test_a_stream_deleted_under_a_reader(cluster: Cluster) -> None:
    client = cluster.client()
    stream_id = (await client.create_stream(replica_nums=1)).stream_id
    rows = await fill(client, stream_id)
    first = await client.fetch(stream_id, 0, max_bytes=RUN_BYTES, local=True)
    found = bodies(first.pieces)
    await client.delete_stream(stream_id)
    assert not segments(cluster)
    with pytest.raises((RangeNotFoundError, NotFoundError, OffsetOutOfRangeError)):
        await read(client, stream_id, first.next_offset, len(rows), keep=found.extend)
    assert found == rows[: len(found)]
    assert 0 < len(found) < len(rows)


async def test_damage_is_found_and_served_by_another_replica(tmp_path: Path) -> None:
    cluster = Cluster(RUNTIME, str(tmp_path), tcp=True, nodes=2, storage=STORAGE)
    await cluster.start()
    try:
        client = cluster.client()
        stream_id = (await client.create_stream(replica_nums=2)).stream_id
        rows = await fill(client, stream_id, 12)
        assert await read(client, stream_id, 0, 12) == rows
        asked = max((0, 1), key=lambda at: located(cluster, at))
        path = segments(cluster, asked)[0]
        at = path.read_bytes().index(bytes([2]) * 1000)  # in the third batch
        with path.open("r+b") as file:
            file.seek(at + 500)
            file.write(b"?")
        assert await read(client, stream_id, 0, 12) == rows
        assert await read(cluster.client(), stream_id, 2, 12) == rows[2:]
    finally:
        await cluster.close()


async def test_damage_without_another_replica_is_told(cluster: Cluster) -> None:
    client = cluster.client()
    stream_id = (await client.create_stream(replica_nums=1)).stream_id
    rows = await fill(client, stream_id, 12)
    (path, *_) = segments(cluster)
    content = path.read_bytes()
    path.write_bytes(content.replace(bytes([2]) * 1000, bytes([3]) * 1000, 1))
    found = await read(client, stream_id, 0, 2)
    assert found[:2] == rows[:2]
    with pytest.raises(CorruptionError):
        await client.fetch(stream_id, 2, max_bytes=1, local=True)
    assert await read(client, stream_id, 3, 12) == rows[3:]


async def test_a_node_killed_under_a_reader(tmp_path: Path) -> None:
    cluster = Cluster(RUNTIME, str(tmp_path), tcp=True, nodes=2, storage=STORAGE)
    await cluster.start()
    try:
        client = cluster.client()
        stream_id = (await client.create_stream(replica_nums=2)).stream_id
        rows = await fill(client, stream_id, 12)
        await client.seal(stream_id, 0)  # any replica may be asked
        first = await client.fetch(stream_id, 0, max_bytes=RUN_BYTES, local=True)
        asked = max((0, 1), key=lambda at: located(cluster, at))
        assert located(cluster, asked) == 1
        await cluster.kill_node(asked)
        rest = await read(client, stream_id, first.next_offset, 12)
        assert bodies(first.pieces) + rest == rows
        assert located(cluster, 1 - asked) > 0
        await cluster.start_node(asked)
    finally:
        await cluster.close()


async def test_a_ticket_counts_as_ever(cluster: Cluster) -> None:
    owner = cluster.client()
    stream_id = (await owner.create_stream(replica_nums=1)).stream_id
    other_id = (await owner.create_stream(replica_nums=1)).stream_id
    rows = await fill(owner, stream_id, 6)
    now_ms = RUNTIME.clock.now_ms()
    reader = cluster.client(credential=make_ticket(SECRET, [stream_id], now_ms + 60_000))
    assert await read(reader, stream_id, 0, 6) == rows
    assert located(cluster) == 1
    for ticket in (
        make_ticket(SECRET, [other_id], now_ms + 60_000),
        make_ticket(SECRET, [stream_id], now_ms - 1),
        make_ticket(b"x" * 32, [stream_id], now_ms + 60_000),
    ):
        with pytest.raises(UnauthorizedError):
            await cluster.client(credential=ticket).fetch(
                stream_id, 0, max_bytes=RUN_BYTES, local=True
            )
    assert located(cluster) == 1


async def ask(cluster: Cluster, credential: bytes, info: m.FetchInfo) -> m.FetchResult:
    """The data node itself, without the placement manager, which refuses a wrong ticket before."""
    host, port = parse_address(cluster.live(0).address)
    channel = await TcpChannel.connect(
        RUNTIME, host, port, client_id="t", role=m.ClientRole.CUSTOMER, credential=credential
    )
    reply = await channel.call(Code.FETCH, m.FetchRequest(fetch_requests=(info,)))
    await channel.close()
    assert isinstance(reply.message, m.FetchResponse)
    (result,) = reply.message.fetch_responses
    return result


async def test_a_stretch_is_told_to_who_may_read_and_asks_for_it(cluster: Cluster) -> None:
    owner = cluster.client()
    stream_id = (await owner.create_stream(replica_nums=1)).stream_id
    rows = await fill(owner, stream_id, 6)
    now_ms = RUNTIME.clock.now_ms()
    ticket = make_ticket(SECRET, [stream_id], now_ms + 60_000)
    wrong = make_ticket(SECRET, [stream_id + 1], now_ms + 60_000)
    info = m.FetchInfo(
        stream_id=stream_id, batch_max_bytes=RUN_BYTES, machine=RUNTIME.disk.machine()
    )
    refused = await ask(cluster, wrong, info)
    assert refused.status is not None
    assert refused.status.code == 1403
    assert refused.stretch is None
    for other in (replace(info, machine=""), replace(info, machine="another")):
        sent = await ask(cluster, ticket, other)
        assert sent.stretch is None
        assert sent.batch_length > 700_000
    by_time = await ask(cluster, ticket, replace(info, start_timestamp=0))
    assert by_time.stretch is None
    found = await ask(cluster, ticket, info)
    assert found.batch_length == 0
    stretch = found.stretch
    assert stretch is not None
    assert (stretch.start_offset, stretch.stop_offset) == (0, 6)
    # Of a range that ends below it, as a replica may not know yet, only what is part of it is read.
    reads = fetch.LocalReads(RUNTIME)
    ended = m.Range(stream_id=stream_id, range_index=0, end_offset=2)
    fetched = await reads.begin("node", ended, stretch, Want(stream_id, 0, 8 << 20, True))
    assert fetched is not None
    assert (bodies(fetched.pieces), fetched.next_offset) == (rows[:2], 2)
    await reads.close()


async def test_messages_of_a_ticket_reader(cluster: Cluster) -> None:
    owner = cluster.client()
    stream_id = (await owner.create_stream(replica_nums=1)).stream_id
    payloads = [b"%06d" % n * 60 for n in range(4000)]
    for first in range(0, 4000, 1000):
        area, _ = to_area(pa.array(payloads[first : first + 1000]), None, None)
        header = encode_header(
            base_offset=0,
            body=[area],
            record_count=1000,
            base_timestamp=1,
            max_timestamp=1,
            attributes=RECORDS_IGGY,
        )
        await owner.append(stream_id, [header, area])
    expires_ms = RUNTIME.clock.now_ms() + 60_000
    ticket = make_ticket(SECRET, [stream_id], expires_ms)
    placement = cluster._placement_addresses[0]
    access = Access(ticket, expires_ms, placement, {("t", 0): stream_id})
    reader = TicketReader(RUNTIME)
    for local, asked in ((False, 0), (True, 1)):
        found, at = [], 500
        while at < 3700:
            areas, at = await reader.fetch(access, ("t", 0), at, 3700, local=local)
            found += [text for each in areas for text in payloads_of(*each).to_pylist()]
        assert found == payloads[500:3700]
        assert located(cluster) == asked
    await reader.close()


class Elsewhere(SystemDisk):
    """Another machine's, or another container's, or another user's."""

    def __init__(self, *, machine: str = "", error: HeadraceError | None = None) -> None:
        self._machine = machine
        self._error = error

    def machine(self) -> str:
        return self._machine or super().machine()

    def open_same(self, path: str, identity: str) -> SystemFile:
        if self._error is not None:
            raise self._error
        return super().open_same(path, identity)


def reading_on(
    cluster: Cluster, disk: SystemDisk, settings: ClientSettings | None = None
) -> SbpClient:
    kept, cluster.runtime = cluster.runtime, replace(RUNTIME, disk=disk)
    try:
        return cluster.client(settings=settings)
    finally:
        cluster.runtime = kept


@pytest.mark.parametrize(
    ("disk", "asked"),
    [
        (Elsewhere(machine="another"), 0),
        (Elsewhere(error=NotFoundError("no such file")), 1),
        (Elsewhere(error=StorageError("permission denied")), 1),
    ],
    ids=["machine", "container", "user"],
)
async def test_falls_back_in_silence(cluster: Cluster, disk: Elsewhere, asked: int) -> None:
    owner = cluster.client()
    stream_id = (await owner.create_stream(replica_nums=1)).stream_id
    rows = await fill(owner, stream_id, 12)
    reader = reading_on(cluster, disk)
    assert await read(reader, stream_id, 0, 12) == rows
    assert located(cluster) == asked  # not asked again for a while
    assert await read(reader, stream_id, 0, 12) == rows
    assert located(cluster) == asked


class OneNodes(SystemDisk):
    """Of the machine that one data node runs on."""

    folder = ""

    def open_same(self, path: str, identity: str) -> SystemFile:
        if not Path(path).is_relative_to(self.folder):
            raise NotFoundError("on another machine")
        return super().open_same(path, identity)


async def test_the_replica_on_the_readers_machine_is_asked_first(tmp_path: Path) -> None:
    cluster = Cluster(RUNTIME, str(tmp_path), tcp=True, nodes=3, storage=STORAGE)
    await cluster.start()
    try:
        owner = cluster.client()
        stream_id = (await owner.create_stream(replica_nums=3)).stream_id
        rows: Rows = []
        for index in range(9):
            body = bytes([index]) * 1_200_000  # what is little comes as bytes
            rows.append((await owner.append(stream_id, batch(body)), body))
            await owner.seal(stream_id, index)

        async def settled() -> bool:
            logs = [cluster.live(at).state.ranges(stream_id)[:9] for at in range(3)]
            return all(log.final for each in logs for log in each)

        await eventually(RUNTIME, settled)
        disk = OneNodes()
        reader = reading_on(cluster, disk, ClientSettings(hedge_after_ms=0))
        ranges = (await reader.ranges(stream_id)).ranges
        near = reader.replicas.order(ranges[0])[0]
        assert any(reader.replicas.order(one)[0] != near for one in ranges[:9])
        (at,) = [at for at in range(3) if cluster.live(at).address == near]
        disk.folder = cluster.node_folder(at)
        found: Rows = []
        for offset, _ in rows:
            found += await read(reader, stream_id, offset, offset + 1)
        assert found == rows
        assert located(cluster, at) == 9
    finally:
        await cluster.close()


async def test_can_be_switched_off_at_the_node(tmp_path: Path) -> None:
    settings = DataNodeSettings(heartbeat_interval_ms=200, local_reads=False)
    cluster = Cluster(RUNTIME, str(tmp_path), tcp=True, storage=STORAGE, node_settings=settings)
    await cluster.start()
    client = cluster.client()
    stream_id = (await client.create_stream(replica_nums=1)).stream_id
    rows = await fill(client, stream_id, 6)
    assert await read(client, stream_id, 0, 6) == rows
    assert located(cluster) == 0
    await cluster.close()


async def test_keeps_few_files_open(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "READERS_MAX", 2)
    client = cluster.client()
    expected = {}
    for _ in range(4):
        stream_id = (await client.create_stream(replica_nums=1)).stream_id
        expected[stream_id] = await fill(client, stream_id, 6)
    reader = cluster.client()
    for stream_id in expected:
        await reader.fetch(stream_id, 0, max_bytes=1, local=True)
    assert open_for_reading(cluster) == 2
    for stream_id, rows in expected.items():
        assert await read(reader, stream_id, 1, 6) == rows[1:]
    await reader.close()
    assert open_for_reading(cluster) == 0


def open_for_reading(cluster: Cluster) -> int:
    """Segments that this process has open without the right to write."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            text = Path(f"/proc/self/fdinfo/{name}").read_text()
        except FileNotFoundError:
            continue
        flags = int(text.split("flags:")[1].split()[0], 8)
        count += target.endswith(".log") and flags & os.O_ACCMODE == os.O_RDONLY
    return count
