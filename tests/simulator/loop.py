"""An asyncio event loop on virtual time, whose order of events depends on nothing but the program.

When nothing is ready, time jumps to the next timer; when there is no timer either, everybody waits
for somebody else, and that is an error with the list of who waits where.

Two sources of accidental order are closed here. asyncio keeps tasks and futures in sets (a
TaskGroup cancels in set order), and sets order by hash, which is the heap address: simulated ones
hash by a serial number instead. And cyclic garbage may finish asynchronous generators whenever the
collector happens to run: it runs at fixed iterations of this loop only.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from collections import deque
from collections.abc import Coroutine, Generator
from contextvars import Context
from itertools import count
from typing import Any, NoReturn, TypeVar

from tests.simulator.host import Boot, Crashed, current_boot

T = TypeVar("T")

ITERATIONS_PER_INSTANT_MAX = 100_000  # more without time going on is a busy loop
_ITERATIONS_PER_COLLECTION = 50_000
_TIMERS_MIN = 50  # with fewer, those that were cancelled are not worth a sweep
_CLOCK_RESOLUTION = 1e-6  # timers that close together fire in one iteration, in their order


class DeadlockError(RuntimeError):
    """The main coroutine can never finish, or did not in the virtual time it was given."""


class SimulatedFuture(asyncio.Future[T]):
    def __init__(self, serial: int, loop: SimulatedLoop) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class SimulatedTask(asyncio.Task[T]):
    """A task that belongs to the host of whoever started it."""

    def __init__(
        self,
        serial: int,
        coroutine: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: SimulatedLoop,
        name: str | None,
        context: Context | None,
    ) -> None:
        self.serial = serial  # before the base class, which puts the task into a set
        self.boot = current_boot(context)
        # asyncio's own names count on across loops, and would differ from run to run.
        super().__init__(coroutine, loop=loop, name=name or f"task-{serial}", context=context)

    def __hash__(self) -> int:
        return self.serial


class SimulatedLoop(asyncio.BaseEventLoop):
    # The base class keeps its queues here; typeshed does not tell.
    _ready: deque[Any]
    _scheduled: list[Any]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, now: float) -> None:
        super().__init__()
        self._until = float("inf")  # virtual time beyond which running is an error
        self._now = now
        self._serials = count(1)
        self._iterations = 0
        self._iterations_at_instant = 0
        self._paused: dict[Boot, deque[Any]] = {}
        self.set_exception_handler(_report)

    def limit(self, seconds_max: float) -> None:
        """Give what runs next so much virtual time; more is an error."""
        self._until = self._now + seconds_max
        self._iterations_at_instant = 0

    def time(self) -> float:
        return self._now

    def pause(self, boot: Boot) -> None:
        """SIGSTOP: nothing of that host runs, while time and the network go on."""
        self._paused.setdefault(boot, deque())

    def resume(self, boot: Boot) -> None:
        """What became due meanwhile runs now, in its order."""
        self._ready.extend(self._paused.pop(boot, ()))

    def _run_once(self) -> None:
        """As the base class does it, with virtual time in the place of a selector."""
        if 2 * self._timer_cancelled_count > len(self._scheduled) > _TIMERS_MIN:
            self._forget_cancelled()
        ready, timers = self._ready, self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1
        self._move_time(due=bool(ready) or self._stopping)
        end = self._now + _CLOCK_RESOLUTION
        while timers and timers[0]._when < end:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        if self._paused:
            self._set_aside()
        for _ in range(len(ready)):  # not what they make ready in their turn
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _forget_cancelled(self) -> None:
        """Most timers are deadlines that were kept: they would make the heap deep."""
        kept = []
        for timer in self._scheduled:
            if timer._cancelled:
                timer._scheduled = False
            else:
                kept.append(timer)
        heapq.heapify(kept)
        self._scheduled = kept
        self._timer_cancelled_count = 0

    def _move_time(self, *, due: bool) -> None:
        """To the next timer, unless something is due already."""
        self._iterations += 1
        if self._iterations % _ITERATIONS_PER_COLLECTION == 0:
            gc.collect()
        if due:
            self._iterations_at_instant += 1
            if self._iterations_at_instant > ITERATIONS_PER_INSTANT_MAX:
                raise DeadlockError(f"busy loop at {self._now:.6f}: {self._who_waits()}")
            return
        if not self._scheduled:
            raise DeadlockError(f"nobody can go on at {self._now:.6f}: {self._who_waits()}")
        self._iterations_at_instant = 0
        self._now = max(self._now, self._scheduled[0]._when)
        if self._now > self._until:
            raise DeadlockError(f"not done at {self._now:.6f}: {self._who_waits()}")

    def _set_aside(self) -> None:
        """Keep what belongs to paused hosts from the callbacks that this iteration runs."""
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            boot = current_boot(handle._context)
            aside = self._paused.get(boot) if boot is not None else None
            (self._ready if aside is None else aside).append(handle)

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector, so nobody has to be woken."""

    def create_future(self) -> SimulatedFuture[Any]:
        return SimulatedFuture(next(self._serials), self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **_eager: Any,
    ) -> SimulatedTask[T]:
        label = None if name is None else str(name)
        return SimulatedTask(next(self._serials), coro, loop=self, name=label, context=context)

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        raise RuntimeError("threads are not simulated: use runtime.executor")

    def tasks(self) -> list[SimulatedTask[Any]]:
        """Those not done, in the order they were made."""
        found = [task for task in asyncio.all_tasks(self) if isinstance(task, SimulatedTask)]
        return sorted(found, key=lambda task: task.serial)

    def _who_waits(self) -> str:
        return "; ".join(map(_describe, self.tasks())) or "no task is left"


def _describe(task: SimulatedTask[Any]) -> str:
    host = task.boot.host if task.boot is not None else "-"
    places = []
    waits: Any = task.get_coro()
    # Task.get_stack knows the outermost coroutine only; the innermost is where it hangs.
    while (frame := getattr(waits, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        waits = waits.cr_await
    return f"{host} {task.get_name()} in {' > '.join(places)}"


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a dead host's clean-up trips over is no error; the rest is reported as ever."""
    future = context.get("future") or context.get("task")
    boot = future.boot if isinstance(future, SimulatedTask) else current_boot()
    if isinstance(context.get("exception"), Crashed) or (boot is not None and not boot.alive):
        return
    loop.default_exception_handler(context)
