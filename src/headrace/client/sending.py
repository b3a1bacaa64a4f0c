"""Sending messages: one request at a time, or gathered into batches behind the caller's back.

A `Sender` numbers its requests (dialect C), so that one whose answer was lost is sent again and
stored once.

A `Producer` gathers messages. A batch goes out when it is full, when its oldest message has waited
`linger` seconds, or when somebody flushes; while one is on its way the next gather. What waits is
bounded: `send` waits for room, so a producer never runs ahead of its server by more than
`waiting_bytes_max`. Batches go out one at a time, in order. After a failure nothing more is sent:
what waits fails with the same error, and so does every later `send`, so that no message overtakes
one that was lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import xxhash

from headrace.client.connection import BrokerConnection
from headrace.client.records import HeaderValue, Key, Payload, Receipt, Record
from headrace.concurrency.retry import TRANSIENT
from headrace.concurrency.tasks import TaskSet
from headrace.errors import HeadraceError, InvalidArgumentError, UnavailableError
from headrace.runtime.interfaces import Clock
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.messages import Message as WireMessage
from headrace.wire.iggy.messages.messages import SendMessages, SentMessages

SEND_SECONDS = 30.0  # for one request; a large batch on a slow disk takes its time
LINGER_SECONDS = 0.005
BATCH_MESSAGES_MAX = 1000
BATCH_BYTES_MAX = 1 << 20
WAITING_BYTES_MAX = 16 << 20
_OVERHEAD_BYTES = 64  # a message's header

Send = Callable[[int | None, list[WireMessage]], Awaitable[SentMessages]]


class Sender:
    """Sends one request at a time, in order. To a plain Iggy server a request goes once: one whose
    answer was lost fails with UnavailableError, and whether it was stored is unknown."""

    def __init__(self, questions: BrokerConnection) -> None:
        self._questions = questions
        self._turn = asyncio.Lock()
        self._connection: BrokerConnection | None = None
        self._numbered = False

    async def send(self, request: SendMessages) -> SentMessages:
        """Where the messages were put; empty where the server does not say."""
        async with self._turn:
            connection = self._connection or await self._open()
            if not self._numbered:
                await connection.once(
                    lambda client: client.send_batch(request, timeout=SEND_SECONDS)
                )
                return SentMessages(())
            sent = False

            async def attempt() -> SentMessages:
                nonlocal sent
                client = await connection.connected()
                try:
                    if sent:
                        return await client.again(
                            c.SEND_MESSAGES, timeout=SEND_SECONDS, request=request
                        )
                    sent = True
                    return await client.call(c.SEND_MESSAGES, request, timeout=SEND_SECONDS)
                except TRANSIENT:
                    await connection.disconnect(client)
                    raise

            return await connection.again(attempt)

    async def _open(self) -> BrokerConnection:
        questions = self._questions
        self._numbered = await questions.hello() is not None
        self._connection = questions.numbered() if self._numbered else questions.plain()
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def home_of(key: bytes, partitions: int) -> int | None:
    """The partition that any Iggy client would choose for the key; None for no key."""
    if partitions < 1:
        raise InvalidArgumentError("the topic has no partitions")
    return xxhash.xxh32_intdigest(key) % partitions if key else None


def receipt_of(sent: SentMessages, index: int) -> Receipt:
    if not sent.placed:
        return Receipt()
    first = sent.placed[0]
    return Receipt(first.partition, first.base_offset + index)


@dataclass(slots=True, eq=False)
class _Batch:
    partition: int | None
    oldest: float
    sent: asyncio.Future[SentMessages]
    messages: list[WireMessage] = field(default_factory=list)
    bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A message on its way: `await` it for its receipt, or leave it to `flush`."""

    _batch: _Batch
    _index: int

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self.receipt().__await__()

    async def receipt(self) -> Receipt:
        # Shielded: who gives up waiting for one message does not take back its batch.
        return receipt_of(await asyncio.shield(self._batch.sent), self._index)

    @property
    def done(self) -> bool:
        return self._batch.sent.done()


