"""Batches of the original implementation are read, whatever its writers disagreed on."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.wire.sbp import records
from headrace.wire.sbp.flat import encode


def batch_v0(bodies: list[bytes], *, last_offset_delta: int, base_offset: int = 0) -> bytes:
    meta = encode(records.BatchMetaV0(7, 0, 99, last_offset_delta, 1_680_000_000))
    out = struct.pack(">bqi", 0x22, base_offset, len(meta)) + meta
    for delta, body in enumerate(bodies):
        record = encode(records.RecordMetaV0(delta, 1, (records.KeyValueV0("Tag", "a"),)))
        out += struct.pack(">ii", len(record), len(body)) + record + body
    return out


@pytest.mark.parametrize(
    "last_offset_delta", [3, 2, 0, 77], ids=["count", "count-1", "unset", "wrong"]
)
def test_the_count_comes_from_the_records(last_offset_delta: int) -> None:
    data = batch_v0([b"one", b"", b"three"], last_offset_delta=last_offset_delta, base_offset=40)
    batch = records.decode_batch_v0(data)
    assert records.count_records_v0(data) == len(batch.records) == 3
    assert batch.base_offset == 40  # the outer one; the meta's copy says 99
    assert [bytes(record.body) for record in batch.records] == [b"one", b"", b"three"]
    assert [record.meta.offset_delta for record in batch.records] == [0, 1, 2]
    assert batch.records[0].meta.headers == (records.KeyValueV0("Tag", "a"),)
    assert batch.meta.stream_id == 7


def test_the_base_offset_is_patched_at_the_same_place() -> None:
    data = bytearray(batch_v0([b"x"], last_offset_delta=0))
    records.patch_base_offset(data, 1 << 40)
    assert records.decode_batch_v0(data).base_offset == 1 << 40


def test_cut_batches_are_refused() -> None:
    data = batch_v0([b"one", b"two"], last_offset_delta=1)
    whole_records = {len(data)}
    for cut in range(len(data)):
        try:
            found = records.count_records_v0(data[:cut])
        except RemoteProtocolError:
            continue
        whole_records.add(cut)
        assert found < 2
    assert len(whole_records) == 3  # after the meta, after one record, after both


@given(st.binary(max_size=120), st.booleans())
def test_garbage_is_refused(garbage: bytes, magic: bool) -> None:
    data = b"\x22" + bytes(8) + garbage if magic else garbage
    try:
        counted = records.count_records_v0(data)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            records.decode_batch_v0(data)
        return
    assert counted * 8 <= len(data)
    try:
        assert len(records.decode_batch_v0(data).records) == counted
    except RemoteProtocolError:
        return  # the lengths are right, a meta is not
