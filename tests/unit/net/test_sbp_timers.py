"""Idle limits, heartbeats and lost peers, on simulated clocks and networks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headrace.errors import UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import ChannelLimits, TcpChannel
from headrace.net.sbp_server import SbpServer, ServerLimits, build_routes
from headrace.runtime.interfaces import Connection
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.frames import Frame, FrameDecoder, encode_frame
from headrace.wire.sbp.opcodes import Code, Role
from tests.simulator.runtime import Simulation
from tests.unit.net.sbp_fixtures import ToyNode, allow_all, append_request, fetch_request, raised

NEVER = ChannelLimits(heartbeat_interval=1e9)


class Cluster:
    """A server on one simulated host, whatever the test wants on another."""

    def __init__(self, limits: ServerLimits | None = None) -> None:
        self.simulation = Simulation(1)
        self.node = ToyNode()
        self.client = self.simulation.runtime("client")
        self.server = SbpServer(
            self.simulation.runtime("server"),
            build_routes(Role.DATA_NODE, self.node.handlers()),
            authorize=allow_all,
            limits=limits,
        )

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

    async def raw(self) -> Connection:
        return await self.client.transport.connect(*parse_address(self.server.address))


async def frames_until_closed(connection: Connection) -> list[Frame]:
    decoder = FrameDecoder()
    frames: list[Frame] = []
    while data := await connection.receive():
        for event in decoder.feed(data):
            assert isinstance(event, Frame)
            frames.append(event)
    connection.close()
    return frames


def test_a_silent_connection_is_closed_after_15_seconds_with_goaway() -> None:
    cluster = Cluster()

    async def main() -> None:
        start = cluster.client.clock.monotonic()
        frames = await frames_until_closed(await cluster.raw())
        passed = cluster.client.clock.monotonic() - start
        assert [frame.opcode for frame in frames] == [Code.GOAWAY]
        assert 15 <= passed <= 19  # the idle limit, one look per second, one second of linger

    cluster.run(main())


def test_any_frame_keeps_a_connection_alive() -> None:
    cluster = Cluster()

    async def main() -> None:
        connection = await cluster.raw()
        for n in range(1, 6):
            await cluster.client.clock.sleep(10)
            connection.write(encode_frame(Frame(Code.PING, 0, n)))
        assert cluster.server.statistics()["connections"] == 1
        connection.close()

    cluster.run(main())


def test_a_request_in_flight_keeps_a_connection_alive() -> None:
    cluster = Cluster()

    async def main() -> None:
        channel = await cluster.connect(NEVER)
        poll = channel.call(Code.FETCH, fetch_request(1, wait_ms=60_000), timeout=100)
        waiting = asyncio.ensure_future(poll)
        await cluster.client.clock.sleep(50)
        assert not waiting.done()
        cluster.node.release.set()
        await waiting
        await cluster.client.clock.sleep(10)  # silence is counted from the answer
        await channel.call(Code.APPEND, append_request(0), [b"x"])
        await channel.close()

    cluster.run(main())


def test_a_frame_that_never_ends_is_not_waited_for() -> None:
    cluster = Cluster()

    async def main() -> None:
        connection = await cluster.raw()
        data = b"".join(encode_frame(Frame(Code.APPEND, 0, 1, b"h", bytes(1000))))
        start = cluster.client.clock.monotonic()

        async def dribble() -> None:
            for position in range(len(data)):
                connection.write([data[position : position + 1]])
                await cluster.client.clock.sleep(1)

        dribbling = asyncio.create_task(dribble())
        await frames_until_closed(connection)
        assert 60 <= cluster.client.clock.monotonic() - start <= 65
        dribbling.cancel()

    cluster.run(main())


def test_an_idle_channel_lives_on_heartbeats() -> None:
    """The original's nodes sent them every 30 s to a server that closed after 15."""
    cluster = Cluster()

    async def main() -> None:
        channel = await cluster.connect()
        await cluster.client.clock.sleep(61)
        assert channel.usable
        assert cluster.server.statistics()["connections"] == 1
        assert 10 <= len(cluster.node.peers) <= 14  # about one every five seconds
        await channel.close()

    cluster.run(main())


