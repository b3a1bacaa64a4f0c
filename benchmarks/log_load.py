"""Data nodes and a placement manager as processes, and raw SBP frames to load them with.

The load is made of frames encoded beforehand, so that this process costs as little as it can: it
runs on the same processors as what it measures. `python -m benchmarks.log_load placement|node …`
is one of the children.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from benchmarks.bare_log import HEAD, LENGTH
from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.placement import PlacementSettings
from headrace.datanode.service import DataNodeService
from headrace.net.credentials import node_credential
from headrace.placement.metadata.store import MemoryStore
from headrace.placement.service import PlacementService
from headrace.process.startup.serving import SWITCH_INTERVAL_SECONDS
from headrace.runtime.system import run as run_loop
from headrace.runtime.system import system_runtime
from headrace.sbp_client.channels import Connect, PlacementChannel, tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.frames import SYSTEM_ERROR, Frame, encode_frame
from headrace.wire.sbp.messages import (
    AppendInfo,
    AppendRequest,
    AppendResponse,
    ClientRole,
    Durability,
    HeartbeatRequest,
    Range,
)
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import HEADER_BYTES, encode_header

BATCH_BYTES = 64 * 1024
SECRET = b"b" * 32
CREDENTIAL = node_credential(SECRET)
_HEADER_AT = 16  # of a frame
_HEADER_BITS = (1 << 24) - 1
_OPEN_AT_ONCE = 32
_CHECK_EVERY = 32  # answers; decoding each would measure this process


# --- children -------------------------------------------------------------------------------------


class Child:
    """A process that prints where it serves, and serves until its standard input is closed."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="headrace-bench-", dir=os.environ.get("HEADRACE_BENCH_DIR")
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, self._folder.name, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, f"{module} did not start"

    def __enter__(self) -> str:
        return self.address

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")
        self._folder.cleanup()


def dial(address: str, role: ClientRole = ClientRole.CUSTOMER) -> Connect:
    return tcp_connect(
        system_runtime(), address, client_id="bench", role=role, credential=CREDENTIAL
    )


