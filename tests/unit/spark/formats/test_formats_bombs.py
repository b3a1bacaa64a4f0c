"""Payloads that take far more than they hold: bad rows, told apart before memory is taken."""

from __future__ import annotations

import random
import resource
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark.formats import arrow_rows
from headrace.spark.formats.arrow_rows import ArrowDecoder, check_stream, rows_max
from headrace.spark.formats.decoding import UnreadableError
from headrace.spark.formats.encoding import arrow_messages
from headrace.spark.formats.options import FormatOptions
from headrace.spark.formats.typed import TypedRows
from tests.unit.spark.formats_area import area_of, decode

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("_corrupt", pa.binary())])


def stream(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    chosen = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batches[0].schema, options=chosen) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [each if isinstance(each, pa.Array) else pa.array(each) for each in columns.values()],
        names=list(columns),
    )


NULLS = batch(n=pa.nulls(100_000_000))
SHARED = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int16()), ["x" * 100_000])
VIEWS = pa.array(["x" * 100_000] * 2, pa.string()).cast(pa.string_view())
BOMBS = {
    "nulls": stream(NULLS),
    "batches of nulls": stream(*[batch(n=pa.nulls(9_000))] * 50),
    "a list of nulls": stream(
        batch(
            n=pa.ListArray.from_arrays(pa.array([0, 20_000_000], pa.int32()), pa.nulls(20_000_000))
        )
    ),
    "zstd": stream(batch(n=[0] * 3_000_000), compression="zstd"),
    "lz4": stream(batch(s=["x" * (300 << 20)]), compression="zstd"),
    "another column": stream(batch(other=["x" * (300 << 20)]), compression="zstd"),
    "a dictionary": stream(batch(s=SHARED)),
    "a dictionary of lists": stream(
        batch(s=pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([["x"]])))
    ),
    "runs": stream(
        batch(s=pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), ["x" * 50]))
    ),
    "list views": stream(
        batch(
            n=pa.ListViewArray.from_arrays(
                pa.array([0] * 3000, pa.int32()), pa.array([3000] * 3000, pa.int32()), [1] * 3000
            )
        )
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_a_bad_row_and_takes_no_memory(name: str) -> None:
    good = stream(batch(n=[1, 2], s=["a", "b"]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = decode("arrow", [good, BOMBS[name], good], SCHEMA)
    assert [row["n"] for row in rows] == [1, 2, None, 1, 2]
    assert [row["_corrupt"] for row in rows][2] == BOMBS[name]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10, "KiB"


def test_what_people_write_is_read() -> None:
    texts = [f"text {i % 7}" for i in range(5000)]
    for column in (
        pa.array(texts),
        pa.array(texts, pa.large_string()),
        pa.array(texts, pa.string_view()),
        pa.array(texts).dictionary_encode(),
    ):
        for options in ({}, {"compression": "zstd"}, {"compression": "lz4"}):
            payload = stream(batch(n=pa.array(range(5000), pa.int32()), s=column), **options)
            rows = decode("arrow", [payload], SCHEMA)
            assert [row["s"] for row in rows] == texts
            assert rows[-1]["n"] == 4999
    assert len(decode("arrow", [stream(batch(n=pa.nulls(10_000)))], SCHEMA)) == 10_000
    # What our own sink writes is read back, whatever its columns hold.
    nothing = arrow_messages(batch(n=pa.nulls(200_000)))
    assert len(nothing) > 1
    assert len(decode("arrow", nothing.to_pylist(), SCHEMA)) == 200_000
    legacy = stream(batch(n=[1]), use_legacy_format=True)
    assert decode("arrow", [legacy], SCHEMA)[0]["n"] == 1


def test_many_payloads_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "PART_BYTES", 100_000)
    typed = TypedRows(
        "arrow", FormatOptions(("offset",)),
        pa.schema([("offset", pa.int64()), ("n", pa.int64()), ("_corrupt", pa.binary())]),
        stream="s", topic="t", partition=0,
    )  # fmt: skip
    payload = stream(batch(n=list(range(5000))))
    found = list(typed.read(*area_of([payload, b"bad", payload, payload, payload, payload])))
    assert len(found) > 1
    rows = pa.Table.from_batches(found)
    assert rows.num_rows == 5 * 5000 + 1
    offsets = rows.column("offset").to_pylist()
    assert offsets == sorted(offsets)
    assert len(set(offsets)) == 6
    assert rows.column("_corrupt").drop_null().to_pylist() == [b"bad"]


def test_damaged_metadata_is_refused_or_left_to_arrow() -> None:
    good = stream(batch(n=list(range(10)), s=["x"] * 10), compression="zstd")
    check_stream(memoryview(good))
    chance = random.Random(7)
    for _ in range(3000):
        damaged = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            check_stream(memoryview(damaged))
        except UnreadableError:
            continue
    for length in range(len(good)):
        try:
            check_stream(memoryview(good[:length]))
        except UnreadableError:
            continue


def test_our_own_payloads_have_no_bound() -> None:
    table = ArrowDecoder(pa.schema([("n", pa.int64())]), trusted=True)(
        pa.array([stream(batch(n=pa.nulls(rows_max(0) * 9)))])
    ).table
    assert table.num_rows == rows_max(0) * 9


DECIMALS = pa.schema(
    [("n", pa.decimal128(38, 2)), ("s", pa.list_(pa.decimal128(10, 1))), ("_corrupt", pa.binary())]
)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"n": 1e-999999999}',
        b'{"n": "1e-999999999"}',
        b'{"n": "1E+999999999"}',
        b'{"n": 1e999999999999999999999}',
        b'{"s": [1, 1e-999999999]}',
        b'{"n": ' + b"1" * 100_000 + b"}",
    ],
)
def test_a_decimal_that_nobody_means_is_a_bad_row(payload: bytes) -> None:
    """Arrow 26 ends the process for the first."""
    good = b'{"n": 12345678901234567890.12, "s": [1.5], "id": "1e-9999"}'
    rows = decode("json", [good, payload, good], DECIMALS)
    assert [row["_corrupt"] for row in rows] == [None, payload, None]
    assert str(rows[0]["n"]) == "12345678901234567890.12"
    assert [str(each) for each in rows[0]["s"]] == ["1.5"]


def test_decimals_of_csv_avro_and_arrow_are_bounded() -> None:
    schema = pa.schema([("n", pa.decimal128(38, 2)), ("_corrupt", pa.binary())])
    rows = decode("csv", [b"1.5", b"1e-999999999", b"", b"1e2", b"x"], schema)
    assert [None if row["n"] is None else str(row["n"]) for row in rows] == [
        *("1.50", None, None, "100.00", None),
    ]
    assert [row["_corrupt"] for row in rows] == [None, b"1e-999999999", None, None, b"x"]
    payloads = [stream(batch(n=[text])) for text in ("2.5", "1e-999999999")]
    rows = decode("arrow", payloads, schema)
    assert [str(row["n"]) for row in rows] == ["2.50", "None"]
    avro = (
        '{"type":"record","name":"r","fields":[{"name":"n","type":{"type":"bytes",'
        '"logicalType":"decimal","precision":38,"scale":2}}]}'
    )
    huge = b"\x80\x80\x01" + b"\x7f" * 8192  # a length, and that many bytes
    rows = decode("avro", [b"\x02\x7f", huge], schema, avro_schema=avro)
    assert [str(row["n"]) for row in rows] == ["1.27", "None"]
