"""Reading a topic as a member of a consumer group: partitions are shared out, progress is kept.

Membership belongs to a connection, so a consumer has one of its own. Which partitions it has is
asked again each second; of one that it lost it forgets what it had read and not committed, and
whoever got it reads that again. So each message is seen at least once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from headrace.client.connection import BrokerConnection
from headrace.client.records import Message, MessageBatch
from headrace.client.topic_reader import PartitionBounds, Position, TopicReader, partition_messages
from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError
from headrace.wire.iggy.primitives import Consumer as Reader

ASSIGNMENT_SECONDS = 1.0
WAIT_SECONDS = 1.0


class GroupConsumer:
    """Made by `Client.consumer`; use it in `async with`.

    With `auto_commit` a batch counts as done when the next one is asked for, and the last one when
    the consumer is left without an error. Otherwise call `commit`.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        topics: TopicReader,
        stream: str,
        topic: str,
        group: str,
        *,
        start: Position = "earliest",
        auto_commit: bool = True,
        follow: bool = True,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._clock = connection.runtime.clock
        self._stream, self._topic, self._group = stream, topic, group
        self._reader = Reader.group(group)
        self._start = start
        self._auto_commit = auto_commit
        self._follow = follow
        self._joined = -1  # the number of the connection that is a member
        self._asked = float("-inf")
        self._next: dict[int, int] = {}  # of the partitions that are ours
        self._lives: dict[int, str] = {}
        self._done: dict[int, int] = {}  # the last message handed out and not committed
        self._turn = 0

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those that are ours for now."""
        return tuple(sorted(self._next))

    async def __aenter__(self) -> Self:
        with suppress(AlreadyExistsError):
            await self._connection.call(
                lambda client: client.create_group(self._stream, self._topic, self._group)
            )
        await self._share()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._auto_commit:
                await self.commit()
        finally:
            await self.close()

    async def close(self) -> None:
        """Leave the group; what was not committed is read again by whoever comes next."""
        try:
            with suppress(HeadraceError):
                await self._connection.once(
                    lambda client: client.leave_group(self._stream, self._topic, self._group)
                )
        finally:
            await self._connection.close()

    def read_up_to(self, partition: int, offset: int) -> None:
        """Say which message was the last, where it is not the last of what was handed out."""
        self._done[partition] = offset

    async def commit(self) -> None:
        """Store how far what was handed out reaches; durable when this returns."""
        for partition, offset in sorted(self._done.items()):
            await self._connection.call(
                lambda client, partition=partition, offset=offset: (  # type: ignore[misc]  # defaults bind the loop's values
                    client.store_consumer_offset(
                        self._reader,
                        self._stream,
                        self._topic,
                        offset=offset,
                        partition=partition,
                    )
                )
            )
            if self._done.get(partition) == offset:
                del self._done[partition]

    async def __aiter__(self) -> AsyncIterator[Message]:
        async for batch in self._batches():
            for message in batch:
                self._done[message.partition] = message.offset
                yield message
            if self._auto_commit:
                await self.commit()

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Whole batches instead of messages, for Arrow."""
        async for batch in self._batches():
            for part in batch.parts:
                self._done[part.partition] = part.next_offset - 1
            yield batch
            if self._auto_commit:
                await self.commit()

    async def _batches(self) -> AsyncIterator[MessageBatch]:
        while True:
            if (
                self._clock.monotonic() - self._asked >= ASSIGNMENT_SECONDS
                or self._joined != self._connection.connections
            ):
                await self._share()
            found = False
            for each in self._ours(await self._topics.bounds(self._stream, self._topic)):
                if self._lives.get(each.partition) != each.life:
                    # Purged or made again: what we have read of it says nothing.
                    self._done.pop(each.partition, None)
                    await self._begin({each.partition})
                at = self._next.get(each.partition)
                if at is None or at >= each.high:
                    continue
                found = True
                try:
                    areas, self._next[each.partition] = await self._topics.fetch(
                        each, start=at, end=each.high
                    )
                except HeadraceError:
                    if not await self._topics.renewed(each):
                        raise
                    break
                if not areas:
                    continue  # lost, and given up: reading goes on behind it
                parts = partition_messages(each.partition, at, areas)
                yield MessageBatch(self._stream, self._topic, parts)
            if not found:
                if not self._follow:
                    return
                await self._topics.wait(self._stream, self._topic, self._next, WAIT_SECONDS)

    def _ours(self, partitions: tuple[PartitionBounds, ...]) -> list[PartitionBounds]:
        """Beginning with another one each time, so that none is always the last."""
        ours = [each for each in partitions if each.partition in self._next]
        self._turn += 1
        turn = self._turn % len(ours) if ours else 0
        return ours[turn:] + ours[:turn]

    async def _share(self) -> None:
        """Join if need be, and see which partitions are ours."""
        await self._connection.call(lambda client: client.ping())  # connects if need be
        if self._joined != self._connection.connections:
            joined = self._connection.connections
            await self._connection.call(
                lambda client: client.join_group(self._stream, self._topic, self._group)
            )
            self._joined = joined
        me = await self._connection.call(lambda client: client.get_me())
        details = await self._connection.call(
            lambda client: client.get_group(self._stream, self._topic, self._group)
        )
        if details is None:
            raise NotFoundError(f"group {self._group} of {self._stream}/{self._topic} is gone")
        ours = {
            partition
            for member in details.members
            if member.id == me.client.client_id
            for partition in member.partitions
        }
        for lost in self._next.keys() - ours:
            del self._next[lost]
            self._done.pop(lost, None)
        await self._begin(ours - self._next.keys())
        self._asked = self._clock.monotonic()

    async def _begin(self, gained: set[int]) -> None:
        if not gained:
            return
        partitions = await self._topics.bounds(self._stream, self._topic)
        found = [each for each in partitions if each.partition in gained]
        starts = await self._topics.resolve(found, self._start)
        for each in found:
            partition = each.partition
            stored = await self._connection.call(
                lambda client, partition=partition: client.get_consumer_offset(  # type: ignore[misc]  # as above
                    self._reader, self._stream, self._topic, partition
                )
            )
            at = starts[partition] if stored is None else stored.stored_offset + 1
            self._next[partition] = min(max(at, each.low), each.high)
            self._lives[partition] = each.life
