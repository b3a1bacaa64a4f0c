"""Kafka's names and types, out of the raw columns."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.client.arrow import to_record_batch
from headrace.errors import ConfigError
from headrace.spark.kafka_style import is_message, raw_names, to_kafka
from headrace.spark.options import KAFKA_COLUMNS, parse_sink
from headrace.spark.sink.sink import check_schema, pieces
from headrace.spark.source.source import raw_schema

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


HEADER = StructType().add("key", StringType()).add("value", BinaryType())
TYPES = {
    "binary": BinaryType(), "string": StringType(), "int": IntegerType(), "bigint": LongType(),
    "double": DoubleType(), "timestamp": TimestampType(), "array": ArrayType(HEADER),
    "map": MapType(StringType(), BinaryType()),
}  # fmt: skip


def frame(columns: str) -> StructType:
    """Names and types, as in a schema's text."""
    schema = StructType()
    for name, kind in (column.split() for column in columns.split(", ")):
        schema.add(name, TYPES[kind])
    return schema


@pytest.mark.parametrize(
    "ddl",
    [
        "key binary, value binary",
        "value string",
        "key string, value binary, partition int, headers map",
        "value string, headers array",
    ],
)
def test_a_frame_for_kafkas_sink_is_messages(ddl: str) -> None:
    check_schema(frame(ddl), parse_sink({"topic": "s/t"}))
    assert is_message({each.name: each.dataType.simpleString() for each in frame(ddl).fields})


def test_value_is_the_payload_byte_by_byte() -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"x"}], None, []],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"k", None, b"k"]), pa.array([b"\x00\xff", b"b", b""]), headers],
        names=["key", "value", "headers"],
    )
    for rows in (batch, batch.slice(1)):
        found = pa.Table.from_batches(
            [
                to_record_batch(
                    area, starts, stream="s", topic="t", partition=0,
                    names=("key", "headers", "payload"),
                )
                for _, area, starts in pieces(parse_sink({"topic": "s/t"}), [rows], lambda: 1)
            ]
        ).to_pylist()  # fmt: skip
        assert sorted(row["payload"] for row in found) == sorted(rows["value"].to_pylist())
    (first,) = [row for row in found if row["payload"] == b"b"]
    assert first["key"] is None

    # Who asks for it still gets an object.
    asked = parse_sink({"topic": "s/t", "valueFormat": "json"})
    ((_, area, starts),) = pieces(asked, [batch.select(["value"]).slice(1, 1)], lambda: 1)
    ((payload,),) = [
        each.values()
        for each in to_record_batch(
            area, starts, stream="s", topic="t", partition=0, names=("payload",)
        ).to_pylist()
    ]
    assert payload == b'{"value":"Yg=="}'


def test_what_has_no_place_in_a_message_is_refused_by_name() -> None:
    options = parse_sink({"topic": "s/t"})
    read = "key binary, value binary, topic string, partition int, offset bigint"
    with pytest.raises(ConfigError, match=r"columns offset, topic stand beside value.*select key"):
        check_schema(frame(read), options)
    check_schema(frame(read), parse_sink({"topic": "s/t", "valueFormat": "json"}))
    with pytest.raises(ConfigError, match="column key is int"):
        check_schema(frame("key int, value binary"), options)
    # Fields that happen to be called so are fields.
    for ddl in ("key string, value double", "value string, at timestamp", "value bigint"):
        check_schema(frame(ddl), options)
        assert not is_message({each.name: each.dataType.simpleString() for each in frame(ddl)})
