"""Dialect C on real sockets: connections cut before their answers, restarts, QUIC, its real client.

`Cutter` stands between client and broker, passes requests on, and drops the connection instead of
answering the ones it is told to: what an unlucky client sees of a network that fails.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.broker.partitions.partition import PartitionLog, Slice
from headrace.client.iggy import IggyClient
from headrace.errors import UnavailableError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import RequestFrame
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages import topics, users
from headrace.wire.iggy.messages.messages import (
    Message,
    PollMessages,
    SendMessages,
    encode_send,
)
from headrace.wire.iggy.messages.topics import Compression, CreateTopic
from headrace.wire.iggy.primitives import Consumer, Partitioning, PartitioningKind, Strategy
from headrace.wire.iggy.request_stream import RequestStream
from headrace.wire.iggy.vsr import frames
from headrace.wire.iggy.vsr.client import Conversation
from tests import proxies
from tests.integration.broker_stack import Stack
from tests.integration.real_clients import SECONDS, interpreter, run_peer
from tests.integration.server import PEERS, running

Q = TypeVar("Q", bound=c.Encodable)
R = TypeVar("R")
FIRST = Partitioning.to_partition(0)


class Cutter:
    """`should_cut` sees each request; for those it says so, the answer never arrives."""

    def __init__(self, port: int, should_cut: Callable[[RequestFrame], bool]) -> None:
        self._port = port
        self._should_cut = should_cut
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.requests: list[RequestFrame] = []

    async def __aenter__(self) -> Cutter:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await proxies.close([self._server], self._tasks)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        decoder = RequestStream()
        try:
            while data := await reader.read(1 << 16):
                up_writer.write(data)
                for event in decoder.feed(data):
                    assert isinstance(event, RequestFrame)
                    self.requests.append(event)
                    header = await up_reader.readexactly(frames.HEADER_BYTES)
                    rest = frames.frame_bytes(header) - frames.HEADER_BYTES
                    answer = header + await up_reader.readexactly(rest)
                    if self._should_cut(event):
                        self.cuts += 1
                        return
                    writer.write(answer)
        finally:
            up_writer.transport.abort()


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    running_stack = await Stack(str(tmp_path / "data")).start()
    try:
        yield running_stack
    finally:
        await running_stack.stop()


async def connect(stack: Stack, port: int, talk: Conversation) -> IggyClient:
    client = await IggyClient.connect(stack.runtime, "127.0.0.1", port, conversation=talk)
    await client.login("iggy", "iggy")
    return client


class Persistent:
    """A client as the SDKs are: after a cut it connects again and sends the same request."""

    def __init__(self, stack: Stack, port: int) -> None:
        self.stack, self.port = stack, port
        self.talk = Conversation(stack.runtime.random.bytes(16))
        self.client: IggyClient | None = None
        self.repeated = 0

    async def call(self, command: c.Command[Q, R], request: Q) -> R:
        again = False
        while True:
            try:
                if self.client is None:
                    self.client = await connect(self.stack, self.port, self.talk)
                if not again:
                    again = True
                    return await self.client.call(command, request)
                self.repeated += 1
                return await self.client.again(command)
            except UnavailableError:
                self.client = None

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()


async def test_every_answer_lost_once_and_everything_applied_once(stack: Stack) -> None:
    seen: set[tuple[int, int]] = set()

    def first_time(frame: RequestFrame) -> bool:
        assert frame.head is not None
        key = (frame.head.operation, frame.head.number)
        is_new = frame.head.operation > frames.LOGOUT and key not in seen
        seen.add(key)
        return is_new

    async with Cutter(stack.port, first_time) as cutter:
        peer = Persistent(stack, cutter.port)
        made = await peer.call(c.CREATE_STREAM, topics.CreateStream("s"))
        assert made.stream.id == 0
        topic = CreateTopic("s", 1, Compression.NONE, 0, 0, 0, "t")
        await peer.call(c.CREATE_TOPIC, topic)
        await peer.call(c.CREATE_PARTITIONS, topics.CreatePartitions("s", "t", 2))
        offset = 0
        for n in range(20):
            messages = [Message(b"%d/%d" % (n, i), id=1 + 100 * n + i) for i in range(n % 3 + 1)]
            request = encode_send("s", "t", FIRST, messages)
            sent = await peer.call(c.SEND_MESSAGES, request)
            assert sent.placed[0].base_offset == offset
            offset += len(messages)
        await peer.close()
        assert cutter.cuts == peer.repeated == 23
    client = await stack.connect()
    details = await client.get_topic("s", "t")
    assert details is not None
    assert len(details.partitions) == 3
    found = (await client.poll("s", "t", partition=0, count=1000)).messages()
    assert [m.payload for m in found] == [
        b"%d/%d" % (n, i) for n in range(20) for i in range(n % 3 + 1)
    ]
    assert stack.broker.statistics()["repeated_requests"] == 23
    await client.close()


async def test_long_sends_are_stored_as_they_were_sent(stack: Stack) -> None:
    """They are converted in the memory they are received in, of which the log keeps a part; while
    there are readers in memory of their own, and what they came in is kept."""
    client = await connect(stack, stack.port, Conversation(b"l" * 16))
    await client.call(c.CREATE_STREAM, topics.CreateStream("s"))
    topic = CreateTopic("s", 1, Compression.NONE, 0, 0, 0, "t")
    await client.call(c.CREATE_TOPIC, topic)
    sent: list[bytes] = []

    async def send() -> None:
        for batch in range(4):
            size = 1000 + (batch == 2)  # of one size, but for one batch
            payloads = [
                bytes([batch, n % 251]) * (size // 2 + (n % 2) * (batch == 2)) for n in range(900)
            ]
            messages = [Message(p, id=1 + len(sent) + n) for n, p in enumerate(payloads)]
            request = encode_send("s", "t", FIRST, messages)
            placed = (await client.call(c.SEND_MESSAGES, request)).placed
            assert [one.base_offset for one in placed] == [len(sent)]
            sent.extend(payloads)

    async def check(reader: IggyClient) -> None:
        found: list[Message] = []
        while len(found) < len(sent):
            answer = await reader.poll(
                "s", "t", partition=0, strategy=Strategy.offset(len(found)), count=1000
            )
            found += answer.messages()
        assert [m.payload for m in found] == sent
        assert [m.id for m in found] == list(range(1, 1 + len(sent)))
        assert [m.offset for m in found] == list(range(len(sent)))

    converted = stack.broker.broker.poll_caches.replies
    classic = await stack.connect()
    await send()
    assert converted.bytes < 1_000_000, "of one that is not of one size"
    await check(classic)
    assert not converted.keeps_frames()
    await check(client)
    assert converted.keeps_frames()
    before = converted.bytes
    await send()
    assert converted.bytes > before + 4 * 900 * 1000
    for reader in (client, classic):
        await check(reader)
    await client.close()
    await classic.close()


@pytest.mark.parametrize("in_c", [True, False])
async def test_first_polls_at_the_end_of_a_log_wait_for_nothing(
    stack: Stack, in_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the data node of this process has in memory is read at once, though nobody read it."""
    client = await connect(stack, stack.port, Conversation(b"l" * 16))
    await client.call(c.CREATE_STREAM, topics.CreateStream("s"))
    await client.call(c.CREATE_TOPIC, CreateTopic("s", 1, Compression.NONE, 0, 0, 0, "t"))
    reader = client if in_c else await stack.connect()
    waited: list[int] = []

    async def read(log: PartitionLog, offset: int, *arguments: Any, **named: Any) -> Slice:
        waited.append(offset)
        return await long_way(log, offset, *arguments, **named)

    long_way = PartitionLog.read
    monkeypatch.setattr(PartitionLog, "read", read)
    for turn, count in enumerate((1, 10, 100, 1000, 1000)):
        offset = sum((1, 10, 100, 1000, 1000)[:turn])
        messages = [Message(b"%d" % n * 100, id=n + 1) for n in range(count)]
        await client.call(c.SEND_MESSAGES, encode_send("s", "t", FIRST, messages))
        polled = await reader.poll(
            "s", "t", partition=0, strategy=Strategy.offset(offset), count=count
        )
        assert [m.payload for m in polled.messages()] == [m.payload for m in messages]
    assert waited == [0], "the first one alone, which the connection had not asked before"
    await client.close()
    if not in_c:
        await reader.close()


