"""Two brokers on a simulated cluster: one leads, the other stands by, and the leader changes.

`python -m tests.sim.brokers SEED`. A client of Iggy's protocol sends numbered messages to whichever
broker it reaches and notes what was acknowledged, while brokers, data nodes and placement managers
crash, stall and are cut off. At the end every acknowledged message polls back, once and in order.

A numbered client (dialect C) sends a request whose outcome it does not know again as it was, to
whoever leads by then, until it is answered: then every message is there, exactly once.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.broker.service import BrokerService
from headrace.client.iggy import IggyClient
from headrace.config.broker import BrokerSettings
from headrace.errors import AlreadyExistsError, HeadraceError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.vsr.client import Conversation
from tests.sim.cluster import SECRET, Cluster
from tests.sim.ending import insist, mend
from tests.simulator.runtime import SimulatedRandom

BROKERS = ("broker0", "broker1")
PORT = 8090
CLIENT = "sender"
BATCHES = 40
BATCH_MESSAGES = 3
FAULTS = 5
POLL_SECONDS_MAX = 30.0
SETTINGS = BrokerSettings(
    root_username="iggy", root_password="iggy", lease_ms=2_000, leader_wait_ms=3_000
)


@dataclass(slots=True)
class Brokers:
    cluster: Cluster
    random: SimulatedRandom
    acknowledged: list[bytes] = field(default_factory=list)
    unknown: set[bytes] = field(default_factory=set)
    """Sent, but the answer got lost: each may or may not be there."""
    polled: list[bytes] = field(default_factory=list)
    leaders: list[str] = field(default_factory=list)
    services: dict[str, BrokerService] = field(default_factory=dict)
    talk: Conversation | None = None
    """Of a numbered client."""
    repeated: int = 0
    _next: int = 0

    async def start_broker(self, host: str) -> None:
        runtime = self.cluster.simulation.runtime(host)

        async def start() -> BrokerService:
            service = BrokerService(
                runtime,
                SETTINGS,
                self.cluster.client(host),
                secret=SECRET,
                cluster_uuid="00000000-0000-4000-8000-000000000000",
                folder="/broker",
                stands_by=True,
                advertise=f"{host}:{PORT}",
            )
            await service.start("0.0.0.0", PORT)
            return service

        self.services[host] = await self.cluster.simulation.on(host, start())

    async def connect(self) -> IggyClient:
        """To one broker after the other, until one takes the login."""
        runtime = self.cluster.simulation.runtime(CLIENT)

        async def attempt() -> IggyClient:
            self._next += 1
            host = BROKERS[self._next % len(BROKERS)]
            client = await IggyClient.connect(
                runtime, host, PORT, timeout=5.0, conversation=self.talk
            )
            try:
                await client.login("iggy", "iggy")
            except BaseException:
                await client.close()
                raise
            return client

        client = await insist(attempt, 200.0)
        assert isinstance(client, IggyClient)
        return client

    async def produce(self) -> None:
        client = await self.connect()
        client = await self._prepare(client)
        for number in range(BATCHES):
            attempt = 0
            while True:
                # A batch whose outcome is unknown is sent again under another name, so that what
                # polls back tells exactly which attempts were stored.
                payloads = [b"%d.%d#%d" % (number, i, attempt) for i in range(BATCH_MESSAGES)]
                try:
                    if not client.usable:
                        client = await self.connect()
                    await client.send(
                        "s",
                        "t",
                        [Message(payload=payload) for payload in payloads],
                        partitioning=Partitioning.to_partition(0),
                    )
                except HeadraceError:
                    self.unknown.update(payloads)
                    attempt += 1
                    await asyncio.sleep(0.2)
                    await client.close()
                else:
                    self.acknowledged += payloads
                    break
            await asyncio.sleep(0.3)
        await client.close()

    async def produce_numbered(self) -> None:
        client = await self.connect()
        client = await self._prepare(client)
        for number in range(BATCHES):
            payloads = [b"%d.%d" % (number, i) for i in range(BATCH_MESSAGES)]
            messages = [
                Message(payload, id=1 + number * BATCH_MESSAGES + i)
                for i, payload in enumerate(payloads)
            ]
            request = encode_send("s", "t", Partitioning.to_partition(0), messages)
            attempt = 0
            while True:
                try:
                    if not client.usable:
                        client = await self.connect()
                    if attempt == 0:
                        attempt = 1
                        sent = await client.call(c.SEND_MESSAGES, request)
                    else:
                        self.repeated += 1
                        sent = await client.again(c.SEND_MESSAGES)
                except HeadraceError:
                    await asyncio.sleep(0.2)
                    await client.close()
                else:
                    assert sent.placed[0].base_offset == len(self.acknowledged)
                    self.acknowledged += payloads
                    break
            await asyncio.sleep(0.3)
        await client.close()

    async def _prepare(self, client: IggyClient) -> IggyClient:
        """The topic, made by whoever leads; a creation whose answer got lost may have happened."""
        while True:
            try:
                with suppress(AlreadyExistsError):
                    await client.create_stream("s")
                with suppress(AlreadyExistsError):
                    await client.create_topic("s", "t", partitions_count=1)
                return client
            except HeadraceError:
                await client.close()
                client = await self.connect()

    async def poll(self) -> None:
        client = await self.connect()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + POLL_SECONDS_MAX
        while True:
            try:
                found = await client.poll(
                    "s", "t", partition=0, strategy=Strategy.offset(len(self.polled)), count=100
                )
            except HeadraceError:  # the leader changes, or has just begun
                assert loop.time() < deadline, "cannot be polled"
                await client.close()
                client = await self.connect()
                continue
            if not found.count:
                break
            self.polled += [message.payload for message in found.messages()]
        await client.close()

    # Trouble

    def leader(self) -> str:
        for host, service in self.services.items():
            if service.leads:
                return host
        return BROKERS[0]

    async def disturb(self) -> None:
        kinds = [self._crash_broker, self._stall_broker, self._cut_broker, self._crash_node]
        if self.talk is not None:
            kinds[1:1] = [self._crash_after_store] * 2
        for number in range(FAULTS):
            await asyncio.sleep(1.0 + 3 * self.random.uniform())
            self.leaders.append(self.leader())
            await kinds[(number + self.random.below(2)) % len(kinds)]()

    async def _crash_broker(self) -> None:
        host = self.leader()
        self.cluster.simulation.crash(host)
        await asyncio.sleep(3 * self.random.uniform())
        await self.start_broker(host)

    async def _crash_after_store(self) -> None:
        """With messages that are stored, and an answer that is not out yet."""
        host = self.leader()
        before = self._stored(host)
        for _ in range(4000):
            await asyncio.sleep(0.0005)
            if self._stored(host) != before:
                break
        self.cluster.simulation.crash(host)
        await asyncio.sleep(3 * self.random.uniform())
        await self.start_broker(host)

    def _stored(self, host: str) -> int:
        service = self.services[host]
        if not service.leads:
            return -1
        return sum(log.committed for log in service.broker.open_logs())

    async def _stall_broker(self) -> None:
        """For longer than its lease: another one leads when it wakes up."""
        host = self.leader()
        self.cluster.simulation.pause(host)
        await asyncio.sleep(1.0 + 5 * self.random.uniform())
        self.cluster.simulation.resume(host)

    async def _cut_broker(self) -> None:
        """From the placement managers, while data nodes and clients still reach it."""
        host = self.leader()
        for manager in self.cluster.managers:
            self.cluster.simulation.partition(host, manager)
        await asyncio.sleep(1.0 + 5 * self.random.uniform())
        self.cluster.simulation.heal()

    async def _crash_node(self) -> None:
        host = self.cluster.nodes[self.random.below(len(self.cluster.nodes))]
        self.cluster.crash(host)
        await asyncio.sleep(2 * self.random.uniform())
        await self.cluster.start_node(host)

    async def main(self) -> None:
        await self.cluster.start()
        for host in BROKERS:
            await self.start_broker(host)
        producing = self.produce() if self.talk is None else self.produce_numbered()
        sending = self.cluster.simulation.start(CLIENT, producing)
        await self.disturb()
        await mend(self.cluster)
        await sending
        await self.cluster.simulation.on(CLIENT, self.poll())


def run(seed: int, *, numbered: bool = False) -> Brokers:
    brokers = Brokers(Cluster(seed, nodes=3), SimulatedRandom(f"{seed}/brokers"))
    if numbered:
        brokers.talk = Conversation(b"numbered sender.")
    brokers.cluster.simulation.run(brokers.main(), seconds_max=600)
    return brokers


if __name__ == "__main__":
    done = run(int(sys.argv[1]))
    print("\n".join(done.cluster.simulation.trace))
    print(done.cluster.simulation.digest())
