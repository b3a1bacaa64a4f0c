"""Iggy's requests over QUIC, on a simulated network that loses, doubles and reorders datagrams."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.events import StopSendingReceived

from headrace.errors import NotFoundError, UnavailableError
from headrace.net.iggy_quic import IggyQuicLimits, IggyQuicServer, Refusal
from headrace.net.iggy_server import Answer, IggyLimits
from headrace.net.quic import QuicLimits, _RetryTokens
from headrace.runtime.interfaces import Runtime
from headrace.wire.iggy.errors import Status, error_of
from headrace.wire.iggy.vsr.frames import Head
from tests.quic_client import QuicClient, StreamRefused
from tests.simulator.runtime import Simulation
from tests.unit.net.certificates import development

BROKER, CLIENT, PORT = "10.0.0.1", "10.0.0.2", 8080
ECHO, FAIL, STALE, SLOW, BUG, LOGIN, BIG = 1, 2, 3, 4, 5, 6, 7


@dataclass(eq=False)
class Session:
    peer: str
    logged_in: bool = False


@dataclass(eq=False)
class Recorder:
    runtime: Runtime
    opened: list[Session] = field(default_factory=list)
    closed: list[Session] = field(default_factory=list)
    requests: int = 0
    running: int = 0
    most_running: int = 0

    def open_session(self, peer: str) -> Session:
        session = Session(peer)
        self.opened.append(session)
        return session

    async def on_request(
        self, session: Session, code: int, payload: memoryview, head: Head | None
    ) -> Answer:
        self.requests += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.runtime.clock.sleep(1.0 if code == SLOW else 0.001)
        finally:
            self.running -= 1
        if code == LOGIN:
            session.logged_in = True
        if code == FAIL:
            raise NotFoundError("nothing there")
        if code == STALE:
            raise error_of(Status.STALE_CLIENT)
        if code == BUG:
            raise ZeroDivisionError
        if code == BIG:
            return Status.OK, [b"b" * 1_000_000] * 5
        return Status.OK, [payload] if len(payload) else []


class World:
    def __init__(
        self,
        seed: int = 1,
        limits: IggyQuicLimits | None = None,
        quic_limits: QuicLimits | None = None,
    ) -> None:
        self.simulation = Simulation(seed)
        runtime = self.simulation.runtime(BROKER)
        certificate, self.authority = development()
        self.recorder = Recorder(runtime)
        self.server: IggyQuicServer[Session] = IggyQuicServer(
            runtime,
            certificate=certificate.chain,
            key=certificate.key,
            open_session=self.recorder.open_session,
            on_request=self.recorder.on_request,
            close_session=self.recorder.closed.append,
            is_trusted=lambda session: session.logged_in,
            limits=limits,
            quic_limits=quic_limits,
        )

    @property
    def statistics(self) -> dict[str, int]:
        return self.server.statistics()

    async def connect(self, *, login: bool = True, idle: float = 10.0) -> QuicClient:
        runtime = self.simulation.runtime(CLIENT)
        client = await QuicClient.connect(
            runtime, (BROKER, PORT), authority=self.authority, idle=idle
        )
        if login:
            assert await client.request(LOGIN) == (0, b"")
        return client

    async def sleep(self, seconds: float) -> None:
        await self.simulation.runtime(CLIENT).clock.sleep(seconds)

    def run(self, scenario: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.simulation.on(BROKER, self.server.start(BROKER, PORT))
            await scenario(self)
            await self.simulation.on(BROKER, self.server.close())
            assert self.statistics["quic_connections"] == 0
            assert self.statistics["quic_held_bytes"] == 0
            assert set(self.recorder.closed) == set(self.recorder.opened)
            assert self.server._endpoint._routes == {}

        self.simulation.run(main())


@pytest.mark.parametrize("seed", range(8))
def test_requests_and_answers(seed: int) -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            assert await client.request(ECHO, [b"hello"]) == (0, b"hello")
            assert await client.request(ECHO) == (0, b"")
            assert await client.request(FAIL, [b"x"]) == (20, b"")
            with pytest.raises(StreamRefused, match=str(Refusal.BUG.value)):
                await client.request(BUG)
            large = bytes(range(256)) * 20_000
            assert await client.request(ECHO, [large]) == (0, large)
            negotiated = [e for e in client.events if hasattr(e, "alpn_protocol")]
            assert [e.alpn_protocol for e in negotiated] == [None, None]
        assert len(world.recorder.opened) == 1, "one session per connection"

    World(seed).run(scenario)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1000])
def test_a_frame_in_pieces(piece_bytes: int) -> None:
    async def scenario(world: World) -> None:
        payload = b"p" * (20 if piece_bytes < 5 else 5000)
        frame = struct.pack("<II", 4 + len(payload), ECHO) + payload
        async with await world.connect() as client:
            stream_id = client.open(frame[:piece_bytes], end=False)
            for start in range(piece_bytes, len(frame), piece_bytes):
                await world.sleep(0.002)
                client.quic.send_stream_data(stream_id, frame[start : start + piece_bytes])
                client.touch()
            answer = await client.answer(stream_id)  # it does not wait for our end
            assert answer == struct.pack("<II", 0, len(payload)) + payload
            client.quic.send_stream_data(stream_id, b"ignored", True)
            client.touch()
            await world.sleep(1)
            assert await client.request(ECHO, [b"next"]) == (0, b"next")
            assert world.statistics["quic_frames_malformed"] == 0, "no second frame"

    World().run(scenario)


def test_requests_run_side_by_side_up_to_the_limit() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            before = world.simulation.time()
            slow = [client.request(SLOW, [b"n%d" % n]) for n in range(8)]
            answers = await asyncio.gather(*slow, client.request(ECHO, [b"quick"]))
            assert answers == [(0, b"n%d" % n) for n in range(8)] + [(0, b"quick")]
            assert world.recorder.most_running == 4
            assert 2 <= world.simulation.time() - before < 3.5

    World(limits=IggyQuicLimits(requests_max=4)).run(scenario)


def test_a_connection_may_open_thousands_of_streams() -> None:
    """The peer may have 100 at a time; each that is done makes room for another."""

    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            for start in range(0, 3000, 150):
                numbers = range(start, start + 150)
                answers = await asyncio.gather(
                    *(client.request(ECHO, [b"n%d" % n]) for n in numbers)
                )
                assert answers == [(0, b"n%d" % n) for n in numbers]
            assert world.recorder.requests == 3001

    World().run(scenario)


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (b"", True),
        (b"\x05", True),
        (b"\x0a\0\0\0\x01\0\0\0abc", True),
        (b"\x02\0\0\0\xff\xff", False),
    ],
)
def test_what_is_no_frame_is_answered_with_invalid_command(sent: bytes, end: bool) -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            assert await client.exchange(sent, end=end) == struct.pack("<II", 3, 0)
            assert await client.request(ECHO, [b"goes on"]) == (0, b"goes on")
            assert world.statistics["quic_frames_malformed"] == 1

    World().run(scenario)


def test_a_frame_above_the_limit_is_answered_and_the_rest_not_taken() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect(login=False) as client:
            head = struct.pack("<II", 1_000_000, LOGIN)
            assert await client.exchange(head + b"x" * 500_000, end=False) == struct.pack(
                "<II", 3, 0
            )
            assert await client.request(LOGIN, [b"small"]) == (0, b"small")
            assert any(isinstance(e, StopSendingReceived) for e in client.events)
            assert await client.request(ECHO, [b"x" * 100_000]) == (0, b"x" * 100_000)

    World().run(scenario)


def test_the_newer_framing_is_refused() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            with pytest.raises(StreamRefused, match=str(Refusal.UNSUPPORTED.value)):
                await client.exchange(bytes(256))
            assert await client.request(ECHO, [b"on"]) == (0, b"on")

    World().run(scenario)


def test_streams_of_one_direction_are_ignored() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            stream_id = client.quic.get_next_available_stream_id(is_unidirectional=True)
            client.quic.send_stream_data(stream_id, b"x" * 1000)
            assert await client.request(ECHO, [b"on"]) == (0, b"on")
            assert world.statistics["quic_held_bytes"] == 0

    World().run(scenario)


def test_a_stream_that_would_take_too_much_memory_is_refused_alone() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            half = struct.pack("<II", 900_000, ECHO) + b"h" * 600_000
            first = client.open(half, end=False)
            await world.sleep(2)
            with pytest.raises(StreamRefused, match=str(Refusal.MEMORY.value)):
                await client.exchange(half, end=False)
            client.quic.send_stream_data(first, b"h" * (900_000 - 4 - 600_000), True)
            client.touch()
            assert len(await client.answer(first)) == 900_000 + 4
            assert await client.request(ECHO, [b"on"]) == (0, b"on")

    World(limits=IggyQuicLimits(connection_bytes_max=1_000_000)).run(scenario)


def test_a_request_given_up_by_the_client_costs_nothing() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            stream_id = client.open(struct.pack("<II", 100, ECHO) + b"half", end=False)
            await world.sleep(0.1)
            client.quic.reset_stream(stream_id, 0)
            client.touch()
            unread = client.open(struct.pack("<II", 4, BIG), end=True)
            await world.sleep(0.005)
            client.quic.stop_stream(unread, 0)
            client.touch()
            await world.sleep(1)
            assert world.statistics["quic_held_bytes"] == 0
            assert await client.request(ECHO, [b"on"]) == (0, b"on")

    World().run(scenario)


def test_half_a_request_is_given_up_in_time() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            stream_id = client.open(struct.pack("<II", 100, ECHO) + b"half", end=False)
            for _ in range(10):
                await world.sleep(1)
                assert await client.request(ECHO, [b"alive"]) == (0, b"alive")
            with pytest.raises(StreamRefused, match=str(Refusal.STALLED.value)):
                await client.answer(stream_id)

    World(limits=IggyQuicLimits(frames=IggyLimits(transfer_seconds=3))).run(scenario)


def test_a_stale_client_is_told_and_closed() -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        assert await client.request(STALE) == (Status.STALE_CLIENT, b"")
        await client.wait_over()
        assert world.statistics["quic_connections"] == 0
        await client.vanish()

    World().run(scenario)


def test_a_silent_client_that_is_there_stays_and_one_that_is_gone_goes() -> None:
    async def scenario(world: World) -> None:
        there, gone = await world.connect(), await world.connect()
        gone.open(struct.pack("<II", 100_000, ECHO) + b"h" * 50_000, end=False)
        await world.sleep(1)
        assert world.statistics["quic_held_bytes"] == 50_008
        gone.is_muted = True
        await world.sleep(60)
        assert len(world.recorder.closed) == 1
        assert world.statistics["quic_connections"] == 1
        assert world.statistics["quic_held_bytes"] == 0
        assert await there.request(ECHO, [b"still"]) == (0, b"still")
        await there.close()
        await gone.vanish()
        await world.sleep(1)
        assert world.statistics["quic_connections"] == 0

    World().run(scenario)


def test_who_does_not_log_in_is_closed() -> None:
    async def scenario(world: World) -> None:
        started = world.simulation.time()
        client = await world.connect(login=False)
        while not client.is_over:
            client.ping()  # keeps the connection alive, but says nothing
            await world.sleep(4)
        assert 15 < world.simulation.time() - started < 25
        with pytest.raises(UnavailableError):
            await client.request(ECHO)
        await client.vanish()

    World(limits=IggyQuicLimits(frames=IggyLimits(login_idle_seconds=15))).run(scenario)


def test_requests_do_not_put_off_the_login_for_ever() -> None:
    async def scenario(world: World) -> None:
        started = world.simulation.time()
        client = await world.connect(login=False)
        while not client.is_over:
            with suppress(UnavailableError):
                await client.request(ECHO)
            await world.sleep(1)
        assert 20 <= world.simulation.time() - started < 25
        await client.vanish()

    World(limits=IggyQuicLimits(frames=IggyLimits(login_seconds=20))).run(scenario)


def test_a_slow_reader_bounds_what_is_queued() -> None:
    """Two answers are in memory, not ten, and little of them in QUIC's own buffers."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        for _ in range(10):
            client.open(struct.pack("<II", 4, BIG), end=True)
        await world.sleep(0.01)
        client.is_muted = True  # it acknowledges nothing
        await world.sleep(5)
        (link,) = world.server._endpoint.links
        queued = link._quic.get_send_buffer_size()
        assert 0 < queued <= 1_500_000
        assert 5_000_000 < world.statistics["quic_held_bytes"] < 11_000_000
        await world.sleep(30)
        assert world.statistics["quic_connections"] == 0
        await client.vanish()

    World(limits=IggyQuicLimits(requests_max=2)).run(scenario)


