"""A server as Spark's processes see it: the calls that source and sink make, waited for or not.

`Remote` makes the calls. It is asynchronous and takes time and sockets from a Runtime, so that
source and sink run in the simulator as they are; a broken connection is made again, so a broker
that restarts costs a pause and not a query. `Server` is its blocking face, one for each identity
and shared by all that runs in a process. Its connections live on one event loop in a thread of its
own: they answer heartbeats between micro-batches and fetch the next run of messages while Spark
chews on the last. A process that was forked starts over.

A driver lends its tasks the right to read these topics, or to stage rows for that one. A container
of a pipeline holds a grant for all of its application's topics (`net/credentials.py`). Its tasks,
on whatever machine, get a narrower one with their work, which lasts some hours, and never the grant
itself. Where the driver logs in with a user's password or token, tasks find theirs in their own
environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from headrace.client.connection import BrokerConnection
from headrace.client.url import Identity, ServerUrl, TlsOptions
from headrace.concurrency.loop_thread import LoopThread
from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.net.addresses import parse_address
from headrace.net.credentials import Scope, exactly, is_grant, narrow_grant
from headrace.runtime.interfaces import Runtime
from headrace.runtime.system import keep_freed_memory, system_runtime
from headrace.spark.options import Credentials, Lent, SourceOptions, Target, dead_letter_target
from headrace.spark.source.reading import Reading

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.batch import Positions
    from headrace.wire.iggy.messages.extensions import PublisherOpened, StagedSpan
    from headrace.wire.iggy.messages.messages import SendMessages

T = TypeVar("T")

RETRY_SECONDS = 30.0
PUBLISHERS_KEPT = 64
STAGING_CONNECTIONS = 2  # a server handles one request of each at a time, its sync included


@dataclass(frozen=True, slots=True)
class Window:
    """Which window of which publisher a write belongs to."""

    publisher: str
    run: str
    number: int
    last: bool = False
    """The publisher ends with it: a batch job has one window."""
    epoch: int = 0
    """The run's number, where somebody counts them; 0: a run is told by its name alone."""
    previous: int | None = None
    """The window that must be the last one closed; None: whichever is."""


