"""Calls to another broker process: many at a time on one link, which opens when it is needed.

A call ends with the answer, or with one of two errors that must not be mistaken for each other:

    UnavailableError     the peer never began with it: it may be sent again, and elsewhere
    OutcomeUnknownError  it was sent, and no answer came (in time): it may have taken effect

Requests leave in the order of the calls and are begun in that order; answers come in any. Past the
bounds on requests and bytes in flight, of this link and of all (`PeerBytes`), a call waits its
turn; one whose time is up meanwhile was never sent. A notice is never waited for: it is dropped
when there is no link, or when the peer does not keep up.

A link that ended is opened again by the next call, at most every `retry_seconds`. A peer that is
silent for `silent_seconds` is gone; a closed socket tells it at once. No task and no timer belongs
to a call: one task reads, another one looks at all deadlines now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    OutcomeUnknownError,
    RemoteProtocolError,
    UnavailableError,
)
from headrace.net.addresses import format_address
from headrace.net.flow import Gate
from headrace.net.peer_channel import PeerBytes, PeerChannel, PeerLimits
from headrace.net.tls import ClientTls, secure
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import (
    TOKEN_BYTES,
    Buffer,
    Connection,
    Detached,
    MovableConnection,
    Runtime,
)
from headrace.wire.peer.frames import PREFIX_BYTES, Frame, Kind, body_bytes, encode_frame

log = get_logger(__name__)

_SWEEP_SECONDS = 0.05
_POST_SECONDS = 0.001  # between two tries to put a connection into a full inbox
_ANSWERS_AT_ONCE_MAX = 64
INBOX_SUFFIX = ".inbox"
"""Behind the path of a server: where it takes connections."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int
    tls: ClientTls | None = None

    def __str__(self) -> str:
        return format_address(self.host, self.port)


Reply = tuple[bytes, memoryview]


@dataclass(slots=True)
class _Pending:
    answer: asyncio.Future[Reply]
    deadline: float