def test_newcomers_prove_their_address_while_many_shake_hands() -> None:
    async def scenario(world: World) -> None:
        for number in range(5):
            async with await world.connect() as client:
                assert await client.request(ECHO, [b"n%d" % number]) == (0, b"n%d" % number)
        assert world.statistics["quic_address_checks"] >= 5

    World(quic_limits=QuicLimits(handshakes_unvalidated_max=0)).run(scenario)


def test_a_token_proves_one_address_for_a_short_time() -> None:
    tokens, others = _RetryTokens(b"k" * 32), _RetryTokens(b"o" * 32)
    here, there = ("10.0.0.2", 1000), ("10.0.0.2", 1001)
    token = tokens.make(b"original", b"source", here, 50_000)
    assert tokens.verify(token, here, 50_000) == (b"original", b"source")
    assert tokens.verify(token, here, 60_000) == (b"original", b"source")
    assert tokens.verify(token, here, 60_001) is None
    assert tokens.verify(token, here, 49_999) is None
    assert tokens.verify(token, there, 50_000) is None
    assert others.verify(token, here, 50_000) is None
    for position in range(len(token)):
        changed = bytearray(token)
        changed[position] ^= 1
        assert tokens.verify(bytes(changed), here, 50_000) is None
    for length in range(len(token)):
        assert tokens.verify(token[:length], here, 50_000) is None


