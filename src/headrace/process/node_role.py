"""A data node: its log, its service, its port."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.config.settings import Settings
from headrace.datanode.service import DataNodeService
from headrace.net.tls import TlsAcceptor
from headrace.process.disk_reserve import keep_reserve
from headrace.process.limits import sbp_limits
from headrace.process.roles import Role
from headrace.runtime import Runtime
from headrace.sbp_client.channels import Connect
from headrace.sbp_client.placement_links import PlacementLinks
from headrace.web.metrics.checks import Observed
from headrace.web.metrics.cluster import ObservedNode


class NodeRole(Role):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        secret: bytes,
        placement: Connect | PlacementLinks,
        peers: Callable[[str], Connect] | None = None,
        tls: TlsAcceptor | None = None,
        plain_streams: bool = False,
        descriptors: float = 1.0,
    ) -> None:
        """`descriptors` is its part of what the process has for connections."""
        super().__init__()
        self._runtime = runtime
        self._descriptors = descriptors
        self._settings = settings
        self._tls = tls
        self.service = DataNodeService(
            runtime,
            settings.data_node,
            folder=f"{settings.data_dir}/node",
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
                files=settings.storage.open_files_max,
                share=self._descriptors,
            ),
        )
        self._closers.append(self.service.close)

    def observed(self) -> Sequence[Observed]:
        return (ObservedNode(lambda: self.service),)

    def addresses(self) -> dict[str, str]:
        return {"data_node": self.service.address}
