"""headrace produce and consume: messages from and to files and pipes, one per line."""

from __future__ import annotations

import base64
import json
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from headrace.cli.broker import connects, with_broker
from headrace.cli.options import AsJson, TopicName, split_topic
from headrace.cli.output import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.messages import Message
    from headrace.wire.iggy.primitives import Partitioning, Strategy

BATCH_MESSAGES_MAX = 1000
BATCH_BYTES_MAX = 4 << 20
POLL_MESSAGES = 1000
FOLLOW_SECONDS = 0.2
LINES_WAITING_MAX = 10_000


@connects
def produce(
    name: TopicName,
    file: Annotated[
        str, typer.Option("--file", "-f", help="Read lines from this file instead of stdin.")
    ] = "-",
    key: Annotated[str, typer.Option("--key", help="Give every message this key.")] = "",
    partition: Annotated[
        int, typer.Option("--partition", min=-1, help="Send to this partition; -1 = balanced.")
    ] = -1,
) -> None:
    """Send each line as a message. What is reported as sent is on the server's disk."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> int:
        from headrace.wire.iggy.messages.messages import Message
        from headrace.wire.iggy.userheaders import key_header

        headers = key_header(key.encode()) if key else b""
        where = _partitioning(key, partition)
        sent = 0
        for lines in _batches(file):
            messages = [Message(payload=line, headers=headers) for line in lines]
            await client.send(stream, topic, messages, partitioning=where, timeout=60)
            sent += len(messages)
        return sent

    note(f"sent {with_broker(work)} messages to {name}")


def _partitioning(key: str, partition: int) -> Partitioning:
    from headrace.wire.iggy.primitives import Partitioning

    if partition >= 0:
        return Partitioning.to_partition(partition)
    if key:
        return Partitioning.by_key(key.encode()[:255])
    return Partitioning.balanced()


def _batches(file: str) -> Iterator[list[bytes]]:
    """Lines as they come: what is there is sent at once, in as few batches as possible."""
    if file == "-":
        yield from _collect(sys.stdin.buffer)
        return
    try:
        with Path(file).open("rb") as source:
            yield from _collect(source)
    except OSError as error:
        from headrace.errors import ConfigError

        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _collect(source: BinaryIO) -> Iterator[list[bytes]]:
    lines: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)

    def read() -> None:
        for line in source:
            lines.put(line.rstrip(b"\r\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        batch: list[bytes] = []
        size = 0
        while len(batch) < BATCH_MESSAGES_MAX and size < BATCH_BYTES_MAX:
            try:
                line = lines.get(block=not batch)
            except queue.Empty:
                break
            if line is None:
                ended = True
                break
            if line:  # the protocol has no empty messages
                batch.append(line)
                size += len(line)
        if batch:
            yield batch


@connects
def consume(
    name: TopicName,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, or an offset.")
    ] = "earliest",
    partition: Annotated[
        int, typer.Option("--partition", min=-1, help="Only this partition; -1 = all.")
    ] = -1,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after; 0 = no limit.")
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new messages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print messages, partition by partition in offset order; stores no offsets."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> None:
        import asyncio

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
    from headrace.wire.iggy.primitives import Strategy

    details = await client.get_topic(stream, topic)
    if details is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    chosen = [p for p in details.partitions if partition in (-1, p.id)]
    if not chosen:
        raise NotFoundError(f"{stream}/{topic} has no partition {partition}")
    if start == "latest":
        return {
            p.id: Strategy.offset(p.current_offset + (1 if p.messages_count else 0)) for p in chosen
        }
    if start.isdigit():
        return {p.id: Strategy.offset(int(start)) for p in chosen}
    if start != "earliest":
        raise typer.BadParameter("--from takes earliest, latest or an offset")
    return {p.id: Strategy.first() for p in chosen}


def _print_message(partition: int, message: Message, *, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write(message.payload + b"\n")
        return
    key = message.key
    value: dict[str, Any] = {
        "partition": partition,
        "offset": message.offset,
        "timestamp_us": message.timestamp_us,
        "id": f"{message.id:032x}",
        "key": None if key is None else key.decode("utf-8", "replace"),
    }
    try:
        value["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        value["payload_base64"] = base64.b64encode(message.payload).decode()
    print(json.dumps(value))
