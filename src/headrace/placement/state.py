"""Decisions of the placement manager, without I/O.

Methods named after a request look at the state and return the operations that would carry it out;
they change nothing. The shell writes the operations to the store and then gives them to `apply`,
the only door through which streams, ranges and counters change. Between deciding and applying it
holds the stream's mutex.

Rules: ranges of a stream tile [start, next); only the last is open; a sealed end never changes; a
writer epoch never falls; ids are never used again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace.errors import (
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    RangeNotFoundError,
)
from headrace.placement.leases import Leases
from headrace.placement.metadata.records import (
    CounterRecord,
    LeaseRecord,
    NodeRecord,
    Operation,
    Operations,
    Put,
    RangeRecord,
    Record,
    Remove,
    StreamRecord,
)
from headrace.placement.nodes import Nodes
from headrace.wire.sbp.messages import Stream, ack_quorum

OWNED_PREFIXES = ("p/", "s/")
"""Names of streams that belong to the cluster itself: written only under an epoch, from birth."""
RESERVED_PREFIX = "s/"
"""Of those, control state: it may use the disk space that data nodes keep back for it."""
NAME_CHARACTERS_MAX = 255
BIRTH_EPOCH = 0  # lease epochs start at 1, so nobody has written under it


@dataclass(frozen=True, slots=True)
class Seal:
    """The last range has to be sealed on its data nodes, after `operations` are durable."""

    range: RangeRecord
    operations: Operations


@dataclass(frozen=True, slots=True)
class Writable:
    """That is the stream's writable range, once `operations` are durable."""

    range: RangeRecord
    operations: Operations = ()


def sealed_end(
    ends: Sequence[int], *, replicas: int, quorum: int, acknowledged: int = -1
) -> int | None:
    """Where a range ends, from the durable ends of those that answered; None with too few.

    Where the primary tells what it acknowledged, there or where enough hold it: what was still on
    its way belongs to nobody, and its writer sends it again. Otherwise an acknowledged offset is
    missing on at most `replicas - quorum`, so the next one in ascending order has it.
    """
    lacking = replicas - quorum
    if len(ends) <= lacking:
        return None
    if acknowledged >= 0:
        return max(acknowledged, held_end(ends, quorum=quorum))
    return sorted(ends)[lacking]


def held_end(ends: Sequence[int], *, quorum: int) -> int:
    """As far as enough of those that answered have it for an acknowledgement; -1 with too few."""
    return sorted(ends)[-quorum] if len(ends) >= quorum else -1


@dataclass(slots=True)
class Counter:
    """Ids from a block whose upper bound is durable; the rest of a block is lost at a restart."""

    name: str
    block: int
    bound: int = 0
    next: int = 0

    def exhausted(self) -> bool:
        return self.next >= self.bound

    def reserve(self) -> Operations:
        return [Put(CounterRecord(name=self.name, bound=self.bound + self.block))]

    def take(self) -> int:
        if self.exhausted():
            raise CorruptionError("id beyond the durable bound", counter=self.name)
        self.next += 1
        return self.next - 1