async def test_a_broker_that_is_gone_leaves_nothing_it_kept(tmp_path: Path) -> None:
    """Frames that are kept are nothing to the garbage collector, so nothing may lead back to them:
    a process that leads again and again would keep them all."""
    stack = await Stack(str(tmp_path / "data")).start()
    client = await connect(stack, stack.port, Conversation(b"l" * 16))
    await client.call(c.CREATE_STREAM, topics.CreateStream("s"))
    await client.call(c.CREATE_TOPIC, CreateTopic("s", 1, Compression.NONE, 0, 0, 0, "t"))
    messages = [Message(b"x" * 1000, id=n + 1) for n in range(900)]
    for _ in range(2):
        await client.call(c.SEND_MESSAGES, encode_send("s", "t", FIRST, messages))
        await client.poll("s", "t", partition=0, strategy=Strategy.offset(0), count=10)
    assert stack.broker.broker.poll_caches.replies.bytes > 900_000
    kept = weakref.ref(stack.broker.broker.poll_caches.replies)
    await client.close()
    await stack.stop()
    del client, stack
    async with asyncio.timeout(5):
        while kept() is not None:
            await asyncio.sleep(0.01)  # threads may not have let go of it yet
            gc.collect()


@pytest.mark.parametrize("stop", ["clean", "unclean"])
async def test_a_request_sent_again_to_a_broker_that_started_anew(stack: Stack, stop: str) -> None:
    talk = Conversation(stack.runtime.random.bytes(16))
    client = await connect(stack, stack.port, talk)
    await client.create_stream("s")
    await client.create_topic("s", "t", partitions_count=1)
    await client.send("s", "t", [Message(b"one", id=1)], partitioning=FIRST)
    await client.send("s", "t", [Message(b"two", id=2)], partitioning=FIRST)
    client._connection.abort()
    if stop == "unclean":
        (Path(stack.folder) / "broker/clean").unlink(missing_ok=True)
    await stack.stop_broker()
    await stack.start_broker()
    client = await connect(stack, stack.port, talk)
    sent = await client.again(c.SEND_MESSAGES)
    assert sent.placed[0].base_offset == 1
    await client.send("s", "t", [Message(b"three", id=3)], partitioning=FIRST)
    found = (await client.poll("s", "t", partition=0, count=10)).messages()
    assert [m.payload for m in found] == [b"one", b"two", b"three"]
    await client.purge_topic("s", "t")
    await stack.stop_broker()
    await stack.start_broker()
    other = await stack.connect()
    await other.send("s", "t", [Message(b"kept")], partitioning=FIRST)
    again = await connect(stack, stack.port, talk)
    await again.again(c.PURGE_TOPIC)  # a second time it would purge what came since
    assert (await again.poll("s", "t", partition=0, count=10)).count == 1
    for one in (other, again):
        await one.close()
    with suppress(UnavailableError):
        await client.close()


