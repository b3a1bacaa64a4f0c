"""How long a micro-batch takes from topic to topic, against the same query in memory.

Ten rows per micro-batch, one filter, exactly once into the target; the other side reads a Python
source and writes a Python sink that cost nothing. Both have a backlog, so that no time to wait is
counted. The figure is the median of `triggerExecution`; the goal is at most 1.5 times the limit, so
here the ratio is limit / value, and 0.67 the figure to reach.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from benchmarks.spark_bench import Bench, bench, fill, percentile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 10  # of a micro-batch
BATCHES = 60
SKIPPED = 12  # while everything warms up
ROUNDS = 3


def _durations(frame: DataFrame, sink: str, checkpoint: str, **options: str) -> list[float]:
    rows = frame.filter(F.length("payload") > 0).select("payload")
    writer = rows.writeStream.format(sink).option("checkpointLocation", checkpoint)
    query = writer.options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    found = [
        float(each.durationMs["triggerExecution"])
        for each in query.recentProgress
        if each.numInputRows
    ]
    assert len(found) == BATCHES, f"{len(found)} micro-batches, not {BATCHES}"
    return found[SKIPPED:]


def _topics(run: Bench) -> list[float]:
    reading = run.spark.readStream.format("headrace").options(**run.topic("from"))
    reading = reading.options(startingOffsets="earliest", maxMessagesPerTrigger=ROWS)
    frame = reading.option("columns", "payload").load()
    return _durations(frame, "headrace", run.checkpoint(), **run.topic("to"))


def _memory(run: Bench) -> list[float]:
    reading = run.spark.readStream.format("benchmark_memory").option("columns", "payload")
    frame = reading.options(messages=ROWS * BATCHES, perTrigger=ROWS).load()
    return _durations(frame, "benchmark_discard", run.checkpoint())


def run() -> list[dict[str, Any]]:
    with bench() as each:
        fill(each.target("from"), messages=ROWS * BATCHES, batch=ROWS)
        each.target("to")
        each.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(2 * BATCHES))
        _topics(each), _memory(each)
        turns = [(_topics(each), _memory(each)) for _ in range(ROUNDS)]
    topics, memory = (
        [time for side in sides for time in side] for sides in zip(*turns, strict=True)
    )
    value, limit = statistics.median(topics), statistics.median(memory)
    return [
        {
            "name": "micro-batch, topic to topic, limit: in memory",
            "value": value,
            "unit": "ms",
            "limit": limit,
            "ratio": round(limit / value, 3),
            "p50_ms": value,
            "p99_ms": percentile(topics, 0.99),
        }
    ]


if __name__ == "__main__":
    for result in run():
        print(result)
