"""Controller, JSON API and page in one process, joined to the data plane by the protocols alone.

`ControlPlane` belongs to `headrace up`. `ControllerRole` is the pipeline controller by itself, in a
cluster whose broker may move: the controller and the containers it starts know one address of the
broker, a listener in this process that passes connections on to whichever broker leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from headrace.broker.term.broker_registry import BrokerRegistry, leader_address, log_replicas
from headrace.broker.term.standby_listener import StandbyListener
from headrace.client.iggy import IggyClient
from headrace.client.url import Identity
from headrace.config.settings import LOOPBACK, Settings
from headrace.errors import HeadraceError
from headrace.net.addresses import format_address, parse_address
from headrace.net.credentials import service_token
from headrace.net.tls import ClientTls
from headrace.observability.lineage import LineageEmitter
from headrace.pipeline.controller.broker_edges import BrokerEdges
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.controller.journal import LOG_NAME, VERSION
from headrace.pipeline.controller.launcher import LocalLauncher
from headrace.pipeline.controller.lineage import Lineage
from headrace.pipeline.controller.operations import Operations
from headrace.process.certificates import (
    Certificate,
    PeerTrust,
    load_certificate,
    load_tls,
    load_trust,
)
from headrace.process.cluster_connections import (
    check_addresses,
    node_connect,
    placement_links,
    reach,
)
from headrace.process.cluster_state import ClusterState
from headrace.process.http_server import WebServer
from headrace.process.limits import http_limits
from headrace.process.roles import Role
from headrace.process.secrets import http_token_path, load_http_token, load_secret
from headrace.runtime import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.leadership import HolderFile, Leadership
from headrace.sbp_client.state_log import StateLog
from headrace.web.app import create_app
from headrace.web.broker_api.broker_connections import BrokerConnections
from headrace.web.metrics.pipelines import ObservedController
from headrace.web.metrics.process import ObservedRole
from headrace.web.server.assets import load_assets
from headrace.web.server.logins import CodeToken

LEASE_NAME = "controller"
_LOGINS = ("USERNAME", "PASSWORD", "TOKEN", "TOKEN_FILE")
_WITHHELD = frozenset(
    [f"HEADRACE_{one}" for one in _LOGINS]
    + [f"{whose}_ROOT_{one}" for whose in ("HEADRACE", "IGGY") for one in _LOGINS]
    + [f"HEADRACE_SOURCE_{one}" for one in _LOGINS]
)


def inherited(environment: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """What containers get of our environment: not what lets anyone in, at the broker or anywhere
    that our settings name a variable for. Their own secrets are the operator's to give them under
    names of their own."""
    withheld = _WITHHELD | set(_references(msgspec.to_builtins(settings)))
    return {name: value for name, value in environment.items() if name not in withheld}


def _references(value: object) -> Iterator[str]:
    """The variables that texts like `env:NAME` in settings refer to."""
    if isinstance(value, str) and value.startswith("env:"):
        yield value.removeprefix("env:")
    elif isinstance(value, dict):
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)


class ControlPlane:
    """`start`, then serves until `close`; `wait_ended` returns when it cannot go on."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        addresses: Mapping[str, str],
        *,
        environment: Mapping[str, str],
        secret: bytes = b"",
        before: Mapping[str, str] | None = None,
        alone: bool = False,
    ) -> None:
        """`addresses` are the data plane's, of placement managers all with commas between them;
        `environment` is what containers inherit. Without a secret it is in the data directory.
        `before` are our own of an earlier life: where the settings leave a port open, the same one
        is taken again if it is free, so that whoever knew the address finds us there. `alone`: no
        other controller can want our lease."""
        self._runtime = runtime
        self._settings = settings
        self._addresses = addresses
        self._environment = environment
        self._secret = secret
        self._before = before or {}
        self._alone = alone
        self._files = runtime.executor("process", 1)
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._lost = asyncio.Event()
        self._controller: Controller | None = None
        self._web: WebServer | None = None
        self._tls: ClientTls | None = None

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        secret = self._secret or await self._files.run(
            load_secret, runtime.disk, runtime.random, settings.data_dir
        )
        certificate, trust = await self._files.run(self._load_tls)
        self._tls = None if trust is None else trust.client()
        managers = self._addresses["placement_manager"].split(",")
        connect_to = node_connect(runtime, secret, "controller", tls=self._tls)
        client = SbpClient(
            runtime,
            placement=placement_links(runtime, managers, secret, "controller", tls=self._tls),
            node=connect_to,
            client_id="controller",
            settings=self._settings.client,
        )
        self._closers.append(client.close)
        epoch, clean = await self._lead(client)
        replicas = await log_replicas(settings.broker, BrokerRegistry(runtime, client))

        async def open_log(apply: Any, snapshot: Any, restore: Any) -> StateLog:
            return await StateLog.open(
                client,
                name=LOG_NAME,
                epoch=epoch,
                clean=clean,
                apply=apply,
                snapshot=snapshot,
                restore=restore,
                runtime=runtime,
                version_max=VERSION,
                replica_nums=replicas,
            )

        token = service_token(secret)
        iggy_address = parse_address(self._addresses["iggy"])

        async def connect_edges() -> IggyClient:
            return await IggyClient.connect(
                runtime, *iggy_address, tls=self._tls, identity=Identity(token=token)
            )

        self._controller = Controller(
            runtime,
            settings.controller,
            data_dir=settings.data_dir,
            open_log=open_log,
            launcher=LocalLauncher(
                runtime,
                self._addresses["iggy"],
                environment=inherited(self._environment, settings),
                reach={} if trust is None else trust.environment(),
                master=settings.controller.master,
                spark_conf=settings.controller.spark_conf,
            ),
            edges=BrokerEdges(connect_edges),
            lineage=self._make_lineage(iggy_address),
            secret=secret,
            broker=iggy_address,
            # The umbilical's login encrypts nothing, and its containers are our children.
            host=settings.controller.umbilical_host
            or (settings.host if settings.host in LOOPBACK else LOOPBACK[0]),
            port_before=self._port_before("umbilical"),
        )
        await self._controller.start()
        self._closers.append(self._controller.close)
        broker = BrokerConnections(runtime, iggy_address, token, tls=self._tls)
        self._closers.append(broker.close)
        assets = await self._files.run(load_assets)
        cluster = ClusterState(client, connect_to, managers)
        roles = self.observed()
        code_token = await self._files.run(self._load_code_token)
        web = create_app(
            runtime, self._controller.operations, broker, cluster, assets, roles, code_token
        )
        self._web = WebServer(web.asgi, names=settings.http_names, limits=http_limits(runtime.disk))
        files_of = None if trust is None else (certificate.chain_path, certificate.key_path)
        await self._web.start(
            settings.host,
            settings.http_port,
            certificate=files_of,
            port_before=self._port_before("http"),
        )
        self._closers.append(self._web.close)
        web.sampler.start()
        self._closers.append(web.close)  # first: it ends the connections that are fed

    def _make_lineage(self, broker: tuple[str, int]) -> Lineage | None:
        told = self._settings.observability
        if not told.lineage_url:
            return None
        emitter = LineageEmitter(
            told.lineage_url
        )  # now: what is missing ends the start, not an event
        return Lineage(
            self._runtime,
            lambda: emitter,
            broker=broker,
            namespace=told.lineage_namespace,
            interval_ms=told.lineage_interval_ms,
        )

    def _port_before(self, name: str) -> int:
        return parse_address(self._before[name])[1] if name in self._before else 0

    def _load_tls(self) -> tuple[Certificate, PeerTrust | None]:
        """Blocks. The data plane made the development certificate before we came."""
        runtime, settings = self._runtime, self._settings
        certificate = load_certificate(runtime.disk, runtime.clock, settings.tls, settings.data_dir)
        return certificate, load_trust(runtime.disk, settings.tls, certificate)

    def _load_code_token(self) -> CodeToken:
        """Blocks."""
        runtime, data_dir = self._runtime, self._settings.data_dir
        token = load_http_token(runtime.disk, runtime.random, data_dir)
        return CodeToken(token, http_token_path(data_dir))

    async def _lead(self, client: SbpClient) -> tuple[int, bool]:
        """The epoch of the controller's lease, and whether our last stop was clean."""
        folder = f"{self._settings.data_dir}/controller"
        holder_file = HolderFile(self._runtime, folder, self._files)
        holder = await holder_file.load()
        leadership = Leadership(
            self._runtime,
            client,
            name=LEASE_NAME,
            holder=holder.holder,
            duration_ms=self._settings.controller.lease_ms,
            on_lost=self._lost.set,
            alone=self._alone,
        )
        epoch = await leadership.acquire()
        clean = holder.continues(epoch)
        holder.clean_epoch = -1
        await holder_file.save(holder)

        async def leave() -> None:
            if leadership.holds:
                holder.clean_epoch = leadership.epoch
                await holder_file.save(holder)
            await leadership.close()

        self._closers.append(leave)
        return epoch, clean

    def addresses(self) -> dict[str, str]:
        assert self._controller is not None, "not started"
        assert self._web is not None, "not started"
        return {
            "http": format_address(*self._web.address),
            "umbilical": format_address(*self._controller.umbilical_address),
        }

    @property
    def operations(self) -> Operations | None:
        """What the controller may be asked, once it works and everything is served."""
        if self._web is None or self._controller is None:
            return None
        return self._controller.operations

    @property
    def failure(self) -> HeadraceError | None:
        return None if self._controller is None else self._controller.failure

    def observed(self) -> Sequence[ObservedRole]:
        labels_max = self._settings.observability.labels_max
        observed = ObservedController(
            lambda: self.operations, lambda: self.failure, labels_max=labels_max
        )
        return (observed,)

    async def wait_ended(self) -> HeadraceError | None:
        """Returns the reason when the controller failed, None when the lease was lost."""
        assert self._controller is not None, "not started"
        lost = asyncio.create_task(self._lost.wait())
        ended = asyncio.create_task(self._controller.wait_ended())
        await asyncio.wait([lost, ended], return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        ended.cancel()
        await asyncio.gather(lost, ended, return_exceptions=True)
        return self._controller.failure

    async def close(self) -> None:
        while self._closers:
            await self._closers.pop()()
        self._files.close()


_LOOPBACK = "127.0.0.1"


class ControllerRole(Role):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        secret: bytes,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._settings = settings
        self._secret = secret
        self._environment = environment
        self._watching: asyncio.Task[None] | None = None
        self._plane: ControlPlane | None = None

    async def _start(self) -> None:
        runtime, settings = self._runtime, self._settings
        managers = check_addresses(settings.placement_managers)
        tls = (await load_tls(runtime, settings)).peers
        client = SbpClient(
            runtime,
            placement=placement_links(runtime, managers, self._secret, "controller", tls=tls),
            node=node_connect(runtime, self._secret, "controller", tls=tls),
            client_id="controller",
            settings=settings.client,
        )
        self._closers.append(client.close)
        await reach(client, wait=True)

        async def find_leader() -> str:
            return leader_address(await client.describe_cluster())

        listener = StandbyListener(
            runtime,
            find_leader=find_leader,
            wait_seconds=settings.broker.leader_wait_ms / 1000,
            guests_max=settings.broker.connections_max,
        )
        await listener.start(_LOOPBACK, 0)
        self._closers.append(listener.close)
        plane = self._plane = ControlPlane(
            runtime,
            settings,
            {"placement_manager": ",".join(managers), "iggy": listener.address},
            environment=self._environment,
            secret=self._secret,
        )
        await plane.start()
        self._closers.append(plane.close)
        self._watching = asyncio.create_task(self._watch(plane))
        self._closers.append(self._stop_watching)

    async def _watch(self, plane: ControlPlane) -> None:
        await plane.wait_ended()
        self.lost.set()

    async def _stop_watching(self) -> None:
        assert self._watching is not None, "it was started"
        self._watching.cancel()
        await asyncio.wait([self._watching])

    def observed(self) -> Sequence[ObservedRole]:
        return (
            ObservedController(
                lambda: None if self._plane is None else self._plane.operations,
                lambda: None if self._plane is None else self._plane.failure,
                labels_max=self._settings.observability.labels_max,
            ),
        )

    def addresses(self) -> dict[str, str]:
        assert self._plane is not None, "not started"
        return self._plane.addresses()
