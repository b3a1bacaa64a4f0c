"""Messages to Arrow and back: exact bounds, every column, damage told apart."""

from __future__ import annotations

import struct
import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.arrow import payloads_of, to_area, to_record_batch
from headrace.client.partition_reader import unpack
from headrace.errors import CorruptionError, InvalidArgumentError, RemoteProtocolError
from headrace.wire.iggy.batch import build_index, stamp
from headrace.wire.iggy.columns import COLUMNS, join
from headrace.wire.sbp import records

TIME_US = 1_700_000_000_123_456


def batch(
    payloads: list[bytes],
    base: int,
    *,
    keys: list[bytes | None] | None = None,
    headers: list[dict[str, bytes] | None] | None = None,
    attributes: int = records.RECORDS_IGGY | records.INDEXED,
) -> bytes:
    """A record batch as the broker stores it."""
    header_column = None
    if headers is not None:
        pairs = [None if one is None else list(one.items()) for one in headers]
        header_column = pa.array(pairs, pa.map_(pa.string(), pa.binary()))
    area, starts = to_area(
        pa.array(payloads, pa.binary()),
        None if keys is None else pa.array(keys, pa.binary()),
        header_column,
    )
    stamp(
        area,
        starts,
        base_offset=base,
        timestamp_us=TIME_US,
        new_ids=lambda n: b"".join((base + i + 1).to_bytes(16, "little") for i in range(n)),
    )
    body: list[bytes | bytearray | memoryview]
    body = [area, build_index(starts)] if attributes & records.INDEXED else [area]
    head = records.encode_header(
        base_offset=base,
        body=body,
        record_count=len(payloads),
        base_timestamp=TIME_US // 1000,
        max_timestamp=TIME_US // 1000,
        attributes=attributes,
    )
    return b"".join([head, *body])


def read(pieces: list[bytes], start: int, end: int, **options: object) -> pa.RecordBatch:
    areas = list(unpack([memoryview(piece) for piece in pieces], start, end))
    return to_record_batch(*join(areas), stream="s", topic="t", partition=3, **options)  # type: ignore[arg-type]  # options are spread


def test_every_column() -> None:
    piece = batch([b"one", b"two"], 7, keys=[b"k", None], headers=[{"h": b"1"}, None])
    rows = read([piece], 7, 9).to_pylist()
    assert rows[0] == {
        "stream": "s",
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
        "origin_timestamp": None,
        "id": str(uuid.UUID(int=8)),
        "key": b"k",
        "headers": [("h", b"1")],
        "payload": b"one",
    }
    assert (rows[1]["key"], rows[1]["headers"]) == (None, None)


def test_the_schema_is_the_one_spark_expects() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructType,
        TimestampType,
    )

    expected = StructType()
    for name, kind in (
        ("stream", StringType()),
        ("topic", StringType()),
        ("partition", IntegerType()),
        ("offset", LongType()),
        ("timestamp", TimestampType()),
        ("origin_timestamp", TimestampType()),
        ("id", StringType()),
        ("key", BinaryType()),
        ("headers", MapType(StringType(), BinaryType())),
        ("payload", BinaryType()),
    ):
        expected.add(name, kind)
    for headers in (None, [{"h": b"1"}]):
        found = read([batch([b"x"], 0, headers=headers)], 0, 1).schema  # type: ignore[arg-type]  # invariance
        assert to_arrow_schema(expected, timezone="UTC").equals(found)


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=6), min_size=1, max_size=5),
    st.data(),
)
def test_any_slice_of_any_batches_is_exact(
    payloads: list[list[bytes]], data: st.DataObject
) -> None:
    indexed = data.draw(st.booleans())
    attributes = records.RECORDS_IGGY | (records.INDEXED if indexed else 0)
    pieces, at = [], 100
    for some in payloads:
        pieces.append(batch(some, at, attributes=attributes))
        at += len(some)
    whole = [payload for some in payloads for payload in some]
    start = data.draw(st.integers(100, at - 1))
    end = data.draw(st.integers(start + 1, at))
    found = read(pieces, start, end, names=("offset", "payload"))
    assert found.column("payload").to_pylist() == whole[start - 100 : end - 100]
    assert found.column("offset").to_pylist() == list(range(start, end))


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.binary(min_size=1, max_size=300)), st.binary()),
        min_size=1,
    )
)
def test_keys_of_any_length_come_back(rows: list[tuple[bytes | None, bytes]]) -> None:
    piece = batch([payload for _, payload in rows], 0, keys=[key for key, _ in rows])
    found = read([piece], 0, len(rows), names=("key", "headers", "payload"))
    assert found.column("key").to_pylist() == [key for key, _ in rows]
    assert found.column("headers").null_count == len(rows)
    assert found.column("payload").to_pylist() == [payload for _, payload in rows]


