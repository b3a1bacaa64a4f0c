"""The control operations of a range: its end, its start, its writer epoch, its replicas.

Each of them changes the metadata file, and whatever follows from that in the segments. They run one
at a time, and the metadata on disk is never older than what was answered.
"""

from __future__ import annotations

import msgspec

from headrace.errors import (
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    OffsetOutOfRangeError,
    SealedError,
    StorageError,
)
from headrace.observability.logging import get_logger
from headrace.storage.layout import (
    ATTACHMENT,
    RANGE_METADATA,
    RangeMetadata,
    decode_attachment,
    encode_metadata,
)
from headrace.storage.range.progress import RangeProgress, Status, readable_limit
from headrace.storage.range.writer import RangeWriter
from headrace.storage.segments.files import SegmentFiles
from headrace.storage.segments.segment import Segment
from headrace.storage.shared import Shared

log = get_logger(__name__)


class RangeControl:
    """Carries out what `RangeLog` promises; a caller must let each operation run to its end."""

    def __init__(
        self, shared: Shared, progress: RangeProgress, files: SegmentFiles, writer: RangeWriter
    ) -> None:
        self._shared = shared
        self._progress = progress
        self._files = files
        self._writer = writer

    async def seal(self, writer_epoch: int) -> int:
        progress = self._progress
        async with progress.exclusive:
            self._check_epoch(writer_epoch)
            self._check_kept()
            epoch = max(writer_epoch, progress.metadata.writer_epoch)
            if progress.metadata.sealed:
                await self._save(writer_epoch=epoch)
            else:
                await self._stop_appends()
                await self._save(end=progress.durable_offset, sealed=True, writer_epoch=epoch)
                self._writer.on_sealed()
            return progress.metadata.end

    async def finish(self, end: int, *, writer_epoch: int, doubtful: int) -> None:
        progress = self._progress
        async with progress.exclusive:
            self._check_kept()
            if progress.metadata.final:
                await self._finish_again(end, doubtful)
                return
            self._check_end(end)
            if not progress.metadata.sealed:
                await self._stop_appends()
                self._check_end(end)  # what was being written may have been all that it took
            await self._save(
                end=end, sealed=True, decided=True, incomplete=end > progress.durable_offset,
                doubtful=doubtful, writer_epoch=max(writer_epoch, progress.metadata.writer_epoch),
            )  # fmt: skip
            if progress.metadata.incomplete:
                await self._reopen()
            else:
                self._lower_end(end)
            progress.commit_limit = max(progress.commit_limit, readable_limit(doubtful))
            progress.advance()

    async def _finish_again(self, end: int, doubtful: int) -> None:
        """The end stands; less of what lies below it may be in doubt than before."""
        known = self._progress.metadata
        if end != known.end:
            raise SealedError("another end is final", found=end, end=known.end)
        if known.doubtful >= 0 and not 0 <= doubtful <= known.doubtful:
            await self._save(doubtful=doubtful)
            self._progress.set_committed(readable_limit(doubtful))

    async def shorten(self, end: int) -> None:
        progress = self._progress
        async with progress.exclusive:
            self._check_kept()
            if not progress.metadata.final or end >= progress.metadata.end:
                return
            if end < progress.start_offset:
                raise InvalidArgumentError(
                    "below the start", found=end, start=progress.start_offset
                )
            if progress.status is Status.COPYING:
                await self._writer.stop()
            doubtful = progress.metadata.doubtful
            doubtful = doubtful if doubtful < end else -1
            incomplete = end > progress.durable_offset
            await self._save(end=end, incomplete=incomplete, doubtful=doubtful)
            if incomplete:
                progress.status = Status.COPYING
                return
            self._lower_end(end)
            progress.committed_offset = min(progress.committed_offset, end)
            progress.commit_limit = max(progress.commit_limit, readable_limit(doubtful))
            progress.advance()

    def _check_end(self, end: int) -> None:
        least = max(self._progress.committed_offset, self._progress.start_offset)
        if end < least:
            raise InvalidArgumentError("an end below what was committed", found=end, least=least)

    async def _stop_appends(self) -> None:
        """Refuse what is queued, await what is being written, sync what was written."""
        progress = self._progress
        if progress.status is Status.OPEN:
            await self._writer.stop()
        active = progress.active_segment()
        if active is not None and progress.status is Status.SEALING:
            await self._writer.sync_or_fail(active)

    async def _reopen(self) -> None:
        """Copies go on in the last segment, where there is one that can be written."""
        self._writer.on_sealed()
        self._writer.forget_tail()  # what follows is not kept in memory
        segments = self._progress.segments
        if segments:
            try:
                await self._files.load_index(segments[-1])
            except CorruptionError as error:
                log.error("last segment not usable", path=self._files.folder, error=str(error))
                self._writer.start_copying(reopen=False)
                return
        self._writer.start_copying()

    def _lower_end(self, end: int) -> None:
        """Batches from `end` on are out of reach at once; their bytes are given back afterwards."""
        progress, tasks = self._progress, self._shared.tasks
        if end < progress.durable_offset:
            self._writer.forget_tail()
        progress.durable_offset = end
        self._writer.on_sealed()
        gone = [segment for segment in progress.segments if segment.base >= end]
        progress.segments = [segment for segment in progress.segments if segment.base < end]
        if progress.segments and progress.segments[-1].end_offset > end:
            tasks.start(self._cut(progress.segments[-1], end))
        if gone:
            tasks.start(self._files.remove(gone))

    async def _cut(self, segment: Segment, end: int) -> None:
        try:
            async with self._progress.exclusive:
                if not segment.removed:
                    await self._files.cut(segment, end)
        except StorageError as error:  # the next open does it
            log.warning("tail not given back", path=segment.path, error=str(error))

    def _check_kept(self) -> None:
        if self._progress.status in (Status.REMOVED, Status.CLOSED):
            raise self._progress.refusal()

    async def set_replicas(self, replicas: tuple[int, ...]) -> None:
        async with self._progress.exclusive:
            await self._save(replicas=replicas)

    async def set_epoch(self, epoch: int) -> None:
        async with self._progress.exclusive:
            self._check_epoch(epoch)
            await self._save(writer_epoch=max(epoch, self._progress.metadata.writer_epoch))

    def _check_epoch(self, epoch: int) -> None:
        current = self._progress.metadata.writer_epoch
        if -1 < epoch < current:
            raise FencedError("a higher writer epoch exists", found=epoch, current=current)

    async def trim(self, offset: int) -> None:
        progress = self._progress
        async with progress.exclusive:
            if progress.status is Status.REMOVED:
                raise progress.refusal()
            is_complete = progress.missing is None
            limit = progress.durable_offset if is_complete else progress.metadata.end
            if offset > limit:
                raise OffsetOutOfRangeError(offset=offset, end=limit)
            if offset > progress.start_offset:
                await self._save(start=offset)
                progress.start_offset = offset
            if offset > progress.durable_offset:
                await self._skip_to(offset)
            progress.set_committed(offset)  # nobody trims what is not
            segments = progress.segments
            gone = [each for each in segments if each.closed and each.end_offset <= offset]
            progress.segments = [each for each in segments if each not in gone]
            await self._files.remove(gone)

    async def _skip_to(self, offset: int) -> None:
        """What is left of a range that is being copied starts above everything held here."""
        progress = self._progress
        await self._writer.stop()
        if progress.durable_offset < offset:
            for segment in progress.segments:
                segment.closed = True  # all of them go with the trim
            progress.next_offset = progress.durable_offset = offset
            progress.advance()
        progress.status = Status.COPYING
        if progress.missing is None:
            self._shared.tasks.start(self.complete_copy())

    async def complete_copy(self) -> None:
        """Everything below the end is synced: from now on this is a sealed range like others."""
        try:
            async with self._progress.exclusive:
                await self._writer.wait_idle()
                if self._progress.status is Status.COPYING:
                    await self._close_copied()
        except StorageError as error:  # the next open finds it complete
            log.warning("copied range not closed", path=self._files.folder, error=str(error))

    async def _close_copied(self) -> None:
        active = self._progress.active_segment()
        if active is not None:
            active.closed = True
            await self._files.finish(active)
        await self._save(incomplete=False)
        self._progress.status = Status.SEALED
        self._shared.active.forget(self._writer)

    async def _save(self, **changes: object) -> None:
        known = self._progress.metadata
        metadata: RangeMetadata = msgspec.structs.replace(known, **changes)
        if metadata != known:
            path = f"{self._files.folder}/{RANGE_METADATA}"
            await self._shared.control_executor.run(
                self._shared.disk.write_atomic, path, encode_metadata(metadata)
            )
            self._progress.metadata = metadata

    async def read_attachment(self) -> bytes | None:
        attached_bytes = self._progress.metadata.attached_bytes
        if attached_bytes <= 0:
            return b"" if attached_bytes == 0 else None
        path = f"{self._files.folder}/{ATTACHMENT}"
        try:
            data = await self._shared.control_executor.run(self._shared.disk.read, path)
        except NotFoundError:
            raise CorruptionError("attachment lost", path=path) from None
        return decode_attachment(data, path)

    async def close(self) -> bool:
        """Sync and save; whether the next open may go on where this one ended."""
        progress = self._progress
        async with progress.exclusive:
            failed = progress.status is Status.FAILED
            for segment in progress.segments:
                if not failed and segment.saved_position < segment.position:
                    await self._files.finish(segment)
            return not failed

    async def remove(self) -> None:
        """Refuse everything from now on and let go of the files."""
        self._writer.refuse_everything()
        async with self._progress.exclusive:
            await self._writer.wait_idle()
            self._writer.forget_tail()
            for segment in self._progress.segments:
                self._shared.pool.discard(segment)