class Producer:
    """Made by `Client.producer`; `async with` it, so that what waits is sent in the end."""

    def __init__(
        self,
        clock: Clock,
        send: Send,
        partitions: Callable[[], Awaitable[int]],
        *,
        linger: float = LINGER_SECONDS,
        batch_messages_max: int = BATCH_MESSAGES_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        self._clock = clock
        self._send = send
        self._partitions = partitions
        self._linger = linger
        self._messages_max = batch_messages_max
        self._bytes_max = batch_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        self._open: dict[int | None, _Batch] = {}
        self._full: deque[_Batch] = deque()
        self._sending: _Batch | None = None
        self._waiting_bytes = 0
        self._flushing = False
        self._entered = self._closed = False
        self._failure: HeadraceError | None = None
        self._wake = asyncio.Event()
        self._moved = asyncio.Condition()
        self._tasks = TaskSet("producer")

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run())
        self._entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def send(
        self,
        payload: Payload,
        *,
        key: Key | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Take a message; waits only while too much is under way.

        Messages of one key keep their order. Raises what an earlier message failed with.
        """
        if not self._entered:
            raise InvalidArgumentError("a producer is used in `with`, which starts and ends it")
        record = Record(payload, key, headers or {}, partition)
        message = record.to_wire()
        if partition is None and record.key_bytes():
            partition = home_of(record.key_bytes(), await self._partitions())
        size = _OVERHEAD_BYTES + len(message.payload) + len(message.headers)
        async with self._moved:
            await self._moved.wait_for(
                lambda: self._failure or self._closed or self._has_room(size)
            )
        self._check()
        return self._add(partition, message, size)

    def _has_room(self, size: int) -> bool:
        """A message larger than all the room there is goes alone."""
        return not self._waiting_bytes or self._waiting_bytes + size <= self._waiting_bytes_max

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise UnavailableError("the producer is closed")

    def _add(self, partition: int | None, message: WireMessage, size: int) -> Delivery:
        batch = self._open.get(partition)
        if batch is not None and batch.bytes + size > self._bytes_max:
            self._fill(batch)
            batch = None
        if batch is None:
            sent: asyncio.Future[SentMessages] = asyncio.get_running_loop().create_future()
            # Who never looks at a delivery hears of a failure from `flush`.
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())
            batch = self._open[partition] = _Batch(partition, self._clock.monotonic(), sent)
            self._wake.set()
        batch.messages.append(message)
        batch.bytes += size
        self._waiting_bytes += size
        delivery = Delivery(batch, len(batch.messages) - 1)
        if len(batch.messages) >= self._messages_max or batch.bytes >= self._bytes_max:
            self._fill(batch)
        return delivery

    def _fill(self, batch: _Batch) -> None:
        del self._open[batch.partition]
        self._full.append(batch)
        self._wake.set()

    async def flush(self) -> None:
        """Wait until the server has everything that was taken; raises what kept it from it."""
        self._flushing = True
        self._wake.set()
        try:
            async with self._moved:
                await self._moved.wait_for(
                    lambda: self._failure or self._closed or not self._waiting_bytes
                )
        finally:
            self._flushing = False
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """At once: what was not sent fails. `flush` first, or leave `async with`, to send it."""
        self._closed = True
        await self._tasks.close()
        await self._give_up(UnavailableError("the producer was closed before this was sent"))

    async def _run(self) -> None:
        while self._failure is None:
            batch, pause = self._take()
            if batch is not None:
                await self._deliver(batch)
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _take(self) -> tuple[_Batch | None, float | None]:
        """A batch that should go now, or how long until one should; None = until woken."""
        if self._full:
            return self._full.popleft(), None
        if not self._open:
            return None, None
        batch = min(self._open.values(), key=lambda each: each.oldest)
        pause = batch.oldest + self._linger - self._clock.monotonic()
        if pause > 0 and not self._flushing:
            return None, pause
        del self._open[batch.partition]
        return batch, None

    async def _deliver(self, batch: _Batch) -> None:
        self._sending = batch
        try:
            batch.sent.set_result(await self._send(batch.partition, batch.messages))
        except HeadraceError as error:
            self._failure = error
            await self._give_up(error)
            return
        self._sending = None
        self._waiting_bytes -= batch.bytes
        async with self._moved:
            self._moved.notify_all()

    async def _give_up(self, error: HeadraceError) -> None:
        waiting = [*self._full, *self._open.values()]
        if self._sending is not None:
            waiting.insert(0, self._sending)
        self._full.clear()
        self._open.clear()
        self._sending = None
        for batch in waiting:
            if not batch.sent.done():
                batch.sent.set_exception(error)
        self._waiting_bytes = 0
        async with self._moved:
            self._moved.notify_all()
