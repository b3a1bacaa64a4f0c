"""Hadoop RPC on a Transport: a server for one protocol, and one client connection.

The server answers out of order, one task per call, at most CALLS_IN_FLIGHT_MAX per connection
(then it stops reading). A call that repeats (client id, call id) gets the first one's answer, also
while that is still being worked on, because a client that lost its connection cannot know whether
its heartbeat was taken. What it remembers is bounded by count and bytes; callers must
therefore be idempotent all the same.

With a `look_up` every client must log in with a token (SASL DIGEST-MD5) before its first call, and
a handler is told who it was. What fails to log in is told why, logged and closed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from headrace.errors import (
    ConfigError,
    DeadlineError,
    HeadraceError,
    RemoteProtocolError,
    UnavailableError,
    WireError,
)
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Connection, Listener, Runtime
from headrace.wire.umbilical import rpc
from headrace.wire.umbilical.frames import FRAME_BYTES_MAX
from headrace.wire.umbilical.sasl import ClientLogin, LookUp, ServerLogin
from headrace.wire.umbilical.tokens import Token

log = get_logger(__name__)

CALLS_IN_FLIGHT_MAX = 64
CONNECTIONS_MAX = 1024
IDLE_SECONDS_MAX = 300.0  # a Hadoop client pings every minute
LOGIN_SECONDS_MAX = 10.0
REMEMBERED_CALLS_MAX = 8_192
REMEMBERED_BYTES_MAX = 16 * 1024 * 1024

_NONCE_BYTES = 16

Handler: TypeAlias = Callable[[bytes, str], Awaitable[bytes]]
"""The request's body and who calls: the owner of the token, empty where none is asked for."""


class RpcRemoteError(HeadraceError):
    """The server answered with an exception; `exception_class` is its Java name."""

    def __init__(self, error: rpc.RpcError) -> None:
        super().__init__(error.text, exception_class=error.exception_class)
        self.error = error


