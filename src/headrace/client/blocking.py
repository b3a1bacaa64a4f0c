"""The same client for programs that block: scripts, notebooks, tests.

It only wraps `session.py`: everything runs on an event loop in a thread of its own, which answers
heartbeats and sends batches between calls. It may be used from several threads, and inside a
notebook or a program that has a loop of its own running.

`connect` and `connect_sync`: where clients begin.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.client import sending
from headrace.client.consuming import GroupConsumer
from headrace.client.records import (
    HeaderValue,
    Key,
    Message,
    MessageBatch,
    Payload,
    Receipt,
    Record,
    StreamInfo,
    Table,
    TopicInfo,
    Watermark,
)
from headrace.client.sending import Delivery, Producer
from headrace.client.session import RETRY_SECONDS, TAIL_MESSAGES, Client
from headrace.client.topic_reader import Position
from headrace.client.url import ServerUrl, parse_url
from headrace.concurrency.loop_thread import LoopThread
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.columns import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class SyncClient:
    """Made by `headrace.client.connect_sync`; use it in `with`, or `close` it.

    Its methods are those of `Client`; iterators are plain ones.
    """

    def __init__(self, server: ServerUrl, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self._loop = LoopThread()
        self._client = self._loop.run(self._make(server, retry_seconds))

    @staticmethod
    async def _make(server: ServerUrl, retry_seconds: float) -> Client:
        return Client(system_runtime(), server, retry_seconds=retry_seconds)

    def open(self) -> Self:
        """Connect and log in now, instead of at the first call."""
        self.run(self._client.open())
        return self

    def close(self) -> None:
        if self._loop.alive:
            self._loop.run(self._client.close())
            self._loop.close()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine on the loop that owns the connections."""
        return self._loop.run(work)

    def iterate(self, found: AsyncIterator[T]) -> Iterator[T]:
        """What an asynchronous iterator gives; let go of when the caller stops looking."""
        return self._loop.iterate(found)

    # --- streams and topics -----------------------------------------------------------------------

    def streams(self) -> Table[StreamInfo]:
        return self.run(self._client.streams())

    def create_stream(self, name: str, *, exist_ok: bool = False) -> None:
        self.run(self._client.create_stream(name, exist_ok=exist_ok))

    def delete_stream(self, name: str) -> None:
        self.run(self._client.delete_stream(name))

    def topics(self, stream: str) -> Table[TopicInfo]:
        return self.run(self._client.topics(stream))

    def topic(self, name: str) -> TopicInfo:
        return self.run(self._client.topic(name))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        expiry: timedelta | None = None,
        bytes_max: int | None = None,
        exist_ok: bool = False,
    ) -> None:
        self.run(
            self._client.create_topic(
                name, partitions=partitions, expiry=expiry, bytes_max=bytes_max, exist_ok=exist_ok
            )
        )

    def delete_topic(self, name: str) -> None:
        self.run(self._client.delete_topic(name))

    def purge_topic(self, name: str) -> None:
        self.run(self._client.purge_topic(name))

    def add_partitions(self, name: str, count: int) -> None:
        self.run(self._client.add_partitions(name, count))

    def watermarks(self, name: str, *, group: str | None = None) -> Table[Watermark]:
        return self.run(self._client.watermarks(name, group=group))

    # --- sending ----------------------------------------------------------------------------------

    def send(
        self,
        name: str,
        payload: Payload,
        *,
        key: Key | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
    ) -> Receipt:
        return self.run(
            self._client.send(name, payload, key=key, headers=headers, partition=partition)
        )

    def send_many(self, name: str, records: Iterable[Record | Payload]) -> list[Receipt]:
        return self.run(self._client.send_many(name, records))

    def send_arrow(self, name: str, table: pa.Table | pa.RecordBatch) -> int:
        return self.run(self._client.send_arrow(name, table))

    def producer(
        self,
        name: str,
        *,
        linger: float = sending.LINGER_SECONDS,
        batch_messages_max: int = sending.BATCH_MESSAGES_MAX,
        batch_bytes_max: int = sending.BATCH_BYTES_MAX,
        waiting_bytes_max: int = sending.WAITING_BYTES_MAX,
    ) -> SyncProducer:
        async def make() -> Producer:
            return self._client.producer(
                name,
                linger=linger,
                batch_messages_max=batch_messages_max,
                batch_bytes_max=batch_bytes_max,
                waiting_bytes_max=waiting_bytes_max,
            )

        return SyncProducer(self, self.run(make()))

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self,
        name: str,
        *,
        start: Position = "earliest",
        end: Position | None = None,
        partition: int | None = None,
        count: int | None = None,
        follow: bool = False,
    ) -> Iterator[Message]:
        for batch in self.batches(
            name, start=start, end=end, partition=partition, count=count, follow=follow
        ):
            yield from batch

    def batches(
        self,
        name: str,
        *,
        start: Position = "earliest",
        end: Position | None = None,
        partition: int | None = None,
        count: int | None = None,
        follow: bool = False,
    ) -> Iterator[MessageBatch]:
        return self.iterate(
            self._client.batches(
                name, start=start, end=end, partition=partition, count=count, follow=follow
            )
        )

    def read_arrow(
        self,
        name: str,
        *,
        start: Position = "earliest",
        end: Position | None = None,
        partition: int | None = None,
        count: int | None = None,
        columns: Sequence[str] = COLUMNS,
        text: bool = False,
    ) -> pa.Table:
        return self.run(
            self._client.read_arrow(
                name,
                start=start,
                end=end,
                partition=partition,
                count=count,
                columns=columns,
                text=text,
            )
        )

    def tail(self, name: str, count: int = TAIL_MESSAGES) -> MessageBatch:
        return self.run(self._client.tail(name, count))

    def consumer(
        self,
        name: str,
        group: str,
        *,
        start: Position = "earliest",
        auto_commit: bool = True,
        follow: bool = True,
    ) -> SyncConsumer:
        async def make() -> GroupConsumer:
            return self._client.consumer(
                name, group, start=start, auto_commit=auto_commit, follow=follow
            )

        return SyncConsumer(self, self.run(make()))


