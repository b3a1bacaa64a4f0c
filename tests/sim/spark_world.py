"""A query of Spark on a simulated cluster: our source and sink, driven as Spark drives them.

Real: placement, data nodes, broker, and the connector's own logic (`Following`, `Reading`,
`Delivering`, `Remote`, the Arrow conversions). Played: Spark, by `spark_engine`. Everything runs
on simulated hosts (`driver`, `exec0`, `exec1`, `broker`, `dn0`, ...), and wherever one of them does
something that matters it passes a named step, at which a plan may strike any of them.

The query copies `s/in` to `s/out`, without every third row and with an `x` before the payload. In
the end `s/out` holds exactly that, each key's rows in their order.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from argon2 import PasswordHasher

from headrace.broker.catalogue import passwords
from headrace.broker.partitions.partition import PartitionLog
from headrace.broker.service import BrokerService
from headrace.broker.windows.publishing import Publishing
from headrace.broker.windows.staging import Staging
from headrace.client.iggy import IggyClient
from headrace.config.broker import BrokerSettings
from headrace.errors import HeadraceError
from headrace.spark.options import SinkOptions, SourceOptions, parse_sink, parse_source
from headrace.spark.server import Remote
from headrace.spark.source.batch_plan import Offsets
from headrace.wire.iggy.messages.consumers import ConsumerOffset
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.user_headers import key_header
from tests.sim.cluster import PLACEMENT_PORT, SECRET, Cluster
from tests.sim.ending import come_back, insist
from tests.simulator.runtime import SimulatedRandom

DRIVER, BROKER = "driver", "broker"
EXECUTORS = ("exec0", "exec1")
VICTIMS = ("driver", "task", "broker", "node")
PORT = 8090
PARTITIONS = 2
KEYS = 3  # of each partition
GROUP = "watched"
PASSWORD = "HEADRACE_SIMULATED_PASSWORD"
RUNS_MAX = 30
SETTINGS = BrokerSettings(root_username="iggy", root_password="iggy", lease_ms=2_000)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does, as far as it is not left to its seed."""

    strikes: Mapping[str, str] = field(default_factory=dict)
    """Victims by step."""
    messages: int = 24
    later: int = 0
    """Sent while the query runs."""
    batch: int = 12
    nodes: int = 1
    starting: str = "earliest"
    available_now: bool = True
    """Without it a run ends when nothing came for a moment."""
    read_from: str = "auto"
    speculative: bool = False
    zombies: bool = False
    """Tasks outlive their driver, as on a cluster, until their executors notice."""
    grow: bool = False
    """The source gets another partition after its first batch."""


@dataclass(slots=True)
class Checkpoint:
    """What Spark keeps on storage that outlives everything; a file appears whole or not at all."""

    query: str = "query"
    offsets: dict[int, str] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)

    def committed(self) -> Offsets | None:
        if not self.commits:
            return None
        return Offsets.from_json(json.loads(self.offsets[self.commits[-1]]))


