"""How fast Spark reads a topic, as a table and as a stream, against a source that costs nothing.

The limit is a Python data source that yields one Arrow batch, made once, of the same schema and
size as often as needed: what Spark itself takes in. A stream is measured from its second
micro-batch on. The goal is 0.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.spark_bench import (
    MESSAGES,
    PAYLOAD_BYTES,
    Bench,
    Measured,
    bench,
    columns_option,
    compare,
    fill,
    measure,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PER_TRIGGER = MESSAGES // 4
CASES = {
    "all columns": "",
    "offset, timestamp, payload": "offset,timestamp,payload",
    "payload": "payload",
}


def _table(frame: DataFrame) -> Measured:
    def work() -> None:
        frame.write.format("noop").mode("overwrite").save()

    return measure(MESSAGES, work)


def _stream(frame: DataFrame, checkpoint: str) -> Measured:
    def work() -> float:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        steady = [each for each in query.recentProgress if each.numInputRows][1:]
        rows = sum(each.numInputRows for each in steady)
        millis = sum(each.durationMs["triggerExecution"] for each in steady)
        return float(millis / 1000 * MESSAGES / rows)

    return measure(MESSAGES, work)


def _topic(run: Bench, columns: str) -> Measured:
    reading = run.spark.read.format("headrace").options(**run.topic("read"))
    return _table(reading.options(**columns_option(columns)).load())


def _topic_stream(run: Bench, columns: str) -> Measured:
    reading = run.spark.readStream.format("headrace").options(**run.topic("read"))
    reading = reading.options(startingOffsets="earliest", maxMessagesPerTrigger=PER_TRIGGER)
    return _stream(reading.options(**columns_option(columns)).load(), run.checkpoint())


def _memory(run: Bench, columns: str) -> Measured:
    return _table(run.spark.read.format("benchmark_memory").option("columns", columns).load())


def _memory_stream(run: Bench, columns: str) -> Measured:
    reading = run.spark.readStream.format("benchmark_memory").option("columns", columns)
    reading = reading.options(messages=MESSAGES, perTrigger=PER_TRIGGER)
    return _stream(reading.load(), run.checkpoint())


def run() -> list[dict[str, Any]]:
    results = []
    with bench() as each:
        fill(each.target("read"))
        for name, columns in CASES.items():
            results.append(
                compare(
                    f"table of {PAYLOAD_BYTES} B messages: {name}",
                    lambda columns=columns: _topic(each, columns),  # type: ignore[misc]  # binds the loop's value
                    lambda columns=columns: _memory(each, columns),  # type: ignore[misc]  # likewise
                )
            )
        results.append(
            compare(
                f"stream of {PAYLOAD_BYTES} B messages: all columns",
                lambda: _topic_stream(each, ""),
                lambda: _memory_stream(each, ""),
            )
        )
    return results


if __name__ == "__main__":
    for result in run():
        print(result)
