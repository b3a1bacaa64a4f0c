"""Placement manager, data node and broker on loopback in this process, as `headrace up` does."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.broker.service import BrokerService, RootCredentials
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

SECRET = b"\x07" * 32
DEVELOPMENT = BrokerSettings(root_username="iggy", root_password="iggy", lease_ms=9000)


@dataclass
class Stack:
    """`start`, then `stop`; started again on the same folder it continues."""

    folder: str
    settings: BrokerSettings = DEVELOPMENT
    storage: StorageSettings = field(default_factory=StorageSettings)
    runtime: Runtime = field(default_factory=system_runtime)
    root: RootCredentials | None = None
    port: int = 0

    store: Store = field(init=False)
    placement: PlacementService = field(init=False)
    node: DataNodeService = field(init=False)
    client: SbpClient = field(init=False)
    broker: BrokerService = field(init=False)

    async def start(self) -> Stack:
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
            storage=self.storage,
            placement=self.placement.connect,
            secret=SECRET,
        )
        await self.node.start("127.0.0.1", 0)
        await self.start_broker()
        return self

    async def start_broker(self) -> None:
        self.client = SbpClient(
            self.runtime,
            placement=self.placement.connect,
            node=lambda _: self._connect_node,
            client_id="broker",
        )
        self.broker = BrokerService(
            self.runtime,
            self.settings,
            self.client,
            secret=SECRET,
            cluster_uuid="5a1e0000-0000-4000-8000-000000000001",
            folder=f"{self.folder}/broker",
            on_root=self._keep_root,
        )
        await self.broker.start("127.0.0.1", self.port)
        self.port = int(self.address.rpartition(":")[2])  # the same again after a restart

    async def _connect_node(self) -> Channel:
        return await self.node.connect()

    def _keep_root(self, credentials: RootCredentials) -> None:
        self.root = credentials

    @property
    def address(self) -> str:
        return self.broker.address

    async def connect(self, *, login: bool = True) -> IggyClient:
        client = await IggyClient.connect(self.runtime, "127.0.0.1", self.port)
        if login:
            await client.login("iggy", "iggy")
        return client

    async def stop_broker(self) -> None:
        await self.broker.close()
        await self.client.close()

    async def stop(self) -> None:
        await self.stop_broker()
        await self.node.close()
        await self.placement.close()
        await self.store.close()
