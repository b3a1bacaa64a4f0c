"""Links between brokers over a unix socket, against a bare socket that echoes, in the same run.

Both servers run in a process of their own, both clients in this one, on uvloop: the limit answers
frames of the same length without looking into them. `in turn` waits for each answer before the next
call; its value is calls in a second, and p50 and p99 are the times of single calls, so that the
difference to the bare socket is what the link adds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from headrace.net.peer_link import PeerLink, UnixAddress
from headrace.net.peer_server import Answer, PeerServer
from headrace.runtime import system

SECRET = b"benchmark" * 4
KIB, MIB = 1 << 10, 1 << 20
SECONDS = 1.5
ROUNDS = 3
LOADS = (("1 KB in turn", KIB, 1), ("1 KB, 64 at a time", KIB, 64), ("1 MB, 4 at a time", MIB, 4))


class Echo(asyncio.BufferedProtocol):
    """Sends every byte back; on the client's side it counts what came back."""

    def __init__(self, on_bytes: Callable[[int], None] | None = None) -> None:
        self._on_bytes = on_bytes
        self._buffer = bytearray(MIB)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._on_bytes is not None:
            self._on_bytes(nbytes)
        else:
            self.transport.write(bytes(memoryview(self._buffer)[:nbytes]))


class BareClient:
    """Calls by counting: answers of one length come back in the order of the calls."""

    def __init__(self, size: int) -> None:
        self._frame = os.urandom(size)
        self._waiting: list[asyncio.Future[None]] = []
        self._received = 0
        self.echo = Echo(self._on_bytes)

    async def call(self) -> None:
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        self.echo.transport.write(self._frame)
        await answered

    def _on_bytes(self, count: int) -> None:
        self._received += count
        while self._received >= len(self._frame) and self._waiting:
            self._received -= len(self._frame)
            self._waiting.pop(0).set_result(None)


def _answer(name: str, head: bytes, body: memoryview) -> Answer:
    return b"", [body]


def _answer_in_a_task(name: str, head: bytes, body: memoryview) -> Awaitable[Answer]:
    async def answer() -> Answer:
        await asyncio.sleep(0)
        return b"", [body]

    return answer()


async def _serve(folder: str) -> None:
    runtime = system.system_runtime()
    servers = [
        PeerServer(runtime, secret=SECRET, name="server", on_request=handler)
        for handler in (_answer, _answer_in_a_task)
    ]
    for server, path in zip(servers, ("link", "tasks"), strict=True):
        await server.start_unix(f"{folder}/{path}")
    loop = asyncio.get_running_loop()
    bare = await loop.create_unix_server(Echo, f"{folder}/bare")
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    bare.close()
    for server in servers:
        await server.close()


async def _load(call: Callable[[], Awaitable[object]], at_a_time: int) -> tuple[float, list[float]]:
    """Calls in a second, and the seconds that each took."""
    times: list[float] = []
    begin = time.perf_counter()
    end = begin + SECONDS

    async def one() -> None:
        while (now := time.perf_counter()) < end:
            await call()
            times.append(time.perf_counter() - now)

    await asyncio.gather(*(one() for _ in range(at_a_time)))
    return len(times) / (time.perf_counter() - begin), times


async def _measure(folder: str) -> list[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    rows = []
    for path, suffix in (("link", ""), ("tasks", ", answered by tasks")):
        link = PeerLink(
            system.system_runtime(),
            secret=SECRET,
            name="client",
            address=UnixAddress(f"{folder}/{path}"),
        )
        for name, size, at_a_time in LOADS:
            bare = BareClient(size + 17)
            await loop.create_unix_connection(lambda bare=bare: bare.echo, f"{folder}/bare")  # type: ignore[misc]
            body = os.urandom(size)

            async def call(link: PeerLink = link, body: bytes = body) -> object:
                return await link.call(b"", [body], timeout=10)

            await call()
            ours, theirs = [], []
            for _ in range(ROUNDS):  # in turn, so that a busy machine hits both
                ours.append(await _load(call, at_a_time))
                theirs.append(await _load(bare.call, at_a_time))
            bare.echo.transport.close()
            rows.append(_row(name + suffix, size, max(ours), max(theirs)))
        await link.close()
    return rows


def _row(
    name: str, size: int, ours: tuple[float, list[float]], limit: tuple[float, list[float]]
) -> dict[str, Any]:
    scale, unit = (size / 1e6, "MB/s") if size >= MIB else (1.0, "calls/s")
    times, bare = (sorted(each[1]) for each in (ours, limit))
    return {
        "name": name,
        "unit": unit,
        "value": ours[0] * scale,
        "limit": limit[0] * scale,
        "ratio": ours[0] / limit[0],
        "p50_ms": statistics.median(times) * 1e3,
        "p99_ms": times[int(len(times) * 0.99)] * 1e3,
        "limit_p50_ms": statistics.median(bare) * 1e3,
        "limit_p99_ms": bare[int(len(bare) * 0.99)] * 1e3,
    }


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peer_link", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdout.readline()
            return system.run(_measure(folder))
        finally:
            server.stdin.close()
            server.wait(20)
            server.stdout.close()


if __name__ == "__main__":
    system.run(_serve(sys.argv[1]))
