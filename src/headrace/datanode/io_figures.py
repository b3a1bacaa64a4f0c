"""What the I/O executors are doing: the figures behind REPORT_METRICS' uring_* fields.

The runtime's executors are wrapped before the storage gets them, so whatever blocks on the disk is
counted, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from headrace.runtime.interfaces import Executor, Runtime

P = ParamSpec("P")
T = TypeVar("T")

_WINDOW_SECONDS = 60.0
_SLOT_SECONDS = 1.0


@dataclass(slots=True)
class IoFigures:
    """Of all metered executors together."""

    tasks: int = 0
    """Finished since start."""
    _outstanding: dict[object, tuple[int, int]] = field(default_factory=dict)
    """Executor -> (tasks given to it and not finished, its threads)."""
    _slots: deque[tuple[float, int, float]] = field(default_factory=deque)
    """(when it began, tasks finished, their seconds), one per second, a minute of them."""

    def on_start(self, executor: object, threads: int) -> None:
        count = self._outstanding.get(executor, (0, threads))[0]
        self._outstanding[executor] = (count + 1, threads)

    def on_end(self, executor: object, *, now: float, seconds: float) -> None:
        count, threads = self._outstanding[executor]
        self._outstanding[executor] = (count - 1, threads)
        self.tasks += 1
        self._expire(now)
        if self._slots and now - self._slots[-1][0] < _SLOT_SECONDS:
            began, tasks, total = self._slots[-1]
            self._slots[-1] = (began, tasks + 1, total + seconds)
        else:
            self._slots.append((now, 1, seconds))

    def _expire(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] >= _WINDOW_SECONDS:
            self._slots.popleft()

    @property
    def in_flight(self) -> int:
        """In a thread."""
        return sum(min(count, threads) for count, threads in self._outstanding.values())

    @property
    def pending(self) -> int:
        """Waiting for a thread."""
        return sum(max(0, count - threads) for count, threads in self._outstanding.values())

    def average_seconds(self, now: float) -> float:
        """From handing over to the end, over the last minute."""
        self._expire(now)
        tasks = sum(slot[1] for slot in self._slots)
        return sum(slot[2] for slot in self._slots) / tasks if tasks else 0.0


class MeteredExecutor:
    """An `Executor`."""

    def __init__(
        self, inner: Executor, threads: int, figures: IoFigures, monotonic: Callable[[], float]
    ) -> None:
        self._inner = inner
        self._threads = threads
        self._figures = figures
        self._monotonic = monotonic

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        started = self._monotonic()
        self._figures.on_start(self, self._threads)
        try:
            return await self._inner.run(function, *args, **kwargs)
        finally:
            now = self._monotonic()
            self._figures.on_end(self, now=now, seconds=now - started)

    def close(self) -> None:
        self._inner.close()


def metered(runtime: Runtime, figures: IoFigures) -> Runtime:
    """The same runtime; its executors count into `figures`."""

    def executor(name: str, threads: int) -> Executor:
        inner = runtime.executor(name, threads)
        return MeteredExecutor(inner, threads, figures, runtime.clock.monotonic)

    return replace(runtime, executor=executor)
