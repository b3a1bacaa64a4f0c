"""Iggy's commands over QUIC: one bidirectional stream per request, the same frames as over TCP.

The client writes one frame and finishes; the server answers and finishes. Login, dialect
and groups belong to the connection, which is one session. Requests of a connection run side by
side, up to `requests_max`; what comes behind the frame of a stream is ignored.

A connection is over when either side says so, when it is silent for the idle time, when it does not
log in, or when the answer was STALE_CLIENT or CLIENT_NOT_FOUND. A stream alone is given up when its
frame is too large (answered first), speaks another framing, would hold more memory than there is,
or stands still half-way; the connection goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from headrace.errors import HeadraceError, UnavailableError
from headrace.net.addresses import format_address
from headrace.net.admission import pick
from headrace.net.iggy_server import (
    LAST_ANSWERS,
    TRANSFER_BYTES_PER_SECOND,
    Answer,
    IggyLimits,
    OnRequest,
)
from headrace.net.quic import QuicEndpoint, QuicLimits, QuicLink
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.wire.iggy.classic_frames import (
    BadLength,
    OtherFraming,
    RequestEvent,
    RequestFrame,
    TooLarge,
    encode_answer,
)
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.refusals import status_of
from headrace.wire.iggy.request_stream import RequestStream
from headrace.wire.iggy.vsr.frames import Head

log = get_logger(__name__)

S = TypeVar("S")

_SWEEP_SECONDS = 1.0
_ACKNOWLEDGE_SECONDS = 1.0
_SEND_BYTES = 256 * 1024  # handed to QUIC at once
_KINDS = 3  # the lowest bits of a stream's id: who opened it, and whether it has one direction
_REQUESTS = 0  # opened by the client, both directions


class Refusal(IntEnum):
    """Application error codes in RESET_STREAM, STOP_SENDING and CONNECTION_CLOSE."""

    NONE = 0
    UNSUPPORTED = 1  # another framing, or a stream that cannot be answered
    TOO_LARGE = 2
    MEMORY = 3
    STALLED = 4
    NO_LOGIN = 5
    BUG = 6  # ours


@dataclass(frozen=True, slots=True, kw_only=True)
class IggyQuicLimits:
    frames: IggyLimits = field(default_factory=IggyLimits)
    """Frame sizes, login, idle and transfer times: the same as over TCP."""
    requests_max: int = 16
    """Requests of one connection handled at a time; more wait."""
    connection_bytes_max: int = 128 * 1024 * 1024
    """Requests and answers of one connection in memory; a stream that would pass it is refused."""
    held_bytes_max: int = 256 * 1024 * 1024
    """The same over all connections."""
    keep_alive_seconds: float = 5.0
    """A logged-in connection silent for as long is pinged; 0 = never."""
    handshake_seconds: float = 10.0


@dataclass(slots=True, eq=False)
class _Stream:
    decoder: RequestStream | None
    since: float
    held: int = 0
    is_decided: bool = False  # its frame is complete, or will never be
    is_ended: bool = False  # the peer sends no more
    is_answered: bool = False
    waits_for_peer: bool = True


class IggyQuicServer(Generic[S]):
    """Serves connections from `start` to `close`; the callbacks are those of `IggyServer`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        certificate: bytes,
        key: bytes,
        open_session: Callable[[str], S],
        on_request: OnRequest[S],
        close_session: Callable[[S], None],
        is_trusted: Callable[[S], bool] = lambda _: True,
        on_behind: Callable[[S], None] = lambda _: None,
        limits: IggyQuicLimits | None = None,
        quic_limits: QuicLimits | None = None,
    ) -> None:
        self.open_session = open_session
        self.on_request = on_request
        self.close_session = close_session
        self.is_trusted = is_trusted
        self.on_behind = on_behind
        self.limits = limits or IggyQuicLimits()
        self.monotonic = runtime.clock.monotonic
        self.held = 0
        self.malformed = 0
        self.cut_off = 0
        self.connections: dict[_Connection[S], None] = {}  # a set that keeps its order
        self.closing = False
        self._runtime = runtime
        self._sweeper: asyncio.Task[None] | None = None
        self._endpoint = QuicEndpoint(
            runtime,
            certificate=certificate,
            key=key,
            make_handler=self._make_connection,
            make_room=self._make_room,
            limits=quic_limits,
        )

    async def start(self, host: str, port: int) -> None:
        await self._endpoint.start(host, port)
        self._sweeper = asyncio.create_task(self._sweep(), name="iggy quic sweep")

    @property
    def port(self) -> int:
        return self._endpoint.listener.port

    @property
    def address(self) -> str:
        return format_address(self._endpoint.listener.host, self.port)

    def statistics(self) -> dict[str, int]:
        return {
            "quic_connections": len(self.connections),
            "quic_connections_refused": self._endpoint.refused,
            "quic_address_checks": self._endpoint.retries,
            "quic_cut_off": self.cut_off,
            "quic_held_bytes": self.held,
            "quic_frames_malformed": self.malformed,
        }

    async def close(self) -> None:
        """Stop accepting, let requests in progress be answered, then end what is left."""
        self.closing = True
        self._endpoint.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        for connection in self.connections:
            connection.hurry()
        tasks = [task for connection in self.connections for task in connection.tasks]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self.limits.frames.close_seconds_max)
            for task in late:
                task.cancel()
        await asyncio.gather(
            *(link.wait_acknowledged(_ACKNOWLEDGE_SECONDS) for link in self._endpoint.links)
        )
        await self._endpoint.close()

    def _make_connection(self, link: QuicLink) -> _Connection[S]:
        connection = _Connection(self, link)
        self.connections[connection] = None
        return connection

    def _make_room(self) -> bool:
        """By the end of somebody who has not logged in."""
        gone = pick(each for each in self.connections if each.is_stranger)
        if gone is not None:
            gone.end("all connections are taken")
        return gone is not None

    async def _sweep(self) -> None:
        while True:
            await self._runtime.clock.sleep(_SWEEP_SECONDS)
            now = self.monotonic()
            for connection in list(self.connections):
                connection.on_sweep(now)


