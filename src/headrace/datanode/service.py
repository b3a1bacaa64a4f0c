"""The data node's shell: owns the log store, serves it, and replicates what it leads.

Start: open the log (recovery), remember which ranges take no more appends, listen, register,
reconcile. Stop: hand over open ranges to others if there are any, stop accepting, finish in flight,
close the log cleanly.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from headrace.client.channels import Connect, tcp_connect
from headrace.client.placement_links import PlacementLinks
from headrace.config.datanode import DataNodeSettings
from headrace.config.storage import StorageSettings
from headrace.datanode.contact import Contact
from headrace.datanode.copying import Copier, Peers
from headrace.datanode.fences import ALL_RANGES, FenceFile, Fences
from headrace.datanode.handlers import handlers
from headrace.datanode.identity import (
    Identity,
    load_identity,
    load_interrupted,
    save_identity,
    save_interrupted,
)
from headrace.datanode.io_figures import IoFigures, metered
from headrace.datanode.leading import Leading
from headrace.datanode.local import Local
from headrace.datanode.metrics import Counters, Load
from headrace.datanode.producers import Producers
from headrace.datanode.repairing import Repairer
from headrace.datanode.replication import ack_quorum_of
from headrace.datanode.state import Differences, NodeState, Sync
from headrace.errors import (
    CorruptionError,
    DiskFullError,
    HeadraceError,
    SealedError,
    StateError,
    StorageError,
)
from headrace.net.addresses import advertised
from headrace.net.credentials import node_credential
from headrace.net.sbp_access import Access
from headrace.net.sbp_channel import Channel, InProcessChannel
from headrace.net.sbp_server import Peer, Routes, SbpServer, build_routes
from headrace.net.tls import TlsAcceptor
from headrace.runtime.interfaces import Executor, Runtime
from headrace.storage.model import RangeKey
from headrace.storage.rangelog import RangeLog
from headrace.storage.store import LogStore
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import AlreadyDurableError, AppendGapError, AppendPendingError
from headrace.wire.sbp.opcodes import Role
from headrace.wire.sbp.records import PRODUCER, split

P = ParamSpec("P")
T = TypeVar("T")

_SCAN_BYTES = 1 << 20
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
        placement: PlacementLinks | Connect,
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
        fences = Fences(settings.tombstone_ms)
        self.state: NodeState[RangeLog] = NodeState(given_up=fences.forbids)
        self._fences = FenceFile(
            runtime.disk,
            folder,
            fences,
            now_ms=runtime.clock.now_ms,
            on_disk=self._on_disk,
        )
        self.counters = Counters()
        self.addresses: dict[int, str] = {}
        """Data nodes that were named in ranges of ours; the newest address wins."""
        self._folder = folder
        self._storage = storage
        self._secret = secret
        self._store: LogStore | None = None
        self._server: SbpServer | None = None
        self._channels: list[InProcessChannel] = []
        self._identity: Identity | None = None
        self.advertise = ""
        self._producers: dict[int, Producers] = {}
        self._members: dict[RangeKey, tuple[int, ...]] = {}
        self._files: Executor | None = None
        self._io = IoFigures()
        self._full_until = 0.0
        if not isinstance(placement, PlacementLinks):
            placement = PlacementLinks.single(placement)
        self.contact = Contact(self, placement)
        connect_to = peers or self._connect_peer
        self._peers = Peers(connect_to, self._find_sources)
        self.leading = Leading(
            runtime,
            settings,
            connect_to=connect_to,
            addresses=self.addresses,
            introduce=self.introduction,
            on_stopped=self._on_stopped,
            ask_seal=self.contact.ask_seal,
        )
        self.copier = Copier(
            runtime.clock,
            settings,
            self._peers,
            is_kept=lambda log: self.state.find(log.key) is log,
            on_complete=self._on_complete,
        )
        self.repairer = Repairer(
            runtime.clock,
            settings,
            self._peers,
            logs=self.logs,
            ask_seal=self.contact.ask_seal,
        )
        self.routes: Routes = build_routes(Role.DATA_NODE, handlers(self), Local(self))

    # Life

    async def start(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        advertise: str = "",
        tls: TlsAcceptor | None = None,
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
            if host is not None:
                self._server = SbpServer(
                    self.runtime,
                    self.routes,
                    authorize=self.access.authorize,
                    secret=self._secret,
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

    async def close(self) -> None:
        """Hand over, stop accepting, finish what is in flight, leave the clean-stop marker."""
        if self._store is not None:
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
            await self._save_interrupted()
            await self._store.close()
        await self._let_go()

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
        await self._peers.close()
        if self._files is not None:
            self._files.close()

    async def _recover(self, store: LogStore) -> None:
        disk = self.runtime.disk
        identity = await self._on_disk(load_identity, disk, self._folder, store.store_uuid)
        if identity is not None:
            self._identity = identity
            self.state.node_id = identity.node_id
        await self._on_disk(self._fences.load)
        interrupted = await self._on_disk(load_interrupted, disk, self._folder)
        for found in store.ranges():
            self.state.on_range(store.range(found.key))
            led = found.ack_quorum > 1 and found.replicas[:1] == (self.node_id,)
            if led or (found.ack_quorum == 1 and not store.clean):
                interrupted.add(found.key)
        known = {found.key for found in store.ranges() if not found.sealed}
        self.state.interrupted = interrupted & known
        if self.state.interrupted or not store.clean:
            # Durable now: a clean stop before the seal must not make the ranges writable again.
            await self._save_interrupted()
        for stream_id in self.state.streams():
            if not self.state.is_owned(stream_id):
                await self._scan_producers(stream_id)

    async def _scan_producers(self, stream_id: int) -> None:
        """Learn the last sequences of a plain stream from the end of its log."""
        producers = self.producers(stream_id)
        ranges = self.state.ranges(stream_id)
        first = ranges[-1].next_offset - self.settings.producer_scan_records
        for log in ranges:
            offset = max(log.start_offset, first)
            try:
                while offset < log.durable_offset:
                    for view in await log.read_durable(offset, _SCAN_BYTES):
                        for header, _ in split(view):
                            offset = header.next_offset
                            if header.attributes & PRODUCER:
                                sequence = header.sequence + header.record_count
                                producers.on_stored(
                                    header.producer_id, sequence, header.base_offset
                                )
            except HeadraceError as error:
                _log.warning("producers of stream %d not read: %s", stream_id, error)

    async def connect(self) -> Channel:
        """A channel inside this process; it ends with the node."""
        channel = InProcessChannel(self.routes, Peer(address="in-process"))
        if self.state.closing:
            await channel.close()
        self._channels.append(channel)
        return channel

    def logs(self) -> list[RangeLog]:
        return [log for s in self.state.streams() for log in self.state.ranges(s)]

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

    def producers(self, stream_id: int) -> Producers:
        table = self._producers.get(stream_id)
        if table is None:
            table = self._producers[stream_id] = Producers(
                self.settings.producers_max, self.settings.producer_batches_max
            )
        return table

    def statistics(self) -> dict[str, object]:
        return {
            "node_id": self.node_id,
            "address": self.advertise,
            "streams": len(self.state.streams()),
            "interrupted_ranges": len(self.state.interrupted),
            "stopped_ranges": len(self.state.stopped),
            "incomplete_ranges": sum(log.missing is not None for log in self.logs()),
            "copied_bytes": self.copier.copied_bytes,
            "repaired_spans": self.repairer.repaired_spans,
            "appends": self.counters.appends,
            "fetches": self.counters.fetches,
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
        return Load(
            node=self.data_node(),
            now=now,
            counters=self.counters,
            storage=self.store.statistics(),
            io=self._io,
            free_bytes=0 if now < self._full_until else free_bytes,
            total_bytes=total_bytes,
            active_ranges=sum(not log.sealed for log in logs),
            short_ranges=self.leading.missing_replicas()
            + sum(log.missing is not None for log in logs),
        )

    def _connect_peer(self, address: str) -> Connect:
        return tcp_connect(
            self.runtime,
            address,
            client_id=self.store.store_uuid,
            role=m.ClientRole.DATA_NODE,
            credential=node_credential(self._secret) if self._secret is not None else b"",
        )

    # Ranges

    async def seal(self, key: RangeKey, writer_epoch: int) -> RangeLog:
        """Durable before return; the second time the same end."""
        log = self.state.range(key)
        self.state.check_seal(log, writer_epoch)
        # First: what other replicas confirm from now on is not acknowledged any more.
        self.leading.release(key, SealedError("the range is sealed", **key._asdict()))
        await log.seal(writer_epoch=writer_epoch)
        self.state.on_sealed(key)
        if not log.final:
            self.contact.settle_soon()
        return log

    async def sync(
        self, wanted: m.Range, *, durability: int = -1, reserved: bool = False
    ) -> RangeLog:
        key = RangeKey(wanted.stream_id, wanted.range_index)
        self._learn(wanted)
        log = self.state.find(key)
        match self.state.sync(log, wanted):
            case Sync.CREATE:
                log = await self._create(key, wanted, durability, reserved)
            case Sync.FINISH:
                assert log is not None
                await self._finish(log, wanted)
            case Sync.RAISE_EPOCH:
                assert log is not None
                await self._raise_epoch(log, wanted.writer_epoch)
            case Sync.NOTHING:
                assert log is not None
                if not log.sealed and log.next_offset == log.start_offset:
                    # Opened from a list of ranges, which does not tell about producers.
                    self.producers(key.stream_id).merge(wanted.producers)
                self.copier.want(log)
        return log

    def _learn(self, range_: m.Range) -> None:
        """Who has the range, and where they are."""
        nodes = [node.data_node for node in range_.replica_nodes if node.data_node is not None]
        key = RangeKey(range_.stream_id, range_.range_index)
        self._members[key] = tuple(node.node_id for node in nodes)
        self._note_addresses(range_)

    def _note_addresses(self, range_: m.Range) -> None:
        for node in range_.replica_nodes:
            if node.data_node is not None and node.data_node.advertise_addr:
                self.addresses[node.data_node.node_id] = node.data_node.advertise_addr

    async def _create(
        self, key: RangeKey, wanted: m.Range, durability: int, reserved: bool
    ) -> RangeLog:
        replicas = replicas_of(wanted)
        quorum = wanted.ack_quorum if wanted.ack_quorum > 0 else ack_quorum_of(len(replicas))
        log = await self.store.create_range(
            key,
            start_offset=wanted.start_offset,
            writer_epoch=wanted.writer_epoch,
            durability=m.Durability(max(durability, 0)),
            reserved=bool(reserved),
            replicas=replicas,
            ack_quorum=quorum,
            final_end=wanted.end_offset,
        )
        if wanted.end_offset < 0 and self.state.given_up(*key):
            raise SealedError("given up meanwhile", **key._asdict())  # the files are being removed
        self.state.on_range(log)
        if wanted.end_offset >= 0:
            if not log.final:  # somebody else was quicker, and knew less
                await self._finish(log, wanted)
            self.copier.want(log)
            return log
        if not log.sealed and log.next_offset == log.start_offset:
            producers = self.producers(key.stream_id)
            producers.forget_from(log.start_offset)
            producers.merge(wanted.producers)
            if log.ack_quorum > 1 and self.state.leads(log):
                self.leading.lead(log, [node for node in log.replicas if node != self.node_id])
        return log

    async def _finish(self, log: RangeLog, wanted: m.Range) -> None:
        """The range ends where the placement manager says."""
        self.leading.release(log.key, SealedError("the range is sealed", **log.key._asdict()))
        await log.finish(wanted.end_offset, writer_epoch=wanted.writer_epoch)
        self.state.on_sealed(log.key)
        self.copier.want(log)
        self.repairer.on_damage()  # what could not be mended while the range was open

    async def _raise_epoch(self, log: RangeLog, epoch: int) -> None:
        """What the old epoch had in flight is settled before we answer."""
        await log.set_epoch(epoch)
        await log.sync()
        led = self.leading.find(log.key)
        if led is not None:
            try:
                await led.wait(log.next_offset)
            except StateError as error:
                raise SealedError(error.message, **log.key._asdict()) from error

    async def delete_stream(self, stream_id: int) -> None:
        """Appends and fetches are refused from now on; the files go, and nothing comes back."""
        for log in self.state.ranges(stream_id):
            self._let_go_of(log.key)
        self.state.on_deleted(stream_id)
        self._producers.pop(stream_id, None)
        await self._give_up(stream_id, ALL_RANGES, lambda: self.store.delete_stream(stream_id))

    async def delete_range(self, key: RangeKey) -> None:
        """Other nodes have it; here it goes, with its files."""
        self._let_go_of(key)
        self.state.on_removed(key)
        await self._give_up(*key, lambda: self.store.delete_range(key))

    async def _give_up(
        self, stream_id: int, range_index: int, remove: Callable[[], Awaitable[None]]
    ) -> None:
        """Never to be opened here again; known durably before anything is removed."""
        try:
            await self._fences.give_up(stream_id, range_index)
        except DiskFullError:  # what is removed makes room
            await remove()
            await self._fences.give_up(stream_id, range_index)
        else:
            await remove()

    def _let_go_of(self, key: RangeKey) -> None:
        self.leading.release(key, SealedError("the range is gone", **key._asdict()))
        self._members.pop(key, None)

    async def trim_stream(self, stream_id: int, offset: int) -> None:
        for log in self.state.ranges(stream_id):
            end = log.end_offset if log.sealed else log.durable_offset
            if log.start_offset < min(offset, end):
                await log.trim(min(offset, end))

    async def settle(self, differences: Differences, listed: Iterable[m.Range]) -> None:
        """Become what the placement manager's list says."""
        for range_ in listed:
            self._learn(range_)
        for key in differences.retire:
            _log.info("range %s is not ours any more", key)
            await self.delete_range(key)
        for key, offset in differences.trim:
            await self.trim_stream(key.stream_id, offset)
        for range_ in differences.sync:
            try:
                await self._sync_listed(range_)
            except HeadraceError as error:
                _log.info("range not synced: %s", error)

    async def _sync_listed(self, range_: m.Range) -> None:
        try:
            await self.sync(range_)
        except CorruptionError as error:
            if range_.end_offset < 0 or len(range_.replica_nodes) < 2:
                raise
            # Not even its metadata can be read. Others have the range: it is fetched anew.
            key = RangeKey(range_.stream_id, range_.range_index)
            _log.error("range %s is unreadable and fetched anew: %s", key, error)
            await self.delete_range(key)
            await self.sync(range_)

    # What happens

    def on_append_failed(self, error: HeadraceError) -> None:
        if isinstance(error, _NOT_FAILED):
            return
        self.counters.appends_failed += 1
        self._note_full(error)

    def _note_full(self, error: HeadraceError) -> None:
        if isinstance(error, DiskFullError):
            self._full_until = self.runtime.clock.monotonic() + _FULL_SECONDS
            self.contact.report_soon()

    def _on_stopped(self, key: RangeKey, error: HeadraceError) -> None:
        self.state.stopped.add(key)
        self._note_full(error)

    def _on_complete(self, log: RangeLog) -> None:
        _log.info("range %s is complete", log.key)
        self.repairer.on_damage()

    async def _find_sources(self, key: RangeKey) -> Sequence[str]:
        """The other replicas; the placement manager's word is newer than what we were told."""
        members = self._members.get(key, self.state.range(key).replicas)
        try:
            for range_ in await self.contact.list_stream(key.stream_id):
                if range_.range_index == key.range_index:
                    self._note_addresses(range_)
                    members = replicas_of(range_)
        except HeadraceError as error:
            _log.info("replicas of %s not asked for: %s", key, error)
        own = self.node_id
        return [self.addresses[n] for n in members if n != own and self.addresses.get(n)]

    async def _on_disk(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert self._files is not None, "not started"
        return await self._files.run(function, *args, **kwargs)

    async def _save_interrupted(self) -> None:
        await self._on_disk(
            save_interrupted, self.runtime.disk, self._folder, set(self.state.interrupted)
        )


def replicas_of(range_: m.Range) -> tuple[int, ...]:
    """Node ids, the primary first."""
    nodes = sorted(range_.replica_nodes, key=lambda node: not node.is_primary)
    return tuple(node.data_node.node_id for node in nodes if node.data_node is not None)
