"""What the ranges of one store share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.config.storage import StorageSettings
from headrace.errors import ThrottledError
from headrace.runtime import Disk, Executor
from headrace.storage.cache import TailCache
from headrace.storage.committer import Committer
from headrace.storage.files import FilePool
from headrace.storage.journal import Journal
from headrace.storage.tasks import TaskSet
from headrace.wire.sbp.messages import Durability

if TYPE_CHECKING:
    from headrace.storage.writer import RangeWriter


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
    tasks: TaskSet
    loop: asyncio.AbstractEventLoop
    active: dict[RangeWriter, int] = field(default_factory=dict)
    """Ranges with appends since their last closing mark, and where they stood at the last look."""
    activity: asyncio.Event = field(default_factory=asyncio.Event)  # `active` is not empty
    queued_bytes: int = 0
    closing: bool = False  # nothing new is begun

    def note_active(self, log: RangeWriter) -> None:
        if log not in self.active:
            self.active[log] = -1
            self.activity.set()

    def admit(self, size: int) -> None:
        """Account for a batch that waits to be written. Past the bound the caller has to wait."""
        if self.queued_bytes + size > self.settings.queued_bytes_max:
            raise ThrottledError("too many bytes wait for the disk", queued=self.queued_bytes)
        self.queued_bytes += size