def test_a_forged_token_opens_nothing() -> None:
    async def scenario(world: World) -> None:
        transport = world.simulation.runtime(CLIENT).transport
        answers: list[bytes] = []
        source = await transport.listen_datagrams("", 0, lambda data, _: answers.append(data))
        head = b"\xc0\x00\x00\x00\x01\x08" + b"d" * 8 + b"\x08" + b"s" * 8
        packet = head + b"\x20" + b"t" * 32 + b"\x44\x9e"
        for _ in range(5):
            source.send(packet + bytes(1200), (BROKER, PORT))
        await world.sleep(0.1)
        assert answers == []
        assert world.statistics["quic_connections"] == 0
        assert world.statistics["quic_connections_refused"] > 0
        source.close()

    World().run(scenario)


def test_connections_above_the_cap_get_no_answer() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect(), await world.connect():
            with pytest.raises((TimeoutError, UnavailableError)):
                await world.connect(idle=2)
            assert world.statistics["quic_connections_refused"] > 0

    World(quic_limits=QuicLimits(connections_max=2)).run(scenario)


def test_garbage_is_ignored() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            transport = world.simulation.runtime("10.0.0.3").transport
            answers: list[bytes] = []
            source = await transport.listen_datagrams("", 0, lambda data, _: answers.append(data))
            initial = b"\xc0\x00\x00\x00\x01\x08" + b"d" * 8 + b"\x08" + b"s" * 8 + b"\x00\x44\x9e"
            for data in (
                b"x",
                b"\x40" + b"c" * 30,
                b"\xc0" * 1200,
                b"\xc0\x00\x00\x00\x01" + b"\xff" * 1300,
                initial + bytes(1200),  # well formed, but nothing in it decrypts
                b"\xe0\x00\x00\x00\x01\x08"
                + b"d" * 8
                + b"\x00"
                + bytes(1300),  # a handshake packet
            ):
                for _ in range(5):
                    source.send(data, (BROKER, PORT))
            await world.sleep(0.1)
            assert await client.request(ECHO, [b"on"]) == (0, b"on")
            assert answers == []
            await world.sleep(15)
            assert world.statistics["quic_connections"] == 1, "nothing is kept of strangers"
            source.close()

    World().run(scenario)


