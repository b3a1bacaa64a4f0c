"""Real sockets: what peers do that our own connections do not."""

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
import uvloop

from headrace.errors import UnavailableError
from headrace.runtime import Connection
from headrace.runtime import system_network as network
from headrace.runtime.system_network import SystemConnection, SystemTransport, format_address

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
            with pytest.raises(UnavailableError, match="in time"):
                await SystemTransport().connect(HOST, port, timeout=0.05)
            for filler in fillers:
                filler.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_addresses_are_written_as_they_are_parsed() -> None:
    assert format_address(("10.0.0.1", 80)) == "10.0.0.1:80"
    assert format_address(("::1", 80, 0, 0)) == "[::1]:80"
    assert format_address(None) == "unknown:0"
