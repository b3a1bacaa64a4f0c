"""Every opcode of both roles against every kind of peer, over TCP.

| Peer | Proves itself by |
|---|---|
| anonymous | nothing |
| ticket | a read ticket for the stream that is asked for |
| ticket for another stream | the same for another one |
| expired, forged, of another cluster | a ticket that is no longer, or never was, good |
| node | the cluster's secret |

Nobody but a node changes anything, and nobody but a node and the right ticket reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.config.placement import PlacementSettings
from headrace.config.settings import Settings
from headrace.errors import (
    DiskFullError,
    HeadraceError,
    TooLargeError,
    UnauthenticatedError,
    UnauthorizedError,
)
from headrace.net.addresses import parse_address
from headrace.net.credentials import make_ticket, node_credential
from headrace.net.sbp_channel import TcpChannel
from headrace.placement.handlers import RANGES_LISTED_MAX
from headrace.process.data_plane import DataPlane
from headrace.runtime.system import system_runtime
from headrace.sbp_client.channels import tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import is_success, status_of
from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.frames import Frame
from headrace.wire.sbp.opcodes import TABLE, Code, Role
from headrace.wire.sbp.records import PRODUCER
from tests.log_cluster import SECRET, Cluster, batch, bodies
from tests.unit.net.sbp_fixtures import raised
from tests.unit.net.test_sbp_server import Raw, status_in

PM, DN = Role.PLACEMENT_MANAGER, Role.DATA_NODE
OPCODES = [
    pytest.param(role, code, id=f"{role.name}-{Code(code).name}")
    for role in (PM, DN)
    for code, row in sorted(TABLE.items())
    if row.served_by & role and code not in (Code.PING, Code.GOAWAY, Code.HEARTBEAT)
]
READS = {(PM, Code.LIST_RANGES), (DN, Code.FETCH), (DN, Code.DESCRIBE_RANGES)}
"""What a ticket for the stream allows."""

_UNAUTHENTICATED, _FORBIDDEN = 1401, 1403


@dataclass
class Guarded:
    """A cluster with an owned stream that holds one batch, and another stream."""

    cluster: Cluster
    client: SbpClient
    stream_id: int
    other_id: int
    range: m.Range

    def address(self, role: Role) -> str:
        if role is PM:
            return self.cluster._placement_addresses[0]
        return self.cluster._node_addresses[0]

    def ticket(self, *stream_ids: int, secret: bytes = SECRET, seconds: float = 60) -> bytes:
        expires_ms = self.cluster.runtime.clock.now_ms() + int(seconds * 1000)
        return make_ticket(secret, stream_ids, expires_ms)

    async def connect(
        self, role: Role, credential: bytes = b"", as_role: m.ClientRole = m.ClientRole.CUSTOMER
    ) -> TcpChannel:
        host, port = parse_address(self.address(role))
        return await TcpChannel.connect(
            self.cluster.runtime, host, port, client_id="x", role=as_role, credential=credential
        )

    async def raw(self, role: Role) -> Raw:
        host, port = parse_address(self.address(role))
        return Raw(await self.cluster.runtime.transport.connect(host, port))

    async def content(self) -> list[tuple[int, bytes]]:
        fetched = await self.client.fetch(self.stream_id, 0, max_bytes=1 << 20)
        return bodies(fetched.pieces)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=True, sqlite=False)
    await cluster.start()
    client = cluster.client()
    stream = await client.create_stream(name="p/1/0/0")
    other = await client.create_stream(name="p/2/0/0")
    writer = await OwnedStream.open(client, stream.stream_id, 1, clean=True)
    header, *body = batch(b"secret", base_offset=0)
    assert isinstance(header, bytearray)
    await writer.append(header, body)
    await writer.close()
    (range_,) = await client.list_ranges(stream.stream_id)
    yield Guarded(cluster, client, stream.stream_id, other.stream_id, range_)
    await cluster.close()


def request_for(code: int, guarded: Guarded, stream_id: int) -> tuple[m.Message, list[Any]]:
    """A request that would do or tell something, if it were let in."""
    range_id = m.RangeId(stream_id=stream_id, range_index=0, writer_epoch=9)
    node = m.DataNode(node_id=0, advertise_addr="elsewhere:1")
    pieces = batch(b"forged", base_offset=1)
    info = m.AppendInfo(
        range=m.Range(stream_id=stream_id, range_index=0),
        batch_length=sum(map(len, pieces)),
        writer_epoch=1,
        expected_offset=1,
    )
    raised_epoch = m.Range(
        stream_id=stream_id,
        range_index=0,
        start_offset=0,
        end_offset=-1,
        replica_nodes=guarded.range.replica_nodes,
        writer_epoch=9,
    )
    table: dict[int, m.Message] = {
        Code.ALLOCATE_ID: m.IdAllocationRequest(host="elsewhere"),
        Code.APPEND: m.AppendRequest(append_requests=(info,)),
        Code.FETCH: m.FetchRequest(
            fetch_requests=(m.FetchInfo(stream_id=stream_id, batch_max_bytes=999),)
        ),
        Code.LIST_RANGES: m.ListRangesRequest(
            range_criteria=(m.RangeCriteria(stream_id=stream_id),)
        ),
        Code.SEAL_RANGES: m.SealRangesRequest(ranges=(range_id,)),
        Code.SYNC_RANGES: m.SyncRangesRequest(
            stream_ranges=(m.StreamRanges(stream_id=stream_id, ranges=(raised_epoch,)),)
        ),
        Code.DESCRIBE_RANGES: m.DescribeRangesRequest(ranges=(range_id,)),
        Code.CREATE_STREAMS: m.CreateStreamsRequest(streams=(m.Stream(replica_nums=1),)),
        Code.DELETE_STREAMS: m.DeleteStreamsRequest(streams=(m.Stream(stream_id=stream_id),)),
        Code.UPDATE_STREAMS: m.UpdateStreamsRequest(
            streams=(m.Stream(stream_id=stream_id, retention_period_ms=1),)
        ),
        Code.DESCRIBE_STREAMS: m.DescribeStreamsRequest(stream_ids=(stream_id,)),
        Code.TRIM_STREAMS: m.TrimStreamsRequest(
            trimmed_streams=(m.TrimmedStream(stream_id=stream_id, trim_offset=1),)
        ),
        Code.REPORT_METRICS: m.ReportMetricsRequest(data_node=node, disk_free_space=1),
        Code.LEASE: m.LeaseRequest(
            action=m.LeaseAction.ACQUIRE, name="broker", holder="x", duration_ms=1000
        ),
        Code.DESCRIBE_CLUSTER: m.DescribeClusterRequest(),
        Code.ADOPT: m.AdoptRequest(stream_id=stream_id),
    }
    return table[code], list(pieces) if code == Code.APPEND else []


async def outcome(channel: TcpChannel, guarded: Guarded, code: int, stream_id: int = -1) -> int:
    """The status that the request ends with, of the frame or of its one result."""
    message, payload = request_for(
        code, guarded, stream_id if stream_id >= 0 else guarded.stream_id
    )
    try:
        reply = await channel.call(Code(code), message, payload)
    except HeadraceError as error:
        return status_of(error).code
    statuses = [getattr(reply.message, "status", None)]
    for name in dir(reply.message):
        if name.endswith("_responses"):
            statuses += [result.status for result in getattr(reply.message, name)]
    return next((s.code for s in statuses if s is not None and not is_success(s)), 0)


@pytest.mark.parametrize(("role", "code"), OPCODES)
async def test_who_may_ask_what(guarded: Guarded, role: Role, code: int) -> None:
    """In one go, on one cluster: what was refused must not have happened."""
    before = await guarded.content()
    anonymous = await guarded.connect(role)
    assert await outcome(anonymous, guarded, code) == _UNAUTHENTICATED
    await anonymous.close()

    reader = await guarded.connect(role, guarded.ticket(guarded.stream_id))
    assert await outcome(reader, guarded, code) == (0 if (role, code) in READS else _FORBIDDEN)
    await reader.close()

    other = await guarded.connect(role, guarded.ticket(guarded.other_id))
    assert await outcome(other, guarded, code) == _FORBIDDEN
    await other.close()

    flipped = bytearray(guarded.ticket(guarded.stream_id))
    flipped[-1] ^= 1
    for credential in (
        guarded.ticket(guarded.stream_id, seconds=-1),
        bytes(flipped),
        guarded.ticket(guarded.stream_id, secret=b"another cluster's secret"),
        node_credential(b"another cluster's secret"),
        b"node:",
        b"ticket:",
        b"\x00" * 40,
    ):
        assert isinstance(await raised(guarded.connect(role, credential)), UnauthorizedError)

    assert await guarded.content() == before == [(0, b"secret")]
    (range_,) = await guarded.client.list_ranges(guarded.stream_id)
    assert (range_.writer_epoch, range_.end_offset) == (1, -1)
    assert (await guarded.client.describe_stream(guarded.stream_id)).retention_period_ms == 0

    node = await guarded.connect(role, node_credential(SECRET))
    assert await outcome(node, guarded, code) not in (_UNAUTHENTICATED, _FORBIDDEN)
    await node.close()


@pytest.mark.parametrize(("role", "code"), OPCODES)
async def test_a_refused_heartbeat_leaves_a_peer_anonymous(
    guarded: Guarded, role: Role, code: int
) -> None:
    """Our client hangs up when its credential is refused; another one may just go on."""
    raw = await guarded.raw(role)
    forged = guarded.ticket(guarded.stream_id)[:-1] + b"x"
    hello = encode(m.HeartbeatRequest("x", m.ClientRole.DATA_NODE, None, forged))
    message, payload = request_for(code, guarded, guarded.stream_id)
    raw.send(Frame(Code.HEARTBEAT, 0, 1, hello))
    assert status_in(await raw.frame()).code == _FORBIDDEN
    raw.send(Frame(code, 0, 2, encode(message), b"".join(payload)))
    assert status_in(await raw.frame()).code == _UNAUTHENTICATED
    await raw.close()


async def test_a_ticket_ends_while_its_connection_goes_on(guarded: Guarded) -> None:
    tickets = {
        role: await guarded.connect(role, guarded.ticket(guarded.stream_id, seconds=3.0))
        for role in (PM, DN)
    }
    for role, code in READS:
        assert await outcome(tickets[role], guarded, code) == 0
    await asyncio.sleep(3.05)
    for role, code in READS:
        assert await outcome(tickets[role], guarded, code) == _FORBIDDEN
    for role in tickets:
        await tickets[role].heartbeat(credential=guarded.ticket(guarded.stream_id))
    for role, code in READS:
        assert await outcome(tickets[role], guarded, code) == 0, "renewed on the same connection"
    for channel in tickets.values():
        await channel.close()


async def test_a_ticket_opens_its_streams_only(guarded: Guarded) -> None:
    both = guarded.ticket(guarded.stream_id, guarded.other_id)
    for role, code in READS:
        channel = await guarded.connect(role, both)
        assert await outcome(channel, guarded, code, guarded.stream_id) == 0
        assert await outcome(channel, guarded, code, guarded.other_id) == 0
        assert await outcome(channel, guarded, code, 4711) == _FORBIDDEN, "not even whether it is"
        await channel.close()
    channel = await guarded.connect(PM, both)
    reply = await channel.call(
        Code.LIST_RANGES,
        m.ListRangesRequest(
            range_criteria=(m.RangeCriteria(data_node=m.DataNode(node_id=0)), m.RangeCriteria())
        ),
    )
    assert isinstance(reply.message, m.ListRangesResponse)
    by_node, by_nothing = reply.message.list_responses
    assert by_node.status is not None
    assert (by_node.status.code, by_node.ranges, by_nothing.ranges) == (_FORBIDDEN, (), ())
    await channel.close()


async def test_i17_a_short_question_gets_no_endless_answer(guarded: Guarded) -> None:
    """A request of a megabyte that names one stream again and again."""
    criteria = (m.RangeCriteria(stream_id=guarded.stream_id),) * (RANGES_LISTED_MAX + 5)
    reader = await guarded.connect(PM, guarded.ticket(guarded.stream_id))
    request = m.ListRangesRequest(range_criteria=criteria)
    reply = await reader.call(Code.LIST_RANGES, request, timeout=60)
    assert isinstance(reply.message, m.ListRangesResponse)
    listed = sum(len(each.ranges) for each in reply.message.list_responses)
    codes = {each.status.code for each in reply.message.list_responses if each.status}
    assert listed == RANGES_LISTED_MAX
    assert 1413 in codes
    await reader.close()
    fetches = m.FetchRequest(
        fetch_requests=(m.FetchInfo(stream_id=guarded.stream_id, batch_max_bytes=1),) * 4097
    )
    reader = await guarded.connect(DN, guarded.ticket(guarded.stream_id))
    assert isinstance(await raised(reader.call(Code.FETCH, fetches)), TooLargeError)
    await reader.close()


@pytest.mark.parametrize("role", [PM, DN])
async def test_roles_of_the_cluster_need_its_secret(guarded: Guarded, role: Role) -> None:
    for as_role in (m.ClientRole.DATA_NODE, m.ClientRole.PLACEMENT_MANAGER):
        for credential in (b"", guarded.ticket(guarded.stream_id)):
            attempt = guarded.connect(role, credential, as_role)
            assert isinstance(await raised(attempt), UnauthorizedError)


async def test_nobody_registers_drains_or_speaks_for_a_node_without_the_secret(
    guarded: Guarded,
) -> None:
    node = guarded.cluster.live(0)
    claimed = m.DataNode(node_id=node.node_id, advertise_addr="elsewhere:1")
    raw = await guarded.raw(PM)
    for stream_id, as_role in enumerate(
        (m.ClientRole.DATA_NODE, m.ClientRole.CUSTOMER, m.ClientRole.UNSPECIFIED), 1
    ):
        raw.send(
            Frame(Code.HEARTBEAT, 0, stream_id, encode(m.HeartbeatRequest("x", as_role, claimed)))
        )
        await raw.frame()
    raw.send(Frame(Code.GOAWAY, 0, 9))
    await raw.frame()
    (range_,) = await guarded.client.list_ranges(guarded.stream_id)
    (replica,) = range_.replica_nodes
    assert replica.data_node is not None
    assert replica.data_node.advertise_addr == node.address
    await guarded.client.create_stream()  # it is neither lost nor draining
    await raw.close()


async def test_replica_appends_come_from_data_nodes_only(tmp_path: Path) -> None:
    """The same APPEND with its offset assigned: from a data node, from a client with the secret,
    from a reader and from nobody. Only the first is taken for a replica's."""
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=True, sqlite=False, nodes=3)
    await cluster.start()
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    (range_,) = await client.list_ranges(stream.stream_id)
    secondary = next(each for each in range_.replica_nodes if not each.is_primary).data_node
    assert secondary is not None
    host, port = parse_address(secondary.advertise_addr)
    pieces = batch(b"planted", attributes=PRODUCER, producer_id=1, sequence=0)
    info = m.AppendInfo(
        range=m.Range(stream_id=stream.stream_id, range_index=0, next_offset=0),
        batch_length=sum(map(len, pieces)),
    )
    expires_ms = cluster.runtime.clock.now_ms() + 60_000
    for credential, as_role in (
        (b"", m.ClientRole.CUSTOMER),
        (make_ticket(SECRET, [stream.stream_id], expires_ms), m.ClientRole.CUSTOMER),
        (node_credential(SECRET), m.ClientRole.CUSTOMER),
    ):
        channel = await TcpChannel.connect(
            cluster.runtime, host, port, client_id="x", role=as_role, credential=credential
        )
        code = 0
        try:
            reply = await channel.call(Code.APPEND, m.AppendRequest(0, (info,)), pieces)
        except HeadraceError as error:
            code = status_of(error).code
        else:
            assert isinstance(reply.message, m.AppendResponse)
            (result,) = reply.message.append_responses
            assert result.status is not None
            code = result.status.code
        assert code in (_UNAUTHENTICATED, _FORBIDDEN, 2502), "a secondary orders nothing"
        await channel.close()
    node = cluster.live(cluster.at(secondary.node_id))
    (log,) = node.state.ranges(stream.stream_id)
    assert log.next_offset == 0
    await cluster.close()


