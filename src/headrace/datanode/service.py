"""The data node's shell: owns the log store, serves it, and keeps in touch with the placement
manager.

Start: open the log (recovery), remember which ranges an unclean stop interrupted, listen, register,
reconcile. Stop: stop accepting, finish in flight, close the log cleanly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace.client.channels import Connect, Link
from headrace.client.tasks import TaskSet
from headrace.config.datanode import DataNodeSettings
from headrace.config.storage import StorageSettings
from headrace.datanode.handlers import handlers
from headrace.datanode.identity import (
    Identity,
    load_identity,
    load_interrupted,
    save_identity,
    save_interrupted,
)
from headrace.datanode.local import Local
from headrace.datanode.metrics import Counters, Reporter
from headrace.datanode.producers import Producers
from headrace.datanode.state import Differences, NodeState, Sync, reconcile
from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    RemoteProtocolError,
    RequestError,
    StateError,
    StorageError,
    UnavailableError,
)
from headrace.net.sbp_access import Access
from headrace.net.sbp_channel import Channel, InProcessChannel
from headrace.net.sbp_server import Peer, Routes, SbpServer, build_routes
from headrace.runtime.interfaces import Executor, Runtime
from headrace.storage.model import RangeKey
from headrace.storage.rangelog import RangeLog
from headrace.storage.store import LogStore
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code, Role
from headrace.wire.sbp.records import PRODUCER, split

P = ParamSpec("P")
T = TypeVar("T")

_RETRY_SECONDS = 0.25  # while the placement manager does not answer
_SCAN_BYTES = 1 << 20

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
        placement: Connect,
        secret: bytes | None,
        plain_streams: bool = False,
    ) -> None:
        """`plain_streams`: anonymous peers may use streams that do not belong to the cluster
        (embedded mode on loopback)."""
        self.runtime = runtime
        self.settings = settings
        self.access = Access(
            runtime.clock, Role.DATA_NODE, secret=secret, plain_streams=plain_streams
        )
        self.state: NodeState[RangeLog] = NodeState()
        self.counters = Counters()
        self.routes: Routes = build_routes(Role.DATA_NODE, handlers(self), Local(self))
        self._folder = folder
        self._storage = storage
        self._secret = secret
        self._placement = Link(placement)
        self._store: LogStore | None = None
        self._server: SbpServer | None = None
        self._channels: list[InProcessChannel] = []
        self._identity: Identity | None = None
        self._advertise = ""
        self._producers: dict[int, Producers] = {}
        self._files: Executor | None = None
        self._registered = asyncio.Event()
        self._refused: RequestError | None = None
        self._reporter = Reporter()
        self._tasks = TaskSet("data node")

    # Life

    async def start(self, host: str | None = None, port: int = 0, *, advertise: str = "") -> None:
        """Recover, listen if a host is given, register under `advertise` (else where it listens).

        A node that has its id starts without the placement manager too; a new one needs it within
        `register_timeout_ms`.
        """
        self._files = self.runtime.executor("data-node", 1)
        try:
            self._store = await LogStore.open(self.runtime, f"{self._folder}/log", self._storage)
            await self._recover(self._store)
            if host is not None:
                self._server = SbpServer(
                    self.runtime,
                    self.routes,
                    authorize=self.access.authorize,
                    secret=self._secret,
                    pressure=lambda: self.store.fullness,
                )
                await self._server.start(host, port)
            self._advertise = advertise or self.address
            self._tasks.start(self._keep_in_touch(), name="heartbeat")
            await self._wait_registered()
        except BaseException:
            await self.abort()
            raise

    async def abort(self) -> None:
        """Stop without finishing anything, as a crash would; for tests and failed starts."""
        self.state.closing = True
        await self._tasks.close()
        if self._store is not None:
            for log in self._logs():
                if log.next_offset > log.durable_offset:
                    log.fail(StorageError("data node aborted"))  # ends appends that wait on it
                log.refuse_appends()
            await self._store.abort()
        await self._let_go()

    async def close(self) -> None:
        """Stop accepting, finish what is in flight, leave the clean-stop marker."""
        self.state.closing = True
        for log in self._logs():
            log.refuse_appends()  # what is queued is still written; long polls wake up and end
        if self._server is not None:
            await self._server.close()
        for channel in self._channels:
            await channel.close()
        await self._tasks.close()
        if self._store is not None:
            await self._save_interrupted()
            await self._store.close()
        await self._let_go()

    async def _let_go(self) -> None:
        for channel in self._channels:
            await channel.close()
        if self._server is not None:
            await self._server.close()
        await self._placement.close()
        if self._files is not None:
            self._files.close()

    async def _recover(self, store: LogStore) -> None:
        disk = self.runtime.disk
        self._identity = await self._on_disk(load_identity, disk, self._folder, store.store_uuid)
        interrupted = await self._on_disk(load_interrupted, disk, self._folder)
        for found in store.ranges():
            self.state.on_range(store.range(found.key))
            if not store.clean and not found.sealed:
                interrupted.add(found.key)
        known = {found.key for found in store.ranges() if not found.sealed}
        self.state.interrupted = interrupted & known
        if not store.clean:
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
                    for view in await log.read(offset, _SCAN_BYTES):
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

    def _logs(self) -> list[RangeLog]:
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
            "address": self._advertise,
            "streams": len(self.state.streams()),
            "interrupted_ranges": len(self.state.interrupted),
            "appends": self.counters.appends,
            "fetches": self.counters.fetches,
            "storage": self.store.statistics(),
        }

    # Ranges

    async def seal(self, key: RangeKey, writer_epoch: int) -> RangeLog:
        """Durable before return; the second time the same end."""
        log = self.state.range(key)
        self.state.check_seal(log, writer_epoch)
        await log.seal(writer_epoch=writer_epoch)
        self.state.on_sealed(key)
        return log

    async def sync(self, wanted: m.Range, durability: int) -> RangeLog:
        key = RangeKey(wanted.stream_id, wanted.range_index)
        log = self.state.find(key)
        match self.state.sync(log, wanted, node_id=self.node_id):
            case Sync.CREATE:
                log = await self.store.create_range(
                    key,
                    start_offset=wanted.start_offset,
                    writer_epoch=wanted.writer_epoch,
                    durability=m.Durability(max(durability, 0)),
                )
                self.state.on_range(log)
                if wanted.end_offset >= 0:
                    await self.seal(key, wanted.writer_epoch)
                self.producers(key.stream_id).merge(wanted.producers)
            case Sync.SEAL:
                assert log is not None
                await log.finish(wanted.end_offset, writer_epoch=wanted.writer_epoch)
                self.state.on_sealed(key)
            case Sync.RAISE_EPOCH:
                assert log is not None
                await log.set_epoch(wanted.writer_epoch)
                await log.sync()  # what the old epoch had in flight is settled before we answer
            case Sync.NOTHING:
                assert log is not None
        return log

    async def delete_stream(self, stream_id: int) -> None:
        """Appends and fetches are refused from now on; the files go."""
        self.state.on_deleted(stream_id)
        self._producers.pop(stream_id, None)
        await self.store.delete_stream(stream_id)

    async def trim_stream(self, stream_id: int, offset: int) -> None:
        for log in self.state.ranges(stream_id):
            end = log.end_offset if log.sealed else log.durable_offset
            if log.start_offset < min(offset, end):
                await log.trim(min(offset, end))

    # The placement manager

    async def _wait_registered(self) -> None:
        try:
            async with asyncio.timeout(self.settings.register_timeout_ms / 1000):
                await self._registered.wait()
        except TimeoutError:
            if self._refused is None and self._identity is not None:
                _log.warning("placement manager not reached; serving without it")
                return
        if self._refused is not None:
            raise self._refused
        if not self._registered.is_set():
            raise UnavailableError("a new data node needs the placement manager to get its id")

    async def _keep_in_touch(self) -> None:
        clock = self.runtime.clock
        reconcile_at = clock.monotonic()
        while True:
            pause = self.settings.heartbeat_interval_ms / 1000
            try:
                await self._heartbeat()
                if clock.monotonic() >= reconcile_at:
                    await self.reconcile()
                    reconcile_at = clock.monotonic() + self.settings.reconcile_interval_ms / 1000
                self._registered.set()
                await self._report_metrics()
            except RequestError as error:
                # Our id means nothing there: another cluster's placement manager, or an empty one.
                _log.error("placement manager refuses this node: %s", error)
                if not self._registered.is_set():
                    self._refused = error
                    self._registered.set()
            except HeadraceError as error:
                _log.info("placement manager: %s", error)
                reconcile_at = clock.monotonic()  # it may have told us things we did not hear
                pause = min(pause, _RETRY_SECONDS)
            except Exception:
                # A node that goes on serving must not pass for a lost one, whatever broke here.
                _log.exception("keeping in touch with the placement manager failed")
            await clock.sleep(pause)

    async def _heartbeat(self) -> None:
        if self._identity is None:
            await self._obtain_identity()
        reply = await self._placement.call(
            Code.HEARTBEAT,
            m.HeartbeatRequest(
                client_id=self.store.store_uuid,
                client_role=m.ClientRole.DATA_NODE,
                data_node=self._data_node(),
            ),
        )
        if not isinstance(reply.message, m.HeartbeatResponse):
            raise RemoteProtocolError("unexpected answer to a heartbeat")
        raise_for_status(reply.message.status, node_id=self.node_id)

    async def _obtain_identity(self) -> None:
        """Durable before anybody else hears of it: an id is asked for once in a store's life."""
        request = m.IdAllocationRequest(timeout_ms=3000, host=self._advertise)
        reply = await self._placement.call(Code.ALLOCATE_ID, request)
        if not isinstance(reply.message, m.IdAllocationResponse):
            raise RemoteProtocolError("unexpected answer to an id request")
        raise_for_status(reply.message.status)
        if reply.message.id < 0:
            raise RemoteProtocolError("negative node id")
        identity = Identity(reply.message.id, self.store.store_uuid)
        await self._on_disk(save_identity, self.runtime.disk, self._folder, identity)
        self._identity = identity

    async def _report_metrics(self) -> None:
        free_bytes = await self._on_disk(self.runtime.disk.free_bytes, self._folder)
        report = self._reporter.report(
            self._data_node(),
            now=self.runtime.clock.monotonic(),
            counters=self.counters,
            storage=self.store.statistics(),
            free_bytes=free_bytes,
            active_ranges=sum(not log.sealed for log in self._logs()),
        )
        await self._placement.call(Code.REPORT_METRICS, report)

    async def reconcile(self) -> None:
        """Learn ends, deletions and trims that were missed."""
        local = self._logs()
        criteria = m.RangeCriteria(data_node=self._data_node())
        reply = await self._placement.call(
            Code.LIST_RANGES, m.ListRangesRequest(timeout_ms=3000, range_criteria=(criteria,))
        )
        if not isinstance(reply.message, m.ListRangesResponse):
            raise RemoteProtocolError("unexpected answer to a list")
        raise_for_status(reply.message.status)
        listed: list[m.Range] = []
        for result in reply.message.list_responses:
            raise_for_status(result.status)
            listed.extend(result.ranges)
        await self._settle(reconcile(local, listed))

    async def _settle(self, differences: Differences) -> None:
        for stream_id in differences.delete:
            _log.info("stream %d was deleted", stream_id)
            await self.delete_stream(stream_id)
        for key in differences.retire:
            log = self.state.range(key)
            if not log.sealed:
                await self.seal(key, log.writer_epoch)
            await log.trim(log.end_offset)
        for key, offset in differences.trim:
            await self.trim_stream(key.stream_id, offset)
        for range_ in differences.sync:
            try:
                await self.sync(range_, -1)
            except (StateError, InvalidArgumentError) as error:
                _log.info("range not synced: %s", error)

    async def _on_disk(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert self._files is not None, "not started"
        return await self._files.run(function, *args, **kwargs)

    def _data_node(self) -> m.DataNode:
        return m.DataNode(node_id=self.node_id, advertise_addr=self._advertise)

    async def _save_interrupted(self) -> None:
        await self._on_disk(
            save_interrupted, self.runtime.disk, self._folder, set(self.state.interrupted)
        )
