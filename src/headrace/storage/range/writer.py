"""The write half of a range: queue, group, acknowledgement, failure.

Offsets and states live on the event loop; threads only ever see the values handed to them. An
append is queued (`append`), taken into a group (`take_write`), written and synced in a thread, and
acknowledged (`on_written`). A batch that is copied from another replica goes the same way.

Two offsets end what a range holds. Below `durable_offset` lies what this disk keeps by the range's
durability level; below `committed_offset` what enough replicas keep, which alone may be read. They
are one while this node's copy suffices, and again once the placement manager has decided the end
and enough replicas hold it.

Tasks that wait until an offset is reached.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from enum import Enum

import msgspec

from headrace.errors import (
    DiskFullError,
    HeadraceError,
    RangeNotFoundError,
    SealedError,
    StorageError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.observability.logging import get_logger
from headrace.runtime import Buffer
from headrace.storage.group_commit import Committer
from headrace.storage.range.recovery import RecoveredRange
from headrace.storage.range.tail_cache import Batch, RangeTail
from headrace.storage.segments.io import SegmentIO
from headrace.storage.segments.marks import MARK_BYTES, Mark, binding_of, encode_mark
from headrace.storage.segments.segment import Segment, SegmentWrite
from headrace.storage.shared import Shared
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import verify


class Waiters:
    __slots__ = ("_offsets",)

    def __init__(self) -> None:
        self._offsets: dict[asyncio.Future[None], int] = {}

    async def wait(self, offset: int) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._offsets[waiter] = offset
        try:
            await waiter
        finally:
            self._offsets.pop(waiter, None)

    def wake(self, reached: int) -> None:
        """Whoever waits for an offset below `reached`."""
        if not self._offsets:
            return
        for waiter, offset in list(self._offsets.items()):
            if offset < reached and not waiter.done():
                waiter.set_result(None)


log = get_logger(__name__)

# The fields of a batch header (see wire.sbp.records) that an append needs: base_offset,
# batch_length, record_count, max_timestamp. Decoding all into an object took a third of the call.
_BATCH_FIELDS = struct.Struct(">xqi6xi8xq")
_LENGTH_END = 13  # batch_length counts from here
NO_LIMIT = 1 << 63  # above every offset


class Status(Enum):
    OPEN = "open"
    SEALING = "sealing"  # refuses appends, not yet persisted
    SEALED = "sealed"
    COPYING = "being copied"  # sealed at a decided end that this disk has not reached
    FAILED = "failed"  # a write or sync failed
    REMOVED = "removed"
    CLOSED = "closed"  # the store stops


_WRITABLE = (Status.OPEN, Status.COPYING)


def readable_limit(doubtful: int) -> int:
    return NO_LIMIT if doubtful < 0 else doubtful


class RangeWriter:
    def __init__(self, shared: Shared, recovered: RecoveredRange) -> None:
        metadata = recovered.metadata
        self.key = recovered.key
        self.start_offset = metadata.start
        self.next_offset = recovered.next_offset  # written or queued
        self.durable_offset = recovered.next_offset  # on this disk
        # Which offsets were committed before a restart is known only where nobody else is asked.
        alone = metadata.final or metadata.ack_quorum == 1
        self._commit_limit = readable_limit(metadata.doubtful) if alone else metadata.start
        self.committed_offset = min(self.durable_offset, self._commit_limit)
        self._shared = shared
        self._settings = shared.settings
        self._metadata = metadata
        self._io = SegmentIO(shared, recovered.folder)
        self._segments = recovered.segments
        self._truncated_bytes = recovered.truncated_bytes
        self._status = Status.SEALED if metadata.sealed else Status.OPEN
        self._committer = shared.committers[metadata.durability]
        self._syncs = metadata.durability is Durability.SYNCED  # before an acknowledgement
        if metadata.incomplete:
            self._start_copying()
        self._tail = RangeTail()
        self._pending: deque[Batch] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()  # for each of the pending ones
        self._writing: SegmentWrite | None = None
        self._settled = asyncio.Event()  # no write is under way
        self._settled.set()
        self._rolling = False
        self._saving = False
        self._mark_wanted = False
        self._control = asyncio.Lock()
        self._readers = Waiters()  # for committed offsets
        self._syncers = Waiters()  # for durable offsets
        if recovered.tail_bytes:
            shared.active.note(self)

    @property
    def end_offset(self) -> int:
        return self._metadata.end

    @property
    def writer_epoch(self) -> int:
        return self._metadata.writer_epoch

    @property
    def durability(self) -> Durability:
        return self._metadata.durability

    @property
    def sealed(self) -> bool:
        return self._metadata.sealed

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._metadata.replicas

    @property
    def ack_quorum(self) -> int:
        return self._metadata.ack_quorum

    @property
    def final(self) -> bool:
        """Sealed, and the end is decided: here where one copy suffices, else by `finish`."""
        return self._metadata.final

    @property
    def doubtful(self) -> int:
        """From here on too few replicas may hold a final range for it to be read; -1: nowhere."""
        return self._metadata.doubtful

    @property
    def missing(self) -> tuple[int, int] | None:
        """[next offset, end) of a final range that `copy` has not filled durably yet."""
        if self._metadata.incomplete and self.durable_offset < self._metadata.end:
            return self.next_offset, self._metadata.end
        return None

    @property
    def failed(self) -> bool:
        return self._status is Status.FAILED

    @property
    def position(self) -> int:
        """Bytes written to the active segment file."""
        active = self._active()
        return active.position if active is not None else 0

    @property
    def journaled(self) -> bool:
        """Whether the journal holds the last group: nothing in the file needs to note it then."""
        active = self._active()
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
        if self._status is not Status.OPEN:
            raise self._refusal()
        if not verified:
            verify(header, body)
        base_offset, length, record_count, max_timestamp = _BATCH_FIELDS.unpack_from(header)
        if base_offset != self.next_offset:
            raise UnexpectedOffsetError(expected=self.next_offset, found=base_offset)
        size = length + _LENGTH_END
        shared = self._shared
        shared.admit(size)
        end = base_offset + record_count
        done: asyncio.Future[None] = shared.loop.create_future()
        batch = Batch(header, body, base_offset, end, size, max_timestamp)
        self.next_offset = end
        self._pending.append(batch)
        self._waiting.append(done)
        shared.cache.add(self._tail, batch)
        self._committer.submit(self)
        return done

    def copy(
        self, header: bytearray, body: Sequence[Buffer], *, verified: bool = False
    ) -> asyncio.Future[None]:
        """Queue a batch of another replica, in offset order, while the range is `missing` some.

        Resolves when it is synced, whatever the range's level. The first one of a range that holds
        nothing may start before the range does: trimming stops inside batches. After a StorageError
        it may be tried again from `missing` on.
        """
        if self._status is not Status.COPYING:
            raise self._refusal()
        if not verified:
            verify(header, body)
        base_offset, length, record_count, max_timestamp = _BATCH_FIELDS.unpack_from(header)
        end, expected = base_offset + record_count, self.next_offset
        if end > self._metadata.end:
            raise UnexpectedOffsetError("beyond the end", expected=self._metadata.end, found=end)
        is_blank = not (self._segments or self._pending or self._writing)
        if base_offset != expected and not (is_blank and base_offset < expected < end):
            raise UnexpectedOffsetError(expected=expected, found=base_offset)
        size = length + _LENGTH_END
        self._shared.admit(size)
        done: asyncio.Future[None] = self._shared.loop.create_future()
        # Not into the cache: old batches must not push the tails out of memory.
        self._pending.append(Batch(header, body, base_offset, end, size, max_timestamp))
        self._waiting.append(done)
        self.next_offset = end
        self._committer.submit(self)
        return done

    def take_write(self, committer: Committer, group: int, budget: int) -> SegmentWrite | None:
        """The next write of this range, for the committer; None when it has to wait.

        A mark of a `written` range goes to the other level's committer. An append that came
        meanwhile makes it needless, and is left to the range's own.

        A group never spans two segments: the old file is synced before the new one is created, so
        a segment that has a successor is known to be synced whole.
        """
        if self._rolling or not (self._pending or self._mark_wanted):
            return None
        if self._writing is not None:  # by the other level's committer; `on_written` comes back
            return None
        segment = self._active()
        if self._pending:
            if committer is not self._committer:
                self._mark_wanted = False
                return None
        elif segment is None or segment.synced_position < segment.position:
            self._mark_wanted = False  # it would tell of bytes that nobody has synced
            return None
        if segment is not None and self._pending and self._must_roll(segment, 0):
            if segment.synced_position < segment.position:
                self._rolling = True
                self._shared.tasks.spawn(self._sync_before_roll(segment))
                return None
            segment.closed = True
            self._shared.tasks.spawn(self._finish_segment(segment))
            segment = None
        create = segment is None
        if segment is None:
            segment = self._new_segment(self._pending[0].offset)
        self._mark_wanted = False
        write = self._build_write(segment, group, budget, create=create)
        self._writing = write
        self._settled.clear()
        return write

    def _build_write(
        self, segment: Segment, group: int, budget: int, *, create: bool
    ) -> SegmentWrite:
        mark = Mark(group, segment.synced_position, segment.end_offset)
        position = segment.position
        pieces: list[Buffer] = [encode_mark(mark, binding=segment.binding, position=position)]
        heads = pieces[:]
        batches: list[Batch] = []
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
            sync=self._syncs or not batches,
            file=self._shared.pool.pin(segment),
        )  # fmt: skip
        self._plan_allocation(write)
        return write

    def _must_roll(self, segment: Segment, taken: int) -> bool:
        content = segment.content_bytes + taken
        return content > 0 and content + self._pending[0].size > self._settings.segment_bytes_max

    def _plan_allocation(self, write: SegmentWrite) -> None:
        allocated = write.segment.allocated
        needed = write.position + write.size + MARK_BYTES  # the one that closes the group
        if needed <= allocated:
            return
        step = self._settings.preallocate_bytes_min
        write.allocate_least = -(-needed // step) * step
        doubled = min(max(2 * allocated, step), self._settings.segment_bytes_max)
        write.allocate_to = max(doubled, write.allocate_least)
        write.keep_free_bytes = 0 if self._metadata.reserved else self._settings.min_free_bytes

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
            self._want_mark()
        self._settled.set()

    def abandon(self, write: SegmentWrite) -> None:
        """The committer was cancelled in the middle of the write; its outcome is unknown."""
        self._shared.pool.unpin(write.segment, write.file)
        if write.create:
            self._shared.pool.discard(write.segment)

    def _acknowledge(self, write: SegmentWrite) -> None:
        segment = write.segment
        if write.create:
            self._segments.append(segment)
        segment.group = write.group
        segment.lap = write.lap if write.batches else -1
        segment.unnamed = write.lap >= 0 and (write.create or segment.unnamed)
        segment.allocated = max(segment.allocated, write.allocate_to)
        segment.on_batches(
            write.batches, write.position + MARK_BYTES, self._settings.index_interval_bytes
        )
        if write.sync:
            segment.synced_position = segment.position
        self._shared.pages.note(segment, write.position)
        if not write.batches:
            return
        self.durable_offset = segment.end_offset
        for batch, done in zip(write.batches, write.waiting, strict=True):
            batch.on_stored()
            if not done.done():  # a caller that was cancelled left it behind
                done.set_result(None)
        self._advance()
        self._shared.active.note(self)
        if (
            segment.position - segment.saved_position >= self._settings.checkpoint_bytes
            and not self._saving
        ):
            self._saving = True
            self._shared.tasks.spawn(self._save_busy(segment))
        if self._status is Status.COPYING and self.durable_offset >= self._metadata.end:
            self._shared.tasks.spawn(self._complete())

    def set_committed(self, offset: int) -> None:
        """The primary says so; offsets that this disk does not hold yet count once it does.

        Never falls. Without effect where nobody has to be asked: one copy suffices, or final.
        """
        if offset > self._commit_limit:
            self._commit_limit = offset
            self._advance()

    def _advance(self) -> None:
        """`durable_offset` or the limit rose."""
        self._syncers.wake(self.durable_offset)
        committed = min(self.durable_offset, self._commit_limit)
        if committed > self.committed_offset:
            self.committed_offset = committed
            self._readers.wake(committed)

    def _fail(self, error: HeadraceError, waiting: Sequence[asyncio.Future[None]]) -> None:
        """No offset may be skipped: what was queued behind the failed write cannot be stored."""
        log.error(
            "range failed", stream_id=self.key.stream_id, range_index=self.key.range_index,
            durable_offset=self.durable_offset, error=str(error),
        )  # fmt: skip
        if self._status not in (Status.SEALED, Status.COPYING, Status.REMOVED):
            self._status = Status.FAILED
        for done in waiting:
            if not done.done():
                done.set_exception(error)
        # The copy is tried again from the same place, over whatever the failed one left there.
        self._drop_pending(error if self._status is Status.COPYING else None)
        self._shared.cache.forget(self._tail)
        self._wake_everyone()

    def _drop_pending(self, error: HeadraceError | None = None) -> None:
        """Refuse what is queued but in no group yet."""
        error = error or self._refusal()
        self._mark_wanted = False
        dropped = len(self._pending)
        for batch, done in zip(self._pending, self._waiting, strict=True):
            self._shared.queued_bytes -= batch.size
            if not done.done():
                done.set_exception(error)
        self._pending.clear()
        self._waiting.clear()
        in_flight = self._writing.batches if self._writing is not None else ()
        self.next_offset = in_flight[-1].end if in_flight else self.durable_offset
        if dropped:
            self._shared.cache.forget(self._tail)

    def _refusal(self) -> HeadraceError:
        data = {"stream_id": self.key.stream_id, "range_index": self.key.range_index}
        if self._status is Status.REMOVED:
            return RangeNotFoundError("the stream was deleted", **data)
        if self._status is Status.CLOSED:
            return UnavailableError("the store is closing", **data)
        return SealedError(f"the range is {self._status.value}", **data)

    async def wait_for(self, offset: int) -> None:
        """Until `offset` can be read, or never will be here (sealed, failed, deleted, closing)."""
        while self.committed_offset <= offset and self._status is Status.OPEN:
            await self._readers.wait(offset)

    def _wake_everyone(self) -> None:
        self._readers.wake(NO_LIMIT)
        self._syncers.wake(NO_LIMIT)

    def fail(self, error: StorageError) -> None:
        """Nothing of this range will be written any more."""
        if self._status is Status.COPYING:
            self._status = Status.FAILED
        self._fail(error, self._writing.waiting if self._writing is not None else ())

    async def close_mark(self) -> None:
        await self._shared.tasks.run(self._close_mark())

    async def _close_mark(self) -> None:
        """The range went quiet: note what is synced, so that damage to it is known as such."""
        async with self._control:
            active = self._active()
            if active is None or self._status not in _WRITABLE:
                return
            if active.synced_position < active.position:
                await self._sync_or_fail(active)
            grown = active.position - active.saved_position
            if grown >= self._settings.idle_checkpoint_bytes:
                await self._io.save_index(active)
            elif self._status in _WRITABLE:
                self._want_mark()

    def close_mark_nowait(self) -> bool:
        """As `close_mark` where a mark is all it takes; False where it is not.

        Ranges that go quiet together get their marks in one group.
        """
        active = self._active()
        if active is None or self._control.locked() or self._status not in _WRITABLE:
            return False
        grown = active.position - active.saved_position
        if (
            active.synced_position < active.position
            or grown >= self._settings.idle_checkpoint_bytes
        ):
            return False
        self._want_mark()
        return True

    def _want_mark(self) -> None:
        """A mark is synced whatever the range's level: what it tells has to be there with it."""
        self._mark_wanted = True
        self._shared.committers[Durability.SYNCED].submit(self)

    def refuse_appends(self) -> None:
        """The store closes; what is queued is still written."""
        if self._status in _WRITABLE:
            self._status = Status.CLOSED
        self._wake_everyone()

    def _start_copying(self, *, reopen: bool = True) -> None:
        """Write again, behind what is there; synced, because a copy is waited for once."""
        self._status = Status.COPYING
        self._syncs = True
        self._committer = self._shared.committers[Durability.SYNCED]
        if self._segments and reopen:  # where a segment ends depends on its content alone
            self._segments[-1].closed = False

    async def _complete(self) -> None:
        """Everything below the end is synced: from now on this is a sealed range like others."""
        try:
            async with self._control:
                self._mark_wanted = False
                await self._settled.wait()
                if self._status is Status.COPYING:
                    await self._close_copied()
        except StorageError as error:  # the next open finds it complete
            log.warning("copied range not closed", path=self._io.folder, error=str(error))

    async def _close_copied(self) -> None:
        active = self._active()
        if active is not None:
            active.closed = True
            await self._io.finish(active)
        metadata = msgspec.structs.replace(self._metadata, incomplete=False)
        await self._io.save_metadata(metadata)
        self._metadata = metadata
        self._status = Status.SEALED
        self._shared.active.forget(self)

    def _active(self) -> Segment | None:
        if self._segments and not self._segments[-1].closed:
            return self._segments[-1]
        return None

    def _new_segment(self, base: int) -> Segment:
        binding = binding_of(self._shared.store_uuid, self.key, base)
        return Segment(self.key, self._io.folder, base, binding)

    async def _sync_before_roll(self, segment: Segment) -> None:
        try:
            await self._sync_or_fail(segment)
        finally:
            self._rolling = False
            if self._pending:
                self._committer.submit(self)

    async def _sync_or_fail(self, segment: Segment) -> None:
        try:
            await self._io.sync(segment)
        except StorageError as error:
            self._fail(error, ())
            raise

    async def _save_busy(self, segment: Segment) -> None:
        try:
            async with self._control:
                await self._io.save_index(segment)
        except DiskFullError as error:
            log.warning("index not saved", path=segment.index_path, error=str(error))
        finally:
            self._saving = False

    async def _finish_segment(self, segment: Segment) -> None:
        try:
            async with self._control:
                if segment.closed:  # a copy may have opened it again meanwhile
                    await self._io.finish(segment)
        except StorageError as error:  # recovery scans what has no index
            log.warning("index not saved", path=segment.index_path, error=str(error))
