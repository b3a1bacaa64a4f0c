"""FETCH: whole batches, from several streams, with a long poll over all of them.

A request waits until `min_bytes` are there over all its streams, one of them has an error, or its
time is over; then nobody waits any more. Each stream's answer holds what can be read up to its
`batch_max_bytes` and the end of the range, at least one batch. Only who leads an open range may
wait at its end: any other replica may lack what is acknowledged, so it says NotPrimaryError and
never "nothing new".

Data is sent as it arrives: what was read leaves in a frame when it fills one, when nothing is left
to do, or when the rest takes longer than a moment. So a poll holds no bytes while it waits, and one
stream's slow disk does not delay another's tail. What is read and not yet taken by the peer is
counted in the connection's gate; reads wait there, so that a peer that asks for much and takes
little costs no more memory than the gate has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from headrace.datanode.metrics import Counters
from headrace.datanode.state import NodeState
from headrace.errors import (
    CorruptionError,
    HeadraceError,
    OffsetOverflowError,
    UnavailableError,
)
from headrace.net.flow import Gate
from headrace.net.sbp_routes import Reply
from headrace.runtime.interfaces import Clock
from headrace.storage.range.log import RangeLog
from headrace.storage.segments.reader import Located
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import NotPrimaryError, status_of
from headrace.wire.sbp.records import split

MOMENT_SECONDS = 0.005
"""How long what is ready waits for the rest, so that one frame carries it all."""
LOCATED_BYTES_MIN = 1 << 20
"""Less than this, read or not, is sent as bytes: opening a file costs as much."""
_IDLE_SECONDS = 0.05
"""How often a poll looks again at a range that failed: nobody wakes it when its successor opens."""


@dataclass(frozen=True, slots=True, eq=False)
class _AnswerPart:
    """A piece of one stream's answer: batches, or that there is no more, or why there are none."""

    want: StreamFetch
    views: Sequence[memoryview]
    bytes: int


