"""A blocking face of the Iggy client, for scripts and tests.

It only wraps: all logic is in `client/iggy.py`. Nothing is opened before the first call, so an
object made in one process may be sent to another, and one that was inherited through a fork starts
over there instead of sharing the parent's socket. Its calls wait, so they are refused inside a
running loop, which they would stop; there, use IggyClient itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar

from headrace.client.iggy import TIMEOUT_SECONDS, IggyClient
from headrace.client.url import Identity
from headrace.concurrency.loop_thread import LoopThread
from headrace.errors import LocalProtocolError
from headrace.net.tls import ClientTls
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.extensions import ServerHello, Ticket
from headrace.wire.iggy.messages.messages import Message, PolledMessages, SendMessages
from headrace.wire.iggy.messages.topics import TopicDetails
from headrace.wire.iggy.primitives import Consumer, Identifier, Partitioning, Strategy

T = TypeVar("T")


class SyncIggyClient:
    """Connects and logs in at the first call, and again at the first call after `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        username: str = "",
        password: str = "",
        token: str = "",
        timeout: float = TIMEOUT_SECONDS,
        tls: ClientTls | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._identity = Identity(username, password, token) if username or token else None
        self._timeout = timeout
        self._tls = tls
        self._loop: LoopThread | None = None
        self._client: IggyClient | None = None

    def run(self, call: Callable[[IggyClient], Awaitable[T]]) -> T:
        """Run any method of the client: `sync.run(lambda client: client.get_streams())`."""
        _refuse_running_loop()
        if self._loop is None or not self._loop.alive:
            self._loop, self._client = LoopThread(), None
        return self._loop.run(self._run(call))

    async def _run(self, call: Callable[[IggyClient], Awaitable[T]]) -> T:
        if self._client is None:
            self._client = await IggyClient.connect(
                system_runtime(),
                self._host,
                self._port,
                timeout=self._timeout,
                tls=self._tls,
                identity=self._identity,
            )
        return await call(self._client)

    def close(self) -> None:
        loop, client = self._loop, self._client
        self._loop = self._client = None
        if loop is not None and loop.alive:
            if client is not None:
                loop.run(client.close())
            loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What Spark's reader and writer need; everything else goes through `run`.

    def hello(self) -> ServerHello | None:
        return self.run(lambda client: client.hello())

    def read_ticket(self, pairs: Iterable[tuple[Identifier, Identifier]]) -> Ticket:
        return self.run(lambda client: client.read_ticket(pairs))

    def get_topic(self, stream: Identifier, topic: Identifier) -> TopicDetails | None:
        return self.run(lambda client: client.get_topic(stream, topic))

    def send(
        self,
        stream: Identifier,
        topic: Identifier,
        messages: Iterable[Message],
        *,
        partitioning: Partitioning | None = None,
    ) -> None:
        where = partitioning or Partitioning.balanced()
        self.run(lambda client: client.send(stream, topic, messages, partitioning=where))

    def send_batch(self, request: SendMessages) -> None:
        self.run(lambda client: client.send_batch(request))

    def poll(
        self,
        stream: Identifier,
        topic: Identifier,
        *,
        partition: int | None = None,
        consumer: Consumer | None = None,
        strategy: Strategy | None = None,
        count: int = 100,
        auto_commit: bool = False,
    ) -> PolledMessages:
        return self.run(
            lambda client: client.poll(
                stream,
                topic,
                partition=partition,
                consumer=consumer or Consumer.single(),
                strategy=strategy or Strategy.next(),
                count=count,
                auto_commit=auto_commit,
            )
        )


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise LocalProtocolError("a loop is running in this thread; use IggyClient")
