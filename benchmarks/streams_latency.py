"""Latency of an append with the number of streams, at the same total rate.

    python -m benchmarks.streams_latency                  table
    python -m benchmarks.streams_latency --profile        cProfile of the loop thread, many streams
    python -m benchmarks.streams_latency --threshold      the journal against syncs, by files

Appends of 1 KiB arrive at a fixed rate, whatever the answers (open loop), at one stream or spread
over 2,000; both by turns in the same run. The figure is the many streams' latency divided by the
one's: 1 is flat, the goal is 1.3 at most. Both stores are open all the time and have taken appends
to every stream before: what is told is the steady state, closing marks and syncs behind included.
First the log store alone, then a data node in a process of its own, over one TCP connection.

A p99 of synced appends is the disk's as much as ours, and nine rounds do not settle it. With ONLY
in the environment the figures whose name begins so are taken alone, with ROUNDS more of them:
`ONLY="node synced" ROUNDS=40` takes three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

from benchmarks.bare_log import LENGTH
from benchmarks.log_load import Connection, Log, append_frame, connect, primary_port, start_log
from benchmarks.storage_append import scratch_folder
from headrace.runtime.system import run as run_loop
from headrace.runtime.system import system_runtime
from headrace.storage import LogStore, RangeKey, RangeLog, StorageSettings
from headrace.wire.sbp.messages import Durability, Range
from headrace.wire.sbp.records import HEADER_BYTES, encode_header, patch_base_offset

BATCH_BYTES = 1024
RATE = 1000  # appends a second, over all streams
MANY = 2000
SECONDS = 2.0
ROUNDS = int(os.environ.get("ROUNDS", "9"))
ONLY = os.environ.get("ONLY", "")
GROWTH_MAX = 1.3
LEVELS = (Durability.WRITTEN, Durability.SYNCED)
WHERE = ("store", "node")
_NUMBER_AT = 8  # in a frame


@dataclass
class Latencies:
    """Of one number of streams, a list per round."""

    rounds: list[list[float]] = field(default_factory=list)

    def percentile_ms(self, share: float) -> float:
        """The median over the rounds: a disk has moods, and the machine other work."""
        return median(1e3 * sorted(each)[int(len(each) * share)] for each in self.rounds)


class Load:
    """Appends to any of some streams; `_submit` says how."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._random = random.Random(7)
        self.found = Latencies()

    async def round(self, seconds: float) -> None:
        """Appends at the rate for so long, each to any of the streams."""
        taken: list[float] = []
        loop = asyncio.get_running_loop()
        start = loop.time()
        waiting: list[asyncio.Future[None]] = []
        for number in range(int(seconds * RATE)):
            delay = start + number / RATE - loop.time()
            if delay > 0:
                await asyncio.sleep(delay)
            waiting.append(self._append(taken))
        await asyncio.gather(*waiting)
        self.found.rounds.append(taken)

    async def warm(self) -> None:
        """The first append to each stream makes its file."""
        for at in range(0, self._streams, 100):
            several = range(at, min(at + 100, self._streams))
            await asyncio.gather(*(self._submit(stream) for stream in several))

    def _append(self, taken: list[float]) -> asyncio.Future[None]:
        stream = self._random.randrange(self._streams)
        started = time.perf_counter()
        done = self._submit(stream)
        done.add_done_callback(lambda _: taken.append(time.perf_counter() - started))
        return done

    def _submit(self, stream: int) -> asyncio.Future[None]:
        raise NotImplementedError


class StoreLoad(Load):
    def __init__(self, logs: list[RangeLog]) -> None:
        super().__init__(len(logs))
        self._logs = logs
        self._body = (os.urandom(BATCH_BYTES - HEADER_BYTES),)
        self._header = encode_header(
            base_offset=0, body=self._body, record_count=1, base_timestamp=0, max_timestamp=0
        )

    def _submit(self, stream: int) -> asyncio.Future[None]:
        log = self._logs[stream]
        header = bytearray(self._header)
        patch_base_offset(header, log.next_offset)
        return log.append(header, self._body, verified=True)


class NodeLoad(Load):
    """Over one connection, with frames encoded beforehand."""

    def __init__(self, connection: Connection, ranges: list[Range]) -> None:
        super().__init__(len(ranges))
        self._connection = connection
        self._frames = [bytearray(append_frame(each, 1, BATCH_BYTES)) for each in ranges]
        self._number = 1
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._loop = asyncio.get_running_loop()
        connection.on_answer = lambda number, size, last: self._waiting.pop(number).set_result(None)
        connection.on_failure = self._fail

    def _submit(self, stream: int) -> asyncio.Future[None]:
        self._number += 1
        frame = bytearray(self._frames[stream])
        LENGTH.pack_into(frame, _NUMBER_AT, self._number)
        done = self._waiting[self._number] = self._loop.create_future()
        self._connection.transport.write(frame)
        return done

    def _fail(self, error: Exception) -> None:
        for done in self._waiting.values():
            done.set_exception(error)

    def close(self) -> None:
        self._connection.on_failure = lambda _: None
        self._connection.transport.abort()


