"""The only door to the outside world.

Everything nondeterministic (time, randomness, threads, files, sockets, child processes) comes from
one `Runtime`. `runtime.system` uses the machine; the simulator of the tests is deterministic from a
seed, so that the *real* services run in it. Coroutines may use asyncio's own primitives that only
wait (futures, events, `asyncio.timeout`): they follow the loop's clock, which the simulator owns.

Disk calls block: services make them through an `Executor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable
from uuid import UUID

P = ParamSpec("P")
T = TypeVar("T")

Buffer: TypeAlias = bytes | bytearray | memoryview


class Clock(ABC):
    @abstractmethod
    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; its origin means nothing."""

    @abstractmethod
    def time_ns(self) -> int:
        """Wall clock, nanoseconds since the Unix epoch; it may go back."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    def now_ms(self) -> int:
        return self.time_ns() // 1_000_000

    def now_us(self) -> int:
        return self.time_ns() // 1_000


class Random(ABC):
    @abstractmethod
    def bytes(self, length: int) -> bytes:
        """Fit for secrets on the system runtime."""

    @abstractmethod
    def below(self, limit: int) -> int:
        """A uniform integer in [0, limit)."""

    @abstractmethod
    def uniform(self) -> float:
        """A uniform float in [0, 1)."""

    def uuid(self) -> UUID:
        return UUID(bytes=self.bytes(16), version=4)


class Executor(Protocol):
    """Runs blocking functions away from the event loop."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def close(self) -> None:
        """Wait for what runs, then release the threads."""


class File(Protocol):
    """An open file. Errors leave as StorageError (DiskFullError for ENOSPC), never as OSError."""

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def pwrite(self, pieces: Sequence[Buffer], offset: int) -> int:
        """Write all pieces one after the other from `offset` (pwritev); returns the byte count.

        After this returns the bytes are in the page cache: another process sees them, a power cut
        loses them until `sync_data` returns.
        """

    def sync_data(self) -> None:
        """fdatasync: what was written, and the size needed to read it, survives a power cut."""

    def truncate(self, length: int) -> None: ...

    def allocate(self, offset: int, length: int) -> None:
        """Reserve space without changing the file's size."""

    def fill(self, offset: int, length: int) -> None:
        """Reserve space in a way that later writes there change nothing but bytes: a sync then has
        no metadata to wait for. What is read there, and the size, mean nothing until written."""

    def drop_cached(self, offset: int, length: int) -> None:
        """Nobody will read these bytes soon: those that are synced may leave the page cache."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file tree. Paths are strings with '/', absolute on the system runtime."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. NotFoundError when absent and not `create`."""

    def read(self, path: str) -> bytes:
        """The whole file. NotFoundError when absent."""

    def write_atomic(self, path: str, data: Buffer, *, mode: int = 0o600) -> None:
        """Temporary file, fsync, rename, fsync of the folder: after return it survives."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Sorted names in a folder; empty when the folder is absent."""

    def make_folder(self, path: str) -> None:
        """With parents; synced, so that a file created inside survives with it."""

    def rename(self, path: str, target: str) -> None:
        """Replace `target` whole, in the same folder; durable with its next `sync_folder`."""

    def remove(self, path: str) -> None:
        """Absent is fine."""

    def remove_tree(self, path: str) -> None:
        """Absent is fine."""

    def sync_folder(self, path: str) -> None:
        """Makes created, renamed and removed names in it durable."""

    def size(self, path: str) -> int: ...

    def free_bytes(self, path: str) -> int: ...

    def open_files_max(self) -> int:
        """How many files and sockets this process may have open at the same time."""

    def total_bytes(self, path: str) -> int:
        """The size of the file system that holds `path`."""

    def machine(self) -> str:
        """The same for every process on this machine until it restarts, and on no other one; empty
        where nobody can tell."""

    def identify(self, path: str) -> tuple[str, str]:
        """A file's full path, and what tells it from every other file on any machine.
        NotFoundError when absent."""

    def open_same(self, path: str, identity: str) -> File:
        """For reading alone. NotFoundError unless `path` leads to that very file from here,
        StorageError when it may not be read."""

    def lock(self, path: str) -> Lock:
        """An exclusive lock held until release or process end; LockedError when taken."""


