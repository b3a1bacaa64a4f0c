"""Channels to peers that come and go, and the pieces of a payload.

A `Link` stands for one peer. It connects when first used, forgets a channel that broke or was told
GOAWAY, and closes a forgotten one after its last answer. Writers that stay on one channel are told
of its GOAWAY. `Links` keeps one link per address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from headrace.errors import RemoteProtocolError, UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import Channel, TcpChannel
from headrace.net.sbp_server import Payload, Reply
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.wire.sbp.messages import ClientRole, Message
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


class Link:
    """One peer."""

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


class Links:
    """One `Link` per address."""

    def __init__(self, connect_to: Callable[[str], Connect]) -> None:
        self._connect_to = connect_to
        self._links: dict[str, Link] = {}

    def to(self, address: str) -> Link:
        if not address:
            raise UnavailableError("the peer has no known address")
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(self._connect_to(address))
        return link

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()
        self._links.clear()


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


def payload_bytes(pieces: Sequence[Buffer]) -> int:
    return sum(len(piece) for piece in pieces)