async def open_load(folder: str, level: Durability, streams: int) -> tuple[LogStore, StoreLoad]:
    store = await LogStore.open(system_runtime(), folder, StorageSettings())
    logs = await asyncio.gather(
        *(
            store.create_range(RangeKey(at, 0), start_offset=0, durability=level)
            for at in range(streams)
        )
    )
    load = StoreLoad(list(logs))
    await load.warm()
    return store, load


async def measure_store(level: Durability) -> tuple[Latencies, Latencies]:
    with scratch_folder() as one_folder, scratch_folder() as many_folder:
        one_store, one = await open_load(one_folder, level, 1)
        many_store, many = await open_load(many_folder, level, MANY)
        await alternate(one, many)
        await one_store.abort()
        await many_store.abort()
    return one.found, many.found


async def measure_node(log: Log, level: Durability) -> tuple[Latencies, Latencies]:
    ranges = await log.open_ranges(1 + MANY, level)
    port = primary_port(ranges[0])
    one = NodeLoad(await connect(port, hello=True), ranges[:1])
    many = NodeLoad(await connect(port, hello=True), ranges[1:])
    for load in (one, many):
        await load.warm()
    await alternate(one, many)
    one.close()
    many.close()
    return one.found, many.found


async def alternate(one: Load, many: Load) -> None:
    for load in (one, many):
        await load.round(SECONDS)
        load.found.rounds.clear()
    for _ in range(ROUNDS):
        await one.round(SECONDS)
        await many.round(SECONDS)


def run() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    stores, nodes = (
        {f"{where} {level.name.lower()}": level for level in LEVELS} for where in WHERE
    )
    for name, level in chosen(stores):
        rows += rows_of(name, *run_loop(measure_store(level)))
    with ExitStack() as stack:
        log = start_log(stack, 1)
        for name, level in chosen(nodes):
            rows += rows_of(name, *run_loop(measure_node(log, level)))
    return rows


def chosen(figures: dict[str, Durability]) -> list[tuple[str, Durability]]:
    return [(name, level) for name, level in figures.items() if name.startswith(ONLY)]


def rows_of(where: str, one: Latencies, many: Latencies) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        value, limit = many.percentile_ms(share), one.percentile_ms(share)
        rows.append(
            {
                "name": f"{where} {name}: {MANY} streams to 1 (<= {GROWTH_MAX})",
                "value": round(value, 3),
                "unit": "ms",
                "limit": round(limit, 3),
                "ratio": round(value / limit, 3),
            }
        )
    return rows


def profile() -> None:
    async def work(level: Durability) -> None:
        with scratch_folder() as folder:
            store, load = await open_load(folder, level, MANY)
            profiler = cProfile.Profile()
            profiler.enable()
            await load.round(3 * SECONDS)
            profiler.disable()
            await store.abort()
        print(f"== {level.name.lower()}", store.statistics())
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)

    for level in LEVELS:
        run_loop(work(level))


async def time_groups(files: int, files_min: int, batch_bytes: int) -> float:
    """Milliseconds for one batch to each of so many files, median."""
    settings = StorageSettings(journal_files_min=files_min, journal_start_writes=1)
    body = (os.urandom(batch_bytes - HEADER_BYTES),)
    header = encode_header(
        base_offset=0, body=body, record_count=1, base_timestamp=0, max_timestamp=0
    )
    with scratch_folder() as folder:
        store = await LogStore.open(system_runtime(), folder, settings)
        logs = [await store.create_range(RangeKey(at, 0), start_offset=0) for at in range(files)]
        taken: list[float] = []
        for number in range(120):
            started = time.perf_counter()
            appends = []
            for log in logs:
                mine = bytearray(header)
                patch_base_offset(mine, log.next_offset)
                appends.append(log.append(mine, body, verified=True))
            await asyncio.gather(*appends)
            if number >= 20:
                taken.append(time.perf_counter() - started)
        await store.abort()
    return 1e3 * median(taken)


def threshold() -> None:
    """Where the journal starts to pay: what `journal_files_min` was set by."""
    for batch_bytes in (1024, 16 * 1024, 64 * 1024):
        for files in (1, 2, 3, 4, 6, 8, 16, 32):
            direct: list[float] = []
            journaled: list[float] = []
            for _ in range(3):
                direct.append(run_loop(time_groups(files, 0, batch_bytes)))
                journaled.append(run_loop(time_groups(files, 1, batch_bytes)))
            print(
                f"{batch_bytes:>6} bytes x {files:>2} files: direct {median(direct):6.2f} ms, "
                f"journal {median(journaled):6.2f} ms",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--threshold", action="store_true")
    asked = parser.parse_args()
    if asked.profile:
        profile()
    elif asked.threshold:
        threshold()
    else:
        for row in run():
            print(
                f"{row['name']:<44} {row['value']} ms, one stream {row['limit']} ms, "
                f"ratio {row['ratio']}"
            )


if __name__ == "__main__":
    main()