class Connection(Protocol):
    """A byte stream to a peer."""

    @property
    def peer(self) -> str:
        """`host:port` of the other side."""

    @property
    def local(self) -> str: ...

    async def receive(self) -> bytes:
        """The next bytes that arrived, b"" at the end. UnavailableError when it broke.

        Reading pauses by itself while received bytes wait here: a slow reader costs bounded memory.
        """

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Queue bytes without waiting. The caller may not change a piece afterwards."""

    async def drain(self) -> None:
        """Wait until the peer keeps up. UnavailableError when the connection broke."""

    def close(self) -> None:
        """Send what is queued, then close."""

    def abort(self) -> None:
        """Close at once; queued bytes are dropped."""

    async def wait_closed(self) -> None: ...


@runtime_checkable
class DirectConnection(Connection, Protocol):
    """A Connection that can receive into its reader's own memory, which spares two copies."""

    def is_behind(self) -> bool:
        """Whether `drain` would wait: the peer takes less than it is given."""

    def look_first(self, look: Callable[[memoryview], bool]) -> None:
        """Show `look` what arrives while `receive` waits and nothing else is there to receive.

        The bytes are its to read during the call; True says that they are dealt with, and nobody
        is woken for them. It must not wait and must not raise.
        """

    def put_back(self, data: bytes) -> None:
        """Let `receive` return these before anything else; it was shown to `look`."""

    async def receive_into(self, target: memoryview) -> int:
        """Fill `target`; returns how far, which is short of its end only when the peer ended.

        UnavailableError when it broke. After a cancellation what arrived is lost.
        """


TOKEN_BYTES = 16
"""Of what names a connection on its way from one process to another."""


class Detached(Protocol):
    """A connection between two owners: nobody reads it, and its peer notices nothing."""

    received: bytes
    """What had arrived when its owner stopped reading, and nobody took."""

    def release(self) -> None:
        """Another process has it: forget it here. The peer notices nothing."""

    def abort(self) -> None:
        """End it, for whoever else may have it by now, too."""


@runtime_checkable
class MovableConnection(Connection, Protocol):
    """A Connection that another process of this machine can go on with."""

    async def detach(self) -> Detached:
        """Stop reading, wait until the kernel has all that was written, and let go. Nobody may be
        receiving; afterwards the connection is closed as far as its owner can see, while its peer
        notices nothing. UnavailableError when it broke: then it is as before."""


class Inbox(Protocol):
    """Where processes of this machine put connections that another one shall go on with."""

    def take(self, token: bytes) -> Detached | None:
        """What was posted here under that token, if it was: what is posted is here at once, and is
        released after some seconds if nobody takes it."""

    def close(self) -> None:
        """What nobody took is released."""


@runtime_checkable
class AnnouncingConnection(Connection, Protocol):
    """A Connection that says when something arrives that nobody waits for."""

    def has_arrived(self) -> bool:
        """Whether `receive` would return at once."""

    def call_on_arrival(self, on_arrival: Callable[[], None]) -> None:
        """Call it whenever bytes, or the end, arrive while nobody receives. It must not raise."""


class Listener(Protocol):
    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int:
        """The real one, also when 0 was asked for."""

    def close(self) -> None:
        """Stop accepting; open connections go on."""

    async def wait_closed(self) -> None: ...


OnConnection: TypeAlias = Callable[[Connection], Awaitable[None]]

Address: TypeAlias = tuple[str, int]
"""Numeric host and port of a datagram's other end."""

OnDatagram: TypeAlias = Callable[[bytes, Address], None]


