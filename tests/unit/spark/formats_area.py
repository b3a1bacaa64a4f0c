"""Payloads through the decoder that Spark's tasks use."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.client.arrow import to_area
from headrace.spark.formats.options import FormatOptions
from headrace.spark.formats.typed import TypedRows
from headrace.wire.iggy.batch import stamp
from headrace.wire.iggy.columns import MessageBuffer

BASE_OFFSET = 100


def area_of(
    payloads: list[bytes], *, keys: list[bytes | None] | None = None, headers: Any = None
) -> MessageBuffer:
    """Stored messages, from offset BASE_OFFSET on."""
    area, starts = to_area(
        pa.array(payloads, pa.binary()),
        None if keys is None else pa.array(keys, pa.binary()),
        None if headers is None else pa.array(headers, pa.map_(pa.string(), pa.binary())),
    )
    stamp(
        area,
        starts,
        base_offset=BASE_OFFSET,
        timestamp_us=1_700_000_000_000_000,
        new_ids=lambda n: bytes(16 * n),
    )
    return area, starts


def decode(
    payload_format: str, payloads: list[bytes], schema: pa.Schema, **options: Any
) -> list[dict[str, Any]]:
    typed = TypedRows(
        payload_format,
        FormatOptions(**options),
        schema,
        stream="shop",
        topic="orders",
        partition=3,
    )
    found = pa.Table.from_batches(typed.read(*area_of(payloads))).combine_chunks()
    assert found.schema.equals(schema)
    found.validate(full=True)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows
