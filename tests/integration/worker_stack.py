"""A placement manager, a data node and several brokers that are workers, in this process."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.broker.core import Identity
from headrace.broker.shards.service import WorkerService
from headrace.broker.term.term import Setup
from headrace.broker.term.transports import Encryption
from headrace.client.iggy import IggyClient
from headrace.config.broker import BrokerSettings
from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.placement import PlacementSettings
from headrace.datanode.service import DataNodeService
from headrace.net.sbp_channel import Channel
from headrace.placement.metadata.store import SqliteStore, Store
from headrace.placement.service import PlacementService
from headrace.runtime.interfaces import Runtime
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import SbpClient
from tests.integration.broker_stack import DEVELOPMENT, SECRET


@dataclass
class WorkerStack:
    folder: str
    workers_count: int = 3
    settings: BrokerSettings = DEVELOPMENT
    runtime: Runtime = field(default_factory=system_runtime)
    encryption: Encryption | None = None

    store: Store = field(init=False)
    placement: PlacementService = field(init=False)
    node: DataNodeService = field(init=False)
    clients: dict[int, SbpClient] = field(default_factory=dict)
    workers: dict[int, WorkerService] = field(default_factory=dict)

    async def start(self) -> WorkerStack:
        self.runtime.disk.make_folder(self.folder)
        self.store = await SqliteStore.open(self.runtime, f"{self.folder}/placement.sqlite")
        self.placement = PlacementService(
            self.runtime,
            PlacementSettings(),
            store=self.store,
            node=lambda _: self._connect_node,
            secret=SECRET,
        )
        await self.placement.start()
        self.node = DataNodeService(
            self.runtime,
            DataNodeSettings(),
            folder=f"{self.folder}/node",
            storage=StorageSettings(),
            placement=self.placement.connect,
            secret=SECRET,
        )
        await self.node.start("127.0.0.1", 0)
        for number in range(self.workers_count):
            await self.start_worker(number)
        return self

    async def start_worker(self, number: int) -> WorkerService:
        client = self.clients[number] = SbpClient(
            self.runtime,
            placement=self.placement.connect,
            node=lambda _: self._connect_node,
            client_id=f"broker-{number}",
        )
        setup = Setup(
            runtime=self.runtime,
            settings=self.settings,
            client=client,
            encryption=self.encryption,
            identity=Identity(
                cluster_uuid="5a1e0000-0000-4000-8000-000000000001",
                cluster_name="test",
                placement_address="",
                version="0.1.0",
                secret=SECRET,
                started_us=self.runtime.clock.now_us(),
            ),
        )
        worker = self.workers[number] = WorkerService(
            setup,
            number=number,
            folder=f"{self.folder}/broker-{number}",
            link_path=f"{self.folder}/worker-{number}.sock",
        )
        await worker.start("127.0.0.1", 0)
        return worker

    async def _connect_node(self) -> Channel:
        return await self.node.connect()

    async def connect(self, number: int, *, login: bool = True) -> IggyClient:
        port = int(self.workers[number].address.rpartition(":")[2])
        client = await IggyClient.connect(self.runtime, "127.0.0.1", port)
        if login:
            await client.login("iggy", "iggy")
        return client

    async def stop_worker(self, number: int) -> None:
        await self.workers.pop(number).close()
        await self.clients.pop(number).close()

    async def kill_worker(self, number: int) -> None:
        """As if its process had died: nothing is finished, no lease is given back."""
        service = self.workers.pop(number)
        await self.clients.pop(number).close()
        if service.worker is not None:
            service.worker.shards.held.clear()
        await service.close()

    async def stop(self) -> None:
        for number in sorted(self.workers, reverse=True):
            await self.stop_worker(number)
        await self.node.close()
        await self.placement.close()
        await self.store.close()
