"""A topic much larger than memory is read with memory that does not grow with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.client.arrow import to_area
from headrace.spark.options import Target
from headrace.spark.server import connect
from tests.spark.headrace_server import HeadraceServer
from tests.spark.test_topics import made, reader

BYTES = int(os.environ.get("HEADRACE_LARGE_TOPIC_BYTES", 10_000_000_000))
PAYLOAD_BYTES = 200
REQUEST_MESSAGES = 25_000
SAMPLE_SECONDS = 0.25
WORKER_BYTES_MAX = 500 << 20
DRIVER_BYTES_MAX = 2 << 30  # of which the heap may take one
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def fill(target: Target) -> int:
    """How many messages it took."""
    server = connect(target)
    payload = pa.array(
        [b"%010d" % n + b"." * (PAYLOAD_BYTES - 10) for n in range(REQUEST_MESSAGES)]
    )
    area, starts = to_area(payload, None, None)
    requests = BYTES // len(area)
    for number in range(requests):
        server.send_soon(target, number % 2, area, starts).result(60)
    return requests * REQUEST_MESSAGES


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from descendants(child)


class Memory:
    """The largest worker and the driver's JVM, sampled while something runs."""

    def __init__(self) -> None:
        self.workers: list[int] = []
        self.drivers: list[int] = []

    def sample(self) -> None:
        workers, drivers = [0], [0]
        try:
            for pid in descendants(os.getpid()):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
                (drivers if name == "java" else workers).append(resident)
        except (FileNotFoundError, ProcessLookupError):
            return  # one of them ended meanwhile
        self.workers.append(max(workers))
        self.drivers.append(max(drivers))

    @contextmanager
    def sampled(self) -> Iterator[None]:
        over = threading.Event()

        def keep_sampling() -> None:
            while not over.wait(SAMPLE_SECONDS):
                self.sample()

        thread = threading.Thread(target=keep_sampling)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def growth(samples: list[int]) -> float:
    """The peak of the last third against that of the first, without the very first moments."""
    third = len(samples) // 3
    assert third >= 4, f"only {len(samples)} samples: the topic is too small to tell"
    return max(samples[-third:]) / max(samples[third // 2 : third + third // 2])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_stays_flat(spark: SparkSession, tmp_path: Path) -> None:
    server = HeadraceServer(tmp_path / "data")  # of its own: the others' topics stay small
    server.start()
    try:
        target = made(server, "large")
        rows = fill(target)
        memory = Memory()
        frame = reader(spark, target).load()
        frame.limit(1).collect()  # workers and classes are there before we look
        with memory.sampled():
            frame.write.format("noop").mode("overwrite").save()
        print(
            f"{rows * (PAYLOAD_BYTES + 64) / 1e9:.1f} GB, {rows} rows: "
            f"workers peak {max(memory.workers) >> 20} MiB, x{growth(memory.workers):.2f}; "
            f"driver {max(memory.drivers) >> 20} MiB, x{growth(memory.drivers):.2f}"
        )
        assert max(memory.workers) < WORKER_BYTES_MAX
        assert max(memory.drivers) < DRIVER_BYTES_MAX
        assert growth(memory.workers) < 1.15
        assert growth(memory.drivers) < 1.25
        assert frame.select("offset").count() == rows
    finally:
        server.stop()
