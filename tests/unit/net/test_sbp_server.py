"""The SBP server over real sockets: order, flow control, refusals, shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.errors import (
    DeadlineError,
    SealedError,
    UnauthorizedError,
    UnavailableError,
)
from headrace.net.addresses import parse_address
from headrace.net.credentials import NodeCredential, Ticket, make_ticket, node_credential
from headrace.net.sbp_channel import ChannelLimits
from headrace.net.sbp_server import Payload, Peer, Reply, SbpServer, ServerLimits, build_routes
from headrace.observability.logging import request_text
from headrace.runtime.interfaces import Connection
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.frames import Frame, FrameDecoder, encode_frame
from headrace.wire.sbp.opcodes import Code, Opcode, Role
from tests.unit.net.sbp_fixtures import (
    SECRET,
    ToyNode,
    append_request,
    connect,
    fetch_request,
    raised,
    serving,
    until,
)


class Raw:
    """A peer that writes bytes as it likes."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    @classmethod
    async def connect(cls, server: SbpServer) -> Raw:
        address = parse_address(server.address)
        return cls(await server.runtime.transport.connect(*address, timeout=20))

    def send(self, *frames: Frame) -> None:
        self.connection.write([b"".join(b"".join(encode_frame(frame)) for frame in frames)])

    async def frame(self) -> Frame:
        async with asyncio.timeout(5):
            while not self._frames:
                data = await self.connection.receive()
                assert data, "the server closed the connection"
                for event in self._decoder.feed(data):
                    assert isinstance(event, Frame)
                    self._frames.append(event)
        return self._frames.pop(0)

    async def end(self) -> list[Frame]:
        """The frames up to the end of the connection."""
        async with asyncio.timeout(5):
            while data := await self.connection.receive():
                for event in self._decoder.feed(data):
                    assert isinstance(event, Frame)
                    self._frames.append(event)
        return self._frames

    async def close(self) -> None:
        self.connection.close()
        await self.connection.wait_closed()


def status_in(frame: Frame) -> m.Status:
    assert frame.flags == 0x07
    status = decode(m.SystemErrorResponse, frame.header).status
    assert status is not None
    return status


def test_routes_must_match_the_table() -> None:
    handlers = ToyNode().handlers()
    assert set(build_routes(Role.DATA_NODE, handlers).table) == set(handlers)
    with pytest.raises(RuntimeError, match="0x1001"):
        build_routes(Role.DATA_NODE, {c: h for c, h in handlers.items() if c != Code.APPEND})
    with pytest.raises(RuntimeError, match="0x7001"):
        build_routes(Role.DATA_NODE, {**handlers, Code.LEASE: handlers[Code.APPEND]})


