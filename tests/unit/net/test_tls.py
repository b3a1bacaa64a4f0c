"""TLS inside a Connection, on the simulated network: however bytes are cut, the same comes out."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence

import pytest

from headrace.errors import RemoteProtocolError, UnavailableError
from headrace.net.iggy_server import Answer, IggyServer
from headrace.net.tls import (
    TlsAcceptor,
    TlsConnection,
    TlsLimits,
    TlsRequiredError,
    is_client_hello,
)
from headrace.runtime.interfaces import Buffer, Connection
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.vsr.frames import Head
from tests.simulator.runtime import Simulation
from tests.unit.net.certificates import contexts

PORT = 8090
Serve = Callable[[Connection], Awaitable[None]]
Scenario = Callable[[Connection], Awaitable[None]]


class Chopping:
    """A connection that gives out what arrived in pieces of so many bytes."""

    def __init__(self, connection: Connection, piece_bytes: int) -> None:
        self.peer, self.local = connection.peer, connection.local
        self._connection = connection
        self._piece_bytes = piece_bytes
        self._left = b""

    async def receive(self) -> bytes:
        self._left = self._left or await self._connection.receive()
        piece, self._left = self._left[: self._piece_bytes], self._left[self._piece_bytes :]
        return piece

    def write(self, pieces: Sequence[Buffer]) -> None:
        self._connection.write(pieces)

    async def drain(self) -> None:
        await self._connection.drain()

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._connection.abort()

    async def wait_closed(self) -> None:
        await self._connection.wait_closed()


async def echo(connection: Connection) -> None:
    while data := await connection.receive():
        connection.write([data[: len(data) // 2], data[len(data) // 2 :]])
        await connection.drain()


async def receive_exactly(connection: Connection, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        data = await connection.receive()
        assert data, f"ended after {len(received)} of {length} bytes"
        received += data
    return bytes(received)


def served(
    serve: Serve,
    scenario: Scenario,
    *,
    piece_bytes: int = 1 << 20,
    required: bool = False,
    seed: int = 1,
    client: str = "client",
    limits: TlsLimits | None = None,
) -> list[Exception]:
    """Run `scenario` on a connection to `serve` behind an acceptor; what the acceptor raised."""
    simulation = Simulation(seed)
    acceptor = TlsAcceptor(contexts()[0], required=required, limits=limits)
    refused: list[Exception] = []

    async def on_connection(raw: Connection) -> None:
        try:
            connection, first = await acceptor.accept(Chopping(raw, piece_bytes))
        except (RemoteProtocolError, UnavailableError) as error:
            refused.append(error)
            return
        if first:
            connection = Replaying(connection, first)
        await serve(connection)
        connection.close()

    async def main() -> None:
        await simulation.runtime("broker").transport.listen("broker", PORT, on_connection)
        raw = await simulation.runtime(client).transport.connect("broker", PORT)
        await scenario(raw)
        raw.close()
        await raw.wait_closed()

    simulation.run(main())
    return refused


class Replaying(Chopping):
    """A connection whose first bytes were taken from it and are put back."""

    def __init__(self, connection: Connection, first: bytes) -> None:
        super().__init__(connection, 1 << 20)
        self._left = first


async def secure(raw: Connection) -> TlsConnection:
    secured = TlsConnection(raw, contexts()[1], server_side=False, server_name="localhost")
    await secured.handshake()
    return secured


def hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = contexts()[1].wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


# -- telling TLS from frames


def test_a_client_hello_is_known_after_six_bytes() -> None:
    first = hello()
    assert [is_client_hello(first[:count]) for count in range(7)] == [None] * 6 + [True]


@pytest.mark.parametrize("length", [4, 26, 0x16, 0x0316, 0x1_0316, 0x3_0316, 0x5_0316, 0xFFFF_FFFF])
def test_a_frame_is_known_by_its_first_different_byte(length: int) -> None:
    frame = struct.pack("<II", length, 38)
    assert is_client_hello(frame) is False
    told = [is_client_hello(frame[:count]) for count in range(1, 9)]
    assert told == sorted(told, key=lambda answer: answer is not None), "never taken back"


def test_every_first_frame_that_a_login_may_send_is_plain() -> None:
    """Before login frames are at most 8 KiB, so no length can look like a record."""
    for length in range(4, 8 * 1024 + 5):
        for code in (1, 38, 44, 0x0126):
            assert is_client_hello(struct.pack("<II", length, code)) is False


# -- bytes through


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 6, 7, 17, 1000, 16_384, 1 << 20])
def test_any_cut_of_the_bytes_gives_the_same(piece_bytes: int) -> None:
    sent = bytes(range(256)) * (40 if piece_bytes < 10 else 4000)

    async def scenario(raw: Connection) -> None:
        secured = await secure(Chopping(raw, piece_bytes))
        assert (secured.peer, secured.local) == (raw.peer, raw.local)
        for chunk in (sent[:1], sent[1:1000], sent[1000:]):
            secured.write([chunk])
        await secured.drain()
        assert await receive_exactly(secured, len(sent)) == sent
        secured.close()
        assert await secured.receive() == b""

    assert served(echo, scenario, piece_bytes=piece_bytes) == []


@pytest.mark.parametrize("seed", range(5))
def test_large_messages_over_many_records(seed: int) -> None:
    block = bytes(range(251)) * 20_000  # 5 MB, more than any buffer on the way
    pieces: list[Buffer] = [b"head", memoryview(block), bytearray(b"x" * 100), b"", block[:20_000]]
    expected = b"".join(pieces)

    async def sink(connection: Connection) -> None:
        assert await receive_exactly(connection, len(expected)) == expected
        connection.write(pieces)
        await connection.drain()

    async def scenario(raw: Connection) -> None:
        secured = await secure(raw)
        secured.write(pieces)
        await secured.drain()
        assert await receive_exactly(secured, len(expected)) == expected

    assert served(sink, scenario, seed=seed) == []


@pytest.mark.parametrize("piece_bytes", [1, 2, 5, 8, 1000])
@pytest.mark.parametrize("length", [10, 0x0316 - 4, 5000])
def test_plain_bytes_pass_untouched(piece_bytes: int, length: int) -> None:
    frame = b"".join(encode_request(38, [b"p" * length]))

    async def scenario(raw: Connection) -> None:
        raw.write([frame])
        assert await receive_exactly(raw, len(frame)) == frame

    assert served(echo, scenario, piece_bytes=piece_bytes) == []


def test_what_comes_with_the_end_of_the_handshake_is_not_lost() -> None:
    """The client's first request travels in the same segment as its Finished."""

    async def scenario(raw: Connection) -> None:
        client = contexts()[1]
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        raw.write([outgoing.read()])
        while True:
            incoming.write(await raw.receive())
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                continue
        tls.write(b"at once")
        raw.write([outgoing.read()])
        received = b""
        while len(received) < 7:
            incoming.write(await raw.receive())
            try:
                while piece := tls.read(100):
                    received += piece
            except ssl.SSLWantReadError:
                continue
        assert received == b"at once"

    assert served(echo, scenario) == []


