"""`kill -9` at random moments under load, again and again on the same data.

Writers, consumers that store offsets and a consumer group run against `headrace up`; it dies, comes
back, and what it had acknowledged before is compared with what is there. 5 rounds run always, 50
under `make soak`.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.integration.server import Server, running

PARTITIONS = 4
BATCH = 5
READERS = (Consumer.single(1), Consumer.single("second"))
GROUP = Consumer.group("g")
MEMBERS = 2
LIFE_SECONDS = (0.1, 1.2)
ACKNOWLEDGED_MIN = 40  # batches of each writer before a kill: there is something to lose


@dataclass
class Session:
    """One connection of a writer: it numbers its messages from 0 and stops at the first error."""

    name: str
    acknowledged: int = 0
    sent: int = 0


@dataclass
class World:
    server: Server
    chance: random.Random
    sessions: dict[int, list[Session]] = field(default_factory=lambda: defaultdict(list))
    """By partition, in the order they wrote."""
    stored: dict[tuple[Consumer, int], int] = field(default_factory=dict)
    """The highest offset whose storing was acknowledged, by consumer and partition."""
    attempted: dict[tuple[Consumer, int], int] = field(default_factory=dict)
    verified: dict[int, int] = field(default_factory=dict)
    """By partition: the offset up to which every message was checked."""
    expected: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """By partition: what each session's next message must be."""
    group_batches: int = 0

    async def connect(self) -> IggyClient:
        address = parse_address(self.server.addresses["iggy"])
        client = await IggyClient.connect(system_runtime(), *address, timeout=20)
        await client.login("iggy", "iggy")
        return client

    # -- load

    async def write(self, partition: int) -> None:
        async with await self.connect() as client:
            sessions = self.sessions[partition]
            session = Session(f"{partition}/{len(sessions)}")
            sessions.append(session)
            to = Partitioning.to_partition(partition)
            while True:
                numbers = range(session.sent, session.sent + BATCH)
                session.sent += BATCH
                messages = [Message(b"%s %d" % (session.name.encode(), n)) for n in numbers]
                await client.send("s", "t", messages, partitioning=to)
                session.acknowledged = session.sent

    async def read(self, consumer: Consumer) -> None:
        async with await self.connect() as client:
            while True:
                for partition in range(PARTITIONS):
                    polled = await client.poll(
                        "s", "t", partition=partition, consumer=consumer, count=7
                    )
                    if not polled.count:
                        continue
                    key, offset = (consumer, partition), polled.messages()[-1].offset
                    # Reading goes on from what is stored, so it cannot lie behind.
                    assert offset > self.stored.get(key, -1)
                    self.attempted[key] = offset
                    await client.store_consumer_offset(
                        consumer, "s", "t", offset=offset, partition=partition
                    )
                    self.stored[key] = offset
                await asyncio.sleep(0.001)

    async def take_part(self) -> None:
        """A group member: polls commit by themselves, before they are answered."""
        async with await self.connect() as client:
            await client.join_group("s", "t", "g")
            while True:
                polled = await client.poll("s", "t", consumer=GROUP, count=7, auto_commit=True)
                if polled.count:
                    key, messages = (GROUP, polled.partition), polled.messages()
                    assert messages[0].offset > self.stored.get(key, -1), "handed out twice"
                    self.stored[key] = messages[-1].offset
                    self.group_batches += 1
                await asyncio.sleep(0.001)

    async def live(self) -> None:
        """Load until the server dies."""
        loads: list[Callable[[], Awaitable[None]]] = [
            *(lambda p=p: self.write(p) for p in range(PARTITIONS)),
            *(lambda c=c: self.read(c) for c in READERS),
            *(self.take_part for _ in range(MEMBERS)),
        ]

        async def guarded(load: Callable[[], Awaitable[None]]) -> None:
            with suppress(HeadraceError):  # the server is gone
                await load()

        before = self.group_batches
        tasks = [asyncio.create_task(guarded(load)) for load in loads]
        while self.busy_since(before):
            await asyncio.sleep(0.005)
            for task in tasks:
                if task.done():
                    task.result()
                    raise AssertionError("a client ended before the server did")
        await asyncio.sleep(self.chance.uniform(*LIFE_SECONDS))
        self.server.kill()
        await asyncio.gather(*tasks)

    def busy_since(self, group_batches: int) -> bool:
        """Whether somebody has not done enough yet to be worth killing."""
        written = all(
            self.sessions[p] and self.sessions[p][-1].acknowledged >= ACKNOWLEDGED_MIN * BATCH
            for p in range(PARTITIONS)
        )
        return not written or self.group_batches < group_batches + 10

    # -- what must hold afterwards

    async def verify(self) -> None:
        async with await self.connect() as client:
            for partition in range(PARTITIONS):
                await self.verify_messages(client, partition)
            for (consumer, partition), offset in self.stored.items():
                found = await client.get_consumer_offset(consumer, "s", "t", partition)
                assert found is not None, (consumer, partition)
                assert found.stored_offset >= offset, "a stored offset went back"
                # The last store may have been durable, its answer lost.
                if consumer is not GROUP:
                    assert found.stored_offset <= self.attempted[consumer, partition]
                self.stored[consumer, partition] = found.stored_offset
            group = await client.get_group("s", "t", "g")
            assert group is not None
            assert group.members == (), "members are connections: none outlives the server"

    async def verify_messages(self, client: IggyClient, partition: int) -> None:
        expected = self.expected[partition]
        offset = self.verified.get(partition, 0)
        while True:
            polled = await client.poll(
                "s", "t", partition=partition, strategy=Strategy.offset(offset), count=1000
            )
            if not polled.count:
                break
            for message in polled.messages():
                name, number = message.payload.decode().split(" ")
                assert message.offset == offset
                assert int(number) == expected.get(name, 0), "lost, repeated or out of order"
                expected[name] = int(number) + 1
                offset += 1
        self.verified[partition] = offset
        for session in self.sessions[partition]:
            kept = expected.get(session.name, 0)
            assert session.acknowledged <= kept <= session.sent, session

    async def prepare(self) -> None:
        async with await self.connect() as client:
            await client.create_stream("s")
            await client.create_topic("s", "t", partitions_count=PARTITIONS)
            await client.create_group("s", "t", "g")


@pytest.mark.parametrize(
    "rounds", [5, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
async def test_nothing_acknowledged_is_lost_or_repeated(tmp_path: Path, rounds: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with running(tmp_path / "server") as server:
        world = World(server, random.Random(seed))
        await world.prepare()
        for _ in range(rounds):
            await world.live()
            server.start()
            await world.verify()
        assert "Traceback" not in server.log
        messages = sum(world.verified.values())
        assert messages >= rounds * PARTITIONS * ACKNOWLEDGED_MIN * BATCH
        assert len(world.sessions[0]) == rounds
