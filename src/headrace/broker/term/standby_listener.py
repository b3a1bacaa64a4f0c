"""The TCP listener of a broker that may stand by: it stays open whoever leads.

While this broker leads, connections are served here. While another leads, `relay` passes their
bytes to it and back, unread, TLS included, until either side ends; so a client that knows nothing
of leaders works with any broker. A client that asks for the cluster's metadata learns the leader's
address from the leader itself. While nobody leads, connections wait a while for a leader.

Who leads is asked at the placement manager, which knows no two, and never before the connection
came: two brokers that took each other for the leader would hand it to and fro for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from headrace.errors import HeadraceError, UnavailableError
from headrace.net.addresses import format_address, parse_address
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Connection, Listener, OnConnection, Runtime

_CLOSE_SECONDS = 5.0


async def relay(first: Connection, second: Connection) -> None:
    """Memory is bounded: a side that does not keep up stops the reading of the other."""
    pumps = [asyncio.create_task(_pump(first, second)), asyncio.create_task(_pump(second, first))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Nothing is awaited before both are closing: whoever cancels twice leaves none open.
        for pump in pumps:
            pump.cancel()
        first.close()  # what is queued is still sent
        second.close()
        await _wait_ended(pumps, first, second)


async def _pump(source: Connection, target: Connection) -> None:
    try:
        while data := await source.receive():
            target.write((data,))
            await target.drain()
    except HeadraceError:
        return  # one of them broke: both end


async def _wait_ended(pumps: list[asyncio.Task[None]], *connections: Connection) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await asyncio.gather(*pumps, return_exceptions=True)
            await asyncio.gather(*(connection.wait_closed() for connection in connections))
    except TimeoutError:
        pass  # a peer that takes nothing any more
    finally:
        for connection in connections:
            connection.abort()


log = get_logger(__name__)

_ASK_SECONDS = 0.1
_CONNECT_SECONDS = 1.0


class StandbyListener:
    """`start`, then `serve_here` and `send_away` in turns, finally `close`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        find_leader: Callable[[], Awaitable[str]],
        wait_seconds: float,
        guests_max: int,
    ) -> None:
        """`find_leader` gives the address of another broker that leads now, or nothing.
        `guests_max` bounds the connections that wait or are relayed."""
        self._runtime = runtime
        self._find_leader = find_leader
        self._wait_seconds = wait_seconds
        self._guests_max = guests_max
        self._listener: Listener | None = None
        self._serve: OnConnection | None = None
        self._changed = asyncio.Event()
        self._waiting = 0
        self._relays: dict[asyncio.Task[None], str] = {}
        self._asking = asyncio.Lock()
        self._asked = float("-inf")  # when the last question was put
        self._answer = ""
        self._closed = False

    async def start(self, host: str, port: int) -> None:
        self._listener = await self._runtime.transport.listen(host, port, self._on_connection)

    @property
    def listener(self) -> Listener:
        assert self._listener is not None, "not started"
        return self._listener

    @property
    def address(self) -> str:
        return format_address(self.listener.host, self.listener.port)

    def serve_here(self, serve: OnConnection) -> None:
        """This broker leads: connections are its own, those to the last leader end."""
        self._serve = serve
        self._change()
        self.end_relays()

    def send_away(self) -> None:
        self._serve = None

    def end_relays(self, *, but_to: str = "") -> None:
        for task, address in self._relays.items():
            if address != but_to:
                task.cancel()

    def statistics(self) -> dict[str, int]:
        return {"relayed_connections": len(self._relays), "waiting_connections": self._waiting}

    async def close(self) -> None:
        self._closed = True
        self._serve = None
        if self._listener is not None:
            self._listener.close()
        self._change()
        self.end_relays()
        if self._relays:
            await asyncio.wait(list(self._relays))
        if self._listener is not None:
            await self._listener.wait_closed()

    # -- connections

    async def _on_connection(self, connection: Connection) -> None:
        if self._serve is not None:
            await self._serve(connection)
        elif self._waiting + len(self._relays) >= self._guests_max:
            log.warning("too many connections for the leader", peer=connection.peer)
        else:
            await self._pass_on(connection)

    async def _pass_on(self, connection: Connection) -> None:
        monotonic = self._runtime.clock.monotonic
        came = monotonic()
        deadline = came + self._wait_seconds
        while not self._closed:
            leader = await self._find(since=max(came, monotonic() - _ASK_SECONDS))
            if self._serve is not None:
                await self._serve(connection)
                return
            if leader and await self._relay(connection, leader):
                return
            if monotonic() >= deadline:
                log.info("nobody leads: connection ended", peer=connection.peer)
                return
            await self._pause()

    async def _find(self, *, since: float) -> str:
        """Who leads, asked after that time; connections that wait share their questions."""
        self._waiting += 1
        try:
            async with self._asking:
                if self._asked < since:
                    self._asked = self._runtime.clock.monotonic()
                    try:
                        self._answer = await self._find_leader()
                    except HeadraceError:
                        self._answer = ""  # the placement manager is away; it may come back
                return self._answer
        finally:
            self._waiting -= 1

    async def _pause(self) -> None:
        self._waiting += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_SECONDS):
                    await self._changed.wait()
        finally:
            self._waiting -= 1

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _relay(self, connection: Connection, leader: str) -> bool:
        """False when the leader was not reached: it may be gone by now."""
        try:
            host, port = parse_address(leader)
            upstream = await self._runtime.transport.connect(host, port, timeout=_CONNECT_SECONDS)
        except UnavailableError:
            return False
        task = asyncio.create_task(relay(connection, upstream), name="relay to the leader")
        self._relays[task] = leader
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.wait([task])
            del self._relays[task]
        return True