# -- ends


def test_an_end_without_goodbye_is_an_end() -> None:
    seen: list[bytes] = []

    async def remember(connection: Connection) -> None:
        while data := await connection.receive():
            seen.append(data)
        seen.append(b"end")

    async def scenario(raw: Connection) -> None:
        secured = await secure(raw)
        await raw.receive()  # the server's session tickets: with them unread a close is a reset
        secured.write([b"last words"])
        raw.close()  # no close_notify: the process was killed

    assert served(remember, scenario) == []
    assert b"".join(seen) == b"last wordsend"


def test_a_damaged_record_breaks_the_connection_after_what_came_before() -> None:
    outcome: list[object] = []

    async def remember(connection: Connection) -> None:
        try:
            while data := await connection.receive():
                outcome.append(data)
        except UnavailableError:
            outcome.append("broken")
            with pytest.raises(UnavailableError):
                await connection.drain()

    async def scenario(raw: Connection) -> None:
        secured = await secure(raw)
        secured.write([b"good"])
        raw.write([b"\x17\x03\x03\x00\x20" + b"z" * 32])
        while await raw.receive():  # the alert, then the end
            pass

    assert served(remember, scenario) == []
    assert outcome == [b"good", "broken"]


def test_writing_after_close_is_ignored_and_drain_says_so() -> None:
    async def scenario(raw: Connection) -> None:
        secured = await secure(raw)
        secured.close()
        secured.write([b"too late"])
        with pytest.raises(UnavailableError):
            await secured.drain()
        secured.close()
        await secured.wait_closed()

    assert served(echo, scenario) == []


# -- refusals


