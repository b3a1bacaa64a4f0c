"""The process that reads Arrow tables of strangers.

Started as `python -m headrace.web.broker_api.arrow_worker`.

Frames in, frames out (`runtime.Worker`): a payload; the table as JSON, or nothing if it is none.
It has a bound of memory, and each payload a bound of time, and it may die of either: whoever asked
starts another. It reads no file and has nobody's secrets.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
from typing import BinaryIO

import msgspec

from headrace.web.broker_api.arrow_tables import read_table

MEMORY_BYTES_MAX = 512 * 1024 * 1024  # beyond what its libraries take
SECONDS_MAX = 4  # it ends by itself then, should nobody be left to end it
TOO_MUCH = b"!"  # the answer to what does not fit
_LENGTH = struct.Struct(">I")


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
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES_MAX
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
