"""Avro payloads: known bytes, every type both ways, and any garbage told apart."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, InvalidArgumentError
from headrace.spark.formats.avro_rows import AvroDecoder, AvroEncoder
from tests.unit.spark.formats_area import decode


def record(**fields: Any) -> str:
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Row", "fields": named})


def read(payloads: list[bytes], schema: pa.Schema, avro: str) -> list[dict[str, Any]]:
    return decode("avro", payloads, schema, avro_schema=avro)


def write(rows: list[dict[str, Any]], schema: pa.Schema, avro: str) -> list[bytes]:
    payloads: list[bytes] = AvroEncoder(schema, avro)(
        pa.RecordBatch.from_pylist(rows, schema)
    ).to_pylist()
    return payloads


NUMBER = pa.schema([("a", pa.int64())])
LONG = record(a="long")


# Numbers, and the record {"a": 27, "b": "foo"}, as Avro's specification gives them.
@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, b"\0"), (-1, b"\1"), (1, b"\2"), (-2, b"\3"), (-64, b"\x7f"), (64, b"\x80\x01")],
)
def test_numbers_of_the_specification(value: int, encoded: bytes) -> None:
    assert write([{"a": value}], NUMBER, LONG) == [encoded]
    assert read([encoded], NUMBER, LONG) == [{"a": value}]


def test_the_record_of_the_specification() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    avro = record(a="long", b="string")
    payload = b"\x36\x06foo"
    assert read([payload], schema, avro) == [{"a": 27, "b": "foo"}]
    batch = pa.RecordBatch.from_pylist([{"a": 27, "b": "foo"}], schema)
    assert AvroEncoder(schema, avro)(batch).to_pylist() == [payload]


@settings(deadline=None)  # a loaded machine is no failure
@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_comes_back(value: int) -> None:
    assert read(write([{"a": value}], NUMBER, LONG), NUMBER, LONG) == [{"a": value}]


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
AVRO = record(
    i=["null", "int"],
    l="long",
    f="float",
    d=["double", "null"],
    b="boolean",
    raw="bytes",
    s={"type": "string"},
    e=ENUM,
    x={"type": "fixed", "name": "X", "size": 2},
    again="X",
    many={"type": "array", "items": ["null", "long"]},
    tags={"type": "map", "values": "int"},
    inner={"type": "record", "name": "I", "fields": [{"name": "day", "type": "E"}]},
    day={"type": "int", "logicalType": "date"},
    milli={"type": "long", "logicalType": "timestamp-millis"},
    micro={"type": "long", "logicalType": "timestamp-micros"},
    price={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    ignored=["null", "string", "long"],
)
SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("raw", pa.binary()),
        ("s", pa.string()),
        ("e", pa.string()),
        ("x", pa.binary()),
        ("again", pa.binary()),
        ("many", pa.list_(pa.int64())),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("inner", pa.struct([("day", pa.string())])),
        ("day", pa.date32()),
        ("milli", pa.timestamp("us", tz="UTC")),
        ("micro", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(10, 2)),
    ]
)
ROW: dict[str, Any] = {
    "i": None,
    "l": -5,
    "f": 0.5,
    "d": 1.25,
    "b": True,
    "raw": b"\0\xff",
    "s": "ü",
    "e": "B",
    "x": b"xx",
    "again": b"yy",
    "many": [1, None, 3],
    "tags": [("k", 1), ("l", 2)],
    "inner": {"day": "A"},
    "day": date(2026, 1, 2),
    "milli": datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC),
    "micro": datetime(1960, 1, 2, 3, 4, 5, 678_901, UTC),
    "price": Decimal("-1234.50"),
}


def test_every_type_both_ways() -> None:
    other = {**ROW, "i": 7, "d": None, "many": [], "tags": [], "price": Decimal("0.00")}
    batch = pa.RecordBatch.from_pylist([ROW, other], SCHEMA)
    payloads = AvroEncoder(SCHEMA, AVRO)(batch).to_pylist()
    assert read(payloads, SCHEMA, AVRO) == [ROW, other]
    some = pa.schema([SCHEMA.field("price"), SCHEMA.field("i")])
    assert read(payloads[:1], some, AVRO) == [{"price": ROW["price"], "i": None}]


@settings(deadline=None)  # a loaded machine is no failure
@given(st.binary(max_size=60))
def test_garbage_is_read_or_set_aside(payload: bytes) -> None:
    schema = SCHEMA.append(pa.field("_corrupt", pa.binary()))
    (batch,) = [pa.RecordBatch.from_pylist([ROW], SCHEMA)]
    (whole,) = AvroEncoder(SCHEMA, AVRO)(batch).to_pylist()
    for bad in (payload, whole[: len(payload)] + payload, whole + payload + b"\0"):
        found = read([whole, bad, whole], schema, AVRO)
        assert [found[0], found[2]] == [{**ROW, "_corrupt": None}] * 2
        assert found[1]["_corrupt"] in (None, bad)
    assert found[1]["_corrupt"] == bad, "bytes after the record"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80" * 11,
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x02\x02",
        b"\x02\x02\x00\x00",
    ],
)
def test_counts_and_lengths_that_are_not_there_cost_nothing(payload: bytes) -> None:
    schema = pa.schema([("a", pa.list_(pa.int64())), ("_corrupt", pa.binary())])
    avro = record(a={"type": "array", "items": "long"})
    assert read([payload], schema, avro) == [{"a": None, "_corrupt": payload}]
    assert read([b"\x02\x02\x00"], schema, avro) == [{"a": [1], "_corrupt": None}]
    assert read([b"\x01\x02\x02\x02\x04\x00"], schema, avro)[0]["a"] == [1, 2], "a block with size"


@pytest.mark.parametrize(
    ("kind", "column", "payload", "reason"),
    [
        (["null", "long"], pa.int64(), b"\x01\x02", "a union has no branch -1"),
        (["null", "long"], pa.int64(), b"\x03\x02", "a union has no branch -2"),
        (["null", "long"], pa.int64(), b"\x04\x02", "a union has no branch 2"),
        (["null", "long"], pa.int64(), b"\x80\x80\x80\x01\x02", "a union has no branch 1048576"),
        (ENUM, pa.string(), b"\x01", "an enum has no symbol -1"),
        (ENUM, pa.string(), b"\x04", "an enum has no symbol 2"),
        ("string", pa.string(), b"\x01abc", "the payload ends too early"),
        ("string", pa.string(), b"\x08abc", "the payload ends too early"),
        ("string", pa.string(), b"\x02\xff", "utf-8"),
        ("long", pa.int64(), b"\x80", "the payload ends too early"),
        ("long", pa.int64(), b"\x02\x02", "1 bytes after the record"),
        ("int", pa.int32(), b"\xfe\xff\xff\xff\x7f", "a: "),
    ],
)
def test_the_reason_says_what_is_wrong(
    kind: Any, column: pa.DataType, payload: bytes, reason: str
) -> None:
    (bad,) = AvroDecoder(pa.schema([("a", column)]), record(a=kind))(pa.array([payload])).bad
    assert reason in bad.reason


def test_a_union_in_a_type_that_is_used_twice_is_checked_too() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "n", "type": ["null", "long"]}]}
    struct = pa.struct([("n", pa.int64())])
    schema = pa.schema([("a", struct), ("b", struct)])
    decoded = AvroDecoder(schema, record(a=inner, b="In"))(pa.array([b"\x00\x02\x02", b"\x00\x01"]))
    assert decoded.table.to_pylist() == [{"a": {"n": None}, "b": {"n": 1}}]
    assert [bad.reason for bad in decoded.bad] == ["a union has no branch -1"]


@pytest.mark.parametrize(
    ("avro", "text"),
    [
        ("oops", "not JSON"),
        (
            record(a={"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}),
            "known",
        ),
        ('"long"', "must be a record"),
        (record(a="Elsewhere"), "not known"),
        (record(a={"type": "array", "items": "null"}), "without bytes"),
        (record(b="long"), "no field a"),
        (record(a="string"), "has string for a"),
        (record(a=["long", "string"]), "has union for a"),
        (record(a={"type": "fixed", "name": "F", "size": 0}), "fixed"),
        ('{"type": "record", "name": "r"}', "no list of named fields"),
        ("[" * 5000, "not JSON"),
        ('{"type":' * 80 + '"long"' + "}" * 80, "nested deeper"),
    ],
)
def test_schemas_that_cannot_be_read_are_refused(avro: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read([b""], pa.schema([("a", pa.int64())]), avro)


def test_columns_and_values_that_do_not_fit_are_not_written() -> None:
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(ConfigError, match="no such column"):
        AvroEncoder(schema, record(a="long", b="long"))
    with pytest.raises(ConfigError, match="no field a"):
        AvroEncoder(schema, record(b="long"))
    big = pa.RecordBatch.from_pydict({"a": [2**40]})
    with pytest.raises(InvalidArgumentError, match="no int"):
        AvroEncoder(schema, record(a="int"))(big)
    with pytest.raises(InvalidArgumentError, match="float too large"):
        write([{"a": 1e300}], pa.schema([("a", pa.float64())]), record(a="float"))
    with pytest.raises(InvalidArgumentError, match="no symbol of the enum"):
        write([{"a": "C"}], pa.schema([("a", pa.string())]), record(a=ENUM))
    with pytest.raises(InvalidArgumentError, match="does not match schema size"):
        write(
            [{"a": b"abc"}],
            pa.schema([("a", pa.binary())]),
            record(a={"type": "fixed", "name": "F", "size": 2}),
        )
    none = pa.RecordBatch.from_pylist([{"a": None}], schema)
    with pytest.raises(InvalidArgumentError, match="a is null"):
        AvroEncoder(schema, record(a="long"))(none)
    assert AvroEncoder(schema, record(a="long", b=["null", "long"]))(big).to_pylist()
