"""A broker that is one worker of several, as a service: its leases, links, listeners, their order.

Starting: be known by a lease, listen for the other workers, find a role, then listen for clients.
Closing: end the sessions, hand over the shards, give the leases back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headrace.broker.core import Broker
from headrace.broker.dispatch import Dispatcher
from headrace.broker.partitions import retention
from headrace.broker.sessions.sessions import Session
from headrace.broker.shards.forwarding import Forwarding
from headrace.broker.shards.leases import COORDINATOR, NUMBER_PREFIX, WorkerLeases
from headrace.broker.shards.links import WorkerLinks, cluster_address, unix_address
from headrace.broker.shards.moved import MovingSessions
from headrace.broker.shards.moving import Trail
from headrace.broker.shards.serving import PeerRequests
from headrace.broker.shards.worker import Worker
from headrace.broker.term.broker_registry import BrokerAddress, leader_address, stay_listed
from headrace.broker.term.root_user import make_root
from headrace.broker.term.term import Setup
from headrace.broker.term.transports import Transports
from headrace.concurrency.tasks import TaskSet
from headrace.errors import HeadraceError, UnavailableError
from headrace.net.addresses import advertised, format_address, parse_address
from headrace.net.peer_server import PeerServer
from headrace.net.tls import ClientTls, TlsAcceptor
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import OnConnection
from headrace.sbp_client.leadership import HolderFile
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.system import TransportKind

log = get_logger(__name__)

LEASE_MS_MAX = 3_000
CLUSTER_LEASE_MS_MAX = 2_000
"""A machine that is gone takes those with it who would tell of its workers' end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InCluster:
    """What a worker is told whose cluster has workers on several machines."""

    link_host: str
    """Where it listens for workers of other machines; the port is any that is free."""
    machine: str
    """What all workers of its machine say, and no others."""
    link_advertise: str = ""
    """The host by which others reach it, if that is not `link_host`."""
    advertise: str = ""
    """The address by which clients reach it, if that is not where it listens."""
    tls: TlsAcceptor | None = None
    peer_tls: ClientTls | None = None


