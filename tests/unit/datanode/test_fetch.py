"""FETCH over ranges that are lists: what waits, what is sent when, and what is held meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from headrace.datanode.fetch import MOMENT_SECONDS, LongPoll, StreamFetch, answer_at_once
from headrace.datanode.metrics import Counters
from headrace.datanode.state import NodeState
from headrace.errors import CorruptionError
from headrace.net.flow import Gate
from headrace.net.sbp_routes import Reply
from headrace.runtime.interfaces import Runtime
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.connection import Assembler
from tests.log_cluster import batch
from tests.simulator.runtime import Simulation

KIB = 1024


class FakeLog:
    """A range in memory. `slow` makes its reads wait, as a disk does."""

    def __init__(self, stream_id: int, *, cached: bool = False) -> None:
        self.key = RangeKey(stream_id, 0)
        self.start_offset = 0
        self.writer_epoch = -1
        self.sealed = False
        self.failed = False
        self.final_end = -1
        self.ack_quorum = 1
        self.replicas = (8, 9)  # we are neither
        self.slow: asyncio.Event | None = None
        self.damaged_at = -1
        self.reads: list[int] = []
        self._cached = cached
        self._batches: list[memoryview] = []
        self._appended = asyncio.Event()

    @property
    def durable_offset(self) -> int:
        return len(self._batches)

    committed_offset = next_offset = durable_offset

    @property
    def end_offset(self) -> int:
        return self.final_end if self.final_end >= 0 else len(self._batches)

    @property
    def final(self) -> bool:
        return self.sealed

    def append(self, size: int) -> None:
        pieces = batch(b"x" * (size - 55), base_offset=len(self._batches))
        self._batches.append(memoryview(b"".join(pieces)))
        self._wake()

    def seal(self) -> None:
        self.sealed = True
        self._wake()

    def _wake(self) -> None:
        self._appended.set()
        self._appended = asyncio.Event()

    async def wait_for(self, offset: int) -> None:
        while self.durable_offset <= offset and not self.sealed:
            await self._appended.wait()

    async def read(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        if self.slow is not None:
            await self.slow.wait()
        if offset == self.damaged_at:
            raise CorruptionError(offset=offset)
        views = self._views(offset, max_bytes)
        self.reads.append(sum(map(len, views)))
        return views

    def read_cached(self, offset: int, max_bytes: int) -> Sequence[memoryview]:
        return self._views(offset, max_bytes) if self._cached else ()

    def _views(self, offset: int, max_bytes: int) -> list[memoryview]:
        views: list[memoryview] = []
        for view in self._batches[offset:]:
            if views and sum(map(len, views)) + len(view) > max_bytes:
                break
            views.append(view)
        return views


class Fetch:
    """One request and the frames of its answer, each with when it came."""

    def __init__(
        self,
        logs: Sequence[FakeLog],
        *,
        offsets: Sequence[int] = (),
        min_bytes: int = 1,
        max_wait: float = 0.0,
        max_bytes: int = 1 << 20,
        frame_bytes: int = 4 << 20,
        gate: Gate | None = None,
    ) -> None:
        state: NodeState[RangeLog] = NodeState()
        for log in logs:
            state.on_range(cast(RangeLog, log))
        wants = [
            StreamFetch(
                m.FetchInfo(log.key.stream_id, 70 + i, offset, max_bytes),
                state,
                position=i,
                bytes_max=16 << 20,
            )
            for i, (log, offset) in enumerate(zip(logs, offsets or [0] * len(logs), strict=True))
        ]
        self.counters = Counters()
        self.loop = asyncio.get_running_loop()
        self.started = self.loop.time()
        self.frames: list[tuple[float, m.FetchResponse, int]] = []
        self._assembler = Assembler()
        ready = answer_at_once(
            wants,
            min_bytes=min_bytes,
            waits=max_wait > 0,
            frame_bytes=frame_bytes,
            counters=self.counters,
        )
        self.at_once = ready is not None
        poll = LongPoll(
            wants,
            min_bytes=min_bytes,
            max_wait=max_wait,
            clock=World.runtime.clock,
            counters=self.counters,
            frame_bytes=frame_bytes,
            gate=gate,
        )
        self._replies = poll.replies() if ready is None else _only(ready)

    async def next(self) -> Reply:
        reply = await anext(self._replies)
        message = cast(m.FetchResponse, reply.message)
        self.frames.append((self.loop.time() - self.started, message, sum(map(len, reply.payload))))
        self._assembler.add(reply.message, reply.payload)
        return reply

    async def all(self) -> dict[int, int]:
        """Bytes by request_index, once the last frame is there."""
        while not (await self.next()).last:
            pass
        await self.close()
        message = cast(m.FetchResponse, self._assembler.finish()[0])
        return {each.request_index: each.batch_length for each in message.fetch_responses}

    async def close(self) -> None:
        await cast(Any, self._replies).aclose()

    def statuses(self) -> dict[int, int]:
        return {
            each.request_index: each.status.code
            for _, message, _ in self.frames
            for each in message.fetch_responses
            if each.status is not None
        }

    def lengths(self) -> list[dict[int, int]]:
        return [
            {each.request_index: each.batch_length for each in message.fetch_responses}
            for _, message, _ in self.frames
        ]

    @property
    def times(self) -> list[float]:
        return [time for time, _, _ in self.frames]


async def _only(reply: Reply) -> AsyncIterator[Reply]:
    yield replace(reply, last=True)


class World:
    runtime: Runtime


def simulated(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test on a simulated clock."""

    def run() -> None:
        simulation = Simulation(7)
        World.runtime = simulation.runtime("node")
        simulation.run(simulation.on("node", test()))

    run.__name__ = test.__name__
    return run


