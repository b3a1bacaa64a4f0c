"""Replicated ranges on three data nodes with a real placement manager: failure scenarios F1 to F6,
F12, F15 to F18 and F29 of the SBP reference, and the upstream defects that concern data nodes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.config.process import ClientSettings
from headrace.datanode.append.requests import Accepted, accept_replica
from headrace.datanode.service import DataNodeService
from headrace.datanode.state import NodeState
from headrace.errors import (
    HeadraceError,
    ThrottledError,
    UnauthorizedError,
    UnavailableError,
)
from headrace.net.addresses import parse_address
from headrace.net.credentials import make_ticket, node_credential
from headrace.net.sbp_channel import Channel, TcpChannel
from headrace.placement.metadata.records import Put
from headrace.runtime.interfaces import Buffer
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import PRODUCER, split
from tests.log_cluster import SECRET, STORAGE, Cluster, batch, bodies, eventually, read_all

NODE = DataNodeSettings(
    heartbeat_interval_ms=100,
    unsettled_interval_ms=50,
    replica_timeout_ms=1_000,
    commit_notice_ms=10,
    drain_timeout_ms=5_000,
)
PATIENT = ClientSettings(request_timeout_ms=20_000)  # with disks that take a second to sync
PLACEMENT = PlacementSettings(tick_interval_ms=30, node_timeout_ms=2_500, seal_timeout_ms=500)


@pytest.fixture(params=["tcp", "in process"])
def tcp(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tcp")


async def start(
    folder: Path,
    *,
    tcp: bool,
    nodes: int = 3,
    placements: int = 1,
    node_settings: DataNodeSettings = NODE,
    plain_streams: bool = False,
    cache_bytes: int = 1 << 20,
) -> Cluster:
    cluster = Cluster(
        system_runtime(),
        str(folder),
        tcp=tcp,
        sqlite=False,
        nodes=nodes,
        placements=placements,
        node_settings=node_settings,
        placement_settings=PLACEMENT,
        plain_streams=plain_streams,
        storage=msgspec.structs.replace(STORAGE, tail_cache_bytes=cache_bytes),
    )
    await cluster.start()
    return cluster


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, tcp: bool) -> AsyncIterator[Cluster]:
    cluster = await start(tmp_path, tcp=tcp)
    yield cluster
    await cluster.close()


@pytest.fixture
def client(cluster: Cluster) -> SbpClient:
    return cluster.client(settings=PATIENT)


# What tests look at


def logs_of(cluster: Cluster, stream_id: int, index: int = 0) -> dict[int, RangeLog]:
    """By place in the cluster, of the nodes that run and have the range."""
    found = {}
    for at, node in enumerate(cluster.nodes):
        log = node.state.find(RangeKey(stream_id, index)) if node is not None else None
        if log is not None:
            found[at] = log
    return found


def places(cluster: Cluster, stream_id: int, index: int = 0) -> tuple[int, list[int]]:
    """Where the primary and the secondaries of a range are."""
    log = next(iter(logs_of(cluster, stream_id, index).values()))
    primary, *secondaries = map(cluster.at, log.replicas)
    return primary, secondaries


async def content(log: RangeLog) -> list[tuple[int, bytes]]:
    """Everything on that disk, committed or not."""
    found: list[tuple[int, bytes]] = []
    offset = log.start_offset
    while offset < log.durable_offset:
        views = await log.read_durable(offset, 1 << 20)
        found.extend((h.base_offset, bytes(b)) for view in views for h, b in split(view))
        offset = log.durable_offset
    return found


async def until(cluster: Cluster, check: Callable[[], bool], *, seconds: float = 30.0) -> None:
    async def checked() -> bool:
        return check()

    await eventually(cluster.runtime, checked, seconds=seconds)


def complete(cluster: Cluster, stream_id: int, index: int, *, copies: int) -> bool:
    logs = logs_of(cluster, stream_id, index).values()
    return sum(log.final and log.missing is None for log in logs) == copies


async def channel_to(cluster: Cluster, at: int) -> Channel:
    return await cluster.node_connect(cluster.live(at).advertise)()


async def append_to(
    cluster: Cluster,
    at: int,
    stream_id: int,
    pieces: list[Buffer],
    *,
    index: int = -1,
    timeout_ms: int = 15_000,
) -> m.AppendResult:
    """One APPEND to one node, without anybody's retries."""
    channel = await channel_to(cluster, at)
    info = m.AppendInfo(
        range=m.Range(stream_id=stream_id, range_index=index),
        request_index=7,
        batch_length=sum(map(len, pieces)),
    )
    request = m.AppendRequest(timeout_ms=timeout_ms, append_requests=(info,))
    reply = await channel.call(Code.APPEND, request, pieces, timeout=timeout_ms / 1000 + 5)
    await channel.close()
    assert isinstance(reply.message, m.AppendResponse)
    (result,) = reply.message.append_responses
    return result


