"""Rows without a payload column, as payloads: what the sink's option `valueFormat` chooses.

JSON and Avro make a message of each row; `key`, `partition` and `headers` stay what they are in any
frame, columns of the message. Arrow makes one message of many rows, an IPC stream, so there is no
key or header for each of them.

JSON is made of whole columns, by array operations (`json_objects`). Timestamps are ISO 8601 in UTC
with a Z (those without a zone have none), dates ISO, decimals and numbers as numbers, binary as
base64, maps as objects, what is null or not a finite number as null. Only text with characters that
JSON escapes, and binary, is taken value by value.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigError
from headrace.spark.formats.arrow_rows import rows_max
from headrace.spark.formats.options import ValueFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray


OWN_COLUMNS = ("key", "partition", "headers")
ARROW_BYTES = 1 << 20  # of rows in one message; a row that is larger is a message of its own


class RowEncoder:
    """ConfigError for columns that the format cannot hold."""

    def __init__(self, value_format: ValueFormat, schema: pa.Schema, avro_schema: str = "") -> None:
        self._format = value_format
        self._own = [name for name in schema.names if name in OWN_COLUMNS]
        self._data = [name for name in schema.names if name not in OWN_COLUMNS]
        if not self._data:
            raise ConfigError("the frame has no column to write: give it a payload column")
        fields = pa.schema([schema.field(name) for name in self._data])
        if value_format == "arrow":
            refused = [name for name in self._own if name != "partition"]
            if refused:
                raise ConfigError(
                    f"valueFormat=arrow puts many rows into a message: no {', '.join(refused)}"
                )
        elif value_format == "avro":
            from headrace.spark.formats.avro_rows import AvroEncoder

            self._avro = AvroEncoder(fields, avro_schema)
        else:
            from headrace.spark.formats.encoding import check_json

            for each in fields:
                check_json(each.type, each.name)

    @property
    def joins_rows(self) -> bool:
        """Whether rows share messages: then they are encoded once they are sorted by partition."""
        return self._format == "arrow"

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The message columns of these rows."""
        rows = batch.select(self._data)
        if self._format == "arrow":
            return pa.RecordBatch.from_arrays([arrow_messages(rows)], names=["payload"])
        if self._format == "avro":
            payload = self._avro(rows)
        else:
            from headrace.spark.formats.encoding import json_objects

            payload = json_objects(rows)
        own = [batch.column(name) for name in self._own]
        return pa.RecordBatch.from_arrays([payload, *own], names=["payload", *self._own])


def arrow_messages(batch: pa.RecordBatch, bytes_max: int = ARROW_BYTES) -> pa.Array:
    """The rows as IPC streams of about this size at most, and of no more rows than are read back.

    They are written one after the other into the buffer that then holds the array.
    """
    waiting = [batch]
    sink = pa.BufferOutputStream()
    ends = [0]
    while waiting:
        part = waiting.pop()
        many = part.num_rows > 1 and part.num_rows > rows_max(part.nbytes)
        if many or (part.num_rows > 1 and part.nbytes > bytes_max):
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
            continue
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
        ends.append(sink.tell())
    offsets = pa.py_buffer(np.array(ends, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, offsets, sink.getvalue()])


_NULL = pa.scalar("null")
_QUOTE, _BACKSLASH, _CONTROLS_END = 34, 92, 32
_DATE_CHARACTERS = len("2026-01-01")
_TIMESTAMP_CHARACTERS = len("2026-01-01 00:00:00.000000")


class _Texts(NamedTuple):
    """Values as JSON: what stands before and after each, and the texts, none of them null."""

    before: str
    texts: pa.Array
    after: str

    def joined(self) -> pa.Array:
        if not self.before and not self.after:
            return self.texts
        return pc.binary_join_element_wise(self.before, self.texts, self.after, "")


def json_objects(batch: pa.RecordBatch) -> pa.Array:
    """One object per row."""
    return _object(batch.schema.names, batch.columns).joined()


def json_values(array: pa.Array) -> pa.Array:
    """Each value as JSON, null where there is none."""
    return pc.if_else(array.is_valid(), _texts(array).joined(), pa.scalar(None, pa.string()))


def check_json(kind: pa.DataType, name: str) -> None:
    """ConfigError for a type that has no text here."""
    if pa.types.is_map(kind) and not pa.types.is_string(kind.key_type):
        raise ConfigError(f"column {name}: the keys of a JSON object are text, not {kind.key_type}")
    if kind.num_fields:
        for i in range(kind.num_fields):
            check_json(kind.field(i).type, name)
        return
    if not any(matches(kind) for matches in _LEAVES):
        raise ConfigError(f"column {name} of type {kind} cannot be written as JSON")


