"""The requests of one SBP connection: from a frame that was read to the answer that is written.

Each request runs in a task of its own: a slow FETCH holds up nobody, answers leave in the order
they are ready. An APPEND needs no task: it takes its offset as soon as it is read, so offsets
follow the order of arrival, and is answered when it is stored.

An answer waits for the one before it to be taken, so a peer that does not read stops itself; if the
peer takes nothing for `write_timeout` the connection is cut. A peer that asks for more than it
takes, or whose role has much to do, is asked for a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from headrace.errors import DeadlineError, HeadraceError, UnavailableError
from headrace.net.admission import Fairness, Held, HeldBytes, Phase
from headrace.net.flow import CONNECTION_PAUSE_MS_MAX, ROLE_PAUSE_MS_MAX, Gate, pause_ms, with_pause
from headrace.net.sbp_routes import (
    READS,
    Payload,
    Peer,
    Reply,
    Route,
    Routes,
    Standing,
    closing,
    identify,
)
from headrace.net.tls import TlsAcceptor
from headrace.observability.logging import REQUEST_ID, get_logger
from headrace.runtime.interfaces import Buffer, Connection, DirectConnection, Runtime
from headrace.wire.sbp.connection import REQUEST_HEADER_BYTES_MAX, Request, ServerConnection
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.frames import FRAME_BYTES_MAX, payload_bytes
from headrace.wire.sbp.messages import HeartbeatRequest, Message
from headrace.wire.sbp.multipart import encode_answer
from headrace.wire.sbp.opcodes import Code, Opcode

log = get_logger(__name__)

_THROTTLED = frozenset({Code.APPEND, Code.FETCH})
_LARGE_ANSWERS = READS - {Code.FETCH} | {Code.DESCRIBE_RANGES}  # FETCH keeps account by itself
_LARGE_ANSWER_BYTES = 256 << 10  # what such an answer counts for until its size is known
_AT_ONCE_BYTES = 4 << 10  # answers without data
_TIMEOUT_MARGIN = 0.5  # a handler that keeps the request's own deadline answers better than we


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Seconds and bytes; each bounds what a peer can take from the others."""

    connections_max: int = 1024
    requests_in_flight_max: int = 1024  # per connection; then it is not read
    bytes_in_flight_max: int = 32 << 20  # of requests, per connection; then it is not read
    reply_bytes_max: int = 16 << 20  # read for a peer that has not taken it, per connection
    fetches_waiting_max: int = 64  # for room to be read into; then the peer is asked to pause
    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = REQUEST_HEADER_BYTES_MAX
    stranger_frame_bytes_max: int = 64 << 10  # of a peer that may do nothing without a credential
    held_bytes_max: int = 128 << 20  # over all connections of peers that are no nodes
    nodes_held_bytes_max: int = 512 << 20  # over all connections of nodes
    pressure_timeout: float = 5.0  # a peer that takes, or sends, nothing while others need room
    proof_timeout: float = 15.0  # for a credential, where nothing is served without
    idle_timeout: float = 15.0  # without a frame and with nothing in flight
    frame_timeout: float = 60.0  # from one complete frame to the next, when one has begun
    write_timeout: float = 30.0  # a peer that takes no bytes for so long is cut off
    linger: float = 1.0  # after the last answer, for the peer to hang up
    grace: float = 12.0  # for requests in flight when the connection ends


@dataclass(slots=True)
class ServerState:
    """What all connections of one server share: handlers, rules, limits, memory and counters."""

    runtime: Runtime
    routes: Routes
    authorize: Callable[[Opcode, Peer], None]
    standing: Callable[[Peer], Standing]
    secret: bytes | None
    limits: ServerLimits
    on_goaway: Callable[[Peer], None] | None
    pressure: Callable[[], float] | None
    tls: TlsAcceptor | None
    held_by_nodes: HeldBytes = field(init=False)
    held_by_others: HeldBytes = field(init=False)
    fairness: Fairness = field(default_factory=Fairness)
    requests: int = 0
    throttled: int = 0
    cut_off: int = 0

    def __post_init__(self) -> None:
        self.held_by_nodes = HeldBytes(self.limits.nodes_held_bytes_max)
        self.held_by_others = HeldBytes(self.limits.held_bytes_max)

    def pool(self, standing: Standing) -> HeldBytes:
        return self.held_by_nodes if standing is Standing.NODE else self.held_by_others