class Remote:
    """One server under one identity. Nothing is opened before the first call."""

    def __init__(
        self, runtime: Runtime, address: str, credentials: Credentials, tls: TlsOptions
    ) -> None:
        self._credentials = credentials
        host, port = parse_address(address)
        first = BrokerConnection(
            runtime,
            ServerUrl(host, port, tls=tls),
            retry_seconds=RETRY_SECONDS,
            identity=self._identity,
        )
        self._connections = [first, *(first.plain() for _ in range(STAGING_CONNECTIONS - 1))]
        self._staged = 0
        self.reading = Reading(first)
        self._publishers: dict[tuple[str, str], PublisherOpened] = {}

    async def _identity(self) -> Identity:
        return Identity(*self._credentials.resolve())

    def renew(self, credentials: Credentials) -> None:
        """Of the same identity: what a task got with its work is newer than what we had."""
        self._credentials = credentials

    async def close(self) -> None:
        await self.reading.close()
        for connection in self._connections:
            await connection.close()

    async def call(self, call: Callable[[IggyClient], Awaitable[T]]) -> T:
        """Make the call on a connection that works, again after failures that pass."""
        return await self._connections[0].call(call)

    # -- topics

    async def partition_count(self, target: Target) -> int:
        """Asked anew for every task: topics grow, and a key's partition follows from it."""
        details = await self.call(lambda client: client.get_topic(target.stream, target.topic))
        if details is None:
            raise NotFoundError(f"there is no topic {target.stream}/{target.topic}")
        return len(details.partitions)

    async def create_topic(self, target: Target, *, partitions: int = 1) -> None:
        """Make the topic, and its stream, unless they are there."""
        stream, topic = target.stream, target.topic
        for create in (
            lambda client: client.create_stream(stream),
            lambda client: client.create_topic(stream, topic, partitions_count=partitions),
        ):
            try:
                await self.call(create)
            except AlreadyExistsError:
                continue

    async def send(
        self, target: Target, partition: int | None, area: memoryview, starts: Positions
    ) -> int:
        """To a partition, or to one of the server's choice; how many, once acknowledged."""
        request = _request(target, partition, area, starts)
        await self.call(lambda client: client.send_batch(request))
        return len(starts)

    # -- publishing windows

    async def publishes_windows(self) -> bool:
        from headrace.wire.iggy import commands as c

        hello = await self._connections[0].hello()
        return hello is not None and c.CLOSE.name in hello.features

    async def stage(
        self,
        target: Target,
        window: Window,
        partition: int | None,
        area: memoryview,
        starts: Positions,
    ) -> StagedSpan:
        """A repeated request stages twice; only what the driver names is published."""
        request = _request(target, partition, area, starts)
        try:
            return await self._stage(window, request)
        except NotFoundError as error:
            from headrace.wire.iggy.errors import Status
            from headrace.wire.iggy.refusals import status_of

            if status_of(error) != Status.PUBLISHER_NOT_FOUND:
                raise
        # It was opened so long ago that it was forgotten, and nothing was staged since.
        self._publishers.pop((window.publisher, window.run), None)
        return await self._stage(window, request)

    async def _stage(self, window: Window, request: SendMessages) -> StagedSpan:
        opened = await self._opened(window)
        # What is staged has no order before the driver names it: one is sent while another syncs.
        self._staged += 1
        connection = self._connections[self._staged % len(self._connections)]
        return await connection.call(lambda client: client.stage(opened, window.number, request))

    async def last_closed(self, window: Window) -> int:
        """Become the window's run, or stay it: the last window that its publisher closed."""
        return (await self._open(window)).last_window

    async def close_window(
        self,
        window: Window,
        spans: Sequence[StagedSpan],
        digest: bytes,
        *,
        rows: int = 0,
        index: bytes = b"",
    ) -> bool:
        """False if it was closed before."""
        # Asked anew: the last closed window is what this one follows.
        opened = await self._open(window)
        previous = opened.last_window if window.previous is None else window.previous
        closed = await self.call(
            lambda client: client.close_window(
                opened,
                previous=previous,
                window=window.number,
                manifest=spans,
                digest=digest,
                last=window.last,
                rows=rows,
                index=index,
            )
        )
        return not closed.already

    async def _open(self, window: Window) -> PublisherOpened:
        return await self.call(
            lambda client: client.open_publisher(window.publisher, window.run, epoch=window.epoch)
        )

    async def _opened(self, window: Window) -> PublisherOpened:
        key = (window.publisher, window.run)
        if key not in self._publishers:
            opened = await self._open(window)
            while len(self._publishers) >= PUBLISHERS_KEPT:
                del self._publishers[next(iter(self._publishers))]
            self._publishers[key] = opened
        return self._publishers[key]


def _request(
    target: Target, partition: int | None, area: memoryview, starts: Positions
) -> SendMessages:
    from headrace.wire.iggy.messages.messages import SendMessages
    from headrace.wire.iggy.primitives import Partitioning

    where = Partitioning.balanced() if partition is None else Partitioning.to_partition(partition)
    return SendMessages(target.stream, target.topic, where, starts, area)


LENT_KEPT = 8  # a worker has one task at a time, which uses one or two
CALL_SECONDS = 120.0  # nothing here takes longer, retries included


