"""Pauses: asked for by servers under pressure, kept by channels."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from headrace.errors import ThrottledError, UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.flow import (
    CONNECTION_PAUSE_MS_MAX,
    HONOURED_SECONDS_MAX,
    REFUSED_PAUSE_MS_MIN,
    ROLE_PAUSE_MS_MAX,
    pause_ms,
    with_pause,
)
from headrace.net.sbp_channel import ChannelLimits, TcpChannel
from headrace.net.sbp_server import Payload, Peer, Reply, SbpServer, ServerLimits, build_routes
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code, Role
from tests.simulator.runtime import Simulation
from tests.unit.net.sbp_fixtures import ToyNode, allow_all, append_request, fetch_request, raised


class Pressed:
    """A server that asks for what the test says, and a client, on a simulated clock."""

    def __init__(self, limits: ServerLimits | None = None) -> None:
        self.simulation = Simulation(1)
        self.node = ToyNode()
        self.client = self.simulation.runtime("client")
        self.level = 0.0
        self.throttle_ms: int | None = None  # what APPEND answers itself
        self.arrived: list[tuple[float, int]] = []
        handlers = self.node.handlers()
        handlers[Code.APPEND] = self.append
        self.server = SbpServer(
            self.simulation.runtime("server"),
            build_routes(Role.DATA_NODE, handlers),
            authorize=allow_all,
            limits=limits,
            pressure=lambda: self.level,
        )

    async def append(self, message: m.Message, payload: Payload, peer: Peer) -> Reply:
        request = cast(m.AppendRequest, message)
        offset = request.append_requests[0].expected_offset
        self.arrived.append((asyncio.get_running_loop().time(), offset))
        if self.throttle_ms is not None and self.throttle_ms < -1:
            raise ThrottledError("come again later", throttle_time_ms=-self.throttle_ms)
        if self.throttle_ms is not None:
            return Reply(m.AppendResponse(self.throttle_ms))
        if request.timeout_ms:
            await self.node.release.wait()
        return await self.node.append(message, payload, peer)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            await self.simulation.on("server", self.server.start("server", 10911))
            await self.simulation.on("client", main)
            await self.simulation.on("server", self.server.close())

        self.simulation.run(whole())

    async def connect(self, limits: ChannelLimits | None = None) -> TcpChannel:
        host, port = parse_address(self.server.address)
        return await TcpChannel.connect(
            self.client, host, port, client_id="c", role=m.ClientRole.CUSTOMER, limits=limits
        )

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.arrived]


async def append(
    channel: TcpChannel, offset: int = 0, *, timeout: float = 60.0
) -> m.AppendResponse:
    reply = await channel.call(Code.APPEND, append_request(offset), [b"batch"], timeout=timeout)
    return cast(m.AppendResponse, reply.message)


@pytest.mark.parametrize(
    ("level", "pause"), [(0.0, 0), (0.75, 0), (0.875, 250), (1.0, 500), (7.0, 500)]
)
def test_the_pause_rises_with_the_level(level: float, pause: int) -> None:
    assert pause_ms(level, 500) == pause


def test_a_refused_append_always_says_when_to_come_again() -> None:
    refused = m.AppendResult(1, 0, -1, 0, m.Status(1429, "busy"))
    taken = m.AppendResult(1, 1, 7, 5, m.OK)
    answer = cast(m.AppendResponse, with_pause(m.AppendResponse(0, (taken, refused)), 0))
    assert answer.throttle_time_ms == REFUSED_PAUSE_MS_MIN
    assert cast(m.AppendResponse, with_pause(answer, 400)).throttle_time_ms == 400
    untouched = m.AppendResponse(0, (taken,))
    assert with_pause(untouched, 0) is untouched


def test_a_full_role_asks_for_pauses_and_the_channel_keeps_them() -> None:
    world = Pressed()

    async def main() -> None:
        channel = await world.connect()
        assert (await append(channel)).throttle_time_ms == 0
        world.level = 1.0
        assert (await append(channel)).throttle_time_ms == ROLE_PAUSE_MS_MAX
        world.level = 0.5
        assert (await append(channel)).throttle_time_ms == 0
        await append(channel)
        one, two, three, four = world.times
        assert two - one < 0.1
        assert three - two >= ROLE_PAUSE_MS_MAX / 1000
        assert four - three < 0.1
        assert world.server.statistics()["answers_throttled"] == 1
        await channel.close()

    world.run(main())


def test_calls_keep_their_order_through_a_pause() -> None:
    world = Pressed()
    world.throttle_ms = 2000

    async def main() -> None:
        channel = await world.connect()
        await append(channel)
        world.throttle_ms = 0
        calls = [asyncio.create_task(append(channel, n)) for n in range(1, 40)]
        await asyncio.gather(*calls)
        assert [offset for _, offset in world.arrived] == list(range(40))
        assert world.times[1] - world.times[0] >= 2
        assert world.times[-1] - world.times[1] < 0.5, "one pause for all of them"
        await channel.close()

    world.run(main())


@pytest.mark.parametrize("throttle_ms", [0, -1])
def test_nought_and_less_are_no_pause(throttle_ms: int) -> None:
    world = Pressed()
    world.throttle_ms = throttle_ms

    async def main() -> None:
        channel = await world.connect()
        await append(channel)
        await append(channel)
        assert world.times[1] - world.times[0] < 0.1
        await channel.close()

    world.run(main())


def test_an_absurd_pause_is_cut_and_heartbeats_go_on() -> None:
    world = Pressed()
    world.throttle_ms = 2**31 - 1

    async def main() -> None:
        channel = await world.connect()
        await append(channel)
        world.throttle_ms = 0
        await channel.ping()  # not delayed
        await channel.heartbeat()
        await append(channel)
        assert HONOURED_SECONDS_MAX <= world.times[1] - world.times[0] < HONOURED_SECONDS_MAX + 1
        assert channel.usable, "the pause is longer than the server's idle limit"
        await channel.close()

    world.run(main())


def test_a_call_whose_time_ends_in_a_pause_was_never_sent() -> None:
    world = Pressed()
    world.throttle_ms = 5000

    async def main() -> None:
        channel = await world.connect()
        await append(channel)
        error = await raised(append(channel, 1, timeout=1))
        assert isinstance(error, ThrottledError), "not a deadline: nothing is in doubt"
        await world.client.clock.sleep(10)
        assert len(world.arrived) == 1
        await channel.close()

    world.run(main())


def test_a_refused_request_may_carry_the_pause_too() -> None:
    world = Pressed()
    world.throttle_ms = -3000  # a system error with 3,000 in its detail

    async def main() -> None:
        channel = await world.connect()
        assert isinstance(await raised(append(channel)), ThrottledError)
        world.throttle_ms = 0
        await append(channel)
        assert world.times[1] - world.times[0] >= 3
        await channel.close()

    world.run(main())


def test_a_channel_that_breaks_does_not_pause_any_longer() -> None:
    world = Pressed()
    world.throttle_ms = 20_000

    async def main() -> None:
        channel = await world.connect()
        await append(channel)
        waiting = asyncio.create_task(raised(append(channel)))
        await asyncio.sleep(1)
        started = asyncio.get_running_loop().time()
        await channel.close()
        assert isinstance(await waiting, UnavailableError)
        assert asyncio.get_running_loop().time() - started < 1

    world.run(main())


def test_many_bytes_in_flight_on_a_connection_are_pressure_too() -> None:
    world = Pressed(ServerLimits(bytes_in_flight_max=4000, linger=0.1))

    async def main() -> None:
        channel = await world.connect()
        stuck = asyncio.ensure_future(
            channel.call(
                Code.APPEND, append_request(0, timeout_ms=60_000), [bytes(3700)], timeout=60
            )
        )
        await asyncio.sleep(1)
        pause = (await append(channel)).throttle_time_ms
        assert 0 < pause <= CONNECTION_PAUSE_MS_MAX
        world.node.release.set()
        await stuck
        assert (await append(channel)).throttle_time_ms == 0
        await channel.close()

    world.run(main())


def test_fetches_are_not_throttled_by_the_disk_that_appends_wait_for() -> None:
    world = Pressed()
    world.level = 1.0

    async def main() -> None:
        channel = await world.connect()
        reply = await channel.call(Code.FETCH, fetch_request(10))
        assert cast(m.FetchResponse, reply.message).throttle_time_ms == 0
        await channel.close()

    world.run(main())