async def later(seconds: float, work: Callable[[], object]) -> None:
    await World.runtime.clock.sleep(seconds)
    work()


async def during(work: Awaitable[Any], *others: Coroutine[Any, Any, None]) -> Any:
    """`work`, with the others going on beside it."""
    tasks = [asyncio.ensure_future(each) for each in others]
    try:
        return await work
    finally:
        await asyncio.gather(*tasks)


@simulated
async def test_what_is_in_memory_is_one_frame_at_once() -> None:
    logs = [FakeLog(1, cached=True), FakeLog(2, cached=True)]
    for log in logs:
        log.append(KIB)
    fetch = Fetch(logs, max_wait=9)
    assert fetch.at_once
    assert await fetch.all() == {70: KIB, 71: KIB}
    assert (fetch.counters.fetches, fetch.counters.bytes_out) == (2, 2 * KIB)


@simulated
async def test_an_empty_answer_needs_no_task_either() -> None:
    cached, empty = FakeLog(1, cached=True), FakeLog(2)
    cached.append(KIB)
    fetch = Fetch([cached, empty])
    assert fetch.at_once
    assert await fetch.all() == {70: KIB, 71: 0}
    assert not Fetch([cached, empty], min_bytes=2 * KIB, max_wait=1).at_once, "it waits for more"
    assert not Fetch([cached], frame_bytes=10).at_once, "it takes several frames"
    empty.seal()
    assert not Fetch([empty]).at_once


@simulated
async def test_f17_a_poll_at_the_end_is_answered_when_data_is_committed() -> None:
    log = FakeLog(1)
    fetch = Fetch([log], max_wait=10)
    assert await during(fetch.all(), later(3, lambda: log.append(200))) == {70: 200}
    assert fetch.times == [3.0]


@simulated
async def test_f17_a_poll_ends_with_an_empty_success_after_its_time() -> None:
    fetch = Fetch([FakeLog(1), FakeLog(2)], max_wait=10)
    assert await fetch.all() == {70: 0, 71: 0}
    assert fetch.statuses() == {70: 0, 71: 0}
    assert fetch.times == [pytest.approx(10.0)]


@simulated
async def test_min_bytes_counts_over_all_streams() -> None:
    logs = [FakeLog(1), FakeLog(2), FakeLog(3)]
    fetch = Fetch(logs, min_bytes=300, max_wait=10)
    found = await during(
        fetch.all(),
        later(1, lambda: logs[0].append(200)),
        later(2, lambda: logs[2].append(99)),
        later(4, lambda: logs[1].append(100)),
    )
    assert found == {70: 200, 71: 100, 72: 99}
    assert fetch.times[-1] == 4.0