def failures(refused: list[Exception]) -> str:
    (error,) = refused
    assert isinstance(error, RemoteProtocolError)
    return str(error)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x03\x40\x00\x01" + b"\xff" * 20_000,
        b"\x16\x03\x01\xff\xff\x01" + bytes(100),
    ],
)
def test_garbage_behind_the_first_bytes_is_refused(garbage: bytes) -> None:
    async def scenario(raw: Connection) -> None:
        raw.write([garbage])
        try:
            while await raw.receive():
                pass
        except UnavailableError:
            pass  # reset, when it still had bytes of ours

    assert "handshake failed" in failures(served(echo, scenario))


@pytest.mark.parametrize(
    "sent", [b"\x16", b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00\x01\x00"]
)
def test_half_a_hello_is_given_up(sent: bytes) -> None:
    async def scenario(raw: Connection) -> None:
        raw.write([sent])
        async with asyncio.timeout(3):
            assert await raw.receive() == b""

    error = failures(served(echo, scenario, limits=TlsLimits(handshake_seconds=2)))
    assert "too long" in error or "half" in error


def test_a_handshake_above_the_limit_is_refused() -> None:
    async def scenario(raw: Connection) -> None:
        endless = b"\x01\x01\x00\x00" + b"\x03" * 16_000  # a hello of 65,536 bytes, they say
        for _ in range(4):
            raw.write([struct.pack(">BHH", 0x16, 0x0301, len(endless)) + endless])
            endless = b"\x00" * 16_000
        try:
            while await raw.receive():
                pass
        except UnavailableError:
            pass

    limits = TlsLimits(handshake_bytes_max=16 * 1024)
    assert "too large" in failures(served(echo, scenario, limits=limits))


def test_a_client_that_does_not_trust_us_ends_it() -> None:
    async def scenario(raw: Connection) -> None:
        stranger = ssl.create_default_context()  # the machine's authorities do not know ours
        secured = TlsConnection(raw, stranger, server_side=False, server_name="localhost")
        with pytest.raises(RemoteProtocolError, match="CERTIFICATE_VERIFY_FAILED"):
            await secured.handshake()

    refused = served(echo, scenario)
    assert len(refused) <= 1  # in TLS 1.3 the server may have finished before it learns


@pytest.mark.parametrize("client", ["client", "broker"])
def test_required_takes_no_plain_bytes_from_this_machine_either(client: str) -> None:
    async def scenario(raw: Connection) -> None:
        raw.write([b"\x04\x00\x00\x00\x01\x00\x00\x00"])
        assert not await raw.receive()

    (refused,) = served(echo, scenario, required=True, client=client)
    assert isinstance(refused, TlsRequiredError)
    assert refused.first == b"\x04\x00\x00\x00\x01\x00\x00\x00"


def test_required_serves_tls_from_anywhere() -> None:
    async def scenario(raw: Connection) -> None:
        secured = await secure(raw)
        secured.write([b"in private"])
        assert await receive_exactly(secured, 10) == b"in private"

    assert served(echo, scenario, required=True) == []


# -- behind the acceptor


def test_plain_and_tls_clients_of_one_server() -> None:
    simulation = Simulation(3)
    seen: list[tuple[str, int, bytes]] = []

    async def on_request(session: str, code: int, payload: memoryview, head: Head | None) -> Answer:
        seen.append((session, code, bytes(payload)))
        return Status.OK, [payload]

    server: IggyServer[str] = IggyServer(
        simulation.runtime("broker"),
        open_session=lambda connection: connection.peer,
        on_request=on_request,
        close_session=lambda session: None,
        tls=TlsAcceptor(contexts()[0], required=False),
    )

    async def main() -> None:
        await simulation.on("broker", server.start("broker", PORT))
        transport = simulation.runtime("client").transport
        clients: list[Connection] = [await transport.connect("broker", PORT)]
        clients.append(await secure(await transport.connect("broker", PORT)))
        silent = await transport.connect("broker", PORT)
        for number in range(3):
            for client in clients:
                client.write(encode_request(7, [b"n%d" % number]))
                answer = await receive_exactly(client, 10)
                assert answer == struct.pack("<II", 0, 2) + b"n%d" % number
        assert len(seen) == 6
        assert {code for _, code, _ in seen} == {7}
        assert len({session for session, _, _ in seen}) == 2
        await simulation.on("broker", server.close())
        for client in (*clients, silent):
            assert await client.receive() == b""

    simulation.run(main())
