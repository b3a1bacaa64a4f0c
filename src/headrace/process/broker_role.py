"""A broker: its certificate, its SBP client, its service, its ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headrace.broker.core import ProcessFigures
from headrace.broker.service import BrokerService, RootCredentials
from headrace.broker.term.snapshot import Diagnostics
from headrace.broker.term.transports import Encryption
from headrace.config.settings import Settings
from headrace.errors import HeadraceError
from headrace.process.encryption import Tls
from headrace.process.limits import connections_max
from headrace.process.links import reach
from headrace.process.roles import Role
from headrace.runtime import Runtime
from headrace.sbp_client.channels import Connect
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.placement_links import PlacementLinks
from headrace.web.metrics.broker import ObservedBroker
from headrace.web.metrics.checks import Observed


class BrokerRole(Role):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        secret: bytes,
        placement: Connect | PlacementLinks,
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
        connections = connections_max(
            runtime.disk,
            "iggy",
            settings.broker.connections_max,
            files=self._files,
            share=self._descriptors,
        )
        self.service = BrokerService(
            runtime,
            msgspec.structs.replace(settings.broker, connections_max=connections),
            client,
            secret=self._secret,
            cluster_uuid=self._cluster_uuid,
            folder=f"{settings.data_dir}/broker",
            placement_address=self._placement_address,
            figures=self._figures,
            diagnostics=self._diagnostics,
            on_root=self._on_root,
            encryption=Encryption(
                certificate=self._tls.certificate.chain,
                key=self._tls.certificate.key,
                tls=self._tls.acceptor,
                quic=settings.quic,
                handshake_seconds=settings.tls.handshake_ms / 1000,
            ),
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

    def observed(self) -> Sequence[Observed]:
        labels_max = self._settings.observability.labels_max
        return (ObservedBroker(lambda: self._made, labels_max=labels_max),)

    @property
    def failure(self) -> HeadraceError | None:
        return self.service.failure

    def addresses(self) -> dict[str, str]:
        found = {"iggy": self.service.address, "quic": self.service.quic_address}
        return {name: address for name, address in found.items() if address}
