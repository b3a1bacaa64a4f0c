"""Placement manager, data node and broker in one process, joined by in-process channels.

The parts talk as they would over TCP; here the transport hands over the message objects. The SBP
ports listen all the same, for the control plane, for Spark and for plain SBP clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.assembly.certificates import load_certificate, load_trust
from headrace.assembly.secrets import load_cluster_uuid, load_secret
from headrace.broker.core import ProcessFigures
from headrace.broker.service import BrokerService, RootCredentials
from headrace.broker.snapshot import Diagnostics
from headrace.broker.transports import Encryption
from headrace.client.channels import Connect, tcp_connect
from headrace.client.sbp import SbpClient
from headrace.config.settings import LOOPBACK, Settings
from headrace.datanode.service import DataNodeService
from headrace.net.addresses import format_address, parse_address
from headrace.net.credentials import node_credential
from headrace.net.sbp_channel import Channel
from headrace.net.tls import ClientTls
from headrace.placement.service import PlacementService
from headrace.placement.store import SqliteStore, Store
from headrace.runtime import Runtime
from headrace.wire.sbp.messages import ClientRole

OpenStore = Callable[[Runtime, str], Awaitable[Store]]


class DataPlane:
    """`start`, then serves until `close`. `lost` is set when another broker leads."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        on_root: Callable[[RootCredentials], None] | None = None,
        figures: Callable[[], ProcessFigures] = ProcessFigures,
        diagnostics: Diagnostics | None = None,
        open_store: OpenStore = SqliteStore.open,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._on_root = on_root
        self._figures = figures
        self._diagnostics = diagnostics
        self._open_store = open_store
        self._files = runtime.executor("assembly", 1)
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._placement_address = ""
        self._authority_path = ""
        self._peer_tls: ClientTls | None = None
        self.node: DataNodeService | None = None
        self.placement: PlacementService | None = None
        self.broker: BrokerService | None = None
        self.lost = asyncio.Event()

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        data_dir, host = settings.data_dir, settings.host
        disk, random = runtime.disk, runtime.random
        self._secret = await self._files.run(load_secret, disk, random, data_dir)
        encryption = await self._files.run(self._load_encryption)
        folder = f"{data_dir}/placement"
        cluster_uuid = await self._files.run(load_cluster_uuid, disk, random, folder)
        store = await self._open_store(runtime, f"{folder}/metadata.sqlite")
        self._closers.append(store.close)
        plain_streams = host in LOOPBACK
        self.placement = PlacementService(
            runtime,
            settings.placement,
            store=store,
            node=self._connect_node,
            secret=self._secret,
            plain_streams=plain_streams,
        )
        await self.placement.start()
        self._closers.append(self.placement.close)
        self._placement_address = await self.placement.listen(
            host, settings.placement_port, tls=encryption.tls
        )
        self.node = DataNodeService(
            runtime,
            settings.data_node,
            folder=f"{data_dir}/node",
            storage=settings.storage,
            placement=self.placement.connect,
            secret=self._secret,
            plain_streams=plain_streams,
        )
        await self.node.start(host, settings.node_port, tls=encryption.tls)
        self._closers.append(self.node.close)
        client = SbpClient(
            runtime,
            placement=self.placement.connect,
            node=self._connect_node,
            client_id="broker",
            settings=settings.client,
        )
        self._closers.append(client.close)
        self.broker = BrokerService(
            runtime,
            settings.broker,
            client,
            secret=self._secret,
            cluster_uuid=cluster_uuid,
            folder=f"{data_dir}/broker",
            placement_address=self._placement_address,
            figures=self._figures,
            diagnostics=self._diagnostics,
            on_root=self._on_root,
            encryption=encryption,
        )
        self.lost = self.broker.lost
        quic_port = None if settings.quic_port < 0 else settings.quic_port
        await self.broker.start(settings.iggy_host or host, settings.iggy_port, quic_port)
        self._closers.append(self.broker.close)

    def _load_encryption(self) -> Encryption:
        """Blocks. The files are read now, so that a wrong path stops the start and not a client."""
        runtime, settings, tls = self._runtime, self._settings, self._settings.tls
        certificate = load_certificate(runtime.disk, runtime.clock, tls, settings.data_dir)
        self._authority_path = certificate.authority_path
        trust = load_trust(runtime.disk, tls, certificate)
        self._peer_tls = None if trust is None else trust.client()
        return Encryption(
            certificate=certificate.chain,
            key=certificate.key,
            tls=certificate.acceptor(tls),
            quic=settings.quic,
            handshake_seconds=tls.handshake_ms / 1000,
        )

    @property
    def authority_path(self) -> str:
        """What clients trust the development certificate by; empty with one of your own."""
        return self._authority_path

    def _connect_node(self, address: str) -> Connect:
        """In process when the address is our own node's, over TCP otherwise."""

        async def connect() -> Channel:
            if self.node is not None and address == self.node.address:
                return await self.node.connect()
            over_tcp = tcp_connect(
                self._runtime,
                address,
                client_id="data-plane",
                role=ClientRole.PLACEMENT_MANAGER,
                credential=node_credential(self._secret),
                tls=self._peer_tls,
            )
            return await over_tcp()

        return connect

    def addresses(self) -> dict[str, str]:
        """Where clients reach each part, as `host:port`."""
        assert self.broker is not None, "not started"
        assert self.node is not None, "not started"
        found = {
            "iggy": self.broker.address,
            "quic": self.broker.quic_address,
            "placement_manager": self._placement_address,
            "data_node": self.node.address,
        }
        return {name: address for name, address in found.items() if address}

    async def close(self) -> None:
        """The broker first, the store last: each part outlives those that use it."""
        while self._closers:
            await self._closers.pop()()
        self._files.close()


def loopback_address(address: str) -> str:
    """An address to connect to, for one that was listened on: the wildcard is not a place."""
    host, port = parse_address(address)
    return format_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)
