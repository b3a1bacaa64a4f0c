"""The redo journal: one file that makes a group of writes to many files durable with one sync.

A group commit has two ways to the same promise:

* directly: write and sync every dirty file, in parallel. Each sync waits for the file system's own
  metadata, because the file has grown; over many files latency grows with their number.
* through the journal: write every file without a sync, write the same bytes to the journal, sync
  that one file, acknowledge. The files are synced behind. The journal's blocks have been written
  before, so its sync has nothing but bytes to wait for, and even a single file gains a little; but
  all bytes are written twice, so groups with much to a file, and more than a little to only one, go
  the direct way.

Whatever is in the journal counts as synced everywhere else (marks, checkpoints, closed segments),
because recovery replays it before it looks at a segment. The one duty that comes with it: a half of
the journal is used again only after every file that its records name, and every name they gave, has
been synced. What fills a half once is a *generation*; while one is written, the files of the one
before it are synced in the background. When that takes too long groups go the direct way until it
is done.

A failed write of the journal costs speed alone: the group's files are synced directly, and so is
everything after it until the next open. A file that cannot be synced behind fails its range and
keeps its generation: the bytes stay in the journal for the next open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import StorageSettings
from headrace.errors import HeadraceError, StorageError
from headrace.observability.logging import get_logger
from headrace.runtime import Buffer, Disk, Executor, File
from headrace.storage.journal.records import (
    ALL_RANGES,
    RECORD_BYTES,
    JournalLayout,
    JournalNote,
    JournalRecord,
    RecordKind,
    checksum,
    half_of,
    seed_of,
)
from headrace.storage.journal.replay import Replayed, write_note
from headrace.storage.layout import JOURNAL, RangeKey
from headrace.storage.segments.open_files import FilePool
from headrace.storage.segments.segment import (
    Segment,
    SegmentWrite,
    SegmentWriter,
    carry_out,
    sync_directly,
)

log = get_logger(__name__)

DRAFT_SUFFIX = ".new"
_SYNC_AT_ONCE = 16  # files that one call of a thread syncs, one after the other
_SYNC_THREADS = 2  # the disk is to be free for the groups that somebody waits for


@dataclass(slots=True, eq=False)
class Generation:
    number: int
    first: int  # its first group
    files: dict[Segment, SegmentWriter] = field(default_factory=dict)


class Journal:
    """Used from the event loop; its own file work runs in the commit threads."""

    def __init__(
        self,
        disk: Disk,
        executor: Executor,
        pool: FilePool,
        tasks: TaskSet,
        *,
        folder: str,
        store_uuid: UUID,
        settings: StorageSettings,
        replayed: Replayed,
        on_unprotected: Callable[[SegmentWriter], None],
    ) -> None:
        """`on_unprotected` is told of ranges whose last group is no longer in the journal, while
        nothing in their files says that it was synced."""
        self._disk = disk
        self._executor = executor
        self._pool = pool
        self._tasks = tasks
        self._folder = folder
        self._seed = seed_of(store_uuid)
        self._settings = settings
        self._on_unprotected = on_unprotected
        self._layout = JournalLayout(self._seed, half_of(settings.journal_bytes))
        self._file: File | None = None
        self._wanted = 0
        self._preparing = False
        self._usable = settings.journal_files_min > 0
        self._generations = deque(
            [Generation(replayed.next_generation, 0)]
        )  # one or two; the last one is written
        self._position = self._layout.start(replayed.next_generation)
        self._next_group = 0
        self._writing = asyncio.Lock()  # a group is written after the one before it was synced
        self._retiring: asyncio.Task[bool] | None = None
        self._seen = 0
        self.groups_written = 0
        self.bytes_written = 0
        self.generations_retired = 0
        self._replayed = replayed

    # What the committer asks

    def takes(self, writes: Sequence[SegmentWrite]) -> bool:
        """Whether this group goes through the journal."""
        if not self._usable or len(writes) < self._settings.journal_files_min:
            return False
        if self._writing.locked():  # it is being emptied: nobody waits for that
            return False
        size = sum(write.size for write in writes) + RECORD_BYTES * len(writes)
        if size > self._settings.journal_file_bytes_max * len(writes):
            return False
        if len(writes) == 1 and size > self._settings.journal_single_bytes_max:
            return False
        if self._file is None:
            self._want_file(len(writes))
            return False
        return size <= self._layout.half_bytes and self._make_room(size)

    async def commit(self, writes: Sequence[SegmentWrite]) -> None:
        """Make the writes durable; each write's `error` tells its own outcome."""
        async with self._writing:
            generation = self._generations[-1]
            end = await self._executor.run(
                self._write_group, writes, generation.number, self._next_group, self._position
            )
            if end < 0:
                self._give_up("journal not written")
                return
            for write in writes:
                if write.error is None:
                    write.journal_generation = generation.number
                    generation.files[write.segment] = write.writer
            self._advance(end)

    def holds(self, segment: Segment) -> bool:
        """Whether the last group of the file is in the journal: nothing needs to note it then."""
        return segment.journal_generation >= self._generations[0].number

    # In a thread

    def _write_group(
        self, writes: Sequence[SegmentWrite], generation: int, group: int, start: int
    ) -> int:
        """Returns where the next group starts, -1 when the journal failed."""
        carry_out(self._disk, writes, sync=False)
        good = [write for write in writes if write.error is None]
        if not good:
            return start
        pieces: list[Buffer] = []
        at = start
        for index, write in enumerate(good):
            record = JournalRecord(
                generation, group, index, len(good), write.segment.key, write.segment.base,
                write.position, write.end_offset, RecordKind.WRITE, write.size,
                checksum(write.heads),
            )  # fmt: skip
            pieces.append(self._layout.encode_record(record, at))
            pieces.extend(write.pieces)
            at += RECORD_BYTES + write.size
        if self._append(pieces, start):
            return at
        sync_directly(self._disk, good)
        return -1

    def _append(self, pieces: Sequence[Buffer], at: int) -> bool:
        assert self._file is not None
        try:
            self._file.pwrite(pieces, at)
            self._file.sync_data()
        except StorageError as error:
            log.error("journal not written", error=str(error))
            return False
        return True

    # Generations

    def _make_room(self, size: int) -> bool:
        generation = self._generations[-1]
        if self._position + size <= self._layout.end(generation.number):
            return True
        if len(self._generations) > 1:
            return False
        self._turn()
        return True

    def _turn(self) -> None:
        """Start the next generation; its half is free, because only one generation is needed."""
        old = self._generations[-1]
        following = Generation(old.number + 1, self._next_group)
        self._generations.append(following)
        self._position = self._layout.start(following.number)
        self._retiring = self._tasks.start(self._retire(old, following))

    def _advance(self, end: int) -> None:
        if end == self._position:
            return
        self.groups_written += 1
        self.bytes_written += end - self._position
        self._position = end
        self._next_group += 1

    async def _retire(self, generation: Generation, following: Generation) -> bool:
        """Sync every file that the generation names, then let its half be used again."""
        waiting = iter(list(generation.files.items()))
        results = await asyncio.gather(
            *(self._sync_some(waiting) for _ in range(_SYNC_THREADS)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, HeadraceError):
                self._give_up(f"generation kept: {result}")
                return False
            if result is not None:
                raise result
        note = JournalNote(following.number, following.first, self._layout.half_bytes)
        assert self._file is not None
        try:
            await self._executor.run(write_note, self._file, self._seed, note)
        except StorageError as error:
            self._give_up(f"generation kept: {error}")
            return False
        if following is not self._generations[-1]:
            self._generations.append(following)
        self._generations.popleft()
        self.generations_retired += 1
        for segment, writer in generation.files.items():
            if segment.journal_generation == generation.number:
                segment.journal_generation = -1
                self._on_unprotected(writer)
        return True

    async def _sync_some(self, waiting: Iterator[tuple[Segment, SegmentWriter]]) -> None:
        while chunk := list(islice(waiting, _SYNC_AT_ONCE)):
            jobs = [
                _Job(segment, writer, self._pool.pin(segment))
                for segment, writer in chunk
                if not segment.removed
            ]
            try:
                await self._executor.run(_sync_files, self._disk, jobs)
            finally:
                for job in jobs:
                    self._pool.unpin(job.segment, job.file)
            for job in jobs:
                if job.error is None:
                    job.segment.unnamed = False
                elif not job.segment.removed:
                    job.writer.fail(StorageError(f"not synced behind the journal: {job.error}"))
                    raise job.error

    async def empty(self) -> None:
        """Sync everything that the journal names and leave it empty."""
        async with self._writing:
            await self._wait_retired()
            generation = self._generations[-1]
            if not self._usable or self._file is None or self._next_group == generation.first:
                return
            # In the same half: nothing is left in either, and a file that grew no further is small.
            following = Generation(generation.number + 2, self._next_group)
            if await self._retire(generation, following):
                self._position = self._layout.start(following.number)

    async def empty_if_idle(self) -> None:
        """Settle when nothing was written since the last call: a kill then costs no replay."""
        seen, self._seen = self._seen, self.groups_written
        if seen == self.groups_written:
            await self.empty()

    async def _wait_retired(self) -> None:
        if self._retiring is not None:
            await asyncio.shield(self._retiring)

    async def forget(self, stream_id: int, range_index: int = ALL_RANGES) -> None:
        """No earlier record of this stream (or range) is replayed any more; durable on return.

        For files that were removed for good, or are about to be replaced by other bytes: these are
        synced first.
        """
        if not self._named(stream_id, range_index):
            return
        async with self._writing:
            await self._wait_retired()
            if self._usable and self._position + RECORD_BYTES > self._layout.end(
                self._generations[-1].number
            ):
                self._turn()
                await self._wait_retired()
            named = self._named(stream_id, range_index)
            if named and not (self._usable and await self._append_forget(stream_id, range_index)):
                await self._discard()

    async def _append_forget(self, stream_id: int, range_index: int) -> bool:
        generation = self._generations[-1]
        named = self._named(stream_id, range_index)
        await self._sync_some(iter(named))
        record = JournalRecord(
            generation.number, self._next_group, 0, 1, RangeKey(stream_id, range_index), 0, 0, 0,
            RecordKind.FORGET, 0, 0,
        )  # fmt: skip
        header = self._layout.encode_record(record, self._position)
        if not await self._executor.run(self._append, [header], self._position):
            self._give_up("journal not written")
            return False
        for segment, _ in named:
            del generation.files[segment]
            segment.journal_generation = -1
        self._advance(self._position + RECORD_BYTES)
        return True

    async def _discard(self) -> None:
        """The journal failed: sync everything that it names, and remove it."""
        for generation in self._generations:
            await self._sync_some(iter(list(generation.files.items())))
        path = f"{self._folder}/{JOURNAL}"
        self.release()
        await self._executor.run(self._disk.remove, path)
        await self._executor.run(self._disk.sync_folder, self._folder)
        self._generations = deque([Generation(self._generations[-1].number + 1, 0)])

    def _named(self, stream_id: int, range_index: int) -> list[tuple[Segment, SegmentWriter]]:
        return [
            (segment, writer)
            for generation in self._generations
            for segment, writer in generation.files.items()
            if segment.key.stream_id == stream_id
            and range_index in (ALL_RANGES, segment.key.range_index)
        ]

    def _give_up(self, why: str) -> None:
        log.error("journal given up until the next open", why=why)
        self._usable = False

    # The file

    def _want_file(self, writes: int) -> None:
        """A store that is hardly written to needs none."""
        self._wanted += writes
        if self._wanted >= self._settings.journal_start_writes and not self._preparing:
            self._preparing = True
            self._tasks.start(self._prepare())

    async def _prepare(self) -> None:
        try:
            self._file = await self._executor.run(self._open)
        except HeadraceError as error:
            self._give_up(str(error))
        finally:
            self._preparing = False

    def _open(self) -> File:
        """The journal's file, made when there is none of this size. It holds nothing needed."""
        path = f"{self._folder}/{JOURNAL}"
        if self._replayed.half_bytes == self._layout.half_bytes:
            return self._disk.open(path)
        self._disk.remove(path)
        free = self._disk.free_bytes(self._folder) - self._settings.min_free_bytes
        if free < self._layout.size:
            raise StorageError("too little disk space for the journal", free=free)
        # Under another name until its note is there: a file without one counts as damaged.
        draft = f"{path}{DRAFT_SUFFIX}"
        self._disk.remove(draft)
        file = self._disk.open(draft, create=True)
        try:
            file.fill(0, self._layout.size)
            write_note(
                file,
                self._seed,
                JournalNote(self._generations[-1].number, 0, self._layout.half_bytes),
            )
        finally:
            file.close()
        self._disk.rename(draft, path)
        self._disk.sync_folder(self._folder)
        return self._disk.open(path)

    async def close(self) -> None:
        """Settle, and let go of the file."""
        await self.empty()
        self.release()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._usable = False

    def statistics(self) -> dict[str, int]:
        return {
            "journal_groups": self.groups_written,
            "journal_bytes": self.bytes_written,
            "journal_laps": self.generations_retired,
            "journal_replayed": self._replayed.records,
            "journal_damaged": self._replayed.damaged,
        }


@dataclass(slots=True, eq=False)
class _Job:
    segment: Segment
    writer: SegmentWriter
    file: File | None
    error: HeadraceError | None = None


def _sync_files(disk: Disk, jobs: Sequence[_Job]) -> None:
    for job in jobs:
        opened: File | None = None  # closed again: it must not push a busy file out of the pool
        try:
            file = job.file or (opened := disk.open(job.segment.path))
            file.sync_data()
            if job.segment.unnamed:
                disk.sync_folder(job.segment.folder)
        except HeadraceError as error:
            job.error = error
        finally:
            if opened is not None:
                opened.close()
