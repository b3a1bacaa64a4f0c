"""Rows as payloads: JSON that any reader takes, Avro, and Arrow in messages of bounded size."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ByteType,
    DayTimeIntervalType,
    IntegerType,
    StringType,
    StructType,
)

from headrace.errors import ConfigError
from headrace.spark.formats.encoding import RowEncoder, arrow_messages, json_objects
from headrace.spark.options import parse_sink
from headrace.spark.sink.sink import check_schema
from tests.unit.spark.formats_area import decode

AVRO = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
MAP = pa.map_(pa.string(), pa.int32())
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("price", pa.decimal128(12, 6)),
        ("at", pa.timestamp("us", tz="Europe/Berlin")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("many", pa.list_(pa.string())),
        ("tags", MAP),
        ("inner", pa.struct([("x", pa.int8()), ("deep", pa.list_(pa.list_(pa.int8())))])),
    ]
)
ROW: dict[str, Any] = {
    "i": -(2**63),
    "f": 1e-7,
    "b": False,
    "s": 'a "b" \\ \n \x00 ü \u2028',
    "raw": b"\0\xff",
    "price": Decimal("0.000001"),
    "at": datetime(2026, 7, 1, 12, 0, 0, 5, UTC),
    "local": datetime(2026, 7, 1, 12),
    "day": date(2026, 7, 1),
    "many": ["x", None, 'q"'],
    "tags": [("k", 1), ('"', None)],
    "inner": {"x": 1, "deep": [[1], [], None]},
}


def test_every_type_as_json() -> None:
    nothing = dict.fromkeys(SCHEMA.names)
    batch = pa.RecordBatch.from_pylist([nothing, ROW, nothing, ROW], SCHEMA)
    texts = json_objects(batch).to_pylist()
    assert texts[0] == texts[2]
    assert json.loads(texts[0]) == nothing
    assert list(json.loads(texts[1])) == SCHEMA.names
    expected = {
        **ROW,
        "raw": "AP8=",
        "price": 1e-6,
        "at": "2026-07-01T12:00:00.000005Z",
        "local": "2026-07-01T12:00:00.000000",
        "day": "2026-07-01",
        "tags": {"k": 1, '"': None},
    }
    assert json.loads(texts[1]) == expected
    assert json_objects(batch.slice(1, 1)).to_pylist() == texts[1:2], "a slice is the slice"
    assert json_objects(batch.slice(3)).to_pylist() == texts[1:2]


def test_what_is_written_as_json_is_read_as_it_was() -> None:
    schema = pa.schema([*SCHEMA]).set(
        SCHEMA.get_field_index("at"), pa.field("at", pa.timestamp("us", tz="UTC"))
    )
    (text,) = json_objects(pa.RecordBatch.from_pylist([ROW], SCHEMA)).to_pylist()
    assert decode("json", [text.encode()], schema) == [ROW]


@settings(deadline=None)  # a loaded machine is no failure
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(st.characters(codec="utf-8"))),
            st.one_of(st.none(), st.floats()),
            st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=3)),
        ),
        min_size=1,
    ),
    st.data(),
)
def test_any_rows_are_valid_json(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    kinds = {"s": pa.string(), "f": pa.float64(), 'l"': pa.list_(pa.string())}
    named = [dict(zip(kinds, row, strict=True)) for row in rows]
    batch = pa.RecordBatch.from_pylist(named, pa.schema(list(kinds.items())))
    first = data.draw(st.integers(0, len(rows) - 1))
    found = [json.loads(text) for text in json_objects(batch.slice(first)).to_pylist()]
    for row in named:
        if row["f"] is not None and not math.isfinite(row["f"]):
            row["f"] = None
    assert found == named[first:]


def test_json_keeps_the_messages_own_columns_beside_the_payload() -> None:
    batch = pa.RecordBatch.from_pydict({"key": ["k"], "n": [1], "partition": [0]})
    found = RowEncoder("json", batch.schema).encode(batch)
    assert found.to_pylist() == [{"payload": '{"n":1}', "key": "k", "partition": 0}]


def test_avro_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, -1], "key": ["a", "b"]})
    found = RowEncoder("avro", batch.schema, AVRO).encode(batch)
    assert found.column("payload").to_pylist() == [b"\x02", b"\x01"]
    assert found.column("key").to_pylist() == ["a", "b"]


def test_arrow_messages_are_of_bounded_size_and_hold_all_rows_in_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"n": list(range(1000)), "s": ["x" * (i % 50) for i in range(1000)]}
    )
    messages = arrow_messages(batch.slice(10, 900), bytes_max=4096).to_pylist()
    assert len(messages) > 5
    assert max(map(len, messages)) < 4096 + 1024, "the schema stands in each"
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    assert decode("arrow", messages, schema) == batch.slice(10, 900).to_pylist()
    large = arrow_messages(pa.RecordBatch.from_pydict({"s": ["x" * 9000, "y"]}), bytes_max=4096)
    assert len(large) == 2


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (StructType().add("key", StringType()), {}, "no column to write"),
        (StructType().add("n", IntegerType()).add("key", IntegerType()), {}, "key is int"),
        (StructType().add("t", DayTimeIntervalType()), {}, "cannot be written as JSON"),
        (StructType().add("payload", StringType()), {"valueFormat": "json"}, "valueFormat"),
        (
            StructType().add("n", IntegerType()).add("key", StringType()),
            {"valueFormat": "arrow"},
            "no key",
        ),
        (
            StructType().add("n", ByteType()),
            {
                "valueFormat": "avro",
                "avroSchema": AVRO.replace("long", "string"),
            },
            "has string for n",
        ),
    ],
)
def test_frames_that_cannot_be_written_are_refused(
    schema: StructType, options: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        check_schema(schema, parse_sink({"topic": "s/t", **options}))


def test_base64_is_the_usual_one() -> None:
    batch = pa.RecordBatch.from_pydict({"b": [bytes(range(256)), None]})
    first, second = (json.loads(text)["b"] for text in json_objects(batch).to_pylist())
    assert b64decode(first, validate=True) == bytes(range(256))
    assert second is None


def test_timestamps_of_any_width_are_iso_text() -> None:
    """Most have one width and are changed in place; years beyond four digits and nulls have not."""
    us = pa.timestamp("us")
    plain = pa.array([0, 1_000_001, -1, 253402300799999999], us)
    wide = pa.array([253402300800000000, None, 0, -99999999999999999], us)
    # As many characters as if all had one width: one null, and 26 years of five digits.
    even = pa.array([None, *[253402300800000000] * 26], us)
    for array in (plain, wide, even, plain.slice(1, 2), plain.slice(4), plain):
        batch = pa.RecordBatch.from_arrays([array], names=["at"])
        texts = [json.loads(text)["at"] for text in json_objects(batch).to_pylist()]
        expected = [text and text.replace(" ", "T") for text in array.cast(pa.string()).to_pylist()]
        assert texts == expected


@pytest.mark.parametrize("special", ['"', "\\", "\n", "\x1f", "\x00"])
def test_one_special_character_among_many_rows_is_escaped(special: str) -> None:
    texts = ["plain \x7f ü"] * 50 + [f"a{special}b"] + ["" for _ in range(50)]
    array = pa.array(texts).slice(1)
    rows = json_objects(pa.RecordBatch.from_arrays([array], names=["s"])).to_pylist()
    assert [json.loads(row)["s"] for row in rows] == texts[1:]
