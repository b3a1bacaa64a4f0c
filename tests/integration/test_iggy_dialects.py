"""Real clients of five generations, and recorded frames of three more, on one port at one time."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import xxhash

from headrace.broker.sessions.sessions import RULES
from headrace.client.iggy import IggyClient
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import ResponseDecoder, encode_request
from headrace.wire.iggy.commands import TABLE, Command, Encodable
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import error_of
from headrace.wire.iggy.messages import consumers, topics, users
from headrace.wire.iggy.messages.messages import Message, PollMessages, encode_send
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header
from headrace.wire.iggy.vsr.client import Conversation
from tests.conformance.iggy.test_frames import dialect_of, frame_bytes, frame_of
from tests.integration.broker_stack import DEVELOPMENT, Stack
from tests.integration.real_clients import (
    VERSIONS,
    end_spawned,
    finish,
    interpreter,
    line_of,
    spawn,
    wait_stored,
)
from tests.integration.server import ROOT

CLASSIC_VERSIONS = VERSIONS[:-1]
A, B1, B2, C = Dialect
DIALECTS = {"0.5.0": A, "0.6.0": B1, "0.7.0": B2, "0.8.0": B2, "0.9.0": C}
CRATES = {A: "0.7.0", B1: "0.8.0", B2: "0.10.0"}

Q = TypeVar("Q", bound=Encodable)
R = TypeVar("R")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    running = await Stack(str(tmp_path / "data")).start()
    try:
        yield running
    finally:
        await end_spawned()
        await running.stop()


class Wire:
    """A connection that speaks one dialect through the codecs, byte for byte what is sent."""

    def __init__(self, stack: Stack, dialect: Dialect) -> None:
        self.port, self.dialect = stack.port, dialect
        self._decoder = ResponseDecoder()

    async def __aenter__(self) -> Wire:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def exchange(self, frame: bytes) -> bytes:
        self._writer.write(frame)
        async with asyncio.timeout(10):
            while True:
                data = await self._reader.read(65536)
                assert data, "the server closed"
                for reply in self._decoder.feed(data):
                    if reply.status:
                        raise error_of(reply.status)
                    return bytes(reply.payload)

    async def call(self, command: Command[Q, R], request: Q) -> R:
        pieces = command.encode_request(request, self.dialect)
        body = await self.exchange(b"".join(encode_request(command.code, pieces)))
        return command.decode_response(body, self.dialect)

    async def login(self) -> users.Identity:
        """As the SDKs of that dialect do: a PING first."""
        await self.call(c.PING, Empty())
        request = users.LoginUser("iggy", "iggy", CRATES[self.dialect])
        return await self.call(c.LOGIN_USER, request)

    async def login_silently(self) -> None:
        """As Node does: no version, so the reply may be in another dialect."""
        request = users.LoginUser("iggy", "iggy").encode()
        await self.exchange(b"".join(encode_request(c.LOGIN_USER.code, [request])))

    async def poll(self, stream: str, topic: str, count: int = 1000) -> list[Message]:
        request = PollMessages(Consumer.single(9), stream, topic, 0, Strategy.first(), count)
        return (await self.call(c.POLL_MESSAGES, request)).messages()


# --- the clients' own methods ---------------------------------------------------------------------


async def test_every_method_of_every_generation(stack: Stack) -> None:
    """All five at once; each script compares what it used with what its package exposes."""
    peers = [
        await spawn(version, EVERY_METHOD.get(version, "every_method.py"), stack.address, version)
        for version in VERSIONS
    ]
    for version, peer in zip(VERSIONS, peers, strict=True):
        used = json.loads((await finish(peer)).splitlines()[-1])
        exposed = await asyncio.create_subprocess_exec(
            interpreter(version), "-c", EXPOSED, stdout=asyncio.subprocess.PIPE
        )
        assert used == json.loads((await exposed.communicate())[0])
        assert {"IggyClient.poll_messages", "IggyConsumer.consume_messages"} <= set(used)


EVERY_METHOD = {"0.9.0": "every_method_c.py"}
EXPOSED = """
import apache_iggy, builtins, json
kinds = {n: k for n, k in vars(apache_iggy).items() if isinstance(k, type) and n[0] != "_"}
python = lambda k: [b for b in k.__mro__ if b is getattr(builtins, b.__name__, None)]
own = lambda k, a: not any(hasattr(b, a) for b in python(k))
public = {n: [a for a in dir(k) if a[0] != "_" and own(k, a)] for n, k in kinds.items()}
print(json.dumps(sorted(x for n, a in public.items() for x in ([f"{n}.{i}" for i in a] or [n]))))
"""


# --- each other's messages ------------------------------------------------------------------------


async def order(peer: asyncio.subprocess.Process, *what: object) -> Any:
    assert peer.stdin is not None
    peer.stdin.write(json.dumps(what).encode() + b"\n")
    return await answer(peer)


async def answer(peer: asyncio.subprocess.Process) -> Any:
    assert peer.stdout is not None
    async with asyncio.timeout(20):
        line = await peer.stdout.readline()
    if line == b"connected\n":
        return None
    try:
        return json.loads(line)
    except ValueError:
        raise AssertionError(line + await peer.stdout.read()) from None


HEADERS = [
    encode_headers([UserHeader.of("trace", "abc"), UserHeader.of("n", -5)]),
    key_header(b"a key"),
    encode_headers([UserHeader.of("ok", True)]) + key_header(b"\0" * 300),
]


def expected_checksum(message: Message, dialect: Dialect) -> int:
    """By hand: everything behind the checksum, as that dialect lays it out."""
    headers = message.headers
    if dialect is not B2:
        headers = b"".join(
            struct.pack("<I", len(h.key)) + h.key
            + struct.pack("<BI", h.kind, len(h.value)) + h.value
            for h in message.user_headers
        )  # fmt: skip
    covered = message.id.to_bytes(16, "little") + struct.pack(
        "<QQQII",
        message.offset,
        message.timestamp_us,
        message.origin_timestamp_us,
        len(headers),
        len(message.payload),
    )
    covered += bytes(8 if dialect is B2 else 0) + message.payload + headers
    return zlib.crc32(covered) if dialect is A else xxhash.xxh3_64_intdigest(covered)


async def test_five_generations_read_each_others_messages(stack: Stack) -> None:
    client = await stack.connect()
    await client.create_stream("s")
    await client.create_topic("s", "t", partitions_count=2)
    peers = {}
    for version in VERSIONS:
        first = "1" if version == "0.5.0" else "0"
        peers[version] = await spawn(version, "exchange.py", stack.address, "s", "t", first)
    for peer in peers.values():
        await answer(peer)
    assert len(await client.get_clients()) == 6
    sent: list[bytes] = []
    for round_ in range(2):
        for version, peer in peers.items():
            texts = [f"{version} says {n} äöü" + "x" * n for n in range(20)]
            await order(peer, "send", texts)
            sent += [text.encode() for text in texts]
        ours = [
            Message(
                b"headrace %d" % n,
                HEADERS[n % 3],
                id=1 + n + 100 * round_,
                origin_timestamp_us=10**15 + n * 7 % 5,
            )
            for n in range(9)
        ]
        await client.send("s", "t", ours, partitioning=Partitioning.to_partition(0))
        sent += [message.payload for message in ours]
        for dialect in (A, B1, B2):
            async with Wire(stack, dialect) as wire:
                await wire.login()
                text = f"wire {dialect.value}".encode()
                request = encode_send(
                    "s", "t", Partitioning.to_partition(0), [Message(text, HEADERS[0])]
                )
                await wire.call(c.SEND_MESSAGES, request)
                sent.append(text)
        async with await connect_c(stack) as newest:
            there = Partitioning.to_partition(0)
            await newest.send("s", "t", [Message(b"wire C", HEADERS[0])], partitioning=there)
            sent.append(b"wire C")
    canonical = (await client.poll("s", "t", partition=0, count=1000)).messages()
    assert [message.payload for message in canonical] == sent
    assert [message.offset for message in canonical] == list(range(len(sent)))
    assert len({message.id for message in canonical}) == len(sent)
    for version, peer in peers.items():
        seen = await order(peer, "poll")
        if version == "0.9.0":  # its checksums depend on how messages are batched
            for message, row in zip(canonical, seen, strict=True):
                assert row.pop(4)
                assert len(row.pop()) == len(message.user_headers)
                assert row.pop() == message.origin_timestamp_us
        assert seen == [
            [
                message.payload.hex(),
                message.id,
                message.offset,
                message.timestamp_us,
                *(() if version == "0.9.0" else [expected_checksum(message, DIALECTS[version])]),
                len(message.payload),
            ]
            for message in canonical
        ]
    # Older Python clients hide user headers, so these are read off the wire in each dialect.
    assert sum(bool(message.headers) for message in canonical) == 2 * (9 + 3 + 1)
    for dialect in (A, B1, B2):
        async with Wire(stack, dialect) as wire:
            await wire.login()
            assert await wire.poll("s", "t") == canonical
    async with await connect_c(stack) as newest:
        read = (await newest.poll("s", "t", partition=0, count=1000)).messages()
    assert read == canonical
    for peer in peers.values():
        await finish(peer)
    await client.close()


async def connect_c(stack: Stack, conversation: Conversation | None = None) -> IggyClient:
    """Our own client in dialect C, logged in."""
    talk = conversation or Conversation(stack.runtime.random.bytes(16))
    client = await IggyClient.connect(stack.runtime, "127.0.0.1", stack.port, conversation=talk)
    await client.login("iggy", "iggy")
    return client


async def test_a_group_of_five_generations(stack: Stack) -> None:
    client = await stack.connect()
    await client.create_stream("s")
    await client.create_topic("s", "t", partitions_count=5)
    members = [
        await spawn(version, "group_member.py", stack.address, "s", "t", "mixed")
        for version in VERSIONS
    ]
    for member in members:
        assert await line_of(member) == "joined\n"
    async with asyncio.timeout(60):
        while True:  # some clients join with their first poll
            group = await client.get_group("s", "t", "mixed")
            if group is not None and [len(m.partitions) for m in group.members] == [1] * 5:
                break
            await asyncio.sleep(0.01)
    for partition in range(5):
        numbers = [Message(b"%d" % (partition * 100 + n)) for n in range(50)]
        await client.send("s", "t", numbers, partitioning=Partitioning.to_partition(partition))
    first = [[await line_of(member) for _ in range(50)] for member in members]
    await wait_stored(client, "mixed", [49] * 5)
    seen = []
    for lines, member in zip(first, members, strict=True):
        lines += (await finish(member)).splitlines()  # whatever came twice
        seen.append([int(line.split()[2]) for line in lines])
    assert sorted(number for numbers in seen for number in numbers) == [
        partition * 100 + n for partition in range(5) for n in range(50)
    ]
    # Each member read the whole of one partition, in order.
    assert all(numbers == list(range(numbers[0], numbers[0] + 50)) for numbers in seen)
    await client.close()


# --- logins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", CLASSIC_VERSIONS)
async def test_clients_skip_what_stands_behind_the_user_id(
    stack: Stack, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dialect A's reply has an access token there; no client of any generation minds."""
    for dialect, row in RULES.items():
        monkeypatch.setitem(RULES, dialect, replace(row, login_token=True))
    async with Wire(stack, DIALECTS[version]) as wire:
        assert (await wire.login()).token
    await finish(await spawn(version, "exchange.py", stack.address, "s", "t", "1"))


