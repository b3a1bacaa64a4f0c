"""A placement manager, a data node and a writer's host in the simulator."""

from __future__ import annotations

from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.placement import PlacementSettings
from headrace.datanode.service import DataNodeService
from headrace.net.credentials import node_credential
from headrace.placement.metadata.store import MemoryStore
from headrace.placement.service import PlacementService
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.channels import Connect, tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.messages import ClientRole
from tests.simulator.runtime import Simulation

SECRET = b"k" * 32
PLACEMENT = "pm:12378"
NODE = "dn:10911"


class World:
    """The placement store outlives crashes by being held here, as its disk would."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.store = MemoryStore()
        self.placement: PlacementService | None = None
        self.node: DataNodeService | None = None

    def connect(self, runtime: Runtime, address: str, role: ClientRole) -> Connect:
        return tcp_connect(
            runtime,
            address,
            client_id=role.name,
            role=role,
            credential=node_credential(SECRET),
        )

    async def start_placement(self) -> None:
        runtime = self.simulation.runtime("pm")

        async def start() -> PlacementService:
            service = PlacementService(
                runtime,
                PlacementSettings(),
                store=self.store,
                node=lambda address: self.connect(runtime, address, ClientRole.PLACEMENT_MANAGER),
                secret=SECRET,
            )
            await service.start()
            await service.listen("0.0.0.0", 12378)
            return service

        self.placement = await self.simulation.on("pm", start())

    async def start_node(self) -> None:
        runtime = self.simulation.runtime("dn")

        async def start() -> DataNodeService:
            service = DataNodeService(
                runtime,
                DataNodeSettings(heartbeat_interval_ms=500),
                folder="/data",
                storage=StorageSettings(),
                placement=self.connect(runtime, PLACEMENT, ClientRole.CUSTOMER),
                secret=SECRET,
            )
            await service.start("0.0.0.0", 10911, advertise=NODE)
            return service

        self.node = await self.simulation.on("dn", start())

    def client(self, host: str = "writer") -> SbpClient:
        """For code that runs on `host`."""
        runtime = self.simulation.runtime(host)
        return SbpClient(
            runtime,
            placement=self.connect(runtime, PLACEMENT, ClientRole.CUSTOMER),
            node=lambda address: self.connect(runtime, address, ClientRole.CUSTOMER),
            client_id=host,
        )

    async def sleep(self, seconds: float) -> None:
        await self.simulation.runtime("main").clock.sleep(seconds)