async def test_plain_streams_are_for_embedded_mode_and_never_the_clusters_own(
    tmp_path: Path,
) -> None:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=True, sqlite=False, plain_streams=True)
    await cluster.start()
    node, anonymous = cluster.client(), cluster.client(credential=b"")
    owned = await node.create_stream(name="s/catalogue")
    await node.list_ranges(owned.stream_id)
    plain = await anonymous.create_stream()
    await anonymous.append(plain.stream_id, batch(b"mine"))
    (range_,) = await node.list_ranges(owned.stream_id)
    await OwnedStream.open(node, owned.stream_id, 1, clean=True)
    guarded = Guarded(cluster, node, owned.stream_id, plain.stream_id, range_)
    for role in (PM, DN):
        channel = await guarded.connect(role)
        for code, row in TABLE.items():
            if row.served_by & role and code not in (Code.PING, Code.GOAWAY, Code.HEARTBEAT):
                found = await outcome(channel, guarded, code)
                expected = 0 if code == Code.CREATE_STREAMS else _FORBIDDEN
                assert found == expected, Code(code).name
        await channel.close()
    await cluster.close()


async def test_without_being_asked_nobody_keeps_streams_of_anonymous_peers(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=str(tmp_path), iggy_port=0, quic_port=-1, placement_port=0, node_port=0
    )
    plane = DataPlane(system_runtime(), settings)
    await plane.start()
    runtime, addresses = system_runtime(), plane.addresses()
    to_node = tcp_connect(runtime, addresses["data_node"], client_id="test")
    client = SbpClient(
        runtime,
        placement=tcp_connect(runtime, addresses["placement_manager"], client_id="test"),
        node=lambda _: to_node,
    )
    assert isinstance(await raised(client.create_stream()), UnauthenticatedError)
    await client.close()
    await plane.close()