_LEAVES = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_timestamp, pa.types.is_date, pa.types.is_null),
)


def _object(names: list[str], columns: list[pa.Array]) -> _Texts:
    pieces: list[pa.Array | str] = []
    text = "{"
    for i, (name, column) in enumerate(zip(names, columns, strict=True)):
        value = _texts(column)
        text += f"{',' if i else ''}{msgspec.json.encode(name).decode()}:{value.before}"
        pieces += [text, value.texts]
        text = value.after
    return _Texts("", pc.binary_join_element_wise(*pieces, text + "}", ""), "")


def _texts(array: pa.Array) -> _Texts:
    kind = array.type
    if pa.types.is_null(kind):
        return _Texts("", pa.repeat(_NULL, len(array)), "")
    found = _present(array)
    if not array.null_count:
        return found
    return _Texts("", pc.if_else(array.is_valid(), found.joined(), _NULL), "")


def _present(array: pa.Array) -> _Texts:
    """As if nothing were null."""
    kind = array.type
    if pa.types.is_struct(kind):
        names = [each.name for each in kind]
        return _object(names, array.flatten())
    if pa.types.is_map(kind):
        return _map(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array, _texts(_values(array, array.values)).joined(), "[", "]")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(array.cast(pa.string()).fill_null(""))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encoded = [b64encode(value or b"").decode() for value in array.to_pylist()]
        return _Texts('"', pa.array(encoded, pa.string()), '"')
    if pa.types.is_timestamp(kind):
        return _Texts('"', _timestamps(array), '"' if kind.tz is None else 'Z"')
    if pa.types.is_date(kind):
        return _Texts('"', array.cast(pa.string()).fill_null(""), '"')
    text = array.cast(pa.string()).fill_null("null")
    if pa.types.is_floating(kind):
        finite = pc.is_finite(array).fill_null(False)
        if not pc.all(finite).as_py():
            text = pc.if_else(finite, text, _NULL)
    return _Texts("", text, "")


def _timestamps(array: pa.Array) -> pa.Array:
    """In UTC, of which the values are microseconds: forty times as fast as Arrow with a zone."""
    plain = array.cast(pa.timestamp("us", tz=array.type.tz)).view(pa.timestamp("us"))
    text = plain.cast(pa.string()).fill_null("")
    _, offsets, data = text.buffers()
    places = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
    if not len(text) or (np.diff(places) != _TIMESTAMP_CHARACTERS).any():  # nulls, far-off years
        return pc.replace_substring(text, pattern=" ", replacement="T", max_replacements=1)
    characters = np.frombuffer(data, np.uint8)[places[0] : places[-1]].copy()
    characters[_DATE_CHARACTERS::_TIMESTAMP_CHARACTERS] = ord("T")
    return pa.Array.from_buffers(
        pa.string(), len(text), [None, pa.py_buffer(places - places[0]), pa.py_buffer(characters)]
    )


def _values(array: pa.Array, values: pa.Array) -> pa.Array:
    """The part of a list's or map's values that this slice of it uses."""
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return values.slice(first, last - first)


def _lists(array: pa.Array, texts: pa.Array, before: str, after: str) -> _Texts:
    offsets: NDArray[np.int64] = array.offsets.to_numpy()
    lists = pa.ListArray.from_arrays(pa.array((offsets - offsets[0]).astype(np.int32)), texts)
    return _Texts(before, pc.binary_join(lists, ","), after)


def _map(array: pa.Array) -> _Texts:
    keys = _texts(_values(array, array.keys)).joined()
    items = _texts(_values(array, array.items)).joined()
    return _lists(array, pc.binary_join_element_wise(keys, items, ":"), "{", "}")


def _strings(array: pa.Array) -> _Texts:
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    bytes_ = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    # Looked for before they are located: searches take a fifteenth of what the masks take.
    raw = bytes_.tobytes()
    if not raw or (b'"' not in raw and b"\\" not in raw and bytes_.min() >= _CONTROLS_END):
        return _Texts('"', array, '"')
    special = (bytes_ < _CONTROLS_END) | (bytes_ == _QUOTE) | (bytes_ == _BACKSLASH)
    places = np.flatnonzero(special) + offsets[0]
    rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)
    escaped = [
        msgspec.json.encode(text)[1:-1].decode() for text in array.take(pa.array(rows)).to_pylist()
    ]
    mask = np.zeros(len(array), np.bool_)
    mask[rows] = True
    return _Texts('"', pc.replace_with_mask(array, pa.array(mask), pa.array(escaped)), '"')
