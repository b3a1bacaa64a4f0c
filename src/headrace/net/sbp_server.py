"""Serves SBP over TCP: the listener of one role, its connections, and what they can cost.

`sbp_connection.py` has one connection and `sbp_requests.py` its requests. What a peer can cost is
bounded. What all connections hold (half a frame, requests, answers that are not taken) is bounded
as well: past the limit they wait for each other (`admission.py`), and who stands still is cut off.
Nodes of the cluster have a limit of their own, so that nobody else can make them wait. Whoever has
proved nothing goes first when all connections are taken. Silence closes a connection too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.net.addresses import format_address
from headrace.net.admission import HeldBytes, NowAndThen, pick
from headrace.net.sbp_connection import ServedConnection
from headrace.net.sbp_requests import ServerLimits, ServerState
from headrace.net.sbp_routes import Handler, Payload, Peer, Reply, Routes, Standing, build_routes
from headrace.net.tls import TlsAcceptor
from headrace.runtime.interfaces import Connection, Listener, Runtime
from headrace.wire.sbp.connection import ServerConnection
from headrace.wire.sbp.opcodes import Opcode

__all__ = [
    "Handler", "Payload", "Peer", "Reply", "Routes", "SbpServer", "ServerLimits", "Standing",
    "build_routes",
]  # fmt: skip


def _node(_: Peer) -> Standing:
    return Standing.NODE


class SbpServer:
    """Listens for one role. `authorize` raises UnauthorizedError; it is asked before decoding."""

    def __init__(
        self,
        runtime: Runtime,
        routes: Routes,
        *,
        authorize: Callable[[Opcode, Peer], None],
        standing: Callable[[Peer], Standing] = _node,
        secret: bytes | None = None,
        limits: ServerLimits | None = None,
        on_goaway: Callable[[Peer], None] | None = None,
        pressure: Callable[[], float] | None = None,
        tls: TlsAcceptor | None = None,
    ) -> None:
        """`standing` tells what a peer has proved so far, `pressure` how full the role is, from 0
        to 1: peers are then asked to pause. `tls` lets a connection begin with TLS, or insists on
        it."""
        self._state = ServerState(
            runtime=runtime,
            routes=routes,
            authorize=authorize,
            standing=standing,
            secret=secret,
            limits=limits or ServerLimits(),
            on_goaway=on_goaway,
            pressure=pressure,
            tls=tls,
        )
        self.runtime = runtime
        self.routes = routes
        self._limits = self._state.limits
        self._slots = NowAndThen()
        self._listener: Listener | None = None
        self._reaper: asyncio.Task[None] | None = None
        # Ordered, so that a simulated run repeats.
        self._connections: dict[ServedConnection, None] = {}
        self._closing = False
        self._refused = 0

    async def start(self, host: str, port: int) -> None:
        self._listener = await self.runtime.transport.listen(host, port, self._on_connection)
        self._reaper = asyncio.get_running_loop().create_task(self._reap(), name="sbp reaper")

    @property
    def address(self) -> str:
        assert self._listener is not None, "not started"
        return format_address(self._listener.host, self._listener.port)

    def statistics(self) -> dict[str, int]:
        return {
            "connections": len(self._connections),
            "requests_in_flight": sum(each.gate.count for each in self._connections),
            "request_bytes_in_flight": sum(each.gate.bytes for each in self._connections),
            "reply_bytes_held": sum(each.replies.bytes for each in self._connections),
            "requests": self._state.requests,
            "connections_refused": self._refused,
            "connections_cut_off": self._state.cut_off,
            "held_bytes": self._state.held_by_nodes.total + self._state.held_by_others.total,
            "answers_throttled": self._state.throttled,
        }

    async def close(self) -> None:
        """Stop accepting, say GOAWAY, finish what is in flight, close."""
        self._closing = True
        if self._listener is None:
            return
        self._listener.close()
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await asyncio.gather(*[each.retire() for each in self._connections])
        await self._listener.wait_closed()

    async def _on_connection(self, connection: Connection) -> None:
        if self._closing or not self._make_room():
            self._refused += 1
            connection.write(ServerConnection(self.routes.role).go_away())
            return
        served = ServedConnection(self._state, connection)
        self._connections[served] = None
        try:
            await served.run()
        finally:
            del self._connections[served]

    def _make_room(self) -> bool:
        """For one more connection; False when all are taken by peers that may stay."""
        if len(self._connections) < self._limits.connections_max:
            return True
        unproven = (Standing.STRANGER, Standing.GUEST)
        gone = pick(
            each for each in self._connections if each.standing in unproven and not each.cut
        )
        if gone is None:
            return False
        due = self._slots.is_due(self.runtime.clock.monotonic())
        gone.cut_off("all connections are taken", tell=due)
        return True

    async def _reap(self) -> None:
        """Retire connections that fell silent, end those that stand in others' way."""
        pools = (self._state.held_by_nodes, self._state.held_by_others)
        calm, pressed = min(1.0, self._limits.idle_timeout / 4), self._limits.pressure_timeout / 10
        while True:
            wanted = any(pool.is_wanted for pool in pools)
            await self.runtime.clock.sleep(min(calm, pressed) if wanted else calm)
            now = self.runtime.clock.monotonic()
            for served in list(self._connections):
                served.on_tick(now)
            for pool in pools:
                if pool.is_wanted:
                    self._relieve(pool, now)

    def _relieve(self, pool: HeldBytes, now: float) -> None:
        found = [each for each in self._connections if each.pool is pool and not each.cut]
        by_held = {each.partial: each for each in found} | {each.flight: each for each in found}
        for held in pool.slowest(by_held, now, self._limits.pressure_timeout):
            if not by_held[held].cut:
                by_held[held].cut_off("memory is short")
