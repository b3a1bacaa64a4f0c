"""What `headrace` runs in a process: started whole or not at all, closed in reverse order.

A data node: its log, its service, its port.

A placement manager: its metadata, its service, its port.

A broker: its certificate, its SBP client, its service, its ports.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from headrace.broker.core import ProcessFigures
from headrace.broker.service import BrokerService, RootCredentials
from headrace.broker.term.snapshot import Diagnostics
from headrace.broker.term.transports import Encryption
from headrace.config.broker import BrokerSettings
from headrace.config.settings import Settings
from headrace.datanode.service import DataNodeService
from headrace.errors import ConfigError, HeadraceError
from headrace.net.addresses import advertised, format_address, parse_address
from headrace.net.tls import TlsAcceptor
from headrace.placement.metadata.election import Election
from headrace.placement.metadata.etcd import EtcdMetadata
from headrace.placement.metadata.store import SqliteStore, Store
from headrace.placement.service import PlacementService
from headrace.process.certificates import Tls
from headrace.process.cluster_connections import reach
from headrace.process.limits import connections_max, keep_reserve, sbp_limits
from headrace.process.node_folders import NODE, broker_folder
from headrace.runtime import Runtime
from headrace.sbp_client.channels import Connect, PlacementChannel
from headrace.sbp_client.client import SbpClient
from headrace.web.metrics.broker import ObservedBroker
from headrace.web.metrics.cluster import ObservedNode, ObservedPlacement
from headrace.web.metrics.process import ObservedRole


class Role(ABC):
    def __init__(self) -> None:
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self.lost = asyncio.Event()
        """Set when it cannot go on and the process should end."""

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    @property
    def failure(self) -> HeadraceError | None:
        """Why it was lost, if it knows."""
        return None

    @abstractmethod
    async def _start(self) -> None:
        """Put a closer for each part that was started."""

    @abstractmethod
    def addresses(self) -> dict[str, str]:
        """Where clients and peers reach it, as `host:port`."""

    def observed(self) -> Sequence[ObservedRole]:
        """What runs here, for `/metrics` and `/ready`; asked before it starts."""
        return ()

    async def close(self) -> None:
        """Each part outlives those that use it."""
        while self._closers:
            await self._closers.pop()()


class NodeRole(Role):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        secret: bytes,
        placement: Connect | PlacementChannel,
        peers: Callable[[str], Connect] | None = None,
        tls: TlsAcceptor | None = None,
        plain_streams: bool = False,
        folder: str = NODE,
        files: int = 0,
        descriptors: float = 1.0,
    ) -> None:
        """`folder` is its place in the data directory. `files` are those that others in the process
        open; `descriptors` is its part of what is left for connections."""
        super().__init__()
        self._runtime = runtime
        self._files = files
        self._descriptors = descriptors
        self._settings = settings
        self._tls = tls
        self.hands_over = True
        """Whether others get its open ranges when it closes, if there are others."""
        self.service = DataNodeService(
            runtime,
            settings.data_node,
            folder=f"{settings.data_dir}/{folder}",
            storage=settings.storage,
            placement=placement,
            peers=peers,
            secret=secret,
            plain_streams=plain_streams,
        )

    async def _start(self) -> None:
        settings = self._settings
        await keep_reserve(self._runtime, settings.data_dir)
        await self.service.start(
            settings.host,
            settings.node_port,
            advertise=settings.advertise,
            tls=self._tls,
            limits=sbp_limits(
                self._runtime.disk,
                "data node",
                files=self._files + settings.storage.open_files_max,
                share=self._descriptors,
            ),
        )
        self._closers.append(lambda: self.service.close(hand_over=self.hands_over))

    def observed(self) -> Sequence[ObservedRole]:
        return (ObservedNode(lambda: self.service),)

    def addresses(self) -> dict[str, str]:
        return {"data_node": self.service.address}


OpenStore = Callable[[Runtime, str], Awaitable[Store]]


class PlacementRole(Role):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        secret: bytes,
        node: Callable[[str], Connect],
        tls: TlsAcceptor | None = None,
        etcd_password: str = "",
        plain_streams: bool = False,
        open_store: OpenStore = SqliteStore.open,
        files: int = 0,
        descriptors: float = 1.0,
    ) -> None:
        """`files` are those that others in the process open; `descriptors` is its part of what is
        left for connections."""
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._secret = secret
        self._node = node
        self._tls = tls
        self._etcd_password = etcd_password
        self._plain_streams = plain_streams
        self._open_store = open_store
        self._files = files
        self._descriptors = descriptors
        self._made: PlacementService | None = None
        self.address = ""
        """Where others reach it."""

    async def _start(self) -> None:
        settings = self._settings
        await keep_reserve(self._runtime, settings.data_dir)
        if settings.metadata == "sqlite":
            store = await self._open_sqlite(f"{settings.data_dir}/placement")
            self._closers.append(store.close)
            await self._serve(store, None)
        else:
            metadata = self._open_etcd()
            self._closers.append(metadata.close)
            await self._serve(metadata.store, metadata.election)

    async def _serve(self, store: Store, election: Election | None) -> None:
        settings = self._settings
        self.service = PlacementService(
            self._runtime,
            settings.placement,
            store=store,
            node=self._node,
            secret=self._secret,
            plain_streams=self._plain_streams,
            election=election,
            advertise=self._advertised() if election is not None else "",
            name=self._name(),
        )
        self._made = self.service
        await self.service.start()
        self._closers.append(self.service.close)
        listened = await self.service.listen(
            settings.host,
            settings.placement_port,
            tls=self._tls,
            limits=sbp_limits(
                self._runtime.disk, "placement", files=self._files, share=self._descriptors
            ),
        )
        self.address = advertised(settings.advertise, listened)

    async def _open_sqlite(self, folder: str) -> Store:
        files = self._runtime.executor("process", 1)
        try:
            await files.run(self._runtime.disk.make_folder, folder)
        finally:
            files.close()
        return await self._open_store(self._runtime, f"{folder}/metadata.sqlite")

    def _open_etcd(self) -> EtcdMetadata:
        placement = self._settings.placement
        servers = self._settings.metadata.removeprefix("etcd://").split(",")
        scheme = "https" if placement.etcd.ca else "http"
        etcd = msgspec.structs.replace(
            placement.etcd, endpoints=tuple(f"{scheme}://{server}" for server in servers)
        )
        return EtcdMetadata.open(
            self._runtime,
            msgspec.structs.replace(placement, etcd=etcd),
            name=self._name(),
            password=self._etcd_password,
        )

    def _name(self) -> str:
        settings = self._settings
        return settings.advertise or format_address(settings.host, settings.placement_port)

    def _advertised(self) -> str:
        """Told to the others before it listens; empty = where it will listen."""
        settings = self._settings
        if not settings.advertise:
            return ""
        listened = format_address(settings.host, settings.placement_port)
        address = advertised(settings.advertise, listened)
        if parse_address(address)[1] == 0:
            raise ConfigError("--advertise needs the port too when --placement-port is 0")
        return address

    def observed(self) -> Sequence[ObservedRole]:
        labels_max = self._settings.observability.labels_max
        monotonic = self._runtime.clock.monotonic
        return (ObservedPlacement(lambda: self._made, monotonic, labels_max=labels_max),)

    def addresses(self) -> dict[str, str]:
        return {"placement_manager": self.address}


def bounded(runtime: Runtime, settings: Settings, *, files: int, share: float) -> BrokerSettings:
    """A broker's settings, with as many connections as the process has descriptors for."""
    connections = connections_max(
        runtime.disk, "iggy", settings.broker.connections_max, files=files, share=share
    )
    return msgspec.structs.replace(settings.broker, connections_max=connections)


