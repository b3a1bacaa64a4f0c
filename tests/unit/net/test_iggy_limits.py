"""Who is cut off by the connection loop of Iggy's framing, and who is not; in simulated time."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable

from headrace.errors import UnavailableError
from headrace.net.iggy_server import Answer, IggyLimits, IggyServer
from headrace.runtime.interfaces import Connection
from headrace.wire.iggy.classic_frames import ResponseDecoder, encode_request
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.vsr.frames import Head
from tests.simulator.runtime import Simulation

PORT = 8090
ECHO, LOGIN, LARGE, HOLD = 1, 38, 100, 101
MIB = 1 << 20
LARGE_BYTES = 4 * MIB


class Session:
    def __init__(self) -> None:
        self.trusted = False


class Peer:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.decoder = ResponseDecoder()

    def send(self, code: int, payload: bytes = b"") -> None:
        self.connection.write(encode_request(code, [payload]))

    def begin(self, length: int, sent: int, code: int = HOLD) -> None:
        """A frame that stays half-sent."""
        self.connection.write([struct.pack("<II", length + 4, code), b"x" * sent])

    async def answer(self) -> tuple[int, int] | None:
        """(status, bytes); None when the server ended the connection."""
        while True:
            try:
                data = await self.connection.receive()
            except UnavailableError:
                return None
            if not data:
                return None
            for frame in self.decoder.feed(data):
                return frame.status, len(frame.payload)

    async def call(self, code: int, payload: bytes = b"") -> tuple[int, int] | None:
        self.send(code, payload)
        return await self.answer()


class World:
    def __init__(self, limits: IggyLimits) -> None:
        self.simulation = Simulation(11)
        self.clock = self.simulation.runtime("client").clock
        self.server: IggyServer[Session] = IggyServer(
            self.simulation.runtime("broker"),
            open_session=lambda _: Session(),
            on_request=self.on_request,
            close_session=lambda _: None,
            is_trusted=lambda session: session.trusted,
            limits=limits,
        )

    async def on_request(
        self, session: Session, code: int, payload: memoryview, head: Head | None
    ) -> Answer:
        if code == LOGIN:
            session.trusted = True
        if code == LARGE:
            return Status.OK, [bytes(LARGE_BYTES)]
        return Status.OK, [payload] if len(payload) and code == ECHO else []

    async def peer(self, *, login: bool = True) -> Peer:
        transport = self.simulation.runtime("client").transport
        peer = Peer(await transport.connect("broker", PORT, timeout=5))
        if login:
            assert await peer.call(LOGIN) == (0, 0)
        return peer

    def figure(self, name: str) -> int:
        return self.server.statistics()[name]

    def run(self, scenario: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.simulation.on("broker", self.server.start("broker", PORT))
            await scenario(self)
            await self.simulation.on("broker", self.server.close())
            assert self.figure("connections") == 0
            assert self.figure("held_bytes") == 0

        self.simulation.run(main())


def test_frames_are_small_until_the_login() -> None:
    async def scenario(world: World) -> None:
        stranger = await world.peer(login=False)
        assert await stranger.call(ECHO, b"x" * 1000) == (0, 1000)
        assert await stranger.call(ECHO, b"x" * 1021) == (Status.INVALID_COMMAND, 0)
        assert await stranger.answer() is None
        sender = await world.peer(login=False)
        sender.begin(5000, 0)  # a SEND is no exception
        assert await sender.answer() == (Status.INVALID_COMMAND, 0)
        known = await world.peer()
        assert await known.call(ECHO, b"x" * 100_000) == (0, 100_000)

    World(IggyLimits(login_frame_bytes_max=1024)).run(scenario)


def test_who_does_not_log_in_may_not_stay_silent() -> None:
    async def scenario(world: World) -> None:
        known, silent, pinging = (
            await world.peer(),
            await world.peer(login=False),
            await world.peer(login=False),
        )
        for _ in range(4):
            await world.clock.sleep(4)
            assert await pinging.call(ECHO) == (0, 0)
        assert await silent.answer() is None
        assert await known.call(ECHO) == (0, 0)
        assert world.figure("connections_cut_off") == 1

    World(IggyLimits(login_idle_seconds=10)).run(scenario)


def test_pings_do_not_put_off_the_login_for_ever() -> None:
    async def scenario(world: World) -> None:
        known, pinging = await world.peer(), await world.peer(login=False)
        started = world.clock.monotonic()
        while await pinging.call(ECHO) is not None:
            await world.clock.sleep(1)
        assert 20 <= world.clock.monotonic() - started < 23
        assert await known.call(ECHO) == (0, 0)

    World(IggyLimits(login_idle_seconds=10, login_seconds=20)).run(scenario)


def test_when_all_connections_are_taken_who_has_no_login_makes_room() -> None:
    async def scenario(world: World) -> None:
        idle = [await world.peer(login=False) for _ in range(4)]
        await world.clock.sleep(0.1)
        users = [await world.peer() for _ in range(4)]
        assert [await peer.answer() for peer in idle] == [None] * 4
        assert [await user.call(ECHO) for user in users] == [(0, 0)] * 4
        late = await world.peer(login=False)
        assert await late.answer() is None  # users stay
        assert world.figure("connections_refused") == 1

    World(IggyLimits(connections_max=4)).run(scenario)


def test_idle_time_after_the_login_is_a_setting() -> None:
    async def scenario(world: World) -> None:
        peer = await world.peer()
        await world.clock.sleep(62)
        assert await peer.answer() is None

    World(IggyLimits(idle_seconds=60)).run(scenario)


def test_a_half_sent_frame_has_its_time() -> None:
    async def scenario(world: World) -> None:
        half, steady = await world.peer(), await world.peer()
        # Long silence before a frame does not count for it.
        await world.clock.sleep(300)
        half.begin(MIB, 100)
        steady.begin(20 * 65536, 0)
        started = world.clock.monotonic()
        for _ in range(20):
            await world.clock.sleep(1)
            steady.connection.write([bytes(65536)])
        assert await steady.answer() == (0, 0)
        assert await half.answer() is None
        assert 10 <= world.clock.monotonic() - started <= 22
        assert world.figure("connections_cut_off") == 1

    World(IggyLimits(transfer_seconds=10)).run(scenario)


def test_an_answer_that_is_not_taken_has_its_time() -> None:
    async def scenario(world: World) -> None:
        reader, other = await world.peer(), await world.peer()
        reader.send(LARGE)
        await world.clock.sleep(9)
        assert world.figure("held_bytes") >= LARGE_BYTES
        assert await other.call(ECHO) == (0, 0)
        await world.clock.sleep(2 + LARGE_BYTES / 65536)
        assert world.figure("connections_cut_off") == 1
        assert world.figure("held_bytes") == 0
        assert await other.call(ECHO) == (0, 0)

    World(IggyLimits(transfer_seconds=10)).run(scenario)


def test_short_memory_ends_who_is_stuck_and_spares_the_rest() -> None:
    async def scenario(world: World) -> None:
        stuck = [await world.peer() for _ in range(6)]
        small, worker = await world.peer(), await world.peer()
        small.begin(1000, 10)
        for peer in stuck:
            peer.begin(8 * MIB, MIB)
        await world.clock.sleep(0.5)
        assert world.figure("held_bytes") > 4 * MIB
        started = world.clock.monotonic()
        assert await worker.call(ECHO, b"y" * 200_000) == (0, 200_000)
        assert world.clock.monotonic() - started < 5
        await world.clock.sleep(3)
        assert world.figure("held_bytes") <= 4 * MIB
        assert 2 <= world.figure("connections_cut_off") < 6
        small.connection.write([b"x" * 990])
        assert await small.answer() == (0, 0)

    World(IggyLimits(held_bytes_max=4 * MIB)).run(scenario)


def test_large_frames_at_once_all_arrive_in_little_memory() -> None:
    """More frames than memory, all of them honest: they take turns, nobody is cut off."""
    most = 0

    async def scenario(world: World) -> None:
        nonlocal most
        peers = [await world.peer() for _ in range(12)]
        for peer in peers:
            peer.begin(2 * MIB, 0)
        for _ in range(16):
            for peer in peers:
                peer.connection.write([bytes(MIB // 8)])
            await world.clock.sleep(0.01)
            most = max(most, world.figure("held_bytes"))
        for peer in peers:
            assert await peer.answer() == (0, 0)
        assert world.figure("connections_cut_off") == 0

    World(IggyLimits(held_bytes_max=6 * MIB)).run(scenario)
    assert most <= 6 * MIB + 2 * MIB + 12 * (MIB // 8)


def test_readers_that_never_read_do_not_keep_others_waiting() -> None:
    async def scenario(world: World) -> None:
        readers = [await world.peer() for _ in range(8)]
        for reader in readers:
            reader.send(LARGE)
        await world.clock.sleep(0.1)
        worker = await world.peer()
        assert await worker.call(ECHO, b"z" * 1000) == (0, 1000)
        await world.clock.sleep(3)
        assert world.figure("held_bytes") <= 8 * MIB

    World(IggyLimits(held_bytes_max=8 * MIB)).run(scenario)
