"""Checking, stamping and taking apart messages of 200 bytes, against what cannot be avoided.

Stamping is held against computing the checksums alone, columns and areas against one copy of the
same bytes. Run with `python -m benchmarks iggy_codec`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from headrace.wire.iggy.batch import stamp
from headrace.wire.iggy.columns import build_area, columns
from headrace.wire.iggy.messages.messages import Message, decode_send, encode_send
from headrace.wire.iggy.primitives import Partitioning

COUNT = 10_000
REPEATS = 20


def run() -> Iterator[dict[str, Any]]:
    sizes = [200 - i % 60 for i in range(COUNT)]
    sent = encode_send("s", "t", Partitioning.balanced(), [Message(bytes(n)) for n in sizes])
    payload = bytearray(sent.encode())
    request = decode_send(payload)
    bounds = [*request.starts.tolist(), len(request.area)]
    spans = list(pairwise(bounds))
    area = np.frombuffer(request.area, np.uint8)

    copying = _rate(lambda: area.copy())
    checksums = _rate(lambda: [xxhash.xxh3_64_intdigest(request.area[a + 8 : b]) for a, b in spans])
    stamping = _rate(
        lambda: stamp(
            request.area,
            request.starts,
            base_offset=0,
            timestamp_us=1,
            new_ids=lambda count: b"\x01" * 16 * count,
        )
    )
    taken = columns(request.area, request.starts)
    yield _row("check a SEND", _rate(lambda: decode_send(payload)), copying)
    yield _row("stamp", stamping, checksums)
    yield _row("to columns", _rate(lambda: columns(request.area, request.starts)), copying)
    building = _rate(lambda: build_area(taken.payload_data, taken.payload_offsets))
    yield _row("from columns", building, copying)


def _rate(work: Callable[[], object]) -> float:
    """Messages per second, of the fastest repeat."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return COUNT / best


def _row(name: str, value: float, limit: float) -> dict[str, Any]:
    return {
        "name": f"{name} (200 bytes)",
        "value": value,
        "unit": "messages/s",
        "limit": limit,
        "ratio": value / limit,
    }
