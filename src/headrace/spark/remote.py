"""A server as the connector sees it: the calls it makes, on a connection that is kept.

All of it is asynchronous and takes time and sockets from a Runtime, so that source and sink run in
the simulator as they are; `server.py` is the blocking face that Spark's processes use. A broken
connection is made again (`retry`): a broker that restarts costs a pause, not a query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from headrace.client.url import TlsOptions
from headrace.concurrency.retry import OUTSIDE, TRANSIENT, retry
from headrace.errors import (
    AlreadyExistsError,
    NotFoundError,
    UnauthenticatedError,
    UnauthorizedError,
)
from headrace.net.addresses import parse_address
from headrace.runtime.interfaces import Runtime
from headrace.spark.options import Credentials, Target
from headrace.spark.source.reading import Reading

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.spark.sink.windows import Window
    from headrace.wire.iggy.batch import Positions
    from headrace.wire.iggy.messages.extensions import PublisherOpened, StagedSpan
    from headrace.wire.iggy.messages.messages import SendMessages

T = TypeVar("T")

RETRY_SECONDS = 30.0
PUBLISHERS_KEPT = 64
STAGING_CONNECTIONS = 2  # a server handles one request of each at a time, its sync included


class Remote:
    """One server under one identity. Nothing is opened before the first call."""

    def __init__(
        self, runtime: Runtime, address: str, credentials: Credentials, tls: TlsOptions
    ) -> None:
        self._runtime = runtime
        self._address = address
        self._credentials = credentials
        self._tls = tls.client()
        self._lines = [_Line() for _ in range(STAGING_CONNECTIONS)]
        self._staged = 0
        self.reading = Reading(self, runtime, self._tls)
        self._features: frozenset[str] | None = None
        self._publishers: dict[tuple[str, str], PublisherOpened] = {}

    def renew(self, credentials: Credentials) -> None:
        """Of the same identity: what a task got with its work is newer than what we had."""
        self._credentials = credentials

    async def close(self) -> None:
        await self.reading.close()
        for line in self._lines:
            if line.client is not None:
                await _disconnect(line, line.client)

    async def call(self, call: Callable[[IggyClient], Awaitable[T]], *, line: int = 0) -> T:
        """Make the call on a connection that works, again after failures that pass.

        Calls on one line keep their order, those on different lines do not.
        """
        used = self._lines[line]

        async def attempt() -> T:
            client = await self._connected(used)
            try:
                return await call(client)
            except TRANSIENT:
                await _disconnect(used, client)
                raise
            except (UnauthenticatedError, UnauthorizedError):
                if used.token == self._credentials.resolve_token():
                    raise
                await _disconnect(used, client)  # what it logged in with ended: there is another
                return await call(await self._connected(used))

        return await retry(self._runtime, lambda _: attempt(), RETRY_SECONDS, OUTSIDE)

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

        if self._features is None:
            hello = await self.call(lambda client: client.hello())
            self._features = frozenset(hello.features) if hello is not None else frozenset()
        return c.CLOSE.name in self._features

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
        return await self.call(
            lambda client: client.stage(opened, window.number, request),
            line=self._staged % len(self._lines),
        )

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

    # -- the connection

    async def _connected(self, line: _Line) -> IggyClient:
        from headrace.client.iggy import IggyClient  # a task that reads never asks the broker

        async with line.connecting:
            if line.client is None or not line.client.usable:
                host, port = parse_address(self._address)
                username, password, token = self._credentials.resolve()
                client = await IggyClient.connect(self._runtime, host, port, tls=self._tls)
                try:
                    if token:
                        await client.login_with_token(token)
                    else:
                        await client.login(username, password)
                except BaseException:
                    await client.close()
                    raise
                line.client, line.token = client, token
            return line.client


@dataclass(slots=True, eq=False)
class _Line:
    """A connection, made when it is first used and again when it broke."""

    client: IggyClient | None = None
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    token: str = field(default="", repr=False)
    """That it logged in with, if it was one."""


async def _disconnect(line: _Line, client: IggyClient) -> None:
    if line.client is client:
        line.client = None
        await client.close()


def _request(
    target: Target, partition: int | None, area: memoryview, starts: Positions
) -> SendMessages:
    from headrace.wire.iggy.messages.messages import SendMessages
    from headrace.wire.iggy.primitives import Partitioning

    where = Partitioning.balanced() if partition is None else Partitioning.to_partition(partition)
    return SendMessages(target.stream, target.topic, where, starts, area)
