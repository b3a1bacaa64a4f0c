"""TLS over any Connection, and telling it from plain bytes on the same port.

OpenSSL works on memory here, so the same code runs over sockets on every loop and over the
simulated network. A client hello starts like this; what a plain Iggy client sends first is a u32
length (little endian) and a u32 code (an SBP frame would be 369 MB long):

| Byte | TLS record          | the same byte of a frame                      |
|------|---------------------|-----------------------------------------------|
| 0    | 0x16, handshake     | lowest byte of the length                     |
| 1    | 0x03, major version | the next one                                  |
| 2    | 1 to 4, minor       | 0 unless the frame is longer than 65,535      |
| 5    | 1, client hello     | second byte of the code: 0 for codes below 256 |

A frame that agrees in all four is a command of 64 KiB or more before any login, which nobody
serves; a frame of 790 bytes (0x16 0x03) does not.

Memory: one piece of the connection's receive, decrypted before the next is taken, plus at most one
incomplete record. What `write` gets is encrypted at once and waits in the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.errors import RemoteProtocolError, UnavailableError
from headrace.runtime.interfaces import AnnouncingConnection, Buffer, Connection

RECORD_BYTES = 16 * 1024  # of plain text, at most
_FLUSH_BYTES = 16 * RECORD_BYTES  # encrypted in one go before it moves on to the connection
_HELLO = (frozenset((0x16,)), frozenset((0x03,)), frozenset((1, 2, 3, 4)), None, None, {0x01})


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsLimits:
    handshake_seconds: float = 10.0
    handshake_bytes_max: int = 64 * 1024
    """What a peer may send before the handshake is complete."""


class TlsRequiredError(RemoteProtocolError):
    """A plain connection where only TLS is served; `first` is what it began with."""

    def __init__(self, peer: str, first: bytes) -> None:
        super().__init__("plain bytes where TLS is required", peer=peer)
        self.first = first


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """How a client speaks TLS: whom it trusts, and whom it expects."""

    context: ssl.SSLContext
    server_name: str = ""
    """The name that the certificate must have; empty = the host connected to."""


async def secure(
    connection: Connection, tls: ClientTls, host: str, *, timeout: float
) -> TlsConnection:
    """TLS on a connection just made. RemoteProtocolError when the server is not the one expected
    or does not speak TLS, UnavailableError when it does not answer in time."""
    name = tls.server_name or host
    secured = TlsConnection(connection, tls.context, server_side=False, server_name=name)
    try:
        async with asyncio.timeout(timeout):
            await secured.handshake()
    except TimeoutError as error:
        connection.abort()
        raise UnavailableError("no TLS handshake in time", peer=connection.peer) from error
    except BaseException:
        connection.abort()
        raise
    return secured


def is_client_hello(first: Buffer) -> bool | None:
    """Whether a connection begins with TLS; None when more bytes are needed to tell."""
    for byte, expected in zip(first, _HELLO, strict=False):
        if expected is not None and byte not in expected:
            return False
    return True if len(first) >= len(_HELLO) else None


class TlsConnection:
    """A Connection inside a Connection. `handshake` comes first."""

    def __init__(
        self,
        connection: Connection,
        context: ssl.SSLContext,
        first_bytes: bytes = b"",
        *,
        server_side: bool = True,
        server_name: str | None = None,
        limits: TlsLimits | None = None,
    ) -> None:
        """`first_bytes` were received from `connection` already. A client says whom it expects in
        `server_name`."""
        self.peer = connection.peer
        self.local = connection.local
        self._connection = connection
        self._limits = limits or TlsLimits()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self._incoming.write(first_bytes)
        self._received = len(first_bytes)
        self._ended = False  # nothing more arrives
        self._closed = False
        self._broken: ssl.SSLError | None = None

    async def handshake(self) -> None:
        """RemoteProtocolError when the peer does not manage it within the limits."""
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                while not self._handshake_step():
                    await self._connection.drain()
                    data = await self._connection.receive()
                    if not data:
                        raise UnavailableError("connection ended during handshake", peer=self.peer)
                    self._incoming.write(data)
                    self._received += len(data)
        except TimeoutError as error:
            raise RemoteProtocolError("TLS handshake takes too long", peer=self.peer) from error

    def _handshake_step(self) -> bool:
        """True when it is complete. What comes behind it in the same bytes stays to be read."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError as error:
            if self._received > self._limits.handshake_bytes_max:
                raise RemoteProtocolError(
                    "TLS handshake too large", peer=self.peer, bytes=self._received
                ) from error
            return False
        except ssl.SSLError as error:
            raise RemoteProtocolError(
                f"TLS handshake failed: {_reason(error)}", peer=self.peer
            ) from error
        finally:
            self._flush()  # also the alert that says what was wrong
        return True

    # the Connection interface

    async def receive(self) -> bytes:
        while True:
            plain = self._decrypt()
            self._flush()  # reading may have to answer: key updates, alerts
            if plain or self._ended:
                return plain
            if self._broken is not None:
                raise UnavailableError("TLS connection broke", peer=self.peer) from self._broken
            data = await self._connection.receive()
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def write(self, pieces: Sequence[Buffer]) -> None:
        if self._closed or self._broken is not None:
            return  # `drain` says so
        try:
            for buffer in _gather(pieces):
                self._encrypt(memoryview(buffer))
        except ssl.SSLError as error:
            self._broken = error
        self._flush()

    async def drain(self) -> None:
        if self._broken is not None:
            raise UnavailableError("TLS connection broke", peer=self.peer) from self._broken
        await self._connection.drain()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            # It wants the peer's answer to our close_notify, which we do not wait for.
            with suppress(ssl.SSLError, ValueError):
                self._tls.unwrap()
            self._flush()
        self._connection.close()

    def abort(self) -> None:
        self._closed = True
        self._connection.abort()

    async def wait_closed(self) -> None:
        await self._connection.wait_closed()

    def has_arrived(self) -> bool:
        inner = self._connection
        return isinstance(inner, AnnouncingConnection) and inner.has_arrived()

    def call_on_arrival(self, on_arrival: Callable[[], None]) -> None:
        if isinstance(self._connection, AnnouncingConnection):
            self._connection.call_on_arrival(on_arrival)

    # OpenSSL's side

    def _decrypt(self) -> bytes:
        """All that is complete among the bytes received so far."""
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(RECORD_BYTES):
                pieces.append(piece)
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLEOFError:
            # No close_notify. Many clients just hang up, and a cut frame shows by its length.
            self._ended = True
        except ssl.SSLError as error:
            self._broken = error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _encrypt(self, view: memoryview) -> None:
        position = 0
        while position < len(view):
            position += self._tls.write(view[position : position + RECORD_BYTES])
            if self._outgoing.pending >= _FLUSH_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._connection.write([self._outgoing.read()])


