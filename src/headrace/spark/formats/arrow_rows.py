"""Arrow payloads: each is an IPC stream, and as many rows as its record batches hold.

Columns are matched by name; a missing one is null, others are ignored, types are cast where nothing
is lost. A payload that fails in any part gives no row at all. Bytes are checked in full before a
value of them is used. What is decoded at once is bounded, so a block of payloads may be taken in
several parts.

A few bytes can state any number of rows (columns of nulls hold none), or any size (buffers may be
compressed), so what a payload would unpack to is read off its metadata before any of it is: a
payload may give many times its size, but not any number of times. Each message of an IPC stream
says it beforehand:

    0xFFFFFFFF | length of the metadata u32 | metadata (a FlatBuffer) | body

    Message: version, header type, header, body length
    RecordBatch: length, nodes [length, nulls], buffers [offset, length], compression; all i64
    DictionaryBatch: id, RecordBatch

A compressed buffer begins with its unpacked size, i64. Only numbers are read there; whatever else
is wrong is for Arrow to find.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.formats.decoding import Bad, Decoded, UnreadableError, check_decimals, reason_of

ROWS_FREE = 10_000
ROWS_PER_BYTE = 64
BYTES_FREE = 1 << 20
BYTES_PER_BYTE = 256
BYTES_MAX = 1 << 30

_CONTINUATION = 0xFFFFFFFF
_WORD = struct.Struct("<I")
_INT = struct.Struct("<i")
_SHORT = struct.Struct("<H")
_LONG = struct.Struct("<q")
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_PAIR_BYTES = 16  # of a node and of a buffer
_FAILURES = (struct.error, IndexError, ValueError, TypeError, OverflowError)


def rows_max(size: int) -> int:
    """How many rows, or items of one column, a payload of this size may have."""
    return ROWS_FREE + ROWS_PER_BYTE * size


def bytes_max(size: int) -> int:
    """How much memory it may take."""
    return min(BYTES_MAX, BYTES_FREE + BYTES_PER_BYTE * size)


def check_stream(payload: memoryview) -> None:
    """UnreadableError for one that takes too much, or whose messages cannot be told apart."""
    try:
        _check(payload)
    except _FAILURES as error:
        raise UnreadableError(f"no Arrow stream: {error}") from None


def _check(payload: memoryview) -> None:
    at = rows = unpacked = 0
    while at + _WORD.size < len(payload):
        (length,) = _WORD.unpack_from(payload, at)
        at += _WORD.size
        if length == _CONTINUATION:  # streams of old begin with the length
            (length,) = _WORD.unpack_from(payload, at)
            at += _WORD.size
        if not length:
            return  # the end
        metadata = payload[at : at + length]
        message = _Table(metadata, _WORD.unpack_from(metadata)[0])
        at += length
        body = payload[at : at + message.long(3)]
        if len(body) != message.long(3):
            raise ValueError("a body beyond the end")
        kind, batch = message.byte(1), message.child(2)
        if kind == _DICTIONARY_BATCH and batch is not None:
            batch = batch.child(1)
        if kind in (_DICTIONARY_BATCH, _RECORD_BATCH) and batch is not None:
            rows += max(0, batch.long(0))
            unpacked += _unpacked(batch, body)
            items = max((length for length, _ in batch.pairs(1)), default=0)
            _compare(max(rows, items), unpacked, len(payload))
        at += len(body)


def _compare(rows: int, unpacked: int, size: int) -> None:
    if rows > rows_max(size):
        raise UnreadableError(f"{size} bytes state {rows} rows, of {rows_max(size)} at most")
    if unpacked > bytes_max(size):
        raise UnreadableError(f"{size} bytes unpack to {unpacked}, of {bytes_max(size)} at most")


def _unpacked(batch: _Table, body: memoryview) -> int:
    """The sizes that compressed buffers state; what is not compressed takes no memory."""
    if batch.place(3) is None:
        return 0
    total = 0
    for offset, length in batch.pairs(2):
        if length >= _LONG.size:
            total += max(0, _LONG.unpack_from(body, offset)[0])
    return total


class _Table:
    """A table of a FlatBuffer, as far as it takes: scalars, tables, and lists of pairs of longs."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _INT.unpack_from(data, at)[0]
        if self._fields < 0:
            raise ValueError("a table before the beginning")
        self._end = self._fields + _SHORT.unpack_from(data, self._fields)[0]

    def place(self, number: int) -> int | None:
        """Of a field, None when it is left out."""
        at = self._fields + 4 + 2 * number
        offset = _SHORT.unpack_from(self._data, at)[0] if at + 2 <= self._end else 0
        return self._at + offset if offset else None

    def long(self, number: int) -> int:
        at = self.place(number)
        return 0 if at is None else int(_LONG.unpack_from(self._data, at)[0])

    def byte(self, number: int) -> int:
        at = self.place(number)
        return 0 if at is None else self._data[at]

    def child(self, number: int) -> _Table | None:
        at = self.place(number)
        if at is None:
            return None
        return _Table(self._data, at + _WORD.unpack_from(self._data, at)[0])

    def pairs(self, number: int) -> list[tuple[int, int]]:
        at = self.place(number)
        if at is None:
            return []
        at += _WORD.unpack_from(self._data, at)[0]
        (count,) = _WORD.unpack_from(self._data, at)
        found = self._data[at + 4 : at + 4 + count * _PAIR_BYTES]
        if len(found) != count * _PAIR_BYTES:
            raise ValueError("a list beyond the end")
        return list(struct.iter_unpack("<qq", found))


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
