"""What an Arrow payload would take, read off its metadata before any of it is unpacked.

A few bytes can state any number of rows (columns of nulls hold none), or any size (buffers may be
compressed). Each message of an IPC stream says so beforehand:

    0xFFFFFFFF | length of the metadata u32 | metadata (a FlatBuffer) | body

    Message: version, header type, header, body length
    RecordBatch: length, nodes [length, nulls], buffers [offset, length], compression; all i64
    DictionaryBatch: id, RecordBatch

A compressed buffer begins with its unpacked size, i64. Only numbers are read here; whatever else is
wrong is for Arrow to find.
"""

from __future__ import annotations

import struct

from headrace.spark.formats.decoding import UnreadableError

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
