"""A broker: its certificate, its SBP client, its service, its ports."""

from __future__ import annotations

from collections.abc import Callable

from headrace.assembly.certificates import load_certificate
from headrace.assembly.role import Role
from headrace.broker.core import ProcessFigures
from headrace.broker.service import BrokerService, RootCredentials
from headrace.broker.snapshot import Diagnostics
from headrace.broker.transports import Encryption
from headrace.client.channels import Connect
from headrace.client.placement_links import PlacementLinks
from headrace.client.sbp import SbpClient
from headrace.config.settings import Settings
from headrace.net.tls import TlsAcceptor, TlsLimits
from headrace.runtime import Runtime
from headrace.runtime.system_tls import server_context


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
        cluster_uuid: str = "",
        stands_by: bool = False,
        on_root: Callable[[RootCredentials], None] | None = None,
        figures: Callable[[], ProcessFigures] = ProcessFigures,
        diagnostics: Diagnostics | None = None,
    ) -> None:
        """`placement_address` is told to readers; several are separated by commas."""
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._secret = secret
        self._placement = placement
        self._node = node
        self._placement_address = placement_address
        self._cluster_uuid = cluster_uuid
        self._stands_by = stands_by
        self._on_root = on_root
        self._figures = figures
        self._diagnostics = diagnostics
        self.authority_path = ""
        """What clients trust the development certificate by; empty with one of your own."""

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
        files = runtime.executor("assembly", 1)
        try:
            encryption = await files.run(self._load_encryption)
        finally:
            files.close()
        self.service = BrokerService(
            runtime,
            settings.broker,
            client,
            secret=self._secret,
            cluster_uuid=self._cluster_uuid,
            folder=f"{settings.data_dir}/broker",
            placement_address=self._placement_address,
            figures=self._figures,
            diagnostics=self._diagnostics,
            on_root=self._on_root,
            encryption=encryption,
            stands_by=self._stands_by,
            advertise=settings.advertise if self._stands_by else "",
        )
        self.lost = self.service.lost
        quic_port = None if settings.quic_port < 0 else settings.quic_port
        if self._stands_by:
            # A wrong secret or address is told now, not in a log line each second.
            await client.describe_cluster()
        await self.service.start(host, settings.iggy_port, quic_port)
        self._closers.append(self.service.close)

    def _load_encryption(self) -> Encryption:
        """Blocks. The files are read now, so that a wrong path stops the start and not a client."""
        runtime, settings, tls = self._runtime, self._settings, self._settings.tls
        certificate = load_certificate(runtime.disk, runtime.clock, tls, settings.data_dir)
        self.authority_path = certificate.authority_path
        seconds = tls.handshake_ms / 1000
        acceptor = TlsAcceptor(
            server_context(certificate.chain, certificate.key),
            required=tls.mode == "required",
            limits=TlsLimits(
                handshake_seconds=seconds, handshake_bytes_max=tls.handshake_bytes_max
            ),
        )
        return Encryption(
            certificate=certificate.chain,
            key=certificate.key,
            tls=None if tls.mode == "off" else acceptor,
            quic=settings.quic,
            handshake_seconds=seconds,
        )

    def addresses(self) -> dict[str, str]:
        found = {"iggy": self.service.address, "quic": self.service.quic_address}
        return {name: address for name, address in found.items() if address}
