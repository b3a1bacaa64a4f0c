"""The query that the storms strike: `python -m tests.spark.copy_job ADDRESS CHECKPOINT`.

It copies `s/in` to `s/out`, without every third row and with an `x` before the payload, in small
batches whose tasks take their time, until it is killed or fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import sleep

import pyarrow as pa
from pyspark.sql import functions as F

from headrace.spark.session.session import session

BATCH_MESSAGES = 400
TASK_SECONDS = 0.05  # so that what strikes at any moment mostly strikes a task


def take_time(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sleep(TASK_SECONDS)
        yield batch


def main(address: str, checkpoint: str) -> None:
    # A task may fail three times, as on a cluster; `local[2]` would end the query at once.
    spark = session("copy", master="local[2,4]", conf={"spark.driver.memory": "600m"})
    source = (
        spark.readStream.format("headrace")
        .option("address", address)
        .option("topic", "s/in")
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", BATCH_MESSAGES)
        .option("columns", "key,payload")
        .option("payloadFormat", "string")
        .option("consumerGroup", "copy")
        .load()
    )
    rows = source.mapInArrow(take_time, source.schema).where(F.col("payload").cast("int") % 3 != 0)
    query = (
        rows.select("key", F.concat(F.lit("x"), "payload").alias("payload"))
        .writeStream.format("headrace")
        .option("address", address)
        .option("topic", "s/out")
        .option("delivery", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
