"""Group commit: all queued appends of all ranges of one durability level, one group at a time.

While a group is being written and synced the next one accumulates, so the number of syncs follows
the disk and not the number of appends. There is one committer per level: an acknowledgement that
needs the page cache alone never waits for another range's sync.

What an acknowledgement means: for `synced` ranges the batch's bytes, the file's size and its name
have been synced, or stand in the synced journal; for `written` ranges the write has returned. The
order write → sync → acknowledge is `carry_out` or `Journal.commit` (in a thread) followed by
`on_written` (on the loop), and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import count

from headrace.errors import StorageError
from headrace.observability import tracing
from headrace.observability.logging import get_logger
from headrace.runtime import Disk, Executor
from headrace.storage.journal.writer import Journal
from headrace.storage.segments.segment import SegmentWrite, SegmentWriter, carry_out
from headrace.wire.sbp.messages import Durability

log = get_logger(__name__)


class GroupNumbers:
    """Rises over the whole store and across restarts, so that it rises within every file.

    By two: the number between two groups is that of the first one's closing mark.
    """

    def __init__(self, last: int) -> None:
        self._numbers = count(last + 2, 2)

    def take(self) -> int:
        return next(self._numbers)


class Committer:
    """The group commits of one durability level."""

    def __init__(
        self,
        level: Durability,
        disk: Disk,
        executor: Executor,
        journal: Journal,
        groups: GroupNumbers,
        *,
        threads: int,
        group_bytes_max: int,
        group_files_max: int,
    ) -> None:
        self._level = level
        self._disk = disk
        self._executor = executor
        self._journal = journal
        self._groups = groups
        self._threads = threads
        self._group_bytes_max = group_bytes_max
        self._group_files_max = group_files_max  # a group holds its files open
        self._ready: dict[SegmentWriter, None] = {}
        self._wake = asyncio.Event()
        self._closing = False
        self.groups_written = 0
        self.files_written = 0
        self.bytes_written = 0

    def submit(self, writer: SegmentWriter) -> None:
        """The range has something to write."""
        self._ready[writer] = None
        self._wake.set()

    def finish(self) -> None:
        """Let `run` return once nothing is queued."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        while True:
            if not self._ready:
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            writes = self._take_group()
            if writes:
                await self._commit(writes)

    def _take_group(self) -> list[SegmentWrite]:
        group = self._groups.take()
        writes: list[SegmentWrite] = []
        budget = self._group_bytes_max
        for writer in list(self._ready):
            if budget <= 0 or len(writes) >= self._group_files_max:
                break
            del self._ready[writer]
            write = writer.take_write(self._level, group, budget)
            if write is not None:
                writes.append(write)
                budget -= write.size
        return writes

    async def _commit(self, writes: list[SegmentWrite]) -> None:
        self.groups_written += 1
        dirty = sum(write.sync for write in writes)
        if dirty == len(writes) and self._journal.takes(writes):
            await self._carry_out(self._journal.commit(writes), writes)
            return
        shares = min(dirty, self._threads)
        if shares <= 1:
            await self._carry_out_directly(writes)
            return
        # Each share is acknowledged when it is done: its callers prepare their next batches while
        # the other files are still being synced.
        await asyncio.gather(
            *(self._carry_out_directly(writes[share::shares]) for share in range(shares))
        )

    async def _carry_out_directly(self, writes: list[SegmentWrite]) -> None:
        await self._carry_out(self._executor.run(carry_out, self._disk, writes), writes)

    async def _carry_out(self, work: Awaitable[None], writes: list[SegmentWrite]) -> None:
        span = None
        if tracing.active:
            span = tracing.begin_aside(
                "headrace.log.sync",
                stream_id=[write.writer.key.stream_id for write in writes],
                files=len(writes),
                bytes=sum(write.size for write in writes),
            )
        try:
            await work
        except asyncio.CancelledError:
            for write in writes:
                write.writer.abandon(write)
            raise
        except Exception as error:  # ours, not the disk's: these ranges cannot be trusted any more
            log.exception("group commit failed", files=len(writes))
            for write in writes:
                if write.error is None:
                    write.error = StorageError(f"group commit failed: {error!r}")
        if span is not None:
            span.end(error=next((str(write.error) for write in writes if write.error), ""))
        self.files_written += len(writes)
        for write in writes:
            self.bytes_written += write.size
            write.writer.on_written(write)