class Server:
    """One server under one identity."""

    def __init__(self, loop: LoopThread, remote: Remote) -> None:
        self._loop = loop
        self.remote = remote

    def run(self, work: Awaitable[T]) -> T:
        """Wait for work on the loop that owns the connections."""
        return self._loop.run(work, CALL_SECONDS)

    def submit(self, work: Awaitable[T]) -> Future[T]:
        return self._loop.submit(work)

    def iterate(self, work: AsyncGenerator[T, None]) -> Iterator[T]:
        """What an asynchronous generator gives, which may work ahead meanwhile."""
        return self._loop.iterate(work, CALL_SECONDS)

    def partition_count(self, target: Target) -> int:
        return self.run(self.remote.partition_count(target))

    def create_topic(self, target: Target, *, partitions: int = 1) -> None:
        """Make the topic, and its stream, unless they are there."""
        self.run(self.remote.create_topic(target, partitions=partitions))

    def publishes_windows(self) -> bool:
        return self.run(self.remote.publishes_windows())

    def send_soon(
        self, target: Target, partition: int | None, area: memoryview, starts: Positions
    ) -> Future[int]:
        return self.submit(self.remote.send(target, partition, area, starts))


_servers: dict[tuple[int, str, Credentials, TlsOptions], Server] = {}
_loops: dict[int, LoopThread] = {}
_lock = threading.Lock()


def connect(target: Target) -> Server:
    """This process's server for an address and identity; nothing is opened before its first use."""
    process = os.getpid()
    key = (process, target.address, target.credentials, target.tls)
    with _lock:
        if process not in _loops:
            keep_freed_memory()  # of frames and columns: the next ones are always on their way
            _loops[process] = LoopThread()
        server = _servers.pop(key, None)
        if server is None:
            remote = Remote(system_runtime(), target.address, target.credentials, target.tls)
            server = Server(_loops[process], remote)
        elif target.credentials.lent is not None:
            server.remote.renew(target.credentials)
        _servers[key] = server  # the last is the one used last
        _let_go()
        return server


def _let_go() -> None:
    """Of the identities that were lent: a worker goes from job to job, each with another one."""
    lent = [key for key in _servers if key[2].lent is not None]
    for key in lent[:-LENT_KEPT]:
        server = _servers.pop(key)
        if key[0] == os.getpid():
            server.submit(server.remote.close())


TASK_MS = 8 * 3_600_000
"""The tasks of a long batch, a backfill's say, begin hours after it was planned. It is less than
what is left of a container's own."""


def lend(
    target: Target,
    *,
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    publishers: Iterable[str] = (),
) -> Target:
    """The target for tasks, which may read and write these topics (patterns, `stream/topic`), under
    these publishers, and close no window."""
    held = target.credentials.resolve_token()
    if not is_grant(held):
        return target
    scope = Scope(
        exp=system_runtime().clock.now_ms() + TASK_MS,
        reads=tuple(reads),
        writes=tuple(writes),
        publishers=tuple(publishers),
        closes=False,
    )
    named = " ".join((*scope.reads, ">", *scope.writes, ">", *scope.publishers))
    return replace(target, credentials=Credentials(lent=Lent(named, narrow_grant(held, scope))))


def topic_of(target: Target) -> str:
    return f"{exactly(target.stream)}/{exactly(target.topic)}"


def lend_writing(target: Target, publisher: str) -> Target:
    """`publisher` is a pattern."""
    return lend(target, writes=(topic_of(target),), publishers=(publisher,))


def lend_reading(options: SourceOptions) -> Credentials | None:
    """For the tasks of one batch; None where they have their own."""
    if not options.target.credentials.resolve_token():
        return None  # a grant is a token: without one there is nothing to lend
    stream, topics = options.target.stream, options.topics
    patterns = (topics.pattern,) if topics.pattern else map(exactly, topics.names)
    letters = options.format.dead_letter_topic
    writes = []
    if letters:
        writes.append(topic_of(dead_letter_target(replace(options.target, topic=""), letters)))
    reads = [f"{exactly(stream)}/{each}" for each in patterns]
    credentials = lend(options.target, reads=reads, writes=writes).credentials
    return credentials if credentials.lent is not None else None
