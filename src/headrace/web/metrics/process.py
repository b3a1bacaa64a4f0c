"""What every process tells of itself, and how late its event loop is.

The loop's delay is what a request waits at most because something held the loop: a tick is due
every second, and how late it comes is the figure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from headrace.observability.exposition import Family
from headrace.observability.metrics import family
from headrace.runtime.interfaces import Runtime

_TICK_SECONDS = 1.0
_TICKS = 60


class ProcessReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine says of the process; 0 where it does not."""

    memory_bytes: int = 0
    threads: int = 0


class ObservedProcess:
    def __init__(
        self,
        runtime: Runtime,
        version: str,
        read: Callable[[], ProcessReading] = ProcessReading,
    ) -> None:
        self._runtime = runtime
        self._version = version
        self._read = read
        self._started = runtime.clock.monotonic()
        self._delays: deque[float] = deque([0.0], maxlen=_TICKS)
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait([self._ticking])

    async def _tick(self) -> None:
        clock = self._runtime.clock
        while True:
            due = clock.monotonic() + _TICK_SECONDS
            await clock.sleep(_TICK_SECONDS)
            self._delays.append(max(0.0, clock.monotonic() - due))

    def families(self, ready: dict[str, bool]) -> Iterator[Family]:
        """`ready` by role."""
        info, readiness = family("process_info"), family("process_ready")
        for role, is_ready in ready.items():
            info.add(1, role=role, version=self._version)
            readiness.add(int(is_ready), role=role)
        yield from (info, readiness)
        reading = self._read()
        for name, value in (
            ("process_uptime_seconds", self._runtime.clock.monotonic() - self._started),
            ("process_cpu_seconds_total", self._runtime.processes.cpu_ns() / 1e9),
            ("process_memory_bytes", reading.memory_bytes),
            ("process_threads", reading.threads),
            ("process_loop_delay_seconds", self._delays[-1]),
            ("process_loop_delay_max_seconds", max(self._delays)),
        ):
            made = family(name)
            made.add(value)
            yield made
