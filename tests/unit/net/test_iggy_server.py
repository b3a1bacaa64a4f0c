"""The connection loop of Iggy's framing, on the simulated runtime."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from headrace.errors import NotFoundError, UnavailableError
from headrace.net.iggy_server import DIRECT_BYTES_MAX, Answer, IggyLimits, IggyServer
from headrace.runtime import Runtime
from headrace.runtime.interfaces import Buffer, Connection
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.classic_frames import ResponseDecoder, encode_request
from headrace.wire.iggy.errors import Status, error_of
from headrace.wire.iggy.vsr.frames import Head
from tests.simulator.runtime import Simulation

PORT = 8090
ECHO, FAIL, STALE, SLOW, BUG = 1, 2, 3, 4, 5


@dataclass(eq=False)
class Recorder:
    """A broker of few words: echoes payloads and remembers what it saw."""

    runtime: Runtime
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    requests: int = 0
    running: int = 0
    most_running: int = 0
    slow_seconds: float = 1.0

    def open_session(self, connection: Connection) -> str:
        self.opened.append(connection.peer)
        return connection.peer

    def close_session(self, session: str) -> None:
        self.closed.append(session)

    async def on_request(
        self, session: str, code: int, payload: memoryview, head: Head | None
    ) -> Answer:
        self.requests += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.runtime.clock.sleep(self.slow_seconds if code == SLOW else 0.001)
        finally:
            self.running -= 1
        if code == FAIL:
            raise NotFoundError("nothing there")
        if code == STALE:
            raise error_of(Status.STALE_CLIENT)
        if code == BUG:
            raise ZeroDivisionError
        return Status.OK, [payload] if len(payload) else []


@dataclass(eq=False)
class Peer:
    connection: Connection
    decoder: ResponseDecoder = field(default_factory=ResponseDecoder)
    answers: list[tuple[int, bytes]] = field(default_factory=list)

    def send(self, *frames: tuple[int, bytes]) -> None:
        pieces: list[Buffer] = []
        for code, payload in frames:
            pieces += encode_request(code, [payload])
        self.connection.write(pieces)

    async def answer(self) -> tuple[int, bytes] | None:
        """The next answer; None when the server has closed."""
        while not self.answers:
            data = await self.connection.receive()
            if not data:
                return None
            frames = self.decoder.feed(data)
            self.answers += [(frame.status, bytes(frame.payload)) for frame in frames]
        return self.answers.pop(0)

    async def leave(self) -> None:
        self.connection.close()
        await self.connection.wait_closed()


class World:
    def __init__(self, limits: IggyLimits | None = None) -> None:
        self.simulation = Simulation(7)
        self.recorder = Recorder(self.simulation.runtime("broker"))
        self.server: IggyServer[str] = IggyServer(
            self.simulation.runtime("broker"),
            open_session=self.recorder.open_session,
            on_request=self.recorder.on_request,
            close_session=self.recorder.close_session,
            limits=limits,
        )

    async def peer(self, host: str = "client") -> Peer:
        transport = self.simulation.runtime(host).transport
        connection = await transport.connect("broker", PORT, timeout=5)
        return Peer(connection)

    def run(self, scenario: Callable[[World], Awaitable[None]], *, close: bool = True) -> None:
        async def main() -> None:
            await self.simulation.on("broker", self.server.start("broker", PORT))
            await scenario(self)
            if close:
                await self.simulation.on("broker", self.server.close())
                assert self.server.statistics()["connections"] == 0
                assert sorted(self.recorder.closed) == sorted(self.recorder.opened)

        self.simulation.run(main())


def test_requests_are_answered_in_order_one_at_a_time() -> None:
    async def scenario(world: World) -> None:
        peer = await world.peer()
        peer.send((SLOW, b"first"), (ECHO, b"second"), (ECHO, b""), (FAIL, b"x"))
        answers = [await peer.answer() for _ in range(4)]
        assert answers == [(0, b"first"), (0, b"second"), (0, b""), (20, b"")]
        assert world.recorder.most_running == 1
        await peer.leave()

    World().run(scenario)


def test_connections_do_not_wait_for_each_other() -> None:
    async def scenario(world: World) -> None:
        first, second = await world.peer(), await world.peer()
        first.send((SLOW, b"slow"))
        second.send((ECHO, b"fast"))
        assert await second.answer() == (0, b"fast")
        assert world.recorder.running == 1
        assert await first.answer() == (0, b"slow")

    World().run(scenario)


def test_a_request_in_many_small_pieces() -> None:
    async def scenario(world: World) -> None:
        peer = await world.peer()
        for byte in b"".join(encode_request(ECHO, [b"hello"])):
            peer.connection.write([bytes([byte])])
        assert await peer.answer() == (0, b"hello")

    World().run(scenario)


def test_a_length_below_four_is_answered_and_survived() -> None:
    async def scenario(world: World) -> None:
        peer = await world.peer()
        peer.send((ECHO, b"ok"))
        peer.connection.write([struct.pack("<IH", 2, 0xFFFF)])
        peer.send((ECHO, b"still"))
        answers = [await peer.answer() for _ in range(3)]
        assert answers == [(0, b"ok"), (Status.INVALID_COMMAND, b""), (0, b"still")]
        assert world.server.statistics()["frames_malformed"] == 1

    World().run(scenario)


def test_a_frame_above_the_limit_is_answered_and_ends_the_connection() -> None:
    async def scenario(world: World) -> None:
        peer = await world.peer()
        peer.connection.write([struct.pack("<II", 1001, 38)])
        assert await peer.answer() == (Status.INVALID_COMMAND, b"")
        assert await peer.answer() is None
        other = await world.peer()
        other.send((101, b"x" * 1500))
        assert await other.answer() == (0, b"x" * 1500)

    World(IggyLimits(frame_bytes_max=1000, send_frame_bytes_max=2000)).run(scenario)


def test_the_newer_framing_is_closed_without_an_answer() -> None:
    async def scenario(world: World) -> None:
        peer = await world.peer()
        peer.connection.write([bytes(256)])
        assert await peer.answer() is None

    World().run(scenario)


def test_a_stale_client_is_told_and_closed() -> None:
    async def scenario(world: World) -> None:
        peer = await world.peer()
        peer.send((STALE, b""), (ECHO, b"never"))
        assert await peer.answer() == (Status.STALE_CLIENT, b"")
        assert await peer.answer() is None

    World().run(scenario)


def test_connections_above_the_cap_are_refused() -> None:
    async def scenario(world: World) -> None:
        peers = [await world.peer() for _ in range(2)]
        for peer in peers:
            peer.send((ECHO, b"in"))
            assert await peer.answer() == (0, b"in")
        surplus = await world.peer()
        assert await surplus.answer() is None
        assert world.server.statistics()["connections_refused"] == 1
        assert len(world.recorder.opened) == 2
        await peers[0].leave()
        await world.simulation.runtime("client").clock.sleep(1)
        late = await world.peer()
        late.send((ECHO, b"now"))
        assert await late.answer() == (0, b"now")

    World(IggyLimits(connections_max=2)).run(scenario)


def test_a_fault_of_ours_ends_one_connection_only() -> None:
    async def scenario(world: World) -> None:
        broken, fine = await world.peer(), await world.peer()
        broken.send((BUG, b""))
        assert await broken.answer() is None
        fine.send((ECHO, b"fine"))
        assert await fine.answer() == (0, b"fine")

    World().run(scenario)


def test_a_peer_that_vanishes_ends_its_session() -> None:
    async def scenario(world: World) -> None:
        peer = await world.peer("laptop")
        peer.send((ECHO, b"hi"))
        assert await peer.answer() == (0, b"hi")
        world.simulation.crash("laptop")
        await world.simulation.runtime("broker").clock.sleep(60)
        assert world.recorder.closed == world.recorder.opened

    World().run(scenario)


def test_close_lets_a_request_be_answered() -> None:
    async def scenario(world: World) -> None:
        busy, idle = await world.peer(), await world.peer()
        idle.send((ECHO, b"hi"))
        await idle.answer()
        busy.send((SLOW, b"late"), (ECHO, b"dropped"))
        await world.simulation.runtime("client").clock.sleep(0.5)
        closing = world.simulation.start("broker", world.server.close())
        assert await idle.answer() is None
        assert await busy.answer() == (0, b"late")
        assert await busy.answer() is None
        await closing
        refused = world.simulation.runtime("client").transport.connect("broker", PORT)
        with_nobody = await asyncio.gather(refused, return_exceptions=True)
        assert isinstance(with_nobody[0], UnavailableError)

    World().run(scenario)


def test_close_does_not_wait_for_ever() -> None:
    async def scenario(world: World) -> None:
        world.recorder.slow_seconds = 1000.0
        clock = world.simulation.runtime("client").clock
        peer = await world.peer()
        peer.send((SLOW, b""))
        await clock.sleep(0.5)
        started = clock.monotonic()
        await world.simulation.on("broker", world.server.close())
        assert 2.0 <= clock.monotonic() - started < 3.0
        assert await _ended(peer)

    World(IggyLimits(close_seconds_max=2.0)).run(scenario)


async def _ended(peer: Peer) -> bool:
    try:
        return await peer.answer() is None
    except UnavailableError:
        return True


def test_error_answers_carry_no_body() -> None:
    async def failing(
        session: str, code: int, payload: memoryview, head: Head | None
    ) -> tuple[int, Sequence[Buffer]]:
        return Status.UNAUTHORIZED, [b"a body that must not be sent"]

    async def scenario(world: World) -> None:
        world.server._on_request = failing
        peer = await world.peer()
        peer.send((ECHO, b"x"))
        assert await peer.answer() == (Status.UNAUTHORIZED, b"")

    World().run(scenario)


@pytest.mark.parametrize("piece_bytes", [1_000, 100_000, 50_000_000])
async def test_large_frames_over_real_sockets(piece_bytes: int) -> None:
    """Up to a size they are received in place, beyond it in pieces; small ones stand between."""
    runtime = system_runtime()
    recorder = Recorder(runtime)
    server = IggyServer(
        runtime,
        open_session=recorder.open_session,
        on_request=recorder.on_request,
        close_session=recorder.close_session,
    )
    await server.start("127.0.0.1", 0)
    peer = Peer(await runtime.transport.connect("127.0.0.1", server.listener.port))
    sizes = [3, 15_000, 17_000, DIRECT_BYTES_MAX - 8, 5, 9, DIRECT_BYTES_MAX, 200_000, 64]
    payloads = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
    whole = b"".join(b"".join(encode_request(ECHO, [payload])) for payload in payloads)

    async def send() -> None:
        for at in range(0, len(whole), piece_bytes):
            peer.connection.write([whole[at : at + piece_bytes]])
            await peer.connection.drain()

    sending = asyncio.create_task(send())
    for payload in payloads:
        assert await peer.answer() == (0, payload)
    await sending
    peer.connection.write([encode_request(ECHO, [bytes(100_000)])[0], bytes(50_000)])
    await peer.leave()  # in the middle of a frame
    await server.close()
    assert server.statistics()["held_bytes"] == 0
    assert recorder.closed == recorder.opened


def at_once_server(runtime: Runtime, recorder: Recorder, limits: IggyLimits) -> IggyServer[str]:
    """Answers ECHO at once with many times its payload, everything else the long way."""

    def at_once(session: str, code: int, payload: memoryview) -> Sequence[Buffer] | None:
        return [bytes(payload) * 100_000] if code == ECHO else None

    return IggyServer(
        runtime,
        open_session=recorder.open_session,
        answer_at_once=at_once,
        on_request=recorder.on_request,
        close_session=recorder.close_session,
        limits=limits,
    )


async def test_answers_at_once_keep_the_order_of_requests() -> None:
    runtime = system_runtime()
    recorder = Recorder(runtime)
    server = at_once_server(runtime, recorder, IggyLimits())
    await server.start("127.0.0.1", 0)
    peer = Peer(await runtime.transport.connect("127.0.0.1", server.listener.port))
    recorder.slow_seconds = 0.01
    for _ in range(20):
        peer.connection.write(encode_request(ECHO, [b"ab"]))
        assert await peer.answer() == (0, b"ab" * 100_000)
        peer.connection.write(encode_request(SLOW, [b"long"]))
        peer.connection.write(encode_request(ECHO, [b"cd"]))  # while the other is handled
        assert await peer.answer() == (0, b"long")
        assert await peer.answer() == (0, b"cd"), "the long way, which echoes"
    await peer.leave()
    await server.close()
    assert recorder.requests == 40, "of 60; the others were answered at once"


async def test_an_answer_given_at_once_is_held_until_it_is_taken() -> None:
    runtime = system_runtime()
    recorder = Recorder(runtime)
    server = at_once_server(runtime, recorder, IggyLimits(transfer_seconds=0.2))
    await server.start("127.0.0.1", 0)
    reads, never = [
        Peer(await runtime.transport.connect("127.0.0.1", server.listener.port)) for _ in range(2)
    ]
    for peer in (reads, never):
        peer.connection.write(encode_request(ECHO, [b"x" * 200]))  # 20 MB
    await _until(lambda: server.statistics()["held_bytes"] == 40_000_000)
    assert await reads.answer() == (0, b"x" * 20_000_000)
    # The sweep sees that it was taken.
    await _until(lambda: server.statistics()["held_bytes"] == 20_000_000)
    reads.connection.write(encode_request(ECHO, [b"yz"]))
    assert await reads.answer() == (0, b"yz" * 100_000), "it is served as before"
    for peer in (reads, never):
        await peer.leave()
    await server.close()
    assert server.statistics()["held_bytes"] == 0


async def _until(happened: Callable[[], bool]) -> None:
    for _ in range(1000):
        if happened():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen in time")
