"""headrace consume: messages on standard output, one per line."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.broker import connects, with_broker
from headrace.cli.options import AsJson, TopicName, split_topic
from headrace.cli.output import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.messages import Message
    from headrace.wire.iggy.messages.topics import PartitionInfo
    from headrace.wire.iggy.primitives import Strategy

POLL_MESSAGES = 1000
FOLLOW_SECONDS = 0.2
_AGO = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FORMS = "earliest, latest, an offset, a time (2026-05-01T12:00) or how long ago (15m, 2h, 1d)"


@connects
def consume(
    name: TopicName,
    start: Annotated[str, typer.Option("--from", help=f"{_FORMS}.")] = "earliest",
    partition: Annotated[
        int, typer.Option("--partition", min=-1, help="Only this partition; -1 = all.")
    ] = -1,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after; 0 = no limit.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new messages, and for the topic.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print messages, partition by partition in offset order; stores no offsets."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> None:
        import asyncio

        told = False
        while follow and await client.get_topic(stream, topic) is None:
            if not told:
                note(f"there is no topic {name} yet; waiting for it (Ctrl-C ends this)")
                told = True
            await asyncio.sleep(FOLLOW_SECONDS)
        positions = await _positions(client, stream, topic, partition, start)
        left = count or sys.maxsize
        while left > 0:
            found = 0
            for number, position in positions.items():
                left_here = min(POLL_MESSAGES, left)
                polled = await client.poll(
                    stream, topic, partition=number, strategy=position, count=left_here
                )
                messages = polled.messages()
                for message in messages:
                    _print_message(number, message, as_json=as_json)
                if messages:
                    positions[number] = type(position).offset(messages[-1].offset + 1)
                    found += len(messages)
                    left -= len(messages)
            sys.stdout.flush()
            if not found:
                if not follow:
                    return
                await asyncio.sleep(FOLLOW_SECONDS)

    try:
        with_broker(work)
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _positions(
    client: IggyClient, stream: str, topic: str, partition: int, start: str
) -> dict[int, Strategy]:
    from headrace.errors import NotFoundError

    details = await client.get_topic(stream, topic)
    if details is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    chosen = [p for p in details.partitions if partition in (-1, p.id)]
    if not chosen:
        raise NotFoundError(f"{stream}/{topic} has no partition {partition}")
    return {p.id: _strategy(start, p) for p in chosen}


def _strategy(start: str, partition: PartitionInfo) -> Strategy:
    from headrace.wire.iggy.primitives import Strategy

    if start == "earliest":
        return Strategy.first()
    if start == "latest":
        return Strategy.offset(partition.current_offset + (1 if partition.messages_count else 0))
    if start.isdigit():
        return Strategy.offset(int(start))
    return Strategy.timestamp(parse_time_us(start))


def parse_time_us(text: str) -> int:
    """Microseconds since 1970 of a moment, local unless it says otherwise, or of a while ago."""
    ago = _AGO.fullmatch(text)
    if ago:
        return int((time.time() - int(ago[1]) * _SECONDS[ago[2]]) * 1e6)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--from takes {_FORMS}") from None
    return int(moment.astimezone(UTC).timestamp() * 1e6)


def _print_message(partition: int, message: Message, *, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write(message.payload + b"\n")
        return
    from headrace.cli import records

    print(json.dumps(records.as_json(partition, message)))
