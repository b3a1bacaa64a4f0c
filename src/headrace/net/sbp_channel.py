"""Calls to an SBP peer, over TCP or inside this process, with the same outcome.

A call ends with a reply, or with the error that the peer's status stands for; with DeadlineError
when its time is up (the peer may still carry it out and its answer is dropped); with
UnavailableError when the connection is lost or takes no new requests. `refused` in its data says
that the peer never looked at the request. A channel that broke stays broken: making a new one is
the caller's business.

A peer under pressure asks for a pause (`throttle_time_ms`): calls then wait here, in their order,
and end with ThrottledError, never sent, when their time is up meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidArgumentError,
    RemoteProtocolError,
    ThrottledError,
    UnavailableError,
)
from headrace.net.credentials import NodeCredential
from headrace.net.flow import Gate, seconds_of
from headrace.net.sbp_routes import (
    READS,
    Payload,
    Peer,
    Reply,
    Route,
    Routes,
    closing,
    identify,
)
from headrace.net.tls import ClientTls, secure
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Connection, DirectConnection, Runtime
from headrace.wire.sbp.connection import (
    Answer,
    Assembler,
    BadResponse,
    ClientConnection,
    ClientEvent,
    GoAway,
    Response,
)
from headrace.wire.sbp.errors import error_of, raise_for_status, status_of
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.frames import FRAME_BYTES_MAX, payload_bytes
from headrace.wire.sbp.messages import (
    AppendRequest,
    ClientRole,
    DataNode,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    SystemErrorResponse,
)
from headrace.wire.sbp.multipart import encode_replicated
from headrace.wire.sbp.opcodes import TABLE, Code

log = get_logger(__name__)

_UNTHROTTLED = frozenset({Code.PING, Code.GOAWAY, Code.HEARTBEAT})  # they keep it alive


class Channel(Protocol):
    def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Awaitable[Reply]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    requests_in_flight_max: int = 1024
    bytes_in_flight_max: int = 32 << 20
    frame_bytes_max: int = FRAME_BYTES_MAX
    heartbeat_interval: float = 5.0  # of silence
    heartbeat_timeout: float = 10.0  # then the connection counts as broken


class _Sent(NamedTuple):
    code: Code
    header: bytes
    payload: Payload
    response: type[Message] | None
    size: int  # of what the gate bounds; -1 for what passes by it
    deadline: float


class _Pending:
    """A call that waits for the rest of its answer."""

    __slots__ = ("answer", "assembler", "response")

    def __init__(self, response: type[Message] | None, loop: asyncio.AbstractEventLoop) -> None:
        self.response = response
        self.assembler = Assembler()
        self.answer: asyncio.Future[Reply] = loop.create_future()

    def fail(self, error: HeadraceError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def expire(self, code: Code, peer: str) -> None:
        self.fail(DeadlineError("no answer in time", opcode=code.name, peer=peer))


class TcpChannel:
    """One connection; any number of calls at a time. Made by `connect`."""

    def __init__(
        self, runtime: Runtime, connection: Connection, heartbeat: HeartbeatRequest,
        limits: ChannelLimits,
    ) -> None:  # fmt: skip
        self._clock = runtime.clock
        self._connection = connection
        self._direct = connection if isinstance(connection, DirectConnection) else None
        self._heartbeat = heartbeat
        self._limits = limits
        self._core = ClientConnection(frame_bytes_max=limits.frame_bytes_max)
        self._gate = Gate(limits.requests_in_flight_max, limits.bytes_in_flight_max)
        self._pending: dict[int, _Pending] = {}
        self._broken: HeadraceError | None = None
        self._heard = runtime.clock.monotonic()
        self._held_until = 0.0
        self._holding: asyncio.TimerHandle | None = None
        self.on_goaway: Callable[[], None] | None = None
        self._loop = loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._read(), name="sbp channel reader"),
            loop.create_task(self._keep_alive(), name="sbp channel heartbeat"),
        ]

    @classmethod
    async def connect(
        cls,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        client_id: str,
        role: ClientRole,
        credential: bytes = b"",
        node: DataNode | None = None,
        timeout: float = 1.0,
        limits: ChannelLimits | None = None,
        tls: ClientTls | None = None,
    ) -> TcpChannel:
        """Connect and introduce ourselves; UnauthorizedError when the credential is not good."""
        connection = await runtime.transport.connect(host, port, timeout=timeout)
        if tls is not None:
            connection = await secure(connection, tls, host, timeout=max(timeout, 3.0))
        heartbeat = HeartbeatRequest(client_id, role, node, credential)
        channel = cls(runtime, connection, heartbeat, limits or ChannelLimits())
        try:
            await channel.heartbeat(timeout=max(timeout, 3.0))
        except BaseException:
            await channel.close()
            raise
        return channel

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def usable(self) -> bool:
        """Whether a new call has a chance: neither broken nor told to go away."""
        return self._broken is None and not self._core.going_away

    def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> asyncio.Future[Reply]:
        """Requests leave in the order of the calls, whether or not anybody waits."""
        replicated = encode_replicated(message) if isinstance(message, AppendRequest) else None
        header = replicated or encode(message)
        return self._request(code, header, payload, TABLE[code].response, timeout)

    async def heartbeat(self, *, credential: bytes = b"", timeout: float = 3.0) -> None:
        """Introduce ourselves again, from now on with another credential if one is given."""
        old = self._heartbeat
        shown = credential or old.credential
        new = HeartbeatRequest(old.client_id, old.client_role, old.data_node, shown)
        reply = await self.call(Code.HEARTBEAT, new, timeout=timeout)
        assert isinstance(reply.message, HeartbeatResponse)
        raise_for_status(reply.message.status)
        self._heartbeat = new

    async def ping(self, payload: bytes = b"", *, timeout: float = 3.0) -> float:
        """Round trip in seconds."""
        start = self._clock.monotonic()
        await self._request(Code.PING, b"", (payload,), None, timeout)
        return self._clock.monotonic() - start

    async def leave(self, *, timeout: float = 3.0) -> None:
        """Say GOAWAY: this client sends no more requests. Answers in flight still arrive."""
        await self._request(Code.GOAWAY, b"", (), None, timeout)

    async def close(self) -> None:
        self._break(UnavailableError("channel closed", peer=self.peer))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.wait_closed()

    def _request(
        self,
        code: Code,
        header: bytes,
        payload: Payload,
        response: type[Message] | None,
        timeout: float,
    ) -> asyncio.Future[Reply]:
        size = len(header) + payload_bytes(payload) if code not in _UNTHROTTLED else -1
        sent = _Sent(code, header, payload, response, size, self._loop.time() + timeout)
        if size < 0 or self._gate.enter_at_once(size):
            return self._exchange(sent)
        return self._loop.create_task(self._exchange_in_line(sent))

    async def _exchange_in_line(self, sent: _Sent) -> Reply:
        try:
            async with asyncio.timeout_at(sent.deadline):
                await self._gate.enter(sent.size)
        except TimeoutError as error:
            if self._gate.held:
                raise ThrottledError("the peer asked for a pause", peer=self.peer) from error
            raise DeadlineError(
                "no answer in time", opcode=sent.code.name, peer=self.peer
            ) from error
        return await self._exchange(sent)

    def _pause(self, seconds: float) -> None:
        """Send nothing new for a while; of several pauses the one that ends last counts."""
        if seconds <= 0:
            return
        until = self._loop.time() + seconds
        if until <= self._held_until or self._broken is not None:
            return
        self._held_until = until
        self._gate.hold()
        if self._holding is not None:
            self._holding.cancel()
        self._holding = self._loop.call_at(until, self._gate.release)

    def _exchange(self, sent: _Sent) -> asyncio.Future[Reply]:
        """Without a task: a primary sends one of these to each replica for every append."""
        pending = _Pending(sent.response, self._loop)
        try:
            if self._broken is not None:
                raise UnavailableError(self._broken.message, peer=self.peer, refused=True)
            if sent.code is Code.GOAWAY:
                stream_id, pieces = self._core.go_away()
            else:
                stream_id, pieces = self._core.request(sent.code, sent.header, sent.payload)
        except HeadraceError as error:
            self._leave(sent.size)
            pending.fail(error)
            return pending.answer
        self._pending[stream_id] = pending
        # A timer of our own: `asyncio.timeout` takes several times as long.
        timer = self._loop.call_at(sent.deadline, pending.expire, sent.code, self.peer)
        pending.answer.add_done_callback(partial(self._on_answered, stream_id, sent.size, timer))
        self._connection.write(pieces)  # the gate bounds what waits to be sent
        return pending.answer

    def _on_answered(
        self, stream_id: int, size: int, timer: asyncio.TimerHandle, _: asyncio.Future[Reply]
    ) -> None:
        timer.cancel()
        self._core.forget(stream_id)
        del self._pending[stream_id]
        self._leave(size)
        self._close_if_done()

    def _leave(self, size: int) -> None:
        if size >= 0:
            self._gate.leave(size)

    def _close_if_done(self) -> None:
        """After GOAWAY the connection ends with its last answer."""
        if self._core.going_away and not self._pending:
            self._break(UnavailableError("connection ended by GOAWAY", peer=self.peer))

    async def _read(self) -> None:
        try:
            while (events := await self._receive()) is not None:
                self._heard = self._clock.monotonic()
                for event in events:
                    await self._on_event(event)
                if self._core.failure is not None:
                    raise self._core.failure
            self._break(UnavailableError("connection closed by the peer", peer=self.peer))
        except RemoteProtocolError as error:
            log.warning("bad bytes from a peer", peer=self.peer, reason=str(error))
            self._break(UnavailableError(f"connection given up: {error.message}", peer=self.peer))
        except UnavailableError as error:
            self._break(error)

    async def _receive(self) -> list[ClientEvent] | None:
        """What the next bytes mean, None after the last; large answers go where they stay."""
        room = self._core.room() if self._direct is not None else None
        if room is None or self._direct is None:
            data = await self._connection.receive()
            return self._core.receive(data) if data else None
        filled = await self._direct.receive_into(room)
        return self._core.fill(filled) if filled == len(room) else None

    async def _on_event(self, event: ClientEvent) -> None:
        if isinstance(event, Answer):
            self._connection.write(event.pieces)
            await self._connection.drain()
        elif isinstance(event, GoAway):
            for stream_id in event.refused:
                error = UnavailableError("peer is going away", peer=self.peer, refused=True)
                self._pending[stream_id].fail(error)
            self._close_if_done()
            if self.on_goaway is not None:
                self.on_goaway()
        elif isinstance(event, BadResponse):
            error = UnavailableError(f"answer not understood: {event.reason}", peer=self.peer)
            self._pending[event.stream_id].fail(error)
        else:
            pending = self._pending[event.stream_id]
            try:
                self._on_response(event, pending)
            except HeadraceError as error:
                pending.fail(error)

    def _on_response(self, event: Response, pending: _Pending) -> None:
        if event.is_system_error:
            status = decode(SystemErrorResponse, event.header).status
            try:
                raise_for_status(status)
            except ThrottledError as error:
                self._pause(seconds_of(error.data.get("throttle_time_ms")))
                raise
            raise RemoteProtocolError("system error without an error")
        if pending.answer.done():
            return
        if pending.response is None:
            pending.answer.set_result(Reply(Message(), (event.payload,)))
            return
        message = decode(pending.response, event.header)
        self._pause(seconds_of(getattr(message, "throttle_time_ms", 0)))
        payload = (event.payload,) if event.payload else ()
        pending.assembler.add(message, payload, header_bytes=len(event.header))
        if event.is_last:
            pending.answer.set_result(Reply(*pending.assembler.finish()))

    async def _keep_alive(self) -> None:
        interval = self._limits.heartbeat_interval
        while self.usable:
            left = self._heard + interval - self._clock.monotonic()
            if left > 0:
                await self._clock.sleep(left)
                continue
            try:
                await self.heartbeat(timeout=self._limits.heartbeat_timeout)
            except DeadlineError:
                self._break(UnavailableError("no answer to a heartbeat", peer=self.peer))
            except UnavailableError:
                return
            except HeadraceError as error:
                # An expired ticket, say. The owner renews it; calls tell it meanwhile.
                log.info("heartbeat refused", peer=self.peer, reason=str(error))

    def _break(self, error: HeadraceError) -> None:
        if self._broken is not None:
            return
        self._broken = error
        if self._holding is not None:
            self._holding.cancel()
            self._gate.release()  # whoever waits learns that it is over
        for pending in self._pending.values():
            pending.fail(UnavailableError(error.message, **error.data))
        self._connection.close()


class InProcessChannel:
    """Calls a role in this process: objects are handed over, nothing is encoded or copied.

    As over TCP the work belongs to the server: it goes on when the caller stops waiting, unless it
    only reads. The peer counts as one that proved the node credential.
    """

    def __init__(self, routes: Routes, peer: Peer, *, grace: float = 12.0) -> None:
        self._routes = routes
        self._peer = peer
        self._grace = grace
        self._tasks: dict[asyncio.Task[Reply], Code] = {}
        self._closed = False
        self.local = routes.local
        """The shorter way to a data node; errors that come this way go through `as_over_tcp`."""
        peer.in_process = True
        peer.credential = peer.credential or NodeCredential()

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        if self._closed:
            raise UnavailableError("channel closed", refused=True)
        route = self._routes.table.get(code)
        if route is None:
            raise InvalidArgumentError(f"{code.name} is not served here")
        if isinstance(message, HeartbeatRequest):
            identify(self._peer, message, secret=None, now_ms=0)
        task = asyncio.get_running_loop().create_task(self._serve(route, message, payload))
        self._tasks[task] = code
        task.add_done_callback(self._on_done)
        try:
            await asyncio.wait((task,), timeout=timeout)
        finally:
            if code in READS and not task.done():
                task.cancel()
        if not task.done():
            raise DeadlineError("no answer in time", opcode=code.name)
        if task.cancelled():
            raise UnavailableError("channel closed")
        return task.result()

    async def close(self) -> None:
        self._closed, self.local = True, None
        for task, code in list(self._tasks.items()):
            if code in READS:
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._grace)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _serve(self, route: Route, message: Message, payload: Payload) -> Reply:
        try:
            reply = await route.handler(message, payload, self._peer)
            if isinstance(reply, Reply):
                return reply
            return await _collect(reply)
        except HeadraceError as error:
            raise as_over_tcp(error) from error
        except Exception as error:
            log.error("handler failed", opcode=route.opcode.name, exc_info=error)
            raise UnavailableError("internal error") from error

    def _on_done(self, task: asyncio.Task[Reply]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # a caller that stopped waiting is not told


def as_over_tcp(error: HeadraceError) -> HeadraceError:
    """Through the same table, so that callers see the same classes either way."""
    return error_of(status_of(error))


async def _collect(replies: AsyncIterator[Reply]) -> Reply:
    assembler = Assembler()
    async with closing(replies):
        async for reply in replies:
            assembler.add(reply.message, reply.payload)
    return Reply(*assembler.finish())
