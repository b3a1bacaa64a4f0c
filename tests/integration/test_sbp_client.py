"""The SBP client over real sockets: against data nodes that follow a script byte by byte, and
against the real services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.config.process import ClientSettings
from headrace.errors import (
    HeadraceError,
    NotEnoughNodesError,
    OffsetOverflowError,
    SealedError,
    UnavailableError,
)
from headrace.net.addresses import format_address, parse_address
from headrace.runtime.interfaces import Buffer, Connection, Listener
from headrace.runtime.system import system_runtime
from headrace.sbp_client.channels import Connect, tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.sbp_client.producer import StreamProducer
from headrace.sbp_client.ranges import Fetched, Want
from headrace.wire.sbp.connection import Answer, Request, ServerConnection
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.frames import RESPONSE, Frame, encode_frame
from headrace.wire.sbp.messages import HeartbeatResponse
from headrace.wire.sbp.multipart import encode_answer
from headrace.wire.sbp.opcodes import Code, Role
from headrace.wire.sbp.records import decode_header, decode_index
from tests.log_cluster import Cluster, batch, bodies, eventually, read_all
from tests.unit.client.fake_nodes import FakeCluster, FakeNode

RUNTIME = system_runtime()
WINDOW = 64


class ScriptedServer:
    """Serves a `FakeNode` over TCP, frame by frame."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.goaway_after = 0
        """APPEND frames it still takes before it says GOAWAY; 0 = never."""
        self.goaway_flags = 0
        self.before_answers = b""
        """Bytes written once, in one piece with the next answer."""
        self.listener: Listener | None = None
        self.connections: list[Connection] = []
        self.appends = 0
        self.refused = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self.listener = await RUNTIME.transport.listen("127.0.0.1", 0, self._serve)
        return format_address(self.listener.host, self.listener.port)

    async def close(self) -> None:
        assert self.listener is not None
        self.listener.close()
        for connection in self.connections:
            connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.listener.wait_closed()

    async def _serve(self, connection: Connection) -> None:
        self.connections.append(connection)
        core = ServerConnection(Role.DATA_NODE)
        buffer = bytearray()
        try:
            while data := await connection.receive():
                buffer += data
                while len(buffer) >= 4:
                    length = 4 + int.from_bytes(buffer[:4], "big")
                    if len(buffer) < length:
                        break
                    frame = bytes(buffer[:length])
                    del buffer[:length]
                    self._on_frame(core, connection, frame)
        except UnavailableError:
            pass

    def _on_frame(self, core: ServerConnection, connection: Connection, frame: bytes) -> None:
        leaving = core.leaving
        for event in core.receive(frame):
            if isinstance(event, Answer):
                connection.write(event.pieces)
            elif isinstance(event, Request):
                if event.opcode.code is Code.HEARTBEAT:
                    answer = encode(HeartbeatResponse())
                    connection.write(core.respond(event, answer, (), last=True))
                    continue
                task = asyncio.get_running_loop().create_task(self._answer(core, connection, event))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self._on_append(core, connection, event)
        if leaving and int.from_bytes(frame[5:7], "big") == Code.APPEND:
            self.refused += 1

    def _on_append(self, core: ServerConnection, connection: Connection, event: Request) -> None:
        if event.opcode.code is not Code.APPEND:
            return
        self.appends += 1
        if self.appends == self.goaway_after:
            core.go_away()
            frame = Frame(Code.GOAWAY, self.goaway_flags, event.stream_id)
            connection.write(encode_frame(frame))
            assert self.listener is not None
            self.listener.close()
            self.node.leaving = True

    async def _answer(self, core: ServerConnection, connection: Connection, event: Request) -> None:
        assert event.opcode.request is not None
        message = decode(event.opcode.request, event.header)
        try:
            reply = await self.node.call(event.opcode.code, message, (event.payload,))
        except HeadraceError as error:
            connection.write(core.fail(event, error))
            return
        frames = list(encode_answer(reply.message, reply.payload))
        pieces: list[Buffer] = [self.before_answers] if self.before_answers else []
        self.before_answers = b""
        for position, (header, payload) in enumerate(frames):
            last = position + 1 == len(frames)
            pieces += core.respond(event, header, payload, last=last)
        connection.write([b"".join(pieces)])


