"""Placement managers, data nodes and clients, for tests: over TCP or in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.config.placement import PlacementSettings
from headrace.config.process import ClientSettings
from headrace.datanode.service import DataNodeService
from headrace.errors import UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.credentials import node_credential
from headrace.net.sbp_channel import Channel
from headrace.placement.metadata.store import MemoryStore, SqliteStore, Store
from headrace.placement.service import PlacementService
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.channels import Connect, PlacementChannel, tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.messages import ClientRole
from headrace.wire.sbp.records import encode_header, split
from tests.simulator.shared_metadata import MemoryMetadata

SECRET = b"s" * 32
STORAGE = StorageSettings(commit_threads=2, read_threads=2, min_free_bytes=0)


def batch(
    *payloads: bytes,
    base_offset: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    sequence: int = -1,
    timestamp: int = 1_000,
) -> list[Buffer]:
    """Header and body of a batch with one record per payload."""
    body = b"".join(payloads)
    header = encode_header(
        base_offset=base_offset,
        body=[body],
        record_count=len(payloads),
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        attributes=attributes,
        producer_id=producer_id,
        sequence=sequence,
    )
    return [header, body]


def bodies(pieces: Sequence[memoryview]) -> list[tuple[int, bytes]]:
    """(base offset, body) of every batch."""
    return [
        (header.base_offset, bytes(view[55:])) for piece in pieces for header, view in split(piece)
    ]


async def read_all(client: SbpClient, stream_id: int, start: int = 0) -> list[tuple[int, bytes]]:
    _, end = await client.bounds(stream_id)
    found: list[tuple[int, bytes]] = []
    offset = start
    while offset < end:
        fetched = await client.fetch(stream_id, offset, max_bytes=1 << 20, max_wait_ms=1000)
        assert fetched.pieces, f"nothing at {offset} of {end}"
        found.extend(bodies(fetched.pieces))
        offset = fetched.next_offset
    return found


class Cluster:
    """Placement managers and data nodes in this process, over TCP or joined by channels.

    Most tests need one of each: `placement` and `node`. With several placement managers their
    metadata is in memory, else in SQLite or in memory.
    """

    def __init__(
        self,
        runtime: Runtime,
        folder: str,
        *,
        tcp: bool,
        sqlite: bool = True,
        nodes: int = 1,
        placements: int = 1,
        placement_settings: PlacementSettings | None = None,
        node_settings: DataNodeSettings | None = None,
        storage: StorageSettings = STORAGE,
        plain_streams: bool = False,
        node_runtime: Callable[[int], Runtime] | None = None,
    ) -> None:
        """`node_runtime` gives data nodes a runtime, and so a disk, of their own."""
        self.runtime = runtime
        self.node_runtime = node_runtime or (lambda _: runtime)
        self.folder = folder
        self.tcp = tcp
        self.sqlite = sqlite
        self.placement_settings = placement_settings or PlacementSettings(
            tick_interval_ms=50, replicas_max=max(1, min(nodes, 3))
        )
        self.node_settings = node_settings or DataNodeSettings(
            heartbeat_interval_ms=200, unsettled_interval_ms=100
        )
        self.storage = storage
        self.plain_streams = plain_streams
        self.placements: list[PlacementService | None] = [None] * placements
        self.nodes: list[DataNodeService | None] = [None] * nodes
        self.clients: list[SbpClient] = []
        self.metadata = MemoryMetadata(runtime.clock)
        self._stores: list[Store | None] = [None] * placements
        self._memory = MemoryStore()
        self._placement_addresses = [
            "127.0.0.1:0" if tcp else f"placement:{at}" for at in range(placements)
        ]
        self._node_addresses = ["127.0.0.1:0" if tcp else f"node:{at}" for at in range(nodes)]

    @property
    def placement(self) -> PlacementService | None:
        return self.placements[0]

    @property
    def node(self) -> DataNodeService | None:
        return self.nodes[0]

    @node.setter
    def node(self, node: DataNodeService | None) -> None:
        self.nodes[0] = node

    async def start(self) -> None:
        for at in range(len(self.placements)):
            await self.start_placement(at)
        for at in range(len(self.nodes)):
            await self.start_node(at)

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        # At once: nobody can take over what one of them leaves.
        await asyncio.gather(*(node.close() for node in self.nodes if node is not None))
        for at, placement in enumerate(self.placements):
            if placement is not None:
                await self.stop_placement(at)
        for _ in range(5):  # the loop lets go of connections accepted in the last moment
            await asyncio.sleep(0)

    # Placement managers

    async def start_placement(self, at: int = 0) -> None:
        election = None
        store: Store = self._memory
        name = f"placement-{at}"
        if len(self.placements) > 1:
            store, election = self.metadata.join(self.runtime, self.placement_settings, name)
        elif self.sqlite:
            store = await SqliteStore.open(self.runtime, f"{self.folder}/placement.db")
        placement = PlacementService(
            self.runtime,
            self.placement_settings,
            store=store,
            node=self.node_connect,
            secret=SECRET,
            plain_streams=self.plain_streams,
            election=election,
            advertise="" if self.tcp else self._placement_addresses[at],
            name=name,
        )
        self._stores[at] = store
        self.placements[at] = placement
        await placement.start()
        if self.tcp:
            address = parse_address(self._placement_addresses[at])
            self._placement_addresses[at] = await placement.listen(*address)

    async def stop_placement(self, at: int = 0) -> None:
        placement, store = self.placements[at], self._stores[at]
        assert placement is not None
        assert store is not None
        self.placements[at] = None
        await placement.close()
        await store.close()

    # Data nodes

    async def start_node(self, at: int = 0) -> None:
        node = DataNodeService(
            self.node_runtime(at),
            self.node_settings,
            folder=self.node_folder(at),
            storage=self.storage,
            placement=self.placement_links(),
            peers=None if self.tcp else self.node_connect,
            secret=SECRET,
            plain_streams=self.plain_streams,
        )
        self.nodes[at] = node
        try:
            if self.tcp:
                await node.start(*parse_address(self._node_addresses[at]))
                self._node_addresses[at] = node.address
            else:
                await node.start(advertise=self._node_addresses[at])
        except BaseException:
            self.nodes[at] = None
            raise

    async def stop_node(self, at: int = 0) -> None:
        node, self.nodes[at] = self.live(at), None
        await node.close()

    async def kill_node(self, at: int = 0) -> None:
        """As kill -9 would: nothing finished, no clean-stop marker."""
        node, self.nodes[at] = self.live(at), None
        await node.abort()

    def node_folder(self, at: int) -> str:
        return f"{self.folder}/node{at or ''}"

    def live(self, at: int) -> DataNodeService:
        node = self.nodes[at]
        assert node is not None
        return node

    def at(self, node_id: int) -> int:
        """Where the data node with that id runs."""
        return next(at for at, n in enumerate(self.nodes) if n is not None and n.node_id == node_id)

    # Connections

    def client(
        self,
        *,
        credential: bytes = node_credential(SECRET),
        settings: ClientSettings | None = None,
    ) -> SbpClient:
        client = SbpClient(
            self.runtime,
            placement=self.placement_links(credential=credential),
            node=lambda address: lambda: self._connect_node(address, credential),
            client_id="test",
            settings=settings,
        )
        self.clients.append(client)
        return client

    def placement_links(self, *, credential: bytes = node_credential(SECRET)) -> PlacementChannel:
        if len(self.placements) == 1:
            return PlacementChannel.single(lambda: self._connect_placement(0, credential))

        def connect_to(address: str) -> Connect:
            at = self._placement_addresses.index(address)
            return lambda: self._connect_placement(at, credential)

        return PlacementChannel(self._placement_addresses, connect_to)

    async def placement_connect(self) -> Channel:
        return await self._connect_placement(0, node_credential(SECRET))

    def node_connect(self, address: str) -> Connect:
        return lambda: self._connect_node(address, node_credential(SECRET))

    async def _connect_placement(self, at: int, credential: bytes) -> Channel:
        if self.tcp:
            return await self._dial(self._placement_addresses[at], credential)
        placement = self.placements[at]
        if placement is None:
            raise UnavailableError("placement manager stopped")
        return await placement.connect()

    async def _connect_node(self, address: str, credential: bytes) -> Channel:
        if self.tcp:
            return await self._dial(address, credential)
        node = self.nodes[self._node_addresses.index(address)]
        if node is None:
            raise UnavailableError("data node stopped")
        return await node.connect()

    async def _dial(self, address: str, credential: bytes) -> Channel:
        return await tcp_connect(
            self.runtime,
            address,
            client_id="test",
            role=ClientRole.CUSTOMER,
            credential=credential,
        )()


async def eventually(
    runtime: Runtime, check: Callable[[], Awaitable[bool]], *, seconds: float = 30.0
) -> None:
    deadline = runtime.clock.monotonic() + seconds
    while not await check():
        assert runtime.clock.monotonic() < deadline, "did not happen in time"
        await runtime.clock.sleep(0.01)