# --- the real client ------------------------------------------------------------------------------


async def run_090(script: str, *arguments: str) -> str:
    return await run_peer("0.9.0", script, *arguments)


async def test_producers_of_0_9_0_lose_answers_and_store_once(stack: Stack) -> None:
    """They send a batch again under a new client id; the answer to every third SEND is lost."""
    sends = 0

    def every_third(frame: RequestFrame) -> bool:
        nonlocal sends
        sends += frame.code == c.SEND_MESSAGES.code
        return frame.code == c.SEND_MESSAGES.code and sends % 3 == 0

    async with Cutter(stack.port, every_third) as cutter:
        # An SDK that reconnects may go where the cluster says its leader is, past the cutter.
        stack.broker.broker.address = ("127.0.0.1", cutter.port)
        await run_090("producer_c.py", f"127.0.0.1:{cutter.port}", "s", "t", "20", "5")
        assert cutter.cuts == sends // 3 > 5
        clients = {frame.head.client for frame in cutter.requests if frame.head is not None}
        assert len(clients) == cutter.cuts + 1
    client = await stack.connect()
    found = (await client.poll("s", "t", partition=0, count=1000)).messages()
    assert [message.payload for message in found] == [b"%d" % n for n in range(100)]
    await client.close()


async def test_short_sends_read_by_0_9_0_as_they_come(stack: Stack) -> None:
    """It checks what it reads; so do those who speak another dialect."""
    sends, size = 40, 10
    await run_090("short_sends_c.py", f"127.0.0.1:{stack.port}", "s", "t", str(sends), str(size))
    assert stack.broker.broker.poll_caches.replies.bytes >= 16 * 1024, "they were kept"
    client = await stack.connect()
    found = (await client.poll("s", "t", partition=0, count=1000)).messages()
    assert [message.payload for message in found] == [
        b"message %d of %d" % (n, number) * (n + 1) for number in range(sends) for n in range(size)
    ]
    await client.close()