class DatagramListener(Protocol):
    """A UDP socket. Datagrams may be lost, doubled or overtaken, on this machine too."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int:
        """The real one, also when 0 was asked for."""

    def send(self, data: bytes, address: Address) -> None:
        """Never waits and never fails: what cannot be sent now is dropped, as a network would."""

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class Transport(Protocol):
    async def connect(self, host: str, port: int, *, timeout: float = 1.0) -> Connection:
        """UnavailableError when nobody answers in time."""

    async def listen(
        self, host: str, port: int, on_connection: OnConnection, *, reuse_port: bool = False
    ) -> Listener:
        """`on_connection` runs as a task of its own for each accepted connection; when it returns
        or raises, the connection is closed. ConfigError when the address is taken.

        With `reuse_port` several processes of one user listen on one port, if all of them say so:
        each connection goes to one of them."""

    async def connect_unix(self, path: str, *, timeout: float = 1.0) -> Connection:
        """To a process of this machine. UnavailableError when nobody answers in time."""

    async def listen_unix(self, path: str, on_connection: OnConnection) -> Listener:
        """As `listen`; the listener's host is the path, its port 0. What an earlier process left
        at `path` is replaced: whoever listens owns the folder."""

    def open_inbox(self, path: str) -> Inbox:
        """As `listen_unix` about the path."""

    def post(self, path: str, token: bytes, detached: Detached) -> bool:
        """Put a connection into the inbox of another process; it stays here as well, to be
        released or adopted again. False when the inbox is full at the moment, UnavailableError when
        there is none."""

    async def adopt(self, detached: Detached, first_bytes: bytes = b"") -> Connection:
        """Go on with a connection, as its owner; `first_bytes` were received before and are
        received again. UnavailableError when it is over."""

    async def listen_datagrams(
        self, host: str, port: int, on_datagram: OnDatagram, *, reuse_port: bool = False
    ) -> DatagramListener:
        """`on_datagram` is called for each datagram that arrives, until `close`; it may not raise.
        ConfigError when the address is taken. `reuse_port` is as with `listen`: all datagrams from
        one address and port go to one process, as long as none joins or leaves."""


UNKNOWN_EXIT = 255
"""Exit status of a process that was not our child: nobody is told how it ended."""


class Process(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative is the signal that ended it."""

    async def wait(self) -> int: ...

    def terminate(self) -> None:
        """Ask the process group to end."""

    def kill(self) -> None:
        """End the process group now."""


class Worker(Protocol):
    """A child that answers requests one by one, and that may die of one."""

    async def ask(self, request: Buffer, *, seconds: float) -> bytes:
        """Give the answer of the child. UnavailableError when the child died of the request,
        DeadlineError when it took longer and was ended for that; then it answers no more. One
        request at a time."""

    async def close(self) -> None: ...


class Processes(Protocol):
    async def spawn(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: str,
        output: str,
        outlives: bool = False,
    ) -> Process:
        """Start a child in a process group of its own, with stdout and stderr appended to the file
        `output`. The child ends when this process dies, also by kill -9 (PDEATHSIG), unless it
        `outlives` it: then a later life of the parent may `adopt` it."""

    async def adopt(self, marks: Mapping[str, str]) -> Process | None:
        """The running child of an earlier life that was started with these environment variables,
        None if there is none. How it ends cannot be known: its exit status is UNKNOWN_EXIT."""

    async def start_worker(self, module: str) -> Worker:
        """A child that runs `module`, which serves frames on its standard streams (u32 length in
        big endian, bytes) until they end. It inherits nothing of our environment but the way to
        its libraries."""

    def memory_bytes(self) -> int:
        """What this machine, or the control group we are in, has."""

    def cpu_ns(self) -> int:
        """Processor time of this process and of all it started, those that ended included."""


@dataclass(frozen=True, slots=True)
class Runtime:
    clock: Clock
    random: Random
    disk: Disk
    transport: Transport
    processes: Processes
    executor: Callable[[str, int], Executor]
    """`executor(name, threads)` makes one; whoever made it closes it."""
