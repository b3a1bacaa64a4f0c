"""What the ranges of one store share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from headrace.concurrency.store_tasks import TaskSet
from headrace.config.storage import StorageSettings
from headrace.errors import ThrottledError
from headrace.runtime import Disk, Executor
from headrace.storage.activity import ActiveRanges
from headrace.storage.group_commit import Committer
from headrace.storage.journal.writer import Journal
from headrace.storage.range.tail_cache import TailCache
from headrace.storage.segments.open_files import FilePool
from headrace.storage.segments.pages import WrittenPages
from headrace.wire.sbp.messages import Durability


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
