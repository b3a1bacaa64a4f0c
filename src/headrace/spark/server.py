"""Blocking access to a server, shared by all that runs in one process.

Connections live on one event loop in a thread of its own, so that they answer heartbeats between
micro-batches and fetch the next run of messages while Spark chews on the last. A process that was
forked starts over. A broken connection is made again (`retrying`): a broker that restarts costs a
pause, not a query.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from headrace.client.iggy import IggyClient
from headrace.client.tls_options import TlsOptions
from headrace.errors import AlreadyExistsError, DeadlineError, NotFoundError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.spark.options import Credentials, Target
from headrace.spark.reading import Reading
from headrace.spark.retrying import TRANSIENT, retry
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.extensions import PublisherOpened, StagedSpan
from headrace.wire.iggy.messages.messages import SendMessages
from headrace.wire.iggy.messages.topics import TopicDetails
from headrace.wire.iggy.primitives import Partitioning

if TYPE_CHECKING:
    from headrace.spark.windows import Window
    from headrace.wire.iggy.batch import Positions

T = TypeVar("T")

CALL_SECONDS = 60.0  # nothing here takes longer, retries included
PUBLISHERS_KEPT = 64


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="headrace", daemon=True).start()

    def submit(self, work: Awaitable[T]) -> Future[T]:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def run(self, work: Awaitable[T]) -> T:
        future = self.submit(work)
        try:
            return future.result(CALL_SECONDS)
        except TimeoutError:
            future.cancel()
            raise DeadlineError("no answer from the server", seconds=CALL_SECONDS) from None


class Server:
    """One server under one identity."""

    def __init__(
        self, loop: _Loop, address: str, credentials: Credentials, tls: TlsOptions
    ) -> None:
        self._loop = loop
        self._address = address
        self._credentials = credentials
        self._tls = tls.client()
        self._runtime = system_runtime()
        self._client: IggyClient | None = None
        self._connecting = asyncio.Lock()
        self.reading = Reading(self, self._runtime, self._tls)
        self._counts: dict[tuple[str, str], int] = {}
        self._features: frozenset[str] | None = None
        self._publishers: dict[tuple[str, str], PublisherOpened] = {}

    def run(self, work: Awaitable[T]) -> T:
        """Wait for work on the loop that owns the connections."""
        return self._loop.run(work)

    def submit(self, work: Awaitable[T]) -> Future[T]:
        return self._loop.submit(work)

    async def call(self, call: Callable[[IggyClient], Awaitable[T]]) -> T:
        """Make the call on a connection that works, again after failures that pass."""
        return await self._call(call)

    def partition_count(self, target: Target) -> int:
        name = (target.stream, target.topic)
        if name not in self._counts:
            details = self._loop.run(self._details(target))
            self._counts[name] = len(details.partitions)
        return self._counts[name]

    def create_topic(self, target: Target, *, partitions: int = 1) -> None:
        """Make the topic, and its stream, unless they are there."""
        self._loop.run(self._create_topic(target, partitions))

    def send_soon(
        self, target: Target, partition: int | None, area: memoryview, starts: Positions
    ) -> Future[int]:
        """Send to a partition, or to one of the server's choice; how many, once acknowledged."""
        request = _request(target, partition, area, starts)

        async def send() -> int:
            await self._call(lambda client: client.send_batch(request))
            return len(starts)

        return self._loop.submit(send())

    # -- publishing windows

    def publishes_windows(self) -> bool:
        return self._loop.run(self._publishes_windows())

    async def _publishes_windows(self) -> bool:
        if self._features is None:
            hello = await self._call(lambda client: client.hello())
            self._features = frozenset(hello.features) if hello is not None else frozenset()
        return c.CLOSE.name in self._features

    def stage_soon(
        self,
        target: Target,
        window: Window,
        partition: int | None,
        area: memoryview,
        starts: Positions,
    ) -> Future[StagedSpan]:
        """A repeated request stages twice; only what the driver names is published."""
        request = _request(target, partition, area, starts)

        async def stage() -> StagedSpan:
            opened = await self._opened(window)
            return await self._call(lambda client: client.stage(opened, window.number, request))

        return self._loop.submit(stage())

    def close_window(self, window: Window, spans: Sequence[StagedSpan], digest: bytes) -> bool:
        """False if it was closed before."""
        return self._loop.run(self._close_window(window, spans, digest))

    async def _close_window(
        self, window: Window, spans: Sequence[StagedSpan], digest: bytes
    ) -> bool:
        # Asked anew: the last closed window is what this one follows.
        opened = await self._call(
            lambda client: client.open_publisher(window.publisher, window.run)
        )
        closed = await self._call(
            lambda client: client.close_window(
                opened,
                previous=opened.last_window,
                window=window.number,
                manifest=spans,
                digest=digest,
                last=window.last,
            )
        )
        return not closed.already

    async def _opened(self, window: Window) -> PublisherOpened:
        key = (window.publisher, window.run)
        if key not in self._publishers:
            opened = await self._call(lambda client: client.open_publisher(*key))
            while len(self._publishers) >= PUBLISHERS_KEPT:
                del self._publishers[next(iter(self._publishers))]
            self._publishers[key] = opened
        return self._publishers[key]

    async def _details(self, target: Target) -> TopicDetails:
        details = await self._call(lambda client: client.get_topic(target.stream, target.topic))
        if details is None:
            raise NotFoundError(f"there is no topic {target.stream}/{target.topic}")
        return details

    async def _create_topic(self, target: Target, partitions: int) -> None:
        stream, topic = target.stream, target.topic
        for create in (
            lambda client: client.create_stream(stream),
            lambda client: client.create_topic(stream, topic, partitions_count=partitions),
        ):
            try:
                await self._call(create)
            except AlreadyExistsError:
                continue

    async def _call(self, call: Callable[[IggyClient], Awaitable[T]]) -> T:
        """Make the call on a connection that works, again after failures that pass."""

        async def attempt() -> T:
            client = await self._connected()
            try:
                return await call(client)
            except TRANSIENT:
                await self._disconnect(client)
                raise

        return await retry(attempt)

    async def _connected(self) -> IggyClient:
        async with self._connecting:
            if self._client is None or not self._client.usable:
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
                self._client = client
            return self._client

    async def _disconnect(self, client: IggyClient) -> None:
        if self._client is client:
            self._client = None
            await client.close()


def _request(
    target: Target, partition: int | None, area: memoryview, starts: Positions
) -> SendMessages:
    where = Partitioning.balanced() if partition is None else Partitioning.to_partition(partition)
    return SendMessages(target.stream, target.topic, where, starts, area)


_servers: dict[tuple[int, str, Credentials, TlsOptions], Server] = {}
_loops: dict[int, _Loop] = {}
_lock = threading.Lock()


def connect(target: Target) -> Server:
    """This process's server for an address and identity; nothing is opened before its first use."""
    process = os.getpid()
    key = (process, target.address, target.credentials, target.tls)
    with _lock:
        if process not in _loops:
            _loops[process] = _Loop()
        if key not in _servers:
            _servers[key] = Server(_loops[process], target.address, target.credentials, target.tls)
        return _servers[key]