@simulated
async def test_what_is_ready_leaves_while_the_others_wait() -> None:
    logs = [FakeLog(1), FakeLog(2)]
    logs[1].append(200)
    fetch = Fetch(logs, min_bytes=1000, max_wait=10)
    found = await during(fetch.all(), later(5, lambda: logs[1].append(300)))
    assert found == {70: 0, 71: 500}
    assert fetch.lengths() == [{71: 200}, {71: 300}, {70: 0}]
    moment = pytest.approx(MOMENT_SECONDS)
    assert fetch.times == [moment, pytest.approx(5 + MOMENT_SECONDS), pytest.approx(10.0)]


@simulated
async def test_a_slow_disk_delays_its_own_stream_only() -> None:
    logs = [FakeLog(1), FakeLog(2)]
    for log in logs:
        log.append(200)
    logs[0].slow = asyncio.Event()
    fetch = Fetch(logs)
    found = await during(fetch.all(), later(2, logs[0].slow.set))
    assert found == {70: 200, 71: 200}
    assert fetch.lengths() == [{71: 200}, {70: 200}]
    assert fetch.times == [pytest.approx(MOMENT_SECONDS), 2.0]


@simulated
async def test_what_comes_within_a_moment_shares_a_frame() -> None:
    logs = [FakeLog(1), FakeLog(2)]
    for log in logs:
        log.append(200)
    logs[0].slow = asyncio.Event()
    fetch = Fetch(logs)
    await during(fetch.all(), later(MOMENT_SECONDS / 2, logs[0].slow.set))
    assert fetch.lengths() == [{70: 200, 71: 200}], "in the order of the request"


@simulated
async def test_a_long_answer_is_cut_at_the_frame_size() -> None:
    logs = [FakeLog(1), FakeLog(2)]
    for log in logs:
        for _ in range(10):
            log.append(KIB)
    fetch = Fetch(logs, frame_bytes=4 * KIB)
    assert await fetch.all() == {70: 10 * KIB, 71: 10 * KIB}
    assert max(size for _, _, size in fetch.frames) <= 4 * KIB


@simulated
async def test_a_batch_larger_than_a_frame_travels_alone() -> None:
    log = FakeLog(1)
    for size in (KIB, 9 * KIB, KIB):
        log.append(size)
    fetch = Fetch([log], frame_bytes=4 * KIB)
    assert await fetch.all() == {70: 11 * KIB}
    assert [size for _, _, size in fetch.frames] == [KIB, 9 * KIB, KIB]


@simulated
async def test_batch_max_bytes_is_kept_but_one_batch_always_comes() -> None:
    log = FakeLog(1)
    for _ in range(9):
        log.append(KIB)
    assert await Fetch([log], max_bytes=1).all() == {70: KIB}
    assert await Fetch([log], max_bytes=3 * KIB + 1).all() == {70: 3 * KIB}


@simulated
async def test_nothing_is_read_for_a_peer_that_does_not_take_it() -> None:
    logs = [FakeLog(stream_id) for stream_id in range(1, 6)]
    for log in logs:
        for _ in range(40):
            log.append(KIB)
    gate = Gate(1000, 8 * KIB)
    polls = [Fetch([log], frame_bytes=4 * KIB, gate=gate) for log in logs]
    first = [asyncio.ensure_future(poll.next()) for poll in polls]
    await World.runtime.clock.sleep(60)
    assert not all(task.done() for task in first), "some wait for room"
    assert sum(sum(log.reads) for log in logs) == gate.bytes == 8 * KIB

    async def take(task: asyncio.Future[Reply], poll: Fetch) -> None:
        reply = await task
        while not reply.last:
            assert gate.bytes <= 8 * KIB
            reply = await poll.next()
        await poll.close()

    await asyncio.gather(*map(take, first, polls))
    assert (gate.count, gate.bytes) == (0, 0)


