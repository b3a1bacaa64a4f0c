"""Links between brokers on every runtime: over unix sockets, real and simulated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    InvalidArgumentError,
    LocalProtocolError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from headrace.net.peer_channel import PeerBytes, PeerLimits
from headrace.net.peer_link import PeerLink, TcpAddress, UnixAddress
from headrace.net.peer_server import Answer, PeerServer
from headrace.runtime.interfaces import Buffer, Connection, MovableConnection
from headrace.wire.peer.frames import PING, Kind, encode_frame
from tests.unit.runtime.worlds import WORLDS, World, make_world

SECRET = b"s" * 32
QUICK = PeerLimits(ping_seconds=0.1, silent_seconds=0.4, login_seconds=0.5, close_seconds_max=0.3)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return make_world(request.param, tmp_path)


class Toy:
    """Answers in the way that a request's head says."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.path = f"{world.folder}/peer"
        self.begun: list[bytes] = []
        self.notices: list[tuple[str, bytes, bytes]] = []
        self.events: list[str] = []
        self.held = asyncio.Event()
        self.most = 0
        self.now = 0

    def on_request(self, name: str, head: bytes, body: memoryview) -> Answer | Awaitable[Answer]:
        if head.startswith(b"at once"):
            self.begun.append(head)
            return b"from " + name.encode(), [body, b"!"]
        return self._later(head, body)

    async def _later(self, head: bytes, body: memoryview) -> Answer:
        self.begun.append(head)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if head.startswith(b"hold"):
                await self.held.wait()
            if head.startswith(b"sleep"):
                await self.world.runtime.clock.sleep(0.05)
            if head == b"fail":
                raise NotFoundError("nothing here")
            if head == b"break":
                raise ValueError("planned")
            if head == b"large":
                return b"", [bytes(1 << 20)] * int(bytes(body))
        finally:
            self.now -= 1
        return head, [body]

    def server(self, **options: Any) -> PeerServer:
        given: dict[str, Any] = {"secret": SECRET, "limits": QUICK, **options}
        return PeerServer(
            self.world.runtime,
            name="server",
            on_request=self.on_request,
            on_notice=lambda name, head, body: self.notices.append((name, head, bytes(body))),
            on_linked=lambda name: self.events.append(f"+{name}"),
            on_unlinked=lambda name: self.events.append(f"-{name}"),
            **given,
        )

    def link(self, **options: Any) -> PeerLink:
        given: dict[str, Any] = {
            "secret": SECRET, "limits": QUICK, "name": "client",
            "address": UnixAddress(self.path), **options,
        }  # fmt: skip
        return PeerLink(self.world.runtime, **given)

    @asynccontextmanager
    async def linked(self, **options: Any) -> AsyncIterator[tuple[PeerServer, PeerLink]]:
        server, link = self.server(), self.link(**options)
        await server.start_unix(self.path)
        try:
            yield server, link
        finally:
            self.held.set()
            await link.close()
            await server.close()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await self.world.runtime.clock.sleep(0.005)


async def call(link: PeerLink, head: bytes, *body: Buffer, timeout: float = 5.0) -> Any:
    found, data = await link.call(head, body, timeout=timeout)
    return found, bytes(data)


