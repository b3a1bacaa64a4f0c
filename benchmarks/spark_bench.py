"""What the Spark benchmarks share: a server, a session, in-memory peers, and how two are compared.

Both sides of a comparison run in the same session, turn by turn, and the median of each counts.
Beside rows per second stands what they cost in CPU seconds per GB of payload, over all processes
(JVM, Python workers, and for a topic the server): on a machine that others use at the same time
that is the steadier figure.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.options import Target

PARTITIONS = 2
MESSAGES = int(os.environ.get("MESSAGES", "2000000"))
PAYLOAD_BYTES = 200
ROUNDS = int(os.environ.get("ROUNDS", "5"))
BATCH_ROWS = 20_000
_TICKS = os.sysconf("SC_CLK_TCK")


# --- in-memory peers ------------------------------------------------------------------------------


@dataclass
class Rows(InputPartition):  # type: ignore[misc]  # pyspark's classes are untyped
    count: int


class MemorySource(DataSource):  # type: ignore[misc]  # as above
    """`columns` of the headrace source, out of memory: one batch, made once per process.

    A stream has `messages` rows and gives `perTrigger` of them at a time.
    """

    @classmethod
    def name(cls) -> str:
        return "benchmark_memory"

    def schema(self) -> str:
        from headrace.spark.source.source import raw_schema

        return raw_schema(columns_option(self.options["columns"]) | {"topic": "s/t"})

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(self.options["columns"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self.options
        return MemoryStreamReader(
            options["columns"], int(options["messages"]), int(options["perTrigger"])
        )


class MemoryReader(DataSourceReader):  # type: ignore[misc]  # as above
    def __init__(self, columns: str) -> None:
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        return [Rows(MESSAGES // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        yield from _rows(self._columns, partition.count)


class MemoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # as above
    def __init__(self, columns: str, messages: int, per_trigger: int) -> None:
        self._columns = columns
        self._messages = messages
        self._per_trigger = per_trigger

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._per_trigger)

    def prepareForTriggerAvailableNow(self) -> None: ...

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"rows": min(self._messages, start["rows"] + self._per_trigger)}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"rows": self._messages}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Rows((end["rows"] - start["rows"]) // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Rows):
            yield from _rows(self._columns, partition.count)

    def commit(self, end: dict[str, int]) -> None: ...

    def stop(self) -> None: ...


class DiscardingSink(DataSource):  # type: ignore[misc]  # as above
    @classmethod
    def name(cls) -> str:
        return "benchmark_discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return DiscardingStreamWriter()


class DiscardingWriter(DataSourceArrowWriter):  # type: ignore[misc]  # as above
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DiscardingStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def columns_option(text: str) -> dict[str, str]:
    return {"columns": text} if text else {}


def _rows(columns: str, count: int) -> Iterator[pa.RecordBatch]:
    batch = _example(columns)
    for start in range(0, count, BATCH_ROWS):
        yield batch if count - start >= BATCH_ROWS else batch.slice(0, count - start)


@cache
def _example(columns: str) -> pa.RecordBatch:
    from headrace.client.arrow import to_area, to_record_batch
    from headrace.spark.options import parse_source

    names = parse_source({"topic": "s/t", **columns_option(columns)}, streaming=False).columns
    area, starts = to_area(payloads(0, BATCH_ROWS), None, None)
    return to_record_batch(area, starts, stream="s", topic="t", partition=0, names=names)


# --- the set-up -----------------------------------------------------------------------------------


class Bench:
    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self.spark = spark
        self.address = address
        self._folder = folder
        self._checkpoints = 0

    def target(self, topic: str) -> Target:
        from headrace.spark.options import parse_sink
        from headrace.spark.server import connect

        target = parse_sink({"address": self.address, "topic": f"bench/{topic}"}).target
        connect(target).create_topic(target, partitions=PARTITIONS)
        return target

    def topic(self, topic: str) -> dict[str, str]:
        return {"address": self.address, "topic": f"bench/{topic}"}

    def checkpoint(self) -> str:
        self._checkpoints += 1
        return str(self._folder / f"checkpoint-{self._checkpoints}")


@contextmanager
def bench() -> Iterator[Bench]:
    """A server and a session, for as long as the block lasts."""
    from headrace.spark.session.session import session
    from tests.spark.headrace_server import HeadraceServer

    os.environ["HEADRACE_USERNAME"], os.environ["HEADRACE_PASSWORD"] = "iggy", "secret"
    with tempfile.TemporaryDirectory() as folder:
        server = HeadraceServer(Path(folder, "data"))
        server.start()
        spark = session("benchmark", master=f"local[{PARTITIONS}]")
        try:
            spark.dataSource.register(MemorySource)
            spark.dataSource.register(DiscardingSink)
            yield Bench(spark, server.address, Path(folder))
        finally:
            spark.stop()
            server.stop()


def payloads(first: int, count: int) -> pa.Array:
    return pa.array(
        [b"%010d" % i + b"." * (PAYLOAD_BYTES - 10) for i in range(first, first + count)]
    )


def fill(
    target: Target,
    make: Callable[[int, int], pa.Array] = payloads,
    messages: int = MESSAGES,
    batch: int = BATCH_ROWS,
) -> None:
    """That many messages, `batch` to a request, the same five requests again and again."""
    from headrace.client.arrow import to_area
    from headrace.spark.server import connect

    server = connect(target)
    areas = [to_area(make(i * batch, batch), None, None) for i in range(5)]
    for i in range(messages // batch):
        server.send_soon(target, i % PARTITIONS, *areas[i % len(areas)]).result()


# --- comparing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    rate: float
    """Rows per second."""
    cpu: float
    """CPU seconds per GB of payload."""


def measure(rows: int, work: Callable[[], float | None]) -> Measured:
    """`work` returns the seconds that count, if not all of its own do."""
    before, started = _cpu_seconds(), time.perf_counter()
    seconds = work()
    if seconds is None:
        seconds = time.perf_counter() - started
    spent = _cpu_seconds() - before
    return Measured(rows / seconds, spent / (rows * PAYLOAD_BYTES / 1e9))


def compare(
    name: str, ours: Callable[[], Measured], limit: Callable[[], Measured], rounds: int = ROUNDS
) -> dict[str, Any]:
    """One warming turn of each, then `rounds` that count."""
    ours(), limit()
    turns = [(ours(), limit()) for _ in range(rounds)]
    rates = [[each.rate for each in side] for side in zip(*turns, strict=True)]
    costs = [[each.cpu for each in side] for side in zip(*turns, strict=True)]
    value, bound = map(statistics.median, rates)
    cpu, cpu_bound = map(statistics.median, costs)
    return {
        "name": name,
        "value": round(value),
        "unit": "rows/s",
        "limit": round(bound),
        "ratio": round(value / bound, 3),
        "cpu_s_per_gb": round(cpu, 2),
        "limit_cpu_s_per_gb": round(cpu_bound, 2),
    }


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _cpu_seconds() -> float:
    """Of this process and all that descend from it: the JVM, its workers, the server."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15]))  # user and system, its own and of ended children
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return total / _TICKS
