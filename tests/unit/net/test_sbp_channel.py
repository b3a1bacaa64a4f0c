"""Channels: what a caller sees when things go wrong, over TCP and in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.errors import (
    DeadlineError,
    InvalidArgumentError,
    NotLeaderError,
    RemoteProtocolError,
    SealedError,
    StorageError,
    UnavailableError,
)
from headrace.net.credentials import NodeCredential
from headrace.net.sbp_channel import InProcessChannel, TcpChannel
from headrace.net.sbp_server import Payload, Peer, Reply, build_routes
from headrace.runtime.interfaces import Connection, Listener
from headrace.runtime.system import system_runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.frames import Frame, FrameDecoder, encode_frame
from headrace.wire.sbp.opcodes import Code, Role
from tests.unit.net.sbp_fixtures import (
    ToyNode,
    append_request,
    connect,
    fetch_request,
    raised,
    serving,
    until,
)


class Puppet:
    """A server whose every frame the test decides."""

    def __init__(self) -> None:
        self.received: list[Frame] = []
        self.connections: list[Connection] = []
        self.listener: Listener

    async def start(self) -> TcpChannel:
        runtime = system_runtime()
        self.listener = await runtime.transport.listen("127.0.0.1", 0, self._serve)
        return await TcpChannel.connect(
            runtime,
            "127.0.0.1",
            self.listener.port,
            client_id="c",
            role=m.ClientRole.CUSTOMER,
            timeout=20,
        )

    async def _serve(self, connection: Connection) -> None:
        self.connections.append(connection)
        decoder = FrameDecoder()
        while data := await connection.receive():
            for frame in decoder.feed(data):
                assert isinstance(frame, Frame)
                if frame.opcode == Code.HEARTBEAT:
                    self.send(
                        Frame(Code.HEARTBEAT, 3, frame.stream_id, encode(m.HeartbeatResponse()))
                    )
                else:
                    self.received.append(frame)

    def send(self, *frames: Frame) -> None:
        self.connections[-1].write([b"".join(b"".join(encode_frame(f)) for f in frames)])

    async def frame(self, index: int) -> Frame:
        await until(lambda: len(self.received) > index)
        return self.received[index]

    async def close(self, channel: TcpChannel) -> None:
        await channel.close()
        self.listener.close()
        for connection in self.connections:
            connection.close()
        await self.listener.wait_closed()


def appended(offset: int) -> bytes:
    return encode(m.AppendResponse(append_responses=(m.AppendResult(1, 0, offset),)))


def call(channel: TcpChannel, offset: int, timeout: float = 30.0) -> asyncio.Future[Reply]:
    return channel.call(Code.APPEND, append_request(offset), [b"x"], timeout=timeout)


def offset_of(reply: Reply) -> int:
    assert isinstance(reply.message, m.AppendResponse)
    return reply.message.append_responses[0].base_offset


async def test_ids_rise_and_answers_in_any_order_find_their_call() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    calls = [call(channel, n) for n in range(3)]
    frames = [await puppet.frame(n) for n in range(3)]
    ids = [frame.stream_id for frame in frames]
    assert ids == [2, 3, 4]  # the heartbeat was 1
    for position in (2, 0, 1):
        puppet.send(Frame(Code.APPEND, 3, ids[position], appended(position * 10)))
    assert [offset_of(await each) for each in calls] == [0, 10, 20]
    await puppet.close(channel)


async def test_a_late_or_unknown_answer_is_dropped() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    assert isinstance(await raised(call(channel, 0, timeout=0.05)), DeadlineError)
    late = (await puppet.frame(0)).stream_id
    second = call(channel, 1)
    current = (await puppet.frame(1)).stream_id
    puppet.send(
        Frame(Code.APPEND, 3, late, appended(111)),
        Frame(Code.APPEND, 3, 9999, appended(222)),
        Frame(Code.APPEND, 3, current, appended(7)),
    )
    assert offset_of(await second) == 7
    await puppet.close(channel)


async def test_a_lost_connection_fails_everything_in_flight_and_stays_lost() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    calls = [call(channel, n) for n in range(5)]
    await puppet.frame(4)
    puppet.connections[0].abort()
    for each in calls:
        assert isinstance(await raised(each), UnavailableError)
    assert not channel.usable
    error = await raised(channel.call(Code.APPEND, append_request(0), [b"x"]))
    assert isinstance(error, UnavailableError)
    assert error.data["refused"] is True
    await puppet.close(channel)


@pytest.mark.parametrize("flags", [0, 1], ids=["ours", "with a reason in the response bit"])
async def test_goaway_refuses_higher_ids_and_awaits_lower_ones(flags: int) -> None:
    """The original's last servers set a reason bit that made clients drop the GOAWAY unseen."""
    puppet = Puppet()
    channel = await puppet.start()
    calls = [call(channel, n) for n in range(4)]
    ids = [(await puppet.frame(n)).stream_id for n in range(4)]
    puppet.send(Frame(Code.GOAWAY, flags, ids[1]))
    for each in calls[2:]:
        error = await raised(each)
        assert isinstance(error, UnavailableError)
        assert error.data["refused"] is True
    assert not channel.usable
    assert not calls[0].done()
    new = await raised(call(channel, 9))
    assert isinstance(new, UnavailableError)
    puppet.send(
        Frame(Code.APPEND, 3, ids[1], appended(1)), Frame(Code.APPEND, 3, ids[0], appended(0))
    )
    assert [offset_of(await each) for each in calls[:2]] == [0, 1]
    assert (await puppet.frame(4)).flags == 3  # the GOAWAY was answered
    assert len(puppet.received) == 5  # and nothing was sent after it
    await puppet.close(channel)


