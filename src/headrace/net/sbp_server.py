"""Serves SBP over TCP.

Per connection one task reads, and each request runs in a task of its own: a slow FETCH holds up
nobody, answers leave in the order they are ready. An APPEND needs no task: it takes its offset as
soon as it is read, so offsets follow the order of arrival, and is answered when it is stored. A
connection that sends many requests at once gives way to the others after each few (`admission.py`).

What a peer can cost is bounded. Reading stops while too many requests or bytes are in flight, and
an answer waits for the one before it to be taken, so a peer that does not read stops itself; if it
takes nothing for `write_timeout` the connection is cut. Silence closes a connection too.

What all connections hold (half a frame, requests, answers that are not taken) is bounded as well:
past the limit they wait for each other (`admission.py`), and who stands still is cut off. Nodes of
the cluster have a limit of their own, so that nobody else can make them wait. Whoever has proved
nothing gets small frames and little time, and goes first when all connections are taken.

Shutdown, also of an idle connection: GOAWAY with the highest id received, finish what is in flight,
wait a moment for the peer to hang up (a reset would destroy what it has not read), close.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import msgspec

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    RemoteProtocolError,
    UnauthenticatedError,
    UnavailableError,
)
from headrace.net.addresses import format_address
from headrace.net.admission import (
    REQUESTS_MAX,
    WAITED_SECONDS,
    Fairness,
    Held,
    HeldBytes,
    NowAndThen,
    Phase,
    pick,
)
from headrace.net.flow import CONNECTION_PAUSE_MS_MAX, ROLE_PAUSE_MS_MAX, Gate, pause_ms, with_pause
from headrace.net.sbp_routes import (
    READS,
    Handler,
    Payload,
    Peer,
    Reply,
    Route,
    Routes,
    build_routes,
    closing,
    identify,
)
from headrace.net.tls import TlsAcceptor, TlsRequiredError
from headrace.observability.logging import REQUEST_ID, get_logger
from headrace.runtime.interfaces import Buffer, Connection, DirectConnection, Listener, Runtime
from headrace.wire.sbp.connection import (
    REQUEST_HEADER_BYTES_MAX,
    Answer,
    GoAway,
    Request,
    ServerConnection,
    ServerEvent,
)
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.frames import FRAME_BYTES_MAX, OVERHEAD_BYTES, payload_bytes
from headrace.wire.sbp.messages import HeartbeatRequest, Message
from headrace.wire.sbp.multipart import encode_answer
from headrace.wire.sbp.opcodes import Code, Opcode

__all__ = [
    "Handler", "Payload", "Peer", "Reply", "Routes", "SbpServer", "ServerLimits", "Standing",
    "build_routes",
]  # fmt: skip

log = get_logger(__name__)

_RETIRE_POLL = 0.01
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


class Standing(Enum):
    """What a peer has proved."""

    NODE = auto()
    READER = auto()  # by a ticket: it asks, and stores nothing
    GUEST = auto()  # nothing, and may use plain streams all the same
    STRANGER = auto()


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
        self.runtime = runtime
        self.routes = routes
        self.authorize = authorize
        self.standing = standing
        self.secret = secret
        self.limits = limits or ServerLimits()
        self._of_nodes = HeldBytes(self.limits.nodes_held_bytes_max)
        self._of_others = HeldBytes(self.limits.held_bytes_max)
        self.on_goaway = on_goaway
        self.pressure = pressure
        self.tls = tls
        self.fairness = Fairness()
        self._slots = NowAndThen()
        self._throttled = 0
        self._listener: Listener | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._serving: dict[_Serving, None] = {}  # ordered, so that a simulated run repeats
        self._closing = False
        self._requests = 0
        self._refused = 0
        self._cut_off = 0

    async def start(self, host: str, port: int) -> None:
        self._listener = await self.runtime.transport.listen(host, port, self._on_connection)
        self._reaper = asyncio.get_running_loop().create_task(self._reap(), name="sbp reaper")

    @property
    def address(self) -> str:
        assert self._listener is not None, "not started"
        return format_address(self._listener.host, self._listener.port)

    def statistics(self) -> dict[str, int]:
        return {
            "connections": len(self._serving),
            "requests_in_flight": sum(each.gate.count for each in self._serving),
            "request_bytes_in_flight": sum(each.gate.bytes for each in self._serving),
            "reply_bytes_held": sum(each.replies.bytes for each in self._serving),
            "requests": self._requests,
            "connections_refused": self._refused,
            "connections_cut_off": self._cut_off,
            "held_bytes": self._of_nodes.total + self._of_others.total,
            "answers_throttled": self._throttled,
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
        await asyncio.gather(*[each.retire() for each in self._serving])
        await self._listener.wait_closed()

    def count_request(self) -> None:
        self._requests += 1

    def count_throttled(self) -> None:
        self._throttled += 1

    def pool(self, standing: Standing) -> HeldBytes:
        return self._of_nodes if standing is Standing.NODE else self._of_others

    async def _on_connection(self, connection: Connection) -> None:
        if self._closing or not self._make_room():
            self._refused += 1
            connection.write(ServerConnection(self.routes.role).go_away())
            return
        serving = _Serving(self, connection)
        self._serving[serving] = None
        try:
            await serving.run()
        finally:
            del self._serving[serving]

    def _make_room(self) -> bool:
        """For one more connection; False when all are taken by peers that may stay."""
        if len(self._serving) < self.limits.connections_max:
            return True
        unproven = (Standing.STRANGER, Standing.GUEST)
        gone = pick(each for each in self._serving if each.standing in unproven and not each.cut)
        if gone is None:
            return False
        due = self._slots.is_due(self.runtime.clock.monotonic())
        self.cut_off(gone, "all connections are taken", tell=due)
        return True

    def cut_off(self, serving: _Serving, reason: str, *, tell: bool = True) -> None:
        self._cut_off += 1
        serving.cut_off(reason, tell=tell)

    async def _reap(self) -> None:
        """Retire connections that fell silent, end those that stand in others' way."""
        pools = (self._of_nodes, self._of_others)
        calm, pressed = min(1.0, self.limits.idle_timeout / 4), self.limits.pressure_timeout / 10
        while True:
            wanted = any(pool.is_wanted for pool in pools)
            await self.runtime.clock.sleep(min(calm, pressed) if wanted else calm)
            now = self.runtime.clock.monotonic()
            for serving in list(self._serving):
                serving.on_tick(now)
            for pool in pools:
                if pool.is_wanted:
                    self._relieve(pool, now)

    def _relieve(self, pool: HeldBytes, now: float) -> None:
        found = [each for each in self._serving if each.pool is pool and not each.cut]
        by_held = {each.partial: each for each in found} | {each.flight: each for each in found}
        for held in pool.slowest(by_held, now, self.limits.pressure_timeout):
            if not by_held[held].cut:
                self.cut_off(by_held[held], "memory is short")