async def test_handlers_know_whose_request_they_serve() -> None:
    """With a task of their own, or without: for whatever they log."""
    node, seen = ToyNode(), list[str]()

    def at_once(message: m.Message, payload: Payload, peer: Peer) -> asyncio.Future[Reply]:
        seen.append(request_text())
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        answer.set_result(Reply(m.AppendResponse()))
        return answer

    async def in_a_task(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        seen.append(request_text())
        return Reply(m.FetchResponse())

    handlers = {**node.handlers(), Code.APPEND: at_once, Code.FETCH: in_a_task}
    async with serving(handlers) as server:
        channel = await connect(server)
        await channel.call(Code.APPEND, append_request(0), [b"batch"])
        await channel.call(Code.APPEND, append_request(1), [b"batch"])
        await channel.call(Code.FETCH, fetch_request(0))
        await channel.close()
    who = {text.rpartition("-")[0] for text in seen}
    numbers = [int(text.rpartition("-")[2]) for text in seen]
    assert len(who) == 1
    assert "127.0.0.1:" in who.pop()
    assert numbers == sorted(set(numbers)), "each its own"


async def test_a_slow_fetch_does_not_hold_up_later_requests() -> None:
    node = ToyNode()
    async with serving(node.handlers()) as server:
        channel = await connect(server)
        slow = asyncio.ensure_future(channel.call(Code.FETCH, fetch_request(3, wait_ms=9000)))
        for offset in range(3):
            await channel.call(Code.APPEND, append_request(offset), [b"batch"])
        assert not slow.done()
        node.release.set()
        reply = await slow
        assert b"".join(reply.payload) == bytes(3)
        await channel.close()


async def test_appends_of_a_connection_start_in_the_order_they_were_sent() -> None:
    node = ToyNode()
    async with serving(node.handlers()) as server:
        channel = await connect(server)
        calls = [channel.call(Code.APPEND, append_request(n), [b"x" * (n % 7)]) for n in range(200)]
        replies = await asyncio.gather(*calls)
        assert node.started == list(range(200))
        offsets = [reply.message.append_responses[0].base_offset for reply in replies]  # type: ignore[attr-defined]
        assert offsets == list(range(200))
        await channel.close()


async def test_pipelined_frames_in_one_write() -> None:
    node = ToyNode()
    async with serving(node.handlers()) as server:
        raw = await Raw.connect(server)
        header = encode(append_request(0))
        raw.send(
            *[Frame(Code.APPEND, 0, i, header, b"12345") for i in range(1, 51)], Frame(1, 0, 51)
        )
        answers = [await raw.frame() for _ in range(51)]
        assert sorted(frame.stream_id for frame in answers) == list(range(1, 52))
        assert all(frame.flags == 0x03 for frame in answers)
        await raw.close()


async def test_ping_echoes_header_and_payload() -> None:
    async with serving(ToyNode().handlers()) as server:
        raw = await Raw.connect(server)
        raw.send(Frame(Code.PING, 0, 7, b"any header", b"any payload", header_format=9))
        assert await raw.frame() == Frame(Code.PING, 3, 7, b"any header", b"any payload", 9)
        await raw.close()


async def test_an_unknown_opcode_is_ignored_and_one_of_another_role_refused() -> None:
    """The original's data node panicked on the first and never answered undecodable requests."""
    async with serving(ToyNode().handlers()) as server:
        raw = await Raw.connect(server)
        raw.send(Frame(0x5555, 0, 1), Frame(Code.LEASE, 0, 2), Frame(Code.APPEND, 0, 3, b"garbage"))
        refused, undecodable = await raw.frame(), await raw.frame()
        assert (refused.stream_id, status_in(refused).code) == (2, 2)
        assert (undecodable.stream_id, status_in(undecodable).code) == (3, 2)
        raw.send(Frame(Code.FETCH, 0, 4, b"", header_format=3))
        assert status_in(await raw.frame()).code == 3
        raw.send(Frame(Code.PING, 0, 5))
        assert (await raw.frame()).stream_id == 5
        await raw.close()


async def test_an_id_in_flight_is_refused_and_free_again_afterwards() -> None:
    node = ToyNode()
    async with serving(node.handlers()) as server:
        raw = await Raw.connect(server)
        slow = Frame(Code.FETCH, 0, 9, encode(fetch_request(1, wait_ms=9000)))
        raw.send(slow, slow)
        assert status_in(await raw.frame()).code == 2
        node.release.set()
        assert (await raw.frame()).flags == 0x03
        raw.send(slow)
        assert (await raw.frame()).flags == 0x03
        await raw.close()


async def test_damaged_frames_are_answered_and_the_third_closes() -> None:
    async with serving(ToyNode().handlers()) as server:
        raw = await Raw.connect(server)
        damaged = bytearray(b"".join(encode_frame(Frame(Code.APPEND, 0, 1, b"hd", b"payload"))))
        damaged[-1] ^= 1
        for _ in range(2):
            raw.connection.write([bytes(damaged)])
            assert status_in(await raw.frame()).code == 2
        raw.connection.write([bytes(damaged)])
        frames = await raw.end()
        assert [frame.opcode for frame in frames] == [Code.APPEND, Code.GOAWAY]
        await raw.close()


async def test_handler_errors_become_system_errors() -> None:
    node = ToyNode()
    handlers = node.handlers()

    async def sealed(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        raise SealedError("range is sealed", stream_id=4)

    handlers[Code.APPEND] = sealed
    async with serving(handlers) as server:
        channel = await connect(server)
        with pytest.raises(SealedError, match="range is sealed") as caught:
            await channel.call(Code.APPEND, append_request(0), [b"x"])
        assert caught.value.data == {"stream_id": 4}
        error = await raised(channel.call(Code.SYNC_RANGES, m.SyncRangesRequest()))  # a bug there
        assert isinstance(error, UnavailableError)
        assert "internal" in str(error)
        await channel.close()


async def test_authorize_is_asked_before_the_header_is_decoded() -> None:
    asked: list[str] = []

    def authorize(opcode: Opcode, peer: Peer) -> None:
        asked.append(opcode.name)
        if opcode.code is not Code.HEARTBEAT and peer.credential is None:
            raise UnauthorizedError("credential needed")

    node = ToyNode()
    async with serving(node.handlers(), authorize=authorize, secret=SECRET) as server:
        raw = await Raw.connect(server)
        raw.send(Frame(Code.APPEND, 0, 1, b"not decodable"))
        assert status_in(await raw.frame()).code == 1403
        await raw.close()
        stranger = await connect(server)
        with pytest.raises(UnauthorizedError):
            await stranger.call(Code.APPEND, append_request(0), [b"x"])
        assert await stranger.ping(b"still served") >= 0
        await stranger.close()
        assert node.batches == []
        assert asked == ["APPEND", "HEARTBEAT", "APPEND"]


async def test_heartbeat_tells_who_the_peer_is() -> None:
    node = ToyNode()
    async with serving(node.handlers(), secret=SECRET) as server:
        channel = await connect(
            server,
            role=m.ClientRole.DATA_NODE,
            credential=node_credential(SECRET),
            node=m.DataNode(4, "dn-4:10911"),
        )
        (peer,) = node.peers
        assert (peer.role, peer.client_id, peer.node_id) == (m.ClientRole.DATA_NODE, "test", 4)
        assert peer.credential == NodeCredential()
        await channel.close()
        expires = server.runtime.clock.now_ms() + 60_000
        reader = await connect(server, credential=make_ticket(SECRET, [3, 5], expires))
        assert node.peers[-1].credential == Ticket(frozenset({3, 5}), expires)
        await reader.heartbeat(credential=make_ticket(SECRET, [8], expires))
        assert node.peers[-1].credential == Ticket(frozenset({8}), expires)
        # A renewal that is not good changes nothing.
        assert isinstance(await raised(reader.heartbeat(credential=b"ticket:x")), UnauthorizedError)
        await reader.heartbeat()
        assert node.peers[-1].credential == Ticket(frozenset({8}), expires)
        await reader.close()


async def test_a_role_of_the_cluster_needs_the_cluster_secret() -> None:
    node = ToyNode()
    async with serving(node.handlers(), secret=SECRET) as server:
        for credential in (b"", node_credential(b"another secret")):
            call = connect(server, role=m.ClientRole.DATA_NODE, credential=credential)
            assert isinstance(await raised(call), UnauthorizedError)
        assert node.peers == []


async def test_a_large_fetch_comes_in_frames_and_arrives_as_one() -> None:
    node = ToyNode()
    async with serving(node.handlers()) as server:
        sizes = (3 << 20, 2 << 20, 0, 5 << 20, 10)
        raw = await Raw.connect(server)
        raw.send(Frame(Code.FETCH, 0, 1, encode(fetch_request(*sizes))))
        frames = [await raw.frame()]
        while not frames[-1].flags & 2:
            frames.append(await raw.frame())
        assert [frame.flags for frame in frames] == [1, 1, 1, 3]
        for frame in frames:
            results = decode(m.FetchResponse, frame.header).fetch_responses
            assert sum(result.batch_length for result in results) == len(frame.payload)
        await raw.close()
        channel = await connect(server)
        reply = await channel.call(Code.FETCH, fetch_request(*sizes))
        assert isinstance(reply.message, m.FetchResponse)
        lengths = [r.batch_length for r in reply.message.fetch_responses]
        assert lengths == list(sizes)
        data = b"".join(reply.payload)
        assert data == b"".join(bytes([i]) * size for i, size in enumerate(sizes))
        await channel.close()


async def test_replies_are_sent_as_they_come() -> None:
    first_sent = asyncio.Event()
    handlers = ToyNode().handlers()

    async def replies() -> AsyncIterator[Reply]:
        yield Reply(m.FetchResponse(fetch_responses=(m.FetchResult(1, 1, 3),)), [b"one"])
        await first_sent.wait()
        yield Reply(m.FetchResponse(fetch_responses=(m.FetchResult(1, 0, 4),)), [b"zero"])

    async def fetch(message: m.Message, payload: Payload, peer: Peer) -> AsyncIterator[Reply]:
        return replies()

    handlers[Code.FETCH] = fetch
    async with serving(handlers) as server:
        raw = await Raw.connect(server)
        raw.send(Frame(Code.FETCH, 0, 1, encode(fetch_request(1))))
        frame = await raw.frame()
        assert (frame.flags, bytes(frame.payload)) == (1, b"one")  # type: ignore[arg-type]
        first_sent.set()
        assert (await raw.frame()).flags == 1
        assert (await raw.frame()).flags == 3
        await raw.close()
        channel = await connect(server)
        reply = await channel.call(Code.FETCH, fetch_request(1))
        assert b"".join(reply.payload) == b"onezero"
        assert reply.message == m.FetchResponse(
            fetch_responses=(m.FetchResult(1, 1, 3), m.FetchResult(1, 0, 4))
        )
        await channel.close()


async def test_large_answers_that_nobody_takes_are_not_piled_up() -> None:
    node = ToyNode()
    handlers = node.handlers()
    asked: list[int] = []

    async def describe(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        asked.append(1)
        return Reply(m.DescribeRangesResponse(status=m.Status(0, "x" * 500_000)))

    handlers[Code.DESCRIBE_RANGES] = describe
    limits = ServerLimits(reply_bytes_max=2 << 20, linger=0.1, grace=0.5)
    async with serving(handlers, limits=limits) as server:
        raw = await Raw.connect(server)
        header = encode(m.DescribeRangesRequest())
        raw.send(*[Frame(Code.DESCRIBE_RANGES, 0, i, header) for i in range(1, 101)])
        await until(lambda: server.statistics()["reply_bytes_held"] > 1 << 20)
        await asyncio.sleep(0.05)
        assert len(asked) < 50, "the rest waits until these are taken"
        assert len([await raw.frame() for _ in range(100)]) == 100
        assert server.statistics()["reply_bytes_held"] == 0
        await raw.close()


async def test_reading_pauses_while_too_much_is_in_flight() -> None:
    node = ToyNode()
    limits = ServerLimits(requests_in_flight_max=4, linger=0.2, grace=0.2)
    async with serving(node.handlers(), limits=limits) as server:
        channel = await connect(server)
        calls = [
            asyncio.ensure_future(channel.call(Code.FETCH, fetch_request(1, wait_ms=9000)))
            for _ in range(10)
        ]
        await until(lambda: server.statistics()["requests_in_flight"] == 4)
        await asyncio.sleep(0.05)
        assert server.statistics()["requests"] == 5  # the heartbeat and four fetches
        node.release.set()
        await asyncio.gather(*calls)
        await channel.close()


async def test_the_channel_holds_back_what_exceeds_its_own_limits() -> None:
    node = ToyNode()
    async with serving(node.handlers()) as server:
        channel = await connect(server, limits=ChannelLimits(requests_in_flight_max=3))
        calls = [
            asyncio.ensure_future(channel.call(Code.FETCH, fetch_request(1, wait_ms=9000)))
            for _ in range(5)
        ]
        await until(lambda: server.statistics()["requests_in_flight"] == 3)
        await asyncio.sleep(0.05)
        assert server.statistics()["requests_in_flight"] == 3
        late = channel.call(Code.APPEND, append_request(0), [b"x"], timeout=0.05)
        assert isinstance(await raised(late), DeadlineError)
        assert await channel.ping() >= 0, "what keeps it alive does not queue"
        node.release.set()
        await asyncio.gather(*calls)
        await channel.close()


async def test_a_request_is_answered_in_time_even_if_its_work_is_not_done() -> None:
    handlers = ToyNode().handlers()
    done = asyncio.Event()
    go_on = asyncio.Event()

    async def slow(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        await go_on.wait()
        done.set()
        return Reply(m.AppendResponse())

    handlers[Code.APPEND] = slow
    async with serving(handlers) as server:
        raw = await Raw.connect(server)
        raw.send(Frame(Code.APPEND, 0, 1, encode(append_request(0, timeout_ms=10)), b"x"))
        status = status_in(await raw.frame())
        assert (status.code, status.message) == (1, "timeout")
        go_on.set()
        await asyncio.wait_for(done.wait(), 5)  # the work went on
        raw.send(Frame(Code.PING, 0, 2))
        assert (await raw.frame()).stream_id == 2  # and its late result was dropped
        await raw.close()


async def test_work_survives_a_lost_peer_and_fetches_do_not() -> None:
    node = ToyNode()
    handlers = node.handlers()
    finished: list[int] = []
    go_on = asyncio.Event()

    async def slow(message: m.Message, payload: Payload, peer: Peer) -> Reply:
        await go_on.wait()
        finished.append(1)
        return Reply(m.AppendResponse())

    handlers[Code.APPEND] = slow
    async with serving(handlers, limits=ServerLimits(linger=0.2, grace=30.0)) as server:
        raw = await Raw.connect(server)
        raw.send(
            Frame(Code.APPEND, 0, 1, encode(append_request(0)), b"x"),
            Frame(Code.FETCH, 0, 2, encode(fetch_request(1, wait_ms=9000))),
        )
        await until(lambda: server.statistics()["requests_in_flight"] == 2)
        raw.connection.abort()
        await raw.connection.wait_closed()
        await until(lambda: node.cancelled == 1)
        assert not finished
        go_on.set()
        await until(lambda: server.statistics()["connections"] == 0)
        assert finished == [1]


async def test_close_says_goaway_and_finishes_what_is_in_flight() -> None:
    """A window of 64: what the server took is answered, what it did not is refused, none twice."""
    node = ToyNode()
    limits = ServerLimits(requests_in_flight_max=40, linger=0.5, grace=5.0)
    async with serving(node.handlers(), limits=limits) as server:
        channel = await connect(server)
        calls = [
            asyncio.ensure_future(
                channel.call(Code.FETCH, fetch_request(2, wait_ms=9000), timeout=30)
            )
            for _ in range(64)
        ]
        await until(lambda: server.statistics()["requests_in_flight"] == 40)
        closing = asyncio.create_task(server.close())
        await until(lambda: not channel.usable)
        late = await raised(channel.call(Code.APPEND, append_request(0), [b"x"]))
        assert isinstance(late, UnavailableError)
        assert late.data["refused"] is True
        node.release.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        await closing
        answered = [o for o in outcomes if isinstance(o, Reply)]
        refused = [o for o in outcomes if isinstance(o, UnavailableError)]
        assert len(answered) + len(refused) == 64
        assert len(answered) >= 40
        assert all(error.data["refused"] is True for error in refused)
        assert node.batches == []
        await channel.close()


async def test_a_client_goaway_is_answered_and_told() -> None:
    gone: list[Peer] = []
    node = ToyNode()
    async with serving(node.handlers(), on_goaway=gone.append) as server:
        channel = await connect(server, node=m.DataNode(3, "x:1"))
        slow = asyncio.ensure_future(channel.call(Code.FETCH, fetch_request(1, wait_ms=9000)))
        await until(lambda: server.statistics()["requests_in_flight"] == 1)
        await channel.leave()
        assert [peer.node_id for peer in gone] == [3]
        assert not channel.usable
        node.release.set()
        assert isinstance(await slow, Reply)  # what was in flight is still answered
        await channel.close()


async def test_too_many_connections_are_turned_away() -> None:
    limits = ServerLimits(connections_max=2, linger=0.2, grace=0.2)
    async with serving(ToyNode().handlers(), limits=limits) as server:
        kept = [await connect(server) for _ in range(2)]
        assert isinstance(await raised(connect(server)), UnavailableError)
        for channel in kept:
            await channel.ping()
            await channel.close()
        await until(lambda: server.statistics()["connections"] == 0)
        await (await connect(server)).close()


async def test_a_peer_that_takes_no_bytes_is_cut_off() -> None:
    node = ToyNode()
    limits = ServerLimits(write_timeout=0.2, linger=0.2, grace=0.2)
    async with serving(node.handlers(), limits=limits) as server:
        raw = await Raw.connect(server)
        header = encode(fetch_request(4 << 20))
        raw.send(*[Frame(Code.FETCH, 0, i, header) for i in range(1, 20)])
        await until(lambda: server.statistics()["connections"] == 1)
        await until(lambda: server.statistics()["connections"] == 0)
        raw.connection.abort()


async def test_an_oversized_header_is_refused() -> None:
    limits = ServerLimits(header_bytes_max=100, linger=0.2, grace=0.2)
    async with serving(ToyNode().handlers(), limits=limits) as server:
        raw = await Raw.connect(server)
        raw.send(Frame(Code.APPEND, 0, 1, bytes(101)))
        assert status_in(await raw.frame()).code == 1413
        await raw.close()


async def test_a_connection_that_breaks_the_protocol_is_closed_with_goaway() -> None:
    async with serving(ToyNode().handlers()) as server:
        raw = await Raw.connect(server)
        raw.connection.write([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
        assert [frame.opcode for frame in await raw.end()] == [Code.GOAWAY]
        await raw.close()