class _Connection(Generic[S]):
    """The streams of one connection."""

    def __init__(self, server: IggyQuicServer[S], link: QuicLink) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._server = server
        self._link = link
        self._session: S | None = None  # from the first request on: a handshake makes no client
        self._streams: dict[int, _Stream] = {}
        self._turns = asyncio.Semaphore(server.limits.requests_max)
        self._held = 0
        self._active = server.monotonic()  # when its last request came

    # -- what the link tells

    def on_data(self, stream_id: int, data: bytes, *, end: bool) -> None:
        if stream_id & _KINDS != _REQUESTS:
            self._link.stop(stream_id, Refusal.UNSUPPORTED)
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream(self._decoder(), self._server.monotonic())
        stream.is_ended = stream.is_ended or end
        if not stream.is_decided:
            self._feed(stream_id, stream, data)
        self._forget_if_done(stream_id, stream)

    def on_reset(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.is_ended = True
        if not stream.is_decided:
            self._refuse(stream_id, stream, Refusal.NONE)
        self._forget_if_done(stream_id, stream)

    async def on_closed(self) -> None:
        """Requests in progress end by themselves: they cannot answer any more."""
        self.hurry()
        try:
            if self.tasks:
                await asyncio.wait(self.tasks)
        finally:
            self._hold(-self._held)
            del self._server.connections[self]
            if self._session is not None:
                self._server.close_session(self._session)

    def on_sweep(self, now: float) -> None:
        limits, link = self._server.limits, self._link
        if not link.is_connected and now - link.started > limits.handshake_seconds:
            self._cut("handshake takes too long")
            link.close(Refusal.STALLED)
            return
        trusted = self._session is not None and self._server.is_trusted(self._session)
        allowed = limits.frames.idle_seconds if trusted else limits.frames.login_idle_seconds
        late = not trusted and now - link.started > limits.frames.login_seconds
        if not self.tasks and (late or (allowed and now - self._active > allowed)):
            self.end("not logged in" if late else "idle")
            return
        transfer = limits.frames.transfer_seconds
        for stream_id, stream in list(self._streams.items()):
            patience = transfer + stream.held / TRANSFER_BYTES_PER_SECOND
            if stream.waits_for_peer and not stream.is_answered and now - stream.since > patience:
                self._cut("left half-way")
                self._refuse(stream_id, stream, Refusal.STALLED)
        is_silent = now - link.heard >= limits.keep_alive_seconds > 0
        if trusted and is_silent:
            link.ping()  # unanswered ones do not put off the idle timeout (RFC 9000 §10.1)

    @property
    def address(self) -> str:
        return self._link.peer

    @property
    def is_stranger(self) -> bool:
        return self._link.is_open and not (
            self._session is not None and self._server.is_trusted(self._session)
        )

    def hurry(self) -> None:
        """What is in progress should wait for nothing more."""
        if self._session is not None:
            self._server.on_behind(self._session)

    def end(self, reason: str) -> None:
        self._cut(reason)
        self._link.close(Refusal.NO_LOGIN, reason)

    def _cut(self, reason: str) -> None:
        self._server.cut_off += 1
        log.warning("iggy quic cut off", peer=self._link.peer, reason=reason, held_bytes=self._held)

    # -- receiving

    def _decoder(self) -> RequestStream:
        """Whoever has not logged in gets little memory."""
        limits = self._server.limits.frames
        if self._session is not None and self._server.is_trusted(self._session):
            return RequestStream(
                frame_bytes_max=limits.frame_bytes_max,
                send_frame_bytes_max=limits.send_frame_bytes_max,
            )
        small = min(limits.login_frame_bytes_max, limits.frame_bytes_max)
        return RequestStream(frame_bytes_max=small, send_frame_bytes_max=small)

    def _feed(self, stream_id: int, stream: _Stream, data: bytes) -> None:
        assert stream.decoder is not None, "it goes when the stream is decided"
        limits, server = self._server.limits, self._server
        if (
            self._held + len(data) > limits.connection_bytes_max
            or server.held + len(data) > limits.held_bytes_max
        ):
            self._cut("memory is short")
            self._refuse(stream_id, stream, Refusal.MEMORY)
            return
        stream.held += len(data)
        self._hold(len(data))
        found = stream.decoder.feed(data)
        if found:
            self._decide(stream_id, stream, found[0])
        elif stream.is_ended:
            self._decide(stream_id, stream, BadLength(stream.decoder.buffered_bytes))

    def _decide(self, stream_id: int, stream: _Stream, event: RequestEvent) -> None:
        stream.is_decided = True
        self._active = self._server.monotonic()
        head: Head | None = None
        match event:
            case RequestFrame() as frame:
                self._start(stream_id, stream, self._request(stream_id, stream, frame))
                return
            case TooLarge():
                head = event.head
                self._link.stop(stream_id, Refusal.TOO_LARGE)
            case OtherFraming():
                self._refuse(stream_id, stream, Refusal.UNSUPPORTED)
        self._server.malformed += 1
        log.warning("iggy quic frame refused", peer=self._link.peer, what=str(event))
        if not stream.is_answered:
            answer = self._answer(stream_id, stream, Status.INVALID_COMMAND, (), head)
            self._start(stream_id, stream, answer)

    def _refuse(self, stream_id: int, stream: _Stream, why: Refusal) -> None:
        stream.is_decided = stream.is_answered = True
        self._link.refuse(stream_id, why)
        self._release(stream)

    # -- answering

    def _start(
        self, stream_id: int, stream: _Stream, work: Coroutine[object, object, None]
    ) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                log.error("iggy quic request failed", peer=self._link.peer, exc_info=error)
                self._refuse(stream_id, stream, Refusal.BUG)

        task = asyncio.create_task(guarded(), name=f"iggy quic {self._link.peer} {stream_id}")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _request(self, stream_id: int, stream: _Stream, frame: RequestFrame) -> None:
        stream.waits_for_peer = False
        if self._turns.locked():
            self.hurry()
        async with self._turns:
            status, pieces = await self._call(frame)
            await self._answer(stream_id, stream, status, pieces, frame.head)
        if status in LAST_ANSWERS:
            await self._link.wait_acknowledged(_ACKNOWLEDGE_SECONDS)
            self._link.close(Refusal.NONE, "told to leave")

    async def _call(self, frame: RequestFrame) -> Answer:
        server = self._server
        if not self._link.is_open or server.closing:
            return Status.ERROR, ()
        if self._session is None:
            self._session = server.open_session(self._link.peer)
        try:
            status, pieces = await server.on_request(
                self._session, frame.code, frame.payload, frame.head
            )
        except HeadraceError as error:
            return status_of(error), ()
        return status, pieces if status == Status.OK else ()

    async def _answer(
        self,
        stream_id: int,
        stream: _Stream,
        status: int,
        pieces: Sequence[Buffer],
        head: Head | None,
    ) -> None:
        frame = encode_answer(head, status, pieces)
        length = sum(map(len, frame))
        stream.held += length
        self._hold(length)
        stream.waits_for_peer, stream.since = True, self._server.monotonic()
        try:
            for piece, is_last in _chunks(frame):
                await self._link.wait_room()
                if stream.is_answered:  # given up meanwhile
                    return
                self._link.send(stream_id, piece, end=is_last)
            await self._link.wait_sent(stream_id)
        except UnavailableError:
            log.debug("iggy quic answer not taken", peer=self._link.peer, stream=stream_id)
        finally:
            stream.is_answered = True
            self._release(stream)
            self._forget_if_done(stream_id, stream)

    # -- memory

    def _hold(self, count: int) -> None:
        self._held += count
        self._server.held += count

    def _release(self, stream: _Stream) -> None:
        self._hold(-stream.held)
        stream.held = 0
        stream.decoder = None

    def _forget_if_done(self, stream_id: int, stream: _Stream) -> None:
        """Not before the peer has ended it, or late bytes would look like a new stream."""
        if stream.is_ended and stream.is_answered:
            self._streams.pop(stream_id, None)


def _chunks(frame: Sequence[Buffer]) -> Iterator[tuple[memoryview, bool]]:
    """Pieces of what is sent at once, and whether it is the last."""
    views = [
        memoryview(piece)[start : start + _SEND_BYTES]
        for piece in frame
        for start in range(0, len(piece), _SEND_BYTES)
    ]
    for number, view in enumerate(views, 1):
        yield view, number == len(views)
