"""A whole SBP cluster in the simulator: the real services, joined by the simulated network.

Hosts are named `pm0`, `pm1`, ... (placement managers), `dn0`, `dn1`, ... (data nodes) and whatever
clients call themselves. Intervals are shorter than the defaults, so that a run of a simulated
minute sees nodes lost, replaced and come back; nothing else differs from a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.placement import PlacementSettings
from headrace.config.process import ClientSettings
from headrace.datanode.service import DataNodeService
from headrace.net.credentials import node_credential
from headrace.net.sbp_channel import Channel
from headrace.placement.metadata.election import LEADER_KEY, Candidate, KeyValue
from headrace.placement.metadata.election import Outcome as MetadataOutcome
from headrace.placement.metadata.election import Transaction as MetadataTransaction
from headrace.placement.metadata.guarded_store import RECORDS, decode_entry
from headrace.placement.metadata.records import RangeRecord, Record, Table
from headrace.placement.service import PlacementService
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.channels import Connect, PlacementChannel, tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.storage.layout import RangeKey
from headrace.wire.sbp.messages import ClientRole
from tests.sim.history import History, Transaction
from tests.simulator.runtime import SimulatedRandom, Simulation
from tests.simulator.shared_metadata import MemoryMetadata

SECRET = b"k" * 32
CREDENTIAL = node_credential(SECRET)
PLACEMENT_PORT = 12378
NODE_PORT = 10911

PLACEMENT_SETTINGS = PlacementSettings(
    node_timeout_ms=5_500,
    tick_interval_ms=500,
    stream_id_block=3,
    replace_after_ms=8_000,
    settle_ms=1_500,
    leader_ttl_ms=2_000,
    leader_margin_ms=300,
)
NODE_SETTINGS = DataNodeSettings(
    heartbeat_interval_ms=1_800, reconcile_interval_ms=5_000, register_timeout_ms=5_000
)
CLIENT_SETTINGS = ClientSettings(delivery_timeout_ms=300_000)  # a producer never gives up
STORAGE_SETTINGS = StorageSettings(
    segment_bytes_max=4096,  # a few batches: ranges of a short run roll too
    preallocate_bytes_min=4096,
    index_interval_bytes=512,
    commit_threads=2,
    read_threads=2,
    checkpoint_bytes=8192,
    idle_checkpoint_bytes=1024,
    min_free_bytes=0,
)


class NotingMetadata(MemoryMetadata):
    """What etcd is to placement managers; tells the history what took effect, and who led then."""

    def __init__(self, history: History, runtime: Runtime) -> None:
        super().__init__(runtime.clock, delay=lambda: 0.0005 + 0.003 * runtime.random.uniform())
        self._notes = history

    def write(self, transaction: MetadataTransaction, author: str) -> MetadataOutcome:
        entry = self.read(LEADER_KEY)
        outcome = super().write(transaction, author)
        if outcome.succeeded:
            puts = tuple(
                decode_entry(KeyValue(key, value, 0))
                for key, value in transaction.puts.items()
                if key.startswith(RECORDS)
            )
            removed = (
                key.removeprefix(RECORDS).partition("/")
                for key in transaction.removes
                if key.startswith(RECORDS)
            )
            removes = tuple((Table(table), key) for table, _, key in removed)
            leader = msgspec.json.decode(entry.value, type=Candidate).name if entry else ""
            if puts or removes:
                self._notes.transactions.append(
                    Transaction(self._notes.time(), author, leader, puts, removes)
                )
        return outcome


class Cluster:
    """`start`, then do to it what you like; the metadata outlives all crashes.

    `duplicates`: the share of requests that arrive once more, a moment or some seconds later.
    """

    def __init__(
        self,
        seed: int,
        *,
        managers: int = 3,
        nodes: int = 3,
        duplicates: float = 0.0,
        placement_settings: PlacementSettings = PLACEMENT_SETTINGS,
        node_settings: DataNodeSettings = NODE_SETTINGS,
        storage_settings: StorageSettings = STORAGE_SETTINGS,
    ) -> None:
        self.simulation = Simulation(seed)
        self.history = History(self.simulation.time)
        self.history.holders = self._holders
        if duplicates:
            random = SimulatedRandom(f"{seed}/duplicates")
            self.history.duplicate = lambda: (
                0.01 + 6 * random.uniform() ** 3 if random.uniform() < duplicates else 0.0
            )
        self.managers = [f"pm{number}" for number in range(managers)]
        self.nodes = [f"dn{number}" for number in range(nodes)]
        self.placements: dict[str, PlacementService] = {}
        self.services: dict[str, DataNodeService] = {}
        """Those that were started; `is_up` knows whether they still run."""
        self._lives: dict[str, int] = {}
        self._begun: dict[str, DataNodeService] = {}
        """A node serves before its start is over."""
        self._durable: dict[tuple[str, RangeKey], int] = {}
        """What a node that is down had on its disk, as far as it is not running to say so."""
        self._placement_settings = placement_settings
        self._node_settings = node_settings
        self.host_ids: dict[str, str] = {}
        """Of data nodes that run as one with others, from their next start on."""
        self._storage_settings = storage_settings
        self.metadata = NotingMetadata(self.history, self.simulation.runtime("etcd"))

    async def start(self) -> None:
        for host in self.managers:
            await self.start_placement(host)
        for host in self.nodes:
            await self.start_node(host)

    def records(self) -> list[Record]:
        """The placement metadata that is durable now."""
        return self.metadata.records()

    # Hosts

    async def start_placement(self, host: str) -> None:
        runtime = self.simulation.runtime(host)

        async def start() -> PlacementService:
            settings = self._placement_settings
            membership = self.metadata.join(runtime, settings, host)
            service = PlacementService(
                runtime,
                settings,
                store=membership.store,
                election=membership.election,
                node=self._node_connect(runtime, host, ClientRole.PLACEMENT_MANAGER),
                secret=SECRET,
                advertise=f"{host}:{PLACEMENT_PORT}",
                name=host,
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
                msgspec.structs.replace(self._node_settings, host_id=self.host_ids.get(host, "")),
                folder="/data",
                storage=self._storage_settings,
                placement=self._placement_links(runtime, host, ClientRole.DATA_NODE),
                peers=self._node_connect(runtime, host, ClientRole.DATA_NODE),
                secret=SECRET,
            )
            self._begun[host] = service
            await service.start("0.0.0.0", NODE_PORT, advertise=f"{host}:{NODE_PORT}")
            return service

        self._lives[host] = self.simulation.life(host)
        service = await self.simulation.on(host, start())
        self.services[host] = service
        self.history.hosts[host] = service.node_id

    async def stop_node(self, host: str) -> None:
        """A clean stop; until it is over the node takes what is on its way."""
        try:
            await self.simulation.on(host, self.services[host].close())
        except BaseException:  # cut short: then it is no clean stop
            self.crash(host, power_cut=False)
            raise
        self._note_durable(host)
        self.services.pop(host, None)

    def crash(self, host: str, *, power_cut: bool = True) -> None:
        self._note_durable(host)
        self.services.pop(host, None)
        self.placements.pop(host, None)
        self.simulation.crash(host, power_cut=power_cut)

    def wipe(self, host: str) -> None:
        self._note_durable(host)
        self.services.pop(host, None)
        self.history.lost.setdefault(host, []).append(self.simulation.time())
        self.simulation.wipe(host)

    def _note_durable(self, host: str) -> None:
        if host in self._begun:
            for log in self._begun.pop(host).logs():
                before = self._durable.get((host, log.key), 0)
                self._durable[host, log.key] = max(before, log.durable_offset)

    def _holders(self, stream_id: int, end: int) -> tuple[int, int]:
        """On how many disks the last record below `end` was ever, and how many it takes. A disk
        that was lost afterwards counts: it is the one that may be lost."""
        for record in self.records():
            if isinstance(record, RangeRecord) and record.stream_id == stream_id:
                inside = record.start < end and (record.open or end <= record.end)
                if inside:
                    return self._ever_on(RangeKey(stream_id, record.range_index), end), (
                        record.ack_quorum
                    )
        return 0, 0  # trimmed, or deleted

    def _ever_on(self, key: RangeKey, end: int) -> int:
        noted = self._durable.items()
        found = {host for (host, known), durable in noted if known == key and durable >= end}
        for host, service in self._begun.items():
            log = service.state.find(key)
            if log is not None and log.durable_offset >= end:
                found.add(host)
        return len(found)

    async def restart(self, host: str) -> None:
        if host in self.managers:
            await self.start_placement(host)
        else:
            await self.start_node(host)

    def is_up(self, host: str) -> bool:
        started = host in self.services or host in self.placements
        return started and self._lives[host] == self.simulation.life(host)

    # Clients

    def client(self, host: str, *, managers: Sequence[str] = ()) -> SbpClient:
        """For code that runs on `host`; it knows these placement managers, or all."""
        runtime = self.simulation.runtime(host)
        return SbpClient(
            runtime,
            placement=self._placement_links(runtime, host, ClientRole.CUSTOMER, managers),
            node=self._node_connect(runtime, host, ClientRole.CUSTOMER),
            client_id=host,
            settings=CLIENT_SETTINGS,
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

    def _placement_links(
        self, runtime: Runtime, host: str, role: ClientRole, managers: Sequence[str] = ()
    ) -> PlacementChannel:
        addresses = [f"{manager}:{PLACEMENT_PORT}" for manager in managers or self.managers]
        return PlacementChannel(addresses, self._node_connect(runtime, host, role))

    async def sleep(self, seconds: float) -> None:
        await self.simulation.runtime("main").clock.sleep(seconds)