async def test_anonymous_peers_get_a_share_of_the_disk(tmp_path: Path) -> None:
    """One peer's appends do not fill the disk for the others, nor make the node look full."""
    cluster = Cluster(
        system_runtime(), str(tmp_path), tcp=True, sqlite=False, plain_streams=True,
        placement_settings=PlacementSettings(plain_streams_max=2),
    )  # fmt: skip
    await cluster.start()
    node, anonymous = cluster.client(), cluster.client(credential=b"")
    service = cluster.live(0)
    assert service.plain_share.limit == runtime_disk_bytes(tmp_path) // 10
    service.plain_share.limit = 1 << 20
    plain, other = await anonymous.create_stream(), await anonymous.create_stream()
    assert isinstance(await raised(anonymous.create_stream()), DiskFullError)
    stored, error = 0, None
    for number in range(100):
        target = (plain, other)[number % 2]
        error = await raised(anonymous.append(target.stream_id, batch(bytes(100_000))))
        if error is not None:
            break
        stored += 100_000
    assert isinstance(error, DiskFullError)
    assert 700_000 < stored <= 1 << 20
    assert (await service.load()).free_bytes > 0
    await node.append(plain.stream_id, batch(bytes(100_000)))  # a node's own use is not bounded
    await node.create_stream()
    await anonymous.delete_stream(plain.stream_id)
    error, deadline = DiskFullError(), asyncio.get_running_loop().time() + 30
    while error is not None and asyncio.get_running_loop().time() < deadline:
        error = await raised(anonymous.append(other.stream_id, batch(bytes(100_000))))
    assert error is None
    await cluster.close()


def runtime_disk_bytes(folder: Path) -> int:
    return system_runtime().disk.total_bytes(str(folder))
