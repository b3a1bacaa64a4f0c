"""What clients do with a cluster whose every broker leads while workers of it are killed.

Producers, a consumer that stores its offsets, and a publisher of windows; and what must hold after
it: nothing is lost, doubled or out of order, no stored offset went back, each window is there once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError
from headrace.wire.iggy.messages.extensions import PublisherOpened, ShardMap
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.cluster_processes import ClusterProcesses, wait_for

BROKERS, WORKERS, PARTITIONS = 3, 2, 12
AGAIN_SECONDS = 20.0
"""Until all partitions acknowledge again, on a machine with much other work."""
SETTLE_SECONDS = 60.0


def shard_map(cluster: ClusterProcesses, name: str = "broker-1") -> ShardMap:
    return cluster.call(name, lambda client: client.get_shards())


def wait_spread(cluster: ClusterProcesses) -> ShardMap:
    """Until all workers lead about as much as each other."""

    def spread() -> ShardMap | None:
        with suppress(HeadraceError):
            found = shard_map(cluster)
            led = Counter(shard.worker for shard in found.shards)
            if len(led) == BROKERS * WORKERS and max(led.values()) - min(led.values()) <= 1:
                return found
        return None

    found = wait_for(spread, SETTLE_SECONDS, "the shards are not spread over all workers")
    assert isinstance(found, ShardMap)
    return found


def workers_of(cluster: ClusterProcesses, broker: str) -> list[int]:
    return [child.pid for child in psutil.Process(cluster.pid(broker)).children()]


def new_shards(before: ShardMap, after: ShardMap) -> list[int]:
    """The shards of a topic that was made between the two: they follow each other."""
    counts = {each.shard: each.partitions for each in before.shards}
    grown = [each.shard for each in after.shards if each.partitions > counts[each.shard]]
    assert len(grown) == PARTITIONS, "another topic was made meanwhile"
    behind = max(range(len(grown)), key=lambda n: (grown[n] - grown[n - 1]) % len(after.shards))
    return grown[behind:] + grown[:behind]


@dataclass
class Load:
    """Producers of one partition each, a consumer that stores offsets, and a publisher of windows;
    each is connected to any broker, and to the next one when that is lost."""

    cluster: ClusterProcesses
    topic: str
    acknowledged: dict[int, list[int]] = field(default_factory=dict)
    unknown: dict[int, set[int]] = field(default_factory=dict)
    times: dict[int, list[float]] = field(default_factory=dict)
    at: dict[int, str] = field(default_factory=dict)
    """The broker that each producer is connected to."""
    shards: list[int] = field(default_factory=list)
    """Of each partition."""
    windows: int = 0
    stored: int = -1
    went_back: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        async with await self._connect(0) as client:
            with suppress(HeadraceError):
                await client.create_stream("load")
            before = await client.get_shards()
            await client.create_topic("load", self.topic, partitions_count=PARTITIONS)
            self.shards = new_shards(before, await client.get_shards())
            await client.create_topic("load", f"{self.topic}-w", partitions_count=PARTITIONS)
        work = [self._produce(each) for each in range(PARTITIONS)]
        self._tasks = [
            asyncio.create_task(each) for each in (*work, self._store_offsets(), self._publish())
        ]
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, number: int) -> IggyClient:
        names = self.cluster.names("broker")
        return await self.cluster.connect(names[number % len(names)])

    async def _produce(self, partition: int) -> None:
        acknowledged = self.acknowledged.setdefault(partition, [])
        unknown = self.unknown.setdefault(partition, set())
        times = self.times.setdefault(partition, [])
        number, broker = 0, partition
        while True:
            with suppress(HeadraceError, TimeoutError):
                names = self.cluster.names("broker")
                async with await self._connect(broker) as client:
                    self.at[partition] = names[broker % len(names)]
                    while True:
                        unknown.add(number)
                        number += 1
                        await client.send(
                            "load",
                            self.topic,
                            [Message(b"%d" % (number - 1))],
                            partitioning=Partitioning.to_partition(partition),
                        )
                        unknown.discard(number - 1)
                        acknowledged.append(number - 1)
                        times.append(time.monotonic())
                        await asyncio.sleep(0.01)
            broker += 1
            await asyncio.sleep(0.02)

    async def _store_offsets(self) -> None:
        reader, broker = Consumer.single(7), 0
        while True:
            with suppress(HeadraceError, TimeoutError):
                async with await self._connect(broker) as client:
                    while True:
                        found = await client.get_consumer_offset(reader, "load", self.topic, 0)
                        before = -1 if found is None else found.stored_offset
                        self.went_back += before < self.stored
                        self.stored = max(self.stored, before)
                        behind = len(self.acknowledged.get(0, ())) - 1
                        if behind > self.stored:
                            await client.store_consumer_offset(
                                reader, "load", self.topic, offset=behind, partition=0
                            )
                            self.stored = behind
                        await asyncio.sleep(0.05)
            broker += 1
            await asyncio.sleep(0.02)

    async def _publish(self) -> None:
        broker = 0
        while True:
            with suppress(HeadraceError, TimeoutError):
                async with await self._connect(broker) as client:
                    opened = await client.open_publisher(self.topic, "run")
                    while True:
                        await self._close_window(client, opened)
                        self.windows += 1
                        await asyncio.sleep(0.05)
            broker += 1
            await asyncio.sleep(0.02)

    async def _close_window(self, client: IggyClient, opened: PublisherOpened) -> None:
        spans = [
            await client.stage(
                opened,
                self.windows,
                encode_send(
                    "load",
                    f"{self.topic}-w",
                    Partitioning.to_partition(partition),
                    [Message(b"%d/%d" % (self.windows, partition))],
                ),
            )
            for partition in range(PARTITIONS)
        ]
        await client.close_window(
            opened, previous=self.windows - 1, window=self.windows, manifest=spans
        )

    async def wait_window(self) -> None:
        """Until another window is closed."""
        before, deadline = self.windows, time.monotonic() + AGAIN_SECONDS
        while self.windows == before:
            assert time.monotonic() < deadline, "no window is closed"
            await asyncio.sleep(0.05)

    async def pauses(self, killed: float) -> dict[int, float]:
        """The longest pause of each partition since then, once all acknowledge again."""
        deadline = time.monotonic() + AGAIN_SECONDS
        while not all(times and times[-1] > killed + 1.0 for times in self.times.values()):
            assert time.monotonic() < deadline, f"not all acknowledge again: {self.times.keys()}"
            await asyncio.sleep(0.05)
        return {
            partition: max(b - a for a, b in pairwise(each for each in times if each > killed - 2))
            for partition, times in self.times.items()
        }

    async def check(self) -> None:
        """Nothing is lost, doubled or out of order; what was published is there once."""
        async with await self._connect(1) as client:
            for partition in range(PARTITIONS):
                found = [int(each) for each in await self._read(client, self.topic, partition)]
                acknowledged, unknown = self.acknowledged[partition], self.unknown[partition]
                assert found == sorted(set(found)), "doubled, or out of order"
                assert set(acknowledged) <= set(found), "lost"
                assert set(found) <= {*acknowledged, *unknown}
                windows = await self._read(client, f"{self.topic}-w", partition)
                numbers = [int(each.split(b"/")[0]) for each in windows]
                assert numbers == list(range(len(numbers))), "a window twice, or none"
                assert len(numbers) in (self.windows, self.windows + 1)
        assert self.went_back == 0, "a stored offset went back"
        assert self.stored >= 0

    async def _read(self, client: IggyClient, topic: str, partition: int) -> list[bytes]:
        found: list[bytes] = []
        while True:
            polled = await client.poll(
                "load",
                topic,
                partition=partition,
                strategy=Strategy.offset(len(found)),
                count=1000,
            )
            payloads = [bytes(message.payload) for message in polled.messages()]
            if not payloads:
                return found
            found += payloads


@dataclass(frozen=True, slots=True)
class Struck:
    """The longest pause of each partition after a kill, in seconds."""

    led: list[float]
    """Of those that the killed workers led."""
    others: list[float]
    """Of those that others led, and whose producers were connected to others."""


async def strike(cluster: ClusterProcesses, load: Load, broker: str) -> Struck:
    """Kill all workers of a broker at once."""
    found = await asyncio.to_thread(wait_spread, cluster)
    names = {each.name for each in found.workers if each.address == cluster.address(broker)}
    shards = {each.shard for each in found.shards if each.worker in names}
    pids = await asyncio.to_thread(workers_of, cluster, broker)
    at = dict(load.at)
    killed = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    pauses = await load.pauses(killed)
    led = [p for p, shard in enumerate(load.shards) if shard in shards]
    others = [p for p in pauses if p not in led and at[p] != broker]
    return Struck([pauses[p] for p in led], [pauses[p] for p in others])
