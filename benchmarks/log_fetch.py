"""FETCH over TCP, catching up from the files and following the tail, against bare loops.

    python -m benchmarks log_fetch           with PROFILE=path the data node writes a cProfile

Catch-up: several connections read a log from its start, a mebibyte with each request, one request
after the other; the node keeps next to nothing in memory, so that every read goes to the files. The
limit reads the same bytes off the loop and sends them. Tail: one connection appends 64 KiB batches,
another one follows with FETCH; the limit sends each frame on once it is synced. Its latency is that
of a batch from the moment it is sent by the writer until it has come to the reader.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import ExitStack
from typing import Any

from benchmarks.bare_log import FOLLOW, HEAD, PLACE, READ
from benchmarks.log_load import (
    BATCH_BYTES,
    Connection,
    Log,
    Round,
    append_frame,
    connect,
    frame_of,
    keep_appending,
    primary_port,
    row,
    start_bare,
    start_log,
)
from headrace.runtime.system import run as run_loop
from headrace.wire.sbp.messages import FetchInfo, FetchRequest, Range
from headrace.wire.sbp.opcodes import Code

SECONDS = 0.6
ROUNDS = 6
READ_BYTES = 1024 * 1024
LOG_BATCHES = 1024  # 64 MiB
TAIL_IN_FLIGHT = 4


def fetch_frame(range_: Range, offset: int, number: int) -> bytes:
    info = FetchInfo(stream_id=range_.stream_id, fetch_offset=offset, batch_max_bytes=READ_BYTES)
    request = FetchRequest(max_wait_ms=5_000, min_bytes=1, fetch_requests=(info,))
    return frame_of(Code.FETCH, request, [], number)


def read_frame(position: int, number: int) -> bytes:
    place = PLACE.pack(position, READ_BYTES)
    return HEAD.pack(HEAD.size - 4 + len(place), 23, READ, 0, number) + place


def follow_frame() -> bytes:
    return HEAD.pack(HEAD.size - 4, 23, FOLLOW, 0, 2)


async def keep_reading(lanes: list[tuple[Connection, list[bytes]]], seconds: float) -> Round:
    """Each connection asks for one piece after the other, from a place of its own."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    clock = time.perf_counter
    measured = Round()
    begin = clock()
    busy = len(lanes)

    def fail(error: Exception) -> None:
        if not over.done():
            over.set_exception(error)

    def start(place: int, connection: Connection, frames: list[bytes]) -> None:
        at = place * len(frames) // len(lanes)
        sent = 0.0

        def ask() -> None:
            nonlocal at, sent
            sent = clock()
            at = (at + 1) % len(frames)
            connection.transport.write(frames[at])

        def on_answer(number: int, size: int, last: bool) -> None:
            nonlocal busy
            measured.bytes += size
            if not last:
                return
            now = clock()
            measured.latencies.append(now - sent)
            if now - begin < seconds:
                ask()
                return
            busy -= 1
            if not busy and not over.done():
                over.set_result(None)

        connection.on_answer, connection.on_failure = on_answer, fail
        ask()

    for place, (connection, frames) in enumerate(lanes):
        start(place, connection, frames)
    await asyncio.wait_for(over, seconds + 30)
    measured.seconds = clock() - begin
    for connection, _ in lanes:
        connection.on_failure = lambda _: None
    return measured


