"""Reading a data node's files where they are: on the machine of the reader.

FETCH sends the bytes of a log through a socket. A reader on the node's own machine says so in its
request (`FetchInfo.machine`); the node, after the same checks as ever, answers with a stretch of a
file instead, and the reader reads that itself. So the node decides what may be read (the ticket,
what is committed, what was trimmed) and the system whether this process may open the file.

A path alone proves nothing: here it may lead to another file, of another node or in another
container. So the file must be the very one, by machine, device and inode, and every batch in it is
checked as the node checks it: its offset, its length, its checksum. Whatever does not hold is no
error but a reason to ask for the bytes: the node knows about damage, and other replicas.

A file that is removed stays readable for who has it open. A stretch is therefore asked for again
after `STRETCH_BYTES_MAX`, so that nobody reads on for long in what retention removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headrace.concurrency.tasks import TaskSet
from headrace.errors import HeadraceError
from headrace.runtime.interfaces import Executor, Runtime
from headrace.sbp_client.ranges import Fetched, Want
from headrace.storage.layout import Point
from headrace.storage.segments.reader import Stretch, StretchReader
from headrace.wire.sbp.messages import FileStretch, Range

STRETCH_BYTES_MAX = 64 << 20  # read of what was located once
READERS_MAX = 16  # files kept open: the one used longest ago is closed
AVOID_SECONDS = 60.0  # until a node is asked again whose files cannot be opened here
_THREADS = 2


class LocalReads:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._readers: dict[tuple[int, int], StretchReader] = {}  # by stream and next offset
        self._avoided: dict[str, float] = {}  # address -> until when
        self._tasks = TaskSet("local reads")
        self._threads: Executor | None = None

    def machine(self, address: str) -> str:
        """What to tell that node; empty when its files are out of reach."""
        if self._avoided.get(address, float("-inf")) > self._runtime.clock.monotonic():
            return ""
        return self._runtime.disk.machine()

    async def go_on(self, want: Want) -> Fetched | None:
        """What follows in the file that the last read of the stream ended in."""
        reader = self._readers.pop((want.stream_id, want.offset), None)
        return None if reader is None else await self._run(self._read(reader, want))

    async def begin(
        self, address: str, range_: Range, stretch: FileStretch, want: Want
    ) -> Fetched | None:
        """The first batches of a stretch; None when they have to come as bytes."""
        stop = stretch.stop_offset
        if range_.end_offset >= 0:
            # A replica that has not learned the final end: what lies beyond it never happened.
            stop = min(stop, range_.end_offset)
        known = Stretch(
            stretch.binding,
            Point(stretch.start_position, stretch.start_offset),
            Point(stretch.stop_position, stop),
        )
        return await self._run(self._open(address, stretch, known, want))

    async def _run(self, work: Coroutine[Any, Any, Fetched | None]) -> Fetched | None:
        """To its end, whoever stops waiting: a file is not closed under a thread that reads it."""
        return await asyncio.shield(self._tasks.start(work))

    async def _open(
        self, address: str, stretch: FileStretch, known: Stretch, want: Want
    ) -> Fetched | None:
        disk = self._runtime.disk
        try:
            file = await self._executor.run(disk.open_same, stretch.path, stretch.identity)
        except HeadraceError:
            self._avoided[address] = self._runtime.clock.monotonic() + AVOID_SECONDS
            return None
        return await self._read(StretchReader(file, known), want)

    async def _read(self, reader: StretchReader, want: Want) -> Fetched | None:
        keep = False
        try:
            pieces = await self._executor.run(reader.read, want.offset, want.max_bytes)
            keep = bool(pieces) and not reader.is_over and reader.bytes < STRETCH_BYTES_MAX
        except HeadraceError:
            return None
        finally:
            if not keep:
                reader.close()
        if keep:
            self._keep(want.stream_id, reader)
        return Fetched(pieces, reader.next_offset, verified=True) if pieces else None

    def _keep(self, stream_id: int, reader: StretchReader) -> None:
        key = (stream_id, reader.next_offset)
        replaced = self._readers.pop(key, None)
        if replaced is not None:
            replaced.close()
        self._readers[key] = reader
        if len(self._readers) > READERS_MAX:
            self._readers.pop(next(iter(self._readers))).close()

    @property
    def _executor(self) -> Executor:
        if self._threads is None:
            self._threads = self._runtime.executor("local-reads", _THREADS)
        return self._threads

    async def close(self) -> None:
        await self._tasks.finish()
        while self._readers:
            self._readers.popitem()[1].close()
        if self._threads is not None:
            self._threads.close()
