"""Kafka's names and types, out of the raw columns."""

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.spark.kafka_style import raw_names, to_kafka
from headrace.spark.options import KAFKA_COLUMNS
from headrace.spark.source import raw_schema

RAW = pa.schema(
    [
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)
HEADER = StructType().add("key", StringType()).add("value", BinaryType())
KAFKA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", ArrayType(HEADER))
)
ROWS: list[dict[str, object]] = [
    {"key": b"k", "payload": b"1", "topic": "t", "partition": 0, "offset": 7, "timestamp": 1},
    {"key": None, "payload": b"2", "topic": "t", "partition": 0, "offset": 8, "timestamp": 2},
    {"key": None, "payload": b"3", "topic": "t", "partition": 0, "offset": 9, "timestamp": 3},
]
HEADERS = [[("a", b"x"), ("b", b"y")], None, [("c", b"z")]]


def raw_batch() -> pa.RecordBatch:
    rows = [{**row, "headers": pairs} for row, pairs in zip(ROWS, HEADERS, strict=True)]
    return pa.RecordBatch.from_pylist(rows, schema=RAW)


def test_all_columns_have_the_types_of_kafkas_source() -> None:
    assert raw_names(KAFKA_COLUMNS) == tuple(RAW.names)
    batch = to_kafka(raw_batch(), KAFKA_COLUMNS)
    expected = to_arrow_schema(KAFKA, timezone="UTC")
    ddl = raw_schema({"topic": "s/t", "columnStyle": "kafka"})
    assert ddl == ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in KAFKA)
    assert batch.schema.names == expected.names
    assert batch.schema.types == expected.types
    assert batch.column("value").to_pylist() == [b"1", b"2", b"3"]
    assert batch.column("timestampType").to_pylist() == [1, 1, 1]
    assert batch.column("headers").to_pylist() == [
        [{"key": "a", "value": b"x"}, {"key": "b", "value": b"y"}],
        None,
        [{"key": "c", "value": b"z"}],
    ]
    batch.validate(full=True)


def test_a_part_of_a_batch_and_some_columns() -> None:
    batch = to_kafka(raw_batch().slice(1), ("offset", "headers"))
    assert batch.column("offset").to_pylist() == [8, 9]
    assert batch.column("headers").to_pylist() == [None, [{"key": "c", "value": b"z"}]]
