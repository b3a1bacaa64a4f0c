"""Repair of a sealed range: damaged or lost batches come back from another replica.

The segment that holds them is written anew beside the damaged one, from its own good batches and
the ones given, and replaces it when it is whole. Until then nothing of the range changes; readers
that are in the old file keep it.

What is written anew is a draft: a temporary file with batches in offset order, a mark before each
chunk, every chunk synced, rolled where an append would have rolled. Before a draft may take its
place it is read back and scanned, as recovery would. Taking the place is a rename, the last file
first: whatever a cut leaves of a set of files is a valid range with everything good still in it. A
hole in a draft stands for batches that nobody has: padding that is no batch, then a mark with the
offset that follows, so that a scan finds the same corrupt span again.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from headrace.errors import (
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    StateError,
    StorageError,
)
from headrace.observability.logging import get_logger
from headrace.runtime import Buffer, Disk
from headrace.storage.layout import DRAFT_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, CorruptSpan, format_base
from headrace.storage.range.progress import RangeProgress, Status
from headrace.storage.segments.files import SegmentFiles
from headrace.storage.segments.formats import MARK_BYTES, Checkpoint, Mark, binding_of, encode_mark
from headrace.storage.segments.reader import FreshDamage
from headrace.storage.segments.scan import is_intact, scan_below
from headrace.storage.segments.segment import Segment
from headrace.storage.shared import Shared
from headrace.wire.sbp.records import BatchHeader, split

_CHUNK_BYTES = 4 * 1024 * 1024
_READ_BYTES = 4 * 1024 * 1024
_PADDING = bytes(MARK_BYTES)

log = get_logger(__name__)

T = TypeVar("T")
Batches = Iterable[memoryview] | AsyncIterable[memoryview]


class RunStep(Protocol):
    """Carries out a blocking step; refuses when the range is no longer there for it."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(slots=True)
class Draft:
    """One segment file being written anew."""

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
    """The drafts of one repair, written one after the other."""

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


class Damage(NamedTuple):
    """What one rewriting deals with: the damage of one segment, or files lost before the first."""

    segment: Segment | None
    spans: Sequence[CorruptSpan]
    end: int


class GivenBatches:
    """The batches of another replica, one after the other, each of them checked."""

    def __init__(self, batches: AsyncIterator[tuple[BatchHeader, memoryview]]) -> None:
        self._batches = batches
        self._next: tuple[BatchHeader, memoryview] | None = None

    async def start(self, offset: int) -> int:
        """The base of the first batch, which has to contain `offset` or to lie before it."""
        self._next = await anext(self._batches, None)
        if self._next is None or self._next[0].base_offset > offset:
            raise InvalidArgumentError("the batches do not cover the damage", offset=offset)
        return self._next[0].base_offset

    async def fill(self, drafts: Drafts, offset: int, stop: int, *, limit: int) -> int:
        """Add batches from `offset` until `stop` is reached; none of them may pass `limit`."""
        while offset < stop:
            given, self._next = self._next or await anext(self._batches, None), None
            if given is None:
                raise InvalidArgumentError("the batches end too early", offset=offset)
            header, batch = given
            if header.next_offset > offset:
                if header.base_offset != offset or header.next_offset > limit:
                    raise InvalidArgumentError("the batches do not fit", offset=offset)
                await drafts.add(header, batch)
                offset = header.next_offset
        return offset