@simulated
async def test_an_answer_given_up_half_way_holds_nothing() -> None:
    log = FakeLog(1)
    for _ in range(40):
        log.append(KIB)
    gate = Gate(1000, 64 * KIB)
    fetch = Fetch(
        [log, FakeLog(2)], frame_bytes=4 * KIB, max_wait=60, min_bytes=99 * KIB, gate=gate
    )
    await fetch.next()
    assert gate.bytes > 0
    await fetch.close()
    assert (gate.count, gate.bytes) == (0, 0)


@simulated
async def test_an_error_is_final_and_ends_the_waiting() -> None:
    logs = [FakeLog(1), FakeLog(2), FakeLog(3)]
    logs[0].append(200)
    logs[2].append(100)
    logs[2].damaged_at = 0
    fetch = Fetch(logs, min_bytes=1000, max_wait=60)
    assert await fetch.all() == {70: 200, 71: 0, 72: 0}
    assert fetch.statuses() == {70: 0, 71: 0, 72: 2503}
    assert fetch.times[-1] < 1
    assert fetch.counters.fetches_failed == 1


@simulated
async def test_damage_behind_good_batches_is_told_by_the_next_request() -> None:
    log = FakeLog(1)
    for _ in range(8):
        log.append(KIB)
    log.damaged_at = 4
    fetch = Fetch([log], frame_bytes=4 * KIB)
    assert await fetch.all() == {70: 4 * KIB}
    assert fetch.statuses() == {70: 0}
    again = Fetch([log], offsets=[4])
    assert await again.all() == {70: 0}
    assert again.statuses() == {70: 2503}


@simulated
async def test_an_answer_ends_with_its_range() -> None:
    log = FakeLog(1)
    log.append(200)
    log.seal()
    fetch = Fetch([log], min_bytes=1000, max_wait=60)
    assert await fetch.all() == {70: 200}
    assert fetch.times == [0.0]


@simulated
async def test_an_incomplete_range_never_says_that_there_is_nothing() -> None:
    log = FakeLog(1)
    log.append(200)
    log.seal()
    log.final_end = 5  # four more batches exist elsewhere
    fetch = Fetch([log], max_wait=60)
    assert await fetch.all() == {70: 200}, "what is there is given"
    missing = Fetch([log], offsets=[1], max_wait=60)
    await missing.all()
    assert missing.statuses() == {70: 2502}
    assert missing.times == [0.0]


@simulated
async def test_who_does_not_lead_a_range_never_says_that_there_is_nothing() -> None:
    log = FakeLog(1)
    log.append(200)
    log.ack_quorum = 2
    below = Fetch([log], min_bytes=1000, max_wait=60)
    assert await below.all() == {70: 200}
    assert below.times == [0.0], "what it knows, without waiting for what it may never hear"
    for wait in (0, 60):
        at_end = Fetch([log], offsets=[1], max_wait=wait)
        assert not at_end.at_once
        await at_end.all()
        assert (at_end.statuses(), at_end.times) == ({70: 2502}, [0.0])
    beyond = Fetch([log], offsets=[9], max_wait=60)
    await beyond.all()
    assert beyond.statuses() == {70: 2502}


@simulated
async def test_a_poll_does_not_end_empty_when_the_range_is_no_longer_led() -> None:
    log = FakeLog(1)
    fetch = Fetch([log], max_wait=10)

    def lose() -> None:
        log.ack_quorum = 2

    await during(fetch.all(), later(3, lose))
    assert fetch.statuses() == {70: 2502}


@simulated
async def test_a_bug_in_a_read_ends_the_answer() -> None:
    log = FakeLog(1)
    log.append(200)

    async def broken(offset: int, max_bytes: int) -> Sequence[memoryview]:
        raise ZeroDivisionError

    log.read = broken  # type: ignore[method-assign]  # a fault
    gate = Gate(9, KIB)
    fetch = Fetch([log, FakeLog(2)], max_wait=60, gate=gate)
    with pytest.raises(ZeroDivisionError):
        await fetch.next()
    assert gate.count == 0


@simulated
async def test_an_offset_beyond_the_end_is_not_waited_for() -> None:
    fetch = Fetch([FakeLog(1)], offsets=[3], max_wait=60)
    await fetch.all()
    assert (fetch.statuses(), fetch.times) == ({70: 1461}, [0.0])
