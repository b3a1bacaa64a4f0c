"""Arrow payloads: each is an IPC stream, and as many rows as its record batches hold.

Columns are matched by name; a missing one is null, others are ignored, types are cast where nothing
is lost. A payload that fails in any part gives no row at all. Bytes are checked in full before a
value of them is used, and what they would unpack to before they are read (`arrow_limits`): a
payload may give many times its size, but not any number of times. What is decoded at once is
bounded as well, so a block of payloads may be taken in several parts.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.formats.arrow_limits import bytes_max, check_stream
from headrace.spark.formats.decimals import check_decimals
from headrace.spark.formats.decoding import Bad, Decoded, UnreadableError, reason_of

PART_BYTES = 64 << 20  # of rows, after which a part of a block ends
_NULL_BYTES = 16  # of a value that is not there, at most
_VIEW_WORDS = 4


class ArrowDecoder:
    """`trusted`: the payloads are our own, whatever they unpack to."""

    def __init__(self, schema: pa.Schema, *, trusted: bool = False) -> None:
        self._schema = schema
        self._trusted = trusted

    def __call__(self, payloads: pa.BinaryArray) -> Decoded:
        tables: list[pa.Table] = []
        counts = np.zeros(len(payloads), np.int64)
        bad: list[Bad] = []
        taken = size = 0
        for row, payload in enumerate(payloads):
            if size >= PART_BYTES and not self._trusted:
                break
            taken += 1
            try:
                table = self._read(payload.as_buffer())
            except UnreadableError as error:
                bad.append(Bad(row, reason_of(error)))
                continue
            tables.append(table)
            counts[row] = table.num_rows
            size += table.nbytes
        merged = pa.concat_tables(tables) if tables else self._schema.empty_table()
        return Decoded(merged, np.repeat(np.arange(taken), counts[:taken]), bad, taken)

    def _read(self, payload: pa.Buffer) -> pa.Table:
        if not self._trusted:
            check_stream(memoryview(payload))
        try:
            with pa.ipc.open_stream(payload) as reader:
                table = reader.read_all()
            table.validate(full=True)
            return self._fit(table, bytes_max(payload.size))
        except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
            raise UnreadableError(str(error)) from None

    def _fit(self, table: pa.Table, most: int) -> pa.Table:
        columns = []
        size = 0
        for each in self._schema:
            found = table.schema.get_all_field_indices(each.name)
            if len(found) > 1:
                raise UnreadableError(f"two columns {each.name}")
            column = table.column(found[0]) if found else None
            if not self._trusted and (column is None or column.type != each.type):
                size += _cast_bytes(column, table.num_rows)
                if size > most:
                    raise UnreadableError(f"column {each.name} would take {size} bytes")
            if column is None:
                columns.append(pa.nulls(table.num_rows, each.type))
            elif column.type == each.type:
                columns.append(column)
            else:
                if pa.types.is_decimal(each.type):
                    check_decimals(column, each.name)
                columns.append(column.cast(each.type))
        return pa.Table.from_arrays(columns, schema=self._schema)


def _cast_bytes(column: pa.ChunkedArray | None, rows: int) -> int:
    """What a column may take once it is cast, where values may be shared or left out."""
    if column is None or pa.types.is_null(column.type):
        return rows * _NULL_BYTES
    kind = column.type
    if pa.types.is_dictionary(kind):
        if not _is_plain(kind.value_type) or kind.value_type.num_fields:
            raise UnreadableError(f"a column of type {kind} is not read")
        return sum(_dictionary_bytes(chunk) for chunk in column.chunks)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return rows * _NULL_BYTES + sum(_view_bytes(chunk) for chunk in column.chunks)
    if not _is_plain(kind):
        raise UnreadableError(f"a column of type {kind} is not read")
    return 2 * int(column.nbytes) + rows * _NULL_BYTES


def _dictionary_bytes(chunk: pa.DictionaryArray) -> int:
    values = chunk.dictionary
    if not len(values):
        return len(chunk) * _NULL_BYTES
    if pa.types.is_fixed_size_binary(values.type):
        return len(chunk) * (_NULL_BYTES + int(values.type.byte_width))
    if not _is_text(values.type):
        return len(chunk) * _NULL_BYTES
    return len(chunk) * (_NULL_BYTES + int(pc.max(pc.binary_length(values)).as_py() or 0))


def _view_bytes(chunk: pa.Array) -> int:
    """A view begins with the length of its text, of four times four bytes."""
    views = chunk.buffers()[1]
    if views is None:
        return 0
    lengths = np.frombuffer(views, np.int32)[::_VIEW_WORDS][chunk.offset :][: len(chunk)]
    return int(lengths.clip(0).sum(dtype=np.int64))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_plain(kind: pa.DataType) -> bool:
    """Whether each value of it is stored by itself, all the way down."""
    if kind.num_fields:
        return bool(
            pa.types.is_struct(kind)
            or pa.types.is_map(kind)
            or pa.types.is_list(kind)
            or pa.types.is_large_list(kind)
            or pa.types.is_fixed_size_list(kind)
        ) and all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    return _is_text(kind) or bool(
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_null(kind)
    )