async def test_the_access_token_of_a_login_logs_real_clients_in(stack: Stack) -> None:
    async with Wire(stack, A) as wire:
        identity = await wire.login()
        assert identity.user_id == 0
    client = await stack.connect(login=False)
    assert await client.login_with_token(identity.token) == 0
    for version in VERSIONS[1:]:  # 0.5.0 knows no connection strings
        string = f"iggy+tcp://{identity.token}@{stack.address}"
        await finish(await spawn(version, "token_login.py", string))
        assert await client.get_stream("by-token") is not None
        await client.delete_stream("by-token")
    await client.close()


async def test_tokens_work_whatever_their_user_spoke_last(stack: Stack) -> None:
    async with Wire(stack, A) as wire:
        await wire.login()  # from now on root is known to speak A
    client = await stack.connect(login=False)
    await client.login("iggy", "iggy")
    token = await client.create_token("laptop")
    for version in VERSIONS[1:]:
        async with Wire(stack, A) as wire:
            await wire.login()
            # Python clients of B ask for the cluster's metadata after a login, and so are known.
            await finish(
                await spawn(version, "token_login.py", f"iggy+tcp://{token}@{stack.address}")
            )
            ours = await stack.connect(login=False)
            assert await ours.login_with_token(token) == 0
            assert (await ours.get_stream("by-token")) is not None
            await ours.delete_stream("by-token")
            await ours.close()
    await client.close()


