"""Send and poll through TCP, against a bare loop that does the same I/O and nothing else.

One process serves, this one loads it over several connections with frames encoded beforehand. The
limit for sending is an asyncio server that receives the same frames, writes the same bytes with
pwrite, syncs them once per group with fdatasync and answers; for polling, one that answers each
request with the same bytes from memory. Rounds of both alternate and the best of each counts, so
that a machine with other work to do disturbs both alike.

Run alone: `python -m benchmarks broker_send_poll`. With PROFILE=path the broker writes a cProfile.
"""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any

from headrace.runtime.system import run as run_loop
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.frames import encode_request
from headrace.wire.iggy.messages.messages import Message, PollMessages, encode_send
from headrace.wire.iggy.messages.streams import CreateStream
from headrace.wire.iggy.messages.topics import Compression, CreateTopic
from headrace.wire.iggy.messages.users import LoginUser
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy

SHAPES = ((1000, 200), (100, 1024))  # messages in a batch, bytes in a payload
CONNECTIONS = 8
SECONDS = 0.5
ROUNDS = 6
POLLED_BATCHES = 128

_RESPONSE = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


# --- the servers, each in a process of its own ----------------------------------------------------


async def serve_broker(folder: str) -> None:
    from tests.integration.broker_stack import Stack

    stack = await Stack(folder).start()
    print(stack.port, flush=True)
    await _until_input_ends()
    await stack.stop()


class BareLog:
    """Group commit in a dozen lines: what waits is written and synced together."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY)
        self._end = 0
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._busy = False

    async def append(self, data: bytes) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((data, done))
        if not self._busy:
            self._busy = True
            await self._write()
        await done

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting, []
            await loop.run_in_executor(None, self._sync, [data for data, _ in group])
            for _, done in group:
                done.set_result(None)
        self._busy = False

    def _sync(self, pieces: list[bytes]) -> None:
        self._end += os.pwritev(self._file, pieces, self._end)
        os.fdatasync(self._file)


async def serve_bare(folder: str, reply_bytes: int) -> None:
    """Answer every frame: with `reply_bytes` from memory, or after writing it to disk."""
    log = BareLog(f"{folder}/bare.log")
    reply = _RESPONSE.pack(0, reply_bytes) + bytes(reply_bytes)

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(4))
                frame = await reader.readexactly(length)
                if not reply_bytes:
                    await log.append(frame)
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    await _until_input_ends()
    server.close()


async def _until_input_ends() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Server:
    """A child that serves until its standard input is closed."""

    def __init__(self, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-bench-")
        command = [sys.executable, "-m", "benchmarks.broker_send_poll", self._folder.name]
        self._process = subprocess.Popen(
            [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")
        self._folder.cleanup()


# --- the load -------------------------------------------------------------------------------------


def _frame(command: c.AnyCommand, request: Any) -> bytes:
    return b"".join(encode_request(command.code, command.encode_request(request)))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> int:
    """Bytes of the reply's body."""
    writer.write(frame)
    status, length = _RESPONSE.unpack(await reader.readexactly(_RESPONSE.size))
    if status:
        raise RuntimeError(f"refused with {status}")
    if length:
        await reader.readexactly(length)
    return int(length)


async def load(port: int, frames: list[bytes], *, login: bool, seconds: float = SECONDS) -> float:
    """Requests per second over all connections; each waits for its answer before the next."""
    pairs = [
        await asyncio.open_connection("127.0.0.1", port, limit=1 << 22) for _ in range(CONNECTIONS)
    ]
    if login:
        for reader, writer in pairs:
            await _ask(reader, writer, _frame(c.LOGIN_USER, LoginUser("iggy", "iggy")))
    begin = time.perf_counter()

    async def work(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        first = number * len(frames) // CONNECTIONS  # each reads forwards from a place of its own
        done = 0
        while time.perf_counter() < begin + seconds:
            await _ask(reader, writer, frames[(first + done) % len(frames)])
            done += 1
        return done

    requests = sum(await asyncio.gather(*(work(n, *pair) for n, pair in enumerate(pairs))))
    rate = requests / (time.perf_counter() - begin)
    for _, writer in pairs:
        writer.close()
        await writer.wait_closed()
    return rate


async def compare(broker: int, bare: int, frames: list[bytes]) -> tuple[float, float]:
    """The best rates of both; the first round warms up and does not count."""
    rates, limits = [], []
    for _ in range(ROUNDS + 1):
        rates.append(await load(broker, frames, login=True))
        limits.append(await load(bare, frames, login=False))
    return max(rates[1:]), max(limits[1:])


def _send_frame(count: int, size: int) -> bytes:
    messages = [Message(bytes([65 + n % 26]) * size) for n in range(count)]
    request = encode_send(0, 0, Partitioning.to_partition(0), messages)
    return _frame(c.SEND_MESSAGES, request)


def _poll_frames(count: int) -> list[bytes]:
    return [
        _frame(
            c.POLL_MESSAGES,
            PollMessages(Consumer.single(), 0, 0, 0, Strategy.offset(n * count), count, False),
        )
        for n in range(POLLED_BATCHES)
    ]


async def _prepare(port: int, frames: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    for frame in (
        _frame(c.LOGIN_USER, LoginUser("iggy", "iggy")),
        _frame(c.CREATE_STREAM, CreateStream("bench")),
        _frame(c.CREATE_TOPIC, CreateTopic(0, 1, Compression.NONE, 0, 0, 1, "bench")),
        *frames,
    ):
        await _ask(reader, writer, frame)
    writer.close()
    await writer.wait_closed()


def _row(name: str, rate: float, limit: float, count: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": rate * count,
        "unit": "messages/s",
        "limit": limit * count,
        "ratio": rate / limit,
    }


def run() -> list[dict[str, Any]]:
    rows = []
    for count, size in SHAPES:
        frame = _send_frame(count, size)
        with Server("broker") as broker, Server("bare", "0") as bare:
            run_loop(_prepare(broker, []))
            rate, limit = run_loop(compare(broker, bare, [frame]))
        rows.append(_row(f"send {count} x {size} B", rate, limit, count))
        reply_bytes = 16 + count * (64 + size)
        with Server("broker") as broker, Server("bare", str(reply_bytes)) as bare:
            run_loop(_prepare(broker, [frame] * POLLED_BATCHES))
            rate, limit = run_loop(compare(broker, bare, _poll_frames(count)))
        rows.append(_row(f"poll {count} x {size} B", rate, limit, count))
    return rows


def _main(folder: str, kind: str, reply_bytes: str = "0") -> None:
    work = serve_broker(folder) if kind == "broker" else serve_bare(folder, int(reply_bytes))
    profile = os.environ.get("PROFILE")
    if profile is None or kind != "broker":
        run_loop(work)
        return
    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    run_loop(work)
    profiler.disable()
    profiler.dump_stats(f"{profile}.{os.getpid()}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
