"""Messages under the names that Spark's Kafka source gives them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

LOG_APPEND_TIME = 1  # Kafka's word for a timestamp that the server set
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))


def raw_names(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of the raw schema from which these are made."""
    return tuple("payload" if name == "value" else name for name in names if name in _MADE_OF_RAW)


_MADE_OF_RAW = frozenset({"key", "value", "topic", "partition", "offset", "timestamp", "headers"})


def to_kafka(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """The columns `names` out of a batch with their raw columns."""
    arrays = []
    for name in names:
        if name == "timestampType":
            scalar = pa.scalar(LOG_APPEND_TIME, pa.int32())
            arrays.append(pa.repeat(scalar, batch.num_rows))
        elif name == "headers":
            arrays.append(_headers(batch.column("headers")))
        else:
            arrays.append(batch.column("payload" if name == "value" else name))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _headers(headers: pa.MapArray) -> pa.Array:
    """A map and a list of pairs have the same layout: nothing is copied but what is null."""
    if headers.offset:
        headers = pa.concat_arrays([headers])  # a slice has no bitmap that could be handed on
    pairs = pa.StructArray.from_arrays([headers.keys, headers.items], fields=list(_HEADER))
    return pa.ListArray.from_arrays(
        headers.offsets,
        pairs,
        type=_HEADERS,
        mask=headers.is_null() if headers.null_count else None,
    )
