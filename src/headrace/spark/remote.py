"""A server as the connector sees it: the calls it makes, on a connection that is kept.

All of it is asynchronous and takes time and sockets from a Runtime, so that source and sink run in
the simulator as they are; `server.py` is the blocking face that Spark's processes use. A broken
connection is made again (`retry`): a broker that restarts costs a pause, not a query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headrace.client.connection import BrokerConnection
from headrace.client.url import Identity, ServerUrl, TlsOptions
from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.net.addresses import parse_address
from headrace.runtime.interfaces import Runtime
from headrace.spark.options import Credentials, Target
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
            from headrace.wire.iggy.errors import Status, status_of

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
