"""Placement manager, data node and broker in one process, joined by in-process channels.

The parts talk as they would over TCP; here the transport hands over the message objects. The SBP
ports listen all the same, for the control plane, for Spark and, if `plain_streams` says so, for
plain SBP clients.

The control logs of a data directory that nobody uses: what they lost, and going on without it.

A placement manager and a data node run for the moment, on ports that nobody was told, without a
broker: nothing is replayed, so nothing can refuse to start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from headrace.broker.core import ProcessFigures
from headrace.broker.service import BrokerService, RootCredentials
from headrace.broker.term.snapshot import Diagnostics
from headrace.config.settings import LOOPBACK, Settings
from headrace.datanode.service import DataNodeService
from headrace.net.sbp_channel import Channel
from headrace.placement.metadata.store import SqliteStore
from headrace.placement.service import PlacementService
from headrace.process.certificates import load_tls
from headrace.process.cluster_connections import node_connect
from headrace.process.node_folders import find_nodes, node_folder, without_port
from headrace.process.roles import BrokerRole, NodeRole, OpenStore, PlacementRole, Role
from headrace.process.secrets import load_identity
from headrace.runtime import Runtime
from headrace.sbp_client.channels import Connect
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_replay import Condition, accept_losses, look_at
from headrace.web.metrics.broker import ObservedBroker
from headrace.web.metrics.cluster import ObservedNode, ObservedPlacement
from headrace.web.metrics.process import ObservedRole
from headrace.wire.sbp.messages import ClientRole

_SBP_PART = 0.2
"""Of what the process has for connections: of the placement manager's and the data node's port."""


class LogPlane(Role):
    """A placement manager and a data node in one process: a log that nobody leads yet.

    A data directory that several workers wrote has several data nodes; all of them run here then.
    """

    def __init__(
        self, runtime: Runtime, settings: Settings, *, open_store: OpenStore = SqliteStore.open
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._open_store = open_store
        self._roles: list[Role] = []
        self.authority_path = ""
        """What clients trust the development certificate by; empty with one of your own."""
        self.node: DataNodeService | None = None
        self.further_nodes: list[DataNodeService] = []
        """Of workers that are no more."""
        self.placement: PlacementService | None = None

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        self._secret, self._cluster_uuid = await load_identity(runtime, settings.data_dir)
        self._tls = await load_tls(runtime, settings)
        self.authority_path = self._tls.certificate.authority_path
        plain_streams = settings.plain_streams and settings.host in LOOPBACK
        numbers = await find_nodes(runtime, settings.data_dir)
        self._open_files = len(numbers) * settings.storage.open_files_max
        placement = PlacementRole(
            runtime,
            settings,
            secret=self._secret,
            node=self._connect_node,
            tls=self._tls.acceptor,
            plain_streams=plain_streams,
            open_store=self._open_store,
            files=self._open_files,
            descriptors=_SBP_PART,
        )
        await self._run(placement)
        self.placement = placement.service
        self._placement_address = placement.address
        peers = node_connect(
            runtime, self._secret, "data-node", ClientRole.DATA_NODE, tls=self._tls.peers
        )
        for number in numbers:
            node = NodeRole(
                runtime,
                without_port(settings) if number else settings,
                secret=self._secret,
                placement=self.placement.connect,
                peers=peers,
                tls=self._tls.acceptor,
                plain_streams=plain_streams,
                folder=node_folder(number),
                files=self._open_files - settings.storage.open_files_max,
                descriptors=_SBP_PART / len(numbers),
            )
            node.hands_over = len(numbers) == 1  # the others end with this process, too
            if number:
                self.further_nodes.append(node.service)
            else:
                self.node = node.service
            await self._run(node, listed=not number)

    async def _run(self, role: Role, *, listed: bool = True) -> None:
        """`listed`: clients are told where it is."""
        await role.start()
        if listed:
            self._roles.append(role)
        self._closers.append(role.close)

    def _connect_node(self, address: str) -> Connect:
        """In process when the address is one of our own nodes', over TCP otherwise."""

        async def connect() -> Channel:
            for node in (self.node, *self.further_nodes):
                if node is not None and address == node.address:
                    return await node.connect()
            over_tcp = node_connect(
                self._runtime,
                self._secret,
                "data-plane",
                ClientRole.PLACEMENT_MANAGER,
                tls=self._tls.peers,
            )
            return await over_tcp(address)()

        return connect

    def client(self, client_id: str) -> SbpClient:
        """A client of this log, in this process."""
        assert self.placement is not None
        return SbpClient(
            self._runtime,
            placement=self.placement.connect,
            node=self._connect_node,
            client_id=client_id,
            settings=self._settings.client,
        )

    def addresses(self) -> dict[str, str]:
        """Where clients reach each part, as `host:port`."""
        return {name: at for role in reversed(self._roles) for name, at in role.addresses().items()}


