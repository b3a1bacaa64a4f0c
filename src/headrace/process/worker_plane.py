"""What one of several workers runs: its data node and its broker, which shares the port of clients.

In `headrace up` the placement manager is in the parent and reached over TCP, as in a cluster. The
broker reaches the data nodes of its own process by in-process channels, those of other workers over
TCP. Each broker leads some shards (`broker/shards/`), whose ranges open at the data node of its own
process. A worker of `headrace broker` has no data node: those of the cluster are elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from headrace.broker.core import Identity, ProcessFigures
from headrace.broker.service import VERSION, RootCredentials
from headrace.broker.shards.service import InCluster, WorkerService
from headrace.broker.term.snapshot import Diagnostics
from headrace.broker.term.term import Setup
from headrace.config.settings import LOOPBACK, Settings
from headrace.datanode.service import DataNodeService
from headrace.errors import ConfigError, HeadraceError, LockedError
from headrace.net.addresses import parse_address
from headrace.net.sbp_channel import Channel
from headrace.process.certificates import Tls, load_tls
from headrace.process.cluster_connections import node_connect, placement_links, reach
from headrace.process.node_folders import (
    advertised_host,
    broker_folder,
    node_folder,
    without_port,
)
from headrace.process.roles import NodeRole, Role, bounded, encryption_of
from headrace.process.secrets import load_secret
from headrace.runtime import Connection, Runtime
from headrace.sbp_client.channels import Connect, PlacementChannel
from headrace.sbp_client.client import SbpClient
from headrace.storage.layout import LOCK
from headrace.web.metrics.broker import ObservedBroker
from headrace.web.metrics.cluster import ObservedNode
from headrace.web.metrics.process import ObservedRole
from headrace.wire.sbp.messages import ClientRole

HOST_ID = "this machine"
"""What the data nodes of one `headrace up` have in common."""
_SBP_PART = 0.2
"""Of what the process has for connections: of the data nodes' ports."""
_LOCK_SECONDS = 10.0
_LOCK_PAUSE_SECONDS = 0.05


