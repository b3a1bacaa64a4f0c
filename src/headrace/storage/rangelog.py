"""One range: an open one takes appends, every one serves reads.

Offsets and states live on the event loop; threads only ever see the values handed to them. An
append is queued (`append`), taken into a group (`take_write`), written and synced in a thread, and
acknowledged (`on_written`). Operations that change metadata run one at a time and to their end,
even when their caller is cancelled: the metadata on disk is never older than what was answered.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Sequence
from enum import Enum

import msgspec

from headrace.errors import (
    CorruptionError,
    DiskFullError,
    FencedError,
    HeadraceError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    SealedError,
    StorageError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.observability.logging import get_logger
from headrace.runtime import Buffer
from headrace.storage.cache import Batch, RangeTail
from headrace.storage.marks import MARK_BYTES, Mark, binding_of, encode_mark
from headrace.storage.metadata import RangeMetadata
from headrace.storage.model import CorruptSpan, RangeState, SegmentInfo
from headrace.storage.reader import FreshDamage
from headrace.storage.recovery import RecoveredRange
from headrace.storage.segment import Segment, SegmentWrite
from headrace.storage.segmentio import SegmentIO
from headrace.storage.shared import Shared
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import verify

log = get_logger(__name__)

# The fields of a batch header that an append needs (see wire.sbp.records); decoding all of them
# into an object took a third of the call.
_BATCH_FIELDS = struct.Struct(
    ">xqi6xi8xq"
)  # base_offset, batch_length, record_count, max_timestamp
_LENGTH_END = 13  # batch_length counts from here


class _Status(Enum):
    OPEN = "open"
    SEALING = "sealing"  # refuses appends, not yet persisted
    SEALED = "sealed"
    FAILED = "failed"  # a write or sync failed
    REMOVED = "removed"
    CLOSED = "closed"  # the store stops


class RangeLog:
    """See `LogStore`. Not constructed by callers."""

    def __init__(self, shared: Shared, recovered: RecoveredRange) -> None:
        metadata = recovered.metadata
        self.key = recovered.key
        self.start_offset = metadata.start
        self.next_offset = recovered.next_offset  # written or queued
        self.durable_offset = recovered.next_offset  # acknowledged: what reads may return
        self._shared = shared
        self._settings = shared.settings
        self._metadata = metadata
        self._io = SegmentIO(shared, recovered.folder)
        self._segments = recovered.segments
        self._truncated_bytes = recovered.truncated_bytes
        self._status = _Status.SEALED if metadata.sealed else _Status.OPEN
        self._committer = shared.committers[metadata.durability]
        self._tail = RangeTail()
        self._pending: deque[Batch] = deque()
        self._writing: SegmentWrite | None = None
        self._settled = asyncio.Event()  # no write is under way
        self._settled.set()
        self._rolling = False
        self._saving = False
        self._mark_wanted = False
        self._control = asyncio.Lock()
        self._waiters: dict[asyncio.Future[None], int] = {}
        if recovered.tail_bytes:
            shared.note_active(self)

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
    def failed(self) -> bool:
        return self._status is _Status.FAILED

    @property
    def position(self) -> int:
        """Bytes written to the active segment file."""
        active = self._active()
        return active.position if active is not None else 0

    def state(self) -> RangeState:
        spans = [
            span for segment in self._segments for span in segment.spans if span.start < span.end
        ]
        missing = self._missing_front()
        return RangeState(
            key=self.key,
            start=self.start_offset,
            end=self.end_offset,
            next_offset=self.next_offset,
            writer_epoch=self.writer_epoch,
            durability=self.durability,
            sealed=self.sealed,
            failed=self.failed,
            corrupt=tuple([missing, *spans] if missing else spans),
            truncated_bytes=self._truncated_bytes,
        )

    def segments(self) -> list[SegmentInfo]:
        """Closed segments and the active one, oldest first; whole files, whatever was trimmed."""
        return [segment.info() for segment in self._segments if segment.content_bytes]

    # Appending

    def append(
        self, header: bytearray, body: Sequence[Buffer], *, verified: bool = False
    ) -> Awaitable[None]:
        """Queue one batch; offsets follow the order of calls. The buffers now belong to the log.

        Refusals raise here. The result resolves when the range's durability level holds; with
        StorageError when the disk failed (the range then takes no more), with SealedError when the
        batch was still queued at a seal or behind a failed one. `verified` says that the caller has
        just computed or checked length and checksum.
        """
        if self._status is not _Status.OPEN:
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
        batch = Batch(header, body, base_offset, end, size, max_timestamp, done)
        self.next_offset = end
        self._pending.append(batch)
        shared.cache.add(self._tail, batch)
        self._committer.submit(self)
        return done

    def take_write(self, group: int, budget: int) -> SegmentWrite | None:
        """The next write of this range, for the committer; None when it has to wait.

        A group never spans two segments: the old file is synced before the new one is created, so
        a segment that has a successor is known to be synced whole.
        """
        if self._rolling or not (self._pending or self._mark_wanted):
            return None
        segment = self._active()
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
            if not self._pending:
                return None
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
        batches: list[Batch] = []
        taken = 0
        pending = self._pending
        while pending and not (batches and (taken >= budget or self._must_roll(segment, taken))):
            batch = pending.popleft()
            batches.append(batch)
            taken += batch.size
            pieces.append(batch.header)
            pieces.extend(batch.body)
        write = SegmentWrite(
            self, segment, batches, pieces,
            position=position, size=MARK_BYTES + taken, group=group, create=create,
            sync=self._metadata.durability is Durability.SYNCED,
            file=self._shared.pool.pin(segment),
        )  # fmt: skip
        self._plan_allocation(write)
        return write

    def _must_roll(self, segment: Segment, taken: int) -> bool:
        content = segment.content_bytes + taken
        return content > 0 and content + self._pending[0].size > self._settings.segment_bytes_max

    def _plan_allocation(self, write: SegmentWrite) -> None:
        allocated = write.segment.allocated
        needed = write.position + write.size
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
            self._fail(write.error, write.batches)
        else:
            self._acknowledge(write)
        if self._pending or self._mark_wanted:
            self._committer.submit(self)
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
        segment.allocated = max(segment.allocated, write.allocate_to)
        segment.on_batches(
            write.batches, write.position + MARK_BYTES, self._settings.index_interval_bytes
        )
        if write.sync:
            segment.synced_position = segment.position
        if not write.batches:
            return
        self.durable_offset = segment.end_offset
        for batch in write.batches:
            if not batch.done.done():  # a caller that was cancelled left it behind
                batch.done.set_result(None)
        self._wake_waiters()
        self._shared.note_active(self)
        if (
            segment.position - segment.saved_position >= self._settings.checkpoint_bytes
            and not self._saving
        ):
            self._saving = True
            self._shared.tasks.spawn(self._save_busy(segment))

    def _fail(self, error: HeadraceError, batches: Sequence[Batch]) -> None:
        """No offset may be skipped: what was queued behind the failed write cannot be stored."""
        log.error(
            "range failed", stream_id=self.key.stream_id, range_index=self.key.range_index,
            durable_offset=self.durable_offset, error=str(error),
        )  # fmt: skip
        if self._status not in (_Status.SEALED, _Status.REMOVED):
            self._status = _Status.FAILED
        for batch in batches:
            if not batch.done.done():
                batch.done.set_exception(error)
        self._drop_pending()
        self._shared.cache.forget(self._tail)
        self._wake_waiters(everyone=True)

    def _drop_pending(self) -> None:
        """Refuse what is queued but in no group yet."""
        error = self._refusal()
        self._mark_wanted = False
        self._committer.withdraw(self)
        dropped = len(self._pending)
        for batch in self._pending:
            self._shared.queued_bytes -= batch.size
            if not batch.done.done():
                batch.done.set_exception(error)
        self._pending.clear()
        in_flight = self._writing.batches if self._writing is not None else ()
        self.next_offset = in_flight[-1].end if in_flight else self.durable_offset
        if dropped:
            self._shared.cache.forget(self._tail)

    def _refusal(self) -> HeadraceError:
        data = {"stream_id": self.key.stream_id, "range_index": self.key.range_index}
        if self._status is _Status.REMOVED:
            return RangeNotFoundError("the stream was deleted", **data)
        if self._status is _Status.CLOSED:
            return UnavailableError("the store is closing", **data)
        return SealedError(f"the range is {self._status.value}", **data)

    # Reading

    async def read(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """Whole batches from the one that contains `offset`, at least one if any is acknowledged.

        Each view holds one or more whole batches, in order. Empty at the acknowledged end.
        """
        stop = self.durable_offset
        if offset == stop and offset >= self.start_offset:
            return []
        self._check_offset(offset, stop)
        max_bytes = min(max_bytes, self._settings.read_bytes_max)
        cached = self._tail.read(offset, stop=stop, max_bytes=max_bytes)
        if cached:
            self._shared.cache.hits += 1
            return cached
        self._shared.cache.misses += 1
        segment = self._segment_at(offset)
        try:
            return await self._io.read(segment, offset, stop=stop, max_bytes=max_bytes)
        except FreshDamage as error:
            await self._on_damage(segment, error)
        return await self._io.read(segment, offset, stop=stop, max_bytes=max_bytes)

    def _check_offset(self, offset: int, stop: int) -> None:
        if self._status is _Status.REMOVED:
            raise self._refusal()
        if offset < self.start_offset or (self.sealed and offset > stop):
            raise OffsetOutOfRangeError(offset=offset, start=self.start_offset, end=stop)
        if offset > stop:
            raise OffsetOverflowError(offset=offset, end=stop)

    def _segment_at(self, offset: int) -> Segment:
        at = bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1
        if at < 0:
            missing = self._missing_front() or CorruptSpan(offset, offset + 1)
            raise CorruptionError("segment file is missing", start=missing.start, end=missing.end)
        return self._segments[at]

    def _missing_front(self) -> CorruptSpan | None:
        first = self._segments[0].base if self._segments else self.durable_offset
        return CorruptSpan(self.start_offset, first) if first > self.start_offset else None

    async def _on_damage(self, segment: Segment, error: FreshDamage) -> None:
        """Find out how far the damage goes; reading again then tells it from what is intact."""
        log.error("damage met by a read", path=segment.path, error=str(error))
        await self._io.rescan(segment)

    async def offset_at(self, timestamp_ms: int) -> int:
        """The first batch whose highest timestamp reaches this; the acknowledged end if none."""
        start, stop = self.start_offset, self.durable_offset
        for segment in list(self._segments):
            if segment.max_timestamp < timestamp_ms or segment.end_offset <= start:
                continue
            try:
                found = await self._io.find_time(
                    segment, timestamp_ms, from_offset=start, stop=stop
                )
            except FreshDamage as error:
                await self._on_damage(segment, error)
                found = await self._io.find_time(
                    segment, timestamp_ms, from_offset=start, stop=stop
                )
            if found is not None:
                return max(found, start)
        return stop

    async def wait_for(self, offset: int) -> None:
        """Until `offset` can be read, or never will be here (sealed, failed, deleted, closing)."""
        while self.durable_offset <= offset and self._status is _Status.OPEN:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = offset
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)

    def _wake_waiters(self, *, everyone: bool = False) -> None:
        if not self._waiters:
            return
        for waiter, offset in list(self._waiters.items()):
            if (everyone or offset < self.durable_offset) and not waiter.done():
                waiter.set_result(None)

    # Control

    async def seal(self, *, writer_epoch: int = -1, end: int | None = None) -> int:
        """End the range for ever; persisted before return. Returns its end, the same every time.

        Queued appends are refused, a group already being written is awaited. `end` lowers the end
        to what the placement manager decided; batches from it on are no longer part of the range.
        """
        return await self._shared.tasks.run(self._seal(writer_epoch, end))

    async def _seal(self, writer_epoch: int, end: int | None) -> int:
        async with self._control:
            self._check_epoch(writer_epoch)
            if self._status in (_Status.REMOVED, _Status.CLOSED):
                raise self._refusal()
            if self._status is _Status.OPEN:
                self._status = _Status.SEALING
                self._drop_pending()
                await self._settled.wait()
            active = self._active()
            if active is not None and self._status is _Status.SEALING:
                await self._sync_or_fail(active)
            found = self._metadata.end if self.sealed else self.durable_offset
            if end is not None and self.start_offset <= end < found:
                found = end
            epoch = max(writer_epoch, self.writer_epoch)
            await self._save(end=found, sealed=True, writer_epoch=epoch)
            self._status = _Status.SEALED
            self.next_offset = self.durable_offset = found
            self._shared.active.pop(self, None)
            self._wake_waiters(everyone=True)
            if active is not None and not active.closed:
                active.closed = True
                self._shared.tasks.spawn(self._finish_segment(active))
            return found

    async def set_epoch(self, epoch: int) -> None:
        """Raise the writer epoch; persisted before return. A lower one is fenced."""
        await self._shared.tasks.run(self._set_epoch(epoch))

    async def _set_epoch(self, epoch: int) -> None:
        async with self._control:
            self._check_epoch(epoch)
            await self._save(writer_epoch=max(epoch, self.writer_epoch))

    def _check_epoch(self, epoch: int) -> None:
        if -1 < epoch < self.writer_epoch:
            raise FencedError(
                "a higher writer epoch exists", found=epoch, current=self.writer_epoch
            )

    async def trim(self, offset: int) -> None:
        """Give up everything below `offset`; persisted before return. Below the start: no change.

        Whole segments below it are removed, but never the active one: where a segment ends depends
        on its content alone.
        """
        await self._shared.tasks.run(self._trim(offset))

    async def _trim(self, offset: int) -> None:
        async with self._control:
            if self._status is _Status.REMOVED:
                raise self._refusal()
            if offset > self.durable_offset:
                raise OffsetOutOfRangeError(offset=offset, end=self.durable_offset)
            if offset > self.start_offset:
                await self._save(start=offset)
                self.start_offset = offset
            gone = [each for each in self._segments if each.closed and each.end_offset <= offset]
            self._segments = [each for each in self._segments if each not in gone]
            await self._io.remove(gone)

    async def sync(self) -> None:
        """Everything appended so far is durable when this returns, whatever the level."""
        await self._shared.tasks.run(self._sync())

    async def _sync(self) -> None:
        target = self.next_offset
        while self.durable_offset < target:
            if self._status in (_Status.FAILED, _Status.REMOVED):
                raise self._refusal()
            if self._status is not _Status.OPEN:  # a seal drops what it cannot keep
                break
            await self.wait_for(target - 1)
        active = self._active()
        if active is not None and active.synced_position < active.position:
            await self._sync_or_fail(active)

    async def verify(self) -> tuple[CorruptSpan, ...]:
        """Read everything and check it; the corrupt spans."""
        for segment in list(self._segments):
            if not segment.removed:
                await self._shared.tasks.run(self._io.rescan(segment))
        return self.state().corrupt

    async def _save(self, **changes: object) -> None:
        metadata: RangeMetadata = msgspec.structs.replace(self._metadata, **changes)
        if metadata != self._metadata:
            await self._io.save_metadata(metadata)
            self._metadata = metadata

    # Keeping: what the store and background tasks call

    def fail(self, error: StorageError) -> None:
        """Nothing of this range will be written any more."""
        batches = self._writing.batches if self._writing is not None else ()
        self._fail(error, batches)

    async def close_mark(self) -> None:
        await self._shared.tasks.run(self._close_mark())

    async def _close_mark(self) -> None:
        """The range went quiet: note what is synced, so that damage to it is known as such."""
        async with self._control:
            active = self._active()
            if active is None or self._status is not _Status.OPEN:
                return
            if active.synced_position < active.position:
                await self._sync_or_fail(active)
            grown = active.position - active.saved_position
            if self.durability is Durability.WRITTEN or (
                grown >= self._settings.idle_checkpoint_bytes
            ):
                await self._io.save_index(active)
            elif self._status is _Status.OPEN:  # a mark is durable only where groups are synced
                self._mark_wanted = True
                self._committer.submit(self)

    def refuse_appends(self) -> None:
        """The store closes; what is queued is still written."""
        if self._status is _Status.OPEN:
            self._status = _Status.CLOSED
        self._wake_waiters(everyone=True)

    async def close(self) -> bool:
        """Sync and save; whether the next open may go on where this one ended."""
        async with self._control:
            failed = self.failed
            for segment in self._segments:
                if not failed and segment.saved_position < segment.position:
                    await self._io.finish(segment)
            return not failed

    async def remove(self) -> None:
        """Refuse everything from now on and let go of the files."""
        self._status = _Status.REMOVED
        self._drop_pending()
        self._shared.active.pop(self, None)
        self._wake_waiters(everyone=True)
        async with self._control:
            await self._settled.wait()
            self._shared.cache.forget(self._tail)
            for segment in self._segments:
                self._shared.pool.discard(segment)

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
                await self._io.finish(segment)
        except StorageError as error:  # recovery scans what has no index
            log.warning("index not saved", path=segment.index_path, error=str(error))
