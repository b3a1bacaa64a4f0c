"""What a data node counts, and what it tells the placement manager with each heartbeat.

`metered` wraps the runtime's executors before the storage gets them. So whatever blocks on the disk
is counted, and nothing else: these are the figures behind REPORT_METRICS' uring_* fields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from headrace.observability.metrics import Histogram
from headrace.runtime.interfaces import Executor, Runtime
from headrace.wire.sbp.messages import DataNode, ReportMetricsRequest

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


_I16_MAX = 32_767  # the seed's counters are 16 bits wide: they stop there
_I32_MAX = 2**31 - 1


@dataclass(slots=True)
class Counters:
    """Since start; rates are differences between two reports."""

    appends: int = 0
    appends_failed: int = 0
    appends_in_flight: int = 0
    append_times: Histogram = field(default_factory=Histogram)
    fetches: int = 0
    fetches_failed: int = 0
    fetches_located: int = 0
    """Answered with the place in a file, for a reader on this machine."""
    fetch_times: Histogram = field(default_factory=Histogram)
    """Without the time a long poll waits for data."""
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What a report is made of."""

    node: DataNode
    now: float
    counters: Counters
    storage: dict[str, int]
    io: IoFigures
    free_bytes: int
    total_bytes: int
    active_ranges: int
    quarantined_ranges: int
    short_ranges: int
    """With a replica missing, or incomplete here."""


@dataclass(slots=True)
class Reporter:
    """Turns counters into a report about the time since the last one."""

    _at: float = 0.0
    _before: dict[str, float] = field(default_factory=dict)

    def report(self, load: Load) -> ReportMetricsRequest:
        counters, storage = load.counters, load.storage
        seconds = max(load.now - self._at, 0.001) if self._at else 1.0
        current = {
            "appends": counters.appends,
            "appends_failed": counters.appends_failed,
            "append_seconds": counters.append_times.seconds,
            "fetches": counters.fetches,
            "fetches_failed": counters.fetches_failed,
            "fetch_seconds": counters.fetch_times.seconds,
            "bytes_out": counters.bytes_out,
            "bytes_in": storage.get("written_bytes", 0),
            "io_tasks": load.io.tasks,
        }
        delta = {name: value - self._before.get(name, 0) for name, value in current.items()}
        self._at, self._before = load.now, dict(current)

        def rate(name: str) -> int:
            return min(_I16_MAX, round(delta[name] / seconds))

        def latency_ms(time: str, count: str) -> int:
            return min(_I16_MAX, round(1000 * delta[time] / max(delta[count], 1)))

        return ReportMetricsRequest(
            data_node=load.node,
            disk_in_rate=int(delta["bytes_in"] / seconds),
            disk_out_rate=int(delta["bytes_out"] / seconds),
            disk_free_space=load.free_bytes,
            disk_total_space=load.total_bytes,
            disk_unindexed_data_size=0,  # the index grows with the log
            memory_used=storage.get("tail_cache_bytes", 0) + storage.get("queued_bytes", 0),
            uring_task_rate=rate("io_tasks"),
            uring_inflight_task_cnt=min(_I16_MAX, load.io.in_flight),
            uring_pending_task_cnt=min(_I32_MAX, load.io.pending),
            uring_task_avg_latency=min(_I16_MAX, round(1000 * load.io.average_seconds(load.now))),
            network_append_rate=rate("appends"),
            network_fetch_rate=rate("fetches"),
            network_failed_append_rate=rate("appends_failed"),
            network_failed_fetch_rate=rate("fetches_failed"),
            network_append_avg_latency=latency_ms("append_seconds", "appends"),
            network_fetch_avg_latency=latency_ms("fetch_seconds", "fetches"),
            range_missing_replica_cnt=min(_I16_MAX, load.short_ranges),
            range_active_cnt=min(_I16_MAX, load.active_ranges),
            range_quarantined_cnt=load.quarantined_ranges,
        )
