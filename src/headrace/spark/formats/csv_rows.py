"""CSV payloads as typed columns: one record per payload, its fields in the order of the schema.

Quoted fields may hold delimiters and line ends. So that no payload can run into the next one, each
is followed by a field with a number that its author cannot know: rows that do not end with the
numbers in order are not the payloads.
"""

from __future__ import annotations

from secrets import randbits

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.errors import ConfigError
from headrace.spark.formats.decoding import Decoded, UnreadableError, check_decimals, halve

_FRAME = "\0"  # a column of ours beside those of the schema
_BLOCK_BYTES_MIN = 1 << 16


class CsvDecoder:
    def __init__(self, schema: pa.Schema, delimiter: str) -> None:
        for each in schema:
            if each.type.num_fields or pa.types.is_duration(each.type):
                raise ConfigError(f"payloadFormat=csv cannot read column {each.name}: {each.type}")
        if not len(schema) or _FRAME in schema.names:
            raise ConfigError("payloadFormat=csv needs a schema with a column per field")
        self._schema = schema
        self._delimiter = delimiter
        self._parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        self._convert = pyarrow.csv.ConvertOptions(
            column_types={
                **{each.name: _read_as(each.type) for each in schema},
                _FRAME: pa.int64(),
            },
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def __call__(self, payloads: pa.BinaryArray) -> Decoded:
        return halve(payloads, self._schema, self._read)

    def _read(self, payloads: pa.BinaryArray) -> pa.Table:
        frames = np.arange(len(payloads)) + randbits(62)
        ends = pa.array(frames).cast(pa.string()).cast(pa.binary())
        lines = pc.binary_join_element_wise(payloads, ends, self._delimiter.encode())
        lists = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(lists, b"\n").buffers()[2]
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(text),
                pyarrow.csv.ReadOptions(
                    use_threads=False,
                    block_size=max(_BLOCK_BYTES_MIN, text.size + 1),
                    column_names=[*self._schema.names, _FRAME],
                ),
                self._parse,
                self._convert,
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnreadableError(_without_frame(str(error))) from None
        if not table.column(_FRAME).combine_chunks().equals(pa.array(frames)):
            raise UnreadableError("not exactly one record")
        return self._converted(table.select(self._schema.names))

    def _converted(self, table: pa.Table) -> pa.Table:
        for each in self._schema:
            if pa.types.is_decimal(each.type):
                check_decimals(table.column(each.name), each.name)
        try:
            return table.cast(self._schema)
        except pa.ArrowInvalid as error:
            raise UnreadableError(str(error)) from None


def _read_as(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_decimal(kind) else kind


def _without_frame(text: str) -> str:
    """Arrow quotes the row, and counts our field."""
    return "another number of fields than the schema has" if "columns, got" in text else text
