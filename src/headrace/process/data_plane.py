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
from headrace.process.links import node_connect
from headrace.process.roles import BrokerRole, NodeRole, OpenStore, PlacementRole, Role
from headrace.process.secrets import load_cluster_uuid, load_secret
from headrace.runtime import Runtime
from headrace.sbp_client.channels import Connect
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_replay import Condition, accept_losses, look_at
from headrace.web.metrics.broker import ObservedBroker
from headrace.web.metrics.checks import Observed
from headrace.web.metrics.cluster import ObservedNode, ObservedPlacement
from headrace.wire.sbp.messages import ClientRole

_SBP_PART = 0.2
"""Of what the process has for connections: of the placement manager's and the data node's port."""


class LogPlane(Role):
    """A placement manager and a data node in one process: a log that nobody leads yet."""

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
        self.placement: PlacementService | None = None

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        self._secret, self._cluster_uuid = await self._load_identity()
        self._tls = await load_tls(runtime, settings)
        self.authority_path = self._tls.certificate.authority_path
        plain_streams = settings.plain_streams and settings.host in LOOPBACK
        placement = PlacementRole(
            runtime,
            settings,
            secret=self._secret,
            node=self._connect_node,
            tls=self._tls.acceptor,
            plain_streams=plain_streams,
            open_store=self._open_store,
            files=settings.storage.open_files_max,
            descriptors=_SBP_PART,
        )
        await self._run(placement)
        self.placement = placement.service
        self._placement_address = placement.address
        node = NodeRole(
            runtime,
            settings,
            secret=self._secret,
            placement=self.placement.connect,
            tls=self._tls.acceptor,
            plain_streams=plain_streams,
            descriptors=_SBP_PART,
        )
        self.node = node.service
        await self._run(node)

    async def _run(self, role: Role) -> None:
        await role.start()
        self._roles.append(role)
        self._closers.append(role.close)

    async def _load_identity(self) -> tuple[bytes, str]:
        disk, random, data_dir = self._runtime.disk, self._runtime.random, self._settings.data_dir
        files = self._runtime.executor("process", 1)
        try:
            secret = await files.run(load_secret, disk, random, data_dir)
            return secret, await files.run(load_cluster_uuid, disk, random, f"{data_dir}/placement")
        finally:
            files.close()

    def _connect_node(self, address: str) -> Connect:
        """In process when the address is our own node's, over TCP otherwise."""

        async def connect() -> Channel:
            if self.node is not None and address == self.node.address:
                return await self.node.connect()
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
            files=self._settings.storage.open_files_max,
            descriptors=1.0 - 2 * _SBP_PART,
        )
        await self._run(broker)
        self.broker = broker.service
        self.lost = broker.lost

    def observed(self) -> Sequence[Observed]:
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
        """Of every log. No event of theirs is changed; one that was never made is, empty."""
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
