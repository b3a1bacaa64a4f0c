"""One range: an open one takes appends, every one serves reads.

A `RangeLog` holds the parts that do the work, and they share a `RangeProgress`:

    RangeWriter      appends and copies, through group commit to the disk
    RangeReader      batches from memory or from the segment files
    RangeControl     sealing, ending, trimming: what changes the metadata
    RangeRepairer    damaged batches come back from another replica
    SegmentFiles     the file work that they all need
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.errors import OffsetOutOfRangeError, StorageError
from headrace.runtime import Buffer
from headrace.storage.layout import CorruptSpan, RangeState, SegmentInfo
from headrace.storage.range.control import RangeControl
from headrace.storage.range.progress import RangeProgress, Status
from headrace.storage.range.reader import RangeReader
from headrace.storage.range.recovery import RecoveredRange
from headrace.storage.range.repair import Batches, RangeRepairer
from headrace.storage.range.writer import RangeWriter
from headrace.storage.segments.files import SegmentFiles
from headrace.storage.segments.reader import Located
from headrace.storage.segments.segment import Segment
from headrace.storage.shared import RangeTail, Shared
from headrace.wire.sbp.messages import Durability


class RangeLog:
    """See `LogStore`, which alone constructs it."""

    def __init__(self, shared: Shared, recovered: RecoveredRange) -> None:
        self.key = recovered.key
        self._tasks = shared.tasks
        self._progress = RangeProgress(recovered)
        self._files = SegmentFiles(shared, recovered.folder)
        tail = RangeTail()
        self._writer = RangeWriter(
            shared, self._progress, self._files, tail, on_copied=self._on_copied
        )
        self._reader = RangeReader(shared, self._progress, self._files, tail)
        self._repairer = RangeRepairer(shared, self._progress, self._files)
        self._control = RangeControl(shared, self._progress, self._files, self._writer)
        # The calls that are made for every batch go to the parts directly.
        self.append = self._writer.append
        self.read = self._reader.read
        self.read_cached = self._reader.read_cached
        self.read_cached_pieces = self._reader.read_cached_pieces
        if recovered.tail_bytes:
            shared.active.note(self._writer)

    # What is known of it

    @property
    def start_offset(self) -> int:
        return self._progress.start_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next append: behind what is written or queued."""
        return self._progress.next_offset

    @property
    def durable_offset(self) -> int:
        """Below it lies what this disk keeps, by the range's durability level."""
        return self._progress.durable_offset

    @property
    def committed_offset(self) -> int:
        """Below it lies what enough replicas keep, which alone may be read."""
        return self._progress.committed_offset

    @property
    def end_offset(self) -> int:
        return self._progress.metadata.end

    @property
    def writer_epoch(self) -> int:
        return self._progress.metadata.writer_epoch

    @property
    def durability(self) -> Durability:
        return self._progress.metadata.durability

    @property
    def sealed(self) -> bool:
        return self._progress.metadata.sealed

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._progress.metadata.replicas

    @property
    def ack_quorum(self) -> int:
        return self._progress.metadata.ack_quorum

    @property
    def final(self) -> bool:
        """Sealed, and the end is decided: here where one copy suffices, else by `finish`."""
        return self._progress.metadata.final

    @property
    def doubtful(self) -> int:
        """From here on too few replicas may hold a final range for it to be read; -1: nowhere."""
        return self._progress.metadata.doubtful

    @property
    def missing(self) -> tuple[int, int] | None:
        """[next offset, end) of a final range that `copy` has not filled durably yet."""
        return self._progress.missing

    @property
    def failed(self) -> bool:
        return self._progress.status is Status.FAILED

    @property
    def position(self) -> int:
        """Bytes written to the active segment file."""
        return self._writer.position

    def state(self) -> RangeState:
        return self._progress.state()

    def corrupt(self) -> list[CorruptSpan]:
        """The corrupt spans that were not trimmed."""
        return self._progress.corrupt()

    def damaged(self) -> list[CorruptSpan]:
        """As `corrupt`, but one span for each segment: what a repair deals with at once."""
        return self._progress.damaged()

    def segments(self) -> list[SegmentInfo]:
        """Closed segments and the active one, oldest first; whole files, whatever was trimmed."""
        return [each.info() for each in self._progress.segments if each.content_bytes]

    # Writing

    def copy(
        self, header: bytearray, body: Sequence[Buffer], *, verified: bool = False
    ) -> asyncio.Future[None]:
        """Queue a batch of another replica, in offset order, while the range is `missing` some.

        Resolves when it is synced, whatever the range's level. The first one of a range that holds
        nothing may start before the range does: trimming stops inside batches. After a StorageError
        it may be tried again from `missing` on.
        """
        return self._writer.copy(header, body, verified=verified)

    def _on_copied(self) -> None:
        self._tasks.start(self._control.complete_copy())

    def set_committed(self, offset: int) -> None:
        """The primary says so; offsets that this disk does not hold yet count once it does.

        Never falls. Without effect where nobody has to be asked: one copy suffices, or final.
        """
        self._progress.set_committed(offset)

    async def wait_for(self, offset: int) -> None:
        """Wait until `offset` can be read, or never will be (sealed, failed, deleted, closing)."""
        await self._progress.wait_committed(offset)

    async def sync(self) -> None:
        """Everything appended so far is durable when this returns, whatever the level."""
        await self._tasks.run(self._writer.sync())

    # Reading

    async def read_durable(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        """As `read`, up to what this disk holds, committed or not: for other replicas alone."""
        return await self._reader.read_durable(offset, max_bytes)

    async def locate(self, offset: int) -> Located | None:
        """The file that holds what `read` would return, and what follows it there, up to what is
        committed now; None where only a read can tell. The file may be removed at any time, and
        an offset be given up while its bytes are still there."""
        return await self._reader.locate(offset)

    async def crc_at(self, offset: int) -> int | None:
        """The CRC of the durable batch whose base is `offset`; None where no such batch begins."""
        return await self._reader.crc_at(offset)

    async def offset_at(self, timestamp_ms: int) -> int:
        """The first batch whose highest timestamp reaches this; the committed end if none."""
        return await self._reader.offset_at(timestamp_ms)

    # Control. These operations run to their end even when their caller is cancelled.

    async def seal(self, *, writer_epoch: int = -1) -> int:
        """Take no more appends, for ever; persisted before return. The same end every time.

        Queued appends are refused, a group already being written is awaited. The end is final where
        one copy suffices; else it is this disk's, and `finish` tells the one that was decided.
        """
        return await self._tasks.run(self._control.seal(writer_epoch))

    async def finish(self, end: int, *, writer_epoch: int = -1, doubtful: int = -1) -> None:
        """The placement manager's end, for ever; persisted before return. Seals an open range.

        What lies from `doubtful` on may be on fewer disks than an acknowledgement takes: it is not
        read until `finish` is told again, with a higher one or without.

        Above what this disk holds the range is `missing` the rest until `copy` has brought it.
        Below, the batches from `end` on are no longer part of the range. SealedError when another
        end is final already, InvalidArgumentError below what was committed.
        """
        await self._tasks.run(
            self._control.finish(end, writer_epoch=writer_epoch, doubtful=doubtful)
        )

    async def shorten(self, end: int) -> None:
        """What lies from `end` on in a final range was lost elsewhere, and is given up for ever;
        persisted before return."""
        await self._tasks.run(self._control.shorten(end))

    async def trim(self, offset: int) -> None:
        """Give up everything below `offset`; persisted before return. Below the start: no change.

        Whole segments below it are removed, but never the active one: where a segment ends depends
        on its content alone.
        """
        await self._tasks.run(self._control.trim(offset))

    async def set_replicas(self, replicas: tuple[int, ...]) -> None:
        """Who else has the range; persisted before return."""
        await self._tasks.run(self._control.set_replicas(replicas))

    async def set_epoch(self, epoch: int) -> None:
        """Raise the writer epoch; persisted before return. A lower one is fenced."""
        await self._tasks.run(self._control.set_epoch(epoch))

    async def attachment(self) -> bytes | None:
        """What the range was made with; None when nothing was said. CorruptionError."""
        return await self._control.read_attachment()

    # Damage

    async def verify(self) -> tuple[CorruptSpan, ...]:
        """Read everything and check it; the corrupt spans."""
        for segment in list(self._progress.segments):
            await self._tasks.run(self._verify(segment))
        return self.state().corrupt

    async def _verify(self, segment: Segment) -> None:
        try:
            if not segment.removed:
                await self._files.rescan(segment)
        except OffsetOutOfRangeError:
            if not segment.removed:
                raise

    async def repair(self, span: CorruptSpan, batches: Batches) -> None:
        """Put whole batches in the place of damaged ones; durable before return.

        `span` is one of `state().corrupt`, or several of one segment taken together. `batches` are
        views of one or more whole batches each, in order, that cover it; they are checked, and may
        come one by one. What is intact stays as it is, and damage outside `span` is still known as
        such. Only of a range that is final and complete: StateError. Nothing happens when
        the damage is gone. After any error nothing has changed.
        """
        await self._repairer.repair(span, batches)

    # What the store calls

    def fail(self, error: StorageError) -> None:
        """Nothing of this range will be written any more."""
        self._writer.fail(error)

    def refuse_appends(self) -> None:
        """The store closes; what is queued is still written."""
        self._writer.refuse_appends()

    async def close(self) -> bool:
        """Sync and save; whether the next open may go on where this one ended."""
        return await self._control.close()

    async def remove(self) -> None:
        """Refuse everything from now on and let go of the files."""
        await self._control.remove()