def encryption_of(settings: Settings, tls: Tls) -> Encryption:
    return Encryption(
        certificate=tls.certificate.chain,
        key=tls.certificate.key,
        tls=tls.acceptor,
        quic=settings.quic,
        handshake_seconds=settings.tls.handshake_ms / 1000,
    )


class BrokerRole(Role):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        secret: bytes,
        placement: Connect | PlacementChannel,
        node: Callable[[str], Connect],
        placement_address: str,
        tls: Tls,
        cluster_uuid: str = "",
        stands_by: bool = False,
        on_root: Callable[[RootCredentials], None] | None = None,
        figures: Callable[[], ProcessFigures] = ProcessFigures,
        diagnostics: Diagnostics | None = None,
        files: int = 0,
        descriptors: float = 1.0,
    ) -> None:
        """`placement_address` is told to readers; several are separated by commas. `files` are
        those that others in the process open; `descriptors` is its part of what is left for
        connections."""
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._secret = secret
        self._placement = placement
        self._node = node
        self._placement_address = placement_address
        self._cluster_uuid = cluster_uuid
        self._stands_by = stands_by
        self._tls = tls
        self._on_root = on_root
        self._figures = figures
        self._diagnostics = diagnostics
        self._files = files
        self._descriptors = descriptors
        self._made: BrokerService | None = None

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        host = settings.iggy_host or settings.host
        client = SbpClient(
            runtime,
            placement=self._placement,
            node=self._node,
            client_id="broker",
            settings=settings.client,
        )
        self._closers.append(client.close)
        self.service = BrokerService(
            runtime,
            bounded(runtime, settings, files=self._files, share=self._descriptors),
            client,
            secret=self._secret,
            cluster_uuid=self._cluster_uuid,
            folder=f"{settings.data_dir}/{broker_folder(0)}",
            placement_address=self._placement_address,
            figures=self._figures,
            diagnostics=self._diagnostics,
            on_root=self._on_root,
            encryption=encryption_of(settings, self._tls),
            stands_by=self._stands_by,
            advertise=settings.advertise if self._stands_by else "",
        )
        self._made = self.service
        self.lost = self.service.lost
        quic_port = None if settings.quic_port < 0 else settings.quic_port
        if self._stands_by:
            await reach(client, wait=False)  # it stands by until they answer
        await self.service.start(host, settings.iggy_port, quic_port)
        self._closers.append(self.service.close)

    def observed(self) -> Sequence[ObservedRole]:
        labels_max = self._settings.observability.labels_max
        return (ObservedBroker(lambda: self._made, labels_max=labels_max),)

    @property
    def failure(self) -> HeadraceError | None:
        return self.service.failure

    def addresses(self) -> dict[str, str]:
        found = {"iggy": self.service.address, "quic": self.service.quic_address}
        return {name: address for name, address in found.items() if address}