def test_a_busy_channel_sends_no_heartbeats() -> None:
    cluster = Cluster()

    async def main() -> None:
        channel = await cluster.connect()
        for n in range(20):
            await channel.call(Code.APPEND, append_request(n), [b"x"])
            await cluster.client.clock.sleep(1)
        assert len(cluster.node.peers) == 1
        await channel.close()

    cluster.run(main())


def test_an_unanswered_heartbeat_breaks_the_channel() -> None:
    cluster = Cluster()

    async def main() -> None:
        channel = await cluster.connect()
        cluster.simulation.partition("client", "server")
        start = cluster.client.clock.monotonic()
        poll = channel.call(Code.FETCH, fetch_request(1, wait_ms=60_000), timeout=100)
        assert isinstance(await raised(poll), UnavailableError)
        passed = cluster.client.clock.monotonic() - start
        assert 14 <= passed <= 17  # 5 s of silence, 10 s of waiting
        assert not channel.usable
        cluster.simulation.heal()
        await channel.close()

    cluster.run(main())


def test_a_crashed_server_fails_calls_at_once() -> None:
    cluster = Cluster()

    async def main() -> None:
        channel = await cluster.connect()
        poll = channel.call(Code.FETCH, fetch_request(1, wait_ms=60_000), timeout=100)
        waiting = asyncio.ensure_future(poll)
        await cluster.client.clock.sleep(1)
        cluster.simulation.crash("server")
        assert isinstance(await raised(waiting), UnavailableError)
        await channel.close()

    async def whole() -> None:
        await cluster.simulation.on("server", cluster.server.start("server", 10911))
        await cluster.simulation.on("client", main())

    cluster.simulation.run(whole())


def test_close_waits_for_work_in_flight_but_not_for_ever() -> None:
    cluster = Cluster()

    async def main() -> None:
        channel = await cluster.connect()
        poll = channel.call(Code.FETCH, fetch_request(1, wait_ms=60_000), timeout=100)
        waiting = asyncio.ensure_future(poll)
        await cluster.client.clock.sleep(1)
        start = cluster.client.clock.monotonic()
        await cluster.simulation.on("server", cluster.server.close())
        assert 12 <= cluster.client.clock.monotonic() - start <= 20
        assert isinstance(await raised(waiting), UnavailableError)
        await channel.close()

    cluster.run(main())


def test_a_slow_reader_is_not_a_dead_one() -> None:
    """Each answer has the write timeout to itself, however many wait behind it."""
    cluster = Cluster(ServerLimits(write_timeout=30.0))

    async def main() -> None:
        connection = await cluster.raw()
        header = encode(fetch_request(2 << 20))
        for stream_id in range(1, 11):
            connection.write(encode_frame(Frame(Code.FETCH, 0, stream_id, header)))
        decoder = FrameDecoder()
        start = cluster.client.clock.monotonic()
        answers = 0
        while answers < 10:
            data = await connection.receive()
            assert data, f"cut off after {answers} answers"
            assert cluster.server.statistics()["connections"] == 1
            answers += len(decoder.feed(data))
            await cluster.client.clock.sleep(1.0 * len(data) / (1 << 18))  # 256 KiB a second
        assert cluster.client.clock.monotonic() - start > 60
        connection.close()

    cluster.run(main())


def test_a_reader_that_stopped_is_cut_off() -> None:
    cluster = Cluster(ServerLimits(write_timeout=30.0))

    async def main() -> None:
        connection = await cluster.raw()
        header = encode(fetch_request(2 << 20))
        for stream_id in range(1, 11):
            connection.write(encode_frame(Frame(Code.FETCH, 0, stream_id, header)))
        await cluster.client.clock.sleep(29)
        assert cluster.server.statistics()["connections"] == 1
        await cluster.client.clock.sleep(4)
        assert cluster.server.statistics()["connections"] == 0
        connection.abort()

    cluster.run(main())