class _Ending(Enum):
    ENDED = auto()  # the peer said so
    BROKEN = auto()
    ABANDONED = auto()  # by whoever runs us


class _Serving:
    """One connection."""

    def __init__(self, server: SbpServer, connection: Connection) -> None:
        limits = server.limits
        self._server = server
        self._limits = limits
        self._connection = connection
        self._direct = connection if isinstance(connection, DirectConnection) else None
        self._core = ServerConnection(
            server.routes.role,
            frame_bytes_max=limits.frame_bytes_max,
            header_bytes_max=limits.header_bytes_max,
        )
        self._monotonic = server.runtime.clock.monotonic
        self._started = self._active = now = self._monotonic()
        self.address = connection.peer
        self.cut = False
        self.partial, self.flight = Held(connection, now), Held(connection, now)
        self.flight.phase = Phase.HANDLING
        self.replies = Gate(limits.requests_in_flight_max, limits.reply_bytes_max, self)
        self._peer = Peer(address=connection.peer, reply_gate=self.replies)
        self.standing = server.standing(self._peer)
        self.pool = server.pool(self.standing)
        self._set_limits()
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Future[Any], Code] = {}  # of what is being worked on
        self._answers: list[Buffer] = []  # ready, to be written before this turn is over
        self._answered: list[Request] = []
        self._retiring: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._ended = asyncio.Event()
        self.gate = Gate(limits.requests_in_flight_max, limits.bytes_in_flight_max, _Counted(self))

    async def run(self) -> None:
        """Read until the peer ends or breaks the connection, then finish what it asked for."""
        ending = _Ending.BROKEN
        try:
            data = await self._begin()
            while data:
                await self._on_data(data)
                if self._core.failure is not None:
                    raise self._core.failure
                data = await self._receive()
            ending = _Ending.ENDED
        except RemoteProtocolError as error:
            log.warning("bad bytes from a peer", peer=self._peer.address, reason=str(error))
            self._connection.write(self._core.go_away())  # at best; it closes right after
        except UnavailableError:
            pass  # the peer is gone
        except asyncio.CancelledError:
            ending = _Ending.ABANDONED
            raise
        finally:
            self._ended.set()
            self._core.end()  # now, not when the garbage collector comes by
            self.pool.drop(self.partial)
            await self._finish(ending)
            self.pool.drop(self.flight)

    async def _begin(self) -> bytes:
        """The first bytes of the protocol, out of TLS if the peer began with it."""
        if self._server.tls is not None:
            try:
                self._connection, first = await self._server.tls.accept(self._connection)
                found = self._connection
                self._direct = found if isinstance(found, DirectConnection) else None
            except TlsRequiredError as error:
                self._tell_tls(error.first)
                raise
            if first:
                return first
        return await self._connection.receive()

    def _tell_tls(self, first: bytes) -> None:
        """Say it in the protocol's own words: a closed connection tells nobody what to do."""
        for event in self._core.receive(first):
            if isinstance(event, Request):
                error = UnauthenticatedError("this port takes TLS connections only")
                self._connection.write(self._core.fail(event, error))

    async def _on_data(self, data: bytes) -> None:
        """All requests in it, giving way now and then."""
        events = self._core.receive(data, self._frames_max)
        while True:
            for event in events:
                self._active = self._monotonic()
                await self._on_event(event)
            if not self._core.has_more:
                break
            await self._server.fairness.give_way()
            events = self._core.receive_more(self._frames_max)
        if events or not self.partial.bytes:
            self.partial.since = self._monotonic()  # a frame begins
        self.pool.set(self.partial, self._core.buffered_bytes)
        if not self.partial.bytes:
            self.pool.pass_turn(self.partial)

    async def _receive(self) -> bytes:
        if self.pool.over:
            begun, self.partial.phase = self._monotonic(), Phase.PAUSED
            await self.pool.wait_room(self.partial)
            self.partial.phase = Phase.RECEIVING
            self.partial.since += self._monotonic() - begun  # not the peer's time
        asked = self._monotonic()
        data = await self._connection.receive()
        if self._monotonic() - asked < WAITED_SECONDS:
            await self._server.fairness.give_way()
        return data

    # What it holds: see `flow.Pool`

    def on_change(self, count: int) -> None:
        self.pool.set(self.flight, self.flight.bytes + count)

    def fits(self, size: int) -> bool:
        return self.pool.fits(size)

    def call_when_roomy(self, gate: Gate) -> None:
        self.pool.call_when_roomy(gate)

    def _set_limits(self) -> None:
        """Whoever has proved nothing gets little memory, and frames are looked at one by one: what
        comes behind a credential is read with the limits that it gives."""
        limits, standing = self._limits, self.standing
        self._frames_max = REQUESTS_MAX
        frame, header = limits.frame_bytes_max, limits.header_bytes_max
        if standing is Standing.READER:
            frame = min(frame, header + OVERHEAD_BYTES)
        elif standing is Standing.STRANGER:
            self._frames_max = 1
            frame = header = min(frame, limits.stranger_frame_bytes_max)
        self._core.set_limits(frame_bytes_max=frame, header_bytes_max=header)

    def _on_proof(self) -> None:
        standing = self._server.standing(self._peer)
        if standing is self.standing:
            return
        self.standing, before = standing, self.pool
        self.pool = self._server.pool(standing)
        self._set_limits()
        if self.pool is not before:
            for held in (self.partial, self.flight):
                count = held.bytes
                before.drop(held)
                self.pool.set(held, count)

    def cut_off(self, reason: str, *, tell: bool) -> None:
        self.cut = True
        if tell:
            log.warning(
                "sbp connection cut off",
                peer=self.address,
                reason=reason,
                held_bytes=self.partial.bytes + self.flight.bytes,
            )
        self._connection.abort()
        self.pool.give_up(self.partial)

    async def _on_event(self, event: ServerEvent) -> None:
        if isinstance(event, Answer):
            await self._write(event.pieces)
        elif isinstance(event, Request):
            if not self.gate.enter_at_once(event.bytes):
                await self.gate.enter(event.bytes)
            self._dispatch(event)
        elif self._server.on_goaway is not None:
            assert isinstance(event, GoAway)
            self._server.on_goaway(self._peer)

    def _dispatch(self, request: Request) -> None:
        """Start the handler; without waiting, so that handlers start in the order of arrival."""
        self._server.count_request()
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
        self._tasks[task] = request.opcode.code
        task.add_done_callback(self._tasks.pop)

    def _call(self, route: Route, request: Request, message: Message) -> None:
        """A handler that needs no task."""
        before = REQUEST_ID.set((self._peer.address, request.stream_id))
        try:
            reply = self._ask(route, request, message)
            self._tasks[reply] = request.opcode.code
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
        del self._tasks[done]
        if done.cancelled():  # nobody waits any more
            self._leave(request)
            return
        error = done.exception()
        if error is None:
            reply = self._throttle(request, done.result())
            for header, payload, last in _frames(reply, last=True):
                self._answers += self._core.respond(request, header, payload, last=last)
            if not self._answered:
                self._loop.call_soon(self._flush)
            self._answered.append(request)
            return
        if not isinstance(error, HeadraceError):
            log.error("handler failed", opcode=request.opcode.name, exc_info=error)
            error = HeadraceError("internal error")
        self._start(self._refuse(request, error), request)

    def _flush(self) -> None:
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
        await self._write(answers)
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
        await self.replies.enter(size)
        try:
            reply = await route.handler(message, (), self._peer)
            assert isinstance(reply, Reply), "only FETCH answers piece by piece"
            frames = [
                self._core.respond(request, header, payload, last=last)
                for header, payload, last in _frames(reply, last=True)
            ]
            before, size = size, sum(len(piece) for pieces in frames for piece in pieces)
            self.replies.resize(before, size)
            for pieces in frames:
                await self._write(pieces)
        finally:
            self.replies.leave(size)

    async def _refuse(self, request: Request, error: HeadraceError) -> None:
        await self._fail(request, error)
        self._leave(request)

    def _leave(self, request: Request) -> None:
        self.gate.leave(request.bytes)
        # The peer has only now something to react to: silence is counted from here.
        self._active = self._server.runtime.clock.monotonic()

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
        await self._write(self._core.respond(request, header, (), last=True))

    async def _send_held(self, request: Request, reply: Reply) -> None:
        """What is in memory for the peer counts until it is taken."""
        size = reply.held
        if not size:
            size = payload_bytes(reply.payload)
            self.replies.force(size)
        try:
            await self._send(request, reply, last=True)
        finally:
            self.replies.leave(size)

    async def _send(self, request: Request, reply: Reply, *, last: bool) -> None:
        if request.opcode.code in _THROTTLED:
            reply = self._throttle(request, reply)
        for header, payload, is_last in _frames(reply, last=last):
            pieces = self._core.respond(request, header, payload, last=is_last)
            if not self._write_at_once(pieces):
                await self._write(pieces)

    def _throttle(self, request: Request, reply: Reply) -> Reply:
        """Ask for a pause when this role or this connection has much to do."""
        limits = self._limits
        pressure = self._server.pressure
        pause = 0
        if request.opcode.code is Code.FETCH:
            # The peer asks for more than it takes: others of its requests wait for that.
            level = self.replies.waiting / limits.fetches_waiting_max
        else:
            level = (self.gate.bytes - request.bytes) / limits.bytes_in_flight_max
            if pressure is not None:
                pause = pause_ms(pressure(), ROLE_PAUSE_MS_MAX)
        pause = max(pause, pause_ms(level, CONNECTION_PAUSE_MS_MAX))
        message = with_pause(reply.message, pause)
        if message is reply.message:
            return reply
        self._server.count_throttled()
        return msgspec.structs.replace(reply, message=message)

    async def _fail(self, request: Request, error: HeadraceError) -> None:
        await self._write(self._core.fail(request, error))

    def _write_at_once(self, pieces: list[Buffer]) -> bool:
        """Without waiting, when nobody writes and the peer keeps up; False leaves it to `_write`.

        A frame that makes the peer fall behind is the next one's to wait for.
        """
        if self._direct is None or self._writing.locked() or self._direct.is_behind():
            return False
        if payload_bytes(pieces) > _AT_ONCE_BYTES:
            return False
        self._connection.write(pieces if len(pieces) == 1 else [b"".join(pieces)])
        return True

    async def _write(self, pieces: list[Buffer]) -> None:
        """One frame at a time, so that what is queued for a slow peer is about one frame."""
        if not pieces:
            return
        try:
            async with self._writing:
                self._connection.write(pieces)
                if self._direct is not None and not self._direct.is_behind():
                    return  # it went out: a timer for each answer would be for nothing
                self.flight.phase, self.flight.since = Phase.ANSWERING, self._monotonic()
                async with asyncio.timeout(self._limits.write_timeout):
                    await self._connection.drain()
                self.flight.phase = Phase.HANDLING
        except TimeoutError:
            log.warning("peer takes no bytes", peer=self._peer.address)
            self._connection.abort()
        except UnavailableError:
            pass  # the reader sees it too and ends the connection

    def on_tick(self, now: float) -> None:
        if self._retiring is not None or self._ended.is_set():
            return
        limits = self._limits
        if self.standing is Standing.STRANGER and now - self._started >= limits.proof_timeout:
            self._server.cut_off(self, "no credential")
            return
        if self.gate.count:
            return
        limit = limits.frame_timeout if self._core.inside_frame else limits.idle_timeout
        if now - self._active >= limit:
            self._retiring = asyncio.get_running_loop().create_task(self._retire())

    async def retire(self) -> None:
        """End the connection in good order."""
        if self._retiring is None:
            self._retiring = asyncio.get_running_loop().create_task(self._retire())
        await asyncio.gather(self._retiring, return_exceptions=True)

    async def _retire(self) -> None:
        self._connection.write(self._core.go_away())  # a few bytes: not worth waiting in line
        clock = self._server.runtime.clock
        deadline = clock.monotonic() + self._limits.grace
        while (self._tasks or self._core.in_flight) and not self._ended.is_set():
            left = deadline - clock.monotonic()
            if left <= 0:
                break
            if self._tasks:
                await asyncio.wait(list(self._tasks), timeout=left)
            else:
                await clock.sleep(_RETIRE_POLL)  # the reader has yet to start what it received
        try:
            async with asyncio.timeout(self._limits.linger):
                await self._ended.wait()
        except TimeoutError:
            self._connection.close()
            self.pool.give_up(self.partial)

    async def _finish(self, ending: _Ending) -> None:
        """The peer sends nothing more. What it asked to be done is done; what it only wanted to
        know is dropped, at once if it is gone, else after a moment: it may still be reading."""
        self._flush()
        if ending is _Ending.ENDED:
            await self._wait_for_tasks(self._limits.linger)
        for task, code in list(self._tasks.items()):
            if code in READS:
                task.cancel()
        if ending is not _Ending.ABANDONED:
            await self._wait_for_tasks(self._limits.grace)
        for task in list(self._tasks):
            task.cancel()
        await self._wait_for_tasks(None)
        if self._retiring is not None:
            await asyncio.gather(self._retiring, return_exceptions=True)

    async def _wait_for_tasks(self, timeout: float | None) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout)


class _Counted:
    """Requests in flight count, and none of them waits: they are in memory already."""

    def __init__(self, serving: _Serving) -> None:
        self._serving = serving

    def on_change(self, count: int) -> None:
        self._serving.on_change(count)

    def fits(self, size: int) -> bool:
        return True

    def call_when_roomy(self, gate: Gate) -> None:
        """Its own bound alone makes it wait."""


def _frames(reply: Reply, *, last: bool) -> list[tuple[bytes, Payload, bool]]:
    """Header and payload of each frame, and whether it ends the answer."""
    *before, (header, payload) = encode_answer(reply.message, reply.payload)
    return [*((*each, False) for each in before), (header, payload, last)]
