"""A chain of containers on a simulated cluster: topic, edge, edge, topic.

`input` reads `s/in` and drops every third row, `middle0` (and `middle1`, sharing rows by key)
multiplies, `output` writes `s/out`; in a diamond `right` multiplies, too, and `output` reads both.
Real: cluster, broker, and all that a container does with edges (`chain_engine`). Played: Spark, and
a controller that deploys each container with the next epoch when it is gone, keeps nothing but that
number and the committed window, and purges the edges.

In the end `s/out` holds what a batch computation over `s/in` gives, each row once, and each key's
rows in their order, whoever was struck at whichever step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FencedError, HeadraceError, UnavailableError
from headrace.ids import WindowId
from headrace.pipeline.container.window_log import WindowLog
from headrace.pipeline.plan.edges import Edge, make_edge, purge_edge, purge_window, reset_edge
from headrace.spark.edges.offsets import EdgeLimits, Share
from headrace.spark.edges.options import EdgeOptions
from headrace.spark.edges.sink import EdgeSink
from headrace.spark.options import Target
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid
from tests.sim.chain_engine import SCHEMA, Part, Run, edge_target, hashed
from tests.sim.spark_engine import OtherWriterError
from tests.sim.spark_world import Plan, World, watched

CONTROLLER = "controller"
STORAGE = "storage"
RUNS_MAX = 60
RETENTION_MS = 2_000
END_SECONDS = 200.0


@dataclass(frozen=True, slots=True)
class ChainPlan(Plan):
    instances: int = 1
    """Of the container in the middle."""
    diamond: bool = False
    """Another container reads the first edge, too, and the output reads both."""
    roll_back_at: str = ""
    """A step at which input and middle are rolled back to their first windows; `output` starts
    afterwards, because what is in a user's topic cannot be taken back."""