async def test_the_client_chooses_the_partition(stack: Stack) -> None:
    """Balanced and by key it asks for the topic and names a partition; that one it is."""
    chosen: list[int] = []

    def note(frame: RequestFrame) -> bool:
        if frame.code == c.SEND_MESSAGES.code:
            request = SendMessages.decode(bytearray(frame.payload), Dialect.C)
            assert request.partitioning.kind is PartitioningKind.PARTITION
            chosen.append(request.partitioning.partition)
        return False

    client = await stack.connect()
    async with Cutter(stack.port, note) as cutter:
        output = await run_090("partitions_c.py", f"127.0.0.1:{cutter.port}", "s", "t", "4")
        told = json.loads(output.splitlines()[-1])
    assert told == chosen
    assert len(set(chosen)) > 1
    details = await client.get_topic("s", "t")
    assert details is not None
    counts = [partition.messages_count for partition in details.partitions]
    assert counts == [chosen.count(partition) for partition in range(4)]
    await client.close()


def test_over_quic(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        command = [interpreter("0.9.0"), str(PEERS / "run.py"), str(PEERS / "over_quic.py")]
        done = subprocess.run(
            [*command, server.addresses["quic"], "q"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


class Slow:
    """A client of dialect C that reads its answers when it is told to, of which few bytes fit on
    the way: the rest waits in the server."""

    def __init__(self, address: str, name: bytes) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(SECONDS)
        host, port = address.rsplit(":", 1)
        self._socket.connect((host, int(port)))
        self._talk = Conversation(name.ljust(16, b"."))
        login = users.LoginRegister(frames.VERSION, "test", "1", "iggy", "iggy")
        registered: users.Registered = self.call(c.LOGIN_REGISTER, login)
        self._talk.on_registered(registered.session)

    def ask(self, command: c.Command[Q, R], request: Q) -> None:
        pieces = command.encode_request(request, Dialect.C)
        self._socket.sendall(b"".join(self._talk.encode(command.code, pieces)))

    def answer(self, command: c.Command[Q, R]) -> R:
        header = self._read(frames.HEADER_BYTES)
        reply = frames.decode_reply(
            header + self._read(frames.frame_bytes(header) - frames.HEADER_BYTES)
        )
        assert reply.status == 0
        return command.decode_response(reply.payload, Dialect.C)

    def call(self, command: c.Command[Q, R], request: Q) -> R:
        self.ask(command, request)
        return self.answer(command)

    def _read(self, length: int) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            assert count, "the server closed the connection"
            view = view[count:]
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


def polled_from(offset: int, count: int) -> PollMessages:
    return PollMessages(Consumer.single(), "s", "t", 0, Strategy.offset(offset), count, False)


def test_replies_that_wait_for_their_readers_are_left_alone(tmp_path: Path) -> None:
    """The memory they are in is used again and again, but not before."""
    config = tmp_path / "settings.toml"
    config.write_text("[advanced.broker]\npoll_cache_bytes_max = 16777216\n")  # less than is sent
    arguments = ("--dev", "--config", str(config))
    with running(tmp_path, arguments=arguments) as server, ExitStack() as clients:
        address = server.addresses["iggy"]

        def connect_slow(name: bytes) -> Slow:
            return clients.enter_context(closing(Slow(address, name)))

        busy = connect_slow(b"busy")
        busy.call(c.CREATE_STREAM, topics.CreateStream("s"))
        busy.call(c.CREATE_TOPIC, CreateTopic("s", 1, Compression.NONE, 0, 0, 0, "t"))
        sent: list[bytes] = []

        def send(count: int, size: int) -> None:
            payloads = [b"%08d" % (len(sent) + n) * (size // 8) for n in range(count)]
            messages = [Message(p, id=1 + len(sent) + n) for n, p in enumerate(payloads)]
            busy.call(c.SEND_MESSAGES, encode_send("s", "t", FIRST, messages))
            sent.extend(payloads)

        for _ in range(12):
            send(1000, 1000)  # converted in place, so made anew for a poll
        for _ in range(30):
            send(400, 1000)  # kept as it came
        waiting = []
        for name, offset, count in ((b"made", 0, 12_000), (b"kept", 12_000, 12_000)):
            client = connect_slow(name)
            client.ask(c.POLL_MESSAGES, polled_from(offset, count))
            waiting.append((client, offset, count))
        for turn in range(3):
            for offset in range(0, 24_000, 1000):
                messages = busy.call(c.POLL_MESSAGES, polled_from(offset + turn, 900)).messages()
                begin = offset + turn
                assert [m.payload for m in messages] == sent[begin : begin + 900]
            for _ in range(20):
                send(400, 1000)
            for _ in range(8):
                send(1000, 1000)  # kept too now, as there are readers
        for client, offset, count in waiting:
            found = client.answer(c.POLL_MESSAGES).messages()
            assert [m.payload for m in found] == sent[offset : offset + count]
            assert [m.offset for m in found] == list(range(offset, offset + count))
