"""headrace consume: messages on standard output, one per line.

What was printed is remembered here, or for a group on the server; so a server that restarts while
we follow a topic costs a pause, and no message is left out or printed twice.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from headrace.cli.connection import connects, with_broker_connection
from headrace.cli.declare import (
    FORMS,
    command,
    is_point,
    json_option,
    option,
    parse_time_us,
    split_topic,
)
from headrace.cli.output import printable
from headrace.cli.server_names import topic_argument
from headrace.errors import NotFoundError
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.connection import BrokerConnection
    from headrace.client.consuming import GroupConsumer
    from headrace.client.topic_reader import Position
    from headrace.wire.iggy.messages.messages import Message
    from headrace.wire.iggy.messages.topics import PartitionInfo, TopicDetails
    from headrace.wire.iggy.primitives import Strategy

RETRY_SECONDS = 30.0  # without --follow; with it, until somebody ends it


@command("consume")
@topic_argument
@option("--from", "start", default="earliest", help=f"{FORMS}.")
@option(
    "--partition", type=click.IntRange(min=-1), default=-1, help="Only this partition; -1 = all."
)
@option(
    "--group",
    default="",
    help="Read as a member of this group: from where it is, and store how far that came.",
)
@option("--count", "-n", type=click.IntRange(min=0), default=0, help="Stop after; 0 = no limit.")
@option("--follow", is_flag=True, help="Wait for new messages, and for the topic.")
@json_option
@connects
def consume(
    name: str, start: str, partition: int, group: str, count: int, follow: bool, as_json: bool
) -> None:
    """Print messages, partition by partition in offset order; stores no offsets without --group."""
    if group and partition >= 0:
        raise click.BadParameter("a group shares the partitions out; leave --partition out")
    if not is_point(start):
        parse_time_us(start)  # said before anything is asked
    stream, topic = split_topic(name)

    async def work(connection: BrokerConnection) -> None:
        printer = MessagePrinter(stream, topic, count=count, follow=follow, as_json=as_json)
        await printer.wait_for_topic(connection)
        if group:
            await printer.as_member(connection, group, start)
        else:
            await printer.alone(connection, partition, start)

    try:
        with_broker_connection(work, retry_seconds=float("inf") if follow else RETRY_SECONDS)
    except KeyboardInterrupt:
        raise click.exceptions.Exit from None


POLL_MESSAGES = 1000
FOLLOW_SECONDS = 0.2
LOOK_SECONDS = 5.0  # until it is asked again how many partitions there are
LEAVE_SECONDS = 5.0


class MessagePrinter:
    """What `headrace consume` does with a connection: alone, or as a member of a group."""

    def __init__(self, stream: str, topic: str, *, count: int, follow: bool, as_json: bool) -> None:
        self._stream, self._topic = stream, topic
        self._follow = follow
        self._as_json = as_json
        self._left = count or sys.maxsize

    async def wait_for_topic(self, connection: BrokerConnection) -> None:
        import asyncio

        told = False
        while self._follow and await self._find(connection) is None:
            if not told:
                note(
                    f"there is no topic {self._stream}/{self._topic} yet; waiting for it "
                    "(Ctrl-C ends this)"
                )
                told = True
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _find(self, connection: BrokerConnection) -> TopicDetails | None:
        return await connection.call(lambda client: client.get_topic(self._stream, self._topic))

    async def _partitions(self, connection: BrokerConnection) -> tuple[PartitionInfo, ...]:
        details = await self._find(connection)
        if details is None:
            raise NotFoundError(f"there is no topic {self._stream}/{self._topic}")
        return details.partitions

    # --- alone: where we are is known here ---

    async def alone(self, connection: BrokerConnection, partition: int, start: str) -> None:
        import asyncio

        found = await self._partitions(connection)
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
                read += await self._poll(connection, number, positions)
            if read:
                continue
            if not self._follow:
                return
            if partition < 0 and time.monotonic() - looked > LOOK_SECONDS:
                self._add_new(positions, await self._partitions(connection))
                looked = time.monotonic()
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _poll(
        self, connection: BrokerConnection, number: int, positions: dict[int, Strategy]
    ) -> int:
        """How many messages of a partition were printed."""
        if self._left <= 0:
            return 0
        polled = await connection.call(
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

    async def as_member(self, connection: BrokerConnection, group: str, start: str) -> None:
        import asyncio

        from headrace.client.consuming import GroupConsumer
        from headrace.client.topic_reader import TopicReader

        reader = TopicReader(connection)
        consumer = GroupConsumer(
            connection,
            reader,
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
            await reader.close()

    async def _print_all(self, consumer: GroupConsumer) -> None:
        from headrace.wire.iggy.messages.messages import decode_messages

        async for batch in consumer.batches():
            for part in batch.parts:
                messages = list(decode_messages(part.buffer[0]))[: self._left]
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
    from headrace.wire.iggy.primitives import Strategy

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
    from headrace.cli.messages import records

    print(json.dumps(records.as_json(partition, message)))
