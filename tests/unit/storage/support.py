"""Batches, runtimes and short cuts for the storage tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from headrace.runtime import Buffer, Clock, Runtime
from headrace.runtime.system import system_runtime
from headrace.storage import LogStore, RangeKey, RangeLog, StorageSettings
from headrace.wire.sbp.records import HEADER_BYTES, encode_header, split
from tests.simulator.runtime import SimulatedDisk, SimulatedRandom

P = ParamSpec("P")
T = TypeVar("T")

FOLDER = "/data"
KEY = RangeKey(7, 0)
SMALL = StorageSettings(
    segment_bytes_max=2000,
    preallocate_bytes_min=512,
    index_interval_bytes=256,
    idle_ms=3_600_000,  # closing marks only where a test asks for them
    min_free_bytes=0,
)


class InlineExecutor:
    """Runs the function on the loop, after the caller has given way once, as a thread would."""

    def __init__(self, name: str, threads: int) -> None:
        self.closed = False

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert not self.closed
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    def close(self) -> None:
        self.closed = True


def simulated_disk(seed: int = 0) -> SimulatedDisk:
    return SimulatedDisk(SimulatedRandom(seed))


def runtime_on(disk: SimulatedDisk, seed: int = 0) -> Runtime:
    return replace(
        system_runtime(), disk=disk, random=SimulatedRandom(seed), executor=InlineExecutor
    )


async def open_store(disk: SimulatedDisk, settings: StorageSettings = SMALL) -> LogStore:
    return await LogStore.open(runtime_on(disk), FOLDER, settings)


async def cut_power(disk: SimulatedDisk, store: LogStore) -> None:
    await store.abort()
    disk.power_cut()


async def end_process(disk: SimulatedDisk, store: LogStore) -> None:
    """kill -9: the page cache stays."""
    await store.abort()
    disk.end_process()


async def turns(count: int) -> None:
    """Let everything that is ready on the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


class ManualClock(Clock):
    """Time stands still until a test moves it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._moved = asyncio.Event()

    def advance(self, seconds: float) -> None:
        self._now += seconds
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def monotonic(self) -> float:
        return self._now

    def time_ns(self) -> int:
        return int(self._now * 1e9)

    async def sleep(self, seconds: float) -> None:
        until = self._now + seconds
        while self._now < until:
            await self._moved.wait()


def make_batch(
    offset: int, *, records: int = 1, size: int = 100, timestamp: int = 0, fill: int | None = None
) -> tuple[bytearray, list[Buffer]]:
    """A batch of `size` bytes in all, its body in two pieces, telling its own offset."""
    content = bytes([(offset if fill is None else fill) % 251]) * (size - HEADER_BYTES)
    body: list[Buffer] = [content[:7], memoryview(content)[7:]]
    header = encode_header(
        base_offset=offset,
        body=body,
        record_count=records,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
    )
    return header, body


def joined(batch: tuple[bytearray, Sequence[Buffer]]) -> bytes:
    return b"".join((batch[0], *batch[1]))


def append_one(
    log: RangeLog, *, records: int = 1, size: int = 100, timestamp: int = 0
) -> tuple[Awaitable[None], bytes]:
    header, body = make_batch(log.next_offset, records=records, size=size, timestamp=timestamp)
    data = joined((header, body))
    return log.append(header, body), data


async def append_many(log: RangeLog, count: int, **batch: int) -> list[bytes]:
    """Batches in one go; returns their bytes once all are acknowledged."""
    appends = [append_one(log, **batch) for _ in range(count)]
    await asyncio.gather(*(done for done, _ in appends))
    return [data for _, data in appends]


async def read_all(log: RangeLog, *, max_bytes: int = 1 << 20) -> list[bytes]:
    """Every batch from the start, each as its bytes."""
    found: list[bytes] = []
    offset = log.start_offset
    while views := await log.read(offset, max_bytes):
        for view in views:
            for header, batch in split(view):
                found.append(bytes(batch))
                offset = header.next_offset
    return found
