"""What the ranges of one store share: disk, threads, committers, caches, the bound on queued bytes.

`ActiveRanges` lists the ranges that were written to lately. A range that has gone quiet gets a
closing mark, so that damage to its last group is not taken for a torn tail.

`TailCache` keeps the newest batches of every range in memory, so that reads at the end of a range
need no disk. One bound in bytes holds over all ranges, and eviction is first in, first out over the
whole store: what was appended longest ago leaves first, whichever range it belongs to. A large
batch is kept as it came (header and body pieces). The first reader who needs a large batch in one
piece joins it, so a range nobody tails costs no copy. Small batches are joined once they are
stored: the pieces of tens of thousands of small batches were what the garbage collector spent its
time on, 150 ms at a time in which the event loop stood still.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import StorageSettings
from headrace.errors import ThrottledError
from headrace.runtime import Disk, Executor
from headrace.storage.group_commit import Committer
from headrace.storage.journal.writer import Journal
from headrace.storage.segments.open_files import FilePool, WrittenPages
from headrace.storage.segments.segment import AppendedBatch, SegmentWriter
from headrace.wire.sbp.messages import Durability

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
    """The newest batches of all ranges, under one bound in bytes."""

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


class ActiveRanges:
    """Ranges with appends since their last closing mark. Used from the event loop alone.

    Time is counted in rounds of `idle_ms`. Ranges stand in the order of their last append, so that
    a round looks at those that are quiet and not at the thousands that are not.
    """

    def __init__(self, settings: StorageSettings) -> None:
        # A `written` range is synced for its mark: thousands of them, with an append now and then,
        # would keep the disk busy with nothing else.
        self._rounds = {
            Durability.SYNCED: 1,
            Durability.WRITTEN: max(1, -(-settings.idle_file_ms // settings.idle_ms)),
        }
        self._last: dict[Durability, dict[SegmentWriter, int]] = {level: {} for level in Durability}
        self._round = 0
        self._some = asyncio.Event()

    def note(self, writer: SegmentWriter) -> None:
        """Note that the range has just been written to."""
        ranges = self._last[writer.durability]
        ranges.pop(writer, None)
        ranges[writer] = self._round
        self._some.set()

    def forget(self, writer: SegmentWriter) -> None:
        self._last[writer.durability].pop(writer, None)

    async def wait(self) -> None:
        """Wait until some range is active."""
        if not any(self._last.values()):
            self._some.clear()
            await self._some.wait()

    def take_quiet(self) -> list[SegmentWriter]:
        """End a round; gives the ranges that were quiet for long enough and are active no more."""
        self._round += 1
        quiet: list[SegmentWriter] = []
        for level, ranges in self._last.items():
            # The round in which the last append came does not count: it may be over just now.
            latest = self._round - 1 - self._rounds[level]
            for writer, last in ranges.items():
                if last > latest:
                    break
                quiet.append(writer)
        for writer in quiet:
            self.forget(writer)
        return quiet


@dataclass(slots=True)
class Shared:
    """What the parts of every range get from their store."""

    disk: Disk
    settings: StorageSettings
    store_uuid: UUID
    commit_executor: Executor
    read_executor: Executor
    control_executor: Executor  # metadata, index files, removals: never queued behind appends
    committers: Mapping[Durability, Committer]
    journal: Journal
    pool: FilePool
    cache: TailCache
    pages: WrittenPages
    tasks: TaskSet
    loop: asyncio.AbstractEventLoop
    active: ActiveRanges
    queued_bytes: int = 0
    closing: bool = False  # nothing new is begun

    def admit(self, size: int) -> None:
        """Account for a batch that waits to be written. Past the bound the caller has to wait."""
        if self.queued_bytes + size > self.settings.queued_bytes_max:
            raise ThrottledError("too many bytes wait for the disk", queued=self.queued_bytes)
        self.queued_bytes += size