class ChainWorld(World):
    def __init__(self, seed: int, plan: ChainPlan) -> None:
        super().__init__(seed, plan)
        self.instances = plan.instances
        self.first_edge = Edge("chain", "e1", 1)
        self.second_edge = Edge("chain", "e2", plan.instances)
        self.third_edge = Edge("chain", "e3", 1)
        self.edges = [self.first_edge, self.second_edge, *[self.third_edge][: plan.diamond]]
        self.grid = WindowGrid(0, 500)
        self.parts = {part.role: part for part in self._parts()}
        self.current: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self.zombies: list[asyncio.Task[None]] = []
        self.replaced: set[str] = set()
        self.checkpoints: dict[str, list[WindowId]] = {role: [] for role in self.parts}
        self.purged = self.committed = NO_WINDOW
        self.waiting = {"output"} if plan.roll_back_at else set[str]()
        """Not to be deployed yet."""
        self.rolling_back = False
        if plan.roll_back_at:
            self.reached[plan.roll_back_at] = self._ask_to_roll_back

    # -- the plan

    def _parts(self) -> list[Part]:
        first, second, third = (
            edge_target(self.sink.target, each.iggy_stream, each.topic)
            for each in (self.first_edge, self.second_edge, self.third_edge)
        )
        share = self.instances > 1
        ends = (second, third) if len(self.edges) > 2 else (second,)
        parts = [
            Part(
                "input",
                (self.source,),
                EdgeSink(first, self.first_edge.publisher(), 0, 0, mask=int(share)),
                lambda table: hashed(kept(table)) if share else kept(table),
                self.plan.batch,
            ),
            Part(
                "output",
                tuple(reads(end, beside=[one for one in ends if one != end]) for end in ends),
                self.sink,
                written,
            ),
        ]
        if third in ends:
            sink = EdgeSink(third, self.third_edge.publisher(), 0, 0)
            parts.append(Part("right", (reads(first),), sink, lambda table: multiplied(table, 7)))
        for number in range(self.instances):
            options = reads(first, Share(1, (number,)) if share else None)
            sink = EdgeSink(second, self.second_edge.publisher(number), number, 0)
            parts.append(Part(f"middle{number}", (options,), sink, multiplied))
        return parts

    # -- strikes

    def strike(self, victim: str, host: str = "") -> None:
        if victim == "self":
            self.simulation.crash(host, power_cut=False)
        elif victim == "zombie":
            self.replaced.add(host.rpartition("-")[0])
        elif victim == CONTROLLER:
            self.simulation.crash(CONTROLLER, power_cut=False)
        else:
            super().strike(victim, host)

    # -- the controller

    async def control(self) -> None:
        disk = self.simulation.disk(STORAGE)
        remote = self.remote(CONTROLLER)
        epoch = self._remembered("epoch", 0)
        self.committed = WindowId(self._remembered("committed", NO_WINDOW))
        for edge in self.edges:
            await remote.call(partial(make_edge, edge=edge))
            await self.step("controller after edge", CONTROLLER)
        while True:
            if self.rolling_back:
                epoch += 1
                disk.write_atomic("/controller/epoch", b"%d" % epoch)
                await self._roll_back(epoch)
            for role in self.parts:
                if role not in self.waiting and self._gone(role):
                    epoch += 1
                    disk.write_atomic("/controller/epoch", b"%d" % epoch)
                    await self.step("controller before deploy", CONTROLLER)
                    self._deploy(role, epoch)
            await self._purge()
            await asyncio.sleep(0.5)

    async def _ask_to_roll_back(self) -> None:
        self.rolling_back = True

    async def _roll_back(self, epoch: int) -> None:
        """Everything but the output to the window of the input's first batch."""
        disk = self.simulation.disk(STORAGE)
        roles = [role for role in self.parts if role not in self.waiting]
        for role in roles:
            if role in self.current:
                self.simulation.crash(f"{role}-{self.current[role][0]}", power_cut=False)
        target = self.checkpoints["input"][0]
        for role in roles:
            folder = f"/checkpoints/{role}"
            kept = WindowLog(disk, folder, self.grid).roll_back(target)
            for log in ("commits", "offsets"):
                for name in disk.list(f"{folder}/{log}"):
                    if int(name) > kept:
                        disk.remove(f"{folder}/{log}/{name}")
            self.checkpoints[role] = [each for each in self.checkpoints[role] if each <= target]
            await self.step("controller rolled back", CONTROLLER)
        for edge in self.edges:
            await self.remote(CONTROLLER).call(
                partial(reset_edge, edge=edge, window=target, epoch=epoch)
            )
            await self.step("controller after reset", CONTROLLER)
        self.rolling_back = False
        self.waiting.clear()

    def _remembered(self, name: str, default: int) -> int:
        disk = self.simulation.disk(STORAGE)
        disk.make_folder("/controller")
        path = f"/controller/{name}"
        return int(disk.read(path)) if disk.exists(path) else default

    def _gone(self, role: str) -> bool:
        if role not in self.current:
            return True
        _, task = self.current[role]
        if role in self.replaced and not task.done():
            self.zombies.append(task)
        if not task.done() and role not in self.replaced:
            return False
        self.replaced.discard(role)
        return True

    def _deploy(self, role: str, epoch: int) -> None:
        self.runs += 1
        assert self.runs <= RUNS_MAX, f"containers never stay: {self.struck} {self.violations}"
        host = f"{role}-{epoch}"
        runtime = self.simulation.runtime(host)
        run = Run(
            self.parts[role],
            epoch,
            remote=self.remote(host),
            disk=self.simulation.disk(STORAGE),
            clock=runtime.clock,
            grid=self.grid,
            step=lambda name: self.step(f"{role} {name}", host),
            report=self.checkpoints[role].append,
        )
        self.current[role] = (epoch, self.simulation.start(host, self._watch(role, run)))

    async def _watch(self, role: str, run: Run) -> None:
        try:
            await run.run()
        except (UnavailableError, FencedError, OtherWriterError):
            return  # the container exits; a run that lost its place says so, others come again
        except (HeadraceError, AssertionError) as error:
            self.violations.append(f"{role} failed: {error!r}")

    async def _purge(self) -> None:
        committed = self._compute_committed()
        if committed < self.committed:
            self.violations.append("the committed window moved back")
        self.committed = committed
        disk = self.simulation.disk(STORAGE)
        disk.write_atomic("/controller/committed", b"%d" % committed)
        now_ms = self.simulation.runtime(CONTROLLER).clock.now_ms()
        window = purge_window(
            self.grid, committed, now_ms=now_ms, rollback_retention_ms=RETENTION_MS
        )
        if window > self.purged:
            for edge in self.edges:
                await self.step("controller before purge", CONTROLLER)
                await self.remote(CONTROLLER).call(partial(purge_edge, edge=edge, window=window))
            self.purged = window

    def _compute_committed(self) -> WindowId:
        """Newest own checkpoint up to those downstream, from the end of the chain to its start."""
        bound: WindowId | None = None
        ends = {"input", "output"}
        for level in (["output"], [role for role in self.parts if role not in ends], ["input"]):
            found = []
            for role in level:
                passed = [w for w in self.checkpoints[role] if bound is None or w <= bound]
                found.append(max(passed, default=NO_WINDOW))
            bound = min(found)
        assert bound is not None
        return max(bound, self.committed)

    async def keep_controlling(self) -> None:
        """As a supervisor does it."""
        while True:
            task = self.simulation.start(CONTROLLER, self.control())
            await asyncio.wait({task})
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, UnavailableError):
                raise error
            await asyncio.sleep(1.0 + self.random.uniform())

    # -- a whole run

    async def drive(self) -> None:
        controlling = asyncio.create_task(self.keep_controlling())
        sending = asyncio.create_task(self.send(self.plan.later))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_SECONDS
        try:
            while loop.time() < deadline:
                await asyncio.sleep(1.0)
                for task in (controlling, sending):
                    if task.done():
                        task.result()
                if sending.done() and await self._count("out") >= len(await self._wanted()):
                    break
            else:
                self.violations.append("it never came to an end")
            await asyncio.sleep(5.0)  # for what should not come any more
        finally:
            controlling.cancel()
            self.simulation.crash(CONTROLLER, power_cut=False)
            for _, task in self.current.values():
                task.cancel()
            for task in self.zombies:
                task.cancel()

    async def _count(self, topic: str) -> int:
        return sum(len(each) for each in await self.stored(topic))

    async def _wanted(self) -> list[tuple[bytes | None, bytes]]:
        factors = (10, 7) if len(self.edges) > 2 else (10,)
        source = await self.stored("in")
        return [row for factor in factors for each in source for row in computed(each, factor)]

    async def check(self) -> None:
        wanted = await self._wanted()
        found = [(m.key, m.payload) for each in await self.stored("out") for m in each]
        missing = Counter(wanted)
        missing.subtract(Counter(found))
        self.violations += [f"lost {row}" for row, n in missing.items() if n > 0]
        self.violations += [f"{-n} too many {row}" for row, n in missing.items() if n < 0]
        if not self.violations and len(self.edges) == 2:
            for key in {key for key, _ in wanted}:
                if [r for r in wanted if r[0] == key] != [r for r in found if r[0] == key]:
                    self.violations.append(f"key {key!r} is out of order")


