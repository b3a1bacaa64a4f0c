"""How late a loop is, from ticks that come when they come."""

from __future__ import annotations

import asyncio

from headrace.broker.loop_delay import KEPT, LoopDelay
from headrace.runtime.interfaces import Clock


class LateClock(Clock):
    """Each sleep takes longer than asked by the next of these."""

    def __init__(self, late: list[float]) -> None:
        self._late = iter(late)
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def time_ns(self) -> int:
        return int(self._now * 1e9)

    async def sleep(self, seconds: float) -> None:
        late = next(self._late, None)
        if late is None:
            raise asyncio.CancelledError
        self._now += seconds + late


async def measured(late: list[float]) -> LoopDelay:
    delay = LoopDelay(LateClock(late))
    try:
        await delay.measure()
    except asyncio.CancelledError:
        return delay
    raise AssertionError("it measures until it is cancelled")


async def test_the_latest_of_a_hundred_is_left_out() -> None:
    delay = await measured([0.002] * 98 + [0.5, 0.05])
    assert round(delay.p99_ms(), 3) == 50.0
    assert delay.delays.count == 100


async def test_only_the_last_minute_counts() -> None:
    delay = await measured([1.0] * 50 + [0.001] * KEPT)
    assert round(delay.p99_ms(), 3) == 1.0
    assert delay.delays.count == 50 + KEPT


async def test_nothing_was_measured_yet() -> None:
    assert (await measured([])).p99_ms() == 0.0