def test_a_slice_of_an_arrow_column_is_sent_as_the_slice() -> None:
    column = pa.array([b"a", b"bb", b"ccc", b"dddd"], pa.binary()).slice(1, 2)
    area, starts = to_area(column, None, None)
    assert [bytes(area[int(start) + 64 :][:2]) for start in starts] == [b"bb", b"cc"]


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(min_size=1, max_size=9)),
            st.one_of(st.none(), st.dictionaries(st.sampled_from("ab"), st.binary(min_size=1))),
            st.binary(max_size=20),
        ),
        min_size=1,
    )
)
def test_payloads_alone_are_those_between_the_headers(
    rows: list[tuple[bytes | None, dict[str, bytes] | None, bytes]],
) -> None:
    pairs = [None if headers is None else list(headers.items()) for _, headers, _ in rows]
    area, starts = to_area(
        pa.array([payload for _, _, payload in rows], pa.binary()),
        pa.array([key for key, _, _ in rows], pa.binary()),
        pa.array(pairs, pa.map_(pa.string(), pa.binary())),
    )
    assert payloads_of(area, starts).to_pylist() == [payload for _, _, payload in rows]
    names = ("key", "headers", "payload")
    batch = to_record_batch(area, starts, stream="", topic="", partition=0, names=names)
    found = [(row["key"], dict(row["headers"] or ()), row["payload"]) for row in batch.to_pylist()]
    assert found == [(key, headers or {}, payload) for key, headers, payload in rows]
    with pytest.raises(RemoteProtocolError):
        payloads_of(memoryview(bytes(area) + b"x"), starts)


@given(
    st.lists(st.integers(1, 2**128 - 1), min_size=1, max_size=9),
    st.sampled_from([0, 2**64 - 1, None]),
    st.booleans(),
)
def test_ids_are_uuids_whether_or_not_they_share_a_half(
    numbers: list[int], upper: int | None, one_differs: bool
) -> None:
    if upper is not None:
        numbers = [upper << 64 | number & (2**64 - 1) or 1 for number in numbers]
    if one_differs:
        numbers[-1] = 5 << 64 | 7
    area, starts = to_area(pa.array([b"x"] * len(numbers)), None, None)
    given_ids = b"".join(number.to_bytes(16, "little") for number in numbers)
    stamp(area, starts, base_offset=0, timestamp_us=1, new_ids=lambda _: given_ids)
    found = to_record_batch(area, starts, stream="s", topic="t", partition=0, names=("id",))
    assert found.column(0).to_pylist() == [str(uuid.UUID(int=number)) for number in numbers]


@pytest.mark.parametrize("payloads", [[b"abc"] * 40, [b"x" * n for n in range(40)], [b""] * 40])
@pytest.mark.parametrize("keys", [None, [b"key"] * 40, [None, b"key"] * 20])
def test_columns_that_are_alike_in_all_messages_are_those_of_each(
    payloads: list[bytes], keys: list[bytes | None] | None
) -> None:
    """One size or many, blocks in all, some or none, origins in some: the short cuts are exact."""
    piece = bytearray(batch(payloads, 70, keys=keys))
    found = read([bytes(piece)], 70, 110)
    assert found.column("offset").to_pylist() == list(range(70, 110))
    assert found.column("payload").to_pylist() == payloads
    assert found.column("key").to_pylist() == (keys or [None] * 40)
    assert found.column("headers").null_count == 40
    assert found.column("origin_timestamp").null_count == 40
    area, starts = next(unpack([memoryview(piece)], 70, 110))
    changed = bytearray(area)
    struct.pack_into("<Q", changed, int(starts[5]) + 40, TIME_US)  # its origin
    struct.pack_into("<Q", changed, int(starts[39]) + 24, 500)  # its offset
    again = to_record_batch(memoryview(changed), starts, stream="s", topic="t", partition=3)
    assert again.column("offset").to_pylist() == [*range(70, 109), 500]
    assert again.column("origin_timestamp").null_count == 39
    assert again.column("origin_timestamp")[5].value == TIME_US


def test_text_is_sent_as_its_bytes_and_read_as_text() -> None:
    area, starts = to_area(pa.array(["ü", "x"]), pa.array(["k", "ö"]), None)
    names = ("key", "payload")
    found = to_record_batch(
        area, starts, stream="s", topic="t", partition=0, names=names, payload_format="string"
    )
    assert found.to_pylist() == [
        {"key": b"k", "payload": "ü"},
        {"key": "ö".encode(), "payload": "x"},
    ]


def test_what_cannot_be_sent_or_read_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="null"):
        to_area(pa.array(["x", None]), None, None)
    with pytest.raises(InvalidArgumentError, match="string or binary"):
        to_area(pa.array([1, 2]), None, None)
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        read([batch([b"\xff"], 0)], 0, 1, names=COLUMNS, payload_format="string")


def test_damage_is_told_apart() -> None:
    first, second = batch([b"one"], 0), batch([b"two"], 2)
    with pytest.raises(CorruptionError, match="gap"):
        list(unpack([memoryview(first), memoryview(second)], 0, 3))
    torn = bytearray(first)
    torn[-6] ^= 1
    with pytest.raises(RemoteProtocolError, match="checksum"):
        list(unpack([memoryview(torn)], 0, 1))
    state = batch([b"one"], 0, attributes=records.RECORDS_STATE | records.INDEXED)
    with pytest.raises(CorruptionError, match="no messages"):
        list(unpack([memoryview(state)], 0, 1))
