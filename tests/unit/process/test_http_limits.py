"""The HTTP port with more connections, and more requests, than it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.process.http_server import HttpLimits, WebServer
from tests.unit.net.sbp_fixtures import until

GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n"


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, text: str) -> None:
        self.writer.write(text.encode())

    async def status(self) -> int:
        """Of the next answer; 0 when the connection ended before it."""
        try:
            async with asyncio.timeout(20):
                line = await self.reader.readline()
        except ConnectionError:
            return 0
        return int(line.split()[1]) if line else 0

    async def ended(self) -> bool:
        with suppress(ConnectionError):
            async with asyncio.timeout(20):
                while await self.reader.read(1 << 16):
                    pass
        return True

    async def close(self) -> None:
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class World:
    def __init__(self, web: WebServer, release: asyncio.Event) -> None:
        self.web, self.release = web, release
        self.peers: list[Peer] = []

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_connection(*self.web.address))
        self.peers.append(peer)
        return peer

    async def get(self, path: str) -> int:
        peer = await self.peer()
        peer.send(GET.format(path, "Connection: close\r\n"))
        return await peer.status()


@asynccontextmanager
async def serving(limits: HttpLimits) -> AsyncIterator[World]:
    release = asyncio.Event()

    async def page(request: Request) -> Response:
        return PlainTextResponse("page")

    async def slow(request: Request) -> Response:
        await release.wait()
        return PlainTextResponse("slow")

    async def upload(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def large(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(64):
                yield bytes(1 << 20)
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    routes = [Route("/page", page), Route("/health", page), Route("/slow", slow)]
    routes += [Route("/upload", upload, methods=["POST"]), Route("/large", large)]
    web = WebServer(Starlette(routes=routes), limits=limits)
    await web.start("127.0.0.1", 0)
    world = World(web, release)
    try:
        yield world
    finally:
        release.set()
        for peer in world.peers:
            await peer.close()
        await web.close()


async def test_idle_connections_keep_nobody_out() -> None:
    async with serving(HttpLimits(connections_max=20, idle_seconds=60)) as world:
        idle = [await world.peer() for _ in range(30)]
        half = [await world.peer() for _ in range(5)]
        for peer in half:
            peer.send("GET /page HTT")
        for _ in range(3):
            assert [await world.get("/health"), await world.get("/page")] == [200, 200]
        assert await idle[0].ended()  # who has waited longest made room


async def test_a_connection_that_asks_nothing_ends_soon() -> None:
    async with serving(HttpLimits(idle_seconds=0.4, stalled_seconds=0.4)) as world:
        silent, drip, kept, body, reader = [await world.peer() for _ in range(5)]
        waiting = await world.peer()
        waiting.send(GET.format("/slow", ""))
        kept.send(GET.format("/page", ""))
        assert await kept.status() == 200
        body.send("POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
        reader.send(GET.format("/large", ""))
        dripping = asyncio.create_task(drip.ended())
        while not dripping.done():
            drip.send("G")
            await asyncio.sleep(0.05)
        assert await silent.ended()
        assert await kept.ended()
        assert await body.ended()
        await until(lambda: _is_over(reader))
        world.release.set()
        assert await waiting.status() == 200  # whoever waits for us is not idle


def _is_over(reader: Peer) -> bool:
    """Nothing of it is read, so its end shows when something is written."""
    reader.send("x")
    return reader.writer.transport.is_closing()


async def test_how_the_server_is_can_be_asked_when_it_is_busy() -> None:
    async with serving(HttpLimits(requests_max=3)) as world:
        busy = [await world.peer() for _ in range(3)]
        for peer in busy:
            peer.send(GET.format("/slow", ""))
        async with asyncio.timeout(20):
            while await world.get("/page") != 503:
                pass
        assert await world.get("/health") == 200
        world.release.set()
        assert [await peer.status() for peer in busy] == [200] * 3
        assert await world.get("/page") == 200