async def serve_placement() -> None:
    placement = PlacementService(
        system_runtime(), PlacementSettings(), store=MemoryStore(), node=dial, secret=SECRET,
        plain_streams=False,
    )  # fmt: skip
    await placement.start()
    print(await placement.listen("127.0.0.1", 0), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await placement.close()


async def serve_node(folder: str, placement: str, tail_cache_bytes: int) -> None:
    node = DataNodeService(
        system_runtime(), DataNodeSettings(), folder=folder,
        storage=StorageSettings(tail_cache_bytes=tail_cache_bytes),
        placement=PlacementChannel.single(dial(placement)), peers=None, secret=SECRET,
        plain_streams=False,
    )  # fmt: skip
    await node.start("127.0.0.1", 0)
    gc.freeze()  # as `process/startup/role_process.py`
    print(node.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await node.abort()  # the bytes go away anyway


@dataclass
class Log:
    """A cluster of data nodes and its placement manager."""

    placement: str
    nodes: list[str]

    def client(self) -> SbpClient:
        return SbpClient(
            system_runtime(), placement=dial(self.placement), node=dial, client_id="bench"
        )

    async def open_range(self) -> Range:
        """Of a new stream on all the nodes."""
        return (await self.open_ranges(1))[0]

    async def open_ranges(
        self, count: int, durability: Durability = Durability.SYNCED
    ) -> list[Range]:
        client = self.client()

        async def open_one() -> Range:
            stream = await client.create_stream(replica_nums=len(self.nodes), durability=durability)
            return await client.writable(stream.stream_id)

        ranges: list[Range] = []
        try:
            while len(ranges) < count:
                at_once = min(_OPEN_AT_ONCE, count - len(ranges))
                ranges += await asyncio.gather(*(open_one() for _ in range(at_once)))
        finally:
            await client.close()
        return ranges


def start_log(stack: ExitStack, nodes: int, *, tail_cache_bytes: int = 64 << 20) -> Log:
    placement = stack.enter_context(Child("benchmarks.log_load", "placement"))
    return Log(
        placement,
        [
            stack.enter_context(
                Child("benchmarks.log_load", "node", placement, str(tail_cache_bytes))
            )
            for _ in range(nodes)
        ],
    )


def start_bare(stack: ExitStack, nodes: int) -> int:
    """The port of the first; it passes frames on to the others."""
    others = [stack.enter_context(Child("benchmarks.bare_log")) for _ in range(nodes - 1)]
    return int(stack.enter_context(Child("benchmarks.bare_log", *others)))


def primary_port(range_: Range) -> int:
    node = range_.replica_nodes[0].data_node
    assert node is not None
    return int(node.advertise_addr.rpartition(":")[2])


# --- frames ---------------------------------------------------------------------------------------


def encode_batch(batch_bytes: int) -> list[bytes]:
    body = os.urandom(batch_bytes - HEADER_BYTES)
    header = encode_header(
        base_offset=0, body=[body], record_count=1, base_timestamp=1, max_timestamp=1
    )
    return [bytes(header), body]


def frame_of(code: int, message: Any, payload: list[bytes], number: int) -> bytes:
    frame = Frame(code, 0, number, encode(message), payload)
    return b"".join(encode_frame(frame))


def hello_frame() -> bytes:
    request = HeartbeatRequest("bench", ClientRole.CUSTOMER, None, CREDENTIAL)
    return frame_of(Code.HEARTBEAT, request, [], 1)


def append_frame(range_: Range, number: int, batch_bytes: int = BATCH_BYTES) -> bytes:
    where = Range(stream_id=range_.stream_id, range_index=range_.range_index)
    info = AppendInfo(range=where, request_index=0, batch_length=batch_bytes)
    request = AppendRequest(timeout_ms=10_000, append_requests=(info,))
    return frame_of(Code.APPEND, request, encode_batch(batch_bytes), number)


# --- the load -------------------------------------------------------------------------------------


@dataclass
class Round:
    seconds: float = 0.0
    bytes: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds

    def quantile_ms(self, share: float) -> float:
        return 1000 * sorted(self.latencies)[int(share * (len(self.latencies) - 1))]


class Connection(asyncio.Protocol):
    """Calls back with the head of every answer, whose payload is counted and dropped."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._partial = bytearray()
        self._answers = 0
        self.on_answer: Callable[[int, int, bool], None] = lambda number, size, last: None
        self.on_failure: Callable[[Exception], None] = lambda _: None
        self.check: type[AppendResponse] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        partial = self._partial
        partial += data
        start = 0
        while len(partial) - start >= _HEADER_AT:
            length, _, _, flags, number = HEAD.unpack_from(partial, start)
            end = start + length + LENGTH.size
            if len(partial) < end:
                break
            try:
                self._check(partial, start, flags)
            except Exception as error:
                self.on_failure(error)
                return
            header_bytes = LENGTH.unpack_from(partial, start + 12)[0] & _HEADER_BITS
            self.on_answer(number, length - 16 - header_bytes, bool(flags & 2))
            start = end
        del partial[:start]

    def _check(self, frame: bytearray, start: int, flags: int) -> None:
        self._answers += 1
        if flags & SYSTEM_ERROR:
            raise RuntimeError("refused")
        if self.check is not None and self._answers % _CHECK_EVERY == 1:
            header_bytes = LENGTH.unpack_from(frame, start + 12)[0] & _HEADER_BITS
            at = start + _HEADER_AT
            response = decode(self.check, bytes(frame[at : at + header_bytes]))
            for result in response.append_responses:
                if result.status is not None and result.status.code:
                    raise RuntimeError(f"append refused: {result.status}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_failure(exc or ConnectionError("the server closed the connection"))


async def connect(port: int, *, hello: bool) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    if hello:
        done: asyncio.Future[None] = loop.create_future()
        connection.on_answer = lambda *_: done.set_result(None)
        connection.on_failure = done.set_exception
        connection.transport.write(hello_frame())
        await done
        connection.check = AppendResponse
    return connection


async def keep_appending(lanes: list[tuple[Connection, list[bytes]]], seconds: float) -> Round:
    """Every frame of every connection is in flight until the time is over."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    clock = time.perf_counter
    measured = Round()
    begin = clock()
    busy = sum(len(frames) for _, frames in lanes)

    def fail(error: Exception) -> None:
        if not over.done():
            over.set_exception(error)

    def start(connection: Connection, frames: list[bytes]) -> None:
        sent = [0.0] * len(frames)

        def send(at: int) -> None:
            sent[at] = clock()
            connection.transport.write(frames[at])

        def on_answer(number: int, size: int, last: bool) -> None:
            nonlocal busy
            now, at = clock(), number - 2
            measured.latencies.append(now - sent[at])
            measured.bytes += BATCH_BYTES
            if now - begin < seconds:
                send(at)
                return
            busy -= 1
            if not busy and not over.done():
                over.set_result(None)

        connection.on_answer, connection.on_failure = on_answer, fail
        for at in range(len(frames)):
            send(at)

    for connection, frames in lanes:
        start(connection, frames)
    await asyncio.wait_for(over, seconds + 30)
    measured.seconds = clock() - begin
    for connection, _ in lanes:
        connection.on_failure = lambda _: None
    return measured


def row(name: str, ours: list[Round], limits: list[Round]) -> dict[str, Any]:
    """The round with the median rate of each."""
    ours_median, limit = (
        sorted(each, key=lambda one: one.rate)[len(each) // 2] for each in (ours, limits)
    )
    return {
        "name": name,
        "value": ours_median.rate / 1e6,
        "unit": "MB/s",
        "limit": limit.rate / 1e6,
        "ratio": ours_median.rate / limit.rate,
        **{
            f"{whose}{label}_ms": each.quantile_ms(share)
            for whose, each in (("", ours_median), ("limit_", limit))
            for label, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
        },
    }


def main(folder: str, kind: str, placement: str = "", tail_cache_bytes: str = "0") -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    work = (
        serve_placement()
        if kind == "placement"
        else serve_node(folder, placement, int(tail_cache_bytes))
    )
    profile = os.environ.get("PROFILE")
    if profile is None or kind == "placement":
        run_loop(work)
        return
    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    run_loop(work)
    profiler.disable()
    profiler.dump_stats(f"{profile}.{os.getpid()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
