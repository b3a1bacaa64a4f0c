"""The data node's shell: owns the log store, serves it, and replicates what it leads.

Start: open the log (recovery), remember which ranges take no more appends, listen, register,
reconcile. Stop: hand over open ranges to others if there are any, stop accepting, finish in flight,
close the log cleanly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from headrace.config.datanode import DataNodeSettings, StorageSettings
from headrace.datanode.append.disk_share import PlainShare
from headrace.datanode.append.in_process import InProcessNode
from headrace.datanode.append.producers import EarlierRanges, ProducerTables
from headrace.datanode.control.node_files import (
    FenceFile,
    Fences,
    Identity,
    MetadataSeen,
    Quarantine,
    Streams,
    load_identity,
    load_interrupted,
    save_identity,
    save_interrupted,
)
from headrace.datanode.control.placement_contact import PlacementContact
from headrace.datanode.control.ranges import Ranges
from headrace.datanode.handlers import handlers
from headrace.datanode.metrics import Counters, IoFigures, Load, metered
from headrace.datanode.replication.copying import Copier, Peers, Repairer
from headrace.datanode.replication.leader import LedRanges
from headrace.datanode.state import Differences, NodeState
from headrace.errors import (
    DiskFullError,
    HeadraceError,
    ShareFullError,
    StorageError,
)
from headrace.net.addresses import advertised
from headrace.net.credentials import node_credential
from headrace.net.sbp_channel import Channel, InProcessChannel
from headrace.net.sbp_routes import Access
from headrace.net.sbp_server import Peer, Routes, SbpServer, ServerLimits, build_routes
from headrace.net.tls import TlsAcceptor
from headrace.runtime.interfaces import Executor, Runtime
from headrace.sbp_client.channels import Connect, PlacementChannel, tcp_connect
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.storage.store import LogStore
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import AlreadyDurableError, AppendGapError, AppendPendingError
from headrace.wire.sbp.opcodes import Role

P = ParamSpec("P")
T = TypeVar("T")

_FULL_SECONDS = 10.0  # a disk that was full a moment ago is reported as full
_NOT_FAILED = (AlreadyDurableError, AppendPendingError, AppendGapError)

_log = logging.getLogger(__name__)


class DataNodeService:
    """`start`, then serves until `close`."""

    def __init__(
        self,
        runtime: Runtime,
        settings: DataNodeSettings,
        *,
        folder: str,
        storage: StorageSettings,
        placement: PlacementChannel | Connect,
        peers: Callable[[str], Connect] | None = None,
        secret: bytes | None,
        plain_streams: bool = False,
    ) -> None:
        """`peers` makes connections to other data nodes, over TCP if not given. `plain_streams`:
        anonymous peers may use streams that do not belong to the cluster (embedded mode on
        loopback)."""
        self.runtime = runtime
        self.settings = settings
        self.access = Access(
            runtime.clock, Role.DATA_NODE, secret=secret, plain_streams=plain_streams
        )
        self.plain_share = PlainShare(runtime.clock, self.logs)
        fences = Fences(settings.tombstone_ms)
        self.state: NodeState[RangeLog] = NodeState(given_up=fences.forbids)
        self.fences = FenceFile(
            runtime.disk,
            folder,
            fences,
            now_ms=runtime.clock.now_ms,
            on_disk=self._on_disk,
        )
        self.quarantine = Quarantine(settings.quarantine_ms)
        self.metadata = MetadataSeen()
        self.tables = ProducerTables(settings)
        self.counters = Counters()
        self._folder = folder
        self._storage = storage
        self._secret = secret
        self._store: LogStore | None = None
        self._server: SbpServer | None = None
        self._channels: list[InProcessChannel] = []
        self._identity: Identity | None = None
        self.advertise = ""
        self._files: Executor | None = None
        self._io = IoFigures()
        self._full_until = 0.0
        self._recovered = False
        if not isinstance(placement, PlacementChannel):
            placement = PlacementChannel.single(placement)
        self.contact = PlacementContact(self, placement)
        self.ranges = Ranges(self)
        self.earlier = EarlierRanges(runtime.clock, self.contact.list_stream)
        connect_to = peers or self._connect_peer
        self.peers = Peers(runtime.clock, connect_to, self.ranges.find_sources)
        self.leading = LedRanges(
            runtime,
            settings,
            connect_to=connect_to,
            addresses=self.ranges.addresses,
            introduce=self.introduction,
            on_stopped=self._on_stopped,
            ask_seal=self.contact.ask_seal,
        )
        self.copier = Copier(
            runtime.clock,
            settings,
            self.peers,
            is_kept=lambda log: self.state.find(log.key) is log,
            on_complete=self._on_complete,
        )
        self.repairer = Repairer(
            runtime.clock,
            settings,
            self.peers,
            logs=self.logs,
            ask_seal=self.contact.ask_seal,
        )
        self.routes: Routes = build_routes(Role.DATA_NODE, handlers(self), InProcessNode(self))

    # Life

    async def start(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        advertise: str = "",
        tls: TlsAcceptor | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Recover, listen if a host is given, register under `advertise` (else where it listens).

        A node that has its id starts without the placement manager too; a new one needs it within
        `register_timeout_ms`.
        """
        self._files = self.runtime.executor("data-node", 1)
        try:
            self._store = await LogStore.open(
                metered(self.runtime, self._io), f"{self._folder}/log", self._storage
            )
            await self._recover(self._store)
            self._recovered = True
            disk_bytes = await self._on_disk(self.runtime.disk.total_bytes, self._folder)
            self.plain_share.limit = disk_bytes * self.settings.plain_streams_percent_max // 100
            if host is not None:
                self._server = SbpServer(
                    self.runtime,
                    self.routes,
                    authorize=self.access.authorize,
                    standing=self.access.standing,
                    secret=self._secret,
                    limits=limits,
                    pressure=lambda: self.store.fullness,
                    tls=tls,
                )
                await self._server.start(host, port)
            self.advertise = advertised(advertise, self.address) if self.address else advertise
            self.contact.start()
            await self.contact.wait_registered()
            self.repairer.start()
            self._resume()
        except BaseException:
            await self.abort()
            raise

    def _resume(self) -> None:
        """What was begun before the restart."""
        for log in self.logs():
            if log.key in self.state.interrupted and log.ack_quorum > 1:
                # Its tail may be on other replicas under the same offsets: it never goes on.
                self.contact.ask_seal(log.key, "led before a restart")
            self.copier.want(log)

    async def abort(self) -> None:
        """Stop without finishing anything, as a crash would; for tests and failed starts."""
        self.state.closing = True
        await self._stop_background()
        if self._store is not None:
            for log in self.logs():
                if log.next_offset > log.durable_offset:
                    log.fail(StorageError("data node aborted"))  # ends appends that wait on it
                log.refuse_appends()
            await self._store.abort()
        await self._let_go()

    async def close(self, *, hand_over: bool = True) -> None:
        """Hand over, stop accepting, finish what is in flight, leave the clean-stop marker.

        Without `hand_over` open ranges stay open: whoever could take them over stops as well.
        """
        if self._store is not None and hand_over:
            await self.contact.leave()
        self.state.closing = True
        for log in self.logs():
            log.refuse_appends()  # what is queued is still written; long polls wake up and end
        if self._server is not None:
            await self._server.close()
        for channel in self._channels:
            await channel.close()
        await self._stop_background()
        if self._store is not None:
            await self._close_store(self._store)
        await self._let_go()

    async def _close_store(self, store: LogStore) -> None:
        try:
            await self._save_interrupted()
        except DiskFullError as error:
            # After a clean stop these ranges would go on, with tails that others may not have.
            _log.warning("which ranges were interrupted is not saved: %s", error)
            await store.close(clean=False)
        else:
            await store.close()

    async def _stop_background(self) -> None:
        await self.contact.stop()
        await self.leading.close()
        await self.copier.close()
        await self.repairer.close()

    async def _let_go(self) -> None:
        for channel in self._channels:
            await channel.close()
        if self._server is not None:
            await self._server.close()
        await self.contact.close()
        await self.peers.close()
        if self._files is not None:
            self._files.close()

    async def _recover(self, store: LogStore) -> None:
        disk = self.runtime.disk
        identity = await self._on_disk(load_identity, disk, self._folder, store.store_uuid)
        if identity is not None:
            self._identity = identity
            self.state.node_id = identity.node_id
        await self._on_disk(self.fences.load)
        await self._on_disk(self.quarantine.load, disk, self._folder)
        await self._on_disk(self.metadata.load, disk, self._folder)
        self.quarantine.discard(set(self.quarantine) - {found.key for found in store.ranges()})
        interrupted = await self._on_disk(load_interrupted, disk, self._folder)
        for found in store.ranges():
            if found.key in self.quarantine:
                continue
            self.state.on_range(store.range(found.key))
            led = found.ack_quorum > 1 and found.replicas[:1] == (self.node_id,)
            if led or (found.ack_quorum == 1 and not store.clean):
                interrupted.add(found.key)
        known = {log.key for log in self.logs() if not log.sealed}
        self.state.interrupted = interrupted & known
        if self.state.interrupted or not store.clean:
            # Durable now: a clean stop before the seal must not make the ranges writable again.
            try:
                await self._save_interrupted()
            except DiskFullError as error:  # what is there is read; `close` does not forget it
                _log.warning("the disk is full: nothing is stored until there is space: %s", error)
        for log in self.logs():
            if not log.sealed and log.writer_epoch < 0:
                await self.tables.recover(log)

    async def connect(self) -> Channel:
        """A channel inside this process; it ends with the node."""
        channel = InProcessChannel(self.routes, Peer(address="in-process"))
        if self.state.closing:
            await channel.close()
        self._channels.append(channel)
        return channel

    def logs(self) -> list[RangeLog]:
        return self.state.all_ranges()

    @property
    def address(self) -> str:
        return self._server.address if self._server is not None else ""

    @property
    def node_id(self) -> int:
        return self._identity.node_id if self._identity is not None else -1

    @property
    def store(self) -> LogStore:
        assert self._store is not None, "not started"
        return self._store

    @property
    def serving(self) -> bool:
        """Between its recovery and the begin of its stop."""
        return self._store is not None and not self.state.closing and self._recovered

    def reads_locally(self, machine: str) -> bool:
        """Whether a reader that runs there may be told where batches are, to read them itself."""
        return (
            bool(machine) and self.settings.local_reads and machine == self.runtime.disk.machine()
        )

    def server_statistics(self) -> dict[str, int]:
        return {} if self._server is None else self._server.statistics()

    async def probe_disk(self) -> None:
        """StorageError when the folder cannot be written."""
        path = f"{self._folder}/probe"
        await self._on_disk(self.runtime.disk.write_atomic, path, b"ready?\n")

    def statistics(self) -> dict[str, object]:
        return {
            "node_id": self.node_id,
            "address": self.advertise,
            "streams": len(self.state.streams()),
            "interrupted_ranges": len(self.state.interrupted),
            "quarantined_ranges": len(self.quarantine),
            "metadata_seen": self.metadata.newest,
            "stopped_ranges": len(self.state.stopped),
            "incomplete_ranges": sum(log.missing is not None for log in self.logs()),
            "copied_bytes": self.copier.copied_bytes,
            "repaired_spans": self.repairer.repaired_spans,
            "appends": self.counters.appends,
            "fetches": self.counters.fetches,
            "fetches_located": self.counters.fetches_located,
            "replication": self.leading.statistics(),
            "storage": self.store.statistics(),
        }

    # Who we are

    def data_node(self) -> m.DataNode:
        return m.DataNode(node_id=self.node_id, advertise_addr=self.advertise)

    def introduction(self) -> m.HeartbeatRequest:
        return m.HeartbeatRequest(
            client_id=self.store.store_uuid,
            client_role=m.ClientRole.DATA_NODE,
            data_node=self.data_node(),
            metadata_version=self.metadata.newest,
            host=self.settings.host or self.runtime.disk.machine(),
            host_id=self.settings.host_id,
        )

    async def take_identity(self, node_id: int) -> None:
        identity = Identity(node_id, self.store.store_uuid)
        await self._on_disk(save_identity, self.runtime.disk, self._folder, identity)
        self._identity = identity
        self.state.node_id = node_id

    async def load(self) -> Load:
        disk = self.runtime.disk
        free_bytes = await self._on_disk(disk.free_bytes, self._folder)
        total_bytes = await self._on_disk(disk.total_bytes, self._folder)
        now = self.runtime.clock.monotonic()
        logs = self.logs()
        sealed = [log for log in logs if log.sealed]
        return Load(
            node=self.data_node(),
            now=now,
            counters=self.counters,
            storage=self.store.counters(),
            io=self._io,
            free_bytes=0 if now < self._full_until else free_bytes,
            total_bytes=total_bytes,
            active_ranges=len(logs) - len(sealed),
            quarantined_ranges=len(self.quarantine),
            short_ranges=self.leading.missing_replicas()
            + sum(log.missing is not None for log in sealed),
        )

    def _connect_peer(self, address: str) -> Connect:
        return tcp_connect(
            self.runtime,
            address,
            client_id=self.store.store_uuid,
            role=m.ClientRole.DATA_NODE,
            credential=node_credential(self._secret) if self._secret is not None else b"",
        )

    # What happens

    def on_append_failed(self, error: HeadraceError) -> None:
        if isinstance(error, _NOT_FAILED):
            return
        self.counters.appends_failed += 1
        self._note_full(error)

    def _note_full(self, error: HeadraceError) -> None:
        if isinstance(error, DiskFullError) and not isinstance(error, ShareFullError):
            self._full_until = self.runtime.clock.monotonic() + _FULL_SECONDS
            self.contact.report_soon()

    def _on_stopped(self, key: RangeKey, error: HeadraceError) -> None:
        self.state.stopped.add(key)
        self._note_full(error)

    def _on_complete(self, log: RangeLog) -> None:
        _log.info("range %s is complete", log.key)
        if log.state().corrupt:
            self.repairer.on_damage()

    async def _on_disk(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert self._files is not None, "not started"
        return await self._files.run(function, *args, **kwargs)

    async def note_metadata(self, versions: Sequence[int]) -> None:
        """What leading placement managers say is their version; OutdatedMetadataError when this
        node knows better. Durable, or it is told again."""
        if self.metadata.on_told(versions):
            try:
                await self._on_disk(self.metadata.save, self.runtime.disk, self._folder)
            except StorageError as error:
                _log.warning("version of the metadata not kept: %s", error)

    async def apply_list(
        self, differences: Differences, listed: Iterable[m.Range], streams: Streams
    ) -> None:
        await self.ranges.apply_list(differences, listed, streams)

    async def save_quarantine(self) -> None:
        await self._on_disk(self.quarantine.save, self.runtime.disk, self._folder)

    async def _save_interrupted(self) -> None:
        await self._on_disk(
            save_interrupted, self.runtime.disk, self._folder, set(self.state.interrupted)
        )