def test_calls_are_answered(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        async with toy.linked() as (server, link):
            assert not link.is_linked
            assert await call(link, b"at once", b"bo", b"dy") == (b"from client", b"body!")
            assert (link.is_linked, link.peer_name) == (True, "server")
            assert await call(link, b"later", b"body") == (b"later", b"body")
            assert await call(link, b"") == (b"", b"")
            long = bytes(range(256)) * 20_000
            assert await call(link, b"long", long) == (b"long", long)
            assert await call(link, b"at once", long) == (b"from client", long + b"!")
            link.notify(b"notice", [b"x", b"y"])
            await call(link, b"")
            assert toy.notices == [("client", b"notice", b"xy")]
            assert server.statistics()["requests_in_flight"] == 0
            assert server.statistics()["bytes_in_flight"] == 0
            assert link.statistics()["bytes_in_flight"] == 0
            assert toy.events == ["+client"]
        assert toy.events == ["+client", "-client"]

    world.run(main())


def test_many_calls_begin_in_their_order_and_end_in_any(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        async with toy.linked() as (_, link):
            await call(link, b"at once")
            toy.begun.clear()
            heads = [
                (b"at once %d", b"sleep %d", b"other %d")[number % 3] % number
                for number in range(300)
            ]
            ended: list[bytes] = []

            async def one(head: bytes) -> None:
                await call(link, head, bytes(len(head)))
                ended.append(head)

            await asyncio.gather(*map(one, heads))
            assert toy.begun == heads
            assert sorted(ended) == sorted(heads)
            assert ended.index(b"sleep 1") > ended.index(b"other 299")

    world.run(main())


def test_a_handler_that_breaks_leaves_an_unknown_outcome(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        toy = Toy(world)
        async with toy.linked() as (_, link):
            with pytest.raises(OutcomeUnknownError, match="NotFoundError: nothing here"):
                await call(link, b"fail")
            with pytest.raises(OutcomeUnknownError, match="planned"):
                await call(link, b"break")
            with pytest.raises(OutcomeUnknownError, match="too large"):
                await call(link, b"large", b"80")
            assert await call(link, b"on") == (b"on", b"")
            with pytest.raises(LocalProtocolError):
                await call(link, b"", *[bytes(1 << 20)] * 80)
            assert link.statistics()["requests_in_flight"] == 0

    world.run(main())
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


def test_nobody_there_is_not_an_unknown_outcome(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        link = toy.link()
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await call(link, b"at once")
        link.notify(b"lost")
        assert link.statistics()["notices_dropped"] == 1
        server = toy.server()
        await server.start_unix(toy.path)
        assert await call(link, b"at once") == (b"from client", b"!")
        await link.close()
        with pytest.raises(UnavailableError):
            await call(link, b"at once")
        await server.close()

    world.run(main())


def test_a_lost_link_is_an_unknown_outcome_at_once_and_opens_again(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        lost: list[str] = []
        async with toy.linked(on_unlinked=lambda: lost.append("lost")) as (server, link):
            waiting = asyncio.ensure_future(call(link, b"hold"))
            await toy.until(lambda: toy.begun)
            await server.close()
            with pytest.raises(OutcomeUnknownError):
                await waiting
            assert lost == ["lost"]
            with pytest.raises(UnavailableError):
                await call(link, b"at once")
            again = toy.server()
            await again.start_unix(toy.path)
            assert await call(link, b"at once") == (b"from client", b"!")
            assert link.statistics()["links_opened"] == 2
            await again.close()

    world.run(main())


def test_deadlines(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        limits = PeerLimits(requests_in_flight_max=1, close_seconds_max=0.1)
        async with toy.linked(limits=limits) as (_, link):
            first = asyncio.ensure_future(call(link, b"hold 1", timeout=0.3))
            await toy.until(lambda: toy.begun)
            with pytest.raises(UnavailableError):  # it waited for its turn, and was never sent
                await call(link, b"hold 2", timeout=0.1)
            with pytest.raises(OutcomeUnknownError):
                await first
            assert toy.begun == [b"hold 1"]
            toy.held.set()
            assert await call(link, b"on") == (b"on", b""), "a late answer hurts nobody"

    world.run(main())


def test_calls_wait_when_too_much_is_in_flight(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        shared = PeerBytes(100_000)
        limits = PeerLimits(requests_in_flight_max=4)
        async with toy.linked(limits=limits, bytes_in_flight=shared) as (_, link):
            await asyncio.gather(*(call(link, b"sleep", b"x") for _ in range(20)))
            assert toy.most == 4
            toy.most = 0
            other = toy.link(bytes_in_flight=shared, name="other")
            await asyncio.gather(
                *(call(each, b"sleep", bytes(45_000)) for each in (link, other) for _ in range(6))
            )
            assert toy.most <= 2
            assert shared.total == 0
            assert await call(link, b"one of any size", bytes(1 << 20))
            await other.close()

    world.run(main())


def test_a_server_does_not_read_what_it_has_no_room_for(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        bounds = PeerLimits(requests_in_flight_max=2, ping_seconds=0.1, silent_seconds=0.4)
        server = toy.server(limits=bounds, bytes_in_flight=PeerBytes(300_000))
        await server.start_unix(toy.path)
        link = toy.link(limits=QUICK)
        calls = [asyncio.ensure_future(call(link, b"hold", bytes(90_000))) for _ in range(30)]
        await toy.until(lambda: len(toy.begun) >= 2)
        await world.runtime.clock.sleep(1.0)  # longer than silence is put up with
        assert len(toy.begun) < 10
        assert server.statistics()["bytes_in_flight"] < 500_000
        toy.held.set()
        assert len(await asyncio.gather(*calls)) == 30
        await link.close()
        await server.close()
        assert server.statistics()["bytes_in_flight"] == 0

    world.run(main())


def test_only_holders_of_the_secret_are_served(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        async with toy.linked() as (server, link):
            stranger = toy.link(secret=b"other" * 8)
            with pytest.raises(UnavailableError):
                await call(stranger, b"at once")
            await stranger.close()
            impostor = toy.link(expected="somebody else")
            with pytest.raises(UnavailableError, match="another peer"):
                await call(impostor, b"at once")
            await impostor.close()
            raw = await world.runtime.transport.connect_unix(toy.path)
            raw.write(encode_frame(Kind.REQUEST, 1, b"at once"))
            assert await ended(raw)
            quiet = await world.runtime.transport.connect_unix(toy.path)
            assert await ended(quiet), "a login takes its time"
            assert toy.begun == []
            assert server.statistics()["links_refused"] >= 3
            assert await call(link, b"at once")

    world.run(main())


async def ended(connection: Connection) -> bool:
    try:
        while await connection.receive():
            pass
    except UnavailableError:
        pass
    connection.close()
    return True


def test_a_server_that_does_not_hold_the_secret_gets_no_request(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        server = toy.server(secret=b"other" * 8)
        await server.start_unix(toy.path)
        link = toy.link()
        with pytest.raises(UnavailableError):
            await call(link, b"at once")
        assert toy.begun == []
        await link.close()
        await server.close()

    world.run(main())


def test_idle_links_stay_and_silent_peers_are_gone(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        async with toy.linked() as (_, link):
            await call(link, b"at once")
            await world.runtime.clock.sleep(1.5)
            assert link.is_linked
            assert toy.events == ["+client"]

        async def mute(connection: Connection) -> None:
            """Lets a client log in, and says no more."""
            from headrace.net.peer_channel import PeerChannel

            channel = PeerChannel(connection, world.runtime.clock, QUICK)
            await channel.log_in(SECRET, "mute", world.runtime.random, is_opener=False)
            await ended(connection)

        listener = await world.runtime.transport.listen_unix(toy.path, mute)
        begun = world.runtime.clock.monotonic()
        silent = toy.link()
        with pytest.raises(OutcomeUnknownError):
            await call(silent, b"hello?", timeout=30)
        assert world.runtime.clock.monotonic() - begun < 3
        await silent.close()
        listener.close()
        await listener.wait_closed()

    world.run(main())


def test_bad_bytes_end_a_link(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        from headrace.net.peer_channel import PeerChannel

        toy = Toy(world)
        async with toy.linked() as (server, link):
            for bad in (b"\xff" * 40, b"".join(encode_frame(Kind.ANSWER, 1)), PING[:-1] + b"\1"):
                raw = await world.runtime.transport.connect_unix(toy.path)
                channel = PeerChannel(raw, world.runtime.clock, QUICK)
                await channel.log_in(SECRET, "bad", world.runtime.random, is_opener=True)
                raw.write([bad])
                assert await ended(raw)
            await toy.until(lambda: toy.events.count("-bad") == 3)
            assert await call(link, b"at once")
            await toy.until(lambda: server.statistics()["bytes_in_flight"] == 0)

    world.run(main())


def test_closing_answers_what_is_in_progress_and_refuses_the_rest(world: World) -> None:
    async def main() -> None:
        toy = Toy(world)
        async with toy.linked() as (server, link):
            before = asyncio.ensure_future(call(link, b"sleep"))
            await toy.until(lambda: toy.begun)
            closing = asyncio.ensure_future(server.close())
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError, match="closing"):
                await call(link, b"at once")
            assert await before == (b"sleep", b"")
            await closing

    world.run(main())


# -- connections that move


class Served:
    """Echoes lines; a line `go` moves the connection to the other server."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.path = f"{world.folder}/{name}"
        self.other: PeerLink
        self.heads: list[bytes] = []
        self.refuses = False
        self.outcomes: list[str] = []
        self.server = PeerServer(
            world.runtime, secret=SECRET, name=name, limits=QUICK,
            on_request=lambda *_: (b"", ()), on_move=self.on_move,
        )  # fmt: skip

    def on_move(self, name: str, head: bytes) -> Any:
        if self.refuses:
            raise UnavailableError("no room")
        self.heads.append(head)
        return self.serve

    async def serve(self, connection: Connection) -> None:
        rest = b""
        while True:
            *lines, rest = rest.split(b"\n")
            for position, line in enumerate(lines):
                if line == b"go":
                    left = b"\n".join([*lines[position + 1 :], rest])
                    assert isinstance(connection, MovableConnection)
                    try:
                        kept = await self.other.move(connection, b"head", left, timeout=5)
                    except UnavailableError:
                        self.outcomes.append("unavailable")
                        kept, rest = connection, left
                    except OutcomeUnknownError:
                        self.outcomes.append("unknown")
                        return
                    else:
                        self.outcomes.append("moved" if kept is None else "kept")
                    if kept is None:
                        return
                    if kept is not connection:
                        rest = b""
                    connection = kept
                    break
                connection.write([self.name.encode(), b" ", line, b"\n"])
            else:
                data = await connection.receive()
                if not data:
                    connection.close()
                    return
                rest += data


@asynccontextmanager
async def pair(world: World) -> AsyncIterator[tuple[Served, Served, Connection]]:
    one, two = Served(world, "one"), Served(world, "two")
    for each, other in ((one, two), (two, one)):
        await each.server.start_unix(each.path)
        each.other = PeerLink(
            world.runtime, secret=SECRET, name=each.name, limits=QUICK,
            address=UnixAddress(other.path),
        )  # fmt: skip
    listener = await world.runtime.transport.listen("127.0.0.1", 0, one.serve)
    client = await world.runtime.transport.connect("127.0.0.1", listener.port)
    try:
        yield one, two, client
    finally:
        client.close()
        await client.wait_closed()
        listener.close()
        for each in (one, two):
            await each.other.close()
            await each.server.close()
        await listener.wait_closed()


async def lines(connection: Connection, count: int) -> Sequence[bytes]:
    received = b""
    while received.count(b"\n") < count:
        data = await connection.receive()
        assert data, f"ended after {received!r}"
        received += data
    return received.splitlines()


def test_a_connection_moves_to_and_fro(world: World) -> None:
    async def main() -> None:
        async with pair(world) as (one, two, client):
            client.write([b"a\ngo\nb\ngo\nc\n", b"go\nd\ngo\ngo\ne\n"])
            assert await lines(client, 5) == [b"one a", b"two b", b"one c", b"two d", b"two e"]
            while len(one.outcomes) < 3:
                await world.runtime.clock.sleep(0.01)  # the acknowledgement comes later
            assert one.outcomes == ["moved"] * 3
            assert two.heads == [b"head"] * 3

    world.run(main())


def test_who_refuses_a_connection_leaves_it_with_its_owner(world: World) -> None:
    async def main() -> None:
        async with pair(world) as (one, two, client):
            two.refuses = True
            client.write([b"a\ngo\nb\n"])
            assert await lines(client, 2) == [b"one a", b"one b"]
            assert one.outcomes == ["kept"]
            two.refuses = False
            client.write([b"go\nc\n"])
            assert await lines(client, 1) == [b"two c"]

    world.run(main())


def test_without_a_link_a_connection_stays_untouched(world: World) -> None:
    async def main() -> None:
        async with pair(world) as (one, two, client):
            await two.server.close()
            client.write([b"a\ngo\nb\n"])
            assert await lines(client, 2) == [b"one a", b"one b"]
            assert one.outcomes == ["unavailable"]
            far = PeerLink(
                world.runtime, secret=SECRET, name="x", address=TcpAddress("127.0.0.1", 1)
            )
            assert isinstance(client, MovableConnection)
            with pytest.raises(InvalidArgumentError):
                await far.move(client, b"", timeout=1)

    world.run(main())


def test_without_an_acknowledgement_a_connection_is_closed(world: World) -> None:
    async def main() -> None:
        async with pair(world) as (one, two, client):
            client.write([b"a\n"])
            assert await lines(client, 1) == [b"one a"]
            await one.other.call(b"", timeout=5)
            # The other side takes the connection, and its answer gets lost.
            link = next(iter(two.server._links))
            link._send = lambda *_: link.channel.connection.abort()  # type: ignore[method-assign]
            client.write([b"go\nb\n"])
            try:
                left = b""
                while data := await client.receive():
                    left += data
            except UnavailableError:
                pass
            assert left in (b"", b"two b\n"), "served once at most"
            assert one.outcomes == ["unknown"]

    world.run(main())
