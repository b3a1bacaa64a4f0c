"""TCP, unix sockets and UDP on asyncio's transports (uvloop's in production): the system runtime's
Transport.

A connection holds at most RECEIVE_BYTES_MAX received bytes (plus one read of the transport) before
it stops reading from the socket, and `drain` waits while more than WRITE_BYTES_HIGH are queued.
Datagrams that the kernel does not take are queued up to DATAGRAM_BYTES_MAX, then dropped.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import cast

from headrace.errors import ConfigError, UnavailableError
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import (
    Address,
    Buffer,
    Connection,
    Detached,
    OnConnection,
    OnDatagram,
)
from headrace.runtime.system.descriptors import (
    SystemDetached,
    SystemInbox,
    bind_unix,
    identity_of,
    post,
    remove_own,
    short_address,
)

log = get_logger(__name__)

SCRATCH_BYTES = 256 * 1024  # one read of the transport
START_BYTES = 64 * 1024  # the same, for a reader that may have a better place for what follows
RECEIVE_BYTES_MAX = 1 << 20  # received and not yet taken: above it the socket is not read
WRITE_BYTES_HIGH = 1 << 20  # queued and not yet sent: above it `drain` waits,
WRITE_BYTES_LOW = 1 << 18  # until it falls below this
CLOSE_SECONDS_MAX = 10.0  # a closed connection that cannot send what is queued is aborted after it
UNIX_KERNEL_BYTES = 1 << 20  # asked of the kernel for each direction of a unix socket
BACKLOG = 1024
DATAGRAM_BYTES_MAX = 1 << 20  # queued and not yet taken by the kernel: above it datagrams drop
DATAGRAM_KERNEL_BYTES = 4 << 20  # asked of the kernel, which may grant less


class _Scratch(threading.local):
    """What a thread's loop reads into, for all its connections: each read is taken away before the
    next one begins."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SCRATCH_BYTES))
        self.start = self.view[:START_BYTES]


_scratch = _Scratch()


