"""Polls that find nothing wait for messages: every transport, and real clients of every dialect."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from headrace.client.iggy import IggyClient
from headrace.process.data_plane import DataPlane
from headrace.runtime.system import system_runtime
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import ResponseDecoder, ResponseFrame, encode_request
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import Message, PollMessages
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.vsr.client import Conversation
from tests.integration.server import PEERS, ROOT, running
from tests.integration.test_transports import Running, settings_of
from tests.unit.net.sbp_fixtures import until

FIRST = Partitioning.to_partition(0)
WAIT_SECONDS = 3.0
VERSIONS = ("0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.9.0")


async def _in_c(server: Running) -> IggyClient:
    conversation = Conversation(b"c" * 16)
    client = await IggyClient.connect(server.runtime, *server.iggy, conversation=conversation)
    await client.login("iggy", "iggy")
    return client


CLIENTS: dict[str, Callable[[Running], Awaitable[IggyClient]]] = {
    "plain": lambda server: server.plain(),
    "dialect C": _in_c,
    "tls": lambda server: server.tls(),
    "quic": lambda server: server.quic(),
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    settings = settings_of(tmp_path)
    broker = msgspec.structs.replace(settings.broker, poll_wait_ms=int(1000 * WAIT_SECONDS))
    plane = DataPlane(system_runtime(), msgspec.structs.replace(settings, broker=broker))
    await plane.start()
    try:
        yield Running(plane)
    finally:
        await plane.close()


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("commit", [False, True])
async def test_a_message_ends_the_wait(server: Running, name: str, commit: bool) -> None:
    producer = await server.plain()
    await producer.create_stream("s")
    await producer.create_topic("s", "t")
    consumer = await CLIENTS[name](server)
    for number in range(6):  # the first finds a partition that was never written
        poll = asyncio.create_task(
            consumer.poll(
                "s", "t", partition=0, strategy=Strategy.offset(number), auto_commit=commit
            )
        )
        await asyncio.sleep(0.05)
        assert not poll.done()
        sent = time.monotonic()
        await producer.send("s", "t", [Message(b"m%d" % number)], partitioning=FIRST)
        polled = await poll
        assert time.monotonic() - sent < WAIT_SECONDS / 2
        assert [(m.offset, m.payload) for m in polled.messages()] == [(number, b"m%d" % number)]
    began = time.monotonic()
    polled = await consumer.poll("s", "t", partition=0, strategy=Strategy.offset(6))
    assert polled.count == 0
    assert WAIT_SECONDS * 0.9 < time.monotonic() - began < WAIT_SECONDS + 2
    for client in (producer, consumer):
        await client.close()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("commit", [False, True])
async def test_requests_behind_a_poll_do_not_wait_for_messages(
    server: Running, tls: bool, commit: bool
) -> None:
    producer = await server.plain()
    await producer.create_stream("s")
    await producer.create_topic("s", "t")
    await producer.send("s", "t", [Message(b"a")], partitioning=FIRST)
    consumer = await (server.tls() if tls else server.plain())
    await consumer.poll("s", "t", partition=0, strategy=Strategy.offset(0))
    began = time.monotonic()
    request = PollMessages(Consumer.single(), "s", "t", 0, Strategy.offset(1), 10, commit)
    poll = encode_request(c.POLL_MESSAGES.code, c.POLL_MESSAGES.encode_request(request, Dialect.B2))
    connection = consumer._connection
    for pause in (0.0, 0.05):
        connection.write(poll)
        await asyncio.sleep(pause)
        connection.write(encode_request(c.PING.code))
        decoder, found = ResponseDecoder(), list[ResponseFrame]()
        while len(found) < 2:
            found += decoder.feed(await connection.receive())
        assert [(frame.status, len(frame.payload)) for frame in found] == [(0, 16), (0, 0)]
    assert time.monotonic() - began < WAIT_SECONDS / 2
    for client in (producer, consumer):
        await client.close()


async def test_a_server_that_stops_does_not_wait_for_messages(server: Running) -> None:
    clients = [await server.plain(), await server.tls(), await server.quic()]
    await clients[0].create_stream("s")
    await clients[0].create_topic("s", "t")
    await clients[0].send("s", "t", [Message(b"a")], partitioning=FIRST)
    await clients[0].poll("s", "t", partition=0, strategy=Strategy.offset(0))
    polls = [
        asyncio.create_task(client.poll("s", "t", partition=0, strategy=Strategy.offset(1)))
        for client in clients
    ]
    await asyncio.sleep(0.1)
    began = time.monotonic()
    await server.plane.close()
    assert time.monotonic() - began < WAIT_SECONDS - 0.5
    for poll in polls:
        assert (await poll).count == 0
    for client in clients:
        await client.close()


async def test_members_of_a_group_share_what_comes(server: Running) -> None:
    producer = await server.plain()
    await producer.create_stream("s")
    await producer.create_topic("s", "t", partitions_count=3)
    await producer.create_group("s", "t", "g")
    members = [await server.plain() for _ in range(2)]
    got: list[bytes] = []

    async def consume(member: IggyClient) -> None:
        await member.join_group("s", "t", "g")
        while True:
            polled = await member.poll(
                "s", "t", consumer=Consumer.group("g"), strategy=Strategy.next(), auto_commit=True
            )
            got.extend(m.payload for m in polled.messages())

    tasks = [asyncio.create_task(consume(member)) for member in members]
    sent = [b"%d" % number for number in range(60)]
    for number, payload in enumerate(sent):
        where = Partitioning.to_partition(number % 3)
        await producer.send("s", "t", [Message(payload)], partitioning=where)
    await until(lambda: len(got) >= 60)
    assert sorted(got) == sorted(sent), "each once"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for client in (producer, *members):
        await client.close()


def test_real_clients_are_given_what_comes_while_they_wait(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        for version in VERSIONS:
            python = ROOT / f".venv/peers/iggy-{version}/bin/python"
            command = [str(python), str(PEERS / "waiting_polls.py"), server.addresses["iggy"]]
            done = subprocess.run(
                [*command, f"of-{version}", "1" if version == "0.5.0" else "0"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            polls, messages = map(int, done.stdout.split())
            assert messages == 20
            assert polls < 400, "of some thousands, were they answered at once"
