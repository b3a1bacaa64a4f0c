"""Open segment files, and how much of what was written to them stays in the page cache.

`FilePool` bounds the number of open files. A file is pinned while a thread works on it; only
unpinned files are closed, the least recently used first. More than the limit are open only while
that many are pinned. A file that nobody has used for a while is closed too: an idle range keeps
none open.

`WrittenPages` bounds what the kernel keeps. A log grows for ever, and without a word the kernel
keeps all of it in memory until there is none left. Every page of it is then a new one: on virtual
machines whose free memory belongs to the host it has to be fetched from there first, which takes
five times as long as writing it (0.7 to 1.4 against 0.15 ms/MB), and where programs such as Spark
run beside the log it is their memory. So the store lets go of what it wrote longest ago, whichever
range it belongs to, and the next write gets those pages. Who reads it later reads from the disk,
and what was read stays as long as the kernel likes. It is advice: bytes that are not on the disk
yet stay where they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from headrace.concurrency.tasks import TaskSet
from headrace.errors import HeadraceError
from headrace.observability.logging import get_logger
from headrace.runtime import Disk, Executor, File
from headrace.storage.segments.segment import Handle, Segment

STEP_BYTES = 1 << 20  # of a file; less is noted together with what follows

log = get_logger(__name__)


class FilePool:
    """Used from the event loop alone."""

    def __init__(self, open_files_max: int) -> None:
        self._limit = open_files_max
        self._segments: dict[Segment, int] = {}  # least recently used first -> round of last use
        self._round = 0

    def __len__(self) -> int:
        return len(self._segments)

    def pin(self, segment: Segment) -> File | None:
        """The open file, or None: the caller opens it and hands it over with `unpin`."""
        handle = segment.handle
        if handle is None:
            return None
        handle.pins += 1
        self._touch(segment)
        return handle.file

    def unpin(self, segment: Segment, file: File | None) -> None:
        """Give back what `pin` returned, or a file that the caller opened (None: it could not)."""
        if file is None:
            return
        handle = segment.handle
        if handle is not None and handle.file is file:
            handle.pins -= 1
        elif handle is None and not segment.removed:
            segment.handle = Handle(file)
            self._touch(segment)
        else:  # somebody else opened it meanwhile
            file.close()
            return
        if segment.removed:
            self.discard(segment)
        elif len(self._segments) > self._limit:
            self._shrink()

    def discard(self, segment: Segment) -> None:
        """The segment is gone: close its file as soon as nobody uses it."""
        segment.removed = True
        handle = segment.handle
        if handle is not None and handle.pins == 0:
            self._close(segment, handle)

    def close(self) -> None:
        """Close everything; whoever has pinned a file must be done."""
        for segment in list(self._segments):
            if segment.handle is not None:
                self._close(segment, segment.handle)

    def _touch(self, segment: Segment) -> None:
        self._segments.pop(segment, None)
        self._segments[segment] = self._round

    def take_idle(self) -> list[Segment]:
        """Ends a round: those not used since the call before the last one, for `close_idle`."""
        self._round += 1
        return [segment for segment, _ in takewhile(self._is_idle, self._segments.items())]

    def close_idle(self, segments: Iterable[Segment]) -> None:
        """Close those that are still idle."""
        for segment in segments:
            handle = segment.handle
            if handle is None or handle.pins:
                continue
            if self._is_idle((segment, self._segments[segment])):
                self._close(segment, handle)

    def _is_idle(self, entry: tuple[Segment, int]) -> bool:
        return entry[1] < self._round - 1

    def _shrink(self) -> None:
        for segment in list(self._segments):
            handle = segment.handle
            if handle is not None and handle.pins == 0:
                self._close(segment, handle)
                if len(self._segments) <= self._limit:
                    return

    def _close(self, segment: Segment, handle: Handle) -> None:
        handle.file.close()
        segment.handle = None
        self._segments.pop(segment, None)
        if segment.closed and segment.saved_position == segment.position:
            segment.index = None  # it comes back from its file with the next read


class _Written(NamedTuple):
    segment: Segment
    start: int
    size: int


class WrittenPages:
    """Used from the event loop; a thread gives the advice."""

    def __init__(
        self, disk: Disk, executor: Executor, pool: FilePool, tasks: TaskSet, bytes_max: int
    ) -> None:
        self._disk = disk
        self._executor = executor
        self._pool = pool
        self._tasks = tasks
        self._limit = bytes_max
        self._queue: deque[_Written] = deque()  # oldest first
        self._dropping = False
        self.bytes = 0

    def note(self, segment: Segment, start: int) -> None:
        """The segment was written from `start` to its position."""
        if not self._limit:
            return
        if not 0 <= segment.noted_position <= start:  # opened anew, or cut
            segment.noted_position = start
        size = segment.position - segment.noted_position
        if size < STEP_BYTES:
            return
        self._queue.append(_Written(segment, segment.noted_position, size))
        segment.noted_position = segment.position
        self.bytes += size
        if self.bytes > self._limit and not self._dropping:
            self._dropping = True
            self._tasks.start(self._drop())

    async def _drop(self) -> None:
        try:
            while self.bytes > self._limit:
                oldest = self._queue.popleft()
                self.bytes -= oldest.size
                if not oldest.segment.removed:  # else its pages went with it
                    await self._drop_one(oldest)
        finally:
            self._dropping = False

    async def _drop_one(self, oldest: _Written) -> None:
        segment = oldest.segment
        file = self._pool.pin(segment)
        try:
            file = await self._executor.run(
                _advise, self._disk, file, segment.path, oldest.start, oldest.size
            )
        except HeadraceError as error:
            log.debug("page cache not relieved", path=segment.path, reason=str(error))
        finally:
            self._pool.unpin(segment, file)


def _advise(disk: Disk, file: File | None, path: str, start: int, size: int) -> File:
    if file is None:
        file = disk.open(path)
    file.drop_cached(start, size)
    return file