class World:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.cluster = Cluster(seed, managers=1, nodes=plan.nodes)
        self.simulation = self.cluster.simulation
        self.random = SimulatedRandom(f"{seed}/spark")
        self.checkpoint = Checkpoint()
        self.steps: list[str] = []
        self.struck: list[str] = []
        self.violations: list[str] = []
        self.runs = 0
        self.first: Sequence[int] = ()
        """Where reading began in each partition, unless at its first message."""
        self.reached: dict[str, Callable[[], Awaitable[None]]] = {}
        """Called when a step is passed."""
        self._counts: Counter[str] = Counter()
        self._repairs: asyncio.Queue[str] = asyncio.Queue()
        self._broken: list[str] = []
        self._whole = asyncio.Event()
        self._broker_life = -1
        self._starting = asyncio.Lock()
        self._remotes: dict[tuple[str, int], Remote] = {}
        self._number = 0
        where = {"address": f"{BROKER}:{PORT}", "stream": "s", "username": "iggy"}
        where["password"] = f"env:{PASSWORD}"
        self.source: SourceOptions = parse_source(
            {
                **where,
                "topic": "in",
                "startingOffsets": plan.starting,
                "maxMessagesPerTrigger": str(plan.batch),
                "readFrom": plan.read_from,
                "columns": "key,payload",
                "consumerGroup": GROUP,
            },
            streaming=True,
        )
        self.sink: SinkOptions = parse_sink({**where, "topic": "out"})

    # -- steps and strikes

    async def step(self, name: str, host: str = "") -> None:
        label = f"{name}#{self._counts[name]}"
        self._counts[name] += 1
        self.steps.append(label)
        if label in self.reached:
            await self.reached[label]()
        victim = self.plan.strikes.get(label)
        if victim is not None:
            self.struck.append(f"{victim} at {label}")
            self.strike(victim, host)
        await asyncio.sleep(0)  # whose host is gone ends here

    def strike(self, victim: str, host: str = "") -> None:
        if victim == "driver":
            self.simulation.crash(DRIVER, power_cut=False)
            if not self.plan.zombies:
                for each in EXECUTORS:
                    self.simulation.crash(each, power_cut=False)
        elif victim == "task":
            self.simulation.crash(host if host in EXECUTORS else EXECUTORS[0], power_cut=False)
        elif victim == "broker":
            self.simulation.crash(BROKER)
            self._mend_soon(BROKER)
        else:
            node = self.cluster.nodes[self.random.below(len(self.cluster.nodes))]
            if self.cluster.is_up(node):
                self.cluster.crash(node)
                self._mend_soon(node)

    def _mend_soon(self, host: str) -> None:
        self._broken.append(host)
        self._whole.clear()
        self._repairs.put_nowait(host)

    async def wait_whole(self) -> None:
        if self._broken:
            await self._whole.wait()

    async def _repair(self) -> None:
        """Each by itself: a broker cannot start before its data nodes are back."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._mend(await self._repairs.get()))

    async def _mend(self, host: str) -> None:
        await asyncio.sleep(0.2 + 2 * self.random.uniform())
        if host == BROKER:
            async with self._starting:
                await insist(self.start_broker)
        else:
            await come_back(self.cluster, host)
        self._broken.remove(host)
        if not self._broken:
            self._whole.set()

    # -- hosts

    async def start_broker(self) -> None:
        life = self.simulation.life(BROKER)
        if life == self._broker_life:
            return  # struck twice, and up again since
        runtime = self.simulation.runtime(BROKER)

        async def start() -> None:
            service = BrokerService(
                runtime,
                SETTINGS,
                self.cluster.client(BROKER),
                secret=SECRET,
                cluster_uuid="00000000-0000-4000-8000-000000000000",
                folder="/broker",
                placement_address=f"{self.cluster.managers[0]}:{PLACEMENT_PORT}",
            )
            await service.start("0.0.0.0", PORT)

        await self.simulation.on(BROKER, start())
        self._broker_life = life

    def remote(self, host: str, process: str = "") -> Remote:
        """Of one process on the host, as long as that lives."""
        key = (f"{host} {process}", self.simulation.life(host))
        if key not in self._remotes:
            target = self.sink.target
            self._remotes[key] = Remote(
                self.simulation.runtime(host), target.address, target.credentials, target.tls
            )
        return self._remotes[key]

    # -- messages

    async def ask(self, call: Callable[[IggyClient], Awaitable[Any]]) -> Any:
        return await self.remote("user").call(call)

    async def send(self, count: int) -> None:
        """The next messages, each to its partition; a key has one partition."""
        partitions = len((await self.ask(lambda c: c.get_topic("s", "in"))).partitions)
        for _ in range(count):
            number, partition = self._number, self._number % partitions
            self._number += 1
            headers = key_header(b"%d-%d" % (partition, number // partitions % KEYS))
            await self._send(partition, Message(b"%d" % number, headers))

    async def _send(self, partition: int, message: Message) -> None:
        where = Partitioning.to_partition(partition)
        await self.ask(lambda c: c.send("s", "in", [message], partitioning=where))

    async def stored(self, topic: str) -> list[list[Message]]:
        """What a topic holds, by partition."""
        details = await self.ask(lambda c: c.get_topic("s", topic))
        found: list[list[Message]] = []
        for partition in range(len(details.partitions)):
            messages: list[Message] = []
            while more := await self._poll(topic, partition, len(messages)):
                messages += more
            found.append(messages)
        return found

    async def _poll(self, topic: str, partition: int, offset: int) -> list[Message]:
        where = Strategy.offset(offset)
        polled = await self.ask(
            lambda c: c.poll("s", topic, partition=partition, strategy=where, count=1000)
        )
        return list(polled.messages())

    async def group_offsets(self) -> dict[int, int]:
        found = {}
        details = await self.ask(lambda c: c.get_topic("s", "in"))
        for partition in range(len(details.partitions)):
            stored = await self._group_offset(partition)
            if stored is not None:
                found[partition] = stored.stored_offset
        return found

    async def _group_offset(self, partition: int) -> ConsumerOffset | None:
        group = Consumer.group(GROUP)
        found: ConsumerOffset | None = await self.ask(
            lambda c: c.get_consumer_offset(group, "s", "in", partition)
        )
        return found

    # -- a whole run

    async def main(self, drive: Callable[[World], Awaitable[None]]) -> None:
        await self.cluster.start()
        await self.start_broker()
        repairing = asyncio.create_task(self._repair())
        for topic in ("in", "out"):
            target = self.source.target if topic == "in" else self.sink.target
            await self.remote("user").create_topic(target, partitions=PARTITIONS)
        await self.send(self.plan.messages)
        await drive(self)
        await self.wait_whole()
        await self.check()
        repairing.cancel()
        await asyncio.gather(repairing, return_exceptions=True)

    async def check(self) -> None:
        source = await self.stored("in")
        begun = [*self.first, *[0] * (len(source) - len(self.first))]
        wanted = [list(filtered(each[at:])) for each, at in zip(source, begun, strict=True)]
        found = [(m.key, m.payload) for each in await self.stored("out") for m in each]
        missing = Counter(row for each in wanted for row in each)
        missing.subtract(Counter(found))
        self.violations += [f"lost {row}" for row, n in missing.items() if n > 0]
        self.violations += [f"{-n} too many {row}" for row, n in missing.items() if n < 0]
        if not self.violations:
            ordered = {key: [row for row in found if row[0] == key] for key, _ in found}
            self.violations += [
                f"key {key!r} is out of order"
                for each in wanted
                for key in {row[0] for row in each}
                if [row for row in each if row[0] == key] != ordered[key]
            ]
        ends = {partition: len(each) - 1 for partition, each in enumerate(source) if each}
        if (groups := await self.group_offsets()) != ends:
            self.violations.append(f"the group is at {groups}, the topic ends at {ends}")

    async def check_group(self) -> None:
        """Between two runs: a group's offset never tells of what is not finished."""
        committed = self.checkpoint.committed()
        positions = {} if committed is None else committed.positions
        ends = {partition: at for (_, partition), (_, at) in positions.items()}
        for partition, offset in (await self.group_offsets()).items():
            if offset >= ends.get(partition, 0):
                self.violations.append(
                    f"the group is at {offset} of partition {partition}, finished is {ends}"
                )


