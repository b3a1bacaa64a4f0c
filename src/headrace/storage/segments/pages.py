"""How much of what was written stays in the kernel's page cache.

A log grows for ever, and without a word the kernel keeps all of it in memory until there is none
left. Every page of it is then a new one: on virtual machines whose free memory belongs to the host
it has to be fetched from there first, which takes five times as long as writing it (0.7 to 1.4
against 0.15 ms/MB), and where programs such as Spark run beside the log it is their memory. So the
store lets go of what it wrote longest ago, whichever range it belongs to, and the next write gets
those pages. Who reads it later reads from the disk, and what was read stays as long as the kernel
likes. It is advice: bytes that are not on the disk yet stay where they are.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from headrace.concurrency.store_tasks import TaskSet
from headrace.errors import HeadraceError
from headrace.observability.logging import get_logger
from headrace.runtime import Disk, Executor, File
from headrace.storage.segments.open_files import FilePool
from headrace.storage.segments.segment import Segment

STEP_BYTES = 1 << 20  # of a file; less is noted together with what follows

log = get_logger(__name__)


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
            self._tasks.spawn(self._drop())

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