class RangeRepairer:
    def __init__(self, shared: Shared, progress: RangeProgress, files: SegmentFiles) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._key = progress.key
        self._progress = progress
        self._files = files
        self._repairing = asyncio.Lock()

    async def repair(self, span: CorruptSpan, batches: Batches) -> None:
        """See `RangeLog.repair`."""
        async with self._repairing, aclosing(_each_batch(batches)) as source:
            self._check_repairable()
            damage = self._damage_at(span)
            if damage is None:
                return
            drafts = Drafts(self._shared.disk, self._plan_drafts(), self._run_step)
            try:
                await self._draft(drafts, damage, span, GivenBatches(source))
                found = await drafts.close(damage.end)
                await self._shared.tasks.run(self._replace(damage, drafts, found))
            except (CorruptionError, OffsetOutOfRangeError):
                self._check_repairable()
                if self._is_there(damage):  # else it was trimmed meanwhile
                    raise
            finally:
                if not self._shared.closing:  # else the next open does it
                    self._shared.tasks.start(self._discard(drafts))

    def _check_repairable(self) -> None:
        progress = self._progress
        if self._shared.closing or progress.status is Status.REMOVED:
            raise progress.refusal()
        if progress.status is not Status.SEALED or not progress.metadata.final:
            raise StateError("only a final and complete range is repaired", **self._key._asdict())

    def _damage_at(self, span: CorruptSpan) -> Damage | None:
        front = self._progress.missing_front()
        if front is not None and span.start < front.end:
            return Damage(None, [front], front.end)
        segment = self._progress.segment_at(span.start)
        spans = [each for each in segment.spans if each.start < each.end]
        if not any(each.start < span.end and span.start < each.end for each in spans):
            return None
        return Damage(segment, spans, segment.end_offset)

    def _plan_drafts(self) -> DraftPlan:
        settings = self._settings
        return DraftPlan(
            folder=self._files.folder,
            binding_of=lambda base: binding_of(self._shared.store_uuid, self._key, base),
            segment_bytes_max=settings.segment_bytes_max,
            keep_free_bytes=0 if self._progress.metadata.reserved else settings.min_free_bytes,
            index_interval_bytes=settings.index_interval_bytes,
        )

    async def _run_step(self, work: Callable[[], T], /) -> T:
        return await self._shared.tasks.run(self._step(work))

    async def _step(self, work: Callable[[], T]) -> T:
        async with self._progress.exclusive:  # nobody removes the folder meanwhile
            self._check_repairable()
            return await self._shared.read_executor.run(work)

    async def _draft(
        self, drafts: Drafts, damage: Damage, span: CorruptSpan, given: GivenBatches
    ) -> None:
        first = await given.start(span.start)
        segment, spans, end = damage
        offset = segment.base if segment is not None else first
        drafts.start(offset)
        for each in spans if segment is not None else [CorruptSpan(first, end)]:
            if segment is not None:
                await self._keep(drafts, segment, offset, each.start)
            offset, stop = max(each.start, first), min(each.end, span.end)
            if each.start < offset:
                await drafts.skip_to(min(offset, each.end))
            if offset < stop:
                reached = await given.fill(drafts, offset, stop, limit=each.end)
                if reached < each.end:
                    await drafts.skip_to(each.end)
            elif offset < each.end:
                await drafts.skip_to(each.end)
            offset = each.end
        if segment is not None:
            await self._keep(drafts, segment, offset, end)

    async def _keep(self, drafts: Drafts, segment: Segment, offset: int, stop: int) -> None:
        """Take over what is intact."""
        while offset < stop:
            try:
                views = await self._files.read(segment, offset, stop=stop, max_bytes=_READ_BYTES)
            except FreshDamage as error:
                await self._files.rescan_damaged(segment, error)
                raise CorruptionError(
                    "more of the segment is damaged", path=segment.path, offset=offset
                ) from error
            for view in views:
                for header, batch in split(view):
                    await drafts.add(header, batch)
                    offset = header.next_offset

    async def _replace(self, damage: Damage, drafts: Drafts, found: Sequence[Checkpoint]) -> None:
        async with self._progress.exclusive:
            self._check_repairable()
            if not self._is_there(damage):
                return  # trimmed meanwhile
            await self._install(damage, drafts)
            new = [
                self._new_closed(draft.base, each)
                for draft, each in zip(drafts.files, found, strict=True)
            ]
            old = damage.segment
            kept = [segment for segment in self._progress.segments if segment is not old]
            self._progress.segments = sorted([*kept, *new], key=lambda segment: segment.base)
            if old is not None:
                self._shared.pool.discard(old)
            for segment in new:
                await self._save_new_index(segment)
            log.info("repaired", path=new[0].path, files=len(new))

    def _is_there(self, damage: Damage) -> bool:
        if damage.segment is not None:
            return damage.segment in self._progress.segments
        front = self._progress.missing_front()
        return front is not None and front.end == damage.end

    async def _install(self, damage: Damage, drafts: Drafts) -> None:
        await self._shared.journal.forget(*self._key)  # its records are for the bytes that go
        done: list[int] = []
        try:
            await self._shared.control_executor.run(drafts.install, done)
        except StorageError as error:
            if damage.segment is not None:
                damage.segment.saved_position = 0  # its index file may be gone
            if drafts.files[0].base not in done:
                raise
            log.warning("repair not synced", path=self._files.folder, error=str(error))

    def _new_closed(self, base: int, found: Checkpoint) -> Segment:
        binding = binding_of(self._shared.store_uuid, self._key, base)
        segment = Segment.from_checkpoint(self._key, self._files.folder, base, binding, found)
        segment.closed = True
        return segment

    async def _save_new_index(self, segment: Segment) -> None:
        try:
            await self._files.save_index(segment)
        except StorageError as error:  # recovery scans what has no index
            log.warning("index not saved", path=segment.index_path, error=str(error))

    async def _discard(self, drafts: Drafts) -> None:
        async with self._progress.exclusive:
            if self._progress.status is Status.REMOVED:
                return
            try:
                await self._shared.control_executor.run(drafts.discard)
            except StorageError as error:  # the next open does it
                log.warning("draft not removed", path=self._files.folder, error=str(error))


async def _each_batch(batches: Batches) -> AsyncGenerator[tuple[BatchHeader, memoryview]]:
    if isinstance(batches, AsyncIterable):
        views = aiter(batches)
        try:
            async for view in views:
                for each in _checked(view):
                    yield each
        finally:
            if isinstance(views, AsyncGenerator):  # now, not when it is collected
                await views.aclose()
    else:
        for view in batches:
            for each in _checked(view):
                yield each


def _checked(view: memoryview) -> Iterable[tuple[BatchHeader, memoryview]]:
    for header, batch in split(view):
        if not is_intact(header, batch):
            raise InvalidArgumentError("a batch is damaged", offset=header.base_offset)
        yield header, batch