async def measure_catch_up(log: Log, bare: int, connections: int) -> dict[str, Any]:
    range_ = await log.open_range()
    port = primary_port(range_)
    for where, hello in ((port, True), (bare, False)):  # the log that is read
        writer = await connect(where, hello=hello)
        for _ in range(LOG_BATCHES // 16):
            frames = [append_frame(range_, number) for number in range(2, 18)]
            await keep_appending([(writer, frames)], 0)
        writer.transport.abort()
    step = READ_BYTES // BATCH_BYTES
    offsets = range(0, LOG_BATCHES - step, step)
    fetches = [fetch_frame(range_, offset, 2) for offset in offsets]
    reads = [read_frame(offset * BATCH_BYTES, 2) for offset in offsets]
    lanes = [(await connect(port, hello=True), fetches) for _ in range(connections)]
    bare_lanes = [(await connect(bare, hello=False), reads) for _ in range(connections)]
    for connection, _ in lanes:
        connection.check = None
    ours, limits = [], []
    for _ in range(ROUNDS + 1):
        ours.append(await keep_reading(lanes, SECONDS))
        limits.append(await keep_reading(bare_lanes, SECONDS))
    for connection, _ in (*lanes, *bare_lanes):
        connection.transport.abort()
    return row(f"fetch catch-up 1 MiB, {connections} conn.", ours[1:], limits[1:])


class Tail:
    """Batches sent and not yet received: one writer, one reader, in order."""

    def __init__(self) -> None:
        self.measured = Round()
        self.received = 0
        self._sent: deque[float] = deque()

    def on_sent(self) -> None:
        self._sent.append(time.perf_counter())

    def on_bytes(self, size: int) -> int:
        """Whole batches among them."""
        count = size // BATCH_BYTES
        now = time.perf_counter()
        for _ in range(count):
            self.measured.latencies.append(now - self._sent.popleft())
        self.received += count
        self.measured.bytes += count * BATCH_BYTES
        return count

    @property
    def waiting(self) -> int:
        return len(self._sent)


async def follow(
    writer: Connection, frames: list[bytes], reader: Connection, range_: Range | None, offset: int
) -> Round:
    """The writer has its frames in flight until the time is over and the reader has them all.

    The reader of a range asks from `offset` on; without a range frames come by themselves.
    """
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tail = Tail()
    begin = time.perf_counter()
    size_left = 0

    def fail(error: Exception) -> None:
        if not over.done():
            over.set_exception(error)

    def send(at: int) -> None:
        tail.on_sent()
        writer.transport.write(frames[at])

    def on_appended(number: int, size: int, last: bool) -> None:
        if time.perf_counter() - begin < SECONDS:
            send(number - 2)

    def on_received(number: int, size: int, last: bool) -> None:
        nonlocal size_left
        if range_ is None:
            size = BATCH_BYTES  # a frame is a batch and a little more
        size_left += size
        if not last:
            return
        tail.on_bytes(size_left)
        size_left = 0
        if not tail.waiting and time.perf_counter() - begin >= SECONDS:
            if not over.done():
                over.set_result(None)
        elif range_ is not None:
            ask()

    def ask() -> None:
        assert range_ is not None
        reader.transport.write(fetch_frame(range_, offset + tail.received, 2))

    writer.on_answer, writer.on_failure = on_appended, fail
    reader.on_answer, reader.on_failure = on_received, fail
    if range_ is not None:
        ask()
    for at in range(len(frames)):
        send(at)
    await asyncio.wait_for(over, SECONDS + 30)
    tail.measured.seconds = time.perf_counter() - begin
    writer.on_failure = reader.on_failure = lambda _: None
    return tail.measured


async def measure_tail(log: Log, bare: int) -> dict[str, Any]:
    range_ = await log.open_range()
    port = primary_port(range_)
    frames = [append_frame(range_, number) for number in range(2, 2 + TAIL_IN_FLIGHT)]
    writer, reader = await connect(port, hello=True), await connect(port, hello=True)
    reader.check = None
    bare_writer, bare_reader = await connect(bare, hello=False), await connect(bare, hello=False)
    bare_reader.transport.write(follow_frame())
    ours, limits = [], []
    offset = 0
    for _ in range(ROUNDS + 1):
        ours.append(await follow(writer, frames, reader, range_, offset))
        offset += len(ours[-1].latencies)
        limits.append(await follow(bare_writer, frames, bare_reader, None, 0))
    for connection in (writer, reader, bare_writer, bare_reader):
        connection.transport.abort()
    return row(f"fetch tail 64 KiB, {TAIL_IN_FLIGHT} in flight", ours[1:], limits[1:])


def run() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        log, bare = start_log(stack, 1, tail_cache_bytes=BATCH_BYTES), start_bare(stack, 1)
        rows += [run_loop(measure_catch_up(log, bare, connections)) for connections in (1, 4)]
    with ExitStack() as stack:
        log, bare = start_log(stack, 1), start_bare(stack, 1)
        rows.append(run_loop(measure_tail(log, bare)))
    return rows
