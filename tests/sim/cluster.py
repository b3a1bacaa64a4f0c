"""A whole SBP cluster in the simulator: the real services, joined by the simulated network.

Hosts are named `pm0`, `pm1`, ... (placement managers), `dn0`, `dn1`, ... (data nodes) and whatever
clients call themselves. Intervals are shorter than the defaults, so that a run of a simulated
minute sees nodes lost, replaced and come back; nothing else differs from a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.channels import Connect, tcp_connect
from headrace.client.sbp import SbpClient
from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.config.storage import StorageSettings
from headrace.datanode.service import DataNodeService
from headrace.net.credentials import node_credential
from headrace.net.sbp_channel import Channel
from headrace.placement.records import Operations, Put, Record, decode_record
from headrace.placement.service import PlacementService
from headrace.placement.store import MemoryStore
from headrace.runtime.interfaces import Runtime
from headrace.runtime.simulated import Simulation
from headrace.wire.sbp.messages import ClientRole
from tests.sim.history import History, Transaction

SECRET = b"k" * 32
CREDENTIAL = node_credential(SECRET)
PLACEMENT_PORT = 12378
NODE_PORT = 10911

PLACEMENT_SETTINGS = PlacementSettings(
    node_timeout_ms=3_500, tick_interval_ms=500, stream_id_block=3, replicas_max=3
)
NODE_SETTINGS = DataNodeSettings(
    heartbeat_interval_ms=1_000, reconcile_interval_ms=5_000, register_timeout_ms=5_000
)
STORAGE_SETTINGS = StorageSettings(
    segment_bytes_max=2048,  # a few batches: ranges of a short run roll too
    preallocate_bytes_min=4096,
    index_interval_bytes=512,
    commit_threads=2,
    read_threads=2,
    checkpoint_bytes=4096,
    idle_checkpoint_bytes=1024,
    min_free_bytes=0,
)


class NotingStore(MemoryStore):
    """Outlives its placement manager, and tells the history what it committed."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def decoded(self) -> list[Record]:
        return [decode_record(table, self._values[table, key]) for table, key in self._values]

    async def _commit(self, operations: Operations) -> None:
        await super()._commit(operations)
        puts = tuple(o.record for o in operations if isinstance(o, Put))
        removes = tuple(
            (o.record.table, o.record.key) for o in operations if not isinstance(o, Put)
        )
        self._history.transactions.append(
            Transaction(self._history.time(), "pm0", "pm0", puts, removes)
        )


class Cluster:
    """`start`, then do to it what you like; the metadata outlives all crashes."""

    def __init__(
        self,
        seed: int,
        *,
        managers: int = 1,
        nodes: int = 3,
        placement_settings: PlacementSettings = PLACEMENT_SETTINGS,
        node_settings: DataNodeSettings = NODE_SETTINGS,
        storage_settings: StorageSettings = STORAGE_SETTINGS,
    ) -> None:
        self.simulation = Simulation(seed)
        self.history = History(self.simulation.time)
        self.managers = [f"pm{number}" for number in range(managers)]
        self.nodes = [f"dn{number}" for number in range(nodes)]
        self.placements: dict[str, PlacementService] = {}
        self.services: dict[str, DataNodeService] = {}
        """Those that were started; `is_up` knows whether they still run."""
        self._lives: dict[str, int] = {}
        self._placement_settings = placement_settings
        self._node_settings = node_settings
        self._storage_settings = storage_settings
        self._store = NotingStore(self.history)

    async def start(self) -> None:
        for host in self.managers:
            await self.start_placement(host)
        for host in self.nodes:
            await self.start_node(host)

    def records(self) -> list[Record]:
        """The placement metadata that is durable now."""
        return self._store.decoded()

    # Hosts

    async def start_placement(self, host: str) -> None:
        runtime = self.simulation.runtime(host)

        async def start() -> PlacementService:
            service = PlacementService(
                runtime,
                self._placement_settings,
                store=self._store,
                node=self._node_connect(runtime, host, ClientRole.PLACEMENT_MANAGER),
                secret=SECRET,
            )
            await service.start()
            await service.listen("0.0.0.0", PLACEMENT_PORT)
            return service

        self._lives[host] = self.simulation.life(host)
        self.placements[host] = await self.simulation.on(host, start())

    async def start_node(self, host: str) -> None:
        runtime = self.simulation.runtime(host)

        async def start() -> DataNodeService:
            service = DataNodeService(
                runtime,
                self._node_settings,
                folder="/data",
                storage=self._storage_settings,
                placement=self._placement_connect(runtime, host, ClientRole.DATA_NODE),
                secret=SECRET,
            )
            await service.start("0.0.0.0", NODE_PORT, advertise=f"{host}:{NODE_PORT}")
            return service

        self._lives[host] = self.simulation.life(host)
        service = await self.simulation.on(host, start())
        self.services[host] = service
        self.history.hosts[host] = service.node_id

    async def stop_node(self, host: str) -> None:
        """A clean stop."""
        service = self.services.pop(host)
        await self.simulation.on(host, service.close())

    def crash(self, host: str, *, power_cut: bool = True) -> None:
        self.services.pop(host, None)
        self.placements.pop(host, None)
        self.simulation.crash(host, power_cut=power_cut)

    def wipe(self, host: str) -> None:
        self.services.pop(host, None)
        self.history.lost.setdefault(host, []).append(self.simulation.time())
        self.simulation.wipe(host)

    async def restart(self, host: str) -> None:
        if host in self.managers:
            await self.start_placement(host)
        else:
            await self.start_node(host)

    def is_up(self, host: str) -> bool:
        started = host in self.services or host in self.placements
        return started and self._lives[host] == self.simulation.life(host)

    # Clients

    def client(self, host: str) -> SbpClient:
        """For code that runs on `host`."""
        runtime = self.simulation.runtime(host)
        return SbpClient(
            runtime,
            placement=self._placement_connect(runtime, host, ClientRole.CUSTOMER),
            node=self._node_connect(runtime, host, ClientRole.CUSTOMER),
            client_id=host,
        )

    async def channel(self, host: str, address: str) -> Channel:
        """A connection of its own to one service, for code that runs on `host`."""
        runtime = self.simulation.runtime(host)
        return await self._connect(runtime, host, address, ClientRole.CUSTOMER)()

    def _connect(self, runtime: Runtime, host: str, address: str, role: ClientRole) -> Connect:
        connect = tcp_connect(runtime, address, client_id=host, role=role, credential=CREDENTIAL)
        return self.history.recorded(connect, host=host, peer=address, role=role)

    def _node_connect(
        self, runtime: Runtime, host: str, role: ClientRole
    ) -> Callable[[str], Connect]:
        return lambda address: self._connect(runtime, host, address, role)

    def _placement_connect(self, runtime: Runtime, host: str, role: ClientRole) -> Connect:
        return self._connect(runtime, host, f"{self.managers[0]}:{PLACEMENT_PORT}", role)

    async def sleep(self, seconds: float) -> None:
        await self.simulation.runtime("main").clock.sleep(seconds)