async def fetch_at(cluster: Cluster, at: int, stream_id: int, offset: int) -> m.FetchResult:
    channel = await channel_to(cluster, at)
    info = m.FetchInfo(stream_id=stream_id, fetch_offset=offset, batch_max_bytes=1 << 20)
    reply = await channel.call(Code.FETCH, m.FetchRequest(fetch_requests=(info,)))
    await channel.close()
    assert isinstance(reply.message, m.FetchResponse)
    (result,) = reply.message.fetch_responses
    return result


def code_of(result: m.AppendResult | m.FetchResult) -> int:
    assert result.status is not None
    return result.status.code


@contextmanager
def refusing(
    monkeypatch: pytest.MonkeyPatch, *nodes: DataNodeService, error: type[HeadraceError]
) -> Iterator[None]:
    """These nodes take no replica appends."""

    def accept(state: NodeState[RangeLog], *args: Any, **kwargs: Any) -> Accepted:
        if any(state is node.state for node in nodes):
            raise error("not now")
        return accept_replica(state, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr("headrace.datanode.append.requests.accept_replica", accept)
        yield


def range_folder(cluster: Cluster, at: int, stream_id: int) -> Path:
    return Path(cluster.node_folder(at), "log", "streams", str(stream_id), "0")


def flip_a_bit(folder: Path, *, inside: bytes) -> None:
    (path,) = folder.glob("*.log")
    at = path.read_bytes().index(inside) + len(inside) // 2
    with path.open("r+b") as file:  # in place: somebody may be reading
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


# Appends


async def test_an_acknowledged_batch_is_on_a_quorum_and_soon_on_all(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream(replica_nums=3)
    for n in range(20):
        base = await client.append(stream.stream_id, batch(b"%d" % n, b"x"))
        logs = logs_of(cluster, stream.stream_id)
        assert sum(log.durable_offset >= base + 2 for log in logs.values()) >= 2
        primary, _ = places(cluster, stream.stream_id)
        assert logs[primary].durable_offset >= base + 2
    await until(cluster, lambda: {log.committed_offset for log in logs.values()} == {40})
    copies = [await content(log) for log in logs.values()]
    assert copies[0] == copies[1] == copies[2]
    assert [base for base, _ in copies[0]] == list(range(0, 40, 2)), "upstream defect 2"


async def test_many_appends_share_frames(cluster: Cluster, client: SbpClient) -> None:
    streams = [await client.create_stream(replica_nums=3) for _ in range(4)]
    for _ in range(3):
        await asyncio.gather(
            *(client.append(s.stream_id, batch(b"x" * 1000)) for s in streams for _ in range(25))
        )
    for stream in streams:
        assert await client.bounds(stream.stream_id) == (0, 75)
        assert len(await client.list_ranges(stream.stream_id)) == 1


async def test_owned_streams_replicate_over_the_short_way_too(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream(name="p/1/0/0", replica_nums=3)
    writer = await OwnedStream.open(client, stream.stream_id, 1)
    index = (await client.list_ranges(stream.stream_id))[-1].range_index
    answers = []
    for n in range(100):
        header, body = batch(b"%03d" % n, base_offset=n)
        assert isinstance(header, bytearray)
        answers.append(writer.append(header, [body]))
    assert [await answer for answer in answers] == list(range(100))
    logs = logs_of(cluster, stream.stream_id, index).values()
    assert sum(log.durable_offset == 100 for log in logs) >= 2
    raised = await OwnedStream.open(client, stream.stream_id, 2, clean=True)
    assert raised.next_offset == 100, "the range goes on under the new epoch"
    await until(cluster, lambda: [log.writer_epoch for log in logs] == [2, 2, 2])
    await writer.close()
    await raised.close()


async def test_secondaries_serve_what_is_committed(cluster: Cluster, client: SbpClient) -> None:
    """Upstream defect 17: an offset inside the last batch is found."""
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a", b"b"))
    await client.append(stream.stream_id, batch(b"c", b"d"))
    primary, secondaries = places(cluster, stream.stream_id)
    logs = logs_of(cluster, stream.stream_id)
    await until(cluster, lambda: all(log.committed_offset == 4 for log in logs.values()))
    for at in secondaries:
        assert (await fetch_at(cluster, at, stream.stream_id, 3)).batch_length > 0
        assert code_of(await fetch_at(cluster, at, stream.stream_id, 4)) == 2502
    at_end = await fetch_at(cluster, primary, stream.stream_id, 4)
    assert (code_of(at_end), at_end.batch_length) == (0, 0)


async def test_f17_a_poll_waits_for_the_commit(
    cluster: Cluster, client: SbpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    _, secondaries = places(cluster, stream.stream_id)
    poll = asyncio.create_task(
        client.fetch(stream.stream_id, 1, max_bytes=1000, max_wait_ms=20_000)
    )
    with refusing(monkeypatch, *map(cluster.live, secondaries), error=ThrottledError):
        append = asyncio.create_task(client.append(stream.stream_id, batch(b"b")))
        primary, _ = places(cluster, stream.stream_id)
        log = logs_of(cluster, stream.stream_id)[primary]
        await until(cluster, lambda: log.durable_offset == 2)
        await asyncio.sleep(0.05)
        assert not poll.done(), "on one disk only"
        assert not append.done()
    assert await append == 1
    assert bodies((await poll).pieces) == [(1, b"b")]
    empty = await client.fetch(stream.stream_id, 2, max_bytes=1000, max_wait_ms=50)
    assert (empty.pieces, empty.next_offset) == ([], 2)


async def test_results_name_their_stream_and_index_and_time(
    cluster: Cluster, client: SbpClient
) -> None:
    """Upstream defects 6 and 20: request_index, stream id in errors, milliseconds."""
    stream = await client.create_stream(replica_nums=3)
    primary, (secondary, _) = places(cluster, stream.stream_id)
    before = cluster.runtime.clock.now_ms()
    good = await append_to(cluster, primary, stream.stream_id, batch(b"a"))
    assert (code_of(good), good.stream_id, good.request_index) == (0, stream.stream_id, 7)
    assert before <= good.stream_append_time_ms <= cluster.runtime.clock.now_ms()
    bad = await append_to(cluster, secondary, stream.stream_id, batch(b"a"))
    assert (code_of(bad), bad.stream_id, bad.request_index) == (2502, stream.stream_id, 7)


async def test_describe_tells_the_next_offset(cluster: Cluster, client: SbpClient) -> None:
    """Upstream defect 8."""
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a", b"b", b"c"))
    described = await client.describe_range(stream.stream_id, 0)
    assert described.range is not None
    assert (described.range.start_offset, described.range.next_offset) == (0, 3)
    assert described.range.end_offset == -1


# Failures


async def test_f1_the_primary_dies_with_appends_in_flight(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream(replica_nums=3)
    acknowledged: dict[int, bytes] = {}

    async def produce(producer_id: int) -> None:
        for sequence in range(40):
            body = b"%d-%d" % (producer_id, sequence)
            pieces = batch(body, attributes=PRODUCER, producer_id=producer_id, sequence=sequence)
            offset = await client.append(stream.stream_id, pieces, timeout=20)
            assert offset not in acknowledged
            acknowledged[offset] = body

    producers = [asyncio.create_task(produce(n)) for n in range(4)]
    await until(cluster, lambda: len(acknowledged) > 30)
    primary, _ = places(cluster, stream.stream_id)
    await cluster.kill_node(primary)
    await asyncio.gather(*producers)
    found = await read_all(client, stream.stream_id)
    assert [offset for offset, _ in found] == list(range(len(found))), "no gap, no overlap"
    assert dict(found) == acknowledged, "nothing lost, nothing twice"


async def test_f2_a_dead_secondary_does_not_stop_the_range(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, (dead, _) = places(cluster, stream.stream_id)
    await cluster.kill_node(dead)
    for n in range(20):
        await client.append(stream.stream_id, batch(b"%d" % n))
    assert len(await client.list_ranges(stream.stream_id)) == 1
    load = await cluster.live(primary).load()
    assert load.short_ranges == 1
    await cluster.start_node(dead)
    await client.append(stream.stream_id, batch(b"again"))
    await until(cluster, lambda: _durable(cluster, stream.stream_id) == {22})


def _durable(cluster: Cluster, stream_id: int, index: int = 0) -> set[int]:
    return {log.durable_offset for log in logs_of(cluster, stream_id, index).values()}


async def test_f3_a_lost_quorum_fails_the_append_and_the_stream_moves(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream(replica_nums=2)
    await client.append(stream.stream_id, batch(b"a"))
    primary, (secondary,) = places(cluster, stream.stream_id)
    await cluster.kill_node(secondary)
    failed = await append_to(cluster, primary, stream.stream_id, batch(b"lost?"))
    assert code_of(failed) == 1479
    later = await append_to(cluster, primary, stream.stream_id, batch(b"no more"))
    assert code_of(later) in (1460, 1462), "the range takes no more"
    await client.append(stream.stream_id, batch(b"b"), timeout=15)
    found = await read_all(client, stream.stream_id)
    assert (found[0], found[-1][1]) == ((0, b"a"), b"b")


async def test_f3_without_a_spare_node_the_stream_waits(tmp_path: Path) -> None:
    cluster = await start(tmp_path, tcp=False, nodes=2)
    client = cluster.client()
    stream = await client.create_stream(replica_nums=2)
    await client.append(stream.stream_id, batch(b"a"))
    _, (secondary,) = places(cluster, stream.stream_id)
    await cluster.kill_node(secondary)
    with pytest.raises(HeadraceError):  # which depends on who notices first
        await client.append(stream.stream_id, batch(b"b"), timeout=1.5)
    await cluster.start_node(secondary)
    await client.append(stream.stream_id, batch(b"c"), timeout=15)
    assert [body for _, body in await read_all(client, stream.stream_id)][-1] == b"c"
    await cluster.close()


async def test_f4_a_tail_on_one_survivor_is_kept_and_copied(
    cluster: Cluster, client: SbpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    _, (behind, dead) = places(cluster, stream.stream_id)
    with refusing(monkeypatch, cluster.live(behind), error=ThrottledError):
        await client.append(stream.stream_id, batch(b"b"))  # on the primary and on `dead`
        await cluster.kill_node(dead)
        await client.seal(stream.stream_id, 0)
    (sealed, _) = await client.list_ranges(stream.stream_id)
    assert sealed.end_offset == 2, "the only copy that can be asked has it"
    await until(cluster, lambda: complete(cluster, stream.stream_id, 0, copies=2))
    assert await client.append(stream.stream_id, batch(b"c")) == 2
    await cluster.start_node(dead)
    await until(cluster, lambda: complete(cluster, stream.stream_id, 0, copies=3))
    copies = [await content(log) for log in logs_of(cluster, stream.stream_id).values()]
    assert copies[0] == copies[1] == copies[2]


async def test_f5_an_isolated_primary_acknowledges_nothing_and_truncates(
    cluster: Cluster, client: SbpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, secondaries = places(cluster, stream.stream_id)
    old = cluster.live(primary)
    log = logs_of(cluster, stream.stream_id)[primary]

    async def cut(*_: object, **__: object) -> None:
        raise UnavailableError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(old.ranges, "seal", cut)
        patch.setattr(old.ranges, "sync", cut)
        patch.setattr(old.contact, "call", cut)
        with refusing(monkeypatch, *map(cluster.live, secondaries), error=ThrottledError):
            isolated = await append_to(
                cluster, primary, stream.stream_id, batch(b"never"), timeout_ms=200
            )
            assert code_of(isolated) == 1, "timeout: the outcome is unknown"
            await until(cluster, lambda: log.durable_offset == 2)
            await client.seal(stream.stream_id, 0)
        assert await client.append(stream.stream_id, batch(b"b")) == 1
        refused = await append_to(cluster, primary, stream.stream_id, batch(b"never"), index=0)
        assert code_of(refused) != 0
    await until(cluster, lambda: log.final)
    assert (log.end_offset, log.durable_offset) == (1, 1)
    late = await append_to(cluster, primary, stream.stream_id, batch(b"no"), index=0)
    assert code_of(late) == 1460
    assert await read_all(client, stream.stream_id) == [(0, b"a"), (1, b"b")]


async def test_f6_f29_all_restart_and_nothing_is_forgotten_or_reused(
    cluster: Cluster, client: SbpClient
) -> None:
    """Upstream defect 4: a restarted window never goes back to an offset that was given out."""
    stream = await client.create_stream(replica_nums=3)
    for n in range(5):
        await client.append(stream.stream_id, batch(b"%d" % n, b"x"))
    for at in range(3):
        await cluster.kill_node(at)
    for at in range(3):
        await cluster.start_node(at)
    await until(cluster, lambda: complete(cluster, stream.stream_id, 0, copies=3))
    ranges = await client.list_ranges(stream.stream_id)
    assert ranges[0].end_offset == 10, "recovered from disk, and sealed without being asked"
    assert await client.append(stream.stream_id, batch(b"next")) == 10
    assert len(await read_all(client, stream.stream_id)) == 6


async def test_f29_a_primary_never_goes_on_in_a_range_it_led_before_a_restart(
    cluster: Cluster, client: SbpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, _ = places(cluster, stream.stream_id)
    monkeypatch.setattr("headrace.datanode.control.placement_contact._SEAL_PAUSE_MIN", 1e6)
    for stop in (cluster.kill_node, cluster.stop_node):
        # A clean stop too: what it has sent may be on others and not on its own disk.
        if stop == cluster.stop_node:
            monkeypatch.setattr(cluster.live(primary).contact, "leave", _nothing)
        await stop(primary)
        await cluster.start_node(primary)
        log = logs_of(cluster, stream.stream_id)[primary]
        if not log.sealed:
            assert log.key in cluster.live(primary).state.interrupted
        refused = await append_to(cluster, primary, stream.stream_id, batch(b"x"))
        assert code_of(refused) == 1460
    assert await client.append(stream.stream_id, batch(b"b"), timeout=10) == 1


async def _nothing() -> None:
    pass


async def test_f7_a_wiped_disk_does_not_answer_for_the_old_one(
    cluster: Cluster, client: SbpClient
) -> None:
    """Upstream defect 15 too: every node has an id of its own."""
    assert len({cluster.live(at).node_id for at in range(3)}) == 3
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, (wiped, _) = places(cluster, stream.stream_id)
    old_id = cluster.live(wiped).node_id
    await cluster.kill_node(wiped)
    shutil.rmtree(cluster.node_folder(wiped))
    await cluster.start_node(wiped)
    assert cluster.live(wiped).node_id not in (old_id, -1)
    await cluster.kill_node(primary)
    with pytest.raises((HeadraceError, TimeoutError)):  # one of three cannot know the end
        await asyncio.wait_for(client.seal(stream.stream_id, 0), 2)
    await cluster.start_node(primary)
    await client.append(stream.stream_id, batch(b"b"), timeout=15)
    assert [body for _, body in await read_all(client, stream.stream_id)] == [b"a", b"b"]


async def test_f12_an_unacknowledged_batch_is_not_visible_until_it_is_decided(
    cluster: Cluster, client: SbpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, secondaries = places(cluster, stream.stream_id)
    log = logs_of(cluster, stream.stream_id)[primary]
    sequenced = [batch(b"maybe", attributes=PRODUCER, producer_id=4, sequence=0) for _ in range(2)]
    with refusing(monkeypatch, *map(cluster.live, secondaries), error=ThrottledError):
        unknown = await append_to(cluster, primary, stream.stream_id, sequenced[0], timeout_ms=100)
        assert code_of(unknown) == 1
        await until(cluster, lambda: log.durable_offset == 2)
        assert (await fetch_at(cluster, primary, stream.stream_id, 1)).batch_length == 0
        await client.seal(stream.stream_id, 0)
    assert await client.append(stream.stream_id, sequenced[1]) == 1
    assert await read_all(client, stream.stream_id) == [(0, b"a"), (1, b"maybe")], "once"


async def test_f16_latency_follows_the_quorum_and_a_lag_makes_the_range_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DataNodeSettings(
        heartbeat_interval_ms=100, unsettled_interval_ms=50, replica_timeout_ms=300,
        replica_lag_ms_max=400,
    )  # fmt: skip
    cluster = await start(tmp_path, tcp=False, nodes=4, node_settings=settings)
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    _, (slow, _) = places(cluster, stream.stream_id)
    with refusing(monkeypatch, cluster.live(slow), error=ThrottledError):
        clock, took = cluster.runtime.clock, []
        for n in range(10):
            started = clock.monotonic()
            await client.append(stream.stream_id, batch(b"%d" % n))
            took.append(clock.monotonic() - started)
        assert min(took) < 0.3, "nobody waits for the slow one, or each would"
        await until(cluster, lambda: bool(logs_of(cluster, stream.stream_id, 1)))
    await until(cluster, lambda: complete(cluster, stream.stream_id, 0, copies=3))
    assert len(await read_all(client, stream.stream_id)) == 10
    await cluster.close()


async def test_f18_reading_across_a_seal(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream(replica_nums=3)
    for index in range(3):
        for n in range(4):
            await client.append(stream.stream_id, batch(b"%d-%d" % (index, n), b"x"))
        await client.seal(stream.stream_id, index)
    found = await read_all(client, stream.stream_id)
    assert [offset for offset, _ in found] == list(range(0, 24, 2))


async def test_a_second_seal_gives_the_same_answer(cluster: Cluster, client: SbpClient) -> None:
    """Upstream defect 5."""
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, _ = places(cluster, stream.stream_id)
    channel = await channel_to(cluster, primary)
    request = m.SealRangesRequest(ranges=(m.RangeId(stream_id=stream.stream_id, range_index=0),))
    ends = []
    for _ in range(2):
        reply = await channel.call(Code.SEAL_RANGES, request)
        assert isinstance(reply.message, m.SealRangesResponse)
        (result,) = reply.message.seal_responses
        assert result.range is not None
        ends.append(result.range.end_offset)
    await channel.close()
    assert ends == [1, 1]


async def test_nothing_is_acknowledged_after_a_seal(
    cluster: Cluster, client: SbpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant I7: confirmations that come later do not count any more."""
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, secondaries = places(cluster, stream.stream_id)
    log = logs_of(cluster, stream.stream_id)[primary]
    with refusing(monkeypatch, *map(cluster.live, secondaries), error=ThrottledError):
        waiting = asyncio.create_task(
            append_to(cluster, primary, stream.stream_id, batch(b"b"), index=0)
        )
        await until(cluster, lambda: log.durable_offset == 2)
        await cluster.live(primary).ranges.seal(log.key, -1)
    assert code_of(await waiting) == 1460
    assert log.committed_offset == 1


async def test_replicas_that_differ_stop_the_range(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, (secondary, _) = places(cluster, stream.stream_id)
    await until(cluster, lambda: _durable(cluster, stream.stream_id) == {1})
    led = cluster.live(primary).leading.find(RangeKey(stream.stream_id, 0))
    assert led is not None
    key = RangeKey(stream.stream_id, 0)
    sender = next(
        sender for feed, sender in led.senders.items()
        if feed.node_id == cluster.live(secondary).node_id
    )  # fmt: skip
    channel = await sender._open()
    forged = batch(b"z")
    info = m.AppendInfo(
        range=m.Range(stream_id=key.stream_id, range_index=0), batch_length=sum(map(len, forged))
    )
    same = m.AppendRequest(append_requests=(info,))
    codes = []
    for pieces in (batch(b"a"), forged):
        reply = await channel.call(Code.APPEND, same, pieces)
        assert isinstance(reply.message, m.AppendResponse)
        codes.append(code_of(reply.message.append_responses[0]))
    assert codes == [1464, 2503], "the same batch again counts as stored: upstream defect 16"
    await channel.close()


# Restarts, repair, leaving


async def test_a_secondary_catches_up_after_its_restart(
    cluster: Cluster, client: SbpClient
) -> None:
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    _, (absent, _) = places(cluster, stream.stream_id)
    for stop in (cluster.kill_node, cluster.kill_node):
        await stop(absent)
        for n in range(30):
            await client.append(stream.stream_id, batch(b"%d" % n * 100))
        await cluster.start_node(absent)
    await until(cluster, lambda: _durable(cluster, stream.stream_id) == {61})
    log = logs_of(cluster, stream.stream_id)[absent]
    await until(cluster, lambda: log.committed_offset == 61)
    assert len(await client.list_ranges(stream.stream_id)) == 1, "the range went on all the time"
    copies = [await content(each) for each in logs_of(cluster, stream.stream_id).values()]
    assert copies[0] == copies[1] == copies[2]


async def test_a_slow_replica_costs_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DataNodeSettings(
        heartbeat_interval_ms=100,
        replica_queue_bytes_max=64 << 10,
        replica_read_bytes=32 << 10,
        replica_lag_ms_max=120_000,  # it may be as far behind as the disk makes it
    )
    cluster = await start(tmp_path, tcp=True, node_settings=settings)
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    primary, (slow, _) = places(cluster, stream.stream_id)
    with refusing(monkeypatch, cluster.live(slow), error=ThrottledError):
        for n in range(60):
            await client.append(stream.stream_id, batch(bytes([n]) * 5_000))
            statistics = cluster.live(primary).leading.statistics()
            assert statistics["replica_queued_bytes"] <= 2 * (64 << 10) + (32 << 10)
    await until(cluster, lambda: _durable(cluster, stream.stream_id) == {60})
    copies = [await content(each) for each in logs_of(cluster, stream.stream_id).values()]
    assert copies[0] == copies[1] == copies[2]
    await cluster.close()


async def test_producers_are_known_to_the_next_primary(cluster: Cluster, client: SbpClient) -> None:
    stream = await client.create_stream(replica_nums=3)

    async def send(sequence: int, body: bytes) -> int:
        pieces = batch(body, attributes=PRODUCER, producer_id=9, sequence=sequence)
        return await client.append(stream.stream_id, pieces, timeout=15)

    assert await send(0, b"a") == 0
    assert await send(1, b"b") == 1
    primary, _ = places(cluster, stream.stream_id)
    await cluster.kill_node(primary)
    assert await send(1, b"b") == 1, "secondaries learn sequences from what they are sent"
    assert await send(0, b"a") == 0
    assert await send(2, b"c") == 2
    assert await read_all(client, stream.stream_id) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize("found_by", ["read", "scrub"])
async def test_a_flipped_bit_is_mended_from_another_replica(tmp_path: Path, found_by: str) -> None:
    settings = DataNodeSettings(
        heartbeat_interval_ms=100,
        unsettled_interval_ms=50,
        scrub_interval_ms=50 if found_by == "scrub" else 0,
    )
    cluster = await start(tmp_path, tcp=False, node_settings=settings, cache_bytes=0)
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    for n in range(20):
        await client.append(stream.stream_id, batch(b"%02d" % n * 100))
    await client.seal(stream.stream_id, 0)
    await until(cluster, lambda: complete(cluster, stream.stream_id, 0, copies=3))
    at = 1
    node = cluster.live(at)
    log = logs_of(cluster, stream.stream_id)[at]
    flip_a_bit(range_folder(cluster, at, stream.stream_id), inside=b"10" * 100)
    if found_by == "read":
        damaged = await fetch_at(cluster, at, stream.stream_id, 10)
        assert (code_of(damaged), damaged.batch_length) == (2503, 0)
    await until(cluster, lambda: node.repairer.repaired_spans == 1)
    assert await log.verify() == ()
    copies = [await content(each) for each in logs_of(cluster, stream.stream_id).values()]
    assert copies[0] == copies[1] == copies[2]
    await cluster.close()


async def test_a_leaving_node_hands_over_and_loses_its_copies(tmp_path: Path) -> None:
    cluster = await start(tmp_path, tcp=True, nodes=4)
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    primary, _ = places(cluster, stream.stream_id)
    node_id = cluster.live(primary).node_id
    await cluster.stop_node(primary)
    (old, new) = await client.list_ranges(stream.stream_id)
    assert old.end_offset == 1
    members = [node.data_node.node_id for node in new.replica_nodes if node.data_node is not None]
    assert node_id not in members
    assert await client.append(stream.stream_id, batch(b"b")) == 1
    await cluster.close()


async def test_a_single_node_stops_at_once(tmp_path: Path, tcp: bool) -> None:
    cluster = await start(tmp_path, tcp=tcp, nodes=1)
    client = cluster.client()
    stream = await client.create_stream()
    await client.append(stream.stream_id, batch(b"a"))
    started = cluster.runtime.clock.monotonic()
    await cluster.stop_node()
    assert cluster.runtime.clock.monotonic() - started < 5
    await cluster.start_node()
    assert await client.append(stream.stream_id, batch(b"b")) == 1
    assert len(await client.list_ranges(stream.stream_id)) == 1, "the range went on"
    await cluster.close()


async def test_a_range_that_moved_away_is_removed_with_its_files(tmp_path: Path) -> None:
    cluster = await start(tmp_path, tcp=False, nodes=4)
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    await client.seal(stream.stream_id, 0)
    await until(cluster, lambda: complete(cluster, stream.stream_id, 0, copies=3))
    placement = cluster.placement
    assert placement is not None
    at = next(iter(logs_of(cluster, stream.stream_id)))
    node = cluster.live(at)
    record = placement.state.range(stream.stream_id, 0)
    others = tuple(n for n in record.replicas if n != node.node_id)
    moved = msgspec.structs.replace(record, replicas=others, replica_nums=2)
    await placement.changes.term.commit([Put(moved)])
    await node.contact.reconcile()
    assert node.state.find(RangeKey(stream.stream_id, 0)) is None
    assert not range_folder(cluster, at, stream.stream_id).is_dir()  # a test
    await cluster.close()


async def test_several_placement_managers_know_who_lives(tmp_path: Path, tcp: bool) -> None:
    cluster = await start(tmp_path, tcp=tcp, placements=3)
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))

    def leader() -> int:
        return next(
            at for at, placement in enumerate(cluster.placements)
            if placement is not None and placement.leading
        )  # fmt: skip

    await cluster.stop_placement(leader())
    primary, _ = places(cluster, stream.stream_id)
    await cluster.kill_node(primary)
    await client.append(stream.stream_id, batch(b"b"), timeout=20)
    assert [body for _, body in await read_all(client, stream.stream_id)] == [b"a", b"b"]
    await cluster.close()


# Security


async def test_only_data_nodes_send_replica_appends(tmp_path: Path) -> None:
    cluster = await start(tmp_path, tcp=True, plain_streams=True)
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    await client.append(stream.stream_id, batch(b"a"))
    _, (secondary, _) = places(cluster, stream.stream_id)
    host, port = parse_address(cluster.live(secondary).address)
    expires_ms = cluster.runtime.clock.now_ms() + 60_000
    for credential in (b"", make_ticket(SECRET, [stream.stream_id], expires_ms)):
        with pytest.raises(UnauthorizedError):
            await TcpChannel.connect(
                cluster.runtime, host, port, client_id="liar",
                role=m.ClientRole.DATA_NODE, credential=credential,
            )  # fmt: skip
    pieces = batch(b"forged", base_offset=1)
    info = m.AppendInfo(
        range=m.Range(stream_id=stream.stream_id, range_index=0, next_offset=2),
        batch_length=sum(map(len, pieces)),
    )
    request = m.AppendRequest(append_requests=(info,))
    for role, credential in (
        (m.ClientRole.CUSTOMER, b""),
        (m.ClientRole.CUSTOMER, node_credential(SECRET)),
    ):
        channel = await TcpChannel.connect(
            cluster.runtime, host, port, client_id="x", role=role, credential=credential
        )
        reply = await channel.call(Code.APPEND, request, pieces)
        assert isinstance(reply.message, m.AppendResponse)
        assert code_of(reply.message.append_responses[0]) == 2502, "a client's append"
        await channel.close()
    log = logs_of(cluster, stream.stream_id)[secondary]
    assert log.next_offset == 1
    await cluster.close()
