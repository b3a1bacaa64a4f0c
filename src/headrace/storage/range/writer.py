"""The writer of a range: the queue of its appends, their groups, acknowledgement, failure.

An append is queued (`append`), taken into a group (`take_write`), written and synced in a thread,
and acknowledged (`on_written`). A batch that is copied from another replica goes the same way. The
writer lives on the event loop; threads only ever see the values handed to them.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence

from headrace.errors import (
    DiskFullError,
    HeadraceError,
    StorageError,
    UnexpectedOffsetError,
)
from headrace.observability.logging import get_logger
from headrace.runtime import Buffer
from headrace.storage.range.progress import WRITABLE, RangeProgress, Status
from headrace.storage.segments.files import SegmentFiles
from headrace.storage.segments.formats import MARK_BYTES, Mark, binding_of, encode_mark
from headrace.storage.segments.segment import AppendedBatch, Segment, SegmentWrite
from headrace.storage.shared import RangeTail, Shared
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import verify

log = get_logger(__name__)

# The fields of a batch header (see wire.sbp.records) that an append needs: base_offset,
# batch_length, record_count, max_timestamp. Decoding all into an object took a third of the call.
_BATCH_FIELDS = struct.Struct(">xqi6xi8xq")
_LENGTH_END = 13  # batch_length counts from here


class RangeWriter:
    """The `SegmentWriter` of one range: group commit and journal call it."""

    def __init__(
        self,
        shared: Shared,
        progress: RangeProgress,
        files: SegmentFiles,
        tail: RangeTail,
        *,
        on_copied: Callable[[], None],
    ) -> None:
        """`on_copied` is called when everything below the end of a copied range is durable."""
        self.key = progress.key
        self.durability = progress.metadata.durability
        self._shared = shared
        self._settings = shared.settings
        self._segment_bytes_max = shared.settings.segment_bytes_max  # asked for every batch
        self._progress = progress
        self._files = files
        self._tail = tail
        self._on_copied = on_copied
        self._level = self.durability  # of its group commits; copies are always synced
        self._committer = shared.committers[self._level]
        self._pending: deque[AppendedBatch] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()  # for each of the pending ones
        self._writing: SegmentWrite | None = None
        self._idle = asyncio.Event()  # no write is under way
        self._idle.set()
        self._rolling = False
        self._saving = False
        self._mark_wanted = False
        if progress.metadata.incomplete:
            self.start_copying()

    @property
    def position(self) -> int:
        """Bytes written to the active segment file."""
        active = self._progress.active_segment()
        return active.position if active is not None else 0

    @property
    def journaled(self) -> bool:
        """Whether the journal holds the last group: nothing in the file needs to note it then."""
        active = self._progress.active_segment()
        return active is not None and self._shared.journal.holds(active)

    def append(
        self, header: bytearray, body: Sequence[Buffer], *, verified: bool = False
    ) -> asyncio.Future[None]:
        """Queue one batch; offsets follow the order of calls. The buffers now belong to the log.

        Refusals raise here. The result resolves when the range's durability level holds; with
        StorageError when the disk failed (the range then takes no more), with SealedError when the
        batch was still queued at a seal or behind a failed one. `verified` says that the caller has
        just computed or checked length and checksum.
        """
        progress = self._progress
        if progress.status is not Status.OPEN:
            raise progress.refusal()
        if not verified:
            verify(header, body)
        base_offset, length, record_count, max_timestamp = _BATCH_FIELDS.unpack_from(header)
        if base_offset != progress.next_offset:
            raise UnexpectedOffsetError(expected=progress.next_offset, found=base_offset)
        size = length + _LENGTH_END
        shared = self._shared
        shared.admit(size)
        end = base_offset + record_count
        done: asyncio.Future[None] = shared.loop.create_future()
        batch = AppendedBatch(header, body, base_offset, end, size, max_timestamp)
        progress.next_offset = end
        self._pending.append(batch)
        self._waiting.append(done)
        shared.cache.add(self._tail, batch)
        self._committer.submit(self)
        return done

    def copy(
        self, header: bytearray, body: Sequence[Buffer], *, verified: bool = False
    ) -> asyncio.Future[None]:
        """Queue one batch of another replica; see `RangeLog.copy`."""
        progress = self._progress
        if progress.status is not Status.COPYING:
            raise progress.refusal()
        if not verified:
            verify(header, body)
        base_offset, length, record_count, max_timestamp = _BATCH_FIELDS.unpack_from(header)
        end, expected = base_offset + record_count, progress.next_offset
        if end > progress.metadata.end:
            raise UnexpectedOffsetError("beyond the end", expected=progress.metadata.end, found=end)
        is_blank = not (progress.segments or self._pending or self._writing)
        if base_offset != expected and not (is_blank and base_offset < expected < end):
            raise UnexpectedOffsetError(expected=expected, found=base_offset)
        size = length + _LENGTH_END
        self._shared.admit(size)
        done: asyncio.Future[None] = self._shared.loop.create_future()
        # Not into the cache: old batches must not push the tails out of memory.
        self._pending.append(AppendedBatch(header, body, base_offset, end, size, max_timestamp))
        self._waiting.append(done)
        progress.next_offset = end
        self._committer.submit(self)
        return done

    def take_write(self, level: Durability, group: int, budget: int) -> SegmentWrite | None:
        """The next write of this range, for that level's committer; None when it has to wait.

        A mark of a `written` range goes to the other level's committer. An append that came
        meanwhile makes it needless, and is left to the range's own.

        A group never spans two segments: the old file is synced before the new one is created, so
        a segment that has a successor is known to be synced whole.
        """
        if self._rolling or not (self._pending or self._mark_wanted):
            return None
        if self._writing is not None:  # by the other level's committer; `on_written` comes back
            return None
        segment = self._progress.active_segment()
        if self._pending:
            if level is not self._level:
                self._mark_wanted = False
                return None
        elif segment is None or segment.synced_position < segment.position:
            self._mark_wanted = False  # it would tell of bytes that nobody has synced
            return None
        if segment is not None and self._pending and self._must_roll(segment, 0):
            if segment.synced_position < segment.position:
                self._rolling = True
                self._shared.tasks.start(self._sync_before_roll(segment))
                return None
            segment.closed = True
            self._shared.tasks.start(self._finish_segment(segment))
            segment = None
        create = segment is None
        if segment is None:
            segment = self._new_segment(self._pending[0].offset)
        self._mark_wanted = False
        write = self._build_write(segment, group, budget, create=create)
        self._writing = write
        self._idle.clear()
        return write

    def _build_write(
        self, segment: Segment, group: int, budget: int, *, create: bool
    ) -> SegmentWrite:
        mark = Mark(group, segment.synced_position, segment.end_offset)
        position = segment.position
        pieces: list[Buffer] = [encode_mark(mark, binding=segment.binding, position=position)]
        heads = pieces[:]
        batches: list[AppendedBatch] = []
        waiting: list[asyncio.Future[None]] = []
        taken = 0
        pending = self._pending
        while pending and not (batches and (taken >= budget or self._must_roll(segment, taken))):
            batch = pending.popleft()
            batches.append(batch)
            waiting.append(self._waiting.popleft())
            taken += batch.size
            heads.append(batch.header)
            pieces.append(batch.header)
            pieces.extend(batch.body)
        write = SegmentWrite(
            self, segment, batches, waiting, pieces, heads,
            position=position, size=MARK_BYTES + taken, group=group, create=create,
            sync=self._level is Durability.SYNCED or not batches,
            file=self._shared.pool.pin(segment),
        )  # fmt: skip
        self._plan_allocation(write)
        return write

    def _must_roll(self, segment: Segment, taken: int) -> bool:
        content = segment.content_bytes + taken
        return content > 0 and content + self._pending[0].size > self._segment_bytes_max

    def _plan_allocation(self, write: SegmentWrite) -> None:
        allocated = write.segment.allocated
        needed = write.position + write.size + MARK_BYTES  # the one that closes the group
        if needed <= allocated:
            return
        step = self._settings.preallocate_bytes_min
        write.allocate_least = -(-needed // step) * step
        doubled = min(max(2 * allocated, step), self._settings.segment_bytes_max)
        write.allocate_to = max(doubled, write.allocate_least)
        reserved = self._progress.metadata.reserved
        write.keep_free_bytes = 0 if reserved else self._settings.min_free_bytes

    def on_written(self, write: SegmentWrite) -> None:
        """The committer carried the write out, or failed to."""
        shared, segment = self._shared, write.segment
        self._writing = None
        shared.queued_bytes -= write.size - MARK_BYTES
        shared.pool.unpin(segment, write.file)
        if write.error is not None:
            if write.create:
                shared.pool.discard(segment)
            self._fail(write.error, write.waiting)
        else:
            self._acknowledge(write)
        if self._pending:
            self._committer.submit(self)
        elif self._mark_wanted:
            self.want_mark()
        self._idle.set()

    def abandon(self, write: SegmentWrite) -> None:
        """The committer was cancelled in the middle of the write; its outcome is unknown."""
        self._shared.pool.unpin(write.segment, write.file)
        if write.create:
            self._shared.pool.discard(write.segment)

    def _acknowledge(self, write: SegmentWrite) -> None:
        progress, segment = self._progress, write.segment
        if write.create:
            progress.segments.append(segment)
        segment.group = write.group
        segment.journal_generation = write.journal_generation if write.batches else -1
        segment.unnamed = write.journal_generation >= 0 and (write.create or segment.unnamed)
        segment.allocated = max(segment.allocated, write.allocate_to)
        segment.on_batches(
            write.batches, write.position + MARK_BYTES, self._settings.index_interval_bytes
        )
        if write.sync:
            segment.synced_position = segment.position
        self._shared.pages.note(segment, write.position)
        if not write.batches:
            return
        progress.durable_offset = segment.end_offset
        for batch, done in zip(write.batches, write.waiting, strict=True):
            batch.on_stored()
            if not done.done():  # a caller that was cancelled left it behind
                done.set_result(None)
        progress.advance()
        self._shared.active.note(self)
        if (
            segment.position - segment.saved_position >= self._settings.checkpoint_bytes
            and not self._saving
        ):
            self._saving = True
            self._shared.tasks.start(self._save_busy(segment))
        if progress.status is Status.COPYING and progress.durable_offset >= progress.metadata.end:
            self._on_copied()

    def _fail(self, error: HeadraceError, waiting: Sequence[asyncio.Future[None]]) -> None:
        """No offset may be skipped: what was queued behind the failed write cannot be stored."""
        progress = self._progress
        log.error(
            "range failed", stream_id=self.key.stream_id, range_index=self.key.range_index,
            durable_offset=progress.durable_offset, error=str(error),
        )  # fmt: skip
        if progress.status not in (Status.SEALED, Status.COPYING, Status.REMOVED):
            progress.status = Status.FAILED
        for done in waiting:
            if not done.done():
                done.set_exception(error)
        # The copy is tried again from the same place, over whatever the failed one left there.
        self._drop_pending(error if progress.status is Status.COPYING else None)
        self.forget_tail()
        progress.wake_everyone()

    def _drop_pending(self, error: HeadraceError | None = None) -> None:
        """Refuse what is queued but in no group yet."""
        error = error or self._progress.refusal()
        self._mark_wanted = False
        dropped = len(self._pending)
        for batch, done in zip(self._pending, self._waiting, strict=True):
            self._shared.queued_bytes -= batch.size
            if not done.done():
                done.set_exception(error)
        self._pending.clear()
        self._waiting.clear()
        in_flight = self._writing.batches if self._writing is not None else ()
        progress = self._progress
        progress.next_offset = in_flight[-1].end if in_flight else progress.durable_offset
        if dropped:
            self.forget_tail()

    def forget_tail(self) -> None:
        """Keep nothing of the range in memory."""
        self._shared.cache.forget(self._tail)

    def fail(self, error: StorageError) -> None:
        """Nothing of this range will be written any more."""
        if self._progress.status is Status.COPYING:
            self._progress.status = Status.FAILED
        self._fail(error, self._writing.waiting if self._writing is not None else ())

    async def close_mark(self) -> None:
        await self._shared.tasks.run(self._close_mark())

    async def _close_mark(self) -> None:
        """The range went quiet: note what is synced, so that damage to it is known as such."""
        async with self._progress.exclusive:
            active = self._progress.active_segment()
            if active is None or self._progress.status not in WRITABLE:
                return
            if active.synced_position < active.position:
                await self.sync_or_fail(active)
            grown = active.position - active.saved_position
            if grown >= self._settings.idle_checkpoint_bytes:
                await self._files.save_index(active)
            elif self._progress.status in WRITABLE:
                self.want_mark()

    def close_mark_nowait(self) -> bool:
        """As `close_mark` where a mark is all it takes; False where it is not.

        Ranges that go quiet together get their marks in one group.
        """
        progress = self._progress
        active = progress.active_segment()
        if active is None or progress.exclusive.locked() or progress.status not in WRITABLE:
            return False
        grown = active.position - active.saved_position
        if (
            active.synced_position < active.position
            or grown >= self._settings.idle_checkpoint_bytes
        ):
            return False
        self.want_mark()
        return True

    def want_mark(self) -> None:
        """A mark is synced whatever the range's level: what it tells has to be there with it."""
        self._mark_wanted = True
        self._shared.committers[Durability.SYNCED].submit(self)

    # Ending and going on, for the range's control operations

    def refuse_appends(self) -> None:
        """The store closes; what is queued is still written."""
        if self._progress.status in WRITABLE:
            self._progress.status = Status.CLOSED
        self._progress.wake_everyone()

    async def stop(self) -> None:
        """Refuse what is queued, and await what is being written."""
        self._progress.status = Status.SEALING
        self._drop_pending()
        await self._idle.wait()

    async def wait_idle(self) -> None:
        """Await what is being written; a mark that is still wanted is not."""
        self._mark_wanted = False
        await self._idle.wait()

    def on_sealed(self) -> None:
        """The range ends at what is durable; its last segment is closed behind this call."""
        progress, shared = self._progress, self._shared
        active = progress.active_segment()
        progress.status = Status.SEALED
        progress.next_offset = progress.durable_offset
        shared.active.forget(self)
        progress.wake_everyone()
        if active is not None:
            active.closed = True
            shared.tasks.start(self._finish_segment(active))

    def start_copying(self, *, reopen: bool = True) -> None:
        """Write again, behind what is there; synced, because a copy is waited for once."""
        self._progress.status = Status.COPYING
        self._level = Durability.SYNCED
        self._committer = self._shared.committers[self._level]
        segments = self._progress.segments
        if segments and reopen:  # where a segment ends depends on its content alone
            segments[-1].closed = False

    def refuse_everything(self) -> None:
        """Refuse everything from now on."""
        self._progress.status = Status.REMOVED
        self._drop_pending()
        self._shared.active.forget(self)
        self._progress.wake_everyone()

    async def sync(self) -> None:
        """Make durable what was appended so far; see `RangeLog.sync`."""
        progress = self._progress
        target = progress.next_offset
        while progress.durable_offset < target:
            if progress.status in (Status.FAILED, Status.REMOVED):
                raise progress.refusal()
            if progress.status is not Status.OPEN:  # a seal drops what it cannot keep
                break
            await progress.wait_durable(target - 1)
        active = progress.active_segment()
        if active is not None and active.synced_position < active.position:
            await self.sync_or_fail(active)

    def _new_segment(self, base: int) -> Segment:
        binding = binding_of(self._shared.store_uuid, self.key, base)
        return Segment(self.key, self._files.folder, base, binding)

    async def _sync_before_roll(self, segment: Segment) -> None:
        try:
            await self.sync_or_fail(segment)
        finally:
            self._rolling = False
            if self._pending:
                self._committer.submit(self)

    async def sync_or_fail(self, segment: Segment) -> None:
        try:
            await self._files.sync(segment)
        except StorageError as error:
            self._fail(error, ())
            raise

    async def _save_busy(self, segment: Segment) -> None:
        try:
            async with self._progress.exclusive:
                await self._files.save_index(segment)
        except DiskFullError as error:
            log.warning("index not saved", path=segment.index_path, error=str(error))
        finally:
            self._saving = False

    async def _finish_segment(self, segment: Segment) -> None:
        try:
            async with self._progress.exclusive:
                if segment.closed:  # a copy may have opened it again meanwhile
                    await self._files.finish(segment)
        except StorageError as error:  # recovery scans what has no index
            log.warning("index not saved", path=segment.index_path, error=str(error))
