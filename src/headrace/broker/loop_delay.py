"""How late the event loop of a broker is: what a request waits because something held the loop.

A tick is due ten times a second, and how late it comes is one value. The last minute of them is
kept for a quantile, all of them in a histogram for `/metrics`.
"""

from __future__ import annotations

from collections import deque

from headrace.observability.metrics import Histogram
from headrace.runtime.interfaces import Clock

TICK_SECONDS = 0.1
KEPT = 600


class LoopDelay:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest: deque[float] = deque(maxlen=KEPT)
        self.delays = Histogram()

    async def measure(self) -> None:
        """Tick until cancelled."""
        clock = self._clock
        while True:
            due = clock.monotonic() + TICK_SECONDS
            await clock.sleep(TICK_SECONDS)
            late = max(0.0, clock.monotonic() - due)
            self._newest.append(late)
            self.delays.observe(late)

    def p99_ms(self) -> float:
        """99 of 100 ticks of the last minute were no later; 0 before the first one."""
        if not self._newest:
            return 0.0
        ordered = sorted(self._newest)
        return ordered[(len(ordered) * 99 - 1) // 100] * 1000
