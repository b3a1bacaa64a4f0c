"""What a data node keeps in small files beside its log.

node.json          {"node_id", "store_id"}; belongs to the store with that uuid and no other
interrupted.json   [[stream id, range index]] open at an unclean stop and not sealed since
metadata.json      the newest version of the placement metadata that this node has seen
quarantine.json    [[stream id, range index, time in milliseconds]]
fences             one line for each range that was given up: stream id, range index, time in
                   milliseconds, and the CRC32C of those as 8 hexadecimal digits

Quarantine: a list that lacks a range may be the word of a placement manager that was put back to an
earlier day. So a range is removed only when the node is told what became of it: its stream was
deleted, its records were trimmed away, other nodes have it. Any other one is *quarantined*: its
files stay, it is neither written nor read, and it comes back when it is listed again. What nobody
wanted for `quarantine_ms` is removed.

Fences: a SYNC_RANGES may arrive when the range it opens is long sealed and gone from this node:
sent by a leader that stalled, or delayed on its way. Opened once more the range would take appends
that no placement manager knows of. So the highest index given up is remembered per stream, durably
before anything is removed, for as long as placement managers remember a deleted stream. The file
grows by appends; what a power cut tore off at its end was never relied on. Once most of it is
outdated it is written anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from headrace.datanode.state import RangeView
from headrace.errors import CorruptionError, DiskFullError, NotFoundError
from headrace.runtime.interfaces import Disk
from headrace.storage.layout import RangeKey
from headrace.wire.sbp.errors import OutdatedMetadataError
from headrace.wire.sbp.messages import Range

T = TypeVar("T")

NODE_FILE = "node.json"
INTERRUPTED_FILE = "interrupted.json"
QUARANTINE_FILE = "quarantine.json"
METADATA_FILE = "metadata.json"
FENCES_FILE = "fences"
ALL_RANGES = (1 << 31) - 1
"""Of a stream that was deleted."""
FENCES_MAX = 50_000
_OUTDATED_MAX = 1_000
"""Fences in the file beside as many again as count, before it is written anew."""


class Identity(msgspec.Struct, frozen=True):
    node_id: int
    store_id: str


def load_identity(disk: Disk, folder: str, store_id: str) -> Identity | None:
    """None when the node has no id yet, or the id belongs to a store that is gone."""
    identity = _load(disk, f"{folder}/{NODE_FILE}", Identity)
    return identity if identity is not None and identity.store_id == store_id else None


def save_identity(disk: Disk, folder: str, identity: Identity) -> None:
    disk.write_atomic(f"{folder}/{NODE_FILE}", msgspec.json.encode(identity))


def load_interrupted(disk: Disk, folder: str) -> set[RangeKey]:
    keys = _load(disk, f"{folder}/{INTERRUPTED_FILE}", list[tuple[int, int]])
    return {RangeKey(*key) for key in keys or ()}


def save_interrupted(disk: Disk, folder: str, keys: set[RangeKey]) -> None:
    disk.write_atomic(f"{folder}/{INTERRUPTED_FILE}", msgspec.json.encode(sorted(keys)))


def _load(disk: Disk, path: str, type_: type[T]) -> T | None:
    try:
        data = disk.read(path)
    except NotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.MsgspecError as error:
        raise CorruptionError("unreadable file", path=path) from error


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


class Fence(NamedTuple):
    range_index: int
    at_ms: int


@dataclass(slots=True)
class Fences:
    """The fences in memory."""

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
        return _encode_fence(stream_id, fence)

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
        found = [fence for fence in map(_decode_fence, lines) if fence is not None]
        for stream_id, fence in found:
            if not self.forbids(stream_id, fence.range_index):
                self._put(stream_id, fence)
        self._forget(now_ms)
        return len(found) == len(lines) == len(self) and not rest

    def encode(self) -> bytes:
        """A file that says all of it."""
        return b"".join(_encode_fence(*each) for each in self._by_stream.items())


def _encode_fence(stream_id: int, fence: Fence) -> bytes:
    text = b"%d %d %d" % (stream_id, *fence)
    return b"%s %08x\n" % (text, crc32c(text))


def _decode_fence(line: bytes) -> tuple[int, Fence] | None:
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
