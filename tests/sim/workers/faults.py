"""Trouble for workers, chosen by the seed. Every fault ends after a while, at the latest by `mend`.

A *step* is a call on the way of a change of the catalogue, of a hand-over or of a take-over; the
worker that makes it is killed or paused before or behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from headrace.broker.shards import messages as m
from headrace.broker.shards.service import WorkerService
from headrace.errors import HeadraceError, OutcomeUnknownError
from tests.sim.ending import come_back
from tests.sim.workers.world import SHARDS, World
from tests.simulator.host import check_alive
from tests.simulator.runtime import SimulatedRandom

ALL_FAULTS = (
    "kill",
    "kill",
    "kill_coordinator",
    "kill_machine",
    "stop",
    "pause",
    "pause",
    "cut",
    "cut_manager",
    "cut_node",
    "break_links",
    "manager_away",
    "node_away",
    "move",
    "move",
    "lose_answer",
    "lose_answer",
    "change_step",
    "change_step",
    "hand_over_step",
    "hand_over_step",
    "take_over_step",
)
Step = tuple[Callable[[WorkerService], Any], str]

CHANGE_STEPS: tuple[Step, ...] = (
    (lambda service: service.broker, "record"),
    (lambda service: service.worker, "wait_applied"),
    (lambda service: service.worker, "wait_members"),
)
HAND_OVER_STEPS: tuple[Step, ...] = (
    (lambda service: service.worker, "hand_over"),
    (lambda service: service.broker.partitions, "release"),
    (lambda service: service.broker.offset_logs, "release"),
    (lambda service: service.leases, "release"),
)
TAKE_OVER_STEPS: tuple[Step, ...] = (
    (lambda service: service.worker, "lead"),
    (lambda service: service.leases, "acquire"),
    (lambda service: service.broker.offset_logs, "open"),
)
_ARMED_SECONDS = 0.8


@dataclass(slots=True)
class Faults:
    world: World
    random: SimulatedRandom
    kinds: tuple[str, ...] = ALL_FAULTS
    struck: dict[str, int] = field(default_factory=dict)
    """How often each kind did something."""
    _busy: set[int] = field(default_factory=set)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, count: int, seconds: float) -> None:
        for _ in range(count):
            await asyncio.sleep(2 * self.random.uniform() * seconds / count)
            kind = self.kinds[self.random.below(len(self.kinds))]
            fault: Callable[[], Coroutine[Any, Any, None]] = getattr(self, f"_{kind}")
            self._tasks.append(asyncio.ensure_future(self._strike(kind, fault())))

    async def _strike(self, kind: str, fault: Coroutine[Any, Any, None]) -> None:
        self.world.simulation.record("main", f"fault {kind}")
        await fault

    async def mend(self) -> None:
        """When the faults under way are over."""
        while self._tasks:
            await self._tasks.pop()
        world = self.world
        world.simulation.heal()
        for number in range(world.workers_count):
            world.simulation.resume(world.host(number))
        for host in (*world.cluster.managers, *world.cluster.nodes):
            if not world.cluster.is_up(host):
                await come_back(world.cluster, host)
        for number in range(world.workers_count):
            if not world.is_up(number):
                world.launch(number)
        await world.launched()

    # -- choosing

    def _worker(self, wanted: int | None = None) -> int | None:
        free = [number for number in self.world.up() if number not in self._busy]
        if wanted is not None:
            return wanted if wanted in free else None
        return free[self.random.below(len(free))] if free else None

    def _seconds(self) -> float:
        """Shorter than a lease or longer."""
        return self.random.between(0.1, 1.8)

    def _did(self, kind: str) -> None:
        self.struck[kind] = self.struck.get(kind, 0) + 1

    # -- kinds

    async def _kill(self, wanted: int | None = None) -> None:
        number = self._worker(wanted)
        if number is not None:
            self._did("kill")
            await self._down(number)

    async def _down(self, number: int) -> None:
        self.world.kill(number)
        await self._stay_down(number)

    async def _stay_down(self, number: int) -> None:
        self._busy.add(number)
        await asyncio.sleep(self._seconds())
        self._busy.discard(number)
        self.world.launch(number)

    async def _kill_coordinator(self) -> None:
        await self._kill(self.world.coordinator())

    async def _kill_machine(self) -> None:
        """All of its workers at once."""
        machine = f"m{self.random.below(self.world.machines)}"
        numbers = [n for n in self.world.up() if self.world.machine(n) == machine]
        if not self._busy & set(numbers):
            self._did("kill_machine")
            await asyncio.gather(*map(self._down, numbers))

    async def _stop(self) -> None:
        """Orderly: shards are handed over."""
        number = self._worker()
        if number is None:
            return
        self._busy.add(number)
        self._did("stop")
        host, service = self.world.host(number), self.world.workers[number]
        try:
            async with asyncio.timeout(10.0):
                await self.world.simulation.on(host, service.close())
        except (HeadraceError, TimeoutError):
            pass
        await self._down(number)

    async def _pause(self) -> None:
        number = self._worker()
        if number is not None:
            self._did("pause")
            await self._hold(number)

    async def _hold(self, number: int) -> None:
        self._busy.add(number)
        host = self.world.host(number)
        self.world.simulation.pause(host)
        await asyncio.sleep(self._seconds())
        self.world.simulation.resume(host)
        self._busy.discard(number)

    async def _cut(self) -> None:
        """A machine from another one, from the placement manager or from a data node."""
        machine = f"m{self.random.below(self.world.machines)}"
        others = [f"m{number}" for number in range(self.world.machines)]
        others += [*self.world.cluster.managers, *self.world.cluster.nodes]
        others.remove(machine)
        chosen = {others[self.random.below(len(others))] for _ in range(2)}
        self._did("cut")
        for other in sorted(chosen):
            one_way = not self.random.below(4)
            self.world.simulation.partition(machine, other, one_way=one_way)
        await asyncio.sleep(self._seconds())
        self.world.simulation.heal()

    async def _cut_manager(self) -> None:
        """A machine from the placement manager, while its workers reach everybody else."""
        machine = f"m{self.random.below(self.world.machines)}"
        manager = self.world.cluster.managers[0]
        self._did("cut_manager")
        self.world.simulation.partition(machine, manager)
        await asyncio.sleep(1.0 + self._seconds())
        self.world.simulation.heal(machine, manager)

    async def _cut_node(self) -> None:
        """A machine from a data node, for long: its workers may not learn what is new."""
        machine = f"m{self.random.below(self.world.machines)}"
        nodes = self.world.cluster.nodes
        node = nodes[self.random.below(len(nodes))]
        self._did("cut_node")
        self.world.simulation.partition(machine, node)
        await asyncio.sleep(2.0 + self._seconds())
        self.world.simulation.heal(machine, node)

    async def _break_links(self) -> None:
        numbers = [self.random.below(self.world.workers_count) for _ in range(2)]
        a, b = (self.world.host(number) for number in numbers)
        self._did("break_links")
        self.world.simulation.break_connections(a, b)

    async def _manager_away(self) -> None:
        await self._away(self.world.cluster.managers[0], "manager_away")

    async def _node_away(self) -> None:
        nodes = self.world.cluster.nodes
        await self._away(nodes[self.random.below(len(nodes))], "node_away")

    async def _away(self, host: str, kind: str) -> None:
        if self.world.cluster.is_up(host):
            self._did(kind)
            self.world.cluster.crash(host)
            await asyncio.sleep(self._seconds())
            await come_back(self.world.cluster, host)

    async def _move(self) -> None:
        """A shard goes to another worker."""
        service = self.world.workers[self.world.coordinator()]
        coordinator = None if service.worker is None else service.worker.coordinator
        number = self._worker()
        if coordinator is None or number is None:
            return
        self._did("move")
        pins = service.broker.catalogue.pins
        pins[1 + self.random.below(SHARDS - 1)] = self.world.workers[number].holder
        coordinator._look.set()

    async def _lose_answer(self) -> None:
        """The answer of a request that was passed on gets lost with its link."""
        number = self._worker()
        if number is None:
            return
        links = self.world.workers[number]._links
        call, done = links.call, asyncio.Event()

        async def lossy(
            worker: str, head: bytes, body: Any, timeout: float
        ) -> tuple[bytes, memoryview]:
            answer = await call(worker, head, body, timeout)
            if done.is_set() or not isinstance(m.decode(head), m.Forward):
                return answer
            done.set()
            self._did("lose_answer")
            raise OutcomeUnknownError("the link is lost", worker=worker)

        links.call = lossy  # type: ignore[method-assign]
        await self._armed(done)
        links.call = call  # type: ignore[method-assign]

    async def _change_step(self) -> None:
        await self._step("change_step", CHANGE_STEPS, self.world.coordinator())

    async def _hand_over_step(self) -> None:
        number = self._worker()
        await asyncio.gather(
            self._step("hand_over_step", HAND_OVER_STEPS, number), self._move(), self._move()
        )

    async def _take_over_step(self) -> None:
        number = self._worker()
        await asyncio.gather(
            self._step("take_over_step", TAKE_OVER_STEPS, number), self._move(), self._move()
        )

    async def _step(self, kind: str, steps: tuple[Step, ...], number: int | None) -> None:
        if number is None or self._worker(number) is None:
            return
        owner_of, name = steps[self.random.below(len(steps))]
        owner = owner_of(self.world.workers[number])
        if owner is None:
            return
        original: Callable[..., Awaitable[Any]] = getattr(owner, name)
        behind, kills = bool(self.random.below(2)), bool(self.random.below(3))
        done = asyncio.Event()

        def strike() -> None:
            if done.is_set() or self._worker(number) is None:
                return
            done.set()
            self._did(f"{kind} {name} {'behind' if behind else 'before'}")
            # Not by the worker's own task: that one is about to end.
            self._tasks.append(self.world.simulation.start("main", then()))
            if kills:
                self._busy.add(number)
                self.world.kill(number)
            else:
                self.world.simulation.pause(self.world.host(number))
            check_alive()

        async def then() -> None:
            await (self._stay_down(number) if kills else self._hold(number))

        async def stepped(*args: Any, **kwargs: Any) -> Any:
            if not behind:
                strike()
                await asyncio.sleep(0)
            result = await original(*args, **kwargs)
            if behind:
                strike()
                await asyncio.sleep(0)
            return result

        setattr(owner, name, stepped)
        await self._armed(done)
        setattr(owner, name, original)

    async def _armed(self, done: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(_ARMED_SECONDS):
                await done.wait()
        except TimeoutError:
            return