def reads(target: Target, share: Share | None = None, beside: Sequence[Target] = ()) -> EdgeOptions:
    return EdgeOptions(
        target=target,
        aligned=tuple(beside),
        starting=None,
        limits=EdgeLimits(windows_max=2),
        application=None,
        share=share,
        skip_until=NO_WINDOW,
        empty_batch_ms=0,
    )


def computed(messages: list[Message], factor: int) -> list[tuple[bytes | None, bytes]]:
    """The batch computation."""
    return [
        (message.key, b"%d" % (int(message.payload) * factor))
        for message in messages
        if int(message.payload) % 3
    ]


def kept(table: pa.Table) -> pa.Table:
    rows = [row for row in table.to_pylist() if int(row["payload"]) % 3]
    return pa.table(
        {
            "key": pa.array([row["key"] for row in rows], pa.binary()),
            "n": pa.array([int(row["payload"]) for row in rows], pa.int64()),
        }
    )


def multiplied(table: pa.Table, factor: int = 10) -> pa.Table:
    return pa.table(
        {"key": table.column("key"), "n": pc.multiply(table.column("n"), factor)}, schema=SCHEMA
    )


def written(table: pa.Table) -> pa.Table:
    return pa.table(
        {
            "key": table.column("key"),
            "payload": pc.cast(pc.cast(table.column("n"), pa.string()), pa.binary()),
        }
    )


def run_chain(seed: int, plan: ChainPlan) -> ChainWorld:
    world = ChainWorld(seed, plan)
    with watched(world):
        try:
            world.simulation.run(world.main(_drive), seconds_max=1000)
        except HeadraceError as error:
            world.violations.append(f"the run ended by {error!r}")
    return world


async def _drive(world: World) -> None:
    assert isinstance(world, ChainWorld)
    await world.drive()