class SystemConnection(asyncio.BufferedProtocol):
    """A Connection that is also its asyncio protocol, so that nothing stands between the two.

    A reader that uses `receive_into` gets the start of something large in a small piece, and
    nothing more until it has said where the rest shall go.
    """

    def __init__(
        self, on_made: Callable[[SystemConnection], None] | None = None, first_bytes: bytes = b""
    ) -> None:
        self.peer = ""
        self.local = ""
        self._loop = asyncio.get_running_loop()
        self._on_made = on_made
        self._transport: asyncio.Transport
        self._chunks: deque[bytes] = deque([first_bytes] if first_bytes else ())
        self._chunk_bytes = len(first_bytes)
        self._direct = False
        self._made = False
        self._target: memoryview | None = None
        self._filled = 0
        self._reading_paused = False
        self._writing_paused = False
        self._ended = False  # nothing more arrives
        self._error: Exception | None = None
        self._receiver: asyncio.Future[None] | None = None
        self._look: Callable[[memoryview], bool] | None = None
        self._on_arrival: Callable[[], None] | None = None
        self._drainers: deque[asyncio.Future[None]] = deque()
        self._closed = asyncio.Event()
        self._close_timer: asyncio.TimerHandle | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._made = True
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH, low=WRITE_BYTES_LOW)
        kernel = transport.get_extra_info("socket")
        sockname = transport.get_extra_info("sockname")
        if kernel.family == socket.AF_UNIX:
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_KERNEL_BYTES)
            self.local = self.peer = "unix:"  # the path stands in for both, see whoever made it
        else:
            # Both loops set it by default today; a latency of 40 ms is not worth relying on that.
            kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.local = format_address(sockname)
            self.peer = format_address(transport.get_extra_info("peername"))
        if self._on_made is not None:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._target is not None and self._filled < len(self._target):
            return self._target[self._filled :]
        return _scratch.start if self._direct else _scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        if self._target is not None and self._filled < len(self._target):
            self._filled += nbytes
            if self._filled == len(self._target):
                self._wake_receiver()
            return
        waiting = self._receiver is not None and not self._chunks
        if waiting and self._look is not None and self._look(_scratch.view[:nbytes]):
            return
        self._chunks.append(_scratch.view[:nbytes].tobytes())
        self._chunk_bytes += nbytes
        more = self._direct and nbytes == START_BYTES
        if (more or self._chunk_bytes > RECEIVE_BYTES_MAX) and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake_receiver()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake_receiver()
        return True  # keep our half open: the answers to what was read are still to be sent

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake_drainers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._error = exc
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._closed.set()
        self._wake_receiver()
        self._wake_drainers()

    # the Connection interface

    async def receive(self) -> bytes:
        while not self._chunks:
            if self._error is not None:
                raise UnavailableError("connection broke", peer=self.peer) from self._error
            if self._ended:
                return b""
            await self._wait()
        data = self._chunks.popleft()
        self._chunk_bytes -= len(data)
        if not self._direct and self._chunk_bytes <= RECEIVE_BYTES_MAX // 2:
            self._resume_reading()
        return data

    def look_first(self, look: Callable[[memoryview], bool]) -> None:
        self._look = look

    def put_back(self, data: bytes) -> None:
        self._chunks.appendleft(data)
        self._chunk_bytes += len(data)
        self._wake_receiver()

    def has_arrived(self) -> bool:
        return bool(self._chunks) or self._ended

    def call_on_arrival(self, on_arrival: Callable[[], None]) -> None:
        self._on_arrival = on_arrival

    async def receive_into(self, target: memoryview) -> int:
        self._direct = True
        self._filled = 0
        while self._chunks and self._filled < len(target):
            data = self._chunks.popleft()
            self._chunk_bytes -= len(data)
            part = data[: len(target) - self._filled]
            target[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if len(part) < len(data):
                self._chunks.appendleft(data[len(part) :])
                self._chunk_bytes += len(data) - len(part)
        self._target = target
        try:
            while self._filled < len(target) and not self._ended:
                await self._wait()
        finally:
            self._target = None
        if self._filled < len(target) and self._error is not None:
            raise UnavailableError("connection broke", peer=self.peer) from self._error
        return self._filled

    async def _wait(self) -> None:
        """For the peer; nothing that has arrived waits here."""
        assert self._receiver is None, "one task reads a connection"
        self._resume_reading()
        self._receiver = self._loop.create_future()
        try:
            await self._receiver
        finally:
            self._receiver = None

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def write(self, pieces: Sequence[Buffer]) -> None:
        if self._transport.is_closing():
            return  # `drain` says so
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif pieces:
            # uvloop hands the pieces to writev as they are; asyncio joins them before 3.12.
            self._transport.writelines(pieces)

    def is_behind(self) -> bool:
        return self._writing_paused

    async def drain(self) -> None:
        if self._writing_paused and not self._transport.is_closing():
            drained = self._loop.create_future()
            self._drainers.append(drained)
            try:
                await drained
            finally:
                self._drainers.remove(drained)
        if self._transport.is_closing():
            raise UnavailableError("connection is closed", peer=self.peer) from self._error

    def close(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.close()
        self._close_timer = self._loop.call_later(CLOSE_SECONDS_MAX, self._transport.abort)
        self._wake_drainers()

    def abort(self) -> None:
        self._transport.abort()

    async def detach(self) -> SystemDetached:
        assert self._receiver is None, "somebody is receiving"
        transport = self._transport
        if not transport.is_closing() and not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()
        if transport.get_write_buffer_size() and not transport.is_closing():
            transport.set_write_buffer_limits(high=0)
            try:
                await self.drain()
            finally:
                if not transport.is_closing():
                    transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH, low=WRITE_BYTES_LOW)
        if transport.is_closing():
            raise UnavailableError("connection is closed", peer=self.peer) from self._error
        descriptor = os.dup(transport.get_extra_info("socket").fileno())
        detached = SystemDetached(descriptor, b"".join(self._chunks))
        self._chunks.clear()
        self._chunk_bytes = 0
        transport.abort()  # which closes one of two descriptors, and says nothing to the peer
        return detached

    def give_up(self) -> None:
        """Nobody waits for this connection any more, whether it was made or not."""
        if self._made:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def _wake_receiver(self) -> None:
        if self._receiver is None:
            if self._on_arrival is not None:
                self._on_arrival()
        elif not self._receiver.done():
            self._receiver.set_result(None)

    def _wake_drainers(self) -> None:
        for drained in self._drainers:
            if not drained.done():
                drained.set_result(None)


def stop_accepting(server: asyncio.Server) -> None:
    """To be closed one turn of the loop later.

    Of a connection that was accepted but not set up yet when its server closes, asyncio's loop (not
    uvloop) never closes the socket. In that turn it sets up those that were accepted before this.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())


class AcceptedConnections:
    """The half of a listener that every runtime has in common: one task per connection, which
    closes the connection when the handler returns or raises."""

    def __init__(self, on_connection: OnConnection) -> None:
        self._on_connection = on_connection
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, connection: Connection, context: Context | None = None) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._serve(connection), context=context)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, connection: Connection) -> None:
        try:
            await self._on_connection(connection)
        except Exception as error:
            log.error("connection handler failed", peer=connection.peer, exc_info=error)
        finally:
            connection.close()


class SystemListener:
    """Accepts on one address. `wait_closed` also waits for the tasks of accepted connections."""

    def __init__(self, on_connection: OnConnection) -> None:
        self._accepted = AcceptedConnections(on_connection)
        self._server: asyncio.Server
        self._path: tuple[str, tuple[int, int]] | None = None
        self._closing = False
        self._closed = asyncio.Event()
        self.host = ""
        self.port = 0

    async def start(
        self, family: socket.AddressFamily, address: tuple[str, int], *, reuse_port: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: SystemConnection(self._accept),
            *address,
            family=family,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
        )
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def start_unix(self, path: str) -> None:
        bound = bind_unix(path, socket.SOCK_STREAM)
        self._path = path, identity_of(path)
        self.host = path
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: SystemConnection(self._accept), sock=bound, backlog=BACKLOG
        )

    def _accept(self, connection: SystemConnection) -> None:
        if self._closing:
            connection.abort()
        else:
            if self._path is not None:
                connection.local = connection.peer = f"unix:{self.host}"
            self._accepted.start(connection)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        stop_accepting(self._server)
        asyncio.get_running_loop().call_soon(self._close)

    def _close(self) -> None:
        self._server.close()
        if self._path is not None:
            remove_own(*self._path)
        self._closed.set()

    async def wait_closed(self) -> None:
        # Not Server.wait_closed: what it waits for differs between 3.11, 3.12 and uvloop.
        await self._closed.wait()
        await self._accepted.wait()


class SystemDatagramListener(asyncio.DatagramProtocol):
    """A DatagramListener that is also its asyncio protocol."""

    def __init__(self, on_datagram: OnDatagram) -> None:
        self.host = ""
        self.port = 0
        self._on_datagram = on_datagram
        self._transport: asyncio.DatagramTransport
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.host, self.port = transport.get_extra_info("sockname")[:2]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not self._transport.is_closing():
            self._on_datagram(data, addr[:2])

    def error_received(self, exc: Exception) -> None:
        """Somebody's port is unreachable. Who waits for an answer has a timer of their own."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def send(self, data: bytes, address: Address) -> None:
        transport = self._transport
        if transport.is_closing() or not data:  # asyncio sends no empty ones before 3.13
            return
        # Both loops have this method; the stubs give it to stream transports only.
        queued: int = transport.get_write_buffer_size()  # type: ignore[attr-defined]
        if queued < DATAGRAM_BYTES_MAX:
            transport.sendto(data, address)

    def close(self) -> None:
        self._transport.close()

    async def wait_closed(self) -> None:
        await self._closed.wait()


class SystemTransport:
    async def connect(self, host: str, port: int, *, timeout: float = 1.0) -> Connection:
        loop = asyncio.get_running_loop()
        connection = SystemConnection()
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(lambda: connection, host, port)
        except asyncio.CancelledError:
            connection.give_up()  # it may have been made in this very moment
            raise
        except TimeoutError as error:
            connection.give_up()
            raise UnavailableError(
                f"cannot connect to {format_address((host, port))}: no answer within {timeout:g} s"
            ) from error
        except OSError as error:
            raise UnavailableError(
                f"cannot connect to {format_address((host, port))}: {_reason(error)}"
            ) from error
        return connection

    async def listen(
        self, host: str, port: int, on_connection: OnConnection, *, reuse_port: bool = False
    ) -> SystemListener:
        """Listens on the first address of `host`, IPv4 before IPv6: one listener has one port."""
        listener = SystemListener(on_connection)
        try:
            family, address = await _resolve(host, port, socket.SOCK_STREAM)
            await listener.start(family, address, reuse_port=reuse_port)
        except OSError as error:
            raise _cannot_listen(error, host, port) from error
        return listener

    async def connect_unix(self, path: str, *, timeout: float = 1.0) -> Connection:
        loop = asyncio.get_running_loop()
        connection = SystemConnection()
        try:
            async with asyncio.timeout(timeout):
                with short_address(path) as address:
                    await loop.create_unix_connection(lambda: connection, address)
        except asyncio.CancelledError:
            connection.give_up()
            raise
        except TimeoutError as error:
            connection.give_up()
            raise UnavailableError(
                f"cannot connect to unix:{path}: no answer within {timeout:g} s"
            ) from error
        except OSError as error:
            raise UnavailableError(f"cannot connect to unix:{path}: {_reason(error)}") from error
        connection.local = connection.peer = f"unix:{path}"
        return connection

    async def listen_unix(self, path: str, on_connection: OnConnection) -> SystemListener:
        listener = SystemListener(on_connection)
        await listener.start_unix(path)
        return listener

    def open_inbox(self, path: str) -> SystemInbox:
        return SystemInbox(path)

    def post(self, path: str, token: bytes, detached: Detached) -> bool:
        assert isinstance(detached, SystemDetached)
        return post(path, token, detached)

    async def adopt(self, detached: Detached, first_bytes: bytes = b"") -> SystemConnection:
        assert isinstance(detached, SystemDetached)
        connection = SystemConnection(first_bytes=first_bytes)
        adopted = detached.take()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, adopted)
        except OSError as error:
            adopted.close()
            raise UnavailableError(f"cannot adopt a connection: {_reason(error)}") from error
        return connection

    async def listen_datagrams(
        self, host: str, port: int, on_datagram: OnDatagram, *, reuse_port: bool = False
    ) -> SystemDatagramListener:
        """On the first address of `host`, as `listen` does."""
        loop = asyncio.get_running_loop()
        try:
            family, address = await _resolve(host, port, socket.SOCK_DGRAM)
            # Bound here, not by the loop: uvloop leaks its handle when that fails.
            bound = _bind_datagrams(family, address, reuse_port=reuse_port)
        except OSError as error:
            raise _cannot_listen(error, host, port) from error
        _, listener = await loop.create_datagram_endpoint(
            lambda: SystemDatagramListener(on_datagram), sock=bound
        )
        return listener


async def _resolve(
    host: str, port: int, kind: socket.SocketKind
) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if not host.strip():
        raise ConfigError("refusing to listen on an empty host: that is every interface there is")
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=kind, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, (str(address[0]), port)


def _bind_datagrams(
    family: socket.AddressFamily, address: tuple[str, int], *, reuse_port: bool
) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # A burst of one congestion window must fit while the loop is busy elsewhere.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DATAGRAM_KERNEL_BYTES)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, DATAGRAM_KERNEL_BYTES)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _cannot_listen(error: OSError, host: str, port: int) -> ConfigError:
    return ConfigError(f"cannot listen on {format_address((host, port))}: {_reason(error)}")


def _reason(error: OSError) -> str:
    """The system's own words: loops put their own around them, or none."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()


def format_address(name: tuple[str, int] | tuple[str, int, int, int] | None) -> str:
    if name is None:  # the peer was gone before anybody asked who it was
        return "unknown:0"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
