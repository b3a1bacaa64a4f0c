"""How fast Spark reads a topic, against a source that costs nothing to read.

The limit is a Python data source that yields one Arrow batch, made once, of the same schema and
size as often as needed: what Spark itself takes in. Both are read in the same session by the
same tasks, turn by turn; the best of each counts.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.options import Target

PARTITIONS = 2
MESSAGES = 1_000_000
PAYLOAD_BYTES = 200
ROUNDS = 3
BATCH_ROWS = 20_000
CASES = {
    "all columns": "",
    "offset, timestamp, payload": "offset,timestamp,payload",
    "payload": "payload",
}


class MemorySource(DataSource):  # type: ignore[misc]  # pyspark's classes are untyped
    """`columns` of the headrace source, out of memory."""

    @classmethod
    def name(cls) -> str:
        return "benchmark_memory"

    def schema(self) -> str:
        from headrace.spark.source import raw_schema

        return raw_schema(_columns(self.options["columns"]) | {"topic": "s/t"})

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(self.options["columns"])


class MemoryReader(DataSourceReader):  # type: ignore[misc]  # as above
    def __init__(self, columns: str) -> None:
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(i) for i in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = _example(self._columns)
        for _ in range(MESSAGES // PARTITIONS // BATCH_ROWS):
            yield batch


def _columns(text: str) -> dict[str, str]:
    return {"columns": text} if text else {}


def _payloads(first: int, count: int) -> pa.Array:
    return pa.array(
        [b"%010d" % i + b"." * (PAYLOAD_BYTES - 10) for i in range(first, first + count)]
    )


def _example(columns: str) -> pa.RecordBatch:
    from headrace.spark.arrow import to_area, to_record_batch
    from headrace.spark.options import parse_source

    names = parse_source({"topic": "s/t", **_columns(columns)}, streaming=False).columns
    area, starts = to_area(_payloads(0, BATCH_ROWS), None, None)
    return to_record_batch(area, starts, stream="s", topic="t", partition=0, names=names)


def _fill(target: Target) -> None:
    from headrace.spark.arrow import to_area
    from headrace.spark.server import connect

    server = connect(target)
    server.create_topic(target, partitions=PARTITIONS)
    areas = [to_area(_payloads(i * 20_000, 20_000), None, None) for i in range(5)]
    for i in range(MESSAGES // 20_000):
        server.send_soon(target, i % PARTITIONS, *areas[i % len(areas)]).result()


def _rate(frame: DataFrame) -> float:
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return MESSAGES / (time.perf_counter() - started)


def _read(spark: SparkSession, target: Target, columns: str) -> DataFrame:
    reading = spark.read.format("headrace").option("address", target.address)
    reading = reading.option("topic", f"{target.stream}/{target.topic}")
    return reading.options(**_columns(columns)).load()


def _memory(spark: SparkSession, columns: str) -> DataFrame:
    return spark.read.format("benchmark_memory").option("columns", columns).load()


def run() -> list[dict[str, Any]]:
    from headrace.spark.options import parse_sink
    from headrace.spark.session import session
    from tests.spark.headrace_server import HeadraceServer

    os.environ["HEADRACE_USERNAME"], os.environ["HEADRACE_PASSWORD"] = "iggy", "secret"
    results = []
    with tempfile.TemporaryDirectory() as folder:
        server = HeadraceServer(Path(folder, "data"))
        server.start()
        spark = session("benchmark", master=f"local[{PARTITIONS}]")
        try:
            spark.dataSource.register(MemorySource)
            target = parse_sink({"address": server.address, "topic": "bench/read"}).target
            _fill(target)
            for name, columns in CASES.items():
                rates = [
                    (_rate(_read(spark, target, columns)), _rate(_memory(spark, columns)))
                    for _ in range(ROUNDS)
                ]
                value, limit = max(rate for rate, _ in rates), max(rate for _, rate in rates)
                results.append(_result(f"read {PAYLOAD_BYTES} B messages: {name}", value, limit))
        finally:
            spark.stop()
            server.stop()
    return results


def _result(name: str, value: float, limit: float) -> dict[str, Any]:
    ratio = round(value / limit, 3)
    return {
        "name": name,
        "value": round(value),
        "unit": "rows/s",
        "limit": round(limit),
        "ratio": ratio,
    }


if __name__ == "__main__":
    for result in run():
        print(result)
