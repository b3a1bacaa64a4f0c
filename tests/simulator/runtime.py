"""The simulated Runtime: whole clusters in one process and one thread, repeated by a seed.

    simulation = Simulation(seed)

    async def main():
        node = await simulation.on("n1", Service.start(simulation.runtime("n1")))
        ...
        simulation.crash("n1")                   # power cut: tasks, connections, unsynced pages
        node = await simulation.on("n1", Service.start(simulation.runtime("n1")))

    simulation.run(main())

A task belongs to the host on which it was started (`on`, `start`, or an accepted connection), and
so do the tasks it starts; a crash ends them. The main coroutine belongs to no host and may use the
runtime of any. `trace` tells what happened in which order; `digest()` of two runs with one seed is
equal, whatever PYTHONHASHSEED says.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, ParamSpec, TypeVar

from headrace.errors import UnavailableError
from headrace.runtime.interfaces import Clock, Runtime
from tests.simulator.disk import PowerCut, SimulatedDisk
from tests.simulator.host import Boot, Crashed, check_alive, current_boot
from tests.simulator.loop import DeadlockError, SimulatedLoop
from tests.simulator.network import SimulatedNetwork, SimulatedTransport
from tests.simulator.random import SimulatedRandom

__all__ = [
    "Crashed",
    "DeadlockError",
    "PowerCut",
    "SimulatedDisk",
    "SimulatedRandom",
    "Simulation",
]

P = ParamSpec("P")
T = TypeVar("T")

EPOCH_NS = 1_700_000_000_000_000_000  # the wall clock when a simulation starts
_START_SECONDS = 1000.0  # the monotonic clock then; its origin means nothing
_LATENCY_SECONDS = (0.000_1, 0.005)
_CLEAN_UP_SECONDS_MAX = 3600.0  # what is cancelled at the end of a run may take this long
_EXECUTION_SECONDS = (0.000_02, 0.002)  # how long a blocking function takes


class Simulation:
    def __init__(
        self,
        seed: int,
        *,
        latency: tuple[float, float] = _LATENCY_SECONDS,
        execution: tuple[float, float] = _EXECUTION_SECONDS,
    ) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.skew_ns: dict[str, int] = {}  # how far a host's wall clock is ahead; may change
        self._now = _START_SECONDS
        self._loop: SimulatedLoop | None = None
        self._random = SimulatedRandom(seed)
        self._execution = execution
        self._execution_random = self._random.derive("execution")
        self._network = SimulatedNetwork(
            self._random.derive("network"), self.record, latency=latency
        )
        self._boots: dict[str, Boot] = {}
        self._disks: dict[str, SimulatedDisk] = {}
        self._randoms: dict[str, SimulatedRandom] = {}

    # hosts

    def runtime(self, host: str) -> Runtime:
        """For one life of `host`: after a crash ask again."""
        boot = self._boot(host)
        return Runtime(
            clock=SimulatedClock(self, boot),
            random=self._randoms[host],
            disk=self._disks[host],
            transport=SimulatedTransport(self._network, boot),
            processes=SimulatedProcesses(),
            executor=functools.partial(self._executor, boot),
        )

    def life(self, host: str) -> int:
        """How often `host` crashed; a planned power cut is noticed by it."""
        return self._boot(host).number

    def disk(self, host: str) -> SimulatedDisk:
        self._boot(host)
        return self._disks[host]

    def start(self, host: str, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task of `host`."""
        loop = asyncio.get_running_loop()
        return loop.create_task(main, context=self._boot(host).context())

    async def on(self, host: str, main: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs on `host`; UnavailableError if that crashes."""
        boot = self._boot(host)
        task = self.start(host, main)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if boot.alive:
                raise
            check_alive()
            raise UnavailableError("the host crashed", host=host) from None

    def crash(self, host: str, *, power_cut: bool = True) -> None:
        """End everything on `host` at once. Without `power_cut` its written bytes stay visible."""
        boot = self._boot(host)
        boot.alive = False
        self._boots[host] = Boot(host, boot.number + 1)
        self.record(host, "crash" if power_cut else "kill")
        self._network.crash(host)
        if self._loop is not None:
            self._loop.resume(boot)  # a dead host is not a paused one: its tasks end now
            for task in self._loop.tasks():
                if task.boot is boot:
                    task.cancel()
        if power_cut:
            self._disks[host].power_cut()
        else:
            self._disks[host].end_process()

    def wipe(self, host: str) -> None:
        """A crash whose disk is replaced by an empty one."""
        self.crash(host)
        self._disks[host].wipe()

    def pause(self, host: str) -> None:
        """SIGSTOP: nothing on `host` runs until `resume`; connections stay open, time goes on."""
        assert self._loop is not None
        self.record(host, "pause")
        self._loop.pause(self._boot(host))

    def resume(self, host: str) -> None:
        assert self._loop is not None
        self.record(host, "resume")
        self._loop.resume(self._boot(host))

    def slow(self, host: str, factor: float = 1.0) -> None:
        """Let messages from and to `host`, and what it does in executors, take longer."""
        self.record(host, f"slow {factor:g}")
        self._network.slowness[host] = factor

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing passes between two hosts until `heal`; one way: nothing from `a` to `b`."""
        self._network.partition(a, b, one_way=one_way)

    def heal(self, a: str = "", b: str = "") -> None:
        """End the partition of two hosts, or all of them."""
        self._network.heal(a, b)

    def break_connections(self, a: str, b: str) -> None:
        """Reset every connection between two hosts; new ones may be made at once."""
        self._network.break_connections(a, b)

    def _boot(self, host: str) -> Boot:
        boot = self._boots.get(host)
        if boot is None:
            boot = self._boots[host] = Boot(host)
            self._randoms[host] = self._random.derive(f"random {host}")
            self._disks[host] = SimulatedDisk(
                self._random.derive(f"disk {host}"),
                on_operation=lambda operation, path: self.record(host, f"{operation} {path}"),
                on_cut=lambda: self._on_cut(host),
            )
        return boot

    def _on_cut(self, host: str) -> None:
        self.crash(host)
        check_alive()  # the writer itself ends here if it belongs to the host

    # running

    def run(self, main: Coroutine[Any, Any, T], *, seconds_max: float = 86_400.0) -> T:
        """Run `main` to its end, on a loop of its own; what still runs then is cancelled.

        DeadlockError when it can never end, or has not ended after `seconds_max` of virtual time.
        Time goes on where the last run ended, and disks keep what is on them.
        """
        loop = self._loop = SimulatedLoop(self._now)
        loop.limit(seconds_max)
        collecting = gc.isenabled()
        gc.disable()
        try:
            return loop.run_until_complete(loop.create_task(main, name="main"))
        finally:
            try:
                self._finish(loop)
            finally:
                self._loop = None
                self._now = loop.time()
                loop.close()
                if collecting:
                    gc.enable()

    def _finish(self, loop: SimulatedLoop) -> None:
        for boot in self._boots.values():
            loop.resume(boot)
        left = loop.tasks()
        for task in left:
            task.cancel()
        loop.limit(_CLEAN_UP_SECONDS_MAX)
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        self._network.stop()
        for host, boot in self._boots.items():
            boot.alive = False
            self._boots[host] = Boot(host, boot.number + 1)
            self._disks[host].end_process()

    def time(self) -> float:
        return self._now if self._loop is None else self._loop.time()

    # the trace

    def record(self, host: str, event: str) -> None:
        """Tests may add events of their own."""
        self.trace.append(f"{self.time():.6f} {host} {event}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def _executor(self, boot: Boot, name: str, threads: int) -> SimulatedExecutor:
        slowness = self._network.slowness
        return SimulatedExecutor(boot, threads, self._execution_random, self._execution, slowness)


class SimulatedClock(Clock):
    def __init__(self, simulation: Simulation, boot: Boot) -> None:
        self._simulation = simulation
        self._boot = boot

    def monotonic(self) -> float:
        return self._simulation.time()

    def time_ns(self) -> int:
        elapsed_ns = int((self.monotonic() - _START_SECONDS) * 1e9)
        return EPOCH_NS + elapsed_ns + self._simulation.skew_ns.get(self._boot.host, 0)

    async def sleep(self, seconds: float) -> None:
        self._boot.check()
        await asyncio.sleep(seconds)


@dataclass(slots=True, eq=False)
class _Job:
    call: Callable[[], Any]
    start: float
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None


class SimulatedExecutor:
    """Functions run inline, each when the virtual time it takes is over.

    With one thread they run in the order of the calls, with more in an order of the seed.
    """

    def __init__(
        self,
        boot: Boot,
        threads: int,
        random: SimulatedRandom,
        execution: tuple[float, float],
        slowness: Mapping[str, float],
    ) -> None:
        self._boot = boot
        self._slowness = slowness
        self._random = random
        self._execution = execution
        self._free_at = [0.0] * threads
        self._jobs: deque[_Job] = deque()
        self._closed = False

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._boot.check()
        if self._closed:
            raise RuntimeError("the executor is closed")
        loop = asyncio.get_running_loop()
        job = self._enqueue(loop, functools.partial(function, *args, **kwargs))
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            # As with threads: what has begun runs to its end, what has not never begins.
            if job.timer is not None and loop.time() < job.start:
                job.timer.cancel()
                self._jobs.remove(job)
            raise
        return result

    def close(self) -> None:
        self._closed = True
        while self._jobs:
            job = self._jobs[0]
            assert job.timer is not None
            job.timer.cancel()
            self._execute(job)

    def _enqueue(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> _Job:
        thread = min(range(len(self._free_at)), key=self._free_at.__getitem__)
        start = max(loop.time(), self._free_at[thread])
        seconds = self._random.between(*self._execution)
        if self._slowness:
            seconds *= self._slowness.get(self._boot.host, 1.0)
        end = self._free_at[thread] = start + seconds
        job = _Job(call, start, loop.create_future())
        job.timer = loop.call_at(end, self._execute, job)
        self._jobs.append(job)
        return job

    def _execute(self, job: _Job) -> None:
        """In the context of the caller, whose host may be gone by now."""
        job.timer = None
        self._jobs.remove(job)
        boot = current_boot()
        if not self._boot.alive or (boot is not None and not boot.alive):
            _fail(job.future, UnavailableError("the host crashed", host=self._boot.host))
            return
        try:
            result = job.call()
        except BaseException as error:
            _fail(job.future, error)
        else:
            if not job.future.done():
                job.future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error)


class SimulatedProcesses:
    async def spawn(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: str,
        output: str,
        outlives: bool = False,
    ) -> NoReturn:
        raise NotImplementedError(f"child processes are not simulated: {arguments[0]}")

    async def adopt(self, marks: Mapping[str, str]) -> None:
        return None

    async def start_worker(self, module: str) -> NoReturn:
        raise NotImplementedError(f"child processes are not simulated: {module}")

    def memory_bytes(self) -> int:
        return 64 << 30

    def cpu_ns(self) -> int:
        return 0