async def test_a_ping_from_the_server_is_answered() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    puppet.send(Frame(Code.PING, 0, 77, b"", b"there?"))
    assert await puppet.frame(0) == Frame(Code.PING, 3, 77, b"", b"there?")
    await puppet.close(channel)


async def test_f24_answers_over_several_interleaved_frames_are_put_together() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    request = fetch_request(1, 1)
    calls = [asyncio.ensure_future(channel.call(Code.FETCH, request)) for _ in range(2)]
    a, b = [(await puppet.frame(n)).stream_id for n in range(2)]

    def part(stream: int, flags: int, index: int, data: bytes) -> Frame:
        results = (m.FetchResult(1, index, len(data)),)
        return Frame(Code.FETCH, flags, stream, encode(m.FetchResponse(0, results)), data)

    puppet.send(
        part(a, 1, 1, b"a1-"), part(b, 1, 0, b"b0"), part(a, 1, 0, b"a0"), part(b, 3, 1, b"b1"),
        part(a, 3, 1, b"a1"),
    )  # fmt: skip
    first, second = await asyncio.gather(*calls)
    assert first.message == m.FetchResponse(
        fetch_responses=(m.FetchResult(1, 1, 5), m.FetchResult(1, 0, 2))
    )
    assert b"".join(first.payload) == b"a1-a1a0"
    assert b"".join(second.payload) == b"b0b1"
    await puppet.close(channel)


async def test_answers_that_make_no_sense_fail_their_call_only() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    damaged, undecodable, other, lengths, empty, good = [call(channel, n) for n in range(3)] + [
        asyncio.ensure_future(channel.call(Code.FETCH, fetch_request(1))),
        call(channel, 4),
        call(channel, 5),
    ]
    ids = [(await puppet.frame(n)).stream_id for n in range(6)]
    broken = bytearray(b"".join(encode_frame(Frame(Code.APPEND, 3, ids[0], b"", b"x"))))
    broken[-1] ^= 1
    puppet.connections[0].write([bytes(broken)])
    wrong = encode(m.FetchResponse(fetch_responses=(m.FetchResult(1, 0, 10),)))
    puppet.send(
        Frame(Code.APPEND, 3, ids[1], b"garbage"),
        Frame(Code.FETCH, 3, ids[2], appended(0)),
        Frame(Code.FETCH, 3, ids[3], wrong, b"only 9 by"),
        Frame(Code.APPEND, 7, ids[4], encode(m.SystemErrorResponse())),
        Frame(Code.APPEND, 3, ids[5], appended(5)),
    )
    assert isinstance(await raised(damaged), UnavailableError)
    assert isinstance(await raised(undecodable), RemoteProtocolError)
    assert isinstance(await raised(other), UnavailableError)
    assert isinstance(await raised(lengths), RemoteProtocolError)
    assert isinstance(await raised(empty), RemoteProtocolError)
    assert offset_of(await good) == 5
    assert channel.usable
    await puppet.close(channel)


