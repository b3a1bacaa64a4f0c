"""Where a group commit decides how its files become durable.

Two ways lead to the same promise:

* `DIRECT`: write and sync every dirty file, in parallel. Latency is that of one sync while files
  are few; over many files it grows with their number divided by the threads.
* `JOURNAL`: write the group to one recycled redo journal per data node (stream, range, position,
  bytes; idempotent; each record with lap number and CRC), sync that one file, acknowledge, and sync
  the segment files behind. A lap is used again only after every file it names is synced, and
  recovery replays the journal before it scans segments.

The journal is not built yet: `CommitPolicy` answers `DIRECT` unless it is given one, and the
committer calls `Journal.commit` with the same writes it would carry out directly. What the journal
needs from the rest exists: writes name their file, position and bytes, and repeating them is
harmless because marks carry rising group numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.storage.segment import SegmentWrite


class Route(Enum):
    DIRECT = "direct"
    JOURNAL = "journal"


class Journal(Protocol):
    async def commit(self, writes: Sequence[SegmentWrite]) -> None:
        """Make the writes durable; each write's `error` tells its own outcome."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    journal_files_min: int = 0  # 0 = never
    journal: Journal | None = None

    def route(self, dirty_files: int) -> Route:
        if self.journal is None or not self.journal_files_min:
            return Route.DIRECT
        return Route.JOURNAL if dirty_files >= self.journal_files_min else Route.DIRECT
