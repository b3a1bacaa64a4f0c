"""What every Transport does with datagrams; and what the simulated network does to them."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import ConfigError, UnavailableError
from headrace.runtime import Address, DatagramListener, Transport
from tests.simulator.runtime import Simulation
from tests.unit.runtime.worlds import World

HOST = "127.0.0.1"


class Inbox:
    """Datagrams that arrived, and somebody who waits for them."""

    def __init__(self) -> None:
        self.arrived: list[tuple[bytes, Address]] = []
        self._more = asyncio.Event()

    def __call__(self, data: bytes, address: Address) -> None:
        self.arrived.append((data, address))
        self._more.set()

    async def wait(self, resend: DatagramListener, data: bytes, to: Address) -> None:
        """Until something is here; the datagram may be lost, so it is sent again."""
        while not self.arrived:
            resend.send(data, to)
            self._more.clear()
            try:
                async with asyncio.timeout(0.2):
                    await self._more.wait()
            except TimeoutError:
                continue


async def close(*listeners: DatagramListener) -> None:
    for listener in listeners:
        listener.close()
        await listener.wait_closed()


def test_a_datagram_and_its_answer(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        near_inbox, far_inbox = Inbox(), Inbox()
        near = await transport.listen_datagrams(HOST, 0, near_inbox)
        far = await transport.listen_datagrams("localhost", 0, far_inbox)
        assert near.port != far.port
        assert near.port != 0
        assert far.host == HOST
        await far_inbox.wait(near, b"question", (HOST, far.port))
        question, origin = far_inbox.arrived[0]
        assert (question, origin) == (b"question", (HOST, near.port))
        await near_inbox.wait(far, b"answer", origin)
        assert near_inbox.arrived[0] == (b"answer", (HOST, far.port))
        await close(near, far)

    world.run(main())


def test_a_taken_address_is_refused(world: World) -> None:
    async def main() -> None:
        transport = world.runtime.transport
        first = await transport.listen_datagrams(HOST, 0, Inbox())
        with pytest.raises(ConfigError):
            await transport.listen_datagrams(HOST, first.port, Inbox())
        with pytest.raises(ConfigError):
            await transport.listen_datagrams("192.0.2.1", 0, Inbox())
        await close(first)
        again = await transport.listen_datagrams(HOST, first.port, Inbox())
        await close(again)

    world.run(main())


def test_nothing_arrives_or_leaves_after_close(world: World) -> None:
    async def main() -> None:
        transport, clock = world.runtime.transport, world.runtime.clock
        near_inbox, far_inbox = Inbox(), Inbox()
        near = await transport.listen_datagrams(HOST, 0, near_inbox)
        far = await transport.listen_datagrams(HOST, 0, far_inbox)
        await close(far)
        for _ in range(20):
            near.send(b"to nobody", (HOST, far.port))
            far.send(b"from nobody", (HOST, near.port))
        await clock.sleep(0.05)
        assert near_inbox.arrived == far_inbox.arrived == []
        near.send(b"x" * 100_000, (HOST, near.port))  # too large for any datagram: dropped
        await clock.sleep(0.05)
        assert near_inbox.arrived == []
        await close(near)

    world.run(main())


COUNT = 2000


async def _flood(sender: Transport, target: str, inbox: Inbox) -> tuple[set[int], int]:
    """Which of COUNT datagrams arrived, and how many more than once."""
    source = await sender.listen_datagrams("", 0, Inbox())
    for number in range(COUNT):
        source.send(b"%d" % number, (target, 1))
    await asyncio.sleep(1)
    numbers = [int(data) for data, _ in inbox.arrived]
    assert numbers != sorted(numbers), "some overtake others"
    return set(numbers), len(numbers) - len(set(numbers))


def test_the_simulated_network_loses_doubles_and_reorders() -> None:
    simulation = Simulation(7)

    async def main() -> tuple[set[int], int]:
        inbox = Inbox()
        await simulation.runtime("n1").transport.listen_datagrams("n1", 1, inbox)
        return await _flood(simulation.runtime("n2").transport, "n1", inbox)

    arrived, doubled = simulation.run(main())
    assert COUNT * 0.9 < len(arrived) < COUNT
    assert 0 < doubled < COUNT * 0.1


def test_partitions_loopback_and_crashes() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        clock = simulation.runtime("n2").clock
        inbox, local = Inbox(), Inbox()
        await simulation.runtime("n1").transport.listen_datagrams("0.0.0.0", 1, inbox)
        await simulation.runtime("n1").transport.listen_datagrams(HOST, 2, local)
        source = await simulation.runtime("n2").transport.listen_datagrams("n2", 9, Inbox())

        async def burst() -> int:
            before = len(inbox.arrived)
            for port in (1, 2):
                for _ in range(50):
                    source.send(b"x", ("n1", port))
            await clock.sleep(1)
            return len(inbox.arrived) - before

        assert await burst() > 25
        assert local.arrived == [], "a loopback listener is deaf to other hosts"
        assert {address for _, address in inbox.arrived} == {("n2", 9)}
        simulation.partition("n1", "n2")
        assert await burst() == 0
        simulation.heal()
        await clock.sleep(1)
        assert await burst() > 25, "and what was cut is not sent again"
        simulation.crash("n1")
        assert await burst() == 0
        simulation.crash("n2")
        with pytest.raises(UnavailableError):
            source.send(b"from a dead host", ("n1", 1))

    simulation.run(main())
