"""The connection loop with dialect C's framing, on real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import xxhash

from headrace.net.iggy_server import DIRECT_BYTES_MAX, Answer, IggyLimits, IggyServer
from headrace.runtime.interfaces import Buffer, Connection
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.classic_frames import ResponseDecoder, encode_request
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.vsr import frames

CLIENT = b"c" * 16


@dataclass(eq=False)
class Digests:
    """Answers each request with its number and the digest of its payload."""

    trusted: bool = True
    at_once: int = 0
    seen: list[int] = field(default_factory=list)

    async def on_request(
        self, session: None, code: int, payload: memoryview, head: frames.Head | None
    ) -> Answer:
        await asyncio.sleep(0)
        number = -1 if head is None else head.number
        self.seen.append(number)
        if head is not None and head.fault:
            return Status.INVALID_COMMAND, ()
        return Status.OK, [struct.pack("<q", number) + xxhash.xxh3_64_digest(payload)]

    def answer_at_once(
        self, session: None, code: int, payload: memoryview
    ) -> Sequence[Buffer] | None:
        if code != 100:
            return None
        self.at_once += 1
        return [b"at once", bytes(payload)]


def _nothing(_: object) -> None: ...


@asynccontextmanager
async def serving(broker: Digests, limits: IggyLimits | None = None) -> AsyncIterator[int]:
    def opened(connection: Connection) -> None: ...

    server: IggyServer[None] = IggyServer(
        system_runtime(),
        open_session=opened,
        on_request=broker.on_request,
        answer_at_once=broker.answer_at_once,
        close_session=_nothing,
        is_trusted=lambda _: broker.trusted,
        limits=limits,
    )
    await server.start("127.0.0.1", 0)
    try:
        yield server.listener.port
    finally:
        await server.close()
        assert server.statistics()["held_bytes"] == 0
        assert server.statistics()["connections"] == 0


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def reply(self) -> frames.Reply:
        async with asyncio.timeout(20):
            header = await self.reader.readexactly(frames.HEADER_BYTES)
            rest = await self.reader.readexactly(frames.frame_bytes(header) - frames.HEADER_BYTES)
        return frames.decode_reply(header + rest)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def connect(port: int) -> Peer:
    return Peer(*await asyncio.open_connection("127.0.0.1", port))


def frame(operation: int, number: int, body: bytes = b"", code: int = 0) -> bytes:
    head = frames.Head(operation, number, 1, CLIENT)
    return b"".join(frames.encode_request(head, code, [body]))


@pytest.mark.parametrize("piece_bytes", [1_000, 100_000, 50_000_000])
async def test_large_frames_in_memory_that_is_used_again(piece_bytes: int) -> None:
    sizes = [3, 15_000, 17_000, DIRECT_BYTES_MAX - 256, 5, DIRECT_BYTES_MAX, 200_000, 150_000, 64]
    payloads = [bytes([65 + n]) * size for n, size in enumerate(sizes)] * 2
    whole = b"".join(frame(frames.SEND, n, payload) for n, payload in enumerate(payloads))
    async with serving(Digests()) as port:
        peer, other = await connect(port), await connect(port)

        async def send() -> None:
            for at in range(0, len(whole), piece_bytes):
                peer.writer.write(whole[at : at + piece_bytes])
                await peer.writer.drain()

        sending = asyncio.create_task(send())
        for number, payload in enumerate(payloads):
            reply = await peer.reply()
            expected = struct.pack("<q", number) + xxhash.xxh3_64_digest(payload)
            assert (reply.number, bytes(reply.payload)) == (number, expected)
            if number % 5 == 0:  # a neighbour shares the memory that is free
                other.writer.write(frame(frames.SEND, number, b"o" * 180_000))
                digest = xxhash.xxh3_64_digest(b"o" * 180_000)
                assert bytes((await other.reply()).payload)[8:] == digest
        await sending
        peer.writer.write(frame(frames.SEND, 99, bytes(100_000))[:50_000])
        for one in (peer, other):
            await one.close()  # in the middle of a frame


async def test_both_framings_on_one_port() -> None:
    broker = Digests()
    async with serving(broker) as port:
        newest, classic = await connect(port), await connect(port)
        decoder = ResponseDecoder()
        for number in range(3):
            newest.writer.write(frame(128, number, b"body"))
            classic.writer.write(b"".join(encode_request(7, [b"body"])))
            assert (await newest.reply()).status == 0
            (answer,) = decoder.feed(await classic.reader.read(1000))
            assert answer.payload[:8] == struct.pack("<q", -1)
        assert sorted(broker.seen) == [-1, -1, -1, 0, 1, 2]
        for one in (newest, classic):
            await one.close()


async def test_reads_are_answered_at_once_where_that_can_be() -> None:
    broker = Digests()
    async with serving(broker) as port:
        peer = await connect(port)
        for number in range(5):
            peer.writer.write(frame(frames.READ, number, b"front", code=100))
            reply = await peer.reply()
            # The first shows which framing it is, so it goes the long way.
            is_first = number == 0
            assert (bytes(reply.payload) == b"at oncefront") != is_first
            assert (reply.number, reply.operation) == (number, frames.READ)
        assert broker.at_once == 4
        bad = bytearray(frame(frames.READ, 9, b"front", code=100))
        bad[0] = 1
        peer.writer.write(bytes(bad))
        assert (await peer.reply()).status == Status.INVALID_COMMAND
        assert broker.at_once == 4
        await peer.close()


@pytest.mark.parametrize("size", [200, 256 + 5000])
async def test_a_bad_length_is_answered_and_ends_the_connection(size: int) -> None:
    broker = Digests(trusted=False)
    limits = IggyLimits(login_frame_bytes_max=4096)
    async with serving(broker, limits) as port:
        peer = await connect(port)
        peer.writer.write(frame(1, 0, b"x" * 4096))  # as large as it may be
        await peer.reply()
        bad = bytearray(frame(1, 1, b"x" * 4096))
        struct.pack_into("<I", bad, 48, size)
        peer.writer.write(bytes(bad[:256]))
        assert (await peer.reply()).status == Status.INVALID_COMMAND
        assert await peer.reader.read() == b""
        await peer.close()
    assert broker.seen == [0]


async def test_a_header_left_half_way_is_cut_off() -> None:
    limits = IggyLimits(login_idle_seconds=0.3)
    async with serving(Digests(trusted=False), limits) as port:
        for length in (3, 40, 200):
            peer = await connect(port)
            peer.writer.write(frame(1, 0, b"login")[:length])
            async with asyncio.timeout(20):
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await peer.reader.readexactly(1)
            with suppress(ConnectionError):
                await peer.close()