async def test_system_errors_end_a_call_with_either_flags() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    status = m.Status(
        5, "not leader", encode(m.PlacementManager((m.PlacementManagerNode("", "pm:1", True),)))
    )
    for index, flags in enumerate((7, 5)):
        waiting = call(channel, index)
        stream_id = (await puppet.frame(index)).stream_id
        puppet.send(Frame(Code.APPEND, flags, stream_id, encode(m.SystemErrorResponse(status))))
        error = await raised(waiting)
        assert isinstance(error, NotLeaderError)
        assert error.data["leader"] == "pm:1"
    await puppet.close(channel)


async def test_garbage_from_a_server_breaks_the_channel() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    waiting = call(channel, 0)
    await puppet.frame(0)
    puppet.connections[0].write([bytes(64)])
    assert isinstance(await raised(waiting), UnavailableError)
    assert not channel.usable
    await puppet.close(channel)


async def test_a_cancelled_call_leaves_the_channel_in_order() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    cancelled = call(channel, 0)
    await puppet.frame(0)
    cancelled.cancel()
    assert isinstance(
        (await asyncio.gather(cancelled, return_exceptions=True))[0], asyncio.CancelledError
    )
    second = call(channel, 1)
    puppet.send(Frame(Code.APPEND, 3, (await puppet.frame(1)).stream_id, appended(1)))
    assert offset_of(await second) == 1
    await puppet.close(channel)


async def test_closing_fails_calls_in_flight() -> None:
    puppet = Puppet()
    channel = await puppet.start()
    waiting = call(channel, 0)
    await puppet.frame(0)
    await channel.close()
    assert isinstance(await raised(waiting), UnavailableError)
    await puppet.close(channel)


async def test_nobody_listening() -> None:
    runtime = system_runtime()
    listener = await runtime.transport.listen("127.0.0.1", 0, Puppet()._serve)
    port = listener.port
    listener.close()
    await listener.wait_closed()
    connecting = TcpChannel.connect(
        runtime, "127.0.0.1", port, client_id="c", role=m.ClientRole.CUSTOMER
    )
    assert isinstance(await raised(connecting), UnavailableError)


async def test_a_request_larger_than_a_frame_is_our_own_error() -> None:
    node = ToyNode()
    async with serving(node.handlers()) as server:
        channel = await connect(server)
        error = await raised(channel.call(Code.APPEND, append_request(0), [bytes(17 << 20)]))
        assert "too large" in str(error)
        await channel.call(Code.APPEND, append_request(0), [b"small"])
        await channel.close()


# In process


def in_process(node: ToyNode, **handlers: object) -> tuple[InProcessChannel, Peer]:
    peer = Peer(address="here", role=m.ClientRole.CUSTOMER)
    table = node.handlers()
    for name, handler in handlers.items():
        table[Code[name]] = handler  # type: ignore[assignment]
    return InProcessChannel(build_routes(Role.DATA_NODE, table), peer), peer