class WorkerRole(Role):
    """A broker that leads some shards, and shares the port of clients with others."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        number: int,
        secret: bytes,
        placement: PlacementChannel,
        node: Callable[[str], Connect],
        home_node: Callable[[], int],
        placement_address: str,
        machine: str,
        tls: Tls,
        cluster_uuid: str,
        on_root: Callable[[RootCredentials], None] | None,
        figures: Callable[[], ProcessFigures],
        diagnostics: Diagnostics | None,
        files: int,
        descriptors: float,
    ) -> None:
        """`home_node` is the data node of this process. `machine` is what the workers of this
        machine have in common, in a cluster that has several. The rest is as a `BrokerRole` has
        it."""
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._number = number
        self._home_node = home_node
        self.client = SbpClient(
            runtime, placement=placement, node=node, client_id="broker", settings=settings.client
        )
        folder = f"{settings.data_dir}/{broker_folder(number)}"
        self.service = WorkerService(
            Setup(
                runtime=runtime,
                settings=bounded(runtime, settings, files=files, share=descriptors),
                client=self.client,
                identity=Identity(
                    cluster_uuid=cluster_uuid,
                    cluster_name=settings.broker.cluster_name,
                    placement_address=placement_address,
                    version=VERSION,
                    secret=secret,
                    started_us=runtime.clock.now_us(),
                ),
                figures=figures,
                diagnostics=diagnostics,
                on_root=on_root,
                encryption=encryption_of(settings, tls),
            ),
            number=number,
            folder=folder,
            link_path=f"{folder}.sock",
            cluster=_in_cluster(settings, machine, tls) if machine else None,
        )
        self.lost = self.service.lost

    async def _start(self) -> None:
        settings = self._settings
        self._closers.append(self.client.close)
        self.client.home_node = self._home_node()
        await reach(self.client, wait=True)
        # Datagrams of one connection must reach one process.
        quic_port = None if settings.quic_port < 0 or self._number else settings.quic_port
        self._closers.append(self.service.close)
        await self.service.start(settings.iggy_host or settings.host, settings.iggy_port, quic_port)

    @property
    def failure(self) -> HeadraceError | None:
        return self.service.failure

    def addresses(self) -> dict[str, str]:
        found = {"iggy": self.service.address, "quic": self.service.quic_address}
        return {name: address for name, address in found.items() if address}


def _in_cluster(settings: Settings, machine: str, tls: Tls) -> InCluster:
    return InCluster(
        link_host=settings.host,
        machine=machine,
        link_advertise=advertised_host(settings.advertise),
        advertise=settings.advertise,
        tls=tls.acceptor,
        peer_tls=tls.peers,
    )


class WorkerPlane(Role):
    """`start` has its data nodes, `serve` its broker, until `close`. `lost` is set when its broker
    cannot go on.

    The two are apart because a broker that takes over reads logs that any of the data nodes has.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        number: int,
        nodes: Sequence[int],
        placement_managers: Sequence[str],
        secret: bytes = b"",
        machine: str = "",
        cluster_uuid: str = "",
        before: Mapping[str, str] | None = None,
        on_root: Callable[[RootCredentials], None] | None = None,
        figures: Callable[[], ProcessFigures] = ProcessFigures,
        diagnostics: Diagnostics | None = None,
    ) -> None:
        """`nodes` are the numbers of the data nodes that run here. The cluster's `secret` is in the
        data directory when it is not given, `machine` is as in `WorkerRole`. `before` are the
        addresses of an earlier life: its data nodes have the same again if they are free, because
        others know them."""
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._number = number
        self._numbers = nodes
        self._placement_managers = placement_managers
        self._secret = secret
        self._machine = machine
        self._cluster_uuid = cluster_uuid
        self._before = before or {}
        self._on_root = on_root
        self._figures = figures
        self._diagnostics = diagnostics
        self._nodes: dict[int, NodeRole] = {}
        self._broker: WorkerRole | None = None
        self._serves = False

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        secret = self._secret or await self._load_secret()
        tls = await load_tls(runtime, settings)
        for number in self._numbers:
            await self._start_node(number, secret, tls)
        self._broker = WorkerRole(
            runtime,
            settings,
            secret=secret,
            placement=placement_links(
                runtime, self._placement_managers, secret, "broker", tls=tls.peers
            ),
            node=self._connect_node(node_connect(runtime, secret, "broker", tls=tls.peers)),
            placement_address=",".join(self._placement_managers),
            machine=self._machine,
            tls=tls,
            cluster_uuid=self._cluster_uuid,
            number=self._number,
            home_node=self._home_node,
            on_root=self._on_root,
            figures=self._figures,
            diagnostics=self._diagnostics,
            files=len(self._numbers) * settings.storage.open_files_max,
            descriptors=1.0 - _SBP_PART if self._numbers else 1.0,
        )

    async def _load_secret(self) -> bytes:
        runtime = self._runtime
        files = runtime.executor("process", 1)
        try:
            return await files.run(
                load_secret, runtime.disk, runtime.random, self._settings.data_dir
            )
        finally:
            files.close()

    async def serve(self, *, leads: bool = False) -> None:
        """Returns once clients are accepted; with `leads` once the broker leads and serves them."""
        assert self._broker is not None, "not started"
        self._closers.append(self._broker.close)
        await self._broker.start()
        self._serves = True
        self.lost = self._broker.lost
        if leads:
            await self._wait_leading()

    async def _start_node(self, number: int, secret: bytes, tls: Tls) -> None:
        runtime, role = self._runtime, ClientRole.DATA_NODE
        folder = node_folder(number)
        await self._wait_unlocked(f"{self._settings.data_dir}/{folder}/log")
        node = NodeRole(
            runtime,
            await self._node_settings(number),
            secret=secret,
            placement=placement_links(
                runtime, self._placement_managers, secret, "data-node", role, tls=tls.peers
            ),
            peers=node_connect(runtime, secret, "data-node", role, tls=tls.peers),
            tls=tls.acceptor,
            plain_streams=self._settings.plain_streams and self._settings.host in LOOPBACK,
            folder=folder,
            files=(len(self._numbers) - 1) * self._settings.storage.open_files_max,
            descriptors=_SBP_PART / len(self._numbers),
        )
        await node.start()
        self._nodes[number] = node
        self._closers.append(node.close)

    async def _node_settings(self, number: int) -> Settings:
        settings = self._settings if number == 0 else without_port(self._settings)
        # No two replicas of a range are on two workers of one machine.
        data_node = replace(settings.data_node, host_id=HOST_ID)
        settings = replace(settings, data_node=data_node)
        if settings.node_port == 0 and node_folder(number) in self._before:
            before = self._before[node_folder(number)]
            port = await port_again(self._runtime, settings.host, before)
            settings = replace(settings, node_port=port)
        return settings

    async def _wait_unlocked(self, folder: str) -> None:
        """Workers of a parent that was killed end by themselves, a moment after it. The placement
        metadata, which our parent holds, says that nobody else is at work here."""
        files = self._runtime.executor("process", 1)
        try:
            for _ in range(int(_LOCK_SECONDS / _LOCK_PAUSE_SECONDS)):
                if await files.run(self._is_unlocked, folder):
                    return
                await self._runtime.clock.sleep(_LOCK_PAUSE_SECONDS)
        finally:
            files.close()

    def _is_unlocked(self, folder: str) -> bool:
        disk = self._runtime.disk
        if not disk.exists(f"{folder}/{LOCK}"):
            return True
        try:
            disk.lock(f"{folder}/{LOCK}").release()
        except LockedError:
            return False
        return True

    def _connect_node(self, over_tcp: Callable[[str], Connect]) -> Callable[[str], Connect]:
        """In process when the address is of a data node here, over TCP otherwise."""

        def connect_to(address: str) -> Connect:
            async def connect() -> Channel:
                for node in self._nodes.values():
                    if address in (node.service.address, node.service.advertise):
                        return await node.service.connect()
                return await over_tcp(address)()

            return connect

        return connect_to

    # -- as the parent asks for it

    async def _wait_leading(self) -> None:
        """Until the broker has served clients as the leader; its failure if it never will."""
        assert self._broker is not None, "not started"
        serving = asyncio.ensure_future(self._broker.service.serving.wait())
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait([serving, lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (serving, lost):
                task.cancel()
            await asyncio.gather(serving, lost, return_exceptions=True)
        if self.failure is not None:
            raise self.failure

    async def retire(self) -> None:
        """All workers are about to end. Nothing is taken over any more, and data nodes will hand
        nothing over."""
        for node in self._nodes.values():
            node.hands_over = False
        if self._broker is not None and self._serves:
            await self._broker.service.retire()

    async def close_broker(self) -> None:
        if self._broker is not None:
            await self._broker.close()

    # -- figures

    @property
    def holder(self) -> str:
        """Who its broker is to the placement manager."""
        assert self._broker is not None, "not started"
        return self._broker.service.holder

    @property
    def failure(self) -> HeadraceError | None:
        return self._broker.failure if self._broker is not None and self._serves else None

    def addresses(self) -> dict[str, str]:
        """Those of clients, and of each data node under the name of its folder."""
        found = self._broker.addresses() if self._broker is not None and self._serves else {}
        return {
            **found,
            **{node_folder(n): node.service.address for n, node in self._nodes.items()},
        }

    def observed(self) -> Sequence[ObservedRole]:
        labels_max = self._settings.observability.labels_max
        broker = ObservedBroker(
            lambda: self._broker.service if self._broker and self._serves else None,
            labels_max=labels_max,
        )
        return (ObservedNode(self._own_node), broker) if self._numbers else (broker,)

    def _home_node(self) -> int:
        node = self._own_node()
        return -1 if node is None else node.node_id

    def _own_node(self) -> DataNodeService | None:
        node = self._nodes.get(self._number)
        return None if node is None else node.service


async def find_port(runtime: Runtime, host: str, port: int) -> int:
    """One that nobody listens on, nor would share: `port`, or any if that is 0. ConfigError
    when that is taken."""

    async def refuse(connection: Connection) -> None:
        connection.abort()

    listener = await runtime.transport.listen(host, port, refuse)
    listener.close()
    await listener.wait_closed()
    return listener.port


async def find_datagram_port(runtime: Runtime, host: str, port: int) -> int:
    """The same for datagrams."""
    listener = await runtime.transport.listen_datagrams(host, port, lambda data, address: None)
    listener.close()
    await listener.wait_closed()
    return listener.port


async def port_again(runtime: Runtime, host: str, before: str) -> int:
    """The port of an address of before if it is free, else 0, which is any."""
    try:
        return await find_port(runtime, host, parse_address(before)[1])
    except ConfigError:
        return 0
