"""One range: an open one takes appends, every one serves reads.

Operations that change metadata run one at a time and to their end, even when their caller is
cancelled: the metadata on disk is never older than what was answered.
"""

from __future__ import annotations

import msgspec

from headrace.errors import (
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    SealedError,
    StorageError,
)
from headrace.observability.logging import get_logger
from headrace.storage.layout import CorruptSpan
from headrace.storage.range.metadata import RangeMetadata
from headrace.storage.range.repair import RepairableRange
from headrace.storage.range.writer import Status, readable_limit
from headrace.storage.segments.segment import Segment

log = get_logger(__name__)


class RangeLog(RepairableRange):
    """See `LogStore`. Not constructed by callers."""

    # Control

    async def seal(self, *, writer_epoch: int = -1) -> int:
        """Take no more appends, for ever; persisted before return. The same end every time.

        Queued appends are refused, a group already being written is awaited. The end is final where
        one copy suffices; else it is this disk's, and `finish` tells the one that was decided.
        """
        return await self._shared.tasks.run(self._seal(writer_epoch))

    async def _seal(self, writer_epoch: int) -> int:
        async with self._control:
            self._check_epoch(writer_epoch)
            self._check_kept()
            epoch = max(writer_epoch, self.writer_epoch)
            if self.sealed:
                await self._save(writer_epoch=epoch)
            else:
                await self._stop_appends()
                await self._save(end=self.durable_offset, sealed=True, writer_epoch=epoch)
                self._on_sealed()
            return self.end_offset

    async def finish(self, end: int, *, writer_epoch: int = -1, doubtful: int = -1) -> None:
        """The placement manager's end, for ever; persisted before return. Seals an open range.

        What lies from `doubtful` on may be on fewer disks than an acknowledgement takes: it is not
        read until `finish` is told again, with a higher one or without.

        Above what this disk holds the range is `missing` the rest until `copy` has brought it.
        Below, the batches from `end` on are no longer part of the range. SealedError when another
        end is final already, InvalidArgumentError below what was committed.
        """
        await self._shared.tasks.run(self._finish(end, writer_epoch, doubtful))

    async def _finish(self, end: int, writer_epoch: int, doubtful: int) -> None:
        async with self._control:
            self._check_kept()
            if self.final:
                if end != self.end_offset:
                    raise SealedError("another end is final", found=end, end=self.end_offset)
                if self.doubtful >= 0 and not 0 <= doubtful <= self.doubtful:
                    await self._save(doubtful=doubtful)
                    self.set_committed(readable_limit(doubtful))
                return
            self._check_end(end)
            if not self.sealed:
                await self._stop_appends()
                self._check_end(end)  # what was being written may have been all that it took
            await self._save(
                end=end, sealed=True, decided=True, incomplete=end > self.durable_offset,
                doubtful=doubtful, writer_epoch=max(writer_epoch, self.writer_epoch),
            )  # fmt: skip
            if self._metadata.incomplete:
                await self._reopen()
            else:
                await self._lower_end(end)
            self._commit_limit = max(self._commit_limit, readable_limit(doubtful))
            self._advance()

    async def shorten(self, end: int) -> None:
        """What lies from `end` on in a final range was lost elsewhere, and is given up for ever;
        persisted before return."""
        await self._shared.tasks.run(self._shorten(end))

    async def _shorten(self, end: int) -> None:
        async with self._control:
            self._check_kept()
            if not self.final or end >= self.end_offset:
                return
            if end < self.start_offset:
                raise InvalidArgumentError("below the start", found=end, start=self.start_offset)
            if self._status is Status.COPYING:
                self._status = Status.SEALING
                self._drop_pending()
                await self._settled.wait()
            doubtful = self.doubtful if self.doubtful < end else -1
            incomplete = end > self.durable_offset
            await self._save(end=end, incomplete=incomplete, doubtful=doubtful)
            if incomplete:
                self._status = Status.COPYING
                return
            await self._lower_end(end)
            self.committed_offset = min(self.committed_offset, end)
            self._commit_limit = max(self._commit_limit, readable_limit(doubtful))
            self._advance()

    def _check_end(self, end: int) -> None:
        least = max(self.committed_offset, self.start_offset)
        if end < least:
            raise InvalidArgumentError("an end below what was committed", found=end, least=least)

    async def _stop_appends(self) -> None:
        """Refuse what is queued, await what is being written, sync what was written."""
        if self._status is Status.OPEN:
            self._status = Status.SEALING
            self._drop_pending()
            await self._settled.wait()
        active = self._active()
        if active is not None and self._status is Status.SEALING:
            await self._sync_or_fail(active)

    def _on_sealed(self) -> None:
        active = self._active()
        self._status = Status.SEALED
        self.next_offset = self.durable_offset
        self._shared.active.forget(self)
        self._wake_everyone()
        if active is not None:
            active.closed = True
            self._shared.tasks.spawn(self._finish_segment(active))

    async def _reopen(self) -> None:
        """Copies go on in the last segment, where there is one that can be written."""
        self._on_sealed()
        self._shared.cache.forget(self._tail)  # what follows is not kept in memory
        if self._segments:
            try:
                await self._io.load_index(self._segments[-1])
            except CorruptionError as error:
                log.error("last segment not usable", path=self._io.folder, error=str(error))
                self._start_copying(reopen=False)
                return
        self._start_copying()

    async def _lower_end(self, end: int) -> None:
        """Batches from `end` on are out of reach at once; their bytes are given back afterwards."""
        if end < self.durable_offset:
            self._shared.cache.forget(self._tail)
        self.durable_offset = end
        self._on_sealed()
        gone = [segment for segment in self._segments if segment.base >= end]
        self._segments = [segment for segment in self._segments if segment not in gone]
        if self._segments and self._segments[-1].end_offset > end:
            self._shared.tasks.spawn(self._cut(self._segments[-1], end))
        if gone:
            self._shared.tasks.spawn(self._io.remove(gone))

    async def _cut(self, segment: Segment, end: int) -> None:
        try:
            async with self._control:
                if not segment.removed:
                    await self._io.cut(segment, end)
        except StorageError as error:  # the next open does it
            log.warning("tail not given back", path=segment.path, error=str(error))

    def _check_kept(self) -> None:
        if self._status in (Status.REMOVED, Status.CLOSED):
            raise self._refusal()

    async def set_replicas(self, replicas: tuple[int, ...]) -> None:
        """Who else has the range; persisted before return."""
        await self._shared.tasks.run(self._set_replicas(replicas))

    async def _set_replicas(self, replicas: tuple[int, ...]) -> None:
        async with self._control:
            await self._save(replicas=replicas)

    async def attachment(self) -> bytes | None:
        """What the range was made with; None when nothing was said. CorruptionError."""
        if self._metadata.attached_bytes <= 0:
            return b"" if self._metadata.attached_bytes == 0 else None
        return await self._io.read_attachment()

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
            if self._status is Status.REMOVED:
                raise self._refusal()
            limit = self.durable_offset if self.missing is None else self.end_offset
            if offset > limit:
                raise OffsetOutOfRangeError(offset=offset, end=limit)
            if offset > self.start_offset:
                await self._save(start=offset)
                self.start_offset = offset
            if offset > self.durable_offset:
                await self._skip_to(offset)
            self.set_committed(offset)  # nobody trims what is not
            gone = [each for each in self._segments if each.closed and each.end_offset <= offset]
            self._segments = [each for each in self._segments if each not in gone]
            await self._io.remove(gone)

    async def _skip_to(self, offset: int) -> None:
        """What is left of a range that is being copied starts above everything held here."""
        self._status = Status.SEALING
        self._drop_pending()
        await self._settled.wait()
        if self.durable_offset < offset:
            for segment in self._segments:
                segment.closed = True  # all of them go with the trim
            self.next_offset = self.durable_offset = offset
            self._advance()
        self._status = Status.COPYING
        if self.missing is None:
            self._shared.tasks.spawn(self._complete())

    async def sync(self) -> None:
        """Everything appended so far is durable when this returns, whatever the level."""
        await self._shared.tasks.run(self._sync())

    async def _sync(self) -> None:
        target = self.next_offset
        while self.durable_offset < target:
            if self._status in (Status.FAILED, Status.REMOVED):
                raise self._refusal()
            if self._status is not Status.OPEN:  # a seal drops what it cannot keep
                break
            await self._syncers.wait(target - 1)
        active = self._active()
        if active is not None and active.synced_position < active.position:
            await self._sync_or_fail(active)

    async def verify(self) -> tuple[CorruptSpan, ...]:
        """Read everything and check it; the corrupt spans."""
        for segment in list(self._segments):
            await self._shared.tasks.run(self._verify(segment))
        return self.state().corrupt

    async def _verify(self, segment: Segment) -> None:
        try:
            if not segment.removed:
                await self._io.rescan(segment)
        except OffsetOutOfRangeError:
            if not segment.removed:
                raise

    async def _save(self, **changes: object) -> None:
        metadata: RangeMetadata = msgspec.structs.replace(self._metadata, **changes)
        if metadata != self._metadata:
            await self._io.save_metadata(metadata)
            self._metadata = metadata

    # Keeping: what the store calls

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
        self._status = Status.REMOVED
        self._drop_pending()
        self._shared.active.forget(self)
        self._wake_everyone()
        async with self._control:
            await self._settled.wait()
            self._shared.cache.forget(self._tail)
            for segment in self._segments:
                self._shared.pool.discard(segment)