class HadoopRpcServer:
    """Serves `handlers` (by method name) of one protocol.

    Close: stop accepting, let calls in flight answer for a while, then end every connection.
    """

    def __init__(
        self,
        runtime: Runtime,
        protocol: str,
        version: int,
        handlers: Mapping[str, Handler],
        *,
        look_up: LookUp | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        connections_max: int = CONNECTIONS_MAX,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
    ) -> None:
        self._runtime = runtime
        self._protocol = protocol
        self._version = version
        self._handlers = dict(handlers)
        self._look_up = look_up
        self._frame_bytes_max = frame_bytes_max
        self._connections_max = connections_max
        self._idle_seconds_max = idle_seconds_max
        self._remembered = _Remembered()
        self._listener: Listener | None = None
        self._connections: dict[Connection, asyncio.Task[None] | None] = {}
        self._calls: dict[asyncio.Task[None], None] = {}
        self._served = 0
        self._repeated = 0
        self._refused = 0

    async def start(self, host: str, port: int) -> None:
        self._listener = await self._runtime.transport.listen(host, port, self._serve)

    @property
    def host(self) -> str:
        return self._open_listener.host

    @property
    def port(self) -> int:
        return self._open_listener.port

    @property
    def _open_listener(self) -> Listener:
        if self._listener is None:
            raise ConfigError("the server is not started")
        return self._listener

    def statistics(self) -> dict[str, int]:
        return {
            "connections": len(self._connections),
            "calls_in_flight": len(self._calls),
            "calls_served": self._served,
            "calls_repeated": self._repeated,
            "connections_refused": self._refused,
        }

    async def close(self, *, grace_seconds: float = 1.0) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=grace_seconds)
        for call in list(self._calls):
            call.cancel()
        tasks = [task for task in self._connections.values() if task is not None]
        for connection in list(self._connections):
            connection.close()
        for task in tasks:
            task.cancel()
        if waiting := [*tasks, *self._calls]:
            await asyncio.wait(waiting)
        if self._listener is not None:
            await self._listener.wait_closed()

    async def _serve(self, connection: Connection) -> None:
        if len(self._connections) >= self._connections_max:
            self._refused += 1
            log.warning("rpc_connection_refused", peer=connection.peer, reason="too many")
            return
        self._connections[connection] = asyncio.current_task()
        try:
            await self._read(connection)
        except UnavailableError:
            pass  # the peer went away; so do we
        except WireError as error:
            self._refused += 1
            log.warning("rpc_connection_refused", peer=connection.peer, reason=str(error))
        finally:
            del self._connections[connection]

    async def _read(self, connection: Connection) -> None:
        events = rpc.ServerConnection(self._frame_bytes_max, self._make_login())
        slots = asyncio.Semaphore(CALLS_IN_FLIGHT_MAX)
        try:
            async with asyncio.timeout(LOGIN_SECONDS_MAX):
                while not events.ready:
                    if not await self._receive(connection, events, slots):
                        return
        except TimeoutError:
            raise RemoteProtocolError("no login in time") from None
        try:
            while True:
                async with asyncio.timeout(self._idle_seconds_max):
                    if not await self._receive(connection, events, slots):
                        return
        except TimeoutError:
            return

    def _make_login(self) -> ServerLogin | None:
        if self._look_up is None:
            return None
        return ServerLogin(self._look_up, self._runtime.random.bytes(_NONCE_BYTES).hex())

    async def _receive(
        self, connection: Connection, events: rpc.ServerConnection, slots: asyncio.Semaphore
    ) -> bool:
        """Whether there may be more."""
        data = await connection.receive()
        for event in events.feed(data):
            if isinstance(event, rpc.Refusal):
                connection.write([event.reply])
                raise RemoteProtocolError(event.reason)
            if isinstance(event, rpc.LoginReply):
                connection.write([event.reply])
            elif isinstance(event, rpc.Request):
                await slots.acquire()
                self._start_call(connection, event, events.user, slots)
        return bool(data)

    def _start_call(
        self, connection: Connection, request: rpc.Request, caller: str, slots: asyncio.Semaphore
    ) -> None:
        async def call() -> None:
            try:
                connection.write([await self._answer(request, caller)])
                await connection.drain()
            except UnavailableError:
                pass  # nobody waits for the answer any more; a repeated call will find it
            finally:
                slots.release()

        task = asyncio.get_running_loop().create_task(call(), name=f"rpc {request.method}")
        self._calls[task] = None
        task.add_done_callback(lambda done: self._calls.pop(done, None))

    async def _answer(self, request: rpc.Request, caller: str) -> bytes:
        # The caller too: nobody is given an answer that was made for somebody else.
        key = (caller, request.client_id, request.call_id)
        if len(request.client_id) != rpc.CLIENT_ID_BYTES:
            return _with_retry_count(await self._outcome(request, caller), request)
        known = self._remembered.find(key)
        if known is not None:
            self._repeated += 1
            # Shielded: one repeater that gives up must not take the answer from the others.
            return _with_retry_count(await asyncio.shield(known), request)
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._remembered.add(key, answer)
        try:
            result = await self._outcome(request, caller)
        except BaseException:
            self._remembered.forget(key)
            answer.cancel()
            raise
        answer.set_result(result)
        self._remembered.settle(key, result)
        return _with_retry_count(result, request)

    async def _outcome(self, request: rpc.Request, caller: str) -> _Answer:
        self._served += 1
        if refusal := self._check(request):
            return refusal
        try:
            return await self._handlers[request.method](request.body, caller)
        except HeadraceError as error:
            return _application_error(str(error))
        except Exception:
            # The top of a task: a handler's bug costs this call, not the connection.
            log.exception("rpc_call_failed", method=request.method)
            return _application_error("internal error; the server's log has the details")

    def _check(self, request: rpc.Request) -> rpc.RpcError | None:
        codes = rpc.ErrorCode
        if request.protocol != self._protocol:
            text = f"unknown protocol {request.protocol}"
            return rpc.RpcError(rpc.NO_SUCH_PROTOCOL, text, codes.ERROR_NO_SUCH_PROTOCOL)
        if request.protocol_version != self._version:
            text = f"version {request.protocol_version} of {self._protocol}, not {self._version}"
            return rpc.RpcError(rpc.VERSION_MISMATCH, text, codes.ERROR_RPC_VERSION_MISMATCH)
        if request.method not in self._handlers:
            text = f"unknown method {request.method} on {self._protocol}"
            return rpc.RpcError(rpc.NO_SUCH_METHOD, text, codes.ERROR_NO_SUCH_METHOD)
        return None


_Answer: TypeAlias = bytes | rpc.RpcError
_Key: TypeAlias = tuple[str, bytes, int]


def _application_error(text: str) -> rpc.RpcError:
    return rpc.RpcError(rpc.IO_EXCEPTION, text, rpc.ErrorCode.ERROR_APPLICATION)


def _with_retry_count(answer: _Answer, request: rpc.Request) -> bytes:
    """The header echoes the retry count of the call it answers, so each repeater gets its own."""
    if isinstance(answer, rpc.RpcError):
        return rpc.encode_error(request, answer)
    return rpc.encode_success(request, answer)


