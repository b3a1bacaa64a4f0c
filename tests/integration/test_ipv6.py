"""Everything over IPv6 loopback, and nodes that advertise a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client.iggy import IggyClient
from headrace.client.partition_reader import Access, TicketReader
from headrace.config.broker import BrokerSettings
from headrace.config.process import TlsSettings
from headrace.config.settings import Settings
from headrace.datanode.service import DataNodeService
from headrace.net.addresses import parse_address
from headrace.net.tls import ClientTls
from headrace.process.data_plane import DataPlane
from headrace.runtime.system import system_runtime
from headrace.runtime.system.tls import client_context_of
from headrace.sbp_client.ranges import replica_addresses
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning
from tests.log_cluster import SECRET, Cluster, batch, read_all


async def test_replicas_and_clients_reach_nodes_over_ipv6(tmp_path: Path) -> None:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=True, sqlite=False, nodes=3)
    cluster._placement_addresses = ["[::1]:0"]
    cluster._node_addresses = ["[::1]:0"] * 3
    await cluster.start()
    client = cluster.client()
    stream = await client.create_stream(replica_nums=3)
    for number in range(5):
        await client.append(stream.stream_id, batch(b"six %d" % number))
    (range_,) = await client.list_ranges(stream.stream_id)
    told = {n.data_node.advertise_addr for n in range_.replica_nodes if n.data_node is not None}
    assert len(told) == 3
    assert all(address.startswith("[::1]:") for address in told)
    assert len(await read_all(client, stream.stream_id)) == 5
    await client.seal(stream.stream_id, 0)
    assert [body for _, body in await read_all(client, stream.stream_id)][-1] == b"six 4"
    await cluster.close()


async def test_a_node_may_advertise_a_name(tmp_path: Path) -> None:
    cluster = Cluster(system_runtime(), str(tmp_path), tcp=True, sqlite=False)
    await cluster.start_placement()
    await cluster.start_node()
    node = cluster.live(0)
    _, port = parse_address(node.address)
    await cluster.stop_node()
    named = cluster.nodes[0] = DataNodeService(
        cluster.runtime,
        cluster.node_settings,
        folder=cluster.node_folder(0),
        storage=cluster.storage,
        placement=cluster.placement_links(),
        secret=SECRET,
    )
    await named.start("127.0.0.1", port, advertise=f"localhost:{port}")
    client = cluster.client()
    stream = await client.create_stream()
    (range_,) = await client.list_ranges(stream.stream_id)
    assert replica_addresses(range_) == [f"localhost:{port}"]
    await client.append(stream.stream_id, batch(b"by name"))
    assert await read_all(client, stream.stream_id) == [(0, b"by name")]
    await cluster.close()


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_a_data_plane_on_ipv6_loopback(tmp_path: Path, mode: str) -> None:
    """Broker, read ticket, placement manager and data node, as Spark's reader uses them."""
    runtime = system_runtime()
    settings = Settings(
        data_dir=str(tmp_path / "data"),
        host="::1",
        iggy_port=0,
        quic_port=-1,
        placement_port=0,
        node_port=0,
        broker=BrokerSettings(root_username="iggy", root_password="iggy"),
        tls=TlsSettings(mode=mode),
    )
    settings.check()
    plane = DataPlane(runtime, settings)
    await plane.start()
    try:
        addresses = plane.addresses()
        assert all(address.startswith("[::1]:") for address in addresses.values())
        tls = None
        if mode == "required":
            tls = ClientTls(context=client_context_of(plane.authority_path))
        host, port = parse_address(addresses["iggy"])
        async with await IggyClient.connect(runtime, host, port, tls=tls) as client:
            await client.login("iggy", "iggy")
            await client.create_stream("s")
            await client.create_topic("s", "t", partitions_count=1)
            sent = [Message(b"payload %d" % n) for n in range(9)]
            await client.send("s", "t", sent, partitioning=Partitioning.to_partition(0))
            ticket = await client.read_ticket([("s", "t")])
        assert ticket.nodes == (addresses["data_node"],)
        (topic,) = ticket.topics
        streams = {("t", each.partition): each.sbp_stream for each in topic.partitions}
        access = Access(ticket.ticket, ticket.expires_ms, ticket.placement, streams)
        reader = TicketReader(runtime, tls)
        areas, end = await reader.fetch(access, ("t", 0), 0, 9)
        assert end == 9
        assert b"payload 8" in bytes(areas[-1][0])
        for opened in reader._clients.values():
            await opened.close()
    finally:
        await plane.close()
