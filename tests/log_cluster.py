"""A placement manager, a data node and clients, for tests: over TCP or in one process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from headrace.client.channels import Connect, tcp_connect
from headrace.client.sbp import SbpClient
from headrace.config.datanode import DataNodeSettings
from headrace.config.placement import PlacementSettings
from headrace.config.storage import StorageSettings
from headrace.datanode.service import DataNodeService
from headrace.errors import UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.credentials import node_credential
from headrace.net.sbp_channel import Channel
from headrace.placement.service import PlacementService
from headrace.placement.store import MemoryStore, SqliteStore, Store
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.wire.sbp.messages import ClientRole
from headrace.wire.sbp.records import encode_header, split

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
    """One placement manager and one data node on the system runtime."""

    def __init__(
        self,
        runtime: Runtime,
        folder: str,
        *,
        tcp: bool,
        sqlite: bool = True,
        placement_settings: PlacementSettings | None = None,
        node_settings: DataNodeSettings | None = None,
        storage: StorageSettings = STORAGE,
        plain_streams: bool = False,
    ) -> None:
        self.runtime = runtime
        self.folder = folder
        self.tcp = tcp
        self.sqlite = sqlite
        self.placement_settings = placement_settings or PlacementSettings(tick_interval_ms=50)
        self.node_settings = node_settings or DataNodeSettings(heartbeat_interval_ms=200)
        self.storage = storage
        self.plain_streams = plain_streams
        self.placement: PlacementService | None = None
        self.node: DataNodeService | None = None
        self.clients: list[SbpClient] = []
        self._store: Store | None = None
        self._memory = MemoryStore()
        self._placement_address = "127.0.0.1:0"
        self._node_address = "127.0.0.1:0"

    async def start(self) -> None:
        await self.start_placement()
        await self.start_node()

    async def start_placement(self) -> None:
        self._store = self._memory
        if self.sqlite:
            self._store = await SqliteStore.open(self.runtime, f"{self.folder}/placement.db")
        self.placement = PlacementService(
            self.runtime,
            self.placement_settings,
            store=self._store,
            node=self.node_connect,
            secret=SECRET,
            plain_streams=self.plain_streams,
        )
        await self.placement.start()
        if self.tcp:
            self._placement_address = await self.placement.listen(
                *parse_address(self._placement_address)
            )

    async def stop_placement(self) -> None:
        assert self.placement is not None
        assert self._store is not None
        await self.placement.close()
        await self._store.close()
        self.placement = None

    async def start_node(self) -> None:
        self.node = DataNodeService(
            self.runtime,
            self.node_settings,
            folder=f"{self.folder}/node",
            storage=self.storage,
            placement=self.placement_connect,
            secret=SECRET,
            plain_streams=self.plain_streams,
        )
        if self.tcp:
            await self.node.start(*parse_address(self._node_address))
            self._node_address = self.node.address
        else:
            await self.node.start(advertise="node:0")

    async def stop_node(self) -> None:
        assert self.node is not None
        await self.node.close()
        self.node = None

    async def kill_node(self) -> None:
        """As kill -9 would: nothing finished, no clean-stop marker."""
        assert self.node is not None
        await self.node.abort()
        self.node = None

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        if self.node is not None:
            await self.stop_node()
        if self.placement is not None:
            await self.stop_placement()

    def client(self, *, credential: bytes = node_credential(SECRET)) -> SbpClient:
        client = SbpClient(
            self.runtime,
            placement=lambda: self._connect_placement(credential),
            node=lambda address: lambda: self._connect_node(address, credential),
            client_id="test",
        )
        self.clients.append(client)
        return client

    async def placement_connect(self) -> Channel:
        return await self._connect_placement(node_credential(SECRET))

    def node_connect(self, address: str) -> Connect:
        return lambda: self._connect_node(address, node_credential(SECRET))

    async def _connect_placement(self, credential: bytes) -> Channel:
        if self.tcp:
            return await self._dial(self._placement_address, credential)
        if self.placement is None:
            raise UnavailableError("placement manager stopped")
        return await self.placement.connect()

    async def _connect_node(self, address: str, credential: bytes) -> Channel:
        if self.tcp:
            return await self._dial(address, credential)
        if self.node is None:
            raise UnavailableError("data node stopped")
        return await self.node.connect()

    async def _dial(self, address: str, credential: bytes) -> Channel:
        return await tcp_connect(
            self.runtime,
            address,
            client_id="test",
            role=ClientRole.CUSTOMER,
            credential=credential,
        )()


async def eventually(
    runtime: Runtime, check: Callable[[], Awaitable[bool]], *, seconds: float = 5.0
) -> None:
    deadline = runtime.clock.monotonic() + seconds
    while not await check():
        assert runtime.clock.monotonic() < deadline, "did not happen in time"
        await runtime.clock.sleep(0.01)