class PeerLink:
    """A link to one peer.

    `expected` is the name the peer must have; another one at that address is not spoken to.
    `on_unlinked` is called whenever an open link ends, except by `close`.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        secret: bytes,
        name: str,
        address: UnixAddress | TcpAddress,
        expected: str = "",
        on_unlinked: Callable[[], None] = lambda: None,
        limits: PeerLimits | None = None,
        bytes_in_flight: PeerBytes | None = None,
    ) -> None:
        self._runtime = runtime
        self._monotonic = runtime.clock.monotonic
        self._secret = secret
        self._name = name
        self._address = address
        self._expected = expected
        self._on_unlinked = on_unlinked
        self._limits = limits = limits or PeerLimits()
        self._gate = Gate(
            limits.requests_in_flight_max, limits.bytes_in_flight_max, bytes_in_flight
        )
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, _Pending] = {}
        self._number = 0
        self._channel: PeerChannel | None = None
        self._opening: asyncio.Task[PeerChannel] | None = None
        self._failed = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._opened_count = 0
        self._dropped = 0

    @property
    def is_linked(self) -> bool:
        return self._channel is not None

    @property
    def peer_name(self) -> str:
        """As the peer told it; empty while there is no link."""
        return "" if self._channel is None else self._channel.peer_name

    def statistics(self) -> dict[str, int]:
        return {
            "requests_in_flight": self._gate.count,
            "bytes_in_flight": self._gate.bytes,
            "calls_waiting": self._gate.waiting,
            "links_opened": self._opened_count,
            "notices_dropped": self._dropped,
        }

    async def call(self, head: bytes, body: Sequence[Buffer] = (), *, timeout: float) -> Reply:
        """The answer's head and body. UnavailableError and OutcomeUnknownError: see above."""
        deadline = self._monotonic() + timeout
        size = PREFIX_BYTES + len(head) + body_bytes(body)
        channel = self._channel
        if channel is None or not self._gate.enter_at_once(size):
            channel = await self._enter(size, deadline)
        try:
            return await self._exchange(channel, Kind.REQUEST, head, body, deadline)
        finally:
            self._gate.leave(size)

    def notify(self, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Send without an answer, behind what was sent before; it may be lost."""
        channel = self._channel
        if channel is None or channel.is_behind:
            self._dropped += 1
            if channel is None and not self._closed:
                self._begin_to_open()
            return
        channel.send(self._encode(Kind.NOTICE, 0, head, body))

    async def move(
        self,
        connection: MovableConnection,
        head: bytes,
        first_bytes: bytes = b"",
        *,
        timeout: float,
    ) -> Connection | None:
        """Hand a connection of a client to the peer, which goes on with it: a process of this
        machine. `first_bytes` were received from it, and are received again there, before what else
        has arrived. Nobody may be receiving from it.

        None when the peer has it. A connection in the place of the given one when nobody took it:
        go on with that. UnavailableError when there is no link, or it broke: the given one is as it
        was. OutcomeUnknownError when nobody knows whether the peer took it: then it is closed,
        whoever has it.
        """
        if not isinstance(self._address, UnixAddress):
            raise InvalidArgumentError(
                "connections move on one machine only", to=str(self._address)
            )
        deadline = self._monotonic() + timeout
        size = PREFIX_BYTES + TOKEN_BYTES + len(head) + len(first_bytes)
        channel = await self._enter(size, deadline)
        try:
            detached = await connection.detach()
            received = first_bytes + detached.received
            before, size = size, size + len(detached.received)
            self._gate.resize(before, size)
            token = self._runtime.random.bytes(TOKEN_BYTES)
            if not await self._post(channel, self._address.path, token, detached, deadline):
                return await self._runtime.transport.adopt(detached, received)
            try:
                await self._exchange(channel, Kind.MOVE, token + head, [received], deadline)
            except UnavailableError:
                return await self._runtime.transport.adopt(detached, received)
            except BaseException:
                detached.abort()
                raise
            detached.release()
            return None
        finally:
            self._gate.leave(size)

    async def _post(
        self, channel: PeerChannel, path: str, token: bytes, detached: Detached, deadline: float
    ) -> bool:
        """False when it has to stay here."""
        try:
            while channel.is_open and self._monotonic() < deadline:
                if self._runtime.transport.post(path + INBOX_SUFFIX, token, detached):
                    return channel.is_open
                await self._runtime.clock.sleep(_POST_SECONDS)
        except UnavailableError as error:
            log.warning("a connection was not taken", peer=str(self._address), reason=str(error))
        except BaseException:
            detached.abort()  # cancelled: nobody goes on with it
            raise
        return False

    async def close(self) -> None:
        """What is in flight ends with OutcomeUnknownError, what waits with UnavailableError."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        channel = self._channel
        if channel is not None:
            self._on_lost(channel, "link closed here")
            channel.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._gate.release()
        if channel is not None:
            await channel.connection.wait_closed()

    # -- a call

    async def _enter(self, size: int, deadline: float) -> PeerChannel:
        """Room, and a link. UnavailableError: nothing was sent."""
        try:
            async with asyncio.timeout(max(0.0, deadline - self._monotonic())):
                await self._gate.enter(size)
                try:
                    return self._channel or await self._open_link()
                except BaseException:
                    self._gate.leave(size)
                    raise
        except TimeoutError as error:
            raise UnavailableError("not sent in time", peer=str(self._address)) from error

    def _encode(self, kind: Kind, number: int, head: bytes, body: Sequence[Buffer]) -> list[Buffer]:
        return encode_frame(kind, number, head, body, frame_bytes_max=self._limits.frame_bytes_max)

    async def _exchange(
        self,
        channel: PeerChannel,
        kind: Kind,
        head: bytes,
        body: Sequence[Buffer],
        deadline: float,
    ) -> Reply:
        if not channel.is_open:
            raise UnavailableError("the link broke", peer=str(self._address))
        self._number = number = self._number + 1
        pieces = self._encode(kind, number, head, body)
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._pending[number] = _Pending(answer, deadline)
        channel.send(pieces)
        try:
            return await answer
        finally:
            self._pending.pop(number, None)

    def _on_frame(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == Kind.PING:
            return
        pending = self._pending.get(frame.number)
        if pending is None or pending.answer.done():
            if kind in (Kind.ANSWER, Kind.FAILED, Kind.REFUSED):
                return  # its caller gave up
        elif kind == Kind.ANSWER:
            pending.answer.set_result((frame.head, frame.body))
            return
        elif kind in (Kind.FAILED, Kind.REFUSED):
            text = frame.head.decode(errors="replace")
            cls = UnavailableError if kind == Kind.REFUSED else OutcomeUnknownError
            pending.answer.set_exception(cls(text, peer=str(self._address)))
            return
        raise RemoteProtocolError("not for who opened the link", kind=kind)

    # -- the link

    async def _open_link(self) -> PeerChannel:
        """Whoever comes meanwhile waits for the same attempt."""
        self._begin_to_open()
        opening = self._opening
        assert opening is not None
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and self._closed:
                raise UnavailableError("link closed here", peer=str(self._address)) from None
            raise

    def _begin_to_open(self) -> None:
        if self._closed:
            raise UnavailableError("link closed here", peer=str(self._address))
        if self._opening is None:
            self._opening = self._loop.create_task(self._open(), name="peer link opens")
            self._opening.add_done_callback(self._on_opened)

    def _on_opened(self, opening: asyncio.Task[PeerChannel]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is not None:
            self._failed = self._monotonic()  # whoever waits gets the error

    async def _open(self) -> PeerChannel:
        pause = self._failed + self._limits.retry_seconds - self._monotonic()
        if pause > 0:
            await self._runtime.clock.sleep(pause)
        connection = await self._connect()
        channel = PeerChannel(connection, self._runtime.clock, self._limits)
        try:
            await channel.log_in(self._secret, self._name, self._runtime.random, is_opener=True)
            if self._expected not in ("", channel.peer_name):
                raise UnavailableError(
                    "another peer is there", found=channel.peer_name, expected=self._expected
                )
        except HeadraceError as error:
            connection.abort()
            if isinstance(error, UnavailableError):
                raise
            log.warning("no link to a peer", peer=str(self._address), reason=str(error))
            raise UnavailableError(f"no link: {error}", peer=str(self._address)) from error
        except BaseException:
            connection.abort()
            raise
        self._start(channel)
        return channel

    async def _connect(self) -> Connection:
        address, timeout = self._address, self._limits.connect_seconds
        if isinstance(address, UnixAddress):
            return await self._runtime.transport.connect_unix(address.path, timeout=timeout)
        connection = await self._runtime.transport.connect(
            address.host, address.port, timeout=timeout
        )
        if address.tls is None:
            return connection
        try:
            return await secure(
                connection, address.tls, address.host, timeout=self._limits.login_seconds
            )
        except RemoteProtocolError as error:
            raise UnavailableError(f"no TLS: {error}", peer=str(address)) from error

    def _start(self, channel: PeerChannel) -> None:
        self._channel = channel
        self._opened_count += 1
        log.info("link opened", peer=channel.peer_name, address=str(self._address))
        if channel.direct is not None:
            channel.direct.look_first(lambda data: self._look(channel, data))
        for main in (self._read(channel), self._sweep(channel)):
            task = self._loop.create_task(main, name="peer link")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _look(self, channel: PeerChannel, data: memoryview) -> bool:
        """Answers that came whole wake nobody but their callers."""
        frames = channel.decoder.split(data, _ANSWERS_AT_ONCE_MAX)
        if frames is None:
            return False
        channel.heard = self._monotonic()
        try:
            for frame in frames:
                self._on_frame(frame)
        except RemoteProtocolError as error:
            channel.decoder.failure = error
            channel.connection.abort()
        return True

    async def _read(self, channel: PeerChannel) -> None:
        reason = "the peer closed the link"
        try:
            while (frames := await channel.receive()) is not None:
                for frame in frames:
                    self._on_frame(frame)
                if channel.decoder.failure is not None:
                    raise channel.decoder.failure
        except UnavailableError as error:
            reason = str(error)
        except RemoteProtocolError as error:
            log.warning("bad bytes on a link", peer=str(self._address), reason=str(error))
            reason = str(error)
        finally:
            self._on_lost(channel, reason)
            channel.connection.abort()

    def _on_lost(self, channel: PeerChannel, reason: str) -> None:
        """At once for whoever waits. A channel is lost once."""
        if not channel.is_open:
            return
        channel.is_open = False
        assert self._channel is channel, "a new link is opened when the old one is over"
        self._channel = None
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if not each.answer.done():
                each.answer.set_exception(
                    OutcomeUnknownError("link lost before the answer", peer=str(self._address))
                )
        log.info("link ended", peer=channel.peer_name, address=str(self._address), reason=reason)
        if not self._closed:
            self._on_unlinked()

    async def _sweep(self, channel: PeerChannel) -> None:
        """Deadlines of calls, and signs of life."""
        while channel.is_open:
            await self._runtime.clock.sleep(_SWEEP_SECONDS)
            now = self._monotonic()
            for each in self._pending.values():
                if each.deadline <= now and not each.answer.done():
                    each.answer.set_exception(
                        OutcomeUnknownError("no answer in time", peer=str(self._address))
                    )
            if channel.is_open and not channel.look_after(now):
                self._on_lost(channel, "the peer is silent")
