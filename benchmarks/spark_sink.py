"""How fast Spark writes a topic, against a Python Arrow sink that discards what it gets.

The rows come from the JVM. Both sinks take them in the same session, turn by turn; the best of each
counts. The topic's rows are staged, synced and published, exactly once.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from benchmarks.spark_read import MESSAGES, PARTITIONS, PAYLOAD_BYTES, ROUNDS, _result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DiscardingSink(DataSource):  # type: ignore[misc]  # pyspark's classes are untyped
    @classmethod
    def name(cls) -> str:
        return "benchmark_discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardingWriter()


class DiscardingWriter(DataSourceArrowWriter):  # type: ignore[misc]  # as above
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def _payloads(spark: SparkSession) -> DataFrame:
    """The same rows each time, out of the JVM's memory."""
    number = F.lpad(F.col("id").cast("string"), PAYLOAD_BYTES, ".")
    return spark.range(0, MESSAGES, numPartitions=PARTITIONS).select(number.alias("payload"))


def _columns(spark: SparkSession) -> DataFrame:
    return spark.range(0, MESSAGES, numPartitions=PARTITIONS).select(
        F.col("id"),
        (F.col("id") / 4).alias("price"),
        F.timestamp_micros("id").alias("at"),
        F.lpad(F.col("id").cast("string"), PAYLOAD_BYTES - 100, ".").alias("note"),
    )


def _rate(frame: DataFrame, sink: str, **options: str) -> float:
    started = time.perf_counter()
    frame.write.format(sink).mode("append").options(**options).save()
    return MESSAGES / (time.perf_counter() - started)


def run() -> list[dict[str, Any]]:
    from headrace.spark.options import parse_sink
    from headrace.spark.server import connect
    from headrace.spark.session import session
    from tests.spark.headrace_server import HeadraceServer

    os.environ["HEADRACE_USERNAME"], os.environ["HEADRACE_PASSWORD"] = "iggy", "secret"
    results = []
    with tempfile.TemporaryDirectory() as folder:
        server = HeadraceServer(Path(folder, "data"))
        server.start()
        spark = session("benchmark", master=f"local[{PARTITIONS}]")
        try:
            spark.dataSource.register(DiscardingSink)
            target = parse_sink({"address": server.address, "topic": "bench/sink"}).target
            connect(target).create_topic(target, partitions=PARTITIONS)
            topic = {"address": server.address, "topic": "bench/sink"}
            for name, frame, options in (
                (f"payloads of {PAYLOAD_BYTES} B", _payloads(spark), {}),
                ("four columns as JSON", _columns(spark), {"valueFormat": "json"}),
                ("four columns as Arrow", _columns(spark), {"valueFormat": "arrow"}),
            ):
                rates = [
                    (
                        _rate(frame, "headrace", **topic, **options),
                        _rate(frame, "benchmark_discard"),
                    )
                    for _ in range(ROUNDS)
                ]
                value, limit = max(rate for rate, _ in rates), max(rate for _, rate in rates)
                results.append(_result(f"write {name}, limit: discard", value, limit))
        finally:
            spark.stop()
            server.stop()
    return results


if __name__ == "__main__":
    for result in run():
        print(result)
