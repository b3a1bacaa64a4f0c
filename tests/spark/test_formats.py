"""Payload formats in a real Spark: what one side writes the other reads, and bad ones are kept."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.spark.options import Target
from tests.spark.headrace_server import HeadraceServer
from tests.spark.test_topics import made, reader, write

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "n", "type": ["null", "long"]},
            {"name": "s", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
        ],
    }
)
SCHEMA = "n bigint, s string, at timestamp, tags map<string,string>, price decimal(9,2)"


@pytest.mark.parametrize("value_format", ["json", "avro", "arrow"])
def test_rows_come_back_as_they_were_written(
    spark: SparkSession, headrace: HeadraceServer, value_format: str
) -> None:
    target = made(headrace, f"rows-{value_format}", partitions=1)
    frame = spark.range(0, 3000, numPartitions=2).select(
        F.when(F.col("id") % 3 > 0, F.col("id")).alias("n"),
        F.format_string('row "%d"\n', "id").alias("s"),
        F.timestamp_micros(F.col("id") * 1_000_001).alias("at"),
        F.create_map(F.lit("k"), F.col("id").cast("string")).alias("tags"),
        (F.col("id").cast("decimal(9,2)") / 4).cast("decimal(9,2)").alias("price"),
    )
    options = {"avroSchema": AVRO} if value_format == "avro" else {}
    writer = frame.write.format("headrace").mode("append").option("address", target.address)
    writer = writer.option("topic", f"{target.stream}/{target.topic}").options(**options)
    writer.option("valueFormat", value_format).save()
    found = reader(spark, target, payloadFormat=value_format, **options).schema(SCHEMA).load()
    as_text = [
        sorted(map(str, each.withColumn("tags", F.to_json("tags")).collect()))
        for each in (frame, found)
    ]
    assert as_text[0] == as_text[1]
    messages = reader(spark, target).load().count()
    assert messages == 3000 if value_format != "arrow" else messages <= 4


def bad_and_good(spark: SparkSession, headrace: HeadraceServer, topic: str) -> Target:
    target = made(headrace, topic, partitions=1)
    rows = [("1,x", "a"), ("oops", "b"), ('2,"y,z"', "a")]
    frame = spark.createDataFrame(rows, "payload string, key string").coalesce(1)
    write(frame, target)
    return target


def test_bad_payloads_are_never_lost(spark: SparkSession, headrace: HeadraceServer) -> None:
    target = bad_and_good(spark, headrace, "mixed")
    schema = "offset bigint, n int, s string"
    csv = reader(spark, target, payloadFormat="csv", columns="offset")
    kept = csv.schema(f"{schema}, _corrupt string").load().orderBy("offset")
    assert [tuple(row) for row in kept.collect()] == [
        *((0, 1, "x", None), (1, None, None, "oops"), (2, 2, "y,z", None)),
    ]
    with pytest.raises(PySparkException, match="offset 1 of partition 0 of s/mixed is not csv"):
        csv.schema(schema).load().collect()
    with pytest.raises(PySparkException, match="cannot read column l"):
        csv.schema("offset bigint, l array<int>").load().collect()
    sent = csv.option("deadLetterTopic", "mixed.bad").schema(schema).load()
    assert sorted(map(tuple, sent.collect())) == [(0, 1, "x"), (2, 2, "y,z")]
    letters = made(headrace, "mixed.bad")
    (letter,) = reader(spark, letters).load().collect()
    assert (letter.payload, letter.key) == (b"oops", b"b")
    assert letter.headers["headrace.topic"] == b"mixed"
    assert letter.headers["headrace.offset"] == b"1"
    assert "number of fields" in letter.headers["headrace.reason"].decode()
