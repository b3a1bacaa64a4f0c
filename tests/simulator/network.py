"""A network between simulated hosts, as slow, as chopped and as broken as the seed says.

Bytes of one connection arrive in order, each chunk after a latency of its own; chunks are cut and
joined at random, because TCP promises no boundaries. A partition holds back what is under way and
what is sent meanwhile, in one direction or both, until it heals: TCP would send it again. A crash
resets connections.

`127.0.0.1`, `::1` and `localhost` mean the own host; a listener there is deaf to all others.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from enum import Enum
from itertools import count, pairwise

from headrace.errors import ConfigError, UnavailableError
from headrace.runtime.interfaces import Buffer, OnConnection, OnDatagram
from headrace.runtime.system.network import AcceptedConnections
from tests.simulator.datagrams import SimulatedDatagramListener, SimulatedDatagrams
from tests.simulator.host import ANY, LOOPBACK, Boot, check_alive
from tests.simulator.random import SimulatedRandom

Record = Callable[[str, str], None]

CHUNK_BYTES_MAX = 1 << 18  # as much as a real loop reads at once
IN_FLIGHT_BYTES_MAX = 1 << 20  # written and not yet received: above it `drain` waits
CLOSE_SECONDS_MAX = 10.0  # a closed connection that cannot send what is queued is aborted after it
_CHOPPED_ONE_IN = 6  # writes are cut at odd places, the others arrive whole
_FIRST_PORT = 49152


class _Mark(Enum):
    END = "end"
    RESET = "reset"


class SimulatedNetwork:
    def __init__(
        self, random: SimulatedRandom, record: Record, *, latency: tuple[float, float]
    ) -> None:
        self.random = random
        self.record = record
        self.latency = latency  # seconds, the least and the most; may be changed while it runs
        # Deliveries are the network's own doing: they belong to no host and outlive any crash.
        self.context = Context()
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._connections: dict[int, SimulatedConnection] = {}
        self._serials = count(1)
        self._ports: dict[str, int] = {}
        self.slowness: dict[str, float] = {}  # factors on the latency from and to a host
        self._cuts: set[tuple[str, str]] = set()  # (source, target): nothing passes that way
        self._held: list[_Pipe] = []
        self._healed = asyncio.Event()
        self.datagrams = SimulatedDatagrams(self)

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        self._cuts.add((a, b))
        if not one_way:
            self._cuts.add((b, a))
        self.record(a, f"partition {b}" + (" one way" if one_way else ""))

    def heal(self, a: str = "", b: str = "") -> None:
        """Both ways between two hosts; everywhere when none are named."""
        if a:
            self._cuts -= {(a, b), (b, a)}
        else:
            self._cuts.clear()
        self.record(a or "-", f"heal {b}".rstrip())
        self._healed.set()
        self._healed = asyncio.Event()
        held, self._held = self._held, []
        for pipe in held:
            pipe.resume()

    def break_connections(self, a: str, b: str) -> None:
        """A router forgot them: some of what is under way arrives, then both ends are reset."""
        for end in list(self._connections.values()):
            if end.host == a and end.peer_host == b:
                self.record(a, f"loses connection {end.serial}")
                end.incoming.reset()
                end.outgoing.reset()

    def crash(self, host: str) -> None:
        for key in [key for key in self._listeners if key[0] == host]:
            del self._listeners[key]
        for connection in [each for each in self._connections.values() if each.host == host]:
            connection.break_off()
        self.datagrams.crash(host)

    def stop(self) -> None:
        """The loop ends, and everything that was scheduled on it."""
        for connection in list(self._connections.values()):
            connection.finish()
        self._listeners.clear()
        self._held.clear()
        self.datagrams.stop()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def hold(self, pipe: _Pipe) -> None:
        self._held.append(pipe)

    def delay(self, source: str = "", target: str = "") -> float:
        delay = self.random.between(*self.latency)
        if self.slowness:
            delay *= self.slowness.get(source, 1.0) * self.slowness.get(target, 1.0)
        return delay

    def forget(self, connection: SimulatedConnection) -> None:
        self._connections.pop(connection.serial, None)

    async def connect(self, boot: Boot, host: str, port: int) -> SimulatedConnection:
        """A handshake; waits for a partition to heal, so the caller sets the deadline."""
        target = boot.host if host in LOOPBACK else host
        while self.is_cut(boot.host, target) or self.is_cut(target, boot.host):
            await self._healed.wait()
        trip = self.delay(boot.host, target) + self.delay(target, boot.host)
        await asyncio.sleep(trip)
        boot.check()
        listener = self._listeners.get((target, port))
        if listener is None or (listener.host in LOOPBACK and target != boot.host):
            self.record(boot.host, f"refused {target}:{port}")
            raise UnavailableError("cannot connect: refused", host=host, port=port)
        near, far = self._pair(boot.host, target, port)
        self.record(boot.host, f"connected {near.serial} to {target}:{port}")
        listener.accept(far)
        return near

    def _pair(
        self, host: str, target: str, port: int
    ) -> tuple[SimulatedConnection, SimulatedConnection]:
        near_name, far_name = f"{host}:{self.free_port(host)}", f"{target}:{port}"
        near = SimulatedConnection(self, next(self._serials), host, near_name, far_name)
        far = SimulatedConnection(self, next(self._serials), target, far_name, near_name)
        near.peer_host, far.peer_host = target, host
        near.outgoing = far.incoming = _Pipe(self, near, far)
        far.outgoing = near.incoming = _Pipe(self, far, near)
        for end in (near, far):
            self._connections[end.serial] = end
        return near, far

    def listen(
        self, boot: Boot, host: str, port: int, on_connection: OnConnection
    ) -> SimulatedListener:
        if host not in (*LOOPBACK, *ANY, boot.host):
            raise ConfigError("cannot listen: not an address of this host", host=host, port=port)
        port = port or self.free_port(boot.host)
        if (boot.host, port) in self._listeners:
            raise ConfigError("cannot listen: address already in use", host=host, port=port)
        listener = SimulatedListener(self, boot, host, port, on_connection)
        self._listeners[boot.host, port] = listener
        self.record(boot.host, f"listens on {port}")
        return listener

    def unlisten(self, listener: SimulatedListener) -> None:
        key = (listener.boot.host, listener.port)
        if self._listeners.get(key) is listener:
            del self._listeners[key]

    def free_port(self, host: str) -> int:
        port = self._ports.get(host, _FIRST_PORT)
        while (host, port) in self._listeners or self.datagrams.is_taken(host, port):
            port += 1
        self._ports[host] = port + 1
        return port


class _Pipe:
    """One direction of a connection: chunks and marks on their way, in order."""

    def __init__(
        self, network: SimulatedNetwork, source: SimulatedConnection, target: SimulatedConnection
    ) -> None:
        self.unread = 0  # bytes written that the other side has not received
        self._network = network
        self._source = source
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, bytes | _Mark]] = deque()
        self._arrival = 0.0  # of the last in the queue: nothing overtakes it
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        self._is_reset = False

    def send(self, data: bytes) -> None:
        self.unread += len(data)
        for chunk in self._chop(data):
            self._enqueue(chunk)

    def end(self) -> None:
        self._enqueue(_Mark.END)

    def reset(self) -> None:
        """Some of what is under way still arrives; the rest is gone, and the other side told."""
        if self._is_reset:
            return
        kept = self._network.random.below(len(self._queue) + 1)
        while len(self._queue) > kept:
            self._queue.pop()
        self._enqueue(_Mark.RESET)
        self._is_reset = True

    def resume(self) -> None:
        """After a partition: everything is sent once more."""
        self._is_held = False
        held, self._queue = self._queue, deque()
        for _, item in held:
            self._queue.append((self._next_arrival(), item))
        self._schedule()

    def taken(self, byte_count: int) -> None:
        self.unread -= byte_count
        self._source.on_taken()

    def _chop(self, data: bytes) -> list[bytes]:
        random = self._network.random
        cuts = {0, len(data), *range(CHUNK_BYTES_MAX, len(data), CHUNK_BYTES_MAX)}
        if not random.below(_CHOPPED_ONE_IN):
            cuts.update(random.below(len(data)) for _ in range(1 + random.below(3)))
        return [data[low:high] for low, high in pairwise(sorted(cuts))]

    def _next_arrival(self) -> float:
        delay = self._network.delay(self._source.host, self._target.host)
        self._arrival = max(self._arrival, self._loop.time() + delay)
        return self._arrival

    def _enqueue(self, item: bytes | _Mark) -> None:
        if not self._is_reset:
            self._queue.append((self._next_arrival(), item))
            self._schedule()

    def _schedule(self) -> None:
        if self._queue and self._timer is None and not self._is_held:
            self._timer = self._loop.call_at(
                self._queue[0][0], self._deliver, context=self._network.context
            )

    def _deliver(self) -> None:
        self._timer = None
        if self._network.is_cut(self._source.host, self._target.host):
            self._is_held = True
            self._network.hold(self)
            return
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now:
            self._arrive(self._queue.popleft()[1])
        self._schedule()

    def _arrive(self, item: bytes | _Mark) -> None:
        target = self._target
        if isinstance(item, bytes):
            what = f"{len(item)} bytes, crc {zlib.crc32(item):08x}"
        else:
            what = item.value
        self._network.record(target.host, f"connection {target.serial} receives {what}")
        if item is _Mark.RESET:
            target.on_reset()
        elif item is _Mark.END:
            target.on_end()
            self._source.finish()
        elif isinstance(item, bytes) and not target.on_data(item):
            target.outgoing.reset()  # as a kernel answers for a socket that is gone


class SimulatedConnection:
    """One end. Local: `close`, `abort`, `break_off`; from the other end: `on_*`."""

    def __init__(
        self, network: SimulatedNetwork, serial: int, host: str, local: str, peer: str
    ) -> None:
        self.serial = serial
        self.host = host
        self.local = local
        self.peer = peer
        self.peer_host: str
        self.outgoing: _Pipe
        self.incoming: _Pipe
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._open = True  # neither closed here nor broken
        self._ended = False  # the other side sends no more
        self._broken = False
        self._chunks: deque[bytes] = deque()
        self._readers: list[asyncio.Future[None]] = []
        self._writers: list[asyncio.Future[None]] = []
        self._closed = asyncio.Event()
        self._close_timer: asyncio.TimerHandle | None = None

    # the Connection interface

    async def receive(self) -> bytes:
        check_alive()
        while not self._chunks:
            if self._broken:
                raise UnavailableError("connection broke", peer=self.peer)
            if self._ended or not self._open:
                return b""
            await self._wait(self._readers)
        data = self._chunks.popleft()
        while self._chunks and self._network.random.below(2):
            data += self._chunks.popleft()
        self.incoming.taken(len(data))
        return data

    def write(self, pieces: Sequence[Buffer]) -> None:
        data = b"".join(pieces)
        if data and self._open:
            self.outgoing.send(data)

    async def drain(self) -> None:
        check_alive()
        while self._open and self.outgoing.unread > IN_FLIGHT_BYTES_MAX:
            await self._wait(self._writers)
        if not self._open:
            raise UnavailableError("connection is closed", peer=self.peer)

    def close(self) -> None:
        if self._open:
            self._open = False
            self.outgoing.end()
            self._close_timer = self._loop.call_later(
                CLOSE_SECONDS_MAX, self.abort, context=self._network.context
            )
            self.wake()

    def abort(self) -> None:
        if not self._closed.is_set():
            self.outgoing.reset()
            self.finish()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    # the network's side

    def break_off(self) -> None:
        """This host crashed."""
        self._chunks.clear()
        self._broken = True
        self.abort()

    def on_data(self, data: bytes) -> bool:
        """False when nobody is here to take it."""
        if self._open:
            self._chunks.append(data)
            _wake(self._readers)
        return self._open

    def on_taken(self) -> None:
        """The other side received some of what was written here."""
        if self._writers:
            _wake(self._writers)

    def on_end(self) -> None:
        self._ended = True
        self.wake()

    def on_reset(self) -> None:
        self._broken = self._broken or not self._closed.is_set()
        self.finish()

    def finish(self) -> None:
        """Nothing goes out any more."""
        self._open = False
        self._closed.set()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._network.forget(self)
        self.wake()

    def wake(self) -> None:
        _wake(self._readers)
        _wake(self._writers)

    async def _wait(self, waiters: list[asyncio.Future[None]]) -> None:
        waiter = self._loop.create_future()
        waiters.append(waiter)
        await waiter
        check_alive()


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


class SimulatedListener:
    """`wait_closed` also waits for the tasks of accepted connections."""

    def __init__(
        self,
        network: SimulatedNetwork,
        boot: Boot,
        host: str,
        port: int,
        on_connection: OnConnection,
    ) -> None:
        self.boot = boot
        self.host = "127.0.0.1" if host == "localhost" else host
        self.port = port
        self._network = network
        self._accepted = AcceptedConnections(on_connection)
        self._context = boot.context()
        self._closed = asyncio.Event()

    def accept(self, connection: SimulatedConnection) -> None:
        # In the listener's own context: the host that connects may be paused or gone tomorrow.
        self._context.copy().run(self._accepted.start, connection, self._context.copy())

    def close(self) -> None:
        self._network.unlisten(self)
        self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()
        await self._accepted.wait()


class SimulatedTransport:
    """The network as one boot of one host sees it."""

    def __init__(self, network: SimulatedNetwork, boot: Boot) -> None:
        self._network = network
        self._boot = boot

    async def connect(self, host: str, port: int, *, timeout: float = 1.0) -> SimulatedConnection:
        self._boot.check()
        try:
            async with asyncio.timeout(timeout):
                return await self._network.connect(self._boot, host, port)
        except TimeoutError as error:
            raise UnavailableError("no answer in time", host=host, port=port) from error

    async def listen(self, host: str, port: int, on_connection: OnConnection) -> SimulatedListener:
        self._boot.check()
        return self._network.listen(self._boot, host, port, on_connection)

    async def listen_datagrams(
        self, host: str, port: int, on_datagram: OnDatagram
    ) -> SimulatedDatagramListener:
        self._boot.check()
        return self._network.datagrams.listen(self._boot, host, port, on_datagram)
