"""Real sockets: what peers do that our own connections do not."""

import asyncio
import gc
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
import uvloop

from headrace.errors import UnavailableError
from headrace.runtime import Connection
from headrace.runtime.interfaces import DirectConnection
from headrace.runtime.system import network
from headrace.runtime.system.network import SystemConnection, SystemTransport, format_address

Factory = Callable[[], asyncio.AbstractEventLoop]
HOST = "127.0.0.1"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Factory:
    factory: Factory = request.param
    return factory


class RawPeer:
    """A plain client socket of a running loop."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self._loop = asyncio.get_running_loop()

    async def connect(self, port: int) -> None:
        await self._loop.sock_connect(self.socket, (HOST, port))

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def receive(self) -> bytes:
        return await self._loop.sock_recv(self.socket, 1 << 16)


def test_a_peer_that_only_stopped_sending_still_gets_its_answer(loop_factory: Factory) -> None:
    async def handler(connection: Connection) -> None:
        request = b""
        while data := await connection.receive():
            request += data
        connection.write([b"answer to ", request])

    async def main() -> None:
        listener = await SystemTransport().listen(HOST, 0, handler)
        peer = RawPeer()
        await peer.connect(listener.port)
        await peer.send(b"question")
        peer.socket.shutdown(socket.SHUT_WR)
        assert await peer.receive() == b"answer to question"
        assert await peer.receive() == b""
        peer.socket.close()
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_a_reset_is_unavailable_after_what_arrived_before(loop_factory: Factory) -> None:
    seen: list[object] = []
    arrived = asyncio.Event()

    async def handler(connection: Connection) -> None:
        try:
            while data := await connection.receive():
                seen.append(data)
                arrived.set()
        except UnavailableError as error:
            seen.append(type(error.__cause__))

    async def main() -> None:
        listener = await SystemTransport().listen(HOST, 0, handler)
        peer = RawPeer()
        await peer.connect(listener.port)
        await peer.send(b"last words")
        await arrived.wait()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.close()
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    assert seen == [b"last words", ConnectionResetError]


def test_unread_bytes_stay_bounded(loop_factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "RECEIVE_BYTES_MAX", 1 << 16)
    held: list[SystemConnection] = []
    finish = asyncio.Event()
    total = 0

    async def handler(connection: Connection) -> None:
        nonlocal total
        assert isinstance(connection, SystemConnection)
        held.append(connection)
        await finish.wait()
        while data := await connection.receive():
            total += len(data)

    async def main() -> None:
        transport = SystemTransport()
        listener = await transport.listen(HOST, 0, handler)
        connection = await transport.connect(HOST, listener.port)
        connection.write([bytes(16 << 20)])
        for _ in range(6000):
            if held and held[0]._reading_paused:
                break
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        # One read of either loop is at most 256 KiB.
        assert 1 << 16 < held[0]._chunk_bytes <= (1 << 16) + (1 << 18)
        finish.set()
        await connection.drain()
        connection.close()
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    assert total == 16 << 20


@pytest.mark.parametrize("piece_bytes", [7_000, 65_536, 200_000, 5_000_000])
def test_large_things_are_received_where_the_reader_wants_them(
    loop_factory: Factory, piece_bytes: int
) -> None:
    """Each is a length of four bytes and as many bytes; the next follows without a pause."""
    sent = [bytes([n + 1]) * length for n, length in enumerate((1_000_000, 5, 300_000, 66_000, 9))]
    seen: list[bytes] = []

    async def handler(connection: Connection) -> None:
        assert isinstance(connection, DirectConnection)
        pending = b""
        while data := await connection.receive():
            pending += data
            while len(pending) >= 4:
                thing = bytearray(int.from_bytes(pending[:4], "little"))
                here = pending[4 : 4 + len(thing)]
                thing[: len(here)] = here
                pending = pending[4 + len(here) :]
                rest = memoryview(thing)[len(here) :]
                assert await connection.receive_into(rest) == len(rest)
                seen.append(bytes(thing))

    async def main() -> None:
        listener = await SystemTransport().listen(HOST, 0, handler)
        peer = RawPeer()
        await peer.connect(listener.port)
        whole = b"".join(len(thing).to_bytes(4, "little") + thing for thing in sent)
        for at in range(0, len(whole), piece_bytes):
            await peer.send(whole[at : at + piece_bytes])
            await asyncio.sleep(0)
        peer.socket.close()
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    assert seen == sent


@pytest.mark.parametrize("reset", [False, True])
def test_an_end_while_the_reader_waits_for_the_rest(loop_factory: Factory, reset: bool) -> None:
    seen: list[object] = []
    arrived = asyncio.Event()

    async def handler(connection: Connection) -> None:
        assert isinstance(connection, DirectConnection)
        seen.append(await connection.receive())
        arrived.set()
        try:
            seen.append(await connection.receive_into(memoryview(bytearray(100))))
            seen.append(await connection.receive())
        except UnavailableError as error:
            seen.append(type(error.__cause__))

    async def main() -> None:
        listener = await SystemTransport().listen(HOST, 0, handler)
        peer = RawPeer()
        await peer.connect(listener.port)
        await peer.send(b"start")
        await arrived.wait()
        await peer.send(b"and not all")
        if reset:
            await asyncio.sleep(0.05)
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.close()
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    assert seen == [b"start", *([ConnectionResetError] if reset else [11, b""])]


def test_a_reader_of_large_things_that_is_busy_gets_little_in_advance(
    loop_factory: Factory,
) -> None:
    finish = asyncio.Event()
    held: list[SystemConnection] = []
    total = 0

    async def handler(connection: Connection) -> None:
        nonlocal total
        assert isinstance(connection, SystemConnection)
        held.append(connection)
        total += await connection.receive_into(memoryview(bytearray(10)))
        await finish.wait()
        while data := await connection.receive():
            total += len(data)

    async def main() -> None:
        transport = SystemTransport()
        listener = await transport.listen(HOST, 0, handler)
        connection = await transport.connect(HOST, listener.port)
        connection.write([bytes(4 << 20)])
        await asyncio.sleep(0.1)
        # What one read brought before the reader said that it has a place, and one start.
        assert held[0]._chunk_bytes <= network.SCRATCH_BYTES + network.START_BYTES
        finish.set()
        await connection.drain()
        connection.close()
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    assert total == 4 << 20


def test_a_closed_connection_to_a_peer_that_never_reads_is_aborted(
    loop_factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "CLOSE_SECONDS_MAX", 0.05)

    async def handler(connection: Connection) -> None:
        connection.write([bytes(32 << 20)])
        connection.close()
        await connection.wait_closed()

    async def main() -> None:
        listener = await SystemTransport().listen(HOST, 0, handler)
        peer = RawPeer()
        await peer.connect(listener.port)
        await asyncio.sleep(0.01)
        listener.close()
        async with asyncio.timeout(5):
            await listener.wait_closed()
        peer.socket.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_small_writes_are_not_delayed(loop_factory: Factory) -> None:
    async def main() -> int:
        async def handler(connection: Connection) -> None:
            await connection.receive()

        transport = SystemTransport()
        listener = await transport.listen(HOST, 0, handler)
        connection = await transport.connect(HOST, listener.port)
        assert isinstance(connection, SystemConnection)
        raw = connection._transport.get_extra_info("socket")
        nodelay: int = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()
        listener.close()
        await listener.wait_closed()
        return nodelay

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main()) == 1


def test_a_host_that_never_answers_times_out(loop_factory: Factory) -> None:
    """A full backlog drops further handshakes, as a firewall would."""

    async def main() -> None:
        with socket.socket() as server:
            server.bind((HOST, 0))
            server.listen(0)
            port = server.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex((HOST, port))
            with pytest.raises(UnavailableError, match="no answer within"):
                await SystemTransport().connect(HOST, port, timeout=0.05)
            for filler in fillers:
                filler.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_listener_that_closes_while_it_accepts_loses_no_socket(
    loop_factory: Factory, turns: int
) -> None:
    """Whatever the loop has done of a connection by then, its peer sees it end."""

    async def handler(connection: Connection) -> None:
        """Ends it."""

    async def main() -> None:
        problems: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        listener = await SystemTransport().listen(HOST, 0, handler)
        with socket.create_connection((HOST, listener.port)) as peer:
            for _ in range(turns):
                await asyncio.sleep(0)
            listener.close()
            await listener.wait_closed()
            await asyncio.sleep(0.01)
            gc.collect()  # a lost socket is a ResourceWarning, which fails the test
            peer.settimeout(1.0)
            with suppress(ConnectionResetError):
                assert peer.recv(1) == b""
        assert not problems

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_addresses_are_written_as_they_are_parsed() -> None:
    assert format_address(("10.0.0.1", 80)) == "10.0.0.1:80"
    assert format_address(("::1", 80, 0, 0)) == "[::1]:80"
    assert format_address(None) == "unknown:0"