class SyncProducer:
    """A `Producer` for programs that block; batches go out while the program does other things."""

    def __init__(self, client: SyncClient, producer: Producer) -> None:
        self._client = client
        self._producer = producer

    def __enter__(self) -> Self:
        self._client.run(self._producer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.run(self._producer.__aexit__(kind, error, trace))

    def send(
        self,
        payload: Payload,
        *,
        key: Key | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Take a message; waits only while too much is under way."""
        return self._client.run(
            self._producer.send(payload, key=key, headers=headers, partition=partition)
        )

    def wait(self, delivery: Delivery) -> Receipt:
        """The receipt of one message."""
        return self._client.run(delivery.receipt())

    def flush(self) -> None:
        self._client.run(self._producer.flush())


class SyncConsumer:
    """A `GroupConsumer` for programs that block."""

    def __init__(self, client: SyncClient, consumer: GroupConsumer) -> None:
        self._client = client
        self._consumer = consumer

    @property
    def partitions(self) -> tuple[int, ...]:
        return self._consumer.partitions

    def __enter__(self) -> Self:
        self._client.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Message]:
        return self._client.iterate(aiter(self._consumer))

    def batches(self) -> Iterator[MessageBatch]:
        return self._client.iterate(self._consumer.batches())

    def commit(self) -> None:
        self._client.run(self._consumer.commit())


def connect(url: str = "", *, retry_seconds: float = RETRY_SECONDS) -> Client:
    """A client for programs with asyncio; it connects when it is entered, or at its first call.

    `url` is `headrace://user:password@host:8090`, with `headrace+tls://` over TLS. What it leaves
    out comes from HEADRACE_ADDRESS, HEADRACE_USERNAME, HEADRACE_PASSWORD or HEADRACE_TOKEN, and
    HEADRACE_TLS_CA; after that it is what `headrace up --dev` serves.

    `retry_seconds` is how long a server that is out of reach is waited for.

    >>> async with headrace.client.connect("headrace://etl:secret@broker:8090") as client:
    ...     print(await client.streams())
    """
    return Client(system_runtime(), parse_url(url, os.environ), retry_seconds=retry_seconds)


def connect_sync(url: str = "", *, retry_seconds: float = RETRY_SECONDS) -> SyncClient:
    """The same for programs that block.

    >>> with headrace.client.connect_sync() as client:
    ...     client.send("shop/orders", b"{}")
    """
    return SyncClient(parse_url(url, os.environ), retry_seconds=retry_seconds)
