"""The process that reads the first rows of Arrow tables that anybody may have sent.

It is started as `python -m headrace.web.broker_api.arrow_worker`. Frames in, frames out
(`runtime.Worker`): a payload; its table as JSON, or nothing if it is none. The process has a bound
of memory, and each payload a bound of time, and it may die of either: whoever asked starts another.
It reads no file and has nobody's secrets.

A few bytes can stand for as much as one likes: a list of millions of nulls, buffers that grow when
they are uncompressed. So rows are taken batch by batch, of each value only its beginning is turned
into Python, and what the batches hold together is bounded. What a single batch takes while it is
read, and lengths that lie, are left to the limits of the process.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import psutil

from headrace.web.broker_api import types as t

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_BYTES_MAX = 512 * 1024 * 1024  # beyond what its libraries take
SECONDS_MAX = 4  # it ends by itself then, should nobody be left to end it
TOO_MUCH = b"!"  # the answer to what does not fit
_LENGTH = struct.Struct(">I")
FILE = b"ARROW1"
STREAM = b"\xff\xff\xff\xff"  # continuation marker of the IPC stream format
ROWS_MAX = 50
COLUMNS_MAX = 200
COUNTED_BYTES_MAX = 256 * 1024 * 1024
CELL_MAX = 500
_ITEMS_MAX = 50  # of one list, and fields of one struct
_DEPTH_MAX = 6


class _More:
    """Stands for what was left out."""

    def __repr__(self) -> str:
        return "…"


_MORE = _More()


def looks_like_arrow(payload: bytes) -> bool:
    return payload.startswith((STREAM, FILE))


def read_table(payload: bytes) -> tuple[t.ArrowTable, bool] | None:
    """What to show, and whether there is more; None if it is no Arrow table."""
    import pyarrow as pa

    rows: list[list[str | None]] = []
    count = size = 0
    try:
        schema, batches = _open(payload)
        fields = [schema.field(number) for number in range(min(len(schema), COLUMNS_MAX))]
        for batch in batches:
            wanted = min(batch.num_rows, ROWS_MAX - len(rows))
            columns = [batch.column(number) for number in range(len(fields))]
            rows += [[_cell(one[row]) for one in columns] for row in range(wanted)]
            count += batch.num_rows
            size += batch.nbytes
            if size > COUNTED_BYTES_MAX:
                break
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError, OSError, OverflowError):
        return None
    columns_ = [t.ArrowColumn(name=_cut(one.name), type=_cut(str(one.type))) for one in fields]
    more = count > len(rows) or len(schema) > COLUMNS_MAX or size > COUNTED_BYTES_MAX
    return t.ArrowTable(columns=columns_, rows=rows, count=count), more


def _open(payload: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    import pyarrow as pa

    options = pa.ipc.IpcReadOptions(use_threads=False)
    if payload.startswith(FILE):
        file = pa.ipc.open_file(payload, options=options)
        return file.schema, (file.get_batch(one) for one in range(file.num_record_batches))
    stream = pa.ipc.open_stream(payload, options=options)
    return stream.schema, iter(stream)


def _cell(scalar: pa.Scalar) -> str | None:
    value = _value(scalar, 0)
    if value is None:
        return None
    return _cut(value if isinstance(value, str) else str(value))


def _value(scalar: pa.Scalar, depth: int) -> Any:
    """As Python has it, with the beginning of what is long."""
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    if depth > _DEPTH_MAX:
        return _MORE
    wrapped = (pa.ExtensionScalar, pa.DictionaryScalar, pa.RunEndEncodedScalar, pa.UnionScalar)
    if isinstance(scalar, wrapped):
        return _value(scalar.value, depth)
    if isinstance(scalar, pa.StructScalar):
        kind = scalar.type
        shown = range(min(kind.num_fields, _ITEMS_MAX))
        found = {kind.field(one).name: _value(scalar[one], depth + 1) for one in shown}
        return {**found, "…": _MORE} if kind.num_fields > _ITEMS_MAX else found
    values = getattr(scalar, "values", None)
    if isinstance(values, pa.Array):  # all kinds of lists, and maps
        head = [_value(values[one], depth + 1) for one in range(min(len(values), _ITEMS_MAX))]
        return [*head, _MORE] if len(values) > _ITEMS_MAX else head
    if isinstance(scalar, pa.BinaryScalar):  # and its kinds, text among them
        return _text(scalar)
    return scalar.as_py()


def _text(scalar: pa.BinaryScalar) -> str:
    import pyarrow as pa

    raw = bytes(memoryview(scalar.as_buffer())[: 4 * CELL_MAX + 4])
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if any(is_kind(scalar.type) for is_kind in kinds):
        return raw.decode("utf-8", "replace")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"0x{raw.hex()}"


def _cut(text: str) -> str:
    return text if len(text) <= CELL_MAX else f"{text[:CELL_MAX]}…"


def main() -> None:
    try:
        import pyarrow as pa
    except ImportError:
        pa = None
    if pa is not None:
        pa.set_memory_pool(pa.system_memory_pool())  # others reserve address space in advance
        pa.set_cpu_count(1)
        _bound_memory()
    while (payload := _read(sys.stdin.buffer)) is not None:
        answer = b""
        if pa is not None:
            signal.alarm(SECONDS_MAX)
            try:
                found = read_table(payload)
                answer = b"" if found is None else msgspec.json.encode(found)
            except MemoryError:
                answer = TOO_MUCH
            signal.alarm(0)
        sys.stdout.buffer.write(_LENGTH.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()


def _bound_memory() -> None:
    most = psutil.Process().memory_info().vms + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


if __name__ == "__main__":
    main()
