"""The TCP listener of a broker that may stand by: it stays open whoever leads.

While this broker leads, connections are served here. While another leads, their bytes go to it and
back, unread, TLS included, so that a client that knows nothing of leaders works with any broker;
one that asks for the cluster's metadata learns the leader's address from the leader itself. While
nobody leads, connections wait a while for somebody to.

The leader is asked for anew for each connection, at the placement manager, which knows no two: two
brokers that took each other for the leader would hand a connection to and fro for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from headrace.errors import HeadraceError, UnavailableError
from headrace.net.addresses import format_address, parse_address
from headrace.net.relay import relay
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Connection, Listener, OnConnection, Runtime

log = get_logger(__name__)

_ASK_SECONDS = 0.1
_CONNECT_SECONDS = 1.0


class Door:
    """`start`, then `serve_here` and `send_away` in turns, finally `close`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        find_leader: Callable[[], Awaitable[str]],
        wait_seconds: float,
        relays_max: int,
    ) -> None:
        """`find_leader` gives the address of another broker that leads now, or nothing."""
        self._runtime = runtime
        self._find_leader = find_leader
        self._wait_seconds = wait_seconds
        self._relays_max = relays_max
        self._listener: Listener | None = None
        self._serve: OnConnection | None = None
        self._changed = asyncio.Event()
        self._waiting = 0
        self._relays: dict[asyncio.Task[None], str] = {}
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
        deadline = self._runtime.clock.monotonic() + self._wait_seconds
        while not self._closed:
            if self._serve is not None:
                await self._serve(connection)
                return
            leader = await self._ask()
            if leader and await self._relay(connection, leader):
                return
            if self._runtime.clock.monotonic() >= deadline:
                log.info("nobody leads: connection ended", peer=connection.peer)
                return
            await self._pause()

    async def _ask(self) -> str:
        try:
            return await self._find_leader()
        except HeadraceError:
            return ""  # the placement manager is away; it may come back in time

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
        if len(self._relays) >= self._relays_max:
            log.warning("too many connections for the leader", peer=connection.peer)
            return True
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
