"""Rows without a payload column, as payloads: what the sink's option `valueFormat` chooses.

JSON and Avro make a message of each row; `key`, `partition` and `headers` stay what they are in any
frame, columns of the message. Arrow makes one message of many rows, an IPC stream, so there is no
key or header for each of them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.errors import ConfigError
from headrace.spark.formats.arrow_rows import rows_max
from headrace.spark.formats.options import ValueFormat

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
            from headrace.spark.formats.json_text import check_json

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
            from headrace.spark.formats.json_text import json_objects

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