async def test_the_default_for_clients_that_say_nothing(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(DEVELOPMENT, default_dialect="A")
    stack = await Stack(str(tmp_path / "data"), settings=settings).start()
    async with Wire(stack, A) as wire:
        login = users.LoginUser("iggy", "iggy")
        assert (await wire.call(c.LOGIN_USER, login)).user_id == 0  # 1 on the wire
        assert (await wire.call(c.GET_STATS, Empty())).streams_count == 0
        made = await wire.call(c.CREATE_STREAM, topics.CreateStream("s"))
        body = await wire.exchange(b"".join(encode_request(201)))
        assert (made.stream.id, body[:4]) == (0, b"\x01\0\0\0")
    await stack.stop()


# --- Node's recorded frames -----------------------------------------------------------------------

ONE_SESSION = [
    "login-user",
    "create-stream",
    "get-streams",
    "get-stream",
    "update-stream",
    "purge-stream",
    "delete-stream",
    "get-stats",
    "create-personal-access-token",
    "get-personal-access-tokens",
    "delete-personal-access-token",
    "create-topic",
    "get-topics",
    "get-topic",
    "create-partitions",
    "delete-partitions",
    "update-topic",
    "purge-topic",
    "delete-topic",
    "create-user",
    "get-users",
    "get-user",
    "create-consumer-group",
    "get-consumer-group",
    "get-consumer-groups",
    "send-messages",
    "join-consumer-group",
    "poll-messages",
    "logout-user",
]


async def prepare(stack: Stack, dialect: Dialect) -> None:
    """The streams and the topic that Node's tests made before what was recorded of them."""
    compression = topics.Compression.NONE
    async with Wire(stack, dialect) as wire:
        await wire.login()
        if dialect is A:
            for stream_id in (110, 554):
                stream = topics.CreateStream(f"stream {stream_id}", stream_id=stream_id)
                await wire.call(c.CREATE_STREAM, stream)
            topic = topics.CreateTopic(554, 1, compression, 0, 0, 1, "topic", topic_id=665)
        else:
            for name in ("e2e-tcp-topic-stream", "e2e-consumer-group-stream-543"):
                await wire.call(c.CREATE_STREAM, topics.CreateStream(name))
            owner, name = "e2e-consumer-group-stream-543", "e2e-consumer-group-topic-543"
            topic = topics.CreateTopic(owner, 1, compression, 0, 0, 1, name)
        await wire.call(c.CREATE_TOPIC, topic)


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.8.0"])
async def test_node_is_understood_without_a_version(stack: Stack, version: str) -> None:
    dialect = dialect_of(f"node-{version}")
    await prepare(stack, dialect)
    replayed = []
    async with Wire(stack, dialect) as node:
        for name in ONE_SESSION:
            recording = f"node-{version}-{name}"
            if not (ROOT / f"tests/conformance/iggy/frames/{recording}.hex").exists():
                continue
            replayed.append(recording)
            body = await node.exchange(frame_bytes(recording))
            command = TABLE[frame_of(recording).code]
            if name == "login-user":
                continue  # before anything has shown the dialect
            response = command.decode_response(body, dialect)
            encoded = b"".join(command.encode_response(response, dialect))
            # B1 shows itself by its first SEND; before, GET_STATS has B2's tail, which it skips.
            assert body.startswith(encoded), recording
            assert len(body) - len(encoded) in ((0, 20) if name == "get-stats" else (0,))
            check_node(name, response, dialect)
    recorded = (ROOT / "tests/conformance/iggy/frames").glob(f"node-{version}-*.hex")
    assert sorted(replayed) == sorted(path.stem for path in recorded)


def check_node(name: str, response: Any, dialect: Dialect) -> None:
    match name:
        case "create-stream":
            assert response.stream.id == (163 if dialect is A else 2)
        case "get-user":
            assert response.user.username == "test-user"
        case "get-topic":
            assert response.topic.partitions_count == 0
        case "poll-messages":
            messages = response.messages()
            assert response.count == len(messages) == 100
            headers = {header for message in messages for header in message.user_headers}
            assert UserHeader.of("x-header-string-1", "incredible") in headers


async def test_all_of_node_at_once(stack: Stack) -> None:
    """Three silent clients of one user, interleaved: each keeps its own dialect."""
    async with AsyncExitStack() as opened:
        wires = [await opened.enter_async_context(Wire(stack, d)) for d in (A, B1, B2)]
        for wire in wires:
            await wire.login_silently()
        for wire in wires:
            name, compression = wire.dialect.value, topics.Compression.NONE
            await wire.call(c.CREATE_STREAM, topics.CreateStream(name))
            topic = topics.CreateTopic(name, 1, compression, 0, 0, 1, "t")
            await wire.call(c.CREATE_TOPIC, topic)
        for wire in wires:
            sent = [Message(b"from " + wire.dialect.value.encode(), HEADERS[0])]
            for other in wires:
                to = Partitioning.to_partition(0)
                await wire.call(c.SEND_MESSAGES, encode_send(other.dialect.value, "t", to, sent))
        for wire in wires:
            for other in wires:
                found = await wire.poll(other.dialect.value, "t")
                assert [m.payload for m in found] == [b"from A", b"from B1", b"from B2"]
                assert {m.headers for m in found} == {HEADERS[0]}
            listed = await wire.call(c.GET_STREAMS, Empty())
            assert [stream.id for stream in listed.streams] == [0, 1, 2]
            group = consumers.CreateGroup("A", "t", wire.dialect.value)
            assert (await wire.call(c.CREATE_CONSUMER_GROUP, group)).group.id in (0, 1, 2)


async def test_the_published_forms_on_a_live_port(stack: Stack) -> None:
    """CREATE_TOPIC and index entries as the protocol's published description draws them."""
    from tests.unit.wire.iggy.test_detection import published, published_index

    client = await stack.connect()
    await client.create_stream("s")
    async with Wire(stack, A) as wire:
        await wire.login_silently()
        stream = b"\x02\x01s"
        for name, size in ((b"plain", None), (b"capped", 3_000_000_000)):
            rest = published(name, size=size, topic_id=len(name), expiry=90)
            rest = rest[:-1] + b"\x01"  # one data node keeps one replica
            body = await wire.exchange(b"".join(encode_request(302, [stream + rest])))
            made = c.CREATE_TOPIC.decode_response(body, A)
            assert made.topic.id == len(name) - 1
            assert made.topic.message_expiry_us == 90_000_000
            assert len(made.partitions) == 3
        plain, capped = await client.get_topic("s", "plain"), await client.get_topic("s", "capped")
        assert plain is not None
        assert capped is not None
        assert (plain.topic.max_size_bytes, capped.topic.max_size_bytes) == (
            2**64 - 1,
            3_000_000_000,
        )
        sent = [Message(b"%d" % n) for n in range(30)]
        request = encode_send("s", "plain", Partitioning.to_partition(0), sent)
        moved = published_index(request.encode(A))
        await wire.exchange(b"".join(encode_request(101, [moved])))
        assert [m.payload for m in await wire.poll("s", "plain")] == [m.payload for m in sent]
    await client.close()
