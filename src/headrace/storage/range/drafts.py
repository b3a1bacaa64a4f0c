"""Segment files that are written anew to replace damaged or lost ones.

A draft is a temporary file beside the segment it will be: batches in offset order, a mark before
each chunk, every chunk synced, rolled where an append would have rolled. Before it may take its
place it is read back and scanned, as recovery would. Taking the place is a rename, the last file
first: whatever a cut leaves of a set of files is a valid range with everything good still in it.

A hole stands for batches that nobody has: padding that is no batch, then a mark with the offset
that follows, so that a scan finds the same corrupt span again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from headrace.errors import CorruptionError, DiskFullError
from headrace.runtime import Buffer, Disk
from headrace.storage.layout import DRAFT_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, CorruptSpan, format_base
from headrace.storage.segments.index import Checkpoint
from headrace.storage.segments.marks import MARK_BYTES, Mark, encode_mark
from headrace.storage.segments.scan import scan_below
from headrace.wire.sbp.records import BatchHeader

_CHUNK_BYTES = 4 * 1024 * 1024
_PADDING = bytes(MARK_BYTES)

T = TypeVar("T")


class RunStep(Protocol):
    """Carries out a blocking step; refuses when the range is no longer there for it."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(slots=True)
class Draft:
    base: int
    path: str
    binding: int
    position: int = 0
    content_bytes: int = 0
    offset: int = 0  # of the next batch
    group: int = 0
    holes: list[CorruptSpan] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Where drafts go and how large they may be."""

    folder: str
    binding_of: Callable[[int], int]
    segment_bytes_max: int
    keep_free_bytes: int
    index_interval_bytes: int


class Drafts:
    def __init__(self, disk: Disk, plan: DraftPlan, run: RunStep) -> None:
        self._disk = disk
        self._plan = plan
        self._run = run
        self._pieces: list[Buffer] = []
        self._size = 0
        self.files: list[Draft] = []

    def start(self, base: int) -> None:
        path = f"{self._plan.folder}/{format_base(base)}{DRAFT_SUFFIX}"
        self.files.append(Draft(base, path, self._plan.binding_of(base), offset=base))

    async def add(self, header: BatchHeader, batch: memoryview) -> None:
        """The next batch, checked by the caller; not changed before the next call returns."""
        draft = self.files[-1]
        assert header.base_offset == draft.offset
        size = len(batch)
        if draft.content_bytes and draft.content_bytes + size > self._plan.segment_bytes_max:
            await self._flush()
            self.start(header.base_offset)
            draft = self.files[-1]
        if not self._pieces:
            if draft.holes and draft.holes[-1].end == draft.offset:
                self._add_piece(_PADDING)
            self._add_mark(draft)
        self._add_piece(batch)
        draft.content_bytes += size
        draft.offset = header.next_offset
        if self._size >= _CHUNK_BYTES:
            await self._flush()

    async def skip_to(self, offset: int) -> None:
        """Batches up to `offset` are not to be had."""
        await self._flush()
        draft = self.files[-1]
        draft.holes.append(CorruptSpan(draft.offset, offset))
        draft.offset = offset

    def _add_piece(self, piece: Buffer) -> None:
        self._pieces.append(piece)
        self._size += len(piece)

    def _add_mark(self, draft: Draft) -> None:
        position = draft.position + self._size
        mark = Mark(draft.group, position, draft.offset)
        draft.group += 1
        self._add_piece(encode_mark(mark, binding=draft.binding, position=position))

    async def _flush(self) -> None:
        if not self._pieces:
            return
        draft, pieces, size = self.files[-1], self._pieces, self._size
        path, position = draft.path, draft.position
        self._pieces, self._size = [], 0
        draft.position += size
        keep_free = self._plan.keep_free_bytes

        def write() -> None:
            if self._disk.free_bytes(self._plan.folder) < size + keep_free:
                raise DiskFullError("no space to write the segment anew", path=path)
            file = self._disk.open(path, create=True)
            try:
                if not position:
                    file.truncate(0)  # what an earlier attempt left
                file.pwrite(pieces, position)
                file.sync_data()
            finally:
                file.close()

        await self._run(write)

    async def close(self, end: int) -> list[Checkpoint]:
        """Read everything back; what each file holds. `end` is where the last one has to end."""
        await self._flush()
        ends = [draft.base for draft in self.files[1:]] + [end]
        return [
            await self._run(partial(self._check, draft, upper))
            for draft, upper in zip(self.files, ends, strict=True)
        ]

    def _check(self, draft: Draft, end: int) -> Checkpoint:
        file = self._disk.open(draft.path)
        try:
            found = scan_below(
                file, end, size=draft.position, base=draft.base, binding=draft.binding,
                interval=self._plan.index_interval_bytes,
            )  # fmt: skip
        finally:
            file.close()
        if found.end.offset != end or list(found.spans) != draft.holes:
            raise CorruptionError("what was written does not read back", path=draft.path)
        return found

    def install(self, done: list[int]) -> None:
        """Give every draft its place; `done` gets the bases that have it, last file first.

        Blocking. The index files go first: they would be believed beside other bytes.
        """
        disk, folder = self._disk, self._plan.folder
        for draft in self.files:
            disk.remove(f"{folder}/{format_base(draft.base)}{INDEX_SUFFIX}")
        disk.sync_folder(folder)
        for draft in reversed(self.files):
            disk.rename(draft.path, f"{folder}/{format_base(draft.base)}{LOG_SUFFIX}")
            done.append(draft.base)
            disk.sync_folder(folder)

    def discard(self) -> None:
        """Blocking."""
        for draft in self.files:
            self._disk.remove(draft.path)
