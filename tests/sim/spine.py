"""The spine in the simulator: `python -m tests.sim.spine SEED` prints the trace and its digest.

The real shells of placement manager, data node and broker run on three simulated hosts, joined by a
simulated network. A client sends numbered messages and notes which were acknowledged; half-way the
data node loses power, and with it whatever it had not synced. It comes back, the client goes on,
and at the end every acknowledged message must poll back, once, in order, unchanged.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.broker.service import BrokerService
from headrace.client.iggy import IggyClient
from headrace.config.broker import BrokerSettings
from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.placement import PlacementSettings
from headrace.datanode.service import DataNodeService
from headrace.errors import HeadraceError
from headrace.net.credentials import node_credential
from headrace.placement.metadata.store import MemoryStore
from headrace.placement.service import PlacementService
from headrace.runtime import Runtime
from headrace.sbp_client.channels import Connect, tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.sbp.messages import ClientRole
from tests.simulator.runtime import Simulation

SECRET = b"simulated-secret"
PLACEMENT, NODE, BROKER, CLIENT = "pm", "dn", "broker", "client"
PLACEMENT_PORT, NODE_PORT, IGGY_PORT = 12378, 10911, 8090
BATCHES = 60
BATCH_MESSAGES = 5
CRASH_AFTER = 25  # acknowledged batches
DOWN_SECONDS = 2.0
ATTEMPTS_MAX = 200


@dataclass(slots=True)
class Spine:
    simulation: Simulation
    store: MemoryStore = field(default_factory=MemoryStore)
    acknowledged: list[bytes] = field(default_factory=list)
    unknown: set[bytes] = field(default_factory=set)
    """Sent, but the answer got lost: each may or may not be there."""
    polled: list[bytes] = field(default_factory=list)

    def _connect(
        self, runtime: Runtime, role: ClientRole
    ) -> tuple[Connect, Callable[[str], Connect]]:
        credential = node_credential(SECRET)

        def node(address: str) -> Connect:
            return tcp_connect(
                runtime, address, client_id=role.name, role=role, credential=credential
            )

        return node(f"{PLACEMENT}:{PLACEMENT_PORT}"), node

    async def start_placement(self) -> None:
        runtime = self.simulation.runtime(PLACEMENT)
        _, node = self._connect(runtime, ClientRole.PLACEMENT_MANAGER)
        service = PlacementService(
            runtime,
            PlacementSettings(),
            store=self.store,
            node=node,
            secret=SECRET,
        )
        await service.start()
        await service.listen("0.0.0.0", PLACEMENT_PORT)

    async def start_node(self) -> None:
        runtime = self.simulation.runtime(NODE)
        placement, _ = self._connect(runtime, ClientRole.DATA_NODE)
        service = DataNodeService(
            runtime,
            DataNodeSettings(),
            folder="/node",
            storage=StorageSettings(),
            placement=placement,
            secret=SECRET,
        )
        await service.start("0.0.0.0", NODE_PORT, advertise=f"{NODE}:{NODE_PORT}")

    async def start_broker(self) -> None:
        runtime = self.simulation.runtime(BROKER)
        placement, node = self._connect(runtime, ClientRole.CUSTOMER)
        client = SbpClient(
            runtime,
            placement=placement,
            node=node,
            client_id="broker",
        )
        service = BrokerService(
            runtime,
            BrokerSettings(root_username="iggy", root_password="iggy"),
            client,
            secret=SECRET,
            cluster_uuid="00000000-0000-4000-8000-000000000000",
            folder="/broker",
        )
        await service.start("0.0.0.0", IGGY_PORT)

    async def connect(self) -> IggyClient:
        runtime = self.simulation.runtime(CLIENT)
        client = await IggyClient.connect(runtime, BROKER, IGGY_PORT)
        await client.login("iggy", "iggy")
        return client

    async def produce(self) -> None:
        clock = self.simulation.runtime(CLIENT).clock
        client = await self.connect()
        await client.create_stream("s")
        await client.create_topic("s", "t", partitions_count=1)
        crash: asyncio.Task[None] | None = None
        for number in range(BATCHES):
            batch = [b"%d.%d" % (number, i) for i in range(BATCH_MESSAGES)]
            for attempt in range(ATTEMPTS_MAX):
                # A batch whose outcome is unknown is sent again under another name, so that what
                # polls back tells exactly which attempts were stored.
                payloads = [b"%s#%d" % (payload, attempt) for payload in batch]
                try:
                    if not client.usable:
                        client = await self.connect()
                    await client.send(
                        "s",
                        "t",
                        [Message(payload=p) for p in payloads],
                        partitioning=Partitioning.to_partition(0),
                    )
                except HeadraceError:
                    self.unknown.update(payloads)
                    await clock.sleep(0.2)
                else:
                    self.acknowledged += payloads
                    break
            if number == CRASH_AFTER:
                crash = asyncio.create_task(self.crash_node())
        assert crash is not None
        await crash
        while batch_polled := await client.poll(
            "s", "t", partition=0, strategy=Strategy.offset(len(self.polled)), count=100
        ):
            if not batch_polled.count:
                break
            self.polled += [message.payload for message in batch_polled.messages()]
        await client.close()

    async def crash_node(self) -> None:
        runtime = self.simulation.runtime(CLIENT)
        await runtime.clock.sleep(0.05 * runtime.random.uniform())
        self.simulation.crash(NODE, power_cut=True)
        await runtime.clock.sleep(DOWN_SECONDS)
        await self.simulation.on(NODE, self.start_node())

    async def main(self) -> None:
        await self.simulation.on(PLACEMENT, self.start_placement())
        await self.simulation.on(NODE, self.start_node())
        await self.simulation.on(BROKER, self.start_broker())
        await self.simulation.on(CLIENT, self.produce())


def run(seed: int) -> Spine:
    spine = Spine(Simulation(seed))
    spine.simulation.run(spine.main(), seconds_max=600)
    return spine


if __name__ == "__main__":
    done = run(int(sys.argv[1]))
    print("\n".join(done.simulation.trace))
    print(done.simulation.digest())