class StreamFetch:
    """One stream of a FETCH request."""

    def __init__(
        self,
        info: m.FetchInfo,
        state: NodeState[RangeLog],
        *,
        position: int,
        bytes_max: int,
        replica: bool = False,
    ) -> None:
        """`replica`: another data node asks, and copies what ends a range before it may be read."""
        self.info = info
        self._replica = replica
        self.position = position
        self.bytes = 0
        self.error: HeadraceError | None = None
        self._state = state
        self._left = max(1, min(info.batch_max_bytes, bytes_max))
        self._offset = info.fetch_offset
        self._log: RangeLog | None = None

    def read_at_once(self) -> Sequence[memoryview] | None:
        """What is in memory, nothing at the end of a range that we lead; None when it takes more
        to tell."""
        if self.error is not None or self.info.start_timestamp >= 0:
            return None
        try:
            log = self._state.containing(self.info.stream_id, self._offset)
        except HeadraceError:
            return None
        if self._offset == log.committed_offset:
            return () if not log.sealed and self._state.leads(log) else None
        return log.read_cached(self._offset, self._left) or None

    async def read_alone(
        self, bytes_max: int, gate: Gate | None
    ) -> tuple[Sequence[memoryview], int]:
        """What the files hold right now, and how much of it the gate has counted; nothing when a
        poll has to find out more."""
        if self.error is not None or self.info.start_timestamp >= 0 or self._left > bytes_max:
            return (), 0
        held = self._left
        if gate is not None:
            await gate.enter(held)
        views: Sequence[memoryview] = ()
        try:
            log = self._state.containing(self.info.stream_id, self._offset)
            if self._offset < log.committed_offset:
                views = await log.read(self._offset, self._left)
        except HeadraceError:
            views = ()  # a poll meets it again, and tells it
        finally:
            self.bytes = sum(map(len, views))
            if gate is not None:
                if views:
                    gate.resize(held, self.bytes)
                else:
                    gate.leave(held)
        return views, self.bytes if gate is not None else 0

    async def locate(self) -> Located | None:
        """Where a reader on this machine finds it by itself; None when there is too little of it
        for that to be worth its while, or a read has to find out more."""
        if self.error is not None or self.info.start_timestamp >= 0:
            return None
        try:
            log = self._state.containing(self.info.stream_id, self._offset)
            located = await log.locate(self._offset)
        except HeadraceError:
            return None  # a read meets it again, and tells it
        if located is None:
            return None
        start, stop = located.stretch.start, located.stretch.stop
        return located if stop.position - start.position >= LOCATED_BYTES_MIN else None

    async def run(self, poll: LongPoll) -> None:
        try:
            if self.error is None:
                await self._collect(poll)
        except HeadraceError as error:
            if isinstance(error, CorruptionError):
                poll.on_damage()
            if not self.bytes:  # otherwise the next request meets it
                self.error = error
        if self.error is not None:
            poll.stop_waiting()

    async def _collect(self, poll: LongPoll) -> None:
        if self.info.start_timestamp >= 0:
            self._offset = await self._find_time(self.info.start_timestamp)
        while self._left > 0:
            log = self._find_log()
            if self._offset < self._end_of(log):
                await self._read(poll, log)
            elif poll.over or log.sealed or not self._state.leads(log):
                return
            else:
                await self._wait(poll, log)

    async def _find_time(self, timestamp_ms: int) -> int:
        ranges = self._state.ranges(self.info.stream_id)
        if ranges and self._offset < ranges[0].start_offset:
            self._offset = ranges[0].start_offset
        first = self._state.containing(self.info.stream_id, self._offset)
        end = self._offset
        for log in ranges[ranges.index(first) :]:
            found = await log.offset_at(timestamp_ms)
            end = log.committed_offset
            if found < end:
                return max(found, self._offset)
        return end

    def _find_log(self) -> RangeLog:
        """An answer stays in the range it began in."""
        if self._log is None or not self.bytes:
            self._log = self._state.containing(self.info.stream_id, self._offset)
        log = self._log
        if self._offset >= self._end_of(log) and not self.bytes:
            if log.sealed or not self._state.leads(log):
                # Sealed and inside its bounds: we hold less of it than there is.
                raise NotPrimaryError("not committed here", offset=self._offset)
            if self._offset > log.committed_offset:
                raise OffsetOverflowError(offset=self._offset, end=log.committed_offset)
        return log

    def _end_of(self, log: RangeLog) -> int:
        return log.durable_offset if self._replica and log.final else log.committed_offset

    async def _wait(self, poll: LongPoll, log: RangeLog) -> None:
        """Until there may be more, or it is over."""
        async with poll.waiting():
            await log.wait_for(self._offset)
            if log.committed_offset <= self._offset and not log.sealed:
                await poll.clock.sleep(_IDLE_SECONDS)

    async def _read(self, poll: LongPoll, log: RangeLog) -> None:
        wanted = min(self._left, poll.frame_bytes)
        held = await poll.enter(wanted)
        try:
            started = poll.clock.monotonic()
            doubtful = self._offset >= log.committed_offset
            read = log.read_durable if doubtful else log.read
            views = await read(self._offset, wanted)
            poll.reading_seconds += poll.clock.monotonic() - started
            taken = sum(map(len, views))
            poll.resize(held, taken)
            held = taken
        except BaseException:
            poll.leave(held)
            raise
        self.bytes += taken
        # A read that stopped at its limit has given what this stream may get.
        self._left = self._left - taken if wanted < self._left or poll.wants_more(taken) else 0
        poll.put(_AnswerPart(self, views, taken))
        if self._left > 0 and views:
            for header, _ in split(views[-1]):
                self._offset = header.next_offset