class DataPlane(LogPlane):
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
        super().__init__(runtime, settings, open_store=open_store)
        self._on_root = on_root
        self._figures = figures
        self._diagnostics = diagnostics
        self.broker: BrokerService | None = None

    async def _start(self) -> None:
        await super()._start()
        assert self.placement is not None
        broker = BrokerRole(
            self._runtime,
            self._settings,
            secret=self._secret,
            placement=self.placement.connect,
            node=self._connect_node,
            placement_address=self._placement_address,
            tls=self._tls,
            cluster_uuid=self._cluster_uuid,
            on_root=self._on_root,
            figures=self._figures,
            diagnostics=self._diagnostics,
            files=self._open_files,
            descriptors=1.0 - 2 * _SBP_PART,
        )
        await self._run(broker)
        self.broker = broker.service
        self.lost = broker.lost

    def observed(self) -> Sequence[ObservedRole]:
        labels_max = self._settings.observability.labels_max
        monotonic = self._runtime.clock.monotonic
        return (
            ObservedPlacement(lambda: self.placement, monotonic, labels_max=labels_max),
            ObservedNode(lambda: self.node),
            ObservedBroker(lambda: self.broker, labels_max=labels_max),
        )


LEASES = {
    "s/catalogue": "broker",
    "s/offsets": "broker",
    "s/publishers": "broker",
    "s/controller": "controller",
}
CONTENTS = {
    "s/catalogue": "users, tokens, streams, topics and groups",
    "s/offsets": "stored offsets of consumers and groups",
    "s/publishers": "windows that publishers closed",
    "s/controller": "pipelines, their windows and checkpoints",
}
_HOLDER = "control-log salvage"
_LEASE_MS = 10_000


class ControlLogs:
    def __init__(self, runtime: Runtime, client: SbpClient) -> None:
        self._runtime = runtime
        self._client = client

    async def conditions(self) -> list[Condition]:
        """Examine every log. No event of theirs is changed; one that was never made is, empty."""
        found: list[Condition] = []
        for name in LEASES:
            made = await self._client.create_stream(name=name)
            if await self._client.list_ranges(made.stream_id):
                found.append(await look_at(self._client, name, made.stream_id))
        return found

    async def accept(self, conditions: Sequence[Condition]) -> None:
        """Go on without what they lost; durable on return."""
        for condition in conditions:
            epoch = await self._lead(LEASES[condition.name])
            await accept_losses(self._client, condition.name, epoch, condition.examined.missing)
            await self._client.release(LEASES[condition.name], _HOLDER, epoch)

    async def _lead(self, name: str) -> int:
        """As another holder than the server: it then takes nothing for what it left itself."""
        while True:
            answer = await self._client.lease(name, _HOLDER, _LEASE_MS)
            if answer.granted:
                return answer.epoch
            await self._runtime.clock.sleep(min(1.0, max(0.05, answer.remaining_ms / 1000)))


@asynccontextmanager
async def open_control_logs(runtime: Runtime, settings: Settings) -> AsyncIterator[ControlLogs]:
    """LockedError while a server runs on the data directory."""
    settings = msgspec.structs.replace(
        settings, host="127.0.0.1", placement_port=0, node_port=0, advertise=""
    )
    async with AsyncExitStack() as stack:
        plane = LogPlane(runtime, settings)
        await plane.start()
        stack.push_async_callback(plane.close)
        client = plane.client("salvage")
        stack.push_async_callback(client.close)
        yield ControlLogs(runtime, client)