def _reason(error: ssl.SSLError) -> str:
    """What OpenSSL says, with the part that helps: which name or which certificate was wrong."""
    found = [error.reason or "the peer ended it", getattr(error, "verify_message", "")]
    return ": ".join(text for text in found if text)


def _gather(pieces: Sequence[Buffer]) -> Iterator[Buffer]:
    """Small neighbours joined, so that a head of eight bytes is not a record of its own."""
    small: list[Buffer] = []
    small_bytes = 0
    for piece in pieces:
        if len(piece) < RECORD_BYTES:
            small.append(piece)
            small_bytes += len(piece)
        if small and (small_bytes >= RECORD_BYTES or len(piece) >= RECORD_BYTES):
            yield b"".join(small)
            small, small_bytes = [], 0
        if len(piece) >= RECORD_BYTES:
            yield piece
    if small:
        yield b"".join(small)


class TlsAcceptor:
    """Decides per accepted connection: TLS or plain, told by its first bytes."""

    def __init__(
        self, context: ssl.SSLContext, *, required: bool, limits: TlsLimits | None = None
    ) -> None:
        """With `required` a plain connection is refused, wherever it comes from."""
        self._context = context
        self._required = required
        self._limits = limits or TlsLimits()

    async def accept(self, connection: Connection) -> tuple[Connection, bytes]:
        """The connection to go on with, and what was received from it already. It waits for the
        first byte as long as it takes; RemoteProtocolError when the peer may not be served."""
        first = await connection.receive()
        is_tls = is_client_hello(first)
        if is_tls is None and first:
            try:
                async with asyncio.timeout(self._limits.handshake_seconds):
                    first, is_tls = await _receive_more(connection, first)
            except TimeoutError as error:
                raise RemoteProtocolError("half a first record", peer=connection.peer) from error
        if is_tls:
            secured = TlsConnection(connection, self._context, first, limits=self._limits)
            await secured.handshake()
            return secured, b""
        if self._required and first:
            raise TlsRequiredError(connection.peer, first)
        return connection, first


async def _receive_more(connection: Connection, first: bytes) -> tuple[bytes, bool | None]:
    is_tls: bool | None = None
    while is_tls is None and (data := await connection.receive()):
        first += data
        is_tls = is_client_hello(first)
    return first, is_tls
