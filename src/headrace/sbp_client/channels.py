"""Channels to peers that come and go, and the pieces of a payload.

A `ReconnectingChannel` stands for one peer. It connects when first used, forgets a channel that
broke or was told GOAWAY, and closes a forgotten one after its last answer. Writers that stay on one
channel are told of its GOAWAY. A `ChannelPool` keeps one per address.

A `PlacementChannel` stands for all placement managers of a cluster: calls go to whoever leads. A
placement manager that does not lead answers PM_NOT_LEADER and names the leader when it knows it.
`call` goes there at once, asks the others when nobody knows, and pauses between two rounds over all
of them, until its time is up. It stays with the leader it found. A call may be carried out twice
when an answer gets lost: what is asked of a placement manager is idempotent, or leaves at worst a
number unused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    NotLeaderError,
    RemoteProtocolError,
    UnavailableError,
)
from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import Channel, TcpChannel
from headrace.net.sbp_routes import Payload, Reply
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.wire.sbp.errors import error_of
from headrace.wire.sbp.messages import ClientRole, Message, Status
from headrace.wire.sbp.opcodes import Code

Connect: TypeAlias = Callable[[], Awaitable[Channel]]
"""Makes a channel to one peer, over TCP or in process; UnavailableError when it cannot."""


def tcp_connect(
    runtime: Runtime,
    address: str,
    *,
    client_id: str,
    role: ClientRole = ClientRole.CUSTOMER,
    credential: bytes = b"",
    tls: ClientTls | None = None,
) -> Connect:
    """Connections to one `host:port`, over TLS if `tls` is given."""

    async def connect() -> Channel:
        host, port = parse_address(address)
        return await TcpChannel.connect(
            runtime, host, port, client_id=client_id, role=role, credential=credential, tls=tls
        )

    return connect


class ReconnectingChannel:
    """One peer, over whichever channel is whole."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._channel: Channel | None = None
        self._connecting = asyncio.Lock()
        self._calls: dict[int, int] = {}  # calls in flight by id(channel)
        self._retired: dict[int, Channel] = {}
        self._closed = False
        self._listeners: dict[Callable[[Channel], None], None] = {}

    async def channel(self, *, timeout: float | None = None) -> Channel:
        """The channel in use, made if there is none."""
        if self._channel is not None:
            return self._channel
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._closed:
                    raise UnavailableError("link closed")
                if self._channel is None:
                    self._channel = await self._connect()
                    self._watch(self._channel)
                    await self._close_idle()
                return self._channel
        except TimeoutError:
            raise UnavailableError("not connected in time", refused=True) from None

    def on_goaway(self, told: Callable[[Channel], None]) -> Callable[[], None]:
        """Call `told` whenever a channel is told GOAWAY; returns what ends that."""
        self._listeners[told] = None
        return lambda: self._listeners.pop(told, None)

    def _watch(self, channel: Channel) -> None:
        if isinstance(channel, TcpChannel):
            channel.on_goaway = lambda: self._on_goaway(channel)

    def _on_goaway(self, channel: Channel) -> None:
        self.forget(channel)
        for told in list(self._listeners):
            told(channel)

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        """Like a channel's call; once more on a new channel when the old one never sent it."""
        used = self._channel
        try:
            channel = used or await self.channel(timeout=timeout)
            return await self.call_on(channel, code, message, payload, timeout=timeout)
        except UnavailableError as error:
            if used is None or not error.data.get("refused"):
                raise
        channel = await self.channel(timeout=timeout)
        return await self.call_on(channel, code, message, payload, timeout=timeout)

    async def call_on(
        self,
        channel: Channel,
        code: Code,
        message: Message,
        payload: Payload = (),
        *,
        timeout: float = 3.0,
    ) -> Reply:
        """Call on that very channel, with nothing awaited before it: calls keep their order."""
        key = id(channel)
        self._calls[key] = self._calls.get(key, 0) + 1
        try:
            return await channel.call(code, message, payload, timeout=timeout)
        except UnavailableError:
            self.forget(channel)
            raise
        finally:
            self._calls[key] -= 1
            if not self._calls[key]:
                del self._calls[key]
                if self._retired.pop(key, None) is not None:
                    await channel.close()

    def forget(self, channel: Channel) -> None:
        """Never use it again; calls in flight may still be answered (GOAWAY)."""
        if self._channel is channel:
            self._channel = None
            self._retired[id(channel)] = channel

    async def _close_idle(self) -> None:
        """Forgotten channels without a call, which would otherwise close after its answer."""
        for key in [key for key in self._retired if key not in self._calls]:
            await self._retired.pop(key).close()

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            self.forget(self._channel)
        retired = list(self._retired.values())
        self._retired.clear()
        for channel in retired:
            await channel.close()