def test_a_client_may_change_its_connection_id() -> None:
    async def scenario(world: World) -> None:
        async with await world.connect() as client:
            for number in range(3):
                await world.sleep(0.5)
                client.quic.change_connection_id()
                assert await client.request(ECHO, [b"n%d" % number]) == (0, b"n%d" % number)
        assert len(world.recorder.opened) == 1

    World().run(scenario)


def test_a_short_initial_packet_opens_nothing() -> None:
    async def scenario(world: World) -> None:
        transport = world.simulation.runtime(CLIENT).transport
        source = await transport.listen_datagrams("", 0, lambda data, _: None)
        initial = b"\xc0\x00\x00\x00\x01\x08" + b"d" * 8 + b"\x08" + b"s" * 8 + b"\x00\x44\x00"
        for length, expected in ((1100, 0), (1200, 1)):
            for _ in range(5):
                source.send(initial.ljust(length, b"\0"), (BROKER, PORT))
            await world.sleep(0.1)
            assert world.statistics["quic_connections"] == expected
        source.close()

    World().run(scenario)


def test_a_handshake_goes_on_after_a_long_silence() -> None:
    """Meanwhile the server repeats itself, up to three times what it received."""

    async def scenario(world: World) -> None:
        runtime = world.simulation.runtime(CLIENT)
        inbox: list[bytes] = []
        source = await runtime.transport.listen_datagrams("", 0, lambda data, _: inbox.append(data))
        now = runtime.clock.monotonic
        client = QuicConnection(
            configuration=QuicConfiguration(server_name="localhost", verify_mode=ssl.CERT_NONE)
        )
        client.connect((BROKER, PORT), now())
        sent = [data for data, _ in client.datagrams_to_send(now())]
        for data in sent:
            source.send(data, (BROKER, PORT))
        await world.sleep(7)
        received = sum(map(len, inbox))
        assert sum(map(len, sent)) < received < 3.1 * sum(map(len, sent))  # doubled ones count too
        while not client._handshake_complete:
            taken, inbox[:] = list(inbox), []
            for data in taken:
                client.receive_datagram(data, (BROKER, PORT), now())
            client.handle_timer(now())
            for data, _ in client.datagrams_to_send(now()):
                source.send(data, (BROKER, PORT))
            await world.sleep(0.1)
        await world.sleep(0.1)
        (link,) = world.server._endpoint.links
        assert link.is_connected
        source.close()

    World().run(scenario)


