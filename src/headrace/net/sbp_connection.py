"""One SBP connection: reading it, what its peer has proved and may hold, and how it ends.

Reading stops while too many requests or bytes are in flight, and while all connections together
hold too much (`admission.py`). A connection that sends many requests at once gives way to the
others after each few. Whoever has proved nothing gets small frames and little time.

The end, also of an idle connection: GOAWAY with the highest id received, finish what is in flight,
wait a moment for the peer to hang up (a reset would destroy what it has not read), close.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from headrace.errors import RemoteProtocolError, UnauthenticatedError, UnavailableError
from headrace.net.admission import REQUESTS_MAX, WAITED_SECONDS, Held, Phase
from headrace.net.flow import Gate
from headrace.net.sbp_requests import RequestRunner, ServerState
from headrace.net.sbp_routes import READS, Peer, Standing
from headrace.net.tls import TlsRequiredError
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Connection
from headrace.wire.sbp.connection import Answer, GoAway, Request, ServerConnection, ServerEvent
from headrace.wire.sbp.frames import OVERHEAD_BYTES

log = get_logger(__name__)

_RETIRE_POLL = 0.01


class _Ending(Enum):
    ENDED = auto()  # the peer said so
    BROKEN = auto()
    ABANDONED = auto()  # by whoever runs us


class ServedConnection:
    """One connection, from its first byte to its end."""

    def __init__(self, server: ServerState, connection: Connection) -> None:
        limits = server.limits
        self._server = server
        self._limits = limits
        self._connection = connection
        self._core = ServerConnection(
            server.routes.role,
            frame_bytes_max=limits.frame_bytes_max,
            header_bytes_max=limits.header_bytes_max,
        )
        self._monotonic = server.runtime.clock.monotonic
        self._started = now = self._monotonic()
        self.address = connection.peer
        self.cut = False
        self.partial, self.flight = Held(connection, now), Held(connection, now)
        self.flight.phase = Phase.HANDLING
        self.replies = Gate(limits.requests_in_flight_max, limits.reply_bytes_max, self)
        self._peer = Peer(address=connection.peer, reply_gate=self.replies)
        self.standing = server.standing(self._peer)
        self.pool = server.pool(self.standing)
        self._set_limits()
        self._retiring: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self.gate = Gate(limits.requests_in_flight_max, limits.bytes_in_flight_max, _Counted(self))
        self._requests = RequestRunner(
            server,
            self._core,
            connection,
            self._peer,
            gate=self.gate,
            replies=self.replies,
            flight=self.flight,
            on_proof=self._on_proof,
        )

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
                self._requests.use(self._connection)
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
                self._requests.active = self._monotonic()
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

    # What the connection holds: see `flow.Pool`

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

    def cut_off(self, reason: str, *, tell: bool = True) -> None:
        self.cut = True
        self._server.cut_off += 1
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
            await self._requests.write(event.pieces)
        elif isinstance(event, Request):
            if not self.gate.enter_at_once(event.bytes):
                await self.gate.enter(event.bytes)
            self._requests.dispatch(event)
        elif self._server.on_goaway is not None:
            assert isinstance(event, GoAway)
            self._server.on_goaway(self._peer)

    def on_tick(self, now: float) -> None:
        if self._retiring is not None or self._ended.is_set():
            return
        limits = self._limits
        if self.standing is Standing.STRANGER and now - self._started >= limits.proof_timeout:
            self.cut_off("no credential")
            return
        if self.gate.count:
            return
        limit = limits.frame_timeout if self._core.inside_frame else limits.idle_timeout
        if now - self._requests.active >= limit:
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
        while (self._requests.tasks or self._core.in_flight) and not self._ended.is_set():
            left = deadline - clock.monotonic()
            if left <= 0:
                break
            if self._requests.tasks:
                await asyncio.wait(list(self._requests.tasks), timeout=left)
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
        self._requests.flush()
        if ending is _Ending.ENDED:
            await self._wait_for_tasks(self._limits.linger)
        for task, code in list(self._requests.tasks.items()):
            if code in READS:
                task.cancel()
        if ending is not _Ending.ABANDONED:
            await self._wait_for_tasks(self._limits.grace)
        for task in list(self._requests.tasks):
            task.cancel()
        await self._wait_for_tasks(None)
        if self._retiring is not None:
            await asyncio.gather(self._retiring, return_exceptions=True)

    async def _wait_for_tasks(self, timeout: float | None) -> None:
        if self._requests.tasks:
            await asyncio.wait(list(self._requests.tasks), timeout=timeout)


class _Counted:
    """Requests in flight count, and none of them waits: they are in memory already."""

    def __init__(self, connection: ServedConnection) -> None:
        self._connection = connection

    def on_change(self, count: int) -> None:
        self._connection.on_change(count)

    def fits(self, size: int) -> bool:
        return True

    def call_when_roomy(self, gate: Gate) -> None:
        """Do nothing: the bound of the gate alone makes a request wait."""
