"""Record batches: bytes at their places, offsets patched without touching the checksum."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.sbp import records
from headrace.wire.sbp.flat import Buffer

I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def batch(body: bytes = b"records", *, base_offset: int = 0, count: int = 2, **rest: int) -> bytes:
    header = records.encode_header(
        base_offset=base_offset, body=[body], record_count=count,
        base_timestamp=1000, max_timestamp=1005, **rest,
    )  # fmt: skip
    return bytes(header) + body


def test_layout() -> None:
    data = batch(
        b"abc", base_offset=7, count=3, attributes=records.PRODUCER, producer_id=5, sequence=6
    )
    assert len(data) == 55 + 3
    assert data[0] == 0x23
    assert struct.unpack_from(">q", data, 1) == (7,)
    assert struct.unpack_from(">i", data, 9) == (len(data) - 13,)
    assert struct.unpack_from(">I", data, 13) == (crc32c(data[17:]),)
    assert struct.unpack_from(">H", data, 17) == (0b1000,)
    assert struct.unpack_from(">i", data, 19) == (3,)
    assert struct.unpack_from(">qq", data, 23) == (1000, 1005)
    assert struct.unpack_from(">qq", data, 39) == (5, 6)


def test_unused_producer_block_reads_minus_one() -> None:
    header = records.decode_header(batch())
    assert (header.producer_id, header.sequence) == (-1, -1)


@given(
    base_offset=I64, pieces=st.lists(st.binary(max_size=30), max_size=4),
    count=st.integers(1, 1 << 30), base=I64,
    latest=I64, producer=I64, sequence=I64, attributes=st.integers(0, 0x7F),
)  # fmt: skip
@settings(deadline=None)
def test_header_comes_back(
    base_offset: int, pieces: list[bytes], count: int, base: int, latest: int, producer: int,
    sequence: int, attributes: int,
) -> None:  # fmt: skip
    header = records.encode_header(
        base_offset=base_offset, body=pieces, record_count=count, base_timestamp=base,
        max_timestamp=latest, attributes=attributes, producer_id=producer, sequence=sequence,
    )  # fmt: skip
    decoded = records.verify(header, pieces)
    assert decoded == records.BatchHeader(
        base_offset, 42 + sum(map(len, pieces)), decoded.crc, attributes, count, base, latest,
        producer, sequence,
    )  # fmt: skip
    assert decoded.records == attributes & records.RECORDS
    assert decoded.batch_bytes == 55 + sum(map(len, pieces))
    assert decoded.next_offset == base_offset + count


def test_base_offset_is_patched_at_byte_1_big_endian() -> None:
    """The original patched byte 8, little-endian, and damaged every batch."""
    header = bytearray(batch(b"")[:55])
    before = bytes(header)
    records.patch_base_offset(header, 0x0102030405060708)
    assert header[1:9] == bytes.fromhex("0102030405060708")
    assert header[0:1] + header[9:] == before[0:1] + before[9:]
    assert records.verify(header, []).base_offset == 0x0102030405060708


def test_patching_keeps_the_checksum_and_any_other_change_breaks_it() -> None:
    data = bytearray(batch(b"some records"))
    records.patch_base_offset(data, 99)
    records.verify(data[:55], [data[55:]])
    for position in range(17, len(data)):
        data[position] ^= 1
        with pytest.raises(RemoteProtocolError):
            records.verify(data[:55], [data[55:]])
        data[position] ^= 1


def test_verify_takes_pieces_and_wants_all_of_them() -> None:
    data = memoryview(batch(b"0123456789"))
    records.verify(data[:55], [data[55:58], data[58:]])
    wrong: list[list[Buffer]] = [[data[55:58]], [data[55:], b"x"]]
    for pieces in wrong:
        with pytest.raises(RemoteProtocolError, match="length"):
            records.verify(data[:55], pieces)


def test_split_walks_batches_and_refuses_a_cut_one() -> None:
    batches = [
        batch(b"a", base_offset=0),
        batch(b"bb" * 50, base_offset=2),
        batch(b"", base_offset=4),
    ]
    joined = b"".join(batches)
    found = list(records.split(joined))
    assert [bytes(view) for _, view in found] == batches
    assert [header.base_offset for header, _ in found] == [0, 2, 4]
    for cut in range(1, len(batches[0])):
        with pytest.raises(RemoteProtocolError):
            list(records.split(joined[:cut]))


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    try:
        for header, view in records.split(garbage):
            assert header.batch_bytes == len(view) <= len(garbage)
    except RemoteProtocolError:
        pass


def with_field(offset: int, code: str, value: int) -> bytes:
    data = bytearray(batch(b"12345678"))
    struct.pack_into(code, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        with_field(0, ">B", 0x22),
        with_field(9, ">i", 41),
        with_field(9, ">i", -1),
        with_field(9, ">i", 0x7FFFFFFF),
        with_field(19, ">i", 0),
        with_field(19, ">i", -5),
        with_field(17, ">H", records.INDEXED | 1),
    ],
    ids=["magic", "short", "negative", "huge", "no records", "negative count", "index compressed"],
)
def test_impossible_headers_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        records.decode_header(data)


def test_index_finds_every_record() -> None:
    starts = [0, 5, 6]
    parts = [b"first", b"2", b"third!"]
    body = [b"".join(parts), records.encode_index(starts)]
    header = records.encode_header(
        base_offset=10, body=body, record_count=3, base_timestamp=0, max_timestamp=0,
        attributes=records.RECORDS_IGGY | records.INDEXED,
    )  # fmt: skip
    data = bytes(header) + b"".join(body)
    decoded = records.decode_header(data)
    assert decoded.records == records.RECORDS_IGGY
    assert data[55 : decoded.records_end] == b"first2third!"
    assert records.decode_index(decoded, data) == (0, 5, 6)
    assert bytes(records.index_of(decoded, data)) == struct.pack("<3I", 0, 5, 6)


@pytest.mark.parametrize("positions", [[0, 0], [5, 1], [0, 400]])
def test_an_index_out_of_order_or_outside_is_refused(positions: list[int]) -> None:
    body = b"12345678" + records.encode_index(positions)
    data = batch(body, count=2, attributes=records.INDEXED)
    with pytest.raises(RemoteProtocolError):
        records.decode_index(records.decode_header(data), data)


def test_an_index_longer_than_the_batch_is_refused() -> None:
    data = bytearray(batch(b"12345678", count=2, attributes=records.INDEXED))
    struct.pack_into(">i", data, 19, 3)
    with pytest.raises(RemoteProtocolError):
        records.decode_header(data)
    plain = batch(b"12345678")
    with pytest.raises(RemoteProtocolError, match="no index"):
        records.index_of(records.decode_header(plain), plain)


def test_what_cannot_be_sent_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError):
        batch(b"", count=0)
    with pytest.raises(LocalProtocolError):
        batch(b"", base_offset=1 << 63)
    with pytest.raises(LocalProtocolError):
        batch(bytes(records.BATCH_BYTES_MAX))


def test_records_end_without_index_is_the_end() -> None:
    header = records.decode_header(batch(b"xyz"))
    assert header.records_end == header.batch_bytes == 58
    assert replace(header, attributes=records.INDEXED).records_end == 58 - 8