def test_an_unknown_version_is_told_which_we_speak() -> None:
    async def scenario(world: World) -> None:
        transport = world.simulation.runtime(CLIENT).transport
        answers: list[bytes] = []
        source = await transport.listen_datagrams("", 0, lambda data, _: answers.append(data))
        head = b"\xc0\x1a\x2a\x3a\x4a\x08" + b"d" * 8 + b"\x08" + b"s" * 8
        for _ in range(5):
            source.send(head + bytes(1200), (BROKER, PORT))
            source.send(head, (BROKER, PORT))  # too short to be answered
        await world.sleep(0.1)
        assert 1 <= len(answers) <= 7
        for answer in answers:
            assert answer[1:5] == bytes(4)
            assert answer.endswith(b"\x08" + b"s" * 8 + b"\x08" + b"d" * 8 + b"\x00\x00\x00\x01")
        source.close()

    World().run(scenario)


def test_close_lets_requests_in_progress_be_answered() -> None:
    async def scenario(world: World) -> None:
        client = await world.connect()
        answer = asyncio.create_task(client.request(SLOW, [b"patience"]))
        await world.sleep(0.1)
        await world.simulation.on(BROKER, world.server.close())
        assert await answer == (0, b"patience")
        await client.wait_over()
        await client.vanish()

    World().run(scenario)
