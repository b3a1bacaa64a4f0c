"""headrace produce: messages from a file or a pipe, one per line."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from headrace.cli.broker import connects, with_broker
from headrace.cli.options import AsJson, TopicName, split_topic
from headrace.cli.output import note, print_json

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.messages import Message
    from headrace.wire.iggy.primitives import Partitioning

BATCH_MESSAGES_MAX = 1000
BATCH_BYTES_MAX = 4 << 20
LINES_WAITING_MAX = 10_000


class Format(StrEnum):
    LINES = "lines"
    JSONL = "jsonl"


@connects
def produce(
    name: TopicName,
    file: Annotated[
        str, typer.Option("--file", "-f", help="Read lines from this file instead of stdin.")
    ] = "-",
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="A line is the payload, or a JSON object with payload, key and headers.",
        ),
    ] = Format.LINES,
    key: Annotated[str, typer.Option("--key", help="Give every message this key.")] = "",
    header: Annotated[
        list[str] | None, typer.Option("--header", help="NAME=VALUE for every message; repeatable.")
    ] = None,
    partition: Annotated[
        int, typer.Option("--partition", min=-1, help="Send to this partition; -1 = balanced.")
    ] = -1,
    rate: Annotated[
        float, typer.Option("--rate", min=0, help="Messages per second; 0 = as fast as it goes.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Send each line as a message. What is reported as sent is on the server's disk."""
    from headrace.cli.records import parse_headers

    stream, topic = split_topic(name)
    common = parse_headers(header or [])
    parser = _Parser(format, key.encode(), common)
    batch_max = max(1, min(BATCH_MESSAGES_MAX, int(rate / 10))) if rate else BATCH_MESSAGES_MAX

    async def work(client: IggyClient) -> int:
        import asyncio

        sent = 0
        started = time.monotonic()
        with _progress(file) as progress:
            for lines in _batches(file, batch_max):
                for each, messages in parser.group(lines).items():
                    where = _partitioning(each, partition)
                    await client.send(stream, topic, messages, partitioning=where, timeout=60)
                sent += len(lines)
                progress(sum(map(len, lines)) + len(lines))
                ahead = started + sent / rate - time.monotonic() if rate else 0
                if ahead > 0:
                    await asyncio.sleep(ahead)
        return sent

    sent = with_broker(work)
    if as_json:
        print_json({"topic": name, "sent": sent})
    else:
        note(f"sent {sent} messages to {name}")


class _Parser:
    """Lines to messages, grouped by key: a request has one key, and order counts within one."""

    def __init__(self, format: Format, key: bytes, headers: dict[str, str]) -> None:
        self._format = format
        self._key = key
        self._headers = headers
        self._number = 0

    def group(self, lines: list[bytes]) -> dict[bytes, list[Message]]:
        from headrace.cli.records import message_of, parse_line

        groups: dict[bytes, list[Message]] = {}
        for line in lines:
            self._number += 1
            payload, key, headers = line, self._key, self._headers
            if self._format is Format.JSONL:
                payload, own_key, own = parse_line(line, self._number)
                key, headers = own_key or key, {**headers, **own}
            groups.setdefault(key, []).append(message_of(payload, key, headers))
        return groups


def _partitioning(key: bytes, partition: int) -> Partitioning:
    from headrace.wire.iggy.primitives import Partitioning

    if partition >= 0:
        return Partitioning.to_partition(partition)
    if key:
        return Partitioning.by_key(key[:255])
    return Partitioning.balanced()


def _progress(file: str) -> Any:
    """A bar for a file on a terminal, nothing otherwise; calling it says how much was done."""
    if file == "-" or not sys.stderr.isatty() or not Path(file).is_file():
        return nullcontext(lambda _: None)
    from headrace.cli.output import byte_progress

    return byte_progress("sending", Path(file).stat().st_size)


def _batches(file: str, count_max: int) -> Iterator[list[bytes]]:
    """Lines as they come: what is there is sent at once, in as few batches as possible."""
    if file == "-":
        yield from _collect(sys.stdin.buffer, count_max)
        return
    try:
        with Path(file).open("rb") as source:
            yield from _collect(source, count_max)
    except OSError as error:
        from headrace.errors import ConfigError

        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _collect(source: BinaryIO, count_max: int) -> Iterator[list[bytes]]:
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
        while len(batch) < count_max and size < BATCH_BYTES_MAX:
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
