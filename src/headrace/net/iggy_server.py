"""The connection loop of Iggy's framings: read, decode, hand over, answer in order.

One request of a connection is handled at a time, as the protocol has it; requests that arrive
meanwhile wait in the connection, which stops reading when too many bytes wait; one that sends many
without waiting gives way to the others after each few (`admission.py`). What commands mean, who may
send them and when a silent client is dropped is the business of whoever gives `on_request`.

An answer may have to wait for something to happen (`Later`), and requests behind it wait with it.
So whoever gives it is told when something arrives behind it, or when the connection ends.

With a `TlsAcceptor` a connection may begin with TLS; its frames then travel inside. A connection
ends when the peer ends it, when it sends a frame above the limit (answered first),
when it speaks another framing, when the answer was STALE_CLIENT or CLIENT_NOT_FOUND, by `close`, or
by the sweep, which looks at all connections from time to time: no timer is set per request. It ends
who does not log in, who leaves a frame or an answer half-way, and whoever is stuck while memory is
short (`admission.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from headrace.errors import (
    HeadraceError,
    OutcomeUnknownError,
    RemoteProtocolError,
    UnavailableError,
)
from headrace.net.addresses import format_address
from headrace.net.admission import (
    REQUESTS_MAX,
    SECONDS_MAX,
    WAITED_SECONDS,
    Fairness,
    Held,
    HeldBytes,
    Later,
    NowAndThen,
    Pace,
    Phase,
    pick,
)
from headrace.net.iggy_moving import Begun, Mover
from headrace.net.tls import TlsAcceptor
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import (
    AnnouncingConnection,
    Buffer,
    Connection,
    DirectConnection,
    Listener,
    Runtime,
)
from headrace.wire.iggy.classic_frames import (
    CODE_BYTES,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    SEND_FRAME_BYTES_MAX,
    BadLength,
    OtherFraming,
    RequestEvent,
    RequestFrame,
    TooLarge,
    decode_head,
    encode_answer,
)
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.refusals import status_of
from headrace.wire.iggy.request_stream import FramePool, RequestStream
from headrace.wire.iggy.vsr.frames import HEADER_BYTES as VSR_HEADER_BYTES
from headrace.wire.iggy.vsr.frames import Head, decode_header, is_read
from headrace.wire.iggy.vsr.frames import frame_bytes as vsr_frame_bytes

log = get_logger(__name__)

S = TypeVar("S")
Answer: TypeAlias = tuple[int, Sequence[Buffer]]
OnRequest: TypeAlias = Callable[[S, int, memoryview, Head | None], Awaitable[Answer]]
AtOnce: TypeAlias = Sequence[Buffer] | Later | None

LAST_ANSWERS = frozenset((Status.STALE_CLIENT, Status.CLIENT_NOT_FOUND))
_SWEEP_SECONDS = 0.5
DIRECT_BYTES_MIN = 16 * 1024  # of a frame, before memory for all of it is taken,
DIRECT_BYTES_MAX = 2 * 1024 * 1024  # which must be no more than this
_MOVED_BYTES_MAX = 64 * 1024  # half a frame that goes with its connection; with more it waits
TRANSFER_BYTES_PER_SECOND = 64 * 1024  # who is slower than this on the whole is cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class IggyLimits:
    connections_max: int = 4096
    """Past it whoever has not logged in makes room; a connection that finds none is closed."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    send_frame_bytes_max: int = SEND_FRAME_BYTES_MAX
    login_frame_bytes_max: int = 8 * 1024
    """Of a connection that has not logged in."""
    held_bytes_max: int = 256 * 1024 * 1024
    """Requests and answers in memory, over all connections."""
    login_idle_seconds: float = 30.0
    """Silence of a connection that has not logged in."""
    login_seconds: float = 60.0
    """For the login, whatever else it sends."""
    idle_seconds: float = 0.0
    """Silence of one that has; 0 = for ever."""
    transfer_seconds: float = 30.0
    """For the rest of a frame to come or an answer to be taken; a second more per 64 KiB."""
    pressure_seconds: float = 0.5
    """As `transfer_seconds`, while more than `held_bytes_max` are held."""
    close_seconds_max: float = 5.0
    """How long `close` waits for requests in progress."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request whose answer is not there yet."""

    later: Later
    connection: DirectConnection
    head: Head | None
    frame: bytes