class WorkerService:
    def __init__(
        self,
        setup: Setup,
        *,
        number: int,
        folder: str,
        link_path: str,
        link_address: str = "",
        cluster: InCluster | None = None,
    ) -> None:
        """`number` is the worker's among those of its machine, `link_path` the unix socket where
        others of that reach it. `link_address`, a host and a port, is used in its stead where it is
        given; with `cluster` workers of other machines have an address of their own."""
        self._setup = setup
        self._runtime = runtime = setup.runtime
        self._settings = setup.settings
        self._number = number
        self._link_path = link_path
        self._link_address = link_address
        self._cluster = cluster
        self._executor = runtime.executor("broker", 1)
        self._holder_file = HolderFile(runtime, folder, self._executor)
        self._tasks = TaskSet("worker service")
        self._closed = False
        self.lost = asyncio.Event()
        """Set when this service is over because of `failure`."""
        self.failure: HeadraceError | None = None
        self.serving = asyncio.Event()
        """Set once clients are served."""
        self.broker = Broker(
            runtime,
            setup.settings,
            setup.client,
            setup.identity,
            figures=setup.figures,
            diagnostics=setup.diagnostics,
        )
        self.broker.sessions.worker = number
        self.transports: Transports | None = None
        self.worker: Worker | None = None
        self._server: PeerServer | None = None

    async def start(self, host: str, port: int, quic_port: int | None = None) -> None:
        """Returns once clients are served."""
        try:
            await self._start(host, port, quic_port)
        except BaseException:
            await self.close()
            raise

    async def _start(self, host: str, port: int, quic_port: int | None) -> None:
        setup, runtime = self._setup, self._runtime
        self._holder = await self._holder_file.load()
        await self._holder_file.save(self._holder)
        me = self.broker.name = self._holder.holder
        self.leases = WorkerLeases(
            runtime,
            setup.client,
            holder=me,
            duration_ms=self._lease_ms,
            on_lost=self._on_lost,
            is_current=lambda: self.worker is not None and self.worker.is_current,
        )
        secret, cluster = setup.identity.secret, self._cluster
        self._links = WorkerLinks(
            runtime,
            setup.client,
            me=me,
            secret=secret,
            on_unlinked=self._on_unlinked,
            machine="" if cluster is None else cluster.machine,
            tls=None if cluster is None else cluster.peer_tls,
        )
        worker = self.worker = Worker(
            runtime,
            setup.client,
            self.broker,
            self.leases,
            self._links,
            me=me,
            make_root=lambda: make_root(self.broker, setup.on_root),
        )
        self.moving = MovingSessions(self.broker, worker)
        forwarding = self.forwarding = Forwarding(self.broker, worker.peers, worker.shards)
        dispatcher = Dispatcher(self.broker, self.leases, forwarding)
        requests = self.requests = PeerRequests(self.broker, dispatcher)
        self._server = PeerServer(
            runtime,
            secret=secret,
            name=me,
            on_request=requests.on_request,
            on_notice=worker.on_notice,
            on_unlinked=self._on_unlinked,
            on_move=self._on_move,
        )
        self.leases.address = await self._listen_for_workers(self._server)
        await self.leases.start()
        if cluster is not None:
            await self._take_number()
        worker.start(requests)
        self.transports = Transports(
            runtime,
            self._settings,
            dispatcher,
            open_session=self._open_session,
            close_session=self._close_session,
            encryption=setup.encryption,
            mover=self.moving,
        )
        await worker.ready.wait()
        await self.transports.start(host, port, quic_port, reuse_port=True)
        self._announce(self.transports)
        self._tasks.start(self._enforce_retention(), name="retention")
        self.serving.set()

    @property
    def _lease_ms(self) -> int:
        longest = LEASE_MS_MAX if self._cluster is None else CLUSTER_LEASE_MS_MAX
        return min(longest, self._settings.lease_ms)

    async def _listen_for_workers(self, server: PeerServer) -> str:
        """Returns what the lease tells others."""
        if self._link_address:
            await server.start_tcp(*parse_address(self._link_address))
            return self._link_address
        await server.start_unix(self._link_path)
        cluster = self._cluster
        if cluster is None:
            return unix_address(self._link_path)
        listener = await server.start_tcp(cluster.link_host, 0, cluster.tls)
        listened = format_address(cluster.link_host, listener.port)
        address = advertised(cluster.link_advertise, listened)
        return cluster_address(address, cluster.machine, self._link_path)

    async def _take_number(self) -> None:
        self.broker.sessions.worker = await self.leases.take_number()

    def _announce(self, transports: Transports) -> None:
        """Tell clients, and in a cluster other brokers, where this worker is reached."""
        listener, quic = transports.tcp.listener, transports.quic
        listened = format_address(listener.host, listener.port)
        advertise = "" if self._cluster is None else self._cluster.advertise
        host, port = self.broker.address = parse_address(advertised(advertise, listened))
        self.broker.quic_port = 0 if quic is None else quic.port
        if self._cluster is not None:
            listing = stay_listed(
                self._runtime,
                self._setup.client,
                holder=self.holder,
                address=BrokerAddress(host, port, self.broker.quic_port),
                duration_ms=self._lease_ms,
            )
            self._tasks.start(listing, name="listed")

    async def retire(self) -> None:
        """All workers are about to end: take no more shards, and give none to others."""
        if self.worker is not None:
            await self.worker.retire()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._tasks.close()
        if self.transports is not None:
            await self.transports.close()
        if self.worker is not None:
            await self.worker.close()
        await self.broker.close(finish=self.leads)
        if self.worker is not None:
            try:
                await self.leases.close()
            except HeadraceError as error:
                log.info("leases not given back", reason=str(error))
        if self._server is not None:
            await self._server.close()
            await self._links.close()
        self._executor.close()

    # -- what leases and links say

    def _on_lost(self, name: str) -> None:
        if name.startswith(NUMBER_PREFIX) and not self._closed:
            self._tasks.start(self._take_number(), name="number")
        if self.worker is not None:
            self.worker.on_lost(name)

    def _on_unlinked(self, worker: str) -> None:
        if self.worker is not None:
            self.worker.on_unlinked(worker)

    # -- sessions

    def _open_session(self, peer: str, transport: TransportKind) -> Session:
        dialect = Dialect(self._settings.default_dialect)
        now = self._runtime.clock.monotonic()
        session = self.broker.sessions.open(peer, dialect, now, transport)
        if transport is TransportKind.TCP:
            session.trail = Trail()
        return session

    def _close_session(self, session: Session) -> None:
        self.broker.logout(session)
        self.broker.sessions.close(session)
        self.moving.on_closed(session)

    def _on_move(self, peer: str, head: bytes) -> OnConnection:
        if self.transports is None or not self.serving.is_set():
            raise UnavailableError("clients are not served yet")
        return self.moving.on_move(self.transports.tcp, peer, head)

    async def _enforce_retention(self) -> None:
        """By the coordinator, for everybody: a topic's size is that of all its partitions."""
        while True:
            await self._runtime.clock.sleep(self._settings.retention_interval_ms / 1000)
            if not self.broker.workers.coordinates:
                continue
            try:
                await retention.enforce(self.broker)
                await self.broker.publishing.sweep(self._settings.staged_ms_max)
            except HeadraceError as error:
                log.warning("retention round failed", reason=str(error))

    # -- figures

    @property
    def holder(self) -> str:
        """Who this worker is to the placement manager and to others."""
        return self._holder.holder

    @property
    def leads(self) -> bool:
        return self.worker is not None and self.leases.holds

    @property
    def serves(self) -> bool:
        return self.serving.is_set() and self.leads

    async def find_leader(self) -> str:
        """Where whoever coordinates is reached: by clients in a cluster, else by other workers."""
        if self._cluster is not None:
            return leader_address(await self.broker.registry.describe())
        return (await self._setup.client.query_lease(COORDINATOR)).address

    @property
    def address(self) -> str:
        assert self.transports is not None, "not started"
        return self.transports.tcp.address

    @property
    def quic_address(self) -> str:
        """Empty when QUIC is not served."""
        quic = None if self.transports is None else self.transports.quic
        return "" if quic is None else quic.address

    def statistics(self) -> dict[str, object]:
        worker, transports, broker = self.worker, self.transports, self.broker
        if worker is None or transports is None:
            return {"leads": False, "epoch": -1}
        return {
            "leads": self.leads,
            "epoch": self.leases.epoch(COORDINATOR) or -1,
            "coordinates": worker.coordinates,
            "shards": len(worker.shards.held),
            "connections_given": self.moving.given,
            "connections_taken": self.moving.taken,
            "streams": len(broker.catalogue.streams),
            "topics": sum(1 for _ in broker.catalogue.topics()),
            "users": len(broker.catalogue.users),
            "groups": broker.catalogue.groups_count(),
            "clients": len(broker.sessions),
            "partitions_open": len(broker.open_logs()),
            "doomed_streams": len(broker.catalogue.doomed),
            **broker.publishing.statistics(),
            **broker.traffic.totals(),
            **transports.statistics(),
        }
