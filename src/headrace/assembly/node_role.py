"""A data node: its log, its service, its port."""

from __future__ import annotations

from headrace.assembly.role import Role
from headrace.client.channels import Connect
from headrace.client.placement_links import PlacementLinks
from headrace.config.settings import Settings
from headrace.datanode.service import DataNodeService
from headrace.runtime import Runtime


class NodeRole(Role):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        secret: bytes,
        placement: Connect | PlacementLinks,
        plain_streams: bool = False,
    ) -> None:
        super().__init__()
        self._settings = settings
        self.service = DataNodeService(
            runtime,
            settings.data_node,
            folder=f"{settings.data_dir}/node",
            storage=settings.storage,
            placement=placement,
            secret=secret,
            plain_streams=plain_streams,
        )

    async def _start(self) -> None:
        settings = self._settings
        await self.service.start(settings.host, settings.node_port, advertise=settings.advertise)
        self._closers.append(self.service.close)

    def addresses(self) -> dict[str, str]:
        return {"data_node": self.service.address}