class _Remembered:
    """Answers by (client id, call id), oldest forgotten first; never one still being made."""

    def __init__(self) -> None:
        self._answers: OrderedDict[_Key, asyncio.Future[_Answer]] = OrderedDict()
        self._bytes = 0

    def find(self, key: _Key) -> asyncio.Future[_Answer] | None:
        return self._answers.get(key)

    def add(self, key: _Key, answer: asyncio.Future[_Answer]) -> None:
        self._answers[key] = answer

    def settle(self, key: _Key, answer: _Answer) -> None:
        self._bytes += _size(answer)
        self._answers.move_to_end(key)
        while len(self._answers) > REMEMBERED_CALLS_MAX or self._bytes > REMEMBERED_BYTES_MAX:
            oldest = next((one for one, made in self._answers.items() if made.done()), None)
            if oldest is None:
                return
            self.forget(oldest)

    def forget(self, key: _Key) -> None:
        answer = self._answers.pop(key)
        if answer.done() and not answer.cancelled():
            self._bytes -= _size(answer.result())


def _size(answer: _Answer) -> int:
    return len(answer) if isinstance(answer, bytes) else len(answer.text)


class HadoopRpcConnection:
    """A client's connection: any number of calls at a time, each with a deadline."""

    def __init__(self, connection: Connection, codec: rpc.ClientConnection) -> None:
        self._connection = connection
        self._codec = codec
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._broken: HeadraceError | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="rpc reader")

    @classmethod
    async def connect(
        cls,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        protocol: str,
        version: int,
        client_id: bytes,
        user: str,
        token: Token | None = None,
        timeout: float = 5.0,
    ) -> HadoopRpcConnection:
        """UnavailableError when nobody answers in time, UnauthenticatedError when the server does
        not take the token."""
        connection = await runtime.transport.connect(host, port, timeout=timeout)
        codec = rpc.ClientConnection(protocol, version, client_id)
        if token is None:
            connection.write([codec.greet(user)])
        else:
            login = ClientLogin(token, runtime.random.bytes(_NONCE_BYTES).hex())
            try:
                async with asyncio.timeout(timeout):
                    await _log_in(connection, codec, login)
            except BaseException as error:
                connection.abort()
                if isinstance(error, TimeoutError):
                    raise UnavailableError("no login in time", peer=connection.peer) from None
                raise
        return cls(connection, codec)

    @property
    def usable(self) -> bool:
        return self._broken is None

    async def call(
        self, call_id: int, method: str, body: bytes, *, retry_count: int = 0, timeout: float = 5.0
    ) -> bytes:
        """RpcRemoteError when the server answers with one; UnavailableError or DeadlineError when
        the outcome is unknown."""
        if self._broken is not None:
            raise UnavailableError("connection broke", peer=self._connection.peer) from self._broken
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        try:
            async with asyncio.timeout(timeout):
                self._connection.write(
                    [self._codec.call(call_id, method, body, retry_count=retry_count)]
                )
                await self._connection.drain()
                return await answer
        except TimeoutError:
            raise DeadlineError("no answer in time", method=method, seconds=timeout) from None
        finally:
            del self._waiting[call_id]
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: nobody else will look

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])
        self._connection.close()
        await self._connection.wait_closed()

    async def _read(self) -> None:
        try:
            while data := await self._connection.receive():
                for response in self._codec.feed(data):
                    self._on_response(response)
            self._fail(UnavailableError("the server closed the connection"))
        except (UnavailableError, RemoteProtocolError) as error:
            self._fail(error)
            self._connection.abort()

    def _on_response(self, response: rpc.Response) -> None:
        if response.error is not None and response.error.fatal:
            self._fail(RpcRemoteError(response.error))
        answer = self._waiting.get(response.call_id)
        if answer is None or answer.done():
            return  # its caller gave up
        if response.error is not None:
            answer.set_exception(RpcRemoteError(response.error))
        else:
            answer.set_result(response.body)

    def _fail(self, error: HeadraceError) -> None:
        self._broken = self._broken or error
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._broken)


async def _log_in(connection: Connection, codec: rpc.ClientConnection, login: ClientLogin) -> None:
    connection.write([codec.start_login(login)])
    while not login.done:
        data = await connection.receive()
        if not data:
            raise UnavailableError("the server closed the connection", peer=connection.peer)
        if answer := codec.feed_login(login, data):
            connection.write([answer])