class LongPoll:
    """One FETCH request: its streams, and what they have read and nobody has sent yet."""

    def __init__(
        self,
        wants: Sequence[StreamFetch],
        *,
        min_bytes: int,
        max_wait: float,
        clock: Clock,
        counters: Counters,
        frame_bytes: int,
        gate: Gate | None = None,
        on_damage: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock = clock
        self.on_damage = on_damage
        self.frame_bytes = frame_bytes
        self.reading_seconds = 0.0
        self._wants = wants
        self._counters = counters
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._missing = max(1, min_bytes)
        self._deadline = self._loop.time() + max_wait
        self._scopes: dict[int, asyncio.Timeout] = {}
        self._running = len(wants)
        self._ready: deque[_AnswerPart] = deque()
        self._ready_bytes = 0
        self._changed = asyncio.Event()
        self._failure: Exception | None = None

    # What the streams use

    @property
    def over(self) -> bool:
        """Whether nobody waits for more data."""
        return self._missing <= 0 or self._loop.time() >= self._deadline

    def wants_more(self, taken: int) -> bool:
        """Whether those bytes still leave the request waiting."""
        return self._missing > taken and self._loop.time() < self._deadline

    def stop_waiting(self) -> None:
        self._missing = 0
        for scope in list(self._scopes.values()):
            if not scope.expired():
                scope.reschedule(self._loop.time())

    def waiting(self) -> _Waiting:
        return _Waiting(self._scopes, self._deadline)

    async def enter(self, size: int) -> int:
        if self._gate is not None:
            await self._gate.enter(size)
        return size

    def resize(self, held: int, size: int) -> None:
        if self._gate is not None:
            self._gate.resize(held, size)

    def leave(self, held: int) -> None:
        if self._gate is not None:
            self._gate.leave(held)

    def put(self, part: _AnswerPart) -> None:
        self._ready.append(part)
        self._ready_bytes += part.bytes
        self._missing -= part.bytes
        if self._missing <= 0:
            self.stop_waiting()
        self._changed.set()

    async def _run(self, want: StreamFetch) -> None:
        try:
            await want.run(self)
            if not want.bytes:
                self._ready.append(_AnswerPart(want, (), 0))
        except Exception as error:  # ours; whoever sends the frames raises it
            self._failure = error
        finally:
            self._running -= 1
            self._changed.set()

    # What is sent

    async def replies(self) -> AsyncIterator[Reply]:
        """Frames of the answer; the last one says so."""
        tasks: list[asyncio.Task[None]] = []
        try:
            tasks += [self._loop.create_task(self._run(want)) for want in self._wants]
            last = False
            while not last:
                await self._fill_frame()
                if self._failure is not None:
                    raise self._failure
                parts = self._take_frame()
                last = not self._running and not self._ready
                try:
                    yield Reply(*_answer(parts), last=last)
                finally:
                    self._let_go(parts)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._let_go(self._ready)
            self._count()

    async def _fill_frame(self) -> None:
        while self._running and not self._ready:
            await self._wait_change()
        if not self._frame_is_due():
            try:
                async with asyncio.timeout(MOMENT_SECONDS):
                    while not self._frame_is_due():
                        await self._wait_change()
            except TimeoutError:
                pass

    def _frame_is_due(self) -> bool:
        return not self._running or self._ready_bytes >= self.frame_bytes

    async def _wait_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _take_frame(self) -> list[_AnswerPart]:
        parts: list[_AnswerPart] = []
        size = 0
        while self._ready and (not size or size + self._ready[0].bytes <= self.frame_bytes):
            part = self._ready.popleft()
            size += part.bytes
            parts.append(part)
        self._ready_bytes -= size
        return parts

    def _let_go(self, parts: Sequence[_AnswerPart] | deque[_AnswerPart]) -> None:
        for part in parts:
            if part.bytes:
                self.leave(part.bytes)

    def _count(self) -> None:
        counters = self._counters
        counters.fetches += len(self._wants)
        counters.fetches_failed += sum(want.error is not None for want in self._wants)
        counters.bytes_out += sum(want.bytes for want in self._wants)
        counters.fetch_times.observe(self.reading_seconds)


def answer_at_once(
    wants: Sequence[StreamFetch],
    *,
    min_bytes: int,
    waits: bool,
    frame_bytes: int,
    counters: Counters,
) -> Reply | None:
    """The whole answer without a task or a wait, if memory holds it and one frame too."""
    parts = []
    for want in wants:
        views = want.read_at_once()
        if views is None:
            return None
        parts.append(_AnswerPart(want, views, sum(map(len, views))))
    total = sum(part.bytes for part in parts)
    if total > frame_bytes or (waits and total < max(1, min_bytes)):
        return None
    counters.fetches += len(wants)
    counters.bytes_out += total
    return Reply(*_answer(parts))


async def answer_alone(
    want: StreamFetch, *, min_bytes: int, waits: bool, frame_bytes: int, gate: Gate | None,
    counters: Counters, clock: Clock,
) -> Reply | None:  # fmt: skip
    """The whole answer for one stream by one read, if nothing has to be waited for."""
    started = clock.monotonic()
    views, held = await want.read_alone(frame_bytes, gate)
    if not views:
        return None
    if waits and want.bytes < min_bytes:
        if gate is not None:
            gate.leave(held)
        want.bytes = 0
        return None
    counters.fetches += 1
    counters.bytes_out += want.bytes
    counters.fetch_times.observe(clock.monotonic() - started)
    message, payload = _answer([_AnswerPart(want, views, want.bytes)])
    return Reply(message, payload, held=held)


async def answer_located(want: StreamFetch, *, counters: Counters, clock: Clock) -> Reply | None:
    """Where to read instead of what: for a reader on this machine that says it can."""
    started = clock.monotonic()
    located = await want.locate()
    if located is None:
        return None
    stretch = located.stretch
    counters.fetches += 1
    counters.fetches_located += 1
    counters.fetch_times.observe(clock.monotonic() - started)
    result = m.FetchResult(
        stream_id=want.info.stream_id,
        request_index=want.info.request_index,
        status=m.OK,
        stretch=m.FileStretch(
            path=located.path,
            identity=located.identity,
            binding=stretch.binding,
            start_position=stretch.start.position,
            start_offset=stretch.start.offset,
            stop_position=stretch.stop.position,
            stop_offset=stretch.stop.offset,
        ),
    )
    return Reply(m.FetchResponse(fetch_responses=(result,), status=m.OK))


class _Waiting:
    """A wait that ends with the request's time or when somebody says that it is over."""

    def __init__(self, scopes: dict[int, asyncio.Timeout], deadline: float) -> None:
        self._scopes = scopes
        self._scope = asyncio.timeout_at(deadline)

    async def __aenter__(self) -> None:
        self._scopes[id(self)] = self._scope
        await self._scope.__aenter__()

    async def __aexit__(self, *error: object) -> bool:
        del self._scopes[id(self)]
        try:
            await self._scope.__aexit__(*error)  # type: ignore[arg-type]  # passed on as it came
        except TimeoutError:
            return True
        return False


def _answer(parts: Sequence[_AnswerPart]) -> tuple[m.FetchResponse, list[memoryview]]:
    """A frame that stands for itself: neighbouring parts of one stream make one result."""
    results: list[m.FetchResult] = []
    payload: list[memoryview] = []
    lengths: dict[StreamFetch, int] = {}
    grouped: dict[StreamFetch, list[memoryview]] = {}
    for part in sorted(parts, key=lambda part: part.want.position):
        lengths[part.want] = lengths.get(part.want, 0) + part.bytes
        grouped.setdefault(part.want, []).extend(part.views)
    for want, views in grouped.items():
        if isinstance(want.error, UnavailableError):
            raise want.error  # the store closes: nothing here can be answered any more
        results.append(
            m.FetchResult(
                stream_id=want.info.stream_id,
                request_index=want.info.request_index,
                batch_length=lengths[want],
                status=status_of(want.error) if want.error else m.OK,
            )
        )
        payload.extend(views)
    return m.FetchResponse(fetch_responses=tuple(results), status=m.OK), payload
