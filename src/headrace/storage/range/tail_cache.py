"""The tail cache: recent batches of every range, so that reads at the end need no disk.

One bound in bytes over all ranges. Eviction is first in, first out over the whole store: what was
appended longest ago leaves first, whichever range it belongs to. A large batch is kept as it came
(header and body pieces); the first reader who needs it in one piece joins it, so a range nobody
tails costs no copy. Small ones are joined once they are stored: the pieces of tens of thousands of
them were what the garbage collector spent its time on, 150 ms at a time in which the event loop
stood still.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from headrace.storage.segments.segment import AppendedBatch

_COMPACT_AT = 1024  # dropped entries at the front of a list before it is rewritten


class RangeTail:
    """The cached batches of one range: without a gap, up to the last one appended."""

    __slots__ = ("_batches", "_head", "_offsets", "gone")

    def __init__(self) -> None:
        self._batches: list[AppendedBatch | None] = []
        self._offsets: list[int] = []
        self._head = 0
        self.gone = 0  # entries that `clear` dropped but the cache's queue still counts

    def __len__(self) -> int:
        return len(self._batches) - self._head

    def append(self, batch: AppendedBatch) -> None:
        self._batches.append(batch)
        self._offsets.append(batch.offset)

    def pop_oldest(self) -> int:
        """Drop the oldest batch; returns its size."""
        batch = self._batches[self._head]
        assert batch is not None
        self._batches[self._head] = None
        self._head += 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._batches):
            del self._batches[: self._head]
            del self._offsets[: self._head]
            self._head = 0
        return batch.size

    def clear(self) -> int:
        """Drop everything; returns the bytes."""
        dropped = sum(batch.size for batch in self._batches if batch is not None)
        self.gone += len(self)
        self._batches.clear()
        self._offsets.clear()
        self._head = 0
        return dropped

    def read(self, offset: int, *, stop: int, max_bytes: int) -> list[AppendedBatch] | None:
        """Whole batches from the one that contains `offset`, below `stop`; None: not here."""
        first = bisect_right(self._offsets, offset, lo=self._head) - 1
        if first < self._head:
            return None
        found: list[AppendedBatch] = []
        taken = 0
        for at in range(first, len(self._batches)):
            batch = self._batches[at]
            assert batch is not None
            if batch.end > stop or (taken and taken + batch.size > max_bytes):
                break
            found.append(batch)
            taken += batch.size
        return found


class TailCache:
    def __init__(self, bytes_max: int) -> None:
        self._limit = bytes_max
        self._queue: deque[RangeTail] = deque()  # one entry per cached batch, oldest first
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def add(self, tail: RangeTail, batch: AppendedBatch) -> None:
        tail.append(batch)
        self._queue.append(tail)
        self.bytes += batch.size
        while self.bytes > self._limit:
            oldest = self._queue.popleft()
            if oldest.gone:
                oldest.gone -= 1
            else:
                self.bytes -= oldest.pop_oldest()

    def forget(self, tail: RangeTail) -> None:
        self.bytes -= tail.clear()
