"""The placement managers of a cluster, as one peer: calls go to whoever leads.

A placement manager that does not lead answers PM_NOT_LEADER and names the leader when it knows it.
`call` goes there at once, asks the others when nobody knows, and pauses between two rounds over all
of them, until its time is up. It stays with the leader it found.

A call may be carried out twice when an answer gets lost: what is asked of a placement manager is
idempotent, or leaves at worst a number unused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.errors import DeadlineError, HeadraceError, NotLeaderError, UnavailableError
from headrace.net.sbp_channel import Channel
from headrace.net.sbp_routes import Payload, Reply
from headrace.sbp_client.channels import Connect, Link
from headrace.wire.sbp.errors import error_of
from headrace.wire.sbp.messages import Message, Status
from headrace.wire.sbp.opcodes import Code

PAUSE_MIN = 0.05
PAUSE_MAX = 0.5
ATTEMPT_MIN = 1.0
"""Seconds. One of several placement managers gets half of the call's time, but at least this much:
one that hangs must leave time for its successor."""
FOREIGN_MAX = 8
"""Leaders outside the configured addresses that are followed: peers choose their number."""


class PlacementLinks:
    """One link per placement manager. All calls from one event loop."""

    def __init__(self, addresses: Sequence[str], connect_to: Callable[[str], Connect]) -> None:
        """`addresses` as configured; leaders may name themselves by others."""
        if not addresses:
            raise ValueError("no placement manager given")
        self.addresses = tuple(dict.fromkeys(addresses))
        self.leader = ""
        """Who led when last heard of; empty while unknown."""
        self.connections = 0
        """Made so far: one more means that somebody may have restarted."""
        self._connect_to = connect_to
        self._redirected = True
        self._order = list(self.addresses)  # whom to ask first; the silent ones stand last
        self._links: dict[str, Link] = {}
        self._closed = asyncio.Event()

    @classmethod
    def single(cls, connect: Connect) -> PlacementLinks:
        """One placement manager, in this process or behind a connection."""
        links = cls(("placement manager",), lambda _: connect)
        links._redirected = False
        return links

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float
    ) -> Reply:
        """The leader's answer; what it refuses in its status is the caller's to read.

        NotLeaderError, UnavailableError or DeadlineError when no leader answered in time. With one
        address there is nobody else to ask: its errors come back at once.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        target = self.leader or self._order[0]
        tried: set[str] = set()
        pause = PAUSE_MIN
        while True:
            left = deadline - loop.time()
            try:
                reply = await self._attempt(target, code, message, payload, left, timeout)
                self.leader = target
                return reply
            except asyncio.CancelledError:
                self._on_refused(target, DeadlineError())  # our caller's patience was shorter
                raise
            except (NotLeaderError, UnavailableError, DeadlineError) as error:
                self._on_refused(target, error)
                tried.add(target)
                target = self._next(error, tried)
                if self._nowhere_else(error) or loop.time() >= deadline:
                    raise
                if not target:
                    if self._closed.is_set() or loop.time() + pause >= deadline:
                        raise
                    await self._pause(pause)
                    pause = min(2 * pause, PAUSE_MAX)
                    tried.clear()
                    target = self.leader or self._order[0]

    async def broadcast(
        self, code: Code, message: Message, *, timeout: float
    ) -> list[Reply | HeadraceError]:
        """Tell all of them, leading or not; one outcome each, in the order of the addresses."""

        async def tell(address: str) -> Reply | HeadraceError:
            try:
                async with asyncio.timeout(timeout):
                    return await self._link(address).call(code, message, timeout=timeout)
            except TimeoutError:
                return DeadlineError("no answer in time", opcode=code.name, peer=address)
            except HeadraceError as error:
                return error

        return await asyncio.gather(*(tell(address) for address in self.addresses))

    async def close(self) -> None:
        self._closed.set()
        for link in self._links.values():
            await link.close()
        self._links.clear()

    async def _attempt(
        self, target: str, code: Code, message: Message, payload: Payload, left: float, whole: float
    ) -> Reply:
        seconds = max(left, 0.001)
        if len(self.addresses) > 1:
            seconds = min(seconds, max(whole / 2, ATTEMPT_MIN))
        try:
            async with asyncio.timeout(seconds):  # connecting included
                reply = await self._link(target).call(code, message, payload, timeout=seconds)
        except TimeoutError:
            raise DeadlineError("no answer in time", opcode=code.name, peer=target) from None
        status = getattr(reply.message, "status", None)
        if isinstance(status, Status) and status.code:
            error = error_of(status)
            if isinstance(error, NotLeaderError):
                raise error
        return reply

    def _on_refused(self, target: str, error: HeadraceError) -> None:
        if self.leader == target:
            self.leader = ""
        if target in self._order and not isinstance(error, NotLeaderError):
            self._order.remove(target)
            self._order.append(target)

    def _nowhere_else(self, error: HeadraceError) -> bool:
        return len(self.addresses) == 1 and not self._hint(error)

    def _hint(self, error: HeadraceError) -> str:
        hint = error.data.get("leader") if isinstance(error, NotLeaderError) else ""
        if not self._redirected or not isinstance(hint, str) or not hint:
            return ""
        foreign = [known for known in self._links if known not in self.addresses]
        known = hint in self._links or hint in self.addresses
        return hint if known or len(foreign) < FOREIGN_MAX else ""

    def _next(self, error: HeadraceError, tried: set[str]) -> str:
        """Whom to ask in this round; nobody when all were asked."""
        for address in (self._hint(error), self.leader, *self._order):
            if address and address not in tried:
                return address
        return ""

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    def _link(self, address: str) -> Link:
        if self._closed.is_set():
            raise UnavailableError("links closed", refused=True)
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(self._counted(self._connect_to(address)))
        return link

    def _counted(self, connect: Connect) -> Connect:
        async def connect_and_count() -> Channel:
            channel = await connect()
            self.connections += 1
            return channel

        return connect_and_count
