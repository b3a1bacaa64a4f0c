"""FETCH: whole batches, from several streams, with a long poll over all of them.

A request waits until `min_bytes` are there over all its streams, an error shows, or its time is
over. An answer for one stream ends at its range's end. Pieces are cut at batch boundaries to about
a frame's size; the transport spreads them over frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from headrace.datanode.state import NodeState
from headrace.errors import HeadraceError, UnavailableError
from headrace.runtime.interfaces import Clock
from headrace.storage.rangelog import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import status_of
from headrace.wire.sbp.records import split

_IDLE_SECONDS = 0.05
"""How often a poll looks again at a range that failed: nobody wakes it when its successor opens."""


class Want:
    """One stream of a FETCH request."""

    def __init__(self, info: m.FetchInfo, state: NodeState[RangeLog], bytes_max: int) -> None:
        self.info = info
        self.pieces: list[memoryview] = []
        self.bytes = 0
        self.error: HeadraceError | None = None
        self._state = state
        self._bytes_max = max(1, min(info.batch_max_bytes, bytes_max))
        self._offset = info.fetch_offset
        self._log: RangeLog | None = None

    @property
    def finished(self) -> bool:
        """Waiting cannot make the answer longer."""
        if self.error is not None or self.bytes >= self._bytes_max:
            return True
        return self.bytes > 0 and self._log is not None and self._log.sealed

    async def start(self) -> None:
        if self.error is not None:
            return
        try:
            if self.info.start_timestamp >= 0:
                self._offset = await self._find_time(self.info.start_timestamp)
        except HeadraceError as error:
            self.error = error
        else:
            await self.read()

    async def _find_time(self, timestamp_ms: int) -> int:
        ranges = self._state.ranges(self.info.stream_id)
        if ranges and self._offset < ranges[0].start_offset:
            self._offset = ranges[0].start_offset
        first = self._state.containing(self.info.stream_id, self._offset)
        end = self._offset
        for log in ranges[ranges.index(first) :]:
            found = await log.offset_at(timestamp_ms)
            end = log.durable_offset
            if found < end:
                return max(found, self._offset)
        return end

    async def read(self) -> None:
        """Take what is there now."""
        if self.finished:
            return
        try:
            if not self.bytes:
                self._log = self._state.containing(self.info.stream_id, self._offset)
            assert self._log is not None
            views = await self._log.read(self._offset, self._bytes_max - self.bytes)
        except HeadraceError as error:
            if not self.bytes:
                self.error = error
            return
        for view in views:
            self.pieces.append(view)
            self.bytes += len(view)

    async def wait(self, clock: Clock) -> None:
        """Until there may be more to read."""
        assert self._log is not None
        if self.pieces:
            for header, _ in split(self.pieces[-1]):
                self._offset = header.next_offset
        await self._log.wait_for(self._offset)
        if self._log.durable_offset <= self._offset and not self._log.sealed:
            await clock.sleep(_IDLE_SECONDS)


async def collect(wants: Sequence[Want], *, min_bytes: int, max_wait: float, clock: Clock) -> float:
    """Fill the wants; see the module's rules. Returns the seconds spent reading, not waiting."""
    started = clock.monotonic()
    await _all([want.start() for want in wants])
    now = clock.monotonic()
    reading = now - started
    while sum(want.bytes for want in wants) < min_bytes and not any(w.error for w in wants):
        waiting = [want for want in wants if not want.finished]
        left = started + max_wait - now
        if not waiting or left <= 0:
            break
        if not await _wait_any([want.wait(clock) for want in waiting], left):
            break
        woken = clock.monotonic()
        await _all([want.read() for want in waiting])
        now = clock.monotonic()
        reading += now - woken
    return reading


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    if len(work) == 1:
        await work[0]
    else:
        await asyncio.gather(*work)


async def _wait_any(work: Sequence[Coroutine[Any, Any, None]], timeout: float) -> bool:
    """False when the time is over before any has ended."""
    if len(work) == 1:
        try:
            async with asyncio.timeout(timeout):
                await work[0]
        except TimeoutError:
            return False
        return True
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cut(view: memoryview, bytes_max: int) -> list[memoryview]:
    """Whole batches in pieces of about `bytes_max`; a longer batch stays whole."""
    if len(view) <= bytes_max:
        return [view]
    pieces: list[memoryview] = []
    start = end = 0
    for header, _ in split(view):
        if end > start and end + header.batch_bytes - start > bytes_max:
            pieces.append(view[start:end])
            start = end
        end += header.batch_bytes
    pieces.append(view[start:end])
    return pieces


def answer(wants: Sequence[Want], piece_bytes: int) -> tuple[m.FetchResponse, list[memoryview]]:
    results: list[m.FetchResult] = []
    payload: list[memoryview] = []
    for want in wants:
        if isinstance(want.error, UnavailableError):
            raise want.error  # the store closes: nothing here can be answered any more
        status = status_of(want.error) if want.error else m.OK
        results.append(
            m.FetchResult(
                stream_id=want.info.stream_id,
                request_index=want.info.request_index,
                batch_length=want.bytes,
                status=status,
            )
        )
        for piece in want.pieces:
            payload.extend(cut(piece, piece_bytes))
    return m.FetchResponse(fetch_responses=tuple(results), status=m.OK), payload