async def test_in_process_hands_over_the_very_objects() -> None:
    seen: list[object] = []
    reply = Reply(m.FetchResponse(), [memoryview(b"data")])

    async def fetch(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        seen.extend([message, payload, peer])
        return reply

    channel, peer = in_process(ToyNode(), FETCH=fetch)
    request, pieces = fetch_request(1), [bytearray(b"piece")]
    assert await channel.call(Code.FETCH, request, pieces) is reply
    assert seen[0] is request
    assert seen[1] is pieces
    assert seen[2] is peer
    assert peer.in_process
    assert peer.credential == NodeCredential()
    await channel.close()


@pytest.mark.parametrize("transport", ["tcp", "in process"])
@pytest.mark.parametrize(
    ("raises", "expected"),
    [
        (SealedError("sealed", stream_id=3), SealedError),
        (StorageError("disk trouble"), UnavailableError),
        (KeyError("a bug"), UnavailableError),
        (NotLeaderError("no", leader="pm-2:1"), NotLeaderError),
    ],
)
async def test_errors_look_the_same_on_both_transports(
    transport: str, raises: Exception, expected: type[Exception]
) -> None:
    node = ToyNode()
    handlers = node.handlers()

    async def fail(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        raise raises

    handlers[Code.APPEND] = fail
    async with serving(handlers) as server:
        channel: TcpChannel | InProcessChannel
        if transport == "tcp":
            channel = await connect(server)
        else:
            channel = InProcessChannel(server.routes, Peer())
        error = await raised(channel.call(Code.APPEND, append_request(0), [b"x"]))
        assert type(error) is expected
        if isinstance(error, SealedError | NotLeaderError):
            assert error.data == raises.data  # type: ignore[attr-defined]
        other = await raised(channel.call(Code.LEASE, m.LeaseRequest()))
        assert type(other) is InvalidArgumentError
        await channel.close()


async def test_in_process_deadline_leaves_the_work_running_unless_it_only_reads() -> None:
    node = ToyNode()
    go_on, finished = asyncio.Event(), asyncio.Event()

    async def slow(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        await go_on.wait()
        finished.set()
        return Reply(m.AppendResponse())

    channel, _ = in_process(node, APPEND=slow)
    late = await raised(channel.call(Code.APPEND, append_request(0), [b"x"], timeout=0.02))
    assert isinstance(late, DeadlineError)
    late = await raised(channel.call(Code.FETCH, fetch_request(1, wait_ms=9000), timeout=0.02))
    assert isinstance(late, DeadlineError)
    await until(lambda: node.cancelled == 1)
    go_on.set()
    await asyncio.wait_for(finished.wait(), 5)
    await channel.close()


async def test_in_process_caller_that_is_cancelled_does_not_cancel_an_append() -> None:
    node = ToyNode()
    go_on, finished = asyncio.Event(), asyncio.Event()

    async def slow(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        await go_on.wait()
        finished.set()
        raise SealedError("nobody hears this")

    channel, _ = in_process(node, APPEND=slow)
    waiting = asyncio.ensure_future(channel.call(Code.APPEND, append_request(0), [b"x"]))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    go_on.set()
    await channel.close()  # finishes what runs
    assert finished.is_set()
    error = await raised(channel.call(Code.APPEND, append_request(0)))
    assert isinstance(error, UnavailableError)


async def test_in_process_close_ends_long_polls() -> None:
    node = ToyNode()
    channel, _ = in_process(node)
    waiting = asyncio.ensure_future(channel.call(Code.FETCH, fetch_request(1, wait_ms=9000)))
    await asyncio.sleep(0.01)
    await channel.close()
    assert isinstance(await raised(waiting), UnavailableError)
    assert node.cancelled == 1


async def test_in_process_collects_several_replies_and_closes_the_generator() -> None:
    closed: list[bool] = []

    async def replies() -> AsyncIterator[Reply]:
        try:
            yield Reply(m.FetchResponse(fetch_responses=(m.FetchResult(1, 0, 2),)), [b"ab"])
            yield Reply(m.FetchResponse(fetch_responses=(m.FetchResult(1, 0, 1),)), [b"c"])
        finally:
            closed.append(True)

    async def fetch(message: m.Message, payload: Payload, peer: Peer) -> AsyncIterator[Reply]:
        return replies()

    channel, _ = in_process(ToyNode(), FETCH=fetch)
    reply = await channel.call(Code.FETCH, fetch_request(1))
    assert reply.message == m.FetchResponse(fetch_responses=(m.FetchResult(1, 0, 3),))
    assert b"".join(reply.payload) == b"abc"
    assert closed == [True]
    await channel.close()


async def test_in_process_heartbeat_fills_in_the_peer() -> None:
    channel, peer = in_process(ToyNode())
    request = m.HeartbeatRequest("me", m.ClientRole.DATA_NODE, m.DataNode(2, "a:1"))
    await channel.call(Code.HEARTBEAT, request)
    assert (peer.client_id, peer.role, peer.node_id) == ("me", m.ClientRole.DATA_NODE, 2)
    await channel.close()
