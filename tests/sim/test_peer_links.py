"""Links between simulated brokers, and connections that move, under faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import OutcomeUnknownError, UnavailableError
from headrace.net.peer_link import PeerLink, TcpAddress, UnixAddress
from headrace.net.peer_server import Answer, PeerServer
from headrace.runtime.interfaces import Connection, MovableConnection
from tests.simulator.runtime import Simulation

pytestmark = pytest.mark.parametrize("seed", range(8))

SECRET = b"s" * 32
PORT = 7000
OnRequest = Callable[[str, bytes, memoryview], Answer | Awaitable[Answer]]


async def start(simulation: Simulation, host: str, on_request: OnRequest) -> PeerServer:
    server = PeerServer(simulation.runtime(host), secret=SECRET, name=host, on_request=on_request)
    await server.start_unix("/run/peer")
    await server.start_tcp("0.0.0.0", PORT)
    return server


def link(simulation: Simulation, host: str, address: UnixAddress | TcpAddress) -> PeerLink:
    return PeerLink(simulation.runtime(host), secret=SECRET, name=host, address=address)


def test_what_was_sent_takes_effect_once_at_most(seed: int) -> None:
    """Hosts crash, links break, partitions come and go; each call has one of three ends."""
    simulation = Simulation(seed)
    applied: list[bytes] = []

    async def on_request(name: str, head: bytes, body: memoryview) -> Answer:
        applied.append(head)
        await asyncio.sleep(0.002)
        return b"done " + head, [body]

    answered: set[bytes] = set()
    unsent: set[bytes] = set()
    unknown: set[bytes] = set()

    async def caller(own: PeerLink, number: int) -> None:
        for step in range(40):
            head = b"%d.%d" % (number, step)
            try:
                found, body = await own.call(head, [head * 1000], timeout=2.0)
                assert (found, bytes(body)) == (b"done " + head, head * 1000)
                answered.add(head)
            except OutcomeUnknownError:
                unknown.add(head)
            except UnavailableError:
                unsent.add(head)
            await asyncio.sleep(0.02)

    async def calls() -> None:
        own = link(simulation, "n1", TcpAddress("n2", PORT))
        await asyncio.gather(*(caller(own, number) for number in range(6)))
        await own.close()

    async def main() -> None:
        await simulation.on("n2", start(simulation, "n2", on_request))
        calling = simulation.start("n1", calls())
        await asyncio.sleep(0.1)
        simulation.break_connections("n1", "n2")
        await asyncio.sleep(0.2)
        simulation.crash("n2")
        await asyncio.sleep(0.1)
        await simulation.on("n2", start(simulation, "n2", on_request))
        await asyncio.sleep(0.2)
        simulation.partition("n2", "n1", one_way=True)
        await asyncio.sleep(5)
        simulation.heal()
        await calling

    simulation.run(main())
    assert len(applied) == len(set(applied)), "nothing is sent twice"
    assert answered <= set(applied)
    assert not unsent & set(applied), "what may be sent elsewhere was never begun"
    assert answered
    assert unknown
    assert len(answered) + len(unsent) + len(unknown) == 240


def test_a_paused_peer_is_gone_and_comes_back(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await simulation.on("n2", start(simulation, "n2", lambda _, head, body: (head, [body])))
        own = link(simulation, "n1", TcpAddress("n2", PORT))
        await own.call(b"", timeout=1)
        simulation.pause("n2")
        begun = simulation.time()
        with pytest.raises(OutcomeUnknownError):
            await own.call(b"", timeout=60)
        assert 2 < simulation.time() - begun < 5
        simulation.resume("n2")
        await asyncio.sleep(1)
        assert (await own.call(b"again", timeout=5))[0] == b"again"
        await own.close()

    simulation.run(main())


def test_a_unix_socket_ends_with_its_process_and_is_no_other_machines(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        await simulation.on("m1/w1", start(simulation, "m1/w1", lambda _, head, body: (head, ())))
        own = link(simulation, "m1/w2", UnixAddress("/run/peer"))
        other = link(simulation, "m2/w1", UnixAddress("/run/peer"))
        assert (await own.call(b"x", timeout=1))[0] == b"x"
        with pytest.raises(UnavailableError):
            await other.call(b"x", timeout=1)
        simulation.partition("m1", "m2")
        assert (await own.call(b"y", timeout=1))[0] == b"y"
        simulation.crash("m1/w1")
        with pytest.raises((UnavailableError, OutcomeUnknownError)):
            await own.call(b"z", timeout=1)
        with pytest.raises(UnavailableError):
            await own.call(b"z", timeout=1)
        await own.close()
        await other.close()

    simulation.run(main())


class Worker:
    """Answers each byte with itself, once, and moves the connection after every third."""

    def __init__(self, simulation: Simulation, host: str, other: str, served: list[int]) -> None:
        self._served = served
        runtime = simulation.runtime(host)
        self.server = PeerServer(
            runtime,
            secret=SECRET,
            name=host,
            on_request=lambda *_: (b"", ()),
            on_move=lambda *_: self.serve,
        )
        self.path = f"/run/{host}"
        self._link = PeerLink(
            runtime, secret=SECRET, name=host, address=UnixAddress(f"/run/{other}")
        )
        self._transport = runtime.transport

    async def start(self) -> None:
        await self.server.start_unix(self.path)
        await self._transport.listen("m1", PORT, self.serve, reuse_port=True)

    async def serve(self, connection: Connection) -> None:
        left, count = b"", 0
        while True:
            while left:
                self._served.append(left[0])
                connection.write([left[:1]])
                left, count = left[1:], count + 1
                if count % 3:
                    continue
                assert isinstance(connection, MovableConnection)
                try:
                    kept = await self._link.move(connection, b"", left, timeout=1)
                except OutcomeUnknownError:
                    return
                except UnavailableError:
                    continue
                if kept is None:
                    return
                connection, left = kept, b""
            data = await connection.receive()
            if not data:
                return
            left += data


def test_a_moved_connection_is_never_served_twice(seed: int) -> None:
    """One of the two workers dies while the connection goes to and fro."""
    simulation = Simulation(seed)
    served: list[int] = []
    sent = bytes(range(250))

    async def main() -> None:
        for own, other in (("m1/w1", "m1/w2"), ("m1/w2", "m1/w1")):
            await simulation.on(own, Worker(simulation, own, other, served).start())
        client = await simulation.runtime("n1").transport.connect("m1", PORT)
        received = bytearray()
        crash_at = 20 + seed * 20

        async def write() -> None:
            for byte in sent:
                client.write([bytes([byte])])
                await asyncio.sleep(0.001)

        writing = asyncio.ensure_future(write())
        crashed = False
        try:
            while len(received) < len(sent) and (data := await client.receive()):
                received += data
                if len(received) >= crash_at and not crashed:
                    crashed = True
                    simulation.crash("m1/w2", power_cut=False)
        except UnavailableError:
            pass
        await writing
        assert sent.startswith(received), "nothing is lost, repeated or out of order"
        assert len(received) >= crash_at
        assert served == sorted(set(served))
        client.close()

    simulation.run(main())
