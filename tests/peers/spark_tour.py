"""The connector from end to end in whatever Spark runs this: `spark_tour.py NAME`.

Writes and reads `tour/NAME-in` as a table, copies it to `tour/NAME-out` as a stream, twice from one
checkpoint, and prints what it saw as a line of JSON. The environment says which Spark and which
server; with SPARK_REMOTE this process has neither Spark nor headrace.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

ROWS = 100
PER_TRIGGER = 40


def read(reader, topic, **options):
    return reader.format("headrace").option("topic", topic).options(**options)


def copy(spark, source, target, checkpoint):
    """How many rows each micro-batch had."""
    stream = read(
        spark.readStream,
        source,
        startingOffsets="earliest",
        maxMessagesPerTrigger=PER_TRIGGER,
        columns="key,payload",
    ).load()
    writer = stream.writeStream.format("headrace").option("topic", target)
    query = (
        writer.option("checkpointLocation", checkpoint)
        .option("delivery", "exactly-once")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if query.exception() is not None:
        raise query.exception()
    return [progress.numInputRows for progress in query.recentProgress]


def main(name):
    spark = SparkSession.builder.getOrCreate()
    source, target = f"tour/{name}-in", f"tour/{name}-out"
    rows = spark.range(0, ROWS, numPartitions=2).select(
        F.to_json(F.struct(F.col("id").alias("n"))).alias("payload"),
        F.format_string("key-%d", F.col("id") % 7).alias("key"),
    )
    rows.write.format("headrace").mode("append").option("topic", source).save()

    raw = read(spark.read, source).load()
    typed = read(spark.read, source, payloadFormat="json").schema("n bigint").load()
    first = copy(spark, source, target, f"checkpoints/{name}")
    again = copy(spark, source, target, f"checkpoints/{name}")
    copied = read(spark.read, target, columns="payload,key", columnStyle="headrace").load()
    seen = {
        "version": spark.version,
        "remote": type(spark).__module__.startswith("pyspark.sql.connect"),
        "columns": raw.columns,
        "rows": raw.count(),
        "sum": typed.agg(F.sum("n")).first()[0],
        "batches": first,
        "again": sum(again),
        "copied": sorted(row.payload.decode() for row in copied.collect()),
        "keys": sorted({bytes(row.key).decode() for row in copied.select("key").collect()}),
    }
    print(json.dumps(seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
