"""What becomes of the ranges of a data node: opened, sealed, ended, copied, trimmed, removed.

The placement manager decides; SYNC_RANGES, SEAL_RANGES and the node's own look at LIST_RANGES lead
to the same few steps here, and each of them may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from headrace.datanode.append.producers import ProducerTables, encode_producers
from headrace.datanode.control.node_files import (
    ALL_RANGES,
    FenceFile,
    Quarantine,
    Streams,
    is_given_up,
    is_the_same,
)
from headrace.datanode.control.placement_contact import PlacementContact
from headrace.datanode.replication.copying import Copier, Repairer
from headrace.datanode.replication.leader import LedRanges
from headrace.datanode.state import Differences, NodeState, SyncAction
from headrace.errors import (
    CorruptionError,
    DiskFullError,
    HeadraceError,
    RangeNotFoundError,
    SealedError,
    StateError,
    UnavailableError,
)
from headrace.runtime.interfaces import Runtime
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.storage.store import LogStore
from headrace.wire.sbp import messages as m

_log = logging.getLogger(__name__)


class HostingNode(Protocol):
    """The data node that the ranges are on: the parts that a change of a range reaches."""

    runtime: Runtime
    state: NodeState[RangeLog]
    tables: ProducerTables
    quarantine: Quarantine
    fences: FenceFile
    contact: PlacementContact
    leading: LedRanges
    copier: Copier
    repairer: Repairer

    @property
    def store(self) -> LogStore: ...

    async def save_quarantine(self) -> None: ...


class Ranges:
    def __init__(self, node: HostingNode) -> None:
        self._node = node
        self._state = node.state
        self._tables = node.tables
        self._members: dict[RangeKey, tuple[int, ...]] = {}
        self._acknowledged: dict[RangeKey, int] = {}
        self.addresses: dict[int, str] = {}
        """Data nodes that were named in ranges of ours; the newest address wins."""

    async def seal(self, key: RangeKey, writer_epoch: int) -> RangeLog:
        """Durable before return; the second time the same end."""
        node = self._node
        if key in node.quarantine:
            await self._give_back_listed(key)
        log = self._state.range(key)
        self._state.check_seal(log, writer_epoch)
        self._lead_no_more(log)
        await log.seal(writer_epoch=writer_epoch)
        self._state.on_sealed(key)
        if not log.final:
            node.contact.reconcile_soon()
        return log

    async def sync(
        self, wanted: m.Range, *, durability: int = -1, reserved: bool = False
    ) -> RangeLog:
        key = RangeKey(wanted.stream_id, wanted.range_index)
        self._learn(wanted)
        if key in self._node.quarantine:
            await self._give_back(key, wanted)
        log = self._state.find(key)
        match self._state.sync(log, wanted):
            case SyncAction.CREATE:
                log = await self._create(key, wanted, durability, reserved)
            case SyncAction.FINISH:
                assert log is not None
                await self._finish(log, wanted)
            case SyncAction.SHORTEN:
                assert log is not None
                _log.warning("range %s is given up from %d on", key, wanted.end_offset)
                await log.shorten(wanted.end_offset)
            case SyncAction.RAISE_EPOCH:
                assert log is not None
                await self._raise_epoch(log, wanted.writer_epoch)
            case SyncAction.NOTHING:
                assert log is not None
                self._node.copier.want(log)
        if wanted.start_offset > log.start_offset:
            await self._trim(log, wanted.start_offset)
        return log

    async def _create(
        self, key: RangeKey, wanted: m.Range, durability: int, reserved: bool
    ) -> RangeLog:
        node = self._node
        replicas = replicas_of(wanted)
        quorum = wanted.ack_quorum if wanted.ack_quorum > 0 else m.ack_quorum(len(replicas))
        log = await node.store.create_range(
            key,
            start_offset=wanted.start_offset,
            writer_epoch=wanted.writer_epoch,
            durability=m.Durability(max(durability, 0)),
            reserved=bool(reserved),
            replicas=replicas,
            ack_quorum=quorum,
            final_end=wanted.end_offset,
            doubtful=wanted.doubtful_offset,
            attachment=_attachment(wanted),
        )
        if wanted.end_offset < 0 and self._state.given_up(*key):
            raise SealedError("given up meanwhile", **key._asdict())  # the files are being removed
        is_new = self._state.find(key) is None
        self._state.on_range(log)
        if wanted.end_offset >= 0:
            if not log.final:  # somebody else was quicker, and knew less
                await self._finish(log, wanted)
            node.copier.want(log)
        elif is_new and not log.sealed:
            if log.writer_epoch < 0:
                self._tables.on_opened(log, wanted.producers)
            if log.ack_quorum > 1 and self._state.leads(log):
                node.leading.lead(log, [n for n in log.replicas if n != self._state.node_id])
        return log

    async def _finish(self, log: RangeLog, wanted: m.Range) -> None:
        """The range ends where the placement manager says."""
        node = self._node
        self._lead_no_more(log)
        await log.finish(
            wanted.end_offset,
            writer_epoch=wanted.writer_epoch,
            doubtful=wanted.doubtful_offset,
        )
        self._state.on_sealed(log.key)
        self._acknowledged.pop(log.key, None)
        if log.missing is not None:
            self._tables.forget(log.key)
            node.copier.want(log)
        if log.state().corrupt:  # it could not be mended while the range was open
            node.repairer.on_damage()

    def _lead_no_more(self, log: RangeLog) -> None:
        """Before it is known on disk, which may fail: what other replicas confirm from now on is
        not acknowledged, and nobody is told that the range ends here while it goes on elsewhere."""
        if log.ack_quorum > 1 and self._state.leads(log):
            self._state.stopped.add(log.key)
        led = self._node.leading.find(log.key)
        if led is not None:
            self._acknowledged[log.key] = led.committed
        error = SealedError("the range is sealed", **log.key._asdict())
        self._node.leading.release(log.key, error)

    def acknowledged(self, key: RangeKey) -> int:
        """Where ends what was ever acknowledged of a sealed range; -1 where we cannot tell, for we
        did not lead it, or not for all its life."""
        return self._acknowledged.get(key, -1)

    async def _raise_epoch(self, log: RangeLog, epoch: int) -> None:
        """What the old epoch had in flight is settled before we answer."""
        await log.set_epoch(epoch)
        try:
            await self.flush(log)
        except StateError as error:
            raise SealedError(error.message, **log.key._asdict()) from error

    async def flush(self, log: RangeLog) -> None:
        """What was appended so far is synced, and on as many replicas as it takes."""
        target = log.next_offset
        await log.sync()
        led = self._node.leading.find(log.key)
        if led is not None:
            await led.wait(target)

    # Removal

    async def delete_stream(self, stream_id: int) -> None:
        """Appends and fetches are refused from now on; the files go, and nothing comes back."""
        for log in self._state.ranges(stream_id):
            self._let_go_of(log.key)
        self._state.on_deleted(stream_id)
        store = self._node.store
        await self._give_up(stream_id, ALL_RANGES, lambda: store.delete_stream(stream_id))
        await self._forget_quarantined(
            [key for key in self._node.quarantine if key.stream_id == stream_id]
        )

    async def delete(self, key: RangeKey) -> None:
        """Other nodes have it; here it goes, with its files."""
        self._let_go_of(key)
        self._state.on_removed(key)
        await self._give_up(*key, lambda: self._node.store.delete_range(key))

    # Quarantine

    async def keep_aside(self, keys: Sequence[RangeKey]) -> None:
        """Nobody lists them: neither written nor read, and nothing of them is removed."""
        quarantine = self._node.quarantine
        quarantine.add(keys, self._node.runtime.clock.now_ms())
        await self._node.save_quarantine()
        for key in keys:
            _log.error(
                "range %s is unknown to the placement manager and kept aside; see "
                "`headrace range quarantined`", key,
            )  # fmt: skip
            self._let_go_of(key)
            self._state.on_removed(key)

    async def _give_back(self, key: RangeKey, wanted: m.Range) -> None:
        """It is listed again. One that was open takes no more appends: it is sealed."""
        log = self._node.store.range(key)
        if not is_the_same(log, wanted):
            raise UnavailableError(
                "another range of that number is kept aside here; see `headrace range quarantined`",
                **key._asdict(),
            )
        await self._forget_quarantined([key])
        _log.warning("range %s is listed again and no longer kept aside", key)
        self._state.on_range(log)
        if not log.sealed:
            self._state.interrupted.add(key)
            if log.writer_epoch < 0:
                await self._tables.recover(log)
            self._node.contact.ask_seal(key, "was kept aside")

    async def _give_back_listed(self, key: RangeKey) -> None:
        for range_ in await self._node.contact.list_stream(key.stream_id):
            if range_.range_index == key.range_index:
                await self._give_back(key, range_)
                return
        raise UnavailableError("the range is kept aside", **key._asdict())

    async def _forget_quarantined(self, keys: Sequence[RangeKey]) -> None:
        if keys:
            self._node.quarantine.discard(keys)
            await self._node.save_quarantine()

    async def _remove_unwanted(self) -> None:
        for key in self._node.quarantine.over(self._node.runtime.clock.now_ms()):
            _log.warning("range %s was kept aside for its time and is removed", key)
            await self.delete(key)
            await self._forget_quarantined([key])

    async def _give_up(
        self, stream_id: int, range_index: int, remove: Callable[[], Awaitable[None]]
    ) -> None:
        """Never to be opened here again; known durably before anything is removed."""
        fences = self._node.fences
        try:
            await fences.give_up(stream_id, range_index)
        except DiskFullError:  # what is removed makes room
            await remove()
            await fences.give_up(stream_id, range_index)
        else:
            await remove()

    def _let_go_of(self, key: RangeKey) -> None:
        self._node.leading.release(key, SealedError("the range is gone", **key._asdict()))
        self._members.pop(key, None)
        self._acknowledged.pop(key, None)
        self._tables.forget(key)

    async def trim_stream(self, stream_id: int, offset: int) -> None:
        self._state.on_trimmed(stream_id, offset)
        for log in self._state.ranges(stream_id):
            await self._trim(log, offset)

    async def _trim(self, log: RangeLog, offset: int) -> None:
        """As far as the range goes here; a replica that is behind is told again with the end."""
        end = log.end_offset if log.sealed else log.durable_offset
        if log.start_offset < min(offset, end):
            await log.trim(min(offset, end))

    # Reconciliation

    async def apply_list(
        self, differences: Differences, listed: Iterable[m.Range], streams: Streams
    ) -> None:
        """Become what the placement manager's list says; `streams` is what it says of those that
        ranges of ours belong to which are not on it."""
        for range_ in listed:
            self._learn(range_)
        unlisted = [self._state.find(key) for key in differences.retire]
        unknown = [log.key for log in unlisted if log is not None and not is_given_up(log, streams)]
        if unknown:
            await self.keep_aside(unknown)
        for key in differences.retire:
            if key not in unknown:
                _log.info("range %s is not ours any more", key)
                await self.delete(key)
        await self._remove_unwanted()
        for key, offset in differences.trim:
            await self.trim_stream(key.stream_id, offset)
        for range_ in differences.sync:
            try:
                await self._sync_listed(range_)
            except RangeNotFoundError as error:
                _log.info("range not synced: %s", error)
                if range_.end_offset < 0:
                    self._node.contact.ask_open(RangeKey(range_.stream_id, range_.range_index))
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
            await self.delete(key)
            await self.sync(range_)

    # Who has what

    def _learn(self, range_: m.Range) -> None:
        key = RangeKey(range_.stream_id, range_.range_index)
        self._members[key] = replicas_of(range_)
        self.note_addresses(range_)

    def note_addresses(self, range_: m.Range) -> None:
        for node in range_.replica_nodes:
            if node.data_node is not None and node.data_node.advertise_addr:
                self.addresses[node.data_node.node_id] = node.data_node.advertise_addr

    async def find_sources(self, key: RangeKey) -> Sequence[str]:
        """The other replicas; the placement manager's word is newer than what we were told."""
        members = self._members.get(key, ())
        try:
            for range_ in await self._node.contact.list_stream(key.stream_id):
                if range_.range_index == key.range_index:
                    self.note_addresses(range_)
                    members = replicas_of(range_)
        except HeadraceError as error:
            _log.info("replicas of %s not asked for: %s", key, error)
        own = self._state.node_id
        return [self.addresses[n] for n in members if n != own and self.addresses.get(n)]


def _attachment(wanted: m.Range) -> bytes | None:
    """What an open range of a plain stream is kept with: its producers so far."""
    if wanted.end_offset >= 0 or wanted.writer_epoch >= 0:
        return None
    return encode_producers(wanted.start_offset, wanted.producers)


def replicas_of(range_: m.Range) -> tuple[int, ...]:
    """Node ids, the primary first."""
    nodes = sorted(range_.replica_nodes, key=lambda node: not node.is_primary)
    return tuple(node.data_node.node_id for node in nodes if node.data_node is not None)
