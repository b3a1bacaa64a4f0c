"""What the ranges of one store share: disk, threads, committers, caches, the bound on queued bytes.

Here too is the list of ranges that were written to lately. A range that has gone quiet gets a
closing mark, so that damage to its last group is not taken for a torn tail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import StorageSettings
from headrace.errors import ThrottledError
from headrace.runtime import Disk, Executor
from headrace.storage.group_commit import Committer
from headrace.storage.journal.writer import Journal
from headrace.storage.range.tail_cache import TailCache
from headrace.storage.segments.open_files import FilePool, WrittenPages
from headrace.storage.segments.segment import SegmentWriter
from headrace.wire.sbp.messages import Durability


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
        """It has just been written to."""
        ranges = self._last[writer.durability]
        ranges.pop(writer, None)
        ranges[writer] = self._round
        self._some.set()

    def forget(self, writer: SegmentWriter) -> None:
        self._last[writer.durability].pop(writer, None)

    async def wait(self) -> None:
        """Until some range is active."""
        if not any(self._last.values()):
            self._some.clear()
            await self._some.wait()

    def take_quiet(self) -> list[SegmentWriter]:
        """Ends a round: the ranges that were quiet for long enough, which are active no more."""
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
