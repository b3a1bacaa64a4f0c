"""Connections of the Iggy port that go from one server to another, between two requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import OutcomeUnknownError, UnavailableError
from headrace.net.iggy_moving import Begun
from headrace.net.iggy_server import IggyLimits, IggyServer
from headrace.runtime.interfaces import Connection, MovableConnection
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.errors import Status
from tests.simulator.runtime import Simulation
from tests.unit.net.test_iggy_server import ECHO, PORT, Peer, Recorder

REFUSED, UNTOUCHED, TAKEN, UNKNOWN = "refused", "untouched", "taken", "unknown"


class Moving:
    """Two servers of one host. Connections of the first one move as `outcomes` has it, one after
    each round of answers."""

    def __init__(self, *outcomes: str, limits: IggyLimits | None = None) -> None:
        self.outcomes = list(outcomes)
        self.simulation = Simulation(7)
        self.runtime = self.simulation.runtime("broker")
        self.recorders = [Recorder(self.runtime), Recorder(self.runtime)]
        self.servers: list[IggyServer[str]] = [
            IggyServer(
                self.runtime,
                open_session=recorder.open_session,
                on_request=recorder.on_request,
                close_session=recorder.close_session,
                limits=limits,
                mover=self if position == 0 else None,
            )
            for position, recorder in enumerate(self.recorders)
        ]
        self.unfinished: list[bytes] = []
        self.serving: list[asyncio.Task[None]] = []

    def is_due(self, session: str) -> bool:
        return bool(self.outcomes)

    async def move(
        self, session: str, connection: Connection, unfinished: bytes, *, has_heads: bool
    ) -> Connection | None:
        outcome = self.outcomes.pop(0)
        self.unfinished.append(unfinished)
        if outcome == UNTOUCHED:
            return connection
        assert isinstance(connection, MovableConnection)
        detached = await connection.detach()
        if outcome == UNKNOWN:
            detached.abort()
            raise OutcomeUnknownError("no answer")
        again = unfinished + detached.received
        adopted = await self.runtime.transport.adopt(detached, again)
        if outcome == REFUSED:
            return adopted
        begun = Begun(self.recorders[1].open_session, has_heads)
        self.serving.append(asyncio.ensure_future(self.servers[1].serve(adopted, begun)))
        return None

    async def peer(self) -> Peer:
        transport = self.simulation.runtime("client").transport
        return Peer(await transport.connect("broker", PORT, timeout=5))

    def run(self, scenario: Callable[[Moving], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.simulation.on("broker", self.servers[0].start("broker", PORT))
            await scenario(self)
            for server in self.servers:
                await self.simulation.on("broker", server.close())
                assert server.statistics()["connections"] == 0
                assert server.statistics()["held_bytes"] == 0

        self.simulation.run(main())


def test_a_connection_that_was_taken_is_served_there_and_its_session_not_closed_here() -> None:
    async def scenario(moving: Moving) -> None:
        peer = await moving.peer()
        for text in (b"one", b"two", b"three"):
            peer.send((ECHO, text))
            assert await peer.answer() == (0, text)
        first, second = moving.recorders
        assert (first.requests, second.requests) == (1, 2)
        assert moving.servers[0].statistics()["connections"] == 0
        assert moving.servers[1].statistics()["connections"] == 1
        await peer.leave()
        await asyncio.gather(*moving.serving)
        assert (first.closed, second.closed) == ([], second.opened)

    Moving(TAKEN).run(scenario)


@pytest.mark.parametrize("outcome", [TAKEN, REFUSED, UNTOUCHED])
@pytest.mark.parametrize("cut", [1, 5, 30, 3000])
def test_half_a_frame_goes_with_its_connection(outcome: str, cut: int) -> None:
    async def scenario(moving: Moving) -> None:
        peer = await moving.peer()
        long = bytes(range(256)) * 16
        frames = b"".join(encode_request(ECHO, [b"one"])), b"".join(encode_request(ECHO, [long]))
        peer.connection.write([frames[0] + frames[1][:cut]])
        assert await peer.answer() == (0, b"one")
        await moving.runtime.clock.sleep(0.1)
        peer.connection.write([frames[1][cut:], *encode_request(ECHO, [b"three"])])
        assert [await peer.answer(), await peer.answer()] == [(0, long), (0, b"three")]
        assert moving.unfinished == [frames[1][:cut]]
        await peer.leave()
        await asyncio.gather(*moving.serving)
        first, second = moving.recorders
        assert first.requests + second.requests == 3
        assert len(first.closed) + len(second.closed) == 1

    Moving(outcome).run(scenario)


def test_too_much_of_a_frame_waits_until_it_is_whole() -> None:
    async def scenario(moving: Moving) -> None:
        peer = await moving.peer()
        frame = b"".join(encode_request(101, [bytes(200_000)]))
        peer.connection.write([*encode_request(ECHO, [b"one"]), frame[:150_000]])
        assert await peer.answer() == (0, b"one")
        await moving.runtime.clock.sleep(0.1)
        peer.connection.write([frame[150_000:]])
        assert await peer.answer() == (0, bytes(200_000))
        peer.send((ECHO, b"three"))
        assert await peer.answer() == (0, b"three")
        assert moving.recorders[1].requests >= 1
        assert all(len(each) <= 64 * 1024 for each in moving.unfinished)
        await peer.leave()
        await asyncio.gather(*moving.serving)

    Moving(TAKEN).run(scenario)


def test_a_frame_of_no_length_is_refused_there_as_here() -> None:
    async def scenario(moving: Moving) -> None:
        peer = await moving.peer()
        peer.send((ECHO, b"one"))
        assert await peer.answer() == (0, b"one")
        peer.connection.write([bytes(4)])
        assert await peer.answer() == (Status.INVALID_COMMAND, b"")
        peer.send((ECHO, b"two"))
        assert await peer.answer() == (0, b"two")
        await peer.leave()
        await asyncio.gather(*moving.serving)

    Moving(TAKEN).run(scenario)


async def until_ended(peer: Peer) -> None:
    while True:
        await peer.answer()


def test_a_connection_lost_on_its_way_is_over() -> None:
    async def scenario(moving: Moving) -> None:
        peer = await moving.peer()
        peer.send((ECHO, b"one"))
        with pytest.raises(UnavailableError):
            await until_ended(peer)
        assert moving.recorders[0].closed == moving.recorders[0].opened

    Moving(UNKNOWN).run(scenario)


def test_again_and_again_refused_it_is_served_on() -> None:
    async def scenario(moving: Moving) -> None:
        peer = await moving.peer()
        peer.send(*[(ECHO, b"no %d" % n) for n in range(100)])
        for number in range(100):
            assert await peer.answer() == (0, b"no %d" % number)
        for number in range(100):
            peer.send((ECHO, b"no %d" % number))
            assert await peer.answer() == (0, b"no %d" % number)
        assert moving.recorders[0].requests == 200
        assert len(moving.recorders[0].opened) == 1
        await peer.leave()

    Moving(*[REFUSED, UNTOUCHED] * 40).run(scenario)
