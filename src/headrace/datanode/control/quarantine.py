"""Ranges that the placement manager does not know: kept aside, not deleted.

A list that lacks a range may be the word of a placement manager that was put back to an earlier
day. So a range is removed only when it is told what became of it: its stream was deleted, its
records were trimmed away, other nodes have it. Any other one is *quarantined*: its files stay, it
is neither written nor read, and it comes back when it is listed again. What nobody wanted for
`quarantine_ms` is removed.

quarantine.json    [[stream id, range index, time in milliseconds]]
metadata.json      the newest version of the placement metadata that this node has seen
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.datanode.state import RangeView
from headrace.errors import NotFoundError
from headrace.runtime.interfaces import Disk
from headrace.storage.layout import RangeKey
from headrace.wire.sbp.errors import OutdatedMetadataError
from headrace.wire.sbp.messages import Range

QUARANTINE_FILE = "quarantine.json"
METADATA_FILE = "metadata.json"


@dataclass(slots=True)
class Quarantine:
    keep_ms: int
    _since_ms: dict[RangeKey, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._since_ms)

    def __contains__(self, key: RangeKey) -> bool:
        return key in self._since_ms

    def __iter__(self) -> Iterator[RangeKey]:
        return iter(list(self._since_ms))

    def since_ms(self, key: RangeKey) -> int:
        return self._since_ms[key]

    def add(self, keys: Iterable[RangeKey], now_ms: int) -> None:
        for key in keys:
            self._since_ms.setdefault(key, now_ms)

    def discard(self, keys: Iterable[RangeKey]) -> None:
        for key in keys:
            self._since_ms.pop(key, None)

    def over(self, now_ms: int) -> list[RangeKey]:
        """Those that nobody wanted for long enough."""
        return [key for key, since in self._since_ms.items() if now_ms - since > self.keep_ms]

    def load(self, disk: Disk, folder: str) -> None:
        """Blocking. Unreadable, it is found out anew: from the next list, with the full time."""
        try:
            found = msgspec.json.decode(
                disk.read(f"{folder}/{QUARANTINE_FILE}"), type=list[tuple[int, int, int]]
            )
        except (NotFoundError, msgspec.MsgspecError):
            return
        self._since_ms = {RangeKey(stream, index): since for stream, index, since in found}

    def save(self, disk: Disk, folder: str) -> None:
        """Blocking."""
        rows = [(*key, since) for key, since in sorted(self._since_ms.items())]
        disk.write_atomic(f"{folder}/{QUARANTINE_FILE}", msgspec.json.encode(rows))


@dataclass(slots=True)
class MetadataSeen:
    """Versions of the placement metadata. Only what leaders answer to heartbeats counts."""

    newest: int = -1
    _before: int = -1

    def on_told(self, versions: Sequence[int]) -> bool:
        """By placement managers that lead, or think so; whether it is newer than anything before.

        OutdatedMetadataError when all of them are older.
        """
        told = max(versions, default=-1)
        if told < 0:
            return False
        if told < self.newest:
            raise OutdatedMetadataError(version=told, seen=self.newest)
        self._before, is_new, self.newest = self.newest, told > self.newest, told
        return is_new

    def check(self, version: int) -> None:
        """Of who asks for a change. One heartbeat's worth of lag is allowed: what was sent a moment
        ago may arrive after the answer to the heartbeat that followed it."""
        if 0 <= version < self._before:
            raise OutdatedMetadataError(version=version, seen=self.newest)

    def load(self, disk: Disk, folder: str) -> None:
        """Blocking."""
        try:
            found = msgspec.json.decode(disk.read(f"{folder}/{METADATA_FILE}"), type=int)
        except (NotFoundError, msgspec.MsgspecError):
            return
        self.newest = self._before = found

    def save(self, disk: Disk, folder: str) -> None:
        """Blocking."""
        disk.write_atomic(f"{folder}/{METADATA_FILE}", msgspec.json.encode(self.newest))


Streams = Mapping[int, Sequence[Range] | None]
"""What is listed of each stream that was asked for; None: it was deleted. Unknown ones are not
there."""


def is_given_up(view: RangeView, streams: Streams) -> bool:
    """Whether the placement manager knows what became of a range that it does not list for us.

    Only then does it go at once. What contradicts records that were acknowledged is another
    history's word.
    """
    stream_id, index = view.key
    if stream_id not in streams:
        return False
    listed = streams[stream_id]
    if listed is None:
        return True
    same = [one for one in listed if one.range_index == index]
    later = [one for one in listed if one.range_index > index]
    if same:  # other nodes' now: that happens to sealed ones alone
        (one,) = same
        fits = one.end_offset >= 0 and view.writer_epoch <= one.writer_epoch
        return fits and _ends_by(view, one.end_offset)
    return bool(later) and _ends_by(view, min(one.start_offset for one in later))


def is_the_same(view: RangeView, wanted: Range) -> bool:
    """Whether a quarantined range is the one that the placement manager names. An open one must
    have the replicas it was opened with: they alone know together where it ends."""
    if wanted.end_offset >= 0:
        return _ends_by(view, wanted.end_offset) and (
            not view.final or view.end_offset == wanted.end_offset
        )
    members = {n.data_node.node_id for n in wanted.replica_nodes if n.data_node is not None}
    return members == set(view.replicas) and view.start_offset >= wanted.start_offset


def _ends_by(view: RangeView, end: int) -> bool:
    return view.committed_offset <= end