class Scripted:
    """A fake cluster of data nodes behind sockets, and a client of it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.servers: list[ScriptedServer] = []

    async def start(self, nodes: int) -> None:
        for _ in range(nodes):
            node = FakeNode(self.cluster, "")
            server = ScriptedServer(node)
            node.address = await server.start()
            self.cluster.nodes[node.address] = node
            self.servers.append(server)
        self.cluster.create(1)

        async def placement() -> object:
            return self.cluster.placement

        def connect_to(address: str) -> Connect:
            return tcp_connect(RUNTIME, address, client_id="test")

        self.client = SbpClient(
            RUNTIME,
            placement=placement,  # type: ignore[arg-type]  # a fake channel
            node=connect_to,
            settings=ClientSettings(request_timeout_ms=30_000),
        )

    async def close(self) -> None:
        await self.client.close()
        for server in self.servers:
            await server.close()


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    await scripted.start(3)
    yield scripted
    await scripted.close()


def put(stream: OwnedStream, body: bytes) -> asyncio.Future[int]:
    header, *rest = batch(body, base_offset=stream.next_offset)
    assert isinstance(header, bytearray)
    return stream.append(header, rest)


def count_answers(answers: list[asyncio.Future[int]]) -> dict[asyncio.Future[int], int]:
    """How often each was resolved; more than once would raise InvalidStateError."""
    told: dict[asyncio.Future[int], int] = {}
    for answer in answers:
        answer.add_done_callback(lambda done: told.update({done: told.get(done, 0) + 1}))
    return told


@pytest.mark.parametrize("taken", [1, 20, 63])
async def test_f23_goaway_during_a_window_of_64(scripted: Scripted, taken: int) -> None:
    """What the node took it finishes and acknowledges, the rest goes elsewhere, all in order."""
    server = scripted.servers[0]
    stream = await OwnedStream.open(scripted.client, 1, 3, clean=True)
    server.goaway_after = taken
    answers = [put(stream, b"%d" % n) for n in range(WINDOW)]
    told = count_answers(answers)
    assert await asyncio.gather(*answers) == list(range(WINDOW))
    assert scripted.cluster.bodies(1) == [b"%d" % n for n in range(WINDOW)]
    assert server.appends == taken
    assert [len(r.batches) for r in scripted.cluster.streams[1]] == [taken, WINDOW - taken]
    assert set(told.values()) == {1}
    await stream.close()


@pytest.mark.parametrize("taken", [1, 3, 5])
async def test_f23_goaway_for_a_producer_of_plain_streams(scripted: Scripted, taken: int) -> None:
    scripted.client.settings = ClientSettings(frame_bytes=1, batch_bytes=1, linger_ms=0)
    producer = StreamProducer(scripted.client)
    server = scripted.servers[0]
    server.goaway_after = taken
    answers = [await producer.send(1, [b"%d" % n]) for n in range(WINDOW)]
    assert await asyncio.gather(*answers) == list(range(WINDOW))
    assert [body[:-4] for body in scripted.cluster.bodies(1)] == [b"%d" % n for n in range(WINDOW)]
    assert server.appends == taken
    await producer.close()


async def test_upstream_defect_19_a_goaway_that_looks_like_a_response(scripted: Scripted) -> None:
    """Its maintenance flag was the response bit, and clients never reached their GOAWAY branch."""
    server = scripted.servers[0]
    server.goaway_flags = RESPONSE
    server.goaway_after = 1
    stream = await OwnedStream.open(scripted.client, 1, 3, clean=True)
    assert await put(stream, b"0") == 0
    await eventually(RUNTIME, lambda: _is(len(scripted.cluster.streams[1]) == 2))
    assert await put(stream, b"1") == 1
    assert server.appends == 1
    await stream.close()


async def test_upstream_defect_1_two_frames_in_one_piece(scripted: Scripted) -> None:
    """And the "known client defects": PING and stray GOAWAY answers do not end the read loop."""
    server = scripted.servers[0]
    ping = b"".join(encode_frame(Frame(Code.PING, 0, 77, b"", b"are you there")))
    pong = b"".join(encode_frame(Frame(Code.PING, 3, 99)))
    stray = b"".join(encode_frame(Frame(Code.GOAWAY, 3, 99)))
    stream = await OwnedStream.open(scripted.client, 1, 3, clean=True)
    for expected in range(3):
        server.before_answers = ping + pong + stray
        assert await put(stream, b"x") == expected
    assert len(server.connections) == 1
    assert len(scripted.cluster.streams[1]) == 1
    await stream.close()


async def test_a_writer_is_told_of_goaway_before_it_has_anything_to_send(
    scripted: Scripted,
) -> None:
    stream = await OwnedStream.open(scripted.client, 1, 3, clean=True)
    server = scripted.servers[0]
    server.goaway_after = 1
    assert await put(stream, b"0") == 0
    await eventually(RUNTIME, lambda: _is(len(scripted.cluster.streams[1]) == 2))
    await stream.close()


async def test_f1_a_node_that_disappears_with_a_window_in_flight(scripted: Scripted) -> None:
    stream = await OwnedStream.open(scripted.client, 1, 3, clean=True)
    server = scripted.servers[0]
    await asyncio.gather(*[put(stream, b"%d" % n) for n in range(10)])
    answers = [put(stream, b"%d" % n) for n in range(10, 10 + WINDOW)]
    await asyncio.sleep(0)
    server.node.down = True
    assert server.listener is not None
    server.listener.close()
    for connection in server.connections:
        connection.abort()
    started = RUNTIME.clock.monotonic()
    assert await asyncio.gather(*answers) == list(range(10, 10 + WINDOW))
    assert RUNTIME.clock.monotonic() - started < 15, "by the connection's end, not by a time-out"
    assert scripted.cluster.bodies(1) == [b"%d" % n for n in range(10 + WINDOW)]
    await stream.close()


async def test_a_node_that_hangs_is_noticed_by_the_request_time_out(scripted: Scripted) -> None:
    scripted.client.settings = ClientSettings(request_timeout_ms=1000)
    stream = await OwnedStream.open(scripted.client, 1, 3, clean=True)
    await put(stream, b"0")
    never = asyncio.Event()

    async def freeze(*args: object, **more: object) -> object:
        await never.wait()
        raise AssertionError

    scripted.servers[0].node.call = freeze  # type: ignore[method-assign, assignment]
    started = RUNTIME.clock.monotonic()
    assert await put(stream, b"1") == 1
    assert 0.9 < RUNTIME.clock.monotonic() - started < 15
    await stream.close()


async def test_f24_an_answer_split_over_frames_is_put_together(scripted: Scripted) -> None:
    """Streams of one answer, each larger than a frame carries, by their request_index."""
    for stream_id in (1, 2, 3):
        if stream_id > 1:
            scripted.cluster.create(stream_id)
        for n in range(3):
            body = b"%d.%d" % (stream_id, n)
            scripted.cluster.put(stream_id, batch(body + bytes(2 << 20)))
    wants = [Want(stream_id, 0, 8 << 20) for stream_id in (3, 1, 2)]
    results = await scripted.client.fetch_many(wants, min_bytes=1 << 30)
    for want, fetched in zip(wants, results, strict=True):
        assert isinstance(fetched, Fetched)
        found = [(offset, body.rstrip(b"\0")) for offset, body in bodies(fetched.pieces)]
        assert found == [(n, b"%d.%d" % (want.stream_id, n)) for n in range(3)]
    assert len(scripted.servers[0].node.fetches) == 1


# The real services


@pytest_asyncio.fixture(params=["tcp", "in process"])
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    cluster = Cluster(RUNTIME, str(tmp_path), tcp=request.param == "tcp")
    await cluster.start()
    yield cluster
    await cluster.close()


async def records_of(client: SbpClient, stream_id: int) -> list[bytes]:
    found: list[bytes] = []
    _, end = await client.bounds(stream_id)
    while len(found) < end:
        fetched = await client.fetch(stream_id, len(found), max_bytes=1 << 20)
        for piece in fetched.pieces:
            view = bytes(piece)
            while view:
                header = decode_header(view)
                starts = [55 + start for start in decode_index(header, view)]
                ends = [*starts[1:], header.records_end]
                found += [view[a:b] for a, b in zip(starts, ends, strict=True)]
                view = view[header.batch_bytes :]
    return found


async def test_a_producer_and_a_reader(cluster: Cluster) -> None:
    client = cluster.client()
    streams = [(await client.create_stream()).stream_id for _ in range(5)]
    producer = StreamProducer(client)
    sent = {stream_id: [b"%d/%d" % (stream_id, n) for n in range(500)] for stream_id in streams}
    for n in range(500):
        for stream_id in streams:
            await producer.send(stream_id, [sent[stream_id][n]])
    await producer.flush()
    for stream_id in streams:
        assert await records_of(client, stream_id) == sent[stream_id]
    assert producer.statistics()["pending_bytes"] == 0
    await producer.close()


async def test_i18_a_node_killed_under_a_producer(cluster: Cluster) -> None:
    client = cluster.client()
    stream_id = (await client.create_stream()).stream_id
    producer = StreamProducer(client)
    sent = [b"record %d" % n for n in range(3000)]
    answers: list[asyncio.Future[int]] = []

    async def produce() -> None:
        for record in sent:
            answers.append(await producer.send(stream_id, [record]))
            if len(answers) % 50 == 0:
                await asyncio.sleep(0.005)

    async def kill() -> None:
        for at in (500, 1500):
            await eventually(RUNTIME, lambda at=at: _is(len(answers) > at))  # type: ignore[misc]
            await cluster.kill_node()
            await asyncio.sleep(0.05)
            await cluster.start_node()

    await asyncio.gather(produce(), kill())
    await producer.flush()
    assert [answer.result() for answer in answers] == list(range(3000))
    assert await records_of(client, stream_id) == sent
    assert len(await client.list_ranges(stream_id)) >= 2
    await producer.close()


async def test_f9_f11_a_sealed_range_takes_nothing_and_has_one_successor(cluster: Cluster) -> None:
    client = cluster.client()
    stream_id = (await client.create_stream()).stream_id
    await client.append(stream_id, batch(b"0"))
    (first,) = await client.list_ranges(stream_id)
    successors = [await client.seal(stream_id, 0) for _ in range(3)]
    assert [each.range_index for each in successors] == [1, 1, 1]
    with pytest.raises(SealedError):
        await client.append_to(
            first, batch(b"late"), writer_epoch=-1, expected_offset=-1, timeout=2.0
        )
    await client.append(stream_id, batch(b"1"))
    assert await read_all(client, stream_id) == [(0, b"0"), (1, b"1")]
    assert len(await client.list_ranges(stream_id)) == 2


async def test_f24_many_streams_of_a_real_node(cluster: Cluster) -> None:
    client = cluster.client()
    streams = [(await client.create_stream()).stream_id for _ in range(4)]
    for stream_id in streams:
        for n in range(3):
            await client.append(stream_id, batch(b"%d.%d" % (stream_id, n) + bytes(1 << 20)))
    wants = [Want(stream_id, 1, 8 << 20) for stream_id in reversed(streams)]
    results = await client.fetch_many([*wants, Want(streams[0], 99, 1)], min_bytes=1 << 30)
    for want, fetched in zip(wants, results, strict=False):
        assert isinstance(fetched, Fetched)
        found = [(offset, body.rstrip(b"\0")) for offset, body in bodies(fetched.pieces)]
        assert found == [(n, b"%d.%d" % (want.stream_id, n)) for n in (1, 2)]
    assert isinstance(results[-1], OffsetOverflowError)


async def test_known_client_defects_creation_is_not_tried_for_ever(tmp_path: Path) -> None:
    """Upstream: unlimited retry loops of 1 s when a stream could not be created."""
    cluster = Cluster(RUNTIME, str(tmp_path), tcp=True)
    await cluster.start_placement()
    client = cluster.client()
    client.settings = ClientSettings(metadata_timeout_ms=500)
    started = RUNTIME.clock.monotonic()
    with pytest.raises(NotEnoughNodesError):
        await client.create_stream()
    assert RUNTIME.clock.monotonic() - started < 4.5
    await cluster.close()


async def test_a_peer_that_accepts_and_says_nothing_is_not_waited_for() -> None:
    """A stopped process: its kernel still takes the connection."""

    async def silent(connection: Connection) -> None:
        while await connection.receive():
            pass

    listener = await RUNTIME.transport.listen("127.0.0.1", 0, silent)
    address = format_address(listener.host, listener.port)
    assert parse_address(address)[1] == listener.port
    connect = tcp_connect(RUNTIME, address, client_id="test")
    client = SbpClient(
        RUNTIME,
        placement=connect,
        node=lambda _: connect,
        settings=ClientSettings(metadata_timeout_ms=300),
    )
    started = RUNTIME.clock.monotonic()
    with pytest.raises(HeadraceError):
        await client.list_ranges(1)
    assert RUNTIME.clock.monotonic() - started < 4.5
    await client.close()
    listener.close()
    await listener.wait_closed()


async def _is(value: bool) -> bool:
    return value
