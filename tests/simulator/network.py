"""A network between simulated hosts, as slow, as chopped and as broken as the seed says.

Bytes of one connection arrive in order, each chunk after a latency of its own; chunks are cut and
joined at random, because TCP promises no boundaries. A partition holds back what is under way and
what is sent meanwhile, in one direction or both, until it heals: TCP would send it again. A crash
resets connections.

`127.0.0.1`, `::1` and `localhost` mean the own machine; a listener there is deaf to all others.
Hosts named `machine/process` are processes of one machine: they may share a port, reach each other
by unix sockets, which end with the process that listens, and hand connections to each other.
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
from headrace.runtime.interfaces import Buffer, Detached, OnConnection, OnDatagram
from headrace.runtime.system.network import AcceptedConnections
from tests.simulator.datagrams import SimulatedDatagramListener, SimulatedDatagrams
from tests.simulator.host import ANY, LOOPBACK, Boot, check_alive, machine_of
from tests.simulator.moving import SimulatedDetached, SimulatedInbox
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
        self._listeners: dict[tuple[str, int], list[SimulatedListener]] = {}
        self._unix: dict[tuple[str, str], SimulatedListener] = {}
        self._inboxes: dict[tuple[str, str], SimulatedInbox] = {}
        self._connections: dict[int, SimulatedConnection] = {}
        self._serials = count(1)
        self._ports: dict[str, int] = {}
        self.slowness: dict[str, float] = {}  # factors on the latency from and to a host
        self._cuts: set[tuple[str, str]] = set()  # (source, target): nothing passes that way
        self._held: list[_Pipe] = []
        self._healed = asyncio.Event()
        self.datagrams = SimulatedDatagrams(self)

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        a, b = machine_of(a), machine_of(b)
        self._cuts.add((a, b))
        if not one_way:
            self._cuts.add((b, a))
        self.record(a, f"partition {b}" + (" one way" if one_way else ""))

    def heal(self, a: str = "", b: str = "") -> None:
        """Both ways between two hosts; everywhere when none are named."""
        a, b = machine_of(a), machine_of(b)
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
            near, far = (end.host, machine_of(end.host)), (end.peer_host, machine_of(end.peer_host))
            if a in near and b in far:
                self.record(a, f"loses connection {end.serial}")
                end.incoming.reset()
                end.outgoing.reset()

    def crash(self, host: str) -> None:
        for others in self._listeners.values():
            others[:] = [other for other in others if other.boot.host != host]
        for at in [at for at, listener in self._unix.items() if listener.boot.host == host]:
            del self._unix[at]
        for at in [at for at, inbox in self._inboxes.items() if inbox.boot.host == host]:
            self._inboxes.pop(at).close()
        for connection in [each for each in self._connections.values() if each.host == host]:
            connection.break_off()
        self.datagrams.crash(host)

    def stop(self) -> None:
        """The loop ends, and everything that was scheduled on it."""
        for connection in list(self._connections.values()):
            connection.finish()
        self._listeners.clear()
        self._unix.clear()
        self._inboxes.clear()
        self._held.clear()
        self.datagrams.stop()

    def is_cut(self, source: str, target: str) -> bool:
        return bool(self._cuts) and (machine_of(source), machine_of(target)) in self._cuts

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
        target = machine_of(boot.host) if host in LOOPBACK else host
        while self.is_cut(boot.host, target) or self.is_cut(target, boot.host):
            await self._healed.wait()
        trip = self.delay(boot.host, target) + self.delay(target, boot.host)
        await asyncio.sleep(trip)
        boot.check()
        others = self._listeners.get((target, port), [])
        listener = (
            others[self.random.below(len(others)) if len(others) > 1 else 0] if others else None
        )
        if listener is None or (listener.host in LOOPBACK and target != machine_of(boot.host)):
            self.record(boot.host, f"refused {target}:{port}")
            raise UnavailableError("cannot connect: refused", host=host, port=port)
        near_name = f"{machine_of(boot.host)}:{self.free_port(boot.host)}"
        near, far = self._pair(boot.host, near_name, listener.boot.host, f"{target}:{port}")
        self.record(boot.host, f"connected {near.serial} to {target}:{port}")
        listener.accept(far)
        return near

    async def connect_unix(self, boot: Boot, path: str) -> SimulatedConnection:
        await asyncio.sleep(self.delay(boot.host, boot.host))
        boot.check()
        listener = self._unix.get((machine_of(boot.host), path))
        if listener is None:
            self.record(boot.host, f"refused unix:{path}")
            raise UnavailableError("cannot connect: refused", path=path)
        near, far = self._pair(boot.host, f"unix:{path}", listener.boot.host, f"unix:{path}")
        self.record(boot.host, f"connected {near.serial} to unix:{path}")
        listener.accept(far)
        return near

    def _pair(
        self, host: str, near_name: str, target: str, far_name: str
    ) -> tuple[SimulatedConnection, SimulatedConnection]:
        near = SimulatedConnection(self, next(self._serials), host, near_name, far_name)
        far = SimulatedConnection(self, next(self._serials), target, far_name, near_name)
        near.peer_host, far.peer_host = target, host
        near.outgoing = far.incoming = _Pipe(self, near, far)
        far.outgoing = near.incoming = _Pipe(self, far, near)
        for end in (near, far):
            self._connections[end.serial] = end
        return near, far

    def listen(
        self,
        boot: Boot,
        host: str,
        port: int,
        on_connection: OnConnection,
        *,
        reuse_port: bool = False,
    ) -> SimulatedListener:
        machine = machine_of(boot.host)
        if host not in (*LOOPBACK, *ANY, machine):
            raise ConfigError("cannot listen: not an address of this host", host=host, port=port)
        port = port or self.free_port(boot.host)
        others = self._listeners.setdefault((machine, port), [])
        if not all(reuse_port and other.reuse_port for other in others):
            raise ConfigError("cannot listen: address already in use", host=host, port=port)
        listener = SimulatedListener(self, boot, host, port, on_connection)
        listener.reuse_port = reuse_port
        others.append(listener)
        self.record(boot.host, f"listens on {port}")
        return listener

    def listen_unix(self, boot: Boot, path: str, on_connection: OnConnection) -> SimulatedListener:
        listener = SimulatedListener(self, boot, path, 0, on_connection)
        self._unix[machine_of(boot.host), path] = listener
        self.record(boot.host, f"listens on unix:{path}")
        return listener

    def unlisten(self, listener: SimulatedListener) -> None:
        machine = machine_of(listener.boot.host)
        others = self._listeners.get((machine, listener.port), [])
        if listener in others:
            others.remove(listener)
        if self._unix.get((machine, listener.host)) is listener:
            del self._unix[machine, listener.host]

    def open_inbox(self, boot: Boot, path: str) -> SimulatedInbox:
        inbox = self._inboxes[machine_of(boot.host), path] = SimulatedInbox(boot)
        return inbox

    def post(self, boot: Boot, path: str, token: bytes, detached: SimulatedDetached) -> bool:
        inbox = self._inboxes.get((machine_of(boot.host), path))
        if inbox is None or inbox.closed:
            raise UnavailableError("cannot hand a connection on: nobody there", path=path)
        return inbox.put(token, detached)

    def replace(self, old: SimulatedConnection, new: SimulatedConnection) -> None:
        self._connections[old.serial] = new

    def free_port(self, host: str) -> int:
        machine = machine_of(host)
        port = self._ports.get(machine, _FIRST_PORT)
        while self._listeners.get((machine, port)) or self.datagrams.is_taken(host, port):
            port += 1
        self._ports[machine] = port + 1
        return port


class _Pipe:
    """One direction of a connection: chunks and marks on their way, in order."""

    def __init__(
        self, network: SimulatedNetwork, source: SimulatedConnection, target: SimulatedConnection
    ) -> None:
        self.unread = 0  # bytes written that the other side has not received
        self._network = network
        self.source = source
        self.target = target
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
        self.source.on_taken()

    def _chop(self, data: bytes) -> list[bytes]:
        random = self._network.random
        cuts = {0, len(data), *range(CHUNK_BYTES_MAX, len(data), CHUNK_BYTES_MAX)}
        if not random.below(_CHOPPED_ONE_IN):
            cuts.update(random.below(len(data)) for _ in range(1 + random.below(3)))
        return [data[low:high] for low, high in pairwise(sorted(cuts))]

    def _next_arrival(self) -> float:
        delay = self._network.delay(self.source.host, self.target.host)
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
        if self._network.is_cut(self.source.host, self.target.host):
            self._is_held = True
            self._network.hold(self)
            return
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now:
            self._arrive(self._queue.popleft()[1])
        self._schedule()

    def _arrive(self, item: bytes | _Mark) -> None:
        target = self.target
        if isinstance(item, bytes):
            what = f"{len(item)} bytes, crc {zlib.crc32(item):08x}"
        else:
            what = item.value
        self._network.record(target.host, f"connection {target.serial} receives {what}")
        if item is _Mark.RESET:
            target.on_reset()
        elif item is _Mark.END:
            target.on_end()
            self.source.finish()
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
        self._on_arrival: Callable[[], None] | None = None
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

    def is_behind(self) -> bool:
        return self.outgoing.unread > IN_FLIGHT_BYTES_MAX

    async def detach(self) -> SimulatedDetached:
        check_alive()
        if not self._open:
            raise UnavailableError("connection is closed", peer=self.peer)
        received = b"".join(self._chunks)
        self._chunks.clear()
        self.incoming.taken(len(received))
        end = SimulatedConnection(self._network, self.serial, self.host, self.local, self.peer)
        end.peer_host, end._ended = self.peer_host, self._ended
        end.incoming, end.outgoing = self.incoming, self.outgoing
        end.incoming.target = end.outgoing.source = end
        self._network.replace(self, end)
        self._network.record(self.host, f"lets go of connection {self.serial}")
        self._open = False
        self._closed.set()
        self.wake()
        return SimulatedDetached(end, received)

    def adopted_by(self, host: str, first_bytes: bytes) -> None:
        """Another process goes on with this end."""
        if not self._open:
            raise UnavailableError("cannot adopt: the connection is over", peer=self.peer)
        self._network.record(host, f"goes on with connection {self.serial}")
        self.host = self.incoming.source.peer_host = host
        if first_bytes:
            self._chunks.appendleft(first_bytes)
            self.incoming.unread += len(first_bytes)

    def has_arrived(self) -> bool:
        return bool(self._chunks) or self._ended or not self._open

    def call_on_arrival(self, on_arrival: Callable[[], None]) -> None:
        self._on_arrival = on_arrival

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
            self._wake_readers()
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
        self._wake_readers()
        _wake(self._writers)

    def _wake_readers(self) -> None:
        if self._readers:
            _wake(self._readers)
        elif self._on_arrival is not None:
            self._on_arrival()

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
        self.reuse_port = False
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

    async def listen(
        self, host: str, port: int, on_connection: OnConnection, *, reuse_port: bool = False
    ) -> SimulatedListener:
        self._boot.check()
        return self._network.listen(self._boot, host, port, on_connection, reuse_port=reuse_port)

    async def connect_unix(self, path: str, *, timeout: float = 1.0) -> SimulatedConnection:
        self._boot.check()
        try:
            async with asyncio.timeout(timeout):
                return await self._network.connect_unix(self._boot, path)
        except TimeoutError as error:
            raise UnavailableError("no answer in time", path=path) from error

    async def listen_unix(self, path: str, on_connection: OnConnection) -> SimulatedListener:
        self._boot.check()
        return self._network.listen_unix(self._boot, path, on_connection)

    def open_inbox(self, path: str) -> SimulatedInbox:
        self._boot.check()
        return self._network.open_inbox(self._boot, path)

    def post(self, path: str, token: bytes, detached: Detached) -> bool:
        self._boot.check()
        assert isinstance(detached, SimulatedDetached)
        return self._network.post(self._boot, path, token, detached)

    async def adopt(self, detached: Detached, first_bytes: bytes = b"") -> SimulatedConnection:
        self._boot.check()
        assert isinstance(detached, SimulatedDetached)
        end = detached.take()
        assert isinstance(end, SimulatedConnection)
        end.adopted_by(self._boot.host, first_bytes)
        return end

    async def listen_datagrams(
        self, host: str, port: int, on_datagram: OnDatagram, *, reuse_port: bool = False
    ) -> SimulatedDatagramListener:
        self._boot.check()
        return self._network.datagrams.listen(
            self._boot, host, port, on_datagram, reuse_port=reuse_port
        )
