"""Which ranges are never opened here again: those that this node has had and given up.

A SYNC_RANGES may arrive when the range it opens is long sealed and gone from this node: sent by a
leader that stalled, or delayed on its way. Opened once more the range would take appends that no
placement manager knows of. So the highest index given up is remembered per stream, durably before
anything is removed, for as long as placement managers remember a deleted stream.

The file `fences` has one record per line: stream id, range index, time in milliseconds, and the
CRC32C of those as 8 hexadecimal digits. It grows by appends; what a power cut tore off at its end
was never relied on. Once most of it is outdated it is written anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import DiskFullError, NotFoundError
from headrace.runtime.interfaces import Disk

FENCES_FILE = "fences"
ALL_RANGES = (1 << 31) - 1
"""Of a stream that was deleted."""
FENCES_MAX = 50_000
_OUTDATED_MAX = 1_000
"""Records in the file beside as many again as count, before it is written anew."""


class Fence(NamedTuple):
    range_index: int
    at_ms: int


@dataclass(slots=True)
class Fences:
    """In memory."""

    keep_ms: int
    count_max: int = FENCES_MAX
    _by_stream: dict[int, Fence] = field(default_factory=dict)  # the oldest first

    def __len__(self) -> int:
        return len(self._by_stream)

    def forbids(self, stream_id: int, range_index: int) -> bool:
        """Whether an open range of that index is a thing of the past here."""
        fence = self._by_stream.get(stream_id)
        return fence is not None and range_index <= fence.range_index

    def on_given_up(self, stream_id: int, range_index: int, now_ms: int) -> bytes:
        """The record to be made durable; empty when that much is remembered already."""
        if self.forbids(stream_id, range_index):
            return b""
        fence = Fence(range_index, now_ms)
        self._put(stream_id, fence)
        self._forget(now_ms)
        return _encode(stream_id, fence)

    def _put(self, stream_id: int, fence: Fence) -> None:
        self._by_stream.pop(stream_id, None)
        self._by_stream[stream_id] = fence

    def _forget(self, now_ms: int) -> None:
        while self._by_stream:
            oldest = next(iter(self._by_stream))
            age_ms = now_ms - self._by_stream[oldest].at_ms
            if len(self) <= self.count_max and age_ms <= self.keep_ms:
                return
            del self._by_stream[oldest]

    def recover(self, data: bytes, now_ms: int) -> bool:
        """Take what a file says; False when there is more in it than that, or less."""
        *lines, rest = data.split(b"\n")
        found = [fence for fence in map(_decode, lines) if fence is not None]
        for stream_id, fence in found:
            if not self.forbids(stream_id, fence.range_index):
                self._put(stream_id, fence)
        self._forget(now_ms)
        return len(found) == len(lines) == len(self) and not rest

    def encode(self) -> bytes:
        """A file that says all of it."""
        return b"".join(_encode(*each) for each in self._by_stream.items())


def _encode(stream_id: int, fence: Fence) -> bytes:
    text = b"%d %d %d" % (stream_id, *fence)
    return b"%s %08x\n" % (text, crc32c(text))


def _decode(line: bytes) -> tuple[int, Fence] | None:
    """None when it is torn or rotten: the others still hold."""
    text, _, crc = line.rpartition(b" ")
    if crc != b"%08x" % crc32c(text):
        return None
    stream_id, range_index, at_ms = map(int, text.split())
    return stream_id, Fence(range_index, at_ms)


class FenceFile:
    """Makes fences durable; those that come while one is written go with the next write."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        fences: Fences,
        *,
        now_ms: Callable[[], int],
        on_disk: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._disk = disk
        self._path = f"{folder}/{FENCES_FILE}"
        self._fences = fences
        self._now_ms = now_ms
        self._on_disk = on_disk
        self._unwritten: list[bytes] = []
        self._writing = asyncio.Lock()
        self._end = 0  # of what is durable; 0 when there is no file
        self._records = 0

    def load(self) -> None:
        """Blocking."""
        try:
            data = self._disk.read(self._path)
        except NotFoundError:
            return
        if self._fences.recover(data, self._now_ms()):
            self._end, self._records = len(data), len(self._fences)
            return
        with suppress(DiskFullError):  # the next one is written with all of them
            self._rewrite(self._fences.encode(), len(self._fences))

    async def give_up(self, stream_id: int, range_index: int) -> None:
        """No range up to that one is opened from now on; durable at return."""
        record = self._fences.on_given_up(stream_id, range_index, self._now_ms())
        if record:
            self._unwritten.append(record)
        async with self._writing:  # also for what another call is just writing
            records, self._unwritten = self._unwritten, []
            if not records:
                return
            write = partial(self._append, b"".join(records), len(records))
            outdated = self._records + len(records) - 2 * len(self._fences)
            if not self._end or outdated > _OUTDATED_MAX:
                write = partial(self._rewrite, self._fences.encode(), len(self._fences))
            try:
                await self._on_disk(write)
            except BaseException:
                self._unwritten = [*records, *self._unwritten]
                raise

    def _append(self, data: bytes, records: int) -> None:
        file = self._disk.open(self._path)
        try:
            # Where what is durable ends: what a failed write left behind is overwritten.
            written = file.pwrite([data], self._end)
            file.sync_data()
        finally:
            file.close()
        self._end += written
        self._records += records

    def _rewrite(self, data: bytes, records: int) -> None:
        self._disk.write_atomic(self._path, data)
        self._end, self._records = len(data), records
