"""How fast Spark writes a topic, against a Python Arrow sink that discards what it gets.

The rows come from the JVM. The topic's rows are staged, synced and published, exactly once. The
goal is 0.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from benchmarks.spark_bench import (
    MESSAGES,
    PARTITIONS,
    PAYLOAD_BYTES,
    Measured,
    bench,
    compare,
    measure,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


def _write(frame: DataFrame, sink: str, **options: str) -> Measured:
    def work() -> None:
        frame.write.format(sink).mode("append").options(**options).save()

    return measure(MESSAGES, work)


def run() -> list[dict[str, Any]]:
    results = []
    with bench() as each:
        for name, frame, topic, options in (
            (f"payloads of {PAYLOAD_BYTES} B", _payloads(each.spark), "payloads", {}),
            ("four columns as JSON", _columns(each.spark), "json", {"valueFormat": "json"}),
            ("four columns as Arrow", _columns(each.spark), "arrow", {"valueFormat": "arrow"}),
        ):
            each.target(topic)
            settings = {**each.topic(topic), **options}
            results.append(
                compare(
                    f"write {name}, limit: discard",
                    lambda frame=frame, settings=settings: _write(frame, "headrace", **settings),  # type: ignore[misc]  # binds the loop's values
                    lambda frame=frame: _write(frame, "benchmark_discard"),  # type: ignore[misc]  # likewise
                )
            )
    return results


if __name__ == "__main__":
    for result in run():
        print(result)
