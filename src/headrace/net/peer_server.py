"""Serves links of other broker processes, over unix sockets and TCP.

Requests of a link are begun in the order they were sent. One whose handler answers without waiting
costs no task; the others run as a task each, and are answered when they are done, in any order.
What a link and all links together may have in flight is bounded: past it a link is not read, so
that its peer waits. No peer holds up the loop (`admission.py`). What a peer asked for is carried
out although its link broke meanwhile; nobody gets the answer.

`close`: no more links, requests that are not begun are refused, those in progress are answered,
then what is left is ended, with the connections that moved here and are still served: whoever
serves them is closed before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from headrace.errors import HeadraceError, RemoteProtocolError, UnavailableError
from headrace.net.admission import REQUESTS_MAX, Fairness, NowAndThen
from headrace.net.flow import Gate
from headrace.net.peer_channel import PeerBytes, PeerChannel, PeerLimits
from headrace.net.peer_link import INBOX_SUFFIX
from headrace.net.tls import TlsAcceptor
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import (
    TOKEN_BYTES,
    Buffer,
    Connection,
    Inbox,
    Listener,
    OnConnection,
    Runtime,
)
from headrace.wire.peer.frames import PREFIX_BYTES, Frame, Kind, encode_frame

log = get_logger(__name__)

Answer: TypeAlias = tuple[bytes, Sequence[Buffer]]
OnRequest: TypeAlias = Callable[[str, bytes, memoryview], Answer | Awaitable[Answer]]
OnNotice: TypeAlias = Callable[[str, bytes, memoryview], None]
OnMove: TypeAlias = Callable[[str, bytes], OnConnection]

_SWEEP_SECONDS = 0.1
_AT_ONCE_MAX = 32  # requests that came together and are begun without waking a task


class PeerServer:
    """Serves links from `start_unix` and `start_tcp` to `close`.

    `on_request` gets the peer's name, head and body (memory of its own) and gives the answer, or an
    awaitable of it; an error it raises is told to the caller as an unknown outcome. `on_notice`
    gets the same and gives nothing. `on_move` gets a name and a head and gives what shall serve the
    connection, or raises a HeadraceError: then the sender keeps it. `on_linked` is called when a
    peer has its first link, `on_unlinked` when its last one is over.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        secret: bytes,
        name: str,
        on_request: OnRequest,
        on_notice: OnNotice = lambda *_: None,
        on_linked: Callable[[str], None] = lambda _: None,
        on_unlinked: Callable[[str], None] = lambda _: None,
        on_move: OnMove | None = None,
        limits: PeerLimits | None = None,
        bytes_in_flight: PeerBytes | None = None,
    ) -> None:
        self.runtime = runtime
        self.name = name
        self.on_request = on_request
        self.on_notice = on_notice
        self.on_move = on_move
        self.limits = limits or PeerLimits()
        self.bytes_in_flight = bytes_in_flight or PeerBytes()
        self.fairness = Fairness()
        self.is_closing = False
        self._secret = secret
        self._on_linked = on_linked
        self._on_unlinked = on_unlinked
        self._listeners: list[Listener] = []
        self.inboxes: list[Inbox] = []
        self._links: dict[_Served, None] = {}
        self._strangers: dict[Connection, None] = {}
        self._named: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moved: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._refusals = NowAndThen()
        self._refused = 0

    async def start_unix(self, path: str) -> None:
        if self.on_move is not None:
            self.inboxes.append(self.runtime.transport.open_inbox(path + INBOX_SUFFIX))
        self._listeners.append(await self.runtime.transport.listen_unix(path, self._serve))

    async def start_tcp(self, host: str, port: int, tls: TlsAcceptor | None = None) -> Listener:
        async def serve(connection: Connection) -> None:
            await self._serve(connection, tls)

        listener = await self.runtime.transport.listen(host, port, serve)
        self._listeners.append(listener)
        return listener

    def statistics(self) -> dict[str, int]:
        return {
            "links": len(self._links),
            "links_refused": self._refused,
            "requests_in_flight": sum(link.gate.count for link in self._links),
            "bytes_in_flight": self.bytes_in_flight.total,
        }

    async def close(self) -> None:
        self.is_closing = True
        for listener in self._listeners:
            listener.close()
        for inbox in self.inboxes:
            inbox.close()
        for connection in self._strangers:
            connection.abort()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self.limits.close_seconds_max)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for task in self._moved:
            task.cancel()
        if self._moved:
            await asyncio.wait(self._moved)
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        for link in self._links:
            link.channel.close()
            link.stop()
        for listener in self._listeners:
            await listener.wait_closed()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def serve_moved(self, serve: OnConnection, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(_serve_moved(serve, connection))
        self._moved.add(task)
        task.add_done_callback(self._moved.discard)

    async def _serve(self, connection: Connection, tls: TlsAcceptor | None = None) -> None:
        limits = self.limits
        strangers = len(self._strangers)
        if self.is_closing or strangers >= max(8, limits.links_max // 8):
            return self._refuse(connection, "too many who have not logged in")
        if len(self._links) >= limits.links_max:
            return self._refuse(connection, "all links are taken")
        self._strangers[connection] = None
        try:
            first = b""
            secured = connection
            if tls is not None:
                async with asyncio.timeout(limits.login_seconds):
                    secured, first = await tls.accept(connection)
            channel = PeerChannel(secured, self.runtime.clock, limits)
            await channel.log_in(
                self._secret, self.name, self.runtime.random, first, is_opener=False
            )
        except UnavailableError as error:
            return self._refuse(connection, str(error), quietly=True)
        except HeadraceError as error:
            return self._refuse(connection, str(error))
        except TimeoutError:
            return self._refuse(connection, "no TLS in time")
        finally:
            del self._strangers[connection]
        await self._serve_link(_Served(self, channel))

    def _refuse(self, connection: Connection, reason: str, *, quietly: bool = False) -> None:
        self._refused += 1
        connection.abort()
        if not quietly and self._refusals.is_due(self.runtime.clock.monotonic()):
            log.warning("link refused", peer=connection.peer, reason=reason)

    async def _serve_link(self, link: _Served) -> None:
        name = link.channel.peer_name
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        self._links[link] = None
        self._named[name] += 1
        if self._named[name] == 1:
            self._on_linked(name)
        try:
            await link.run()
        except UnavailableError as error:
            log.debug("link broke", peer=name, reason=str(error))
        except RemoteProtocolError as error:
            log.warning("bad bytes on a link", peer=name, reason=str(error))
        finally:
            link.channel.is_open = False
            link.channel.close()
            del self._links[link]
            self._named[name] -= 1
            if not self._named[name]:
                del self._named[name]
                self._on_unlinked(name)

    async def _sweep(self) -> None:
        while True:
            await self.runtime.clock.sleep(_SWEEP_SECONDS)
            now = self.runtime.clock.monotonic()
            for link in list(self._links):
                if link.channel.is_open and not link.channel.look_after(now):
                    log.warning("link cut off: its peer is silent", peer=link.channel.peer_name)
                    link.stop()


class _Served:
    """One link, from its login to its end."""

    def __init__(self, server: PeerServer, channel: PeerChannel) -> None:
        limits = server.limits
        self.channel = channel
        self.gate = Gate(
            limits.requests_in_flight_max, limits.bytes_in_flight_max, server.bytes_in_flight
        )
        self._server = server
        self._name = channel.peer_name
        self._monotonic = server.runtime.clock.monotonic
        self._unstarted = 0  # tasks that have not run yet: nobody may overtake them
        self._begun = 0  # bytes of a frame that arrives, for which there is room already
        self._task = asyncio.current_task()

    def stop(self) -> None:
        """It may wait for room, or for the peer to take something, and not see its connection
        end."""
        if self._task is not None and self.channel.is_open:
            self._task.cancel()

    async def run(self) -> None:
        channel = self.channel
        if channel.direct is not None:
            channel.direct.look_first(self._look)
        try:
            await self._read()
        except asyncio.CancelledError:
            # By `stop`, which ends this link and not the task of whoever is above.
            log.debug("link stopped", peer=self._name)
        finally:
            self._task = None
            if self._begun:
                self.gate.leave(self._begun)
            if channel.direct is not None:
                channel.direct.look_first(_look_at_nothing)

    async def _read(self) -> None:
        channel = self.channel
        while True:
            wanted = channel.decoder.next_bytes
            if wanted and not self._begun:
                await self._wait_for(self.gate.enter(wanted))
                self._begun = wanted
            frames = await channel.receive()
            if frames is None:
                return
            for position, frame in enumerate(frames, 1):
                if frame.kind != Kind.PING:
                    await self._take_in_turn(frame)
                if not position % REQUESTS_MAX:
                    await self._server.fairness.give_way()
            if channel.decoder.failure is not None:
                raise channel.decoder.failure
            if channel.is_behind:
                await self._wait_for(self._drain())

    async def _take_in_turn(self, frame: Frame) -> None:
        if self._begun:  # the first frame after its beginning
            size, self._begun = self._begun, 0
        else:
            size = _size(frame)
            if not self.gate.enter_at_once(size):
                await self._wait_for(self.gate.enter(size))
        self._take(frame, size)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._server.limits.transfer_seconds):
                await self.channel.connection.drain()
        except TimeoutError as error:
            raise UnavailableError("answers are not taken", peer=self._name) from error

    async def _wait_for(self, room: Awaitable[None]) -> None:
        """Of ours, or of the peer's: we do not read meanwhile."""
        channel = self.channel
        channel.reads = False
        try:
            await room
        finally:
            channel.reads = True
            channel.heard = self._monotonic()

    def _look(self, data: memoryview) -> bool:
        """Requests that came whole are begun without waking the task of this link."""
        channel = self.channel
        if self.gate.is_full or channel.is_behind or not channel.is_open:
            return False
        frames = channel.decoder.split(data, _AT_ONCE_MAX)
        if frames is None:
            return False
        channel.heard = self._monotonic()
        try:
            for frame in frames:
                if frame.kind != Kind.PING:
                    size = _size(frame)
                    self.gate.force(size)  # it is in memory already
                    self._take(frame, size)
        except RemoteProtocolError as error:
            log.warning("bad bytes on a link", peer=self._name, reason=str(error))
            channel.connection.abort()
        return True

    def _take(self, frame: Frame, size: int) -> None:
        """Of `size` in the gate, which it leaves when it is dealt with."""
        kind = frame.kind
        if kind == Kind.REQUEST:
            if self._server.is_closing:
                self._send(Kind.REFUSED, frame.number, b"closing")
                self.gate.leave(size)
            else:
                self._begin(frame, size)
        elif kind == Kind.NOTICE:
            if self._unstarted:
                self._unstarted += 1
                self._server.spawn(self._notice_later(frame, size))
            else:
                self._notice(frame, size)
        elif kind == Kind.MOVE:
            self._unstarted += 1
            self._server.spawn(self._move(frame, size))
        else:
            self.gate.leave(size)
            raise RemoteProtocolError("not for who listens", kind=kind)

    # -- requests

    def _begin(self, frame: Frame, size: int) -> None:
        if self._unstarted:
            self._unstarted += 1
            self._server.spawn(self._begin_later(frame, size))
            return
        try:
            answer = self._server.on_request(self._name, frame.head, frame.body)
        except Exception as error:
            self._fail(frame.number, error)
            self.gate.leave(size)
            return
        if isinstance(answer, tuple):
            self._answer(frame.number, answer)
            self.gate.leave(size)
        else:
            self._unstarted += 1
            self._server.spawn(self._finish(frame.number, answer, size))

    async def _begin_later(self, frame: Frame, size: int) -> None:
        self._unstarted -= 1
        try:
            answer = self._server.on_request(self._name, frame.head, frame.body)
            if not isinstance(answer, tuple):
                answer = await answer
        except Exception as error:
            self._fail(frame.number, error)
        else:
            self._answer(frame.number, answer)
            await self._taken()
        finally:
            self.gate.leave(size)

    async def _finish(self, number: int, answering: Awaitable[Answer], size: int) -> None:
        self._unstarted -= 1
        try:
            answer = await answering
        except Exception as error:
            self._fail(number, error)
        else:
            self._answer(number, answer)
            await self._taken()
        finally:
            self.gate.leave(size)

    async def _taken(self) -> None:
        """An answer counts as in flight until the peer takes it."""
        if self.channel.is_open and self.channel.is_behind:
            try:
                await self.channel.connection.drain()
            except UnavailableError:
                log.debug("an answer was not taken", peer=self._name)

    def _answer(self, number: int, answer: Answer) -> None:
        head, body = answer
        try:
            limit = self._server.limits.frame_bytes_max
            pieces = encode_frame(Kind.ANSWER, number, head, body, frame_bytes_max=limit)
        except HeadraceError as error:
            self._fail(number, error)
            return
        if self.channel.is_open:
            self.channel.send(pieces)

    def _fail(self, number: int, error: Exception) -> None:
        if not isinstance(error, HeadraceError):
            log.error("handler of a peer's request failed", peer=self._name, exc_info=error)
        self._send(Kind.FAILED, number, f"{type(error).__name__}: {error}".encode()[:1000])

    def _send(self, kind: Kind, number: int, head: bytes) -> None:
        if self.channel.is_open:
            self.channel.send(encode_frame(kind, number, head))

    def _notice(self, frame: Frame, size: int) -> None:
        try:
            self._server.on_notice(self._name, frame.head, frame.body)
        except Exception as error:
            log.error("handler of a peer's notice failed", peer=self._name, exc_info=error)
        finally:
            self.gate.leave(size)

    async def _notice_later(self, frame: Frame, size: int) -> None:
        self._unstarted -= 1
        self._notice(frame, size)

    # -- connections that come here

    async def _move(self, frame: Frame, size: int) -> None:
        self._unstarted -= 1
        try:
            serve, connection = await self._take_over(frame)
        except HeadraceError as error:
            self._send(Kind.REFUSED, frame.number, str(error).encode()[:1000])
            return
        finally:
            self.gate.leave(size)
        if not self.channel.is_open:
            connection.abort()  # the sender gets no answer, and closes it as well
            return
        self._send(Kind.ANSWER, frame.number, b"")
        self._server.serve_moved(serve, connection)

    async def _take_over(self, frame: Frame) -> tuple[OnConnection, Connection]:
        server = self._server
        if server.on_move is None or server.is_closing:
            raise UnavailableError("connections are not taken here")
        token, head = frame.head[:TOKEN_BYTES], frame.head[TOKEN_BYTES:]
        for inbox in server.inboxes:
            detached = inbox.take(token)
            if detached is not None:
                break
        else:
            raise UnavailableError("no connection came with it")
        try:
            serve = server.on_move(self._name, head)
            return serve, await server.runtime.transport.adopt(detached, bytes(frame.body))
        except BaseException:
            detached.release()  # the sender still has it
            raise


async def _serve_moved(serve: OnConnection, connection: Connection) -> None:
    try:
        await serve(connection)
    except Exception as error:
        log.error("connection handler failed", peer=connection.peer, exc_info=error)
    finally:
        connection.close()


def _size(frame: Frame) -> int:
    return PREFIX_BYTES + len(frame.head) + len(frame.body)


def _look_at_nothing(data: memoryview) -> bool:
    return False
