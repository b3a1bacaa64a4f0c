"""Steps that every request takes, against the ready-made way to do the same.

    python -m benchmarks hot_steps

The figure is microseconds of CPU; the ratio is ours to the other's, so less is better. These are
the reasons for code that a library would otherwise be used for.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from isal.isal_zlib import crc32
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry, Counter, Histogram

from headrace.broker.traffic import Traffic
from headrace.observability import tracing
from headrace.runtime.system import SystemExecutor
from headrace.runtime.system import run as run_loop
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.sbp import flat
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.messages import (
    OK,
    AppendInfo,
    AppendRequest,
    AppendResponse,
    AppendResult,
    Range,
)
from headrace.wire.sbp.multipart import encode_replicated, encode_stored

ROUNDS = 5
HOPS = 2000
FRAME_BYTES = 1 << 20


def run() -> list[dict[str, Any]]:
    ours, pool = run_loop(hops())
    result = AppendResult(77, 0, 12345, 1_794_753_076_000, OK)
    answer = AppendResponse(append_responses=(result,), status=OK)
    info = AppendInfo(Range(77, 0, next_offset=12345), batch_length=65536)
    replicated = AppendRequest(append_requests=(info,))
    request = encode(replicated)
    frame = memoryview(os.urandom(FRAME_BYTES))
    return [
        row("hand a call to a thread, limit: ThreadPoolExecutor", ours, pool),
        row("answer a stored append, limit: encode it",
            best(lambda: encode_stored(answer), 5000), best(lambda: encode(answer), 5000)),
        row("ask for a replica's append, limit: encode it",
            best(lambda: encode_replicated(replicated), 5000),
            best(lambda: encode(replicated), 5000)),
        row("read an append of a known shape, limit: table by table",
            best(lambda: decode(AppendRequest, request), 5000),
            best(lambda: read_tables(request), 5000)),
        row("CRC-32 of 1 MiB, limit: zlib's",
            best(lambda: crc32(frame), 100), best(lambda: zlib.crc32(frame), 100)),
        row("count a request and its time, limit: prometheus-client", *counting()),
        row("look whether to trace, limit: OpenTelemetry's no-op", *looking()),
    ]  # fmt: skip


def read_tables(header: bytes) -> AppendRequest:
    found: AppendRequest = flat._Reader(header).table(
        AppendRequest, flat._U32.unpack(header[:4])[0]
    )
    return found


def counting() -> tuple[float, float]:
    """What the broker does for every request, against the client library's own metrics."""
    traffic = Traffic()
    registry = CollectorRegistry()
    requests = Counter("requests", "h", ("command", "dialect"), registry=registry)
    size = Counter("size", "h", registry=registry)
    durations = Histogram("durations", "h", ("command",), registry=registry)
    pieces = (b"x" * 16,)

    def ours() -> None:
        traffic.on_answer(101, Dialect.B2, 0.0004, 1000, pieces)

    def theirs() -> None:
        requests.labels("send_messages", "B2").inc()
        size.inc(1000)
        durations.labels("send_messages").observe(0.0004)

    return best(ours, 20_000), best(theirs, 20_000)


def looking() -> tuple[float, float]:
    tracer = NoOpTracer()

    def ours() -> object:
        return tracing.begin("append") if tracing.active else None

    return best(ours, 50_000), best(lambda: tracer.start_span("append"), 50_000)


def row(name: str, ours: float, other: float) -> dict[str, Any]:
    return {"name": name, "value": ours, "unit": "µs", "limit": other, "ratio": ours / other}


def best(step: Callable[[], object], count: int) -> float:
    """Microseconds of CPU for one, in the best of some rounds."""
    found = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(count):
            step()
        found.append((time.process_time() - started) / count * 1e6)
    return min(found)


async def hops() -> tuple[float, float]:
    own = SystemExecutor("own", 1)
    pool = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    ours, others = [], []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(HOPS):
            await own.run(int)
        middle = time.process_time()
        for _ in range(HOPS):
            await loop.run_in_executor(pool, int)
        ours.append((middle - started) / HOPS * 1e6)
        others.append((time.process_time() - middle) / HOPS * 1e6)
    own.close()
    pool.shutdown()
    return min(ours), min(others)