class RequestRunner:
    """Runs the requests of one connection and writes their answers."""

    def __init__(
        self,
        server: ServerState,
        core: ServerConnection,
        connection: Connection,
        peer: Peer,
        *,
        gate: Gate,
        replies: Gate,
        flight: Held,
        on_proof: Callable[[], None],
    ) -> None:
        """`gate` counts requests until they are answered, `replies` what is in memory for the peer
        until the peer takes it. `on_proof` is called when a HEARTBEAT may have proved something."""
        self._server = server
        self._limits = server.limits
        self._core = core
        self._peer = peer
        self._gate = gate
        self._replies = replies
        self._flight = flight
        self._on_proof = on_proof
        self._loop = asyncio.get_running_loop()
        self._monotonic = server.runtime.clock.monotonic
        self.active = self._monotonic()
        """When the peer last had something to react to: silence is counted from here."""
        self.tasks: dict[asyncio.Future[Any], Code] = {}
        """What is being worked on."""
        self._answers: list[Buffer] = []  # ready, to be written before this turn is over
        self._answered: list[Request] = []
        self._writing = asyncio.Lock()
        self.use(connection)

    def use(self, connection: Connection) -> None:
        """Write to this connection from now on: TLS puts another one in front of the first."""
        self._connection = connection
        self._direct = connection if isinstance(connection, DirectConnection) else None

    def dispatch(self, request: Request) -> None:
        """Start the handler; without waiting, so that handlers start in the order of arrival."""
        self._server.requests += 1
        route = self._server.routes.table[request.opcode.code]
        try:
            message = self._admit(request)
            if route.at_once:
                self._call(route, request, message)
                return
            work = self._serve(route, request, message)
        except HeadraceError as error:
            work = self._refuse(request, error)
        self._start(work, request)

    def _start(self, work: Coroutine[Any, Any, None], request: Request) -> None:
        task = self._loop.create_task(work, name=f"sbp {request.opcode.name}")
        self.tasks[task] = request.opcode.code
        task.add_done_callback(self.tasks.pop)

    def _call(self, route: Route, request: Request, message: Message) -> None:
        """A handler that needs no task."""
        before = REQUEST_ID.set((self._peer.address, request.stream_id))
        try:
            reply = self._ask(route, request, message)
            self.tasks[reply] = request.opcode.code
            reply.add_done_callback(partial(self._on_reply, request))
        finally:
            REQUEST_ID.reset(before)  # this runs in the connection's own task

    def _ask(self, route: Route, request: Request, message: Message) -> asyncio.Future[Reply]:
        payload = (request.payload,) if request.payload else ()
        try:
            reply = route.handler(message, payload, self._peer)
        except HeadraceError:
            raise
        except Exception as error:
            log.error("handler failed", opcode=request.opcode.name, exc_info=error)
            raise HeadraceError("internal error") from error
        assert isinstance(reply, asyncio.Future)
        return reply

    def _on_reply(self, request: Request, done: asyncio.Future[Reply]) -> None:
        del self.tasks[done]
        if done.cancelled():  # nobody waits any more
            self._leave(request)
            return
        error = done.exception()
        if error is None:
            reply = self._throttle(request, done.result())
            for header, payload, last in _frames(reply, last=True):
                self._answers += self._core.respond(request, header, payload, last=last)
            if not self._answered:
                self._loop.call_soon(self.flush)
            self._answered.append(request)
            return
        if not isinstance(error, HeadraceError):
            log.error("handler failed", opcode=request.opcode.name, exc_info=error)
            error = HeadraceError("internal error")
        self._start(self._refuse(request, error), request)

    def flush(self) -> None:
        """Answers that are ready in one turn of the loop leave together: one call of the kernel
        here, and one waking of the peer."""
        answers, self._answers = self._answers, []
        answered, self._answered = self._answered, []
        if not answered:
            return
        if answers and not self._write_at_once(answers):
            self._start(self._write_late(answers, answered), answered[0])
            return
        for request in answered:
            self._leave(request)

    async def _write_late(self, answers: list[Buffer], answered: list[Request]) -> None:
        await self.write(answers)
        for request in answered:
            self._leave(request)

    def _admit(self, request: Request) -> Message:
        """The decoded request, if the peer may make it."""
        opcode = request.opcode
        assert opcode.request is not None, "PING and GOAWAY never get here"
        if opcode.code is not Code.HEARTBEAT:
            self._server.authorize(opcode, self._peer)
            return decode(opcode.request, request.header)
        heartbeat = decode(HeartbeatRequest, request.header)
        now_ms = self._server.runtime.clock.now_ms()
        identify(self._peer, heartbeat, secret=self._server.secret, now_ms=now_ms)
        self._server.authorize(opcode, self._peer)
        self._on_proof()
        return heartbeat

    async def _serve(self, route: Route, request: Request, message: Message) -> None:
        REQUEST_ID.set((self._peer.address, request.stream_id))
        timer = self._start_timer(request, message)
        try:
            payload = (request.payload,) if request.payload else ()
            if request.opcode.code in _LARGE_ANSWERS:
                await self._serve_large(route, request, message)
                return
            reply = await route.handler(message, payload, self._peer)
            if not isinstance(reply, Reply):
                await self._send_all(request, reply)
            elif reply.payload:
                await self._send_held(request, reply)
            else:
                await self._send(request, reply, last=True)
        except HeadraceError as error:
            await self._fail(request, error)
        except Exception as error:
            log.error("handler failed", opcode=request.opcode.name, exc_info=error)
            await self._fail(request, HeadraceError("internal error"))
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(request)

    async def _serve_large(self, route: Route, request: Request, message: Message) -> None:
        """A question is looked at when the answers before it, if large, were taken."""
        size = _LARGE_ANSWER_BYTES
        await self._replies.enter(size)
        try:
            reply = await route.handler(message, (), self._peer)
            assert isinstance(reply, Reply), "only FETCH answers piece by piece"
            frames = [
                self._core.respond(request, header, payload, last=last)
                for header, payload, last in _frames(reply, last=True)
            ]
            before, size = size, sum(len(piece) for pieces in frames for piece in pieces)
            self._replies.resize(before, size)
            for pieces in frames:
                await self.write(pieces)
        finally:
            self._replies.leave(size)

    async def _refuse(self, request: Request, error: HeadraceError) -> None:
        await self._fail(request, error)
        self._leave(request)

    def _leave(self, request: Request) -> None:
        self._gate.leave(request.bytes)
        self.active = self._monotonic()

    def _start_timer(self, request: Request, message: Message) -> asyncio.TimerHandle | None:
        timeout_ms = getattr(message, "timeout_ms", 0)
        if timeout_ms <= 0:
            return None
        delay = timeout_ms / 1000 + _TIMEOUT_MARGIN
        return self._loop.call_later(delay, self._on_timeout, request)

    def _on_timeout(self, request: Request) -> None:
        """Every request is answered in time; the work goes on and its result is dropped."""
        pieces = self._core.fail(request, DeadlineError("timeout"))
        if pieces:
            self._connection.write(pieces)

    async def _send_all(self, request: Request, replies: AsyncIterator[Reply]) -> None:
        async with closing(replies):
            async for reply in replies:
                await self._send(request, reply, last=reply.last)
                if reply.last:
                    return
        # That the last one was the last is known only now: an empty one says so.
        assert request.opcode.response is not None
        header = encode(request.opcode.response())
        await self.write(self._core.respond(request, header, (), last=True))

    async def _send_held(self, request: Request, reply: Reply) -> None:
        """What is in memory for the peer counts until it is taken."""
        size = reply.held
        if not size:
            size = payload_bytes(reply.payload)
            self._replies.force(size)
        try:
            await self._send(request, reply, last=True)
        finally:
            self._replies.leave(size)

    async def _send(self, request: Request, reply: Reply, *, last: bool) -> None:
        if request.opcode.code in _THROTTLED:
            reply = self._throttle(request, reply)
        for header, payload, is_last in _frames(reply, last=last):
            pieces = self._core.respond(request, header, payload, last=is_last)
            if not self._write_at_once(pieces):
                await self.write(pieces)

    def _throttle(self, request: Request, reply: Reply) -> Reply:
        """Ask for a pause when this role or this connection has much to do."""
        limits = self._limits
        pressure = self._server.pressure
        pause = 0
        if request.opcode.code is Code.FETCH:
            # The peer asks for more than it takes: others of its requests wait for that.
            level = self._replies.waiting / limits.fetches_waiting_max
        else:
            level = (self._gate.bytes - request.bytes) / limits.bytes_in_flight_max
            if pressure is not None:
                pause = pause_ms(pressure(), ROLE_PAUSE_MS_MAX)
        pause = max(pause, pause_ms(level, CONNECTION_PAUSE_MS_MAX))
        message = with_pause(reply.message, pause)
        if message is reply.message:
            return reply
        self._server.throttled += 1
        return msgspec.structs.replace(reply, message=message)

    async def _fail(self, request: Request, error: HeadraceError) -> None:
        await self.write(self._core.fail(request, error))

    def _write_at_once(self, pieces: list[Buffer]) -> bool:
        """Without waiting, when nobody writes and the peer keeps up; False leaves it to `write`.

        A frame that makes the peer fall behind is the next one's to wait for.
        """
        if self._direct is None or self._writing.locked() or self._direct.is_behind():
            return False
        if payload_bytes(pieces) > _AT_ONCE_BYTES:
            return False
        self._connection.write(pieces if len(pieces) == 1 else [b"".join(pieces)])
        return True

    async def write(self, pieces: list[Buffer]) -> None:
        """One frame at a time, so that what is queued for a slow peer is about one frame."""
        if not pieces:
            return
        try:
            async with self._writing:
                self._connection.write(pieces)
                if self._direct is not None and not self._direct.is_behind():
                    return  # it went out: a timer for each answer would be for nothing
                self._flight.phase, self._flight.since = Phase.ANSWERING, self._monotonic()
                async with asyncio.timeout(self._limits.write_timeout):
                    await self._connection.drain()
                self._flight.phase = Phase.HANDLING
        except TimeoutError:
            log.warning("peer takes no bytes", peer=self._peer.address)
            self._connection.abort()
        except UnavailableError:
            pass  # the reader sees it too and ends the connection


def _frames(reply: Reply, *, last: bool) -> list[tuple[bytes, Payload, bool]]:
    """Header and payload of each frame, and whether it ends the answer."""
    *before, (header, payload) = encode_answer(reply.message, reply.payload)
    return [*((*each, False) for each in before), (header, payload, last)]
