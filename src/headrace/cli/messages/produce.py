"""headrace produce: messages from a file or a pipe, one per line.

Lines are read by a thread as they come, so that what was sent is acknowledged meanwhile.
"""

from __future__ import annotations

import io
import os
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from headrace.cli.connection import connects, with_broker_connection
from headrace.cli.declare import command, json_option, option, split_topic
from headrace.cli.output import counted, print_json
from headrace.cli.server_names import topic_argument
from headrace.errors import ConfigError
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.connection import BrokerConnection
    from headrace.client.sending import Sender
    from headrace.wire.iggy.messages.messages import Message
    from headrace.wire.iggy.primitives import Partitioning

LINES_WAITING_MAX = 10_000


def open_source(file: str) -> BinaryIO:
    """A file, or `-` for standard input. ConfigError when it cannot be opened."""
    try:
        if file != "-":
            return open(file, "rb")
        # Not sys.stdin itself, whose lock a thread that still reads would keep when we end.
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except io.UnsupportedOperation:
        return sys.stdin.buffer  # it is no file of the system
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


class Lines:
    """Read by a thread of its own, which waits while too many are not yet taken. It does not keep
    the process from ending: nobody can call it back from a pipe."""

    def __init__(self, source: BinaryIO) -> None:
        import asyncio

        self._source = source
        self._waiting: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._there = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._error: OSError | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._source:
                self._put(line.rstrip(b"\r\n"))
        except OSError as error:
            self._error = error
        if self._source is not sys.stdin.buffer:
            self._source.close()
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        self._waiting.put(line)
        if not self._there.is_set():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._there.set)

    async def take(self, count_max: int, bytes_max: int) -> list[bytes]:
        """What is there by now, at least one line; none at the end."""
        taken: list[bytes] = []
        size = 0
        while not taken and not self._ended:
            await self._there.wait()
            self._there.clear()  # first: what is put from now on sets it again
            while len(taken) < count_max and size < bytes_max:
                try:
                    line = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if line is None:
                    self._ended = True
                    break
                taken.append(line)
                size += len(line)
            else:
                self._there.set()
        if self._error is not None and not taken:
            raise ConfigError(f"cannot read on: {self._error.strerror}") from self._error
        return taken


BATCH_MESSAGES_MAX = 1000
BATCH_BYTES_MAX = 4 << 20
RETRY_SECONDS = 60.0  # for a server that went away


@command("produce")
@topic_argument
@option("--file", "-f", default="-", help="Read lines from this file instead of stdin.")
@option(
    "--format",
    type=click.Choice(["lines", "jsonl"]),
    default="lines",
    help="A line is the payload, or a JSON object with payload, key and headers.",
)
@option("--key", default="", help="Give every message this key.")
@option("--header", multiple=True, help="NAME=VALUE for every message; repeatable.")
@option(
    "--partition",
    type=click.IntRange(min=-1),
    default=-1,
    help="Send to this partition; -1 = balanced.",
)
@option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0,
    help="Messages per second; 0 = as fast as it goes.",
)
@json_option
@connects
def produce(
    name: str,
    file: str,
    format: str,
    key: str,
    header: tuple[str, ...],
    partition: int,
    rate: float,
    as_json: bool,
) -> None:
    """Send each line as a message. What is reported as stored is on the server's disk, once: a
    server that restarts meanwhile costs a pause.
    """
    from headrace.cli.messages.records import parse_headers
    from headrace.errors import HeadraceError

    stream, topic = split_topic(name)
    parser = _Parser(format, key.encode(), parse_headers(header))
    batch_max = max(1, min(BATCH_MESSAGES_MAX, int(rate / 10))) if rate else BATCH_MESSAGES_MAX
    tally = _Tally()

    async def work(connection: BrokerConnection) -> None:
        from headrace.client.sending import Sender

        await _check_topic(connection, stream, topic)
        sender = Sender(connection)
        try:
            with _progress(file) as progress:
                async for lines in _batches(file, batch_max, tally):
                    for each, messages in parser.group(lines).items():
                        await _send(sender, stream, topic, _partitioning(each, partition), messages)
                        tally.stored += len(messages)
                    progress(sum(map(len, lines)) + len(lines))
                    await tally.keep_to(rate)
        finally:
            await sender.close()

    try:
        with_broker_connection(work, retry_seconds=RETRY_SECONDS)
    except (HeadraceError, KeyboardInterrupt):
        if tally.stored:
            note(f"stored {counted(tally.stored, 'message')} in {name} before it ended")
        raise
    if as_json:
        print_json({"topic": name, "stored": tally.stored, "empty_lines": tally.empty})
        return
    left_out = f"; left {counted(tally.empty, 'empty line')} out" if tally.empty else ""
    note(f"stored {counted(tally.stored, 'message')} in {name}{left_out}")


class _Tally:
    """What became of the lines so far."""

    def __init__(self) -> None:
        self.stored = 0
        self.empty = 0
        self._started = 0.0

    async def keep_to(self, rate: float) -> None:
        """Wait until so many may have been sent. Time counts from the first batch on, with which a
        connection was made."""
        import asyncio

        if not rate:
            return
        now = time.monotonic()
        self._started = self._started or now
        await asyncio.sleep(max(0.0, self._started + self.stored / rate - now))


async def _check_topic(connection: BrokerConnection, stream: str, topic: str) -> None:
    """Before the first line is typed. Who may only send cannot ask."""
    from headrace.errors import NotFoundError, UnauthorizedError

    try:
        found = await connection.call(lambda client: client.get_topic(stream, topic))
    except UnauthorizedError:
        return
    if found is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")


async def _send(
    sender: Sender, stream: str, topic: str, where: Partitioning, messages: list[Message]
) -> None:
    from headrace.runtime.system import system_runtime
    from headrace.wire.iggy.messages.messages import encode_send

    now_us = system_runtime().clock.now_us()
    await sender.send(encode_send(stream, topic, where, messages, origin_timestamp_us=now_us))


class _Parser:
    """Lines to messages, grouped by key: a request has one key, and order counts within one."""

    def __init__(self, format: str, key: bytes, headers: dict[str, str]) -> None:
        self._format = format
        self._key = key
        self._headers = headers
        self._number = 0

    def group(self, lines: list[bytes]) -> dict[bytes, list[Message]]:
        from headrace.cli.messages.records import message_of, parse_line

        groups: dict[bytes, list[Message]] = {}
        for line in lines:
            self._number += 1
            payload, key, headers = line, self._key, self._headers
            if self._format == "jsonl":
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


async def _batches(file: str, count_max: int, tally: _Tally) -> AsyncIterator[list[bytes]]:
    """Lines as they come: what is there is sent at once, in as few batches as possible."""
    if file == "-" and sys.stdin.isatty():
        note("each line is a message; Ctrl-D ends it")
    lines = Lines(open_source(file))
    while batch := await lines.take(count_max, BATCH_BYTES_MAX):
        filled = [line for line in batch if line]  # the protocol has no empty messages
        tally.empty += len(batch) - len(filled)
        if filled:
            yield filled
