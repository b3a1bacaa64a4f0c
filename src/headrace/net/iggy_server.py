"""The connection loop of Iggy's classic framing: read, decode, hand over, answer in order.

One request of a connection is handled at a time, as the protocol has it; requests that arrive
meanwhile wait in the connection, which stops reading when too many bytes wait. What commands mean,
who may send them and when a silent client is dropped is the business of whoever gives `on_request`.

A connection ends when the peer ends it, when it sends a frame above the limit (answered first),
when it speaks another framing, when the answer was STALE_CLIENT or CLIENT_NOT_FOUND, or by `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from headrace.errors import HeadraceError, UnavailableError
from headrace.net.addresses import format_address
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Buffer, Connection, Listener, Runtime
from headrace.wire.iggy.errors import Status, status_of
from headrace.wire.iggy.frames import (
    FRAME_BYTES_MAX,
    SEND_FRAME_BYTES_MAX,
    BadLength,
    OtherFraming,
    RequestDecoder,
    RequestEvent,
    RequestFrame,
    TooLarge,
    encode_response,
)

log = get_logger(__name__)

S = TypeVar("S")
Answer: TypeAlias = tuple[int, Sequence[Buffer]]

_LAST_ANSWERS = frozenset((Status.STALE_CLIENT, Status.CLIENT_NOT_FOUND))


@dataclass(frozen=True, slots=True, kw_only=True)
class IggyLimits:
    connections_max: int = 4096
    """Connections above it are closed at once."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    send_frame_bytes_max: int = SEND_FRAME_BYTES_MAX
    close_seconds_max: float = 5.0
    """How long `close` waits for requests in progress."""


@dataclass(slots=True, eq=False)
class _Open:
    """A connection being served."""

    connection: Connection
    task: asyncio.Task[object] | None
    busy: bool = False


class IggyServer(Generic[S]):
    """Serves connections from `start` to `close`.

    `open_session` is called for each accepted connection and `close_session` once it is over.
    `on_request` gets the session, the code and the payload (a writable buffer it owns) and gives
    the status with the reply's pieces; a HeadraceError it raises is answered with its number.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        open_session: Callable[[Connection], S],
        on_request: Callable[[S, int, memoryview], Awaitable[Answer]],
        close_session: Callable[[S], None],
        limits: IggyLimits | None = None,
    ) -> None:
        self._runtime = runtime
        self._open_session = open_session
        self._on_request = on_request
        self._close_session = close_session
        self._limits = limits or IggyLimits()
        self._listener: Listener | None = None
        self._connections: dict[_Open, None] = {}  # a set that keeps its order
        self._closing = False
        self._requests = 0
        self._refused = 0
        self._malformed = 0

    async def start(self, host: str, port: int) -> None:
        self._listener = await self._runtime.transport.listen(host, port, self.serve)

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
            "requests": self._requests,
            "connections_refused": self._refused,
            "frames_malformed": self._malformed,
        }

    async def close(self) -> None:
        """Stop accepting, let requests in progress be answered, then end what is left."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        for served in self._connections:
            if not served.busy:
                served.connection.close()
        tasks = [served.task for served in self._connections if served.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._limits.close_seconds_max)
            for task in tasks:
                task.cancel()  # nothing for those that are done
            if late:
                await asyncio.wait(late)
        if self._listener is not None:
            await self._listener.wait_closed()

    async def serve(self, connection: Connection) -> None:
        """Serve one connection until it is over. `start` does this for every accepted one."""
        if self._closing or len(self._connections) >= self._limits.connections_max:
            self._refused += 1
            log.warning(
                "iggy connection refused", peer=connection.peer, open=len(self._connections)
            )
            return
        served = _Open(connection, asyncio.current_task())
        self._connections[served] = None
        session = self._open_session(connection)
        try:
            await self._serve(served, session)
        except UnavailableError:
            log.debug("iggy connection broke", peer=connection.peer)
        finally:
            del self._connections[served]
            self._close_session(session)
            connection.close()

    async def _serve(self, served: _Open, session: S) -> None:
        decoder = RequestDecoder(
            frame_bytes_max=self._limits.frame_bytes_max,
            send_frame_bytes_max=self._limits.send_frame_bytes_max,
        )
        while data := await served.connection.receive():
            for event in decoder.feed(data):
                served.busy = True
                goes_on = await self._answer(served.connection, session, event)
                served.busy = False
                if not goes_on or self._closing:
                    return

    async def _answer(self, connection: Connection, session: S, event: RequestEvent) -> bool:
        """Answer one event; False when the connection is over."""
        match event:
            case RequestFrame(code, payload):
                status, pieces = await self._call(session, code, payload)
                connection.write(encode_response(status, pieces))
                await connection.drain()
                return status not in _LAST_ANSWERS
            case BadLength(length):
                self._malformed += 1
                log.warning("iggy frame too short", peer=connection.peer, length=length)
                connection.write(encode_response(Status.INVALID_COMMAND))
                await connection.drain()
                return True
            case TooLarge(code, length):
                self._malformed += 1
                log.warning("iggy frame too large", peer=connection.peer, code=code, length=length)
                connection.write(encode_response(Status.INVALID_COMMAND))
                return False
            case OtherFraming():
                self._malformed += 1
                log.warning(
                    "iggy client speaks a framing this server does not (0.9.0 and newer)",
                    peer=connection.peer,
                )
                return False

    async def _call(self, session: S, code: int, payload: memoryview) -> Answer:
        self._requests += 1
        try:
            status, pieces = await self._on_request(session, code, payload)
        except HeadraceError as error:
            return status_of(error), ()
        return status, pieces if status == Status.OK else ()
