"""Appends to the log store against bare loops that do the same I/O in the same run.

    python -m benchmarks.storage_append            table
    python -m benchmarks.storage_append --profile  cProfile of the store's event loop thread

For each durability level, batch size and number of ranges the store takes appends with a bounded
number in flight. The limit is a plain loop over the same files, without checksums, offsets, index
or cache: per group of the same size one pwrite per file, then fdatasync for `synced`, with as
many threads as the store uses. A ratio of 1 would mean that the store costs nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from headrace.runtime import Buffer
from headrace.runtime.system import run as run_loop
from headrace.runtime.system import system_runtime
from headrace.runtime.system.disk import SystemDisk, SystemFile
from headrace.storage import LogStore, RangeKey, RangeLog, StorageSettings
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import HEADER_BYTES, encode_header, patch_base_offset

KIB = 1024
MIB = 1024 * KIB
SECONDS = 0.4
ROUNDS = 5
BYTES_MAX = 256 * MIB  # of one measurement, so that a fast disk does not fill up
IN_FLIGHT = 256  # appends waiting at the same time, over all ranges


@dataclass(frozen=True)
class Case:
    level: Durability
    batch_bytes: int
    ranges: int

    @property
    def name(self) -> str:
        return (
            f"append {self.level.name.lower()} {self.batch_bytes // KIB} KiB x {self.ranges} ranges"
        )


@dataclass(frozen=True)
class Measured:
    bytes_per_second: float
    appends_per_group: float


CASES = [
    Case(level, batch_bytes, ranges)
    for level in (Durability.SYNCED, Durability.WRITTEN)
    for batch_bytes in (4 * KIB, 64 * KIB)
    for ranges in (1, 100)
]


@contextmanager
def scratch_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="headrace-bench-", dir=os.environ.get("HEADRACE_BENCH_DIR"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Writer:
    """Keeps appends waiting on one range: each acknowledgement submits the next batch.

    Batches come encoded, as they do to a data node; the offset is patched in.
    """

    def __init__(self, log: RangeLog, case: Case, deadline: float, left: list[int]) -> None:
        self._log = log
        self._body = (os.urandom(case.batch_bytes - HEADER_BYTES),)
        self._header = encode_header(
            base_offset=0, body=self._body, record_count=1, base_timestamp=0, max_timestamp=0
        )
        self._size = case.batch_bytes
        self._deadline = deadline
        self._left = left
        self._waiting = 0
        self._finished = asyncio.get_running_loop().create_future()
        self.acknowledged_bytes = 0

    async def run(self, in_flight: int) -> int:
        self._waiting = in_flight
        for _ in range(in_flight):
            self._append()
        await self._finished
        return self.acknowledged_bytes

    def _append(self) -> None:
        header = bytearray(self._header)
        patch_base_offset(header, self._log.next_offset)
        done = asyncio.ensure_future(self._log.append(header, self._body, verified=True))
        done.add_done_callback(self._on_done)

    def _on_done(self, done: asyncio.Future[None]) -> None:
        done.result()
        self.acknowledged_bytes += self._size
        self._left[0] -= self._size
        if self._left[0] > 0 and time.perf_counter() < self._deadline:
            self._append()
            return
        self._waiting -= 1
        if not self._waiting:
            self._finished.set_result(None)


async def measure_store(case: Case, folder: str) -> Measured:
    store = await LogStore.open(system_runtime(), folder, StorageSettings())
    logs = [
        await store.create_range(RangeKey(1, at), start_offset=0, durability=case.level)
        for at in range(case.ranges)
    ]
    in_flight = max(1, IN_FLIGHT // case.ranges)
    await asyncio.gather(*(Writer(log, case, 0, [0]).run(1) for log in logs))  # creates the files
    writes = store.statistics()["file_writes"]
    start = time.perf_counter()
    left = [BYTES_MAX]
    total = sum(
        await asyncio.gather(
            *(Writer(log, case, start + SECONDS, left).run(in_flight) for log in logs)
        )
    )
    elapsed = time.perf_counter() - start
    writes = store.statistics()["file_writes"] - writes
    await store.abort()  # the bytes go away anyway
    return Measured(total / elapsed, total / case.batch_bytes / writes)


def measure_bare(case: Case, folder: str, appends_per_group: float, threads: int) -> float:
    """The same bytes per write, the same reservation and the same syncs, nothing else."""
    disk = SystemDisk()
    targets: list[tuple[SystemFile, list[Buffer]]] = []
    for at in range(case.ranges):
        file = disk.open(f"{folder}/{at}.bare", create=True)
        file.allocate(0, BYTES_MAX // case.ranges)
        body = os.urandom(case.batch_bytes)
        targets.append((file, [body] * max(1, round(appends_per_group))))
    size = len(targets[0][1]) * case.batch_bytes
    synced = case.level is Durability.SYNCED
    position = total = 0

    def write(share: list[tuple[SystemFile, list[Buffer]]]) -> None:
        for file, pieces in share:
            file.pwrite(pieces, position)
            if synced:
                file.sync_data()

    shares = min(threads, case.ranges) if synced else 1
    with ThreadPoolExecutor(shares) as pool:
        start = time.perf_counter()
        while time.perf_counter() - start < SECONDS and total < BYTES_MAX:
            if shares == 1:
                write(targets)
            else:
                list(pool.map(write, [targets[at::shares] for at in range(shares)]))
            position += size
            total += size * len(targets)
        elapsed = time.perf_counter() - start
    for file, _ in targets:
        file.close()
    return total / elapsed


def measure(case: Case) -> dict[str, object]:
    """The medians of a few rounds, store and bare loop by turns: disks have moods."""
    stores: list[Measured] = []
    limits: list[float] = []
    threads = StorageSettings().commit_threads

    def bare() -> None:
        with scratch_folder() as folder:
            limits.append(measure_bare(case, folder, stores[-1].appends_per_group, threads))

    for number in range(ROUNDS):
        if number % 2:  # neither always finds the disk rested
            bare()
        with scratch_folder() as folder:
            stores.append(run_loop(measure_store(case, folder)))
        if not number % 2:
            bare()
    value = median(store.bytes_per_second for store in stores)
    limit = median(limits)
    return {
        "name": case.name,
        "value": round(value / 1e6, 1),
        "unit": "MB/s",
        "limit": round(limit / 1e6, 1),
        "ratio": round(value / limit, 3),
        "appends_per_second": round(value / case.batch_bytes),
        "appends_per_group": round(median(store.appends_per_group for store in stores), 1),
    }


def run() -> list[dict[str, object]]:
    """One row per case: MB/s of the store, of the bare loop, and their ratio."""
    return [measure(case) for case in CASES]


def profile() -> None:
    for case in CASES:
        if case.batch_bytes == 4 * KIB:
            with scratch_folder() as folder:
                profiler = cProfile.Profile()
                profiler.enable()
                run_loop(measure_store(case, folder))
                profiler.disable()
            print(f"== {case.name}")
            pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--profile", action="store_true")
    if parser.parse_args().profile:
        profile()
        return
    for row in run():
        print(
            f"{row['name']:<38} {row['value']:>8} {row['unit']} of {row['limit']:>8}  "
            f"ratio {row['ratio']:<6} {row['appends_per_second']:>8} appends/s, "
            f"{row['appends_per_group']} per write"
        )


if __name__ == "__main__":
    main()