class ChannelPool:
    """One `ReconnectingChannel` per address."""

    def __init__(self, connect_to: Callable[[str], Connect]) -> None:
        self._connect_to = connect_to
        self._peers: dict[str, ReconnectingChannel] = {}

    def to(self, address: str) -> ReconnectingChannel:
        if not address:
            raise UnavailableError("the peer has no known address")
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = ReconnectingChannel(self._connect_to(address))
        return peer

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()
        self._peers.clear()


class PieceReader:
    """Takes runs of bytes off a payload that arrives as any number of pieces, without copying."""

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self._pieces = pieces
        self._index = 0
        self._position = 0

    def take(self, length: int) -> list[Buffer]:
        """The next `length` bytes; a piece taken whole is handed over as the object it is."""
        taken: list[Buffer] = []
        while length > 0:
            if self._index == len(self._pieces):
                raise RemoteProtocolError("payload shorter than its lengths", missing=length)
            piece = self._pieces[self._index]
            left = len(piece) - self._position
            if length >= left:
                taken.append(piece if not self._position else memoryview(piece)[self._position :])
                self._index += 1
                self._position = 0
                length -= left
            else:
                end = self._position + length
                taken.append(memoryview(piece)[self._position : end])
                self._position = end
                length = 0
        return [piece for piece in taken if len(piece)]


PAUSE_MIN = 0.05
PAUSE_MAX = 0.5
ATTEMPT_MIN = 1.0
"""Seconds. One of several placement managers gets half of the call's time, but at least this much:
one that hangs must leave time for its successor."""
FOREIGN_MAX = 8
"""Leaders outside the configured addresses that are followed: peers choose their number."""


class PlacementChannel:
    """The placement managers of a cluster as one peer. All calls from one event loop."""

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
        self._peers: dict[str, ReconnectingChannel] = {}
        self._closed = asyncio.Event()

    @classmethod
    def single(cls, connect: Connect) -> PlacementChannel:
        """One placement manager, in this process or behind a connection."""
        channel = cls(("placement manager",), lambda _: connect)
        channel._redirected = False
        return channel

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
                    return await self._peer(address).call(code, message, timeout=timeout)
            except TimeoutError:
                return DeadlineError("no answer in time", opcode=code.name, peer=address)
            except HeadraceError as error:
                return error

        return await asyncio.gather(*(tell(address) for address in self.addresses))

    async def close(self) -> None:
        self._closed.set()
        for peer in self._peers.values():
            await peer.close()
        self._peers.clear()

    async def _attempt(
        self, target: str, code: Code, message: Message, payload: Payload, left: float, whole: float
    ) -> Reply:
        seconds = max(left, 0.001)
        if len(self.addresses) > 1:
            seconds = min(seconds, max(whole / 2, ATTEMPT_MIN))
        try:
            async with asyncio.timeout(seconds):  # connecting included
                reply = await self._peer(target).call(code, message, payload, timeout=seconds)
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
        foreign = [known for known in self._peers if known not in self.addresses]
        known = hint in self._peers or hint in self.addresses
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

    def _peer(self, address: str) -> ReconnectingChannel:
        if self._closed.is_set():
            raise UnavailableError("links closed", refused=True)
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = ReconnectingChannel(
                self._counted(self._connect_to(address))
            )
        return peer

    def _counted(self, connect: Connect) -> Connect:
        async def connect_and_count() -> Channel:
            channel = await connect()
            self.connections += 1
            return channel

        return connect_and_count