@dataclass(slots=True, eq=False)
class _Open(Generic[S]):
    """A connection being served."""

    connection: Connection
    session: S
    task: asyncio.Task[object] | None
    held: Held
    decoder: RequestStream
    stranger_since: float
    trusted: bool = False
    busy: bool = False
    untaken: bool = False
    """The peer has not yet taken an answer that was given at once."""
    waiting: _Waiting | None = None
    """The request that it has sent last, while no task handles it."""
    unsent: Callable[[], None] | None = None
    """Sends the answer to it, which is there but gives way to others."""
    announcing: AnnouncingConnection | None = None
    moved: bool = False
    """Another process goes on with it, and with its session."""

    @property
    def address(self) -> str:
        return self.connection.peer

    def has_more(self) -> bool:
        """Whether something has arrived behind the request in progress."""
        if self.decoder.buffered_bytes:
            return True
        return self.announcing is not None and self.announcing.has_arrived()

    def release(self) -> None:
        """What it held is free now, not when the garbage collector comes by."""
        self.decoder = RequestStream()
        self.task = self.waiting = self.unsent = None
        if isinstance(self.connection, DirectConnection):
            self.connection.look_first(_look_at_nothing)  # the one it has knows us
        if self.announcing is not None:
            self.announcing.call_on_arrival(_do_nothing)


