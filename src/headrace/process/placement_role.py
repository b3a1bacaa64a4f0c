"""A placement manager: its metadata, its service, its port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.net.addresses import advertised, format_address, parse_address
from headrace.net.tls import TlsAcceptor
from headrace.placement.metadata.election import Election
from headrace.placement.metadata.etcd import EtcdMetadata
from headrace.placement.metadata.store import SqliteStore, Store
from headrace.placement.service import PlacementService
from headrace.process.disk_reserve import keep_reserve
from headrace.process.limits import sbp_limits
from headrace.process.roles import Role
from headrace.runtime import Runtime
from headrace.sbp_client.channels import Connect
from headrace.web.metrics.checks import Observed
from headrace.web.metrics.placement_metrics import ObservedPlacement

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

    def observed(self) -> Sequence[Observed]:
        labels_max = self._settings.observability.labels_max
        monotonic = self._runtime.clock.monotonic
        return (ObservedPlacement(lambda: self._made, monotonic, labels_max=labels_max),)

    def addresses(self) -> dict[str, str]:
        return {"placement_manager": self.address}
