"""A placement manager: its metadata, its service, its port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.assembly.role import Role
from headrace.client.channels import Connect
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.net.addresses import advertised
from headrace.net.tls import TlsAcceptor
from headrace.placement.service import PlacementService
from headrace.placement.store import SqliteStore, Store
from headrace.runtime import Runtime

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
        plain_streams: bool = False,
        open_store: OpenStore = SqliteStore.open,
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._secret = secret
        self._node = node
        self._tls = tls
        self._plain_streams = plain_streams
        self._open_store = open_store
        self.address = ""
        """Where others reach it."""

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        folder = f"{settings.data_dir}/placement"
        store = await self._open_metadata(folder)
        self._closers.append(store.close)
        self.service = PlacementService(
            runtime,
            settings.placement,
            store=store,
            node=self._node,
            secret=self._secret,
            plain_streams=self._plain_streams,
        )
        await self.service.start()
        self._closers.append(self.service.close)
        listened = await self.service.listen(settings.host, settings.placement_port, tls=self._tls)
        self.address = advertised(settings.advertise, listened)

    async def _open_metadata(self, folder: str) -> Store:
        if self._settings.metadata != "sqlite":
            raise ConfigError("metadata in etcd is not available yet; use --metadata sqlite")
        files = self._runtime.executor("assembly", 1)
        try:
            await files.run(self._runtime.disk.make_folder, folder)
        finally:
            files.close()
        return await self._open_store(self._runtime, f"{folder}/metadata.sqlite")

    def addresses(self) -> dict[str, str]:
        return {"placement_manager": self.address}