class IggyServer(Generic[S]):
    """Serves connections from `start` to `close`.

    `open_session` is called for each accepted connection and `close_session` once it is over.
    `on_request` gets the session, the code, the payload (a writable buffer it owns) and the head
    that dialect C has beside them, and gives the status with the reply's pieces; a HeadraceError it
    raises is answered with its number.
    `answer_at_once` is asked before it where that spares waking a task: it gives the pieces of a
    reply that needs no waiting, a `Later`, or None, and reads the payload only while it is called.
    `on_behind` is called when another request of a session waits for the one being handled, or its
    connection ends: what can be answered without more waiting should be.
    `is_writing` says whether requests are in progress that answers at once leave time for.
    `is_trusted` says whether a session has logged in: before, frames are small and time is short.
    `keeps_frames`, `frame_pool`: see `RequestStream`. `mover` is there where connections may move.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        open_session: Callable[[Connection], S],
        on_request: OnRequest[S],
        close_session: Callable[[S], None],
        answer_at_once: Callable[[S, int, memoryview], AtOnce] = lambda *_: None,
        on_behind: Callable[[S], None] = lambda _: None,
        is_writing: Callable[[], bool] = lambda: False,
        is_trusted: Callable[[S], bool] = lambda _: True,
        keeps_frames: Callable[[], bool] = lambda: False,
        frame_pool: FramePool | None = None,
        tls: TlsAcceptor | None = None,
        limits: IggyLimits | None = None,
        mover: Mover[S] | None = None,
    ) -> None:
        self._runtime = runtime
        self._mover = mover
        self._open_session = open_session
        self._on_request = on_request
        self._answer_at_once = answer_at_once
        self._on_behind = on_behind
        self._is_writing = is_writing
        self._close_session = close_session
        self._is_trusted = is_trusted
        self._tls = tls
        self._limits = limits or IggyLimits()
        self._held = HeldBytes(self._limits.held_bytes_max)
        self._fairness = Fairness()
        self._pace = Pace(runtime.clock.monotonic, self._is_needed)
        self._receiving = 0
        """Large frames of which the rest is on its way: SENDs, most of them."""
        self._slots = NowAndThen()
        self._pool = frame_pool or FramePool()
        self._keeps_frames = keeps_frames
        self._monotonic = runtime.clock.monotonic
        self._sweeper: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self._connections: dict[_Open[S], None] = {}  # a set that keeps its order
        self._closing = False
        self._refused = 0
        self._malformed = 0
        self._cut_off = 0

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> None:
        listen = self._runtime.transport.listen
        self._listener = await listen(host, port, self.serve, reuse_port=reuse_port)

    @property
    def listener(self) -> Listener:
        assert self._listener is not None, "not started"
        return self._listener

    @property
    def address(self) -> str:
        return format_address(self.listener.host, self.listener.port)

    def statistics(self) -> dict[str, int]:
        return {
            "connections": len(self._connections),
            "connections_refused": self._refused,
            "connections_cut_off": self._cut_off,
            "held_bytes": self._held.total,
            "frames_malformed": self._malformed,
        }

    async def close(self) -> None:
        """Stop accepting, let requests in progress be answered, then end what is left."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        for served in self._connections:
            if served.busy:
                self._on_behind(served.session)
            else:
                self._finish_waiting(served)
                served.connection.close()
        tasks = [served.task for served in self._connections if served.task is not None]
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._limits.close_seconds_max)
            for task in tasks:
                task.cancel()  # nothing for those that are done
            if late:
                await asyncio.wait(late)
        if self._listener is not None:
            await self._listener.wait_closed()

    @property
    def is_full(self) -> bool:
        """Whether a connection that comes now may find no place."""
        return self._closing or len(self._connections) >= self._limits.connections_max

    async def serve(self, connection: Connection, begun: Begun[S] | None = None) -> None:
        """Serve one connection until it is over. `start` does this for every accepted one."""
        if self._closing or not self._make_room():
            self._refused += 1
            if self._slots.is_due(self._monotonic()):
                log.warning(
                    "iggy connection refused", peer=connection.peer, open=len(self._connections)
                )
            return
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        open_session = self._open_session if begun is None else begun.open_session
        served = _Open(
            connection,
            open_session(connection),
            asyncio.current_task(),
            Held(connection, self._monotonic()),
            self._decoder(),
            self._monotonic(),
        )
        self._connections[served] = None
        self._set_limits(served)
        try:
            if begun is not None:
                served.decoder.resume(has_heads=begun.has_heads)
                await self._serve(served)
            else:
                first = b""
                if self._tls is not None:
                    served.connection, first = await self._tls.accept(connection)
                await self._serve(served, first)
        except UnavailableError:
            log.debug("iggy connection broke", peer=connection.peer)
        except RemoteProtocolError as error:
            self._malformed += 1
            log.warning("iggy connection refused", peer=connection.peer, reason=str(error))
        finally:
            del self._connections[served]
            if served.waiting is not None:
                served.waiting.later.drop()
            self._held.drop(served.held)
            if not served.moved:
                self._close_session(served.session)
            served.connection.close()
            served.release()

    def _make_room(self) -> bool:
        """For one more connection; False when all belong to users."""
        if len(self._connections) < self._limits.connections_max:
            return True
        strangers = (
            each for each in self._connections if not each.trusted and not each.held.given_up
        )
        gone = pick(strangers)
        if gone is None:
            return False
        self._cut(gone, "all connections are taken", tell=self._slots.is_due(self._monotonic()))
        return True

    def _decoder(self) -> RequestStream:
        return RequestStream(pool=self._pool, keeps_frames=self._keeps_frames)

    async def _serve(self, served: _Open[S], first: bytes = b"") -> None:
        while await self._serve_here(served, first):
            first = b""  # it should have moved, and goes on in another guise

    async def _serve_here(self, served: _Open[S], first: bytes) -> bool:
        """Whether it goes on with another connection object."""
        connection = served.connection
        direct = connection if isinstance(connection, DirectConnection) else None
        if direct is not None:
            direct.look_first(partial(self._look, served, direct))
        if isinstance(connection, AnnouncingConnection):
            served.announcing = connection
            connection.call_on_arrival(partial(self._on_behind, served.session))
        while data := first or await self._receive(served):
            first = b""
            if not await self._handle(served, direct, data):
                return False
            mover = self._mover
            if mover is None or served.waiting is not None or served.unsent is not None:
                continue
            if mover.is_due(served.session):
                await self._move(served, mover)
                if served.connection is not connection or served.moved:
                    return not served.moved
        return False

    async def _handle(self, served: _Open[S], direct: DirectConnection | None, data: bytes) -> bool:
        """What was received; False when the connection is over."""
        held, decoder = served.held, served.decoder
        if served.untaken:
            await served.connection.drain()
            self._on_taken(served)
        events: Sequence[RequestEvent] = decoder.feed(data, REQUESTS_MAX)
        if not held.bytes:
            held.since = self._monotonic()  # a frame begins
        self._held.set(held, held.bytes + len(data))
        if not events and direct is not None:
            events = await self._receive_rest(served, direct)
        if events and not await self._answer_all(served, events):
            return False
        self._held.set(held, decoder.buffered_bytes)
        if not decoder.buffered_bytes:
            self._held.pass_turn(held)
        if served.trusted != self._is_trusted(served.session):
            self._set_limits(served)
        return True

    async def _move(self, served: _Open[S], mover: Mover[S]) -> None:
        """To where it should be, if that can be; see `served.moved` and `served.connection`."""
        held, decoder, before = served.held, served.decoder, served.connection
        if decoder.buffered_bytes > _MOVED_BYTES_MAX:
            return
        # Its last answer must have left: whoever does not take it is cut off by the sweep.
        self._held.set(held, max(1, decoder.buffered_bytes))
        held.phase, held.since = Phase.ANSWERING, self._monotonic()
        served.busy = True
        try:
            kept = await mover.move(
                served.session, before, decoder.unfinished(), has_heads=decoder.has_heads
            )
        except OutcomeUnknownError as error:
            raise UnavailableError("lost while it moved", peer=before.peer) from error
        finally:
            served.busy = False
        served.moved = kept is None
        if kept is not None and kept is not before:
            served.connection = held.connection = kept
            has_heads, served.decoder = decoder.has_heads, self._decoder()
            self._set_limits(served)
            served.decoder.resume(has_heads=has_heads)
        if kept is not None and (held.given_up or self._closing):
            kept.abort() if held.given_up else kept.close()
        self._held.set(held, served.decoder.buffered_bytes)
        held.phase, held.since = Phase.RECEIVING, self._monotonic()

    async def _receive(self, served: _Open[S]) -> bytes:
        held = served.held
        if self._held.over:
            begun, held.phase = self._monotonic(), Phase.PAUSED
            await self._held.wait_room(held)
            held.since += self._monotonic() - begun  # not the peer's time
        if held.phase is not Phase.RECEIVING:
            held.phase = Phase.RECEIVING
        if not held.bytes:
            held.since = self._monotonic()
        asked = self._monotonic()
        data = await served.connection.receive()
        if not self._finish_waiting(served):  # the peer sends no more, but may still read
            data = await served.connection.receive()
        if self._monotonic() - asked < WAITED_SECONDS:
            await self._fairness.give_way()  # there was more to be served than the loop knew
        return data

    async def _receive_rest(
        self, served: _Open[S], connection: DirectConnection
    ) -> Sequence[RequestEvent]:
        """The rest of a large frame, straight into its place; nothing where that cannot be."""
        if self._held.over:
            return ()
        room = served.decoder.room(DIRECT_BYTES_MIN, DIRECT_BYTES_MAX)
        if room is None:
            return ()
        self._held.set(served.held, served.decoder.buffered_bytes)
        self._receiving += 1
        try:
            if await connection.receive_into(room) < len(room):
                return ()  # the peer ended in the middle: nothing more comes
        finally:
            self._receiving -= 1
        return (served.decoder.complete(),)

    def _set_limits(self, served: _Open[S]) -> None:
        """Whoever has not logged in gets little memory."""
        limits = self._limits
        served.trusted = self._is_trusted(served.session)
        served.stranger_since = self._monotonic()
        if served.trusted:
            served.decoder.set_limits(limits.frame_bytes_max, limits.send_frame_bytes_max)
        else:
            small = min(limits.login_frame_bytes_max, limits.frame_bytes_max)
            served.decoder.set_limits(small, small)

    # -- the sweep

    async def _sweep(self) -> None:
        while True:
            pressed = self._limits.pressure_seconds / 4 if self._held.over else _SWEEP_SECONDS
            await self._runtime.clock.sleep(min(_SWEEP_SECONDS, pressed))
            now = self._monotonic()
            for served in list(self._connections):
                if served.untaken and not _is_behind(served.connection):
                    self._on_taken(served)
                reason = self._overdue(served, now)
                if reason:
                    self._cut(served, reason)
            if self._held.over:
                self._relieve(now)

    def _overdue(self, served: _Open[S], now: float) -> str:
        """Why this connection has to go; empty when it may stay."""
        limits, held = self._limits, served.held
        waited = now - held.since
        if not served.trusted:
            late = now - served.stranger_since > limits.login_seconds
            if held.phase is not Phase.HANDLING and (late or waited > limits.login_idle_seconds):
                return "not logged in"
        elif held.stuck():
            if waited > limits.transfer_seconds + held.bytes / TRANSFER_BYTES_PER_SECOND:
                return "left half-way"
        elif held.phase is Phase.RECEIVING and 0 < limits.idle_seconds < waited:
            return "idle"
        return ""

    def _relieve(self, now: float) -> None:
        by_held = {served.held: served for served in self._connections}
        for held in self._held.slowest(by_held, now, self._limits.pressure_seconds):
            self._cut(by_held[held], "memory is short")

    def _cut(self, served: _Open[S], reason: str, *, tell: bool = True) -> None:
        self._cut_off += 1
        if tell:
            log.warning(
                "iggy connection cut off",
                peer=served.connection.peer,
                reason=reason,
                held_bytes=served.held.bytes,
            )
        served.connection.abort()
        self._held.give_up(served.held)

    # -- answers

    async def _answer_all(self, served: _Open[S], events: Sequence[RequestEvent]) -> bool:
        """These and what else is decoded, giving way now and then; False when it is over."""
        until = self._monotonic() + SECONDS_MAX
        while events:
            for number, event in enumerate(events, 1):
                if served.held.since > until:  # when the last answer went out
                    await self._give_way(served)
                    until = self._monotonic() + SECONDS_MAX
                served.busy = True
                if number < len(events) or served.has_more():
                    self._on_behind(served.session)
                goes_on = await self._answer(served, event)
                served.busy = False
                if not goes_on or self._closing:
                    return False
            events = served.decoder.more(REQUESTS_MAX)
            if events:
                await self._give_way(served)
                until = self._monotonic() + SECONDS_MAX
        return True

    async def _give_way(self, served: _Open[S]) -> None:
        served.held.phase = Phase.PAUSED
        await self._fairness.give_way()

    def _look(self, served: _Open[S], connection: DirectConnection, data: memoryview) -> bool:
        """Answer a request that came whole, alone and waits for no task; False if it is not so."""
        if not self._finish_waiting(served):
            return False
        if len(data) < HEAD_BYTES or served.held.bytes or served.decoder.buffered_bytes:
            return False
        if self._closing or connection.is_behind():
            return False
        head: Head | None = None
        if served.decoder.has_heads:
            if len(data) < VSR_HEADER_BYTES or vsr_frame_bytes(data) != len(data):
                return False
            if not is_read(data):
                return False
            head, code = decode_header(data)
            if head.fault:
                return False
            payload = data[VSR_HEADER_BYTES:]
        else:
            length, code = decode_head(data)
            if HEAD_BYTES + length - CODE_BYTES != len(data):
                return False
            payload = data[HEAD_BYTES:]
        answer = self._answer_at_once(served.session, code, payload)
        if answer is None:
            return False
        if isinstance(answer, Later):
            served.held.since = self._monotonic()
            served.waiting = _Waiting(answer, connection, head, data.tobytes())
            answer.on_due = partial(self._answer_waiting, served)
        else:
            self._answer_directly(served, connection, head, answer)
        return True

    def _finish_waiting(self, served: _Open[S]) -> bool:
        """Let nothing stand between the last request and what follows it; False when that request
        takes the long way after all, and is the next that is received."""
        if served.waiting is not None and not self._answer_waiting(served):
            return False
        if served.unsent is not None:
            served.unsent()
        return True

    def _answer_waiting(self, served: _Open[S]) -> bool:
        """With what there is; False when the request takes the long way after all."""
        waiting = served.waiting
        assert waiting is not None, "it became due once"
        served.waiting = None
        pieces = waiting.later.answer()
        if pieces is None:
            waiting.connection.put_back(waiting.frame)
            return False
        self._answer_directly(served, waiting.connection, waiting.head, pieces)
        return True

    def _answer_directly(
        self,
        served: _Open[S],
        connection: DirectConnection,
        head: Head | None,
        pieces: Sequence[Buffer],
    ) -> None:
        """Now, or at the pace of all such answers."""
        work = partial(self._write_directly, served, connection, head, pieces)
        if self._pace.is_free():
            self._pace.run(work)
            return
        served.held.phase = Phase.PAUSED
        self._held.set(served.held, sum(map(len, pieces)))
        served.unsent = work
        self._pace.run_later(partial(self._send_unsent, served, work))

    def _is_needed(self) -> bool:
        return self._receiving > 0 or self._is_writing()

    def _send_unsent(self, served: _Open[S], work: Callable[[], None]) -> None:
        if served.unsent is work:  # nobody was in a hurry
            work()

    def _write_directly(
        self,
        served: _Open[S],
        connection: DirectConnection,
        head: Head | None,
        pieces: Sequence[Buffer],
    ) -> None:
        if served.unsent is not None:
            served.unsent = None
            self._held.set(served.held, 0)
            served.held.phase = Phase.RECEIVING
        served.held.since = self._monotonic()
        connection.write(encode_answer(head, Status.OK, pieces))
        if connection.is_behind():  # held until taken, which the sweep or the next request sees
            self._held.set(served.held, sum(map(len, pieces)))
            served.held.phase = Phase.ANSWERING
            served.untaken = True

    def _on_taken(self, served: _Open[S]) -> None:
        served.untaken = False
        self._held.set(served.held, 0)
        served.held.phase, served.held.since = Phase.RECEIVING, self._monotonic()

    async def _answer(self, served: _Open[S], event: RequestEvent) -> bool:
        """Answer one event; False when the connection is over."""
        peer = served.connection.peer
        match event:
            case RequestFrame(code, payload, head):
                served.held.phase = Phase.HANDLING
                status, pieces = await self._call(served.session, code, payload, head)
                await self._send(served, status, pieces, head)
                return not status or status not in LAST_ANSWERS
            case BadLength(length):
                self._malformed += 1
                log.warning("iggy frame too short", peer=peer, length=length)
                await self._send(served, Status.INVALID_COMMAND)
                return True
            case TooLarge(code, length, head):
                self._malformed += 1
                log.warning("iggy frame of a bad length", peer=peer, code=code, length=length)
                await self._send(served, Status.INVALID_COMMAND, head=head)
                return False
            case OtherFraming():
                self._malformed += 1
                log.warning("iggy client speaks a framing this server does not", peer=peer)
                return False

    async def _send(
        self,
        served: _Open[S],
        status: int,
        pieces: Sequence[Buffer] = (),
        head: Head | None = None,
    ) -> None:
        held = served.held
        length = sum(map(len, pieces))
        self._held.set(held, held.bytes + length)
        held.phase, held.since = Phase.ANSWERING, self._monotonic()
        served.connection.write(encode_answer(head, status, pieces))
        await served.connection.drain()
        self._held.set(held, held.bytes - length)

    async def _call(self, session: S, code: int, payload: memoryview, head: Head | None) -> Answer:
        try:
            status, pieces = await self._on_request(session, code, payload, head)
        except HeadraceError as error:
            return status_of(error), ()
        return status, pieces if status == Status.OK else ()


def _look_at_nothing(data: memoryview) -> bool:
    return False


def _do_nothing() -> None: ...


def _is_behind(connection: Connection) -> bool:
    return isinstance(connection, DirectConnection) and connection.is_behind()
