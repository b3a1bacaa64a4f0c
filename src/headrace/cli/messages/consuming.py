"""What `headrace consume` does with a connection.

What was printed is remembered here, or for a group on the server; so a server that restarts while
we follow a topic costs a pause, and no message is left out or printed twice.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from headrace.cli.messages import records
from headrace.cli.messages.points import is_point, parse_time_us
from headrace.cli.output import printable
from headrace.client.connection import BrokerConnection
from headrace.client.consuming import GroupConsumer
from headrace.client.topic_reader import Position, TopicReader
from headrace.errors import NotFoundError
from headrace.observability.escaping import note
from headrace.wire.iggy.messages.messages import Message, decode_messages
from headrace.wire.iggy.messages.topics import PartitionInfo, TopicDetails
from headrace.wire.iggy.primitives import Strategy

POLL_MESSAGES = 1000
FOLLOW_SECONDS = 0.2
LOOK_SECONDS = 5.0  # until it is asked again how many partitions there are
LEAVE_SECONDS = 5.0


class Reading:
    def __init__(self, stream: str, topic: str, *, count: int, follow: bool, as_json: bool) -> None:
        self._stream, self._topic = stream, topic
        self._follow = follow
        self._as_json = as_json
        self._left = count or sys.maxsize

    async def wait_for_topic(self, link: BrokerConnection) -> None:
        told = False
        while self._follow and await self._find(link) is None:
            if not told:
                note(
                    f"there is no topic {self._stream}/{self._topic} yet; waiting for it "
                    "(Ctrl-C ends this)"
                )
                told = True
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _find(self, link: BrokerConnection) -> TopicDetails | None:
        return await link.call(lambda client: client.get_topic(self._stream, self._topic))

    async def _partitions(self, link: BrokerConnection) -> tuple[PartitionInfo, ...]:
        details = await self._find(link)
        if details is None:
            raise NotFoundError(f"there is no topic {self._stream}/{self._topic}")
        return details.partitions

    # --- alone: where we are is known here ---

    async def alone(self, link: BrokerConnection, partition: int, start: str) -> None:
        found = await self._partitions(link)
        chosen = [one for one in found if partition in (-1, one.id)]
        if not chosen and partition >= 0:
            raise NotFoundError(f"{self._stream}/{self._topic} has no partition {partition}")
        if not chosen:
            note(f"{self._stream}/{self._topic} has no partitions, so there is nothing to read")
        positions = {one.id: _strategy(start, one) for one in chosen}
        looked = time.monotonic()
        while self._left > 0:
            read = 0
            for number in positions:
                read += await self._poll(link, number, positions)
            if read:
                continue
            if not self._follow:
                return
            if partition < 0 and time.monotonic() - looked > LOOK_SECONDS:
                self._add_new(positions, await self._partitions(link))
                looked = time.monotonic()
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _poll(
        self, link: BrokerConnection, number: int, positions: dict[int, Strategy]
    ) -> int:
        """How many messages of a partition were printed."""
        if self._left <= 0:
            return 0
        polled = await link.call(
            lambda client: client.poll(
                self._stream,
                self._topic,
                partition=number,
                strategy=positions[number],
                count=min(POLL_MESSAGES, self._left),
            )
        )
        messages = polled.messages()
        if messages:
            self._print(number, messages)
            positions[number] = type(positions[number]).offset(messages[-1].offset + 1)
        return len(messages)

    def _add_new(self, positions: dict[int, Strategy], partitions: Iterable[PartitionInfo]) -> None:
        """All messages of a partition that was added while we read are new."""
        for one in partitions:
            positions.setdefault(one.id, _strategy("earliest", one))

    # --- as a member of a group: where it is is known to the server ---

    async def as_member(self, link: BrokerConnection, group: str, start: str) -> None:
        reading = TopicReader(link)
        consumer = GroupConsumer(
            link,
            reading,
            self._stream,
            self._topic,
            group,
            start=_position(start),
            auto_commit=False,
            follow=self._follow,
        )
        try:
            async with consumer:
                try:
                    await self._print_all(consumer)
                except asyncio.CancelledError:  # Ctrl-C: what was printed was read
                    async with asyncio.timeout(LEAVE_SECONDS):
                        await consumer.commit()
                    raise
        finally:
            await reading.close()

    async def _print_all(self, consumer: GroupConsumer) -> None:
        async for batch in consumer.batches():
            for part in batch.parts:
                messages = list(decode_messages(part.area[0]))[: self._left]
                self._print(part.partition, messages)
                if messages and self._left <= 0:
                    consumer.read_up_to(part.partition, messages[-1].offset)
                    await consumer.commit()
                    return
            await consumer.commit()

    def _print(self, partition: int, messages: list[Message]) -> None:
        for message in messages:
            _print_message(partition, message, as_json=self._as_json)
        sys.stdout.flush()
        self._left -= len(messages)


def _position(start: str) -> Position:
    if start.isdigit():
        return int(start)
    if is_point(start):
        return start
    return datetime.fromtimestamp(parse_time_us(start) / 1e6, UTC)


def _strategy(start: str, partition: PartitionInfo) -> Strategy:
    if start == "earliest":
        return Strategy.first()
    if start == "latest":
        return Strategy.offset(partition.next_offset)
    if start.isdigit():
        return Strategy.offset(int(start))
    return Strategy.timestamp(parse_time_us(start))


def _print_message(partition: int, message: Message, *, as_json: bool) -> None:
    if not as_json:
        if sys.stdout.isatty():  # what is shown must not command the terminal
            print(printable(message.payload.decode("utf-8", "backslashreplace")))
        else:
            sys.stdout.buffer.write(message.payload + b"\n")
        return
    print(json.dumps(records.as_json(partition, message)))