def filtered(messages: Sequence[Message]) -> Iterator[tuple[bytes | None, bytes]]:
    """The batch computation."""
    for message in messages:
        if int(message.payload) % 3:
            yield message.key, b"x" + message.payload


def transformed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same, as Spark's tasks do it."""
    rows = [row for row in batch.to_pylist() if int(row["payload"]) % 3]
    keys = pa.array([row["key"] for row in rows], pa.binary())
    payloads = pa.array([b"x" + row["payload"] for row in rows], pa.binary())
    return pa.RecordBatch.from_arrays([keys, payloads], names=["key", "payload"])


@contextmanager
def watched(world: World) -> Iterator[None]:
    """The broker's part of a window passes steps, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSWORD, "iggy")
        patch.delenv("HEADRACE_TOKEN", raising=False)
        # Logins cost real time, and are not what is looked at here.
        cheap = partial(PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
        patch.setattr(passwords, "PasswordHasher", lambda **_: cheap())
        for owner, name, label in (
            (Publishing, "_record", ""),
            (Staging, "append", "stage"),
            (PartitionLog, "publish", "publish"),
        ):
            patch.setattr(owner, name, _stepping(world, getattr(owner, name), label))
        yield


def _stepping(world: World, call: Callable[..., Awaitable[Any]], label: str) -> Any:
    async def stepping(self: Any, *args: Any, **options: Any) -> Any:
        name = label or type(args[0]).__name__.lower()
        await world.step(f"broker before {name}")
        answer = await call(self, *args, **options)
        await world.step(f"broker after {name}")
        return answer

    return stepping


def run(seed: int, plan: Plan, drive: Callable[[World], Awaitable[None]]) -> World:
    world = World(seed, plan)
    with watched(world):
        try:
            world.simulation.run(world.main(drive), seconds_max=1000)
        except HeadraceError as error:
            world.violations.append(f"the run ended by {error!r}")
    return world
