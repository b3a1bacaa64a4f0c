"""A topic whose end is lost with a disk: polls return what lies before the hole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from headrace.broker.service import BrokerService
from headrace.client.iggy import IggyClient
from headrace.client.partition_reader import Access, TicketReader
from headrace.config.broker import BrokerSettings
from headrace.errors import LostRecordsError, MissingRecordsError
from headrace.placement.metadata.records import StreamRecord
from headrace.wire.iggy.errors import IggyError, Status
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.vsr.client import Conversation
from tests.sim.cluster import PLACEMENT_PORT, SECRET
from tests.sim.ending import insist
from tests.sim.scene import Scene, failing, play

HOST, PORT = "broker", 8090
SETTINGS = BrokerSettings(root_username="iggy", root_password="iggy")


async def serve(scene: Scene) -> BrokerService:
    async def start() -> BrokerService:
        service = BrokerService(
            scene.simulation.runtime(HOST),
            SETTINGS,
            scene.cluster.client(HOST),
            secret=SECRET,
            cluster_uuid="00000000-0000-4000-8000-000000000000",
            folder="/broker",
            advertise=f"{HOST}:{PORT}",
        )
        await service.start("0.0.0.0", PORT)
        return service

    return await scene.simulation.on(HOST, start())


async def connect(scene: Scene, talk: Conversation | None = None) -> IggyClient:
    runtime = scene.simulation.runtime("person")
    client = await IggyClient.connect(runtime, HOST, PORT, timeout=60.0, conversation=talk)
    await client.login("iggy", "iggy")
    return client


async def send(client: IggyClient, payloads: Sequence[bytes]) -> None:
    messages = [Message(payload=payload) for payload in payloads]
    await client.send("s", "t", messages, partitioning=Partitioning.to_partition(0))


async def poll(client: IggyClient, offset: int, count: int) -> list[tuple[int, bytes]]:
    polled = await client.poll(
        "s", "t", partition=0, strategy=Strategy.offset(offset), count=count, timeout=60.0
    )
    return [(message.offset, bytes(message.payload)) for message in polled.messages()]


def partition_of(scene: Scene) -> int:
    """The log stream of the topic's only partition."""
    return next(
        record.stream_id
        for record in scene.cluster.records()
        if isinstance(record, StreamRecord) and record.name.startswith("p/")
    )


async def lose_the_end(scene: Scene, stream: int, client: IggyClient) -> None:
    """Message 120 is on the primary alone when the range is sealed, and is lost with its disk."""
    primary, secondary = scene.hosts(stream)
    before = len(scene.ranges(stream))
    scene.cluster.crash(secondary)
    sending = asyncio.ensure_future(send(client, [b"120"]))
    await scene.sleep(0.1)
    scene.cluster.crash(primary, power_cut=False)
    for host in scene.cluster.nodes:
        if host != primary:
            scene.simulation.partition(primary, host)
    await scene.cluster.start_node(primary)
    await scene.until(lambda: len(scene.ranges(stream)) > before)
    scene.cluster.wipe(primary)
    scene.simulation.heal()
    await scene.cluster.start_node(primary)
    await scene.cluster.start_node(secondary)
    await failing(sending)  # its outcome is unknown: it may not be said to be stored


async def torn_topic(scene: Scene) -> None:
    broker = await serve(scene)
    client = await connect(scene)
    await client.create_stream("s")
    await client.create_topic("s", "t", replication_factor=2)
    for first in range(0, 120, 10):
        await send(client, [b"%d" % number for number in range(first, first + 10)])
    stream = partition_of(scene)
    await lose_the_end(scene, stream, client)

    numbered = await connect(scene, Conversation(b"numbered person."))
    for each in (client, numbered):
        found = await insist(partial(poll, each, 100, 20))
        assert [offset for offset, _ in found] == list(range(100, 120))
        assert await poll(each, 100, 21) == found, "what lies before the hole"
        assert await poll(each, 0, 1000) == [(n, b"%d" % n) for n in range(120)]
        error = await failing(poll(each, 120, 1))
        assert isinstance(error, IggyError)
        assert error.code == Status.IO_ERROR

    # What Spark's tasks and our own client read with, straight from the data nodes.
    reader = TicketReader(scene.simulation.runtime("person"))
    ticket = await client.read_ticket([("s", "t")])
    key = ("", 0)
    streams = {key: ticket.topics[0].partitions[0].sbp_stream}
    managers = ",".join(f"{host}:{PLACEMENT_PORT}" for host in scene.cluster.managers)
    access = Access(ticket.ticket, ticket.expires_ms, managers, streams)
    at = 0
    while at < 120:
        _, at = await reader.fetch(access, key, at, 121)
    assert isinstance(await failing(reader.fetch(access, key, at, 121)), MissingRecordsError)

    (torn,) = (await scene.client.describe_cluster(count_ranges=True)).ranges_torn
    await scene.client.accept_loss(stream, torn.range_index, torn.held_offset)
    await insist(lambda: send(client, [b"121"]))
    for each in (client, numbered):
        assert await insist(partial(poll, each, 120, 10)) == [(121, b"121")]
        assert await poll(each, 119, 10) == [(119, b"119")]
    lost = await failing(reader.fetch(access, key, 120, 122))
    assert isinstance(lost, LostRecordsError)
    _, end = await reader.fetch(access, key, lost.resumed, 122)
    assert (lost.resumed, end) == (121, 122)
    await reader.close()
    await numbered.close()
    await client.close()
    await scene.simulation.on(HOST, broker.close())


def test_a_poll_returns_what_lies_before_the_hole() -> None:
    play(torn_topic, nodes=5)
