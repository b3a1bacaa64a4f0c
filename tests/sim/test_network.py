"""Partitions, latency and chopping in the simulated network."""

import asyncio

import pytest

from headrace.errors import ConfigError, UnavailableError
from headrace.runtime import Connection
from tests.simulator.runtime import Simulation

pytestmark = pytest.mark.parametrize("seed", range(5))


async def echo(connection: Connection) -> None:
    while data := await connection.receive():
        connection.write([data])
        await connection.drain()


async def receive_exactly(connection: Connection, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        received += await connection.receive()
    return bytes(received)


def test_a_partition_holds_bytes_back_until_it_heals(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await simulation.runtime("n1").transport.listen("n1", 1, echo)
        transport, clock = simulation.runtime("n2").transport, simulation.runtime("n2").clock
        connection = await transport.connect("n1", 1)
        connection.write([b"under way"])
        simulation.partition("n1", "n2")
        connection.write([b", and later"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await connection.receive()
        simulation.heal()
        healed = clock.monotonic()
        assert await receive_exactly(connection, 20) == b"under way, and later"
        assert clock.monotonic() - healed < 1.0

    simulation.run(main())


def test_a_partition_concerns_two_hosts_only(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        for host in ("n1", "n2"):
            await simulation.runtime(host).transport.listen("0.0.0.0", 1, echo)
        simulation.partition("n2", "client")
        transport = simulation.runtime("client").transport
        connection = await transport.connect("n1", 1)
        connection.write([b"x"])
        assert await connection.receive() == b"x"
        before = simulation.time()
        with pytest.raises(UnavailableError):
            await transport.connect("n2", 1, timeout=2.0)
        assert simulation.time() - before == pytest.approx(2.0)
        between = await simulation.runtime("n1").transport.connect("n2", 1)
        between.write([b"y"])
        assert await between.receive() == b"y"

    simulation.run(main())


def test_connecting_succeeds_when_the_partition_heals_in_time(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await simulation.runtime("n1").transport.listen("0.0.0.0", 1, echo)
        simulation.partition("n1", "n2")
        connecting = asyncio.ensure_future(
            simulation.runtime("n2").transport.connect("n1", 1, timeout=5.0)
        )
        await asyncio.sleep(3)
        assert not connecting.done()
        simulation.heal()
        (await connecting).close()

    simulation.run(main())


def test_a_crash_behind_a_partition_is_noticed_after_it(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await simulation.runtime("n1").transport.listen("0.0.0.0", 1, echo)
        connection = await simulation.runtime("n2").transport.connect("n1", 1)
        waiting = asyncio.ensure_future(connection.receive())
        simulation.partition("n1", "n2")
        simulation.crash("n1")
        await asyncio.sleep(100)
        assert not waiting.done()
        simulation.heal()
        with pytest.raises(UnavailableError):
            await waiting

    simulation.run(main())


def test_a_closed_connection_behind_a_partition_gives_up(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await simulation.runtime("n1").transport.listen("0.0.0.0", 1, echo)
        connection = await simulation.runtime("n2").transport.connect("n1", 1)
        simulation.partition("n1", "n2")
        connection.write([b"never arrives"])
        connection.close()
        before = simulation.time()
        await connection.wait_closed()
        assert simulation.time() - before == pytest.approx(10.0)

    simulation.run(main())


def test_latency_stays_within_its_bounds(seed: int) -> None:
    simulation = Simulation(seed, latency=(0.25, 0.5))

    async def main() -> None:
        await simulation.runtime("n1").transport.listen("0.0.0.0", 1, echo)
        transport = simulation.runtime("n2").transport
        before = simulation.time()
        connection = await transport.connect("n1", 1, timeout=2.0)
        assert 0.5 <= simulation.time() - before <= 1.0
        trips = []
        for _ in range(20):
            before = simulation.time()
            connection.write([b"x"])
            await connection.receive()
            trips.append(simulation.time() - before)
        assert all(0.5 <= trip <= 1.0 for trip in trips)
        assert max(trips) - min(trips) > 0.05

    simulation.run(main())


def test_boundaries_of_writes_mean_nothing(seed: int) -> None:
    simulation = Simulation(seed)
    lengths: list[int] = []

    async def main() -> None:
        async def collect(connection: Connection) -> None:
            while data := await connection.receive():
                lengths.append(len(data))
                await asyncio.sleep(0.002)

        await simulation.runtime("n1").transport.listen("0.0.0.0", 1, collect)
        connection = await simulation.runtime("n2").transport.connect("n1", 1)
        for _ in range(300):
            connection.write([b"0123456789"])
            await asyncio.sleep(0.001)
        connection.close()
        await connection.wait_closed()

    simulation.run(main())
    assert min(lengths) < 10, "some writes are cut"
    assert max(lengths) > 10, "some are joined"
    assert 10 in lengths, "and some stay whole"


def test_loopback_is_the_own_host(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        first, second = simulation.runtime("n1").transport, simulation.runtime("n2").transport
        await first.listen("127.0.0.1", 1, echo)
        await second.listen("127.0.0.1", 1, echo)
        own = await first.connect("localhost", 1)
        assert own.peer == "n1:1"
        with pytest.raises(UnavailableError):
            await second.connect("n1", 1)
        with pytest.raises(ConfigError):
            await first.listen("n2", 2, echo)

    simulation.run(main())


def test_a_one_way_partition_lets_answers_through(seed: int) -> None:
    simulation = Simulation(seed)
    received: list[bytes] = []

    async def main() -> None:
        async def collect(connection: Connection) -> None:
            connection.write([b"hello"])
            while data := await connection.receive():
                received.append(data)

        await simulation.runtime("n1").transport.listen("0.0.0.0", 1, collect)
        transport = simulation.runtime("n2").transport
        connection = await transport.connect("n1", 1)
        simulation.partition("n2", "n1", one_way=True)
        connection.write([b"unheard"])
        assert await receive_exactly(connection, 5) == b"hello"
        await asyncio.sleep(30)
        assert received == []
        with pytest.raises(UnavailableError):  # a handshake needs both ways
            await transport.connect("n1", 1)
        simulation.heal("n1", "n2")
        await asyncio.sleep(1)
        assert b"".join(received) == b"unheard"

    simulation.run(main())


def test_healing_two_hosts_leaves_other_partitions(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        for host in ("n1", "n2"):
            await simulation.runtime(host).transport.listen("0.0.0.0", 1, echo)
            simulation.partition("client", host)
        transport = simulation.runtime("client").transport
        simulation.heal("n1", "client")
        (await transport.connect("n1", 1)).close()
        with pytest.raises(UnavailableError):
            await transport.connect("n2", 1)

    simulation.run(main())


def test_broken_connections_are_noticed_on_both_sides(seed: int) -> None:
    simulation = Simulation(seed)
    ended: list[str] = []

    async def main() -> None:
        async def serve(connection: Connection) -> None:
            try:
                await echo(connection)
            except UnavailableError:
                ended.append(connection.peer)

        await simulation.runtime("n1").transport.listen("0.0.0.0", 1, serve)
        lost = await simulation.runtime("n2").transport.connect("n1", 1)
        other = await simulation.runtime("n3").transport.connect("n1", 1)
        simulation.break_connections("n2", "n1")
        with pytest.raises(UnavailableError):
            await lost.receive()
        await asyncio.sleep(1)
        assert ended == [lost.local]
        other.write([b"x"])
        assert await other.receive() == b"x"
        again = await simulation.runtime("n2").transport.connect("n1", 1)
        again.write([b"y"])
        assert await again.receive() == b"y"

    simulation.run(main())


def test_a_slow_host_answers_late(seed: int) -> None:
    simulation = Simulation(seed, latency=(0.01, 0.02), execution=(0.01, 0.02))

    async def main() -> None:
        await simulation.runtime("n1").transport.listen("0.0.0.0", 1, echo)
        connection = await simulation.runtime("n2").transport.connect("n1", 1)
        executor = simulation.runtime("n1").executor("work", 1)
        simulation.slow("n1", 10)
        before = simulation.time()
        connection.write([b"x"])
        await connection.receive()
        assert 0.2 <= simulation.time() - before <= 0.4
        before = simulation.time()
        await executor.run(int)
        assert 0.1 <= simulation.time() - before <= 0.2
        simulation.slow("n1")
        before = simulation.time()
        connection.write([b"x"])
        await connection.receive()
        assert simulation.time() - before <= 0.05

    simulation.run(main())
