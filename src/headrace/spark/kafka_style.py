"""Messages under the names that Spark's Kafka source gives them, and that its sink takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.errors import ConfigError

LOG_APPEND_TIME = 1  # Kafka's word for a timestamp that the server set
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))


SINK_TYPES = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "headers": ("map<string,binary>", "array<struct<key:string,value:binary>>"),
}
"""Of a frame that is written in this style."""
_OF_A_SOURCE = frozenset({"topic", "offset", "timestamp", "timestampType"})


def is_message(types: Mapping[str, str]) -> bool:
    """Whether a frame with these columns is messages as Spark's Kafka sink takes them.

    ConfigError for one that was read so and has columns left of that: a message that is written
    has no place for them, and as an object of JSON nobody could have meant it.
    """
    if types.get("value") not in SINK_TYPES["value"]:
        return False
    rest = types.keys() - SINK_TYPES.keys()
    if rest and types["value"] == "binary" and rest <= _OF_A_SOURCE:
        raise ConfigError(
            f"columns {', '.join(sorted(rest))} stand beside value and have no place in a message: "
            "select key, value, headers and partition (where it is to go); or set "
            "valueFormat=json to write all but key, headers and partition as one object"
        )
    return not rest


def from_kafka(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Under the names of a message."""
    names = ["payload" if name == "value" else name for name in batch.schema.names]
    columns = [
        _header_maps(column) if name == "headers" and pa.types.is_list(column.type) else column
        for name, column in zip(names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _header_maps(headers: pa.ListArray) -> pa.Array:
    """Pairs as a map; both have the same layout."""
    if headers.offset:
        headers = pa.concat_arrays([headers])
    keys, values = headers.values.flatten()
    mask = headers.is_null() if headers.null_count else None
    return pa.MapArray.from_arrays(headers.offsets, keys, values, mask=mask)


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