@dataclass(slots=True)
class PlacementState:
    nodes: Nodes
    leases: Leases = field(default_factory=Leases)
    stream_ids: Counter = field(default_factory=lambda: Counter("stream", 100))
    node_ids: Counter = field(default_factory=lambda: Counter("node", 1))
    replicas_max: int = 1
    version: int = 0
    """Of the metadata: one more with each transaction. Data nodes remember the newest they saw, so
    that a store which was put back to an earlier day is known for what it is."""
    _version_taken: int = 0
    _streams: dict[int, StreamRecord] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _ranges: dict[int, list[RangeRecord]] = field(default_factory=dict)
    _by_node: dict[int, dict[tuple[int, int], None]] = field(default_factory=dict)
    _open_ranges: dict[int, int] = field(default_factory=dict)  # by node id
    _led_ranges: dict[int, int] = field(default_factory=dict)  # open ones, by primary
    _held: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    """By range and node: as far as a replica that lacks something said to hold it. Not durable."""
    _lacking_copies: dict[tuple[int, int], None] = field(default_factory=dict)
    """Ranges with fewer replicas than were asked for, or that copies are made of."""
    _sharing: dict[frozenset[str], dict[tuple[int, int], None]] = field(default_factory=dict)
    """Ranges with two replicas on one host, by all hosts that they are on."""
    _sharing_hosts: dict[int, str] = field(default_factory=dict)
    """The host of each node, as it was when `_sharing` was made."""

    # Changes

    def recover(self, records: Iterable[Record], now_ms: int) -> list[Operation]:
        """Load everything; returns the leavings of interrupted deletions, to be removed."""
        for record in records:
            self._put(record)
        for counter in (self.stream_ids, self.node_ids):
            counter.next = counter.bound
        self.leases.on_recovered(now_ms)
        self.nodes.on_recovered(now_ms)
        return [
            Remove(range_)
            for stream_id, ranges in self._ranges.items()
            if not self._alive(stream_id)
            for range_ in ranges
        ]

    def raise_version(self, above: int = 0) -> Operation:
        """What a transaction ends with; `above` what data nodes have seen, too."""
        self._version_taken = max(self._version_taken, self.version, above) + 1
        return Put(CounterRecord(name="version", bound=self._version_taken))

    def apply(self, operations: Operations) -> None:
        for operation in operations:
            if isinstance(operation, Put):
                self._put(operation.record)
            else:
                self._remove(operation.record)

    def _put(self, record: Record) -> None:
        match record:
            case StreamRecord():
                self._forget_name(record.stream_id)
                self._streams[record.stream_id] = record
                if record.name and record.deleted_ms < 0:
                    self._names[record.name] = record.stream_id
            case RangeRecord():
                self._forget_range(record)
                ranges = self._ranges.setdefault(record.stream_id, [])
                ranges.append(record)
                ranges.sort(key=lambda r: r.range_index)
                self._index(record)
            case NodeRecord():
                self.nodes.records[record.node_id] = record
            case LeaseRecord():
                self.leases.put(record)
            case CounterRecord(name="version"):
                self.version = max(self.version, record.bound)
            case CounterRecord():
                counter = self.stream_ids if record.name == "stream" else self.node_ids
                counter.bound = record.bound

    def _index(self, record: RangeRecord) -> None:
        for node_id in (*record.replicas, *record.joining):
            index = self._by_node.setdefault(node_id, {})
            index[record.stream_id, record.range_index] = None
        self._count_open(record, 1)
        short = len(record.replicas) < record.replica_nums
        if record.joining or record.incomplete or short or record.doubtful >= 0:
            self._lacking_copies[record.stream_id, record.range_index] = None
        self._note_sharing(record)

    def _note_sharing(self, record: RangeRecord) -> None:
        if len(record.replicas) > 1 and self.nodes.sharing_host(record.replicas):
            hosts = frozenset(map(self.nodes.host, record.replicas))
            self._sharing.setdefault(hosts, {})[record.stream_id, record.range_index] = None

    def _count_open(self, record: RangeRecord, by: int) -> None:
        if record.open:
            for node_id in record.replicas:
                self._open_ranges[node_id] = self.open_ranges(node_id) + by
            for node_id in record.replicas[:1]:
                self._led_ranges[node_id] = self._led_ranges.get(node_id, 0) + by

    def _remove(self, record: Record) -> None:
        match record:
            case StreamRecord():
                self._forget_name(record.stream_id)
                self._streams.pop(record.stream_id, None)
            case RangeRecord():
                self._forget_range(record)
            case NodeRecord():
                self.nodes.records.pop(record.node_id, None)
            case LeaseRecord():
                self.leases.records.pop(record.name, None)
            case CounterRecord():
                raise CorruptionError("counters are never removed", counter=record.name)

    def _forget_name(self, stream_id: int) -> None:
        known = self._streams.get(stream_id)
        if known is not None and self._names.get(known.name) == stream_id:
            del self._names[known.name]

    def _forget_range(self, record: RangeRecord) -> None:
        ranges = self._ranges.get(record.stream_id, [])
        for known in [r for r in ranges if r.range_index == record.range_index]:
            ranges.remove(known)
            for node_id in (*known.replicas, *known.joining):
                self._by_node[node_id].pop((known.stream_id, known.range_index), None)
            self._count_open(known, -1)
            self._lacking_copies.pop((known.stream_id, known.range_index), None)
            for sharing in self._sharing.values():  # few: there are few hosts
                sharing.pop((known.stream_id, known.range_index), None)
        if not ranges:
            self._ranges.pop(record.stream_id, None)

    def note_held(self, key: tuple[int, int], node_id: int, end: int) -> None:
        """What a replica of a sealed range said when it was told the end."""
        self._held.setdefault(key, {})[node_id] = end

    def told_held(self, record: RangeRecord) -> dict[int, int]:
        return self._held.get((record.stream_id, record.range_index), {})

    def forget_held(self, key: tuple[int, int]) -> None:
        self._held.pop(key, None)

    # Questions

    def _alive(self, stream_id: int) -> bool:
        record = self._streams.get(stream_id)
        return record is not None and record.deleted_ms < 0

    def is_deleted(self, stream_id: int) -> bool:
        record = self._streams.get(stream_id)
        return record is not None and record.deleted_ms >= 0

    def stream(self, stream_id: int) -> StreamRecord:
        record = self._streams.get(stream_id)
        if record is None:
            raise NotFoundError("no such stream", stream_id=stream_id)
        if record.deleted_ms >= 0:  # data nodes tell the two apart: what was never known is kept
            raise NotFoundError("no such stream", stream_id=stream_id, deleted=True)
        return record

    def stream_named(self, name: str) -> StreamRecord | None:
        stream_id = self._names.get(name)
        return None if stream_id is None else self._streams[stream_id]

    def streams(self) -> list[StreamRecord]:
        return [record for record in self._streams.values() if record.deleted_ms < 0]

    def ranges(self, stream_id: int) -> list[RangeRecord]:
        self.stream(stream_id)
        return list(self._ranges.get(stream_id, ()))

    def last_range(self, stream_id: int) -> RangeRecord:
        self.stream(stream_id)
        return self._ranges[stream_id][-1]

    def range(self, stream_id: int, range_index: int) -> RangeRecord:
        self.stream(stream_id)
        record = self.find(stream_id, range_index)
        if record is None:
            raise RangeNotFoundError(stream_id=stream_id, range_index=range_index)
        return record

    def find(self, stream_id: int, range_index: int) -> RangeRecord | None:
        """None also when its stream is deleted."""
        if not self._alive(stream_id):
            return None
        ranges = self._ranges.get(stream_id, [])
        position = bisect_left(ranges, range_index, key=lambda r: r.range_index)
        if position < len(ranges) and ranges[position].range_index == range_index:
            return ranges[position]
        return None

    def range_before(self, record: RangeRecord) -> RangeRecord | None:
        """The sealed range that it continues, if something of that is left."""
        ranges = self._ranges.get(record.stream_id, [])
        position = bisect_left(ranges, record.range_index, key=lambda r: r.range_index)
        return ranges[position - 1] if position > 0 else None

    def lacking_copies(self) -> list[RangeRecord]:
        """Ranges that have not yet, or not surely, as many whole replicas as were asked for."""
        found = (self.find(*key) for key in self._lacking_copies)
        return [record for record in found if record is not None]

    def sharing_host(self) -> Iterator[RangeRecord]:
        """Ranges with two replicas on one host, where another host could have one of the two: a
        node said later where it is, or an adopted range came so.

        Every range is looked at when the host of a node has changed, and only then.
        """
        hosts = self.nodes.host_by_node()
        if hosts != self._sharing_hosts:
            self._sharing_hosts = hosts
            self._sharing = {}
            for ranges in self._ranges.values():
                for record in ranges:
                    self._note_sharing(record)
        others = set(map(self.nodes.host, self.nodes.placeable())) if self._sharing else set()
        for taken, keys in self._sharing.items():
            if others - taken:
                found = (self.find(*key) for key in list(keys))
                yield from (record for record in found if record is not None)

    def held_end(self, record: RangeRecord) -> int:
        """As far as living replicas hold a sealed range of which none has all; -1 when one has,
        none lives, or they have not said yet."""
        nodes = self.nodes
        whole = any(nodes.is_alive(n) and n not in record.incomplete for n in record.replicas)
        if record.open or whole or record.content_end <= record.start:
            return -1
        told = self.told_held(record)
        alive = [n for n in record.replicas if nodes.is_alive(n)]
        if not alive or any(n not in told for n in alive):
            return -1
        held = max(record.start, *(told[n] for n in alive))
        return held if held < record.content_end else -1

    def accept_loss(self, record: RangeRecord, held: int) -> Operations:
        """From `held` on, which is as far as living replicas have it, the range is given up."""
        if record.open or not record.start <= held < record.content_end:
            raise InvalidArgumentError(
                "nothing to give up there",
                stream_id=record.stream_id,
                range_index=record.range_index,
                offset=held,
            )
        everybody = record.replicas  # who comes back has to hear it first
        doubtful = record.doubtful if record.doubtful < held else -1
        return [Put(replace(record, lost=held, incomplete=everybody, doubtful=doubtful))]

    def doubtful(self) -> list[RangeRecord]:
        """Sealed ranges that end in what fewer hold than an acknowledgement takes."""
        return [record for record in self.lacking_copies() if record.doubtful >= 0]

    def ranges_of_node(self, node_id: int) -> list[RangeRecord]:
        keys = sorted(self._by_node.get(node_id, ()))
        return [self.range(*key) for key in keys if self._alive(key[0])]

    def open_ranges(self, node_id: int) -> int:
        return self._open_ranges.get(node_id, 0)

    def load(self, node_id: int) -> tuple[int, int]:
        """Open ranges that a node has, and how many of them it leads."""
        return self.open_ranges(node_id), self._led_ranges.get(node_id, 0)

    def sealing(self) -> list[RangeRecord]:
        """Ranges whose seal was begun and not finished."""
        last = (ranges[-1] for ranges in self._ranges.values())
        return [r for r in last if r.open and r.sealing and self._alive(r.stream_id)]

    def is_owned(self, stream_id: int) -> bool:
        return self.last_range(stream_id).writer_epoch >= 0

    # Streams

    def check_new_stream(self, wanted: Stream) -> None:
        if not 1 <= wanted.replica_nums <= self.replicas_max:
            raise InvalidArgumentError(
                "replica count out of bounds",
                replica_nums=wanted.replica_nums,
                limit=self.replicas_max,
            )
        if len(wanted.name) > NAME_CHARACTERS_MAX:
            raise InvalidArgumentError("stream name too long", limit=NAME_CHARACTERS_MAX)
        if wanted.durability not in (-1, 0, 1):
            raise InvalidArgumentError("unknown durability", durability=wanted.durability)

    def create_stream(
        self, wanted: Stream, *, stream_id: int, replicas: tuple[int, ...]
    ) -> Operations:
        """The stream and its first range [0, -1), in one transaction."""
        owned = wanted.name.startswith(OWNED_PREFIXES)
        stream = StreamRecord(
            stream_id=stream_id,
            name=wanted.name,
            replica_nums=wanted.replica_nums,
            retention_period_ms=wanted.retention_period_ms,
            durability=max(wanted.durability, 0),
        )
        first = RangeRecord(
            stream_id=stream_id,
            range_index=0,
            start=0,
            replicas=replicas,
            ack_quorum=ack_quorum(len(replicas)),
            writer_epoch=BIRTH_EPOCH if owned else -1,
            replica_nums=wanted.replica_nums,
        )
        return [Put(stream), Put(first)]

    def update_stream(self, wanted: Stream) -> Operations:
        """What is given replaces what is; the rest stays."""
        known = self.stream(wanted.stream_id)
        if wanted.replica_nums > self.replicas_max or wanted.durability > 1:
            raise InvalidArgumentError("update out of bounds", stream_id=wanted.stream_id)
        record = replace(
            known,
            replica_nums=wanted.replica_nums if wanted.replica_nums > 0 else known.replica_nums,
            retention_period_ms=(
                wanted.retention_period_ms
                if wanted.retention_period_ms >= 0
                else known.retention_period_ms
            ),
            durability=wanted.durability if wanted.durability >= 0 else known.durability,
        )
        return [] if record == known else [Put(record)]

    def delete_stream(self, stream_id: int, now_ms: int) -> Operations:
        """A tombstone first: whatever follows it is leavings. Nothing to do the second time."""
        known = self._streams.get(stream_id)
        if known is None:
            raise NotFoundError("no such stream", stream_id=stream_id)
        if known.deleted_ms >= 0:
            return []
        removed = [Remove(record) for record in self._ranges.get(stream_id, ())]
        return [Put(replace(known, deleted_ms=now_ms)), *removed]

    def expired_tombstones(self, before_ms: int) -> Operations:
        return [Remove(r) for r in self._streams.values() if 0 <= r.deleted_ms < before_ms]

    def needs_next(self, stream_id: int, offset: int) -> RangeRecord | None:
        """The open range whose next offset decides whether a trim at `offset` is allowed."""
        last = self.last_range(stream_id)
        return last if last.open and offset > last.start else None

    def trim(self, stream_id: int, offset: int, *, next_offset: int = -1) -> Operations:
        """Oldest first, so that a long list may be cut into several transactions."""
        ranges = self.ranges(stream_id)
        last = ranges[-1]
        limit = last.end if not last.open else max(last.start, next_offset)
        if not ranges[0].start <= offset <= limit:
            raise InvalidArgumentError(
                "trim outside the stream",
                stream_id=stream_id,
                offset=offset,
                start=ranges[0].start,
                end=limit,
            )
        operations: list[Operation] = []
        for record in ranges:
            if record is not last and record.end <= offset:
                operations.append(Remove(record))
            elif record.start < offset:
                operations.append(Put(replace(record, start=offset)))
        return operations

    # Ranges

    def _check_epoch(self, last: RangeRecord, epoch: int) -> None:
        if epoch < last.writer_epoch:
            raise FencedError(stream_id=last.stream_id, epoch=epoch, current=last.writer_epoch)

    def seal(self, stream_id: int, range_index: int, epoch: int) -> Seal | Writable:
        """Seal-and-new. An index that was sealed before gets the range that is writable now."""
        last = self.last_range(stream_id)
        self._check_epoch(last, epoch)
        if range_index > last.range_index or range_index < 0:
            raise InvalidArgumentError(
                "no such range yet", stream_id=stream_id, range_index=range_index
            )
        finished = last.open and not last.sealing and epoch == last.writer_epoch
        if range_index < last.range_index and finished:
            return Writable(last)
        return self.seal_last(stream_id, epoch)

    def seal_last(self, stream_id: int, epoch: int) -> Seal:
        last = self.last_range(stream_id)
        self._check_epoch(last, epoch)
        intent = replace(last, sealing=True, writer_epoch=epoch)
        return Seal(intent, [] if intent == last else [Put(intent)])

    def open_for_writing(self, stream_id: int, epoch: int) -> Seal | Writable:
        """Go on in the open range under a raised epoch, unless its seal was begun."""
        if epoch < 0:
            raise InvalidArgumentError("an epoch is needed to open a stream", stream_id=stream_id)
        last = self.last_range(stream_id)
        self._check_epoch(last, epoch)
        if last.sealing or not last.open:
            return self.seal_last(stream_id, epoch)
        raised = replace(last, writer_epoch=epoch)
        return Writable(raised, [] if raised == last else [Put(raised)])

    def succeed(
        self,
        sealed: RangeRecord,
        end: int,
        replicas: tuple[int, ...],
        incomplete: tuple[int, ...] = (),
        doubtful: int = -1,
    ) -> Operations:
        """Close the last range at `end` and open the next there, in one transaction.

        `doubtful`: what lies from there on counts as acknowledged when enough replicas hold it all.
        An empty range is dropped instead of kept as [n, n).
        """
        last = self.last_range(sealed.stream_id)
        if last.range_index != sealed.range_index or not last.open:
            raise CorruptionError("sealed twice", stream_id=sealed.stream_id)
        if end < last.start:
            raise CorruptionError(
                "a data node lost acknowledged records",
                stream_id=last.stream_id,
                range_index=last.range_index,
                start=last.start,
                end=end,
            )
        closed = replace(last, end=end, sealing=False, incomplete=incomplete, doubtful=doubtful)
        successor = RangeRecord(
            stream_id=last.stream_id,
            range_index=last.range_index + 1,
            start=end,
            replicas=replicas,
            ack_quorum=ack_quorum(len(replicas)),
            writer_epoch=last.writer_epoch,
            replica_nums=self.stream(last.stream_id).replica_nums,
        )
        return [Remove(last) if end == last.start else Put(closed), Put(successor)]
