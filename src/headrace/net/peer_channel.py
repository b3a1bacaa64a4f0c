"""What both ends of a link between brokers have in common: limits, login, and signs of life.

The frames stand in `wire/peer/frames.py`; `peer_link.py` is the end that opens a link and calls,
`peer_server.py` the end that serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import RemoteProtocolError, UnavailableError
from headrace.net.flow import Gate
from headrace.runtime.interfaces import Buffer, Clock, Connection, DirectConnection, Random
from headrace.wire.peer.frames import (
    FRAME_BYTES_MAX,
    PING,
    Frame,
    FrameDecoder,
    Kind,
    encode_frame,
)
from headrace.wire.peer.login import CHANCE_BYTES, LOGIN_FRAME_BYTES_MAX, Login, encode_hello

_TOGETHER_MAX = 64  # pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_in_flight_max: int = 1024
    """Of a link. Whoever has one more waits."""
    bytes_in_flight_max: int = 128 * 1024 * 1024
    """Of a link: requests that were sent and not answered. A single one of any size is admitted."""
    links_max: int = 1024
    """That a server accepts; of those that have not logged in an eighth."""
    connect_seconds: float = 1.0
    login_seconds: float = 3.0
    retry_seconds: float = 0.05
    """Between an attempt to open a link that failed and the next one."""
    ping_seconds: float = 1.0
    """Silence of our own, after which we send a PING."""
    silent_seconds: float = 3.0
    """Silence of the peer, after which it counts as gone."""
    transfer_seconds: float = 30.0
    """For a peer to take what is queued for it."""
    close_seconds_max: float = 5.0
    """How long `close` waits for requests in progress."""


class PeerBytes:
    """A bound on what all links of one process have in flight; the links wait for it in turn."""

    def __init__(self, limit: int = 512 * 1024 * 1024) -> None:
        self.limit = limit
        self.total = 0
        self._gates: dict[Gate, None] = {}

    def on_change(self, count: int) -> None:
        self.total += count
        if count < 0 and self._gates:
            asyncio.get_running_loop().call_soon(self._admit)

    def fits(self, size: int) -> bool:
        return not self.total or self.total + size <= self.limit

    def call_when_roomy(self, gate: Gate) -> None:
        self._gates[gate] = None

    def _admit(self) -> None:
        for gate in list(self._gates):
            gate.admit()
            if not gate.waiting:
                self._gates.pop(gate, None)


class PeerChannel:
    """A connection of a link, from its login to its end."""

    def __init__(self, connection: Connection, clock: Clock, limits: PeerLimits) -> None:
        self.connection = connection
        self.decoder = FrameDecoder(LOGIN_FRAME_BYTES_MAX)
        self.peer_name = ""
        self.is_open = True
        self.reads = True
        """False while we ourselves do not read: then the peer is not to blame for silence."""
        self._monotonic = clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._unwritten: list[Buffer] = []
        self._limits = limits
        self.heard = self._said = self._monotonic()
        self.direct = connection if isinstance(connection, DirectConnection) else None

    async def log_in(
        self, secret: bytes, name: str, random: Random, first: bytes = b"", *, is_opener: bool
    ) -> None:
        """UnavailableError when the peer does not manage it in time or ends it,
        UnauthenticatedError when it does not hold the secret."""
        login = Login(secret, encode_hello(name, random.bytes(CHANCE_BYTES)), is_opener=is_opener)
        frames = self.decoder.feed(first)
        try:
            async with asyncio.timeout(self._limits.login_seconds):
                if is_opener:
                    self._send_login(Kind.HELLO, login.hello)
                    login.on_hello(await self._expect(Kind.CHALLENGE, frames))
                    self._send_login(Kind.PROOF, login.proof)
                    login.check(await self._expect(Kind.PROOF, frames))
                else:
                    hello = await self._expect(Kind.HELLO, frames)
                    self._send_login(Kind.CHALLENGE, login.hello)  # a version not ours sees it
                    login.on_hello(hello)
                    login.check(await self._expect(Kind.PROOF, frames))
                    self._send_login(Kind.PROOF, login.proof)
        except TimeoutError as error:
            raise UnavailableError("no login in time", peer=self.connection.peer) from error
        if frames or not self.decoder.is_between_frames:
            raise RemoteProtocolError("a peer speaks before its turn", peer=self.connection.peer)
        self.peer_name = login.peer_name
        self.decoder.set_limit(self._limits.frame_bytes_max)
        self.heard = self._monotonic()

    def _send_login(self, kind: Kind, head: bytes) -> None:
        self.send(encode_frame(kind, 0, head))

    async def _expect(self, kind: Kind, frames: list[Frame]) -> bytes:
        while not frames:
            data = await self.connection.receive()
            if not data:
                raise UnavailableError("login ended by the peer", peer=self.connection.peer)
            frames += self.decoder.feed(data)
        frame = frames.pop(0)
        if frame.kind != kind:
            raise RemoteProtocolError(
                "not what a login has here", peer=self.connection.peer, kind=frame.kind
            )
        return frame.head

    async def receive(self) -> list[Frame] | None:
        """The next frames, perhaps none yet; None at the end. A long body goes where it stays."""
        room = self.decoder.room() if self.direct is not None else None
        if room is None or self.direct is None:
            data = await self.connection.receive()
            self.heard = self._monotonic()
            return self.decoder.feed(data) if data else None
        filled = await self.direct.receive_into(room)
        self.heard = self._monotonic()
        return self.decoder.fill(filled) if filled == len(room) else None

    def send(self, pieces: Sequence[Buffer]) -> None:
        """Without waiting: what may be queued is bounded by whoever sends.

        What is sent in one turn of the loop is written together: a system call for each frame costs
        more than all else that a link does.
        """
        self._said = self._monotonic()
        if self._unwritten:
            self._unwritten += pieces
            if len(self._unwritten) >= _TOGETHER_MAX:
                self.flush()
        else:
            self._unwritten = list(pieces)
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._unwritten:
            pieces, self._unwritten = self._unwritten, []
            self.connection.write(pieces)

    def close(self) -> None:
        self.flush()
        self.connection.close()

    @property
    def is_behind(self) -> bool:
        """The peer takes less than it is given. Not every connection can tell."""
        tell = getattr(self.connection, "is_behind", None)
        return tell is not None and bool(tell())

    def look_after(self, now: float) -> bool:
        """Say that we live, when it is time; False when the peer seems not to, and was cut off."""
        if now - self._said >= self._limits.ping_seconds:
            self.send([PING])
        if self.reads and now - self.heard > self._limits.silent_seconds:
            self.connection.abort()
            return False
        return True
