"""The client for people's own programs: send, read, share out, administer.

    async with headrace.client.connect("headrace://iggy:iggy@127.0.0.1:8090") as client:
        await client.create_topic("shop/orders", partitions=4)
        await client.send("shop/orders", {"sku": "tea", "qty": 2}, key="tea")
        async for message in client.read("shop/orders"):
            print(message.offset, message.json())

Topics are named `stream/topic`. Errors are those of `headrace.errors`. A broken connection is made
again for `retry_seconds`; a send whose answer was lost is sent again and stored once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.client import sending
from headrace.client.connection import BrokerConnection
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
    stream_info,
    topic_info,
)
from headrace.client.sending import Producer, Sender, home_of, receipt_of
from headrace.client.topic_reader import (
    PartitionMessages,
    Position,
    TopicReader,
    chosen,
    partition_messages,
)
from headrace.client.url import ServerUrl
from headrace.errors import (
    AlreadyExistsError,
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
)
from headrace.runtime.interfaces import Runtime
from headrace.wire.iggy.columns import COLUMNS
from headrace.wire.iggy.messages.messages import Message as WireMessage
from headrace.wire.iggy.messages.messages import SendMessages, SentMessages, encode_send
from headrace.wire.iggy.messages.topics import SERVER_DEFAULT
from headrace.wire.iggy.primitives import Consumer as Reader
from headrace.wire.iggy.primitives import Partitioning

if TYPE_CHECKING:
    import pyarrow as pa

RETRY_SECONDS = 30.0
PARTITIONS_SECONDS = 30.0  # until it is asked again how many a topic has
WAIT_SECONDS = 1.0
TAIL_MESSAGES = 20


def split_name(name: str) -> tuple[str, str]:
    stream, slash, topic = name.partition("/")
    if not slash or not stream or not topic:
        raise InvalidArgumentError(f"{name!r} is not of the form stream/topic")
    return stream, topic


class Client:
    """Made by `headrace.client.connect`; use it in `async with`, or `close` it.

    It may be shared by the tasks of one event loop. Sends have a connection of their own, so that
    questions do not wait behind a disk.
    """

    def __init__(
        self, runtime: Runtime, server: ServerUrl, *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._runtime = runtime
        self._server = server
        self._retry_seconds = retry_seconds
        self._connection = BrokerConnection(runtime, server, retry_seconds=retry_seconds)
        self._sender = Sender(self._connection)
        self._reader = TopicReader(self._connection)
        self._partitions: dict[str, tuple[float, int]] = {}

    async def open(self) -> Self:
        """Connect and log in now, instead of at the first call."""
        await self._connection.hello()
        return self

    async def close(self) -> None:
        await self._sender.close()
        await self._reader.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- streams and topics -----------------------------------------------------------------------

    async def streams(self) -> Table[StreamInfo]:
        """All streams that the user may see."""
        found = await self._connection.call(lambda client: client.get_streams())
        return Table([stream_info(each) for each in found], str(self._server))

    async def create_stream(self, name: str, *, exist_ok: bool = False) -> None:
        """AlreadyExistsError if there is one, unless that is fine."""
        with _allowed(exist_ok):
            await self._connection.once(lambda client: client.create_stream(name))

    async def delete_stream(self, name: str) -> None:
        """With all its topics and messages."""
        await self._connection.once(lambda client: client.delete_stream(name))

    async def topics(self, stream: str) -> Table[TopicInfo]:
        found = await self._connection.call(lambda client: client.get_topics(stream))
        return Table([topic_info(stream, each) for each in found], stream)

    async def topic(self, name: str) -> TopicInfo:
        """NotFoundError if there is none."""
        stream, topic = split_name(name)
        found = await self._connection.call(lambda client: client.get_topic(stream, topic))
        if found is None:
            raise NotFoundError(f"there is no topic {name}")
        return topic_info(stream, found.topic)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        expiry: timedelta | None = None,
        bytes_max: int | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Make a topic, and its stream if there is none.

        Without `expiry` and `bytes_max` the server's defaults hold. With `exist_ok` a topic that is
        there stays as it is.
        """
        stream, topic = split_name(name)
        if await self._connection.call(lambda client: client.get_stream(stream)) is None:
            await self.create_stream(stream, exist_ok=True)
        expiry_us = SERVER_DEFAULT if expiry is None else expiry // timedelta(microseconds=1)
        with _allowed(exist_ok):
            await self._connection.once(
                lambda client: client.create_topic(
                    stream,
                    topic,
                    partitions_count=partitions,
                    message_expiry_us=expiry_us,
                    max_size_bytes=bytes_max or SERVER_DEFAULT,
                )
            )

    async def delete_topic(self, name: str) -> None:
        stream, topic = split_name(name)
        await self._connection.once(lambda client: client.delete_topic(stream, topic))
        self._partitions.pop(name, None)

    async def purge_topic(self, name: str) -> None:
        """Delete its messages; offsets begin at 0 again."""
        stream, topic = split_name(name)
        await self._connection.once(lambda client: client.purge_topic(stream, topic))

    async def add_partitions(self, name: str, count: int) -> None:
        """Keys may belong to other partitions afterwards."""
        stream, topic = split_name(name)
        await self._connection.once(lambda client: client.create_partitions(stream, topic, count))
        self._partitions.pop(name, None)

    async def watermarks(self, name: str, *, group: str | None = None) -> Table[Watermark]:
        """What each partition holds, and how far a group has come.

        >>> sum(each.lag for each in await client.watermarks("shop/orders", group="billing"))
        """
        stream, topic = split_name(name)
        found = []
        for each in await self._reader.bounds(stream, topic):
            committed = None
            if group is not None:
                committed = await self._committed(stream, topic, group, each.partition)
            found.append(Watermark(each.partition, each.low, each.high, committed))
        return Table(found, name if group is None else f"{name}, group {group}")

    async def _committed(self, stream: str, topic: str, group: str, partition: int) -> int | None:
        stored = await self._connection.call(
            lambda client: client.get_consumer_offset(Reader.group(group), stream, topic, partition)
        )
        return None if stored is None else stored.stored_offset + 1

    # --- sending ----------------------------------------------------------------------------------

    async def send(
        self,
        name: str,
        payload: Payload,
        *,
        key: Key | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Send one message and wait until the server has it, as durable as its topic says.

        >>> await client.send("shop/orders", {"sku": "tea"}, key="tea", headers={"source": "web"})
        Receipt(partition=1, offset=17)
        """
        record = Record(payload, key, headers or {}, partition)
        return (await self.send_many(name, [record]))[0]

    async def send_many(self, name: str, records: Iterable[Record | Payload]) -> list[Receipt]:
        """Send messages, a request for each partition; messages of one key keep their order.

        If it fails, some of them may be stored: those of earlier requests.
        """
        stream, topic = split_name(name)
        groups: dict[int | None, list[tuple[int, WireMessage]]] = {}
        number = -1
        for number, each in enumerate(records):
            record = each if isinstance(each, Record) else Record(each)
            home = record.partition
            if home is None and record.key_bytes():
                home = home_of(record.key_bytes(), await self._partition_count(name))
            groups.setdefault(home, []).append((number, record.to_wire()))
        receipts = [Receipt()] * (number + 1)
        for home, numbered in groups.items():
            for few in _cut(numbered):
                sent = await self._send_wire(stream, topic, home, [each for _, each in few])
                for index, (number, _) in enumerate(few):
                    receipts[number] = receipt_of(sent, index)
        return receipts

    def producer(
        self,
        name: str,
        *,
        linger: float = sending.LINGER_SECONDS,
        batch_messages_max: int = sending.BATCH_MESSAGES_MAX,
        batch_bytes_max: int = sending.BATCH_BYTES_MAX,
        waiting_bytes_max: int = sending.WAITING_BYTES_MAX,
    ) -> Producer:
        """For a stream of single messages: gathers them into batches, with back-pressure.

        >>> async with client.producer("shop/orders", linger=0.01) as producer:
        ...     for order in orders:
        ...         await producer.send(order, key=order["sku"])
        """
        stream, topic = split_name(name)

        async def send(partition: int | None, messages: list[WireMessage]) -> SentMessages:
            return await self._send_wire(stream, topic, partition, messages)

        return Producer(
            self._runtime.clock,
            send,
            lambda: self._partition_count(name),
            linger=linger,
            batch_messages_max=batch_messages_max,
            batch_bytes_max=batch_bytes_max,
            waiting_bytes_max=waiting_bytes_max,
        )

    async def send_arrow(self, name: str, table: pa.Table | pa.RecordBatch) -> int:
        """Send the rows of a table without touching them one by one; how many.

        Columns: `payload` (string or binary), and if wanted `key`, `partition` and `headers`
        (map of string to binary); others are left out. Needs pyarrow.
        """
        from headrace.client.tables import requests

        stream, topic = split_name(name)
        count = await self._partition_count(name)
        rows = 0
        for partition, (area, starts) in requests(table, lambda: count):
            where = _where(partition)
            await self._sender.send(SendMessages(stream, topic, where, starts, area))
            rows += len(starts)
        return rows

    async def _send_wire(
        self, stream: str, topic: str, partition: int | None, messages: Sequence[WireMessage]
    ) -> SentMessages:
        now_us = self._runtime.clock.now_us()
        request = encode_send(
            stream, topic, _where(partition), messages, origin_timestamp_us=now_us
        )
        try:
            return await self._sender.send(request)
        except NotFoundError:
            self._partitions.pop(f"{stream}/{topic}", None)  # perhaps it has fewer by now
            raise

    async def _partition_count(self, name: str) -> int:
        now = self._runtime.clock.monotonic()
        asked, count = self._partitions.get(name, (float("-inf"), 0))
        if now - asked >= PARTITIONS_SECONDS:
            count = (await self.topic(name)).partitions
            self._partitions[name] = now, count
        return count

    # --- reading ----------------------------------------------------------------------------------

    async def read(
        self,
        name: str,
        *,
        start: Position = "earliest",
        end: Position | None = None,
        partition: int | None = None,
        count: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Message]:
        """Messages, in offset order within each partition.

        `start` is `"earliest"`, `"latest"`, an offset, `{partition: offset}` or a time. It ends
        at `end`, which is not read itself and by default is what is there now; after `count`
        messages; or never, with `follow`.

        >>> async for message in client.read("shop/orders", start="2026-05-01T12:00:00Z"):
        ...     print(message.text)
        """
        async for batch in self.batches(
            name, start=start, end=end, partition=partition, count=count, follow=follow
        ):
            for message in batch:
                yield message

    async def batches(
        self,
        name: str,
        *,
        start: Position = "earliest",
        end: Position | None = None,
        partition: int | None = None,
        count: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[MessageBatch]:
        """Like `read`, in batches as they come off the log: for Arrow, and for speed."""
        stream, topic = split_name(name)
        partitions = chosen(await self._reader.bounds(stream, topic), partition)
        position = await self._reader.resolve(partitions, start)
        for each in partitions:
            if position[each.partition] < each.low:
                position[each.partition] = each.low  # an offset that retention has passed
        limits: dict[int, int] | None = None
        if end is not None:
            limits = await self._reader.resolve(partitions, end)
        elif not follow:
            limits = {each.partition: each.high for each in partitions}
        lives = {each.partition: each.life for each in partitions}
        left = count
        while left is None or left > 0:
            found = False
            for each in partitions:
                if lives.setdefault(each.partition, each.life) != each.life:
                    lives[each.partition] = each.life
                    position[each.partition] = each.low  # purged or made again: all of it is new
                at = position.setdefault(each.partition, each.low)
                # One that was added while we read is beyond an end that was stated before.
                limit = each.high if limits is None else limits.get(each.partition, 0)
                stop = min(limit, each.high)
                if at >= stop or (left is not None and left <= 0):
                    continue
                stop = stop if left is None else min(stop, at + left)
                try:
                    areas, position[each.partition] = await self._reader.fetch(
                        each, start=at, end=stop
                    )
                except HeadraceError:
                    if not follow or not await self._reader.renewed(each):
                        raise
                    found = True
                    break
                if not areas:
                    found = True
                    continue  # lost, and given up: reading goes on behind it
                batch = MessageBatch(stream, topic, partition_messages(each.partition, at, areas))
                left = left if left is None else left - len(batch)
                found = True
                yield batch
            if not found:
                reached = limits is not None and all(
                    position[partition] >= limit for partition, limit in limits.items()
                )
                if reached or not follow:
                    return
                await self._reader.wait(stream, topic, position, WAIT_SECONDS)
            if follow:
                partitions = chosen(await self._reader.bounds(stream, topic), partition)

    async def read_arrow(
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
        """What a topic holds as one Arrow table, in the columns of Spark's source. Needs pyarrow.

        >>> orders = await client.read_arrow("shop/orders", columns=["key", "payload"], text=True)
        """
        found = await self._collect(name, start, end, partition, count)
        return found.to_arrow(columns, text=text)

    async def tail(self, name: str, count: int = TAIL_MESSAGES) -> MessageBatch:
        """The newest messages of each partition, for a look; `.to_pandas(json=True)` for more."""
        stream, topic = split_name(name)
        partitions = await self._reader.bounds(stream, topic)
        starts = {each.partition: max(each.low, each.high - count) for each in partitions}
        return await self._collect(name, starts, None, None, None)

    async def _collect(
        self,
        name: str,
        start: Position,
        end: Position | None,
        partition: int | None,
        count: int | None,
    ) -> MessageBatch:
        parts: list[PartitionMessages] = []
        async for batch in self.batches(
            name, start=start, end=end, partition=partition, count=count
        ):
            parts += batch.parts
        parts.sort(key=lambda part: (part.partition, part.start))
        return MessageBatch(*split_name(name), tuple(parts))

    def consumer(
        self,
        name: str,
        group: str,
        *,
        start: Position = "earliest",
        auto_commit: bool = True,
        follow: bool = True,
    ) -> GroupConsumer:
        """Read as a member of a group, which is made if there is none.

        Its members share the partitions. `start` is for partitions without a committed offset.
        Without `follow` it ends when it has caught up.

        >>> async with client.consumer("shop/orders", "billing", auto_commit=False) as consumer:
        ...     async for message in consumer:
        ...         charge(message.json())
        ...         await consumer.commit()
        """
        stream, topic = split_name(name)
        return GroupConsumer(
            self._connection.plain(),
            self._reader,
            stream,
            topic,
            group,
            start=start,
            auto_commit=auto_commit,
            follow=follow,
        )


def _allowed(exist_ok: bool) -> AbstractContextManager[None]:
    return suppress(AlreadyExistsError) if exist_ok else nullcontext()


def _where(partition: int | None) -> Partitioning:
    return Partitioning.balanced() if partition is None else Partitioning.to_partition(partition)


def _cut(
    numbered: Sequence[tuple[int, WireMessage]],
) -> Iterable[Sequence[tuple[int, WireMessage]]]:
    """Into requests of a size that servers take."""
    first, size = 0, 0
    for at, (_, message) in enumerate(numbered):
        size += len(message.payload) + len(message.headers)
        if size > sending.BATCH_BYTES_MAX and at > first:
            yield numbered[first:at]
            first, size = at, len(message.payload) + len(message.headers)
    yield numbered[first:]
