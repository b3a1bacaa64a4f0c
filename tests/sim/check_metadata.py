"""The placement metadata after every transaction: I2, I4, I5, I11, I12, I13, I14."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headrace.placement.metadata.records import RangeRecord, StreamRecord, Table
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from tests.sim.history import Call, History, RangeId, Transaction, succeeded


@dataclass(slots=True)
class Metadata:
    """The placement records as they were after each transaction."""

    streams: dict[int, StreamRecord] = field(default_factory=dict)
    ranges: dict[int, dict[int, RangeRecord]] = field(default_factory=lambda: defaultdict(dict))
    known: set[int] = field(default_factory=set)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[RangeId, int] = field(default_factory=dict)
    gone: set[RangeId] = field(default_factory=set)

    def apply(self, transaction: Transaction) -> Iterator[str]:
        touched: dict[int, None] = {}
        for table, key in transaction.removes:
            if table is Table.RANGES:
                stream_id, index = map(int, key.split("/"))
                self.ranges[stream_id].pop(index, None)
                self.gone.add((stream_id, index))
                touched[stream_id] = None
            elif table is Table.STREAMS:
                self.streams.pop(int(key), None)
        for record in transaction.puts:
            if isinstance(record, StreamRecord):
                yield from self._put_stream(record)
                touched[record.stream_id] = None
            elif isinstance(record, RangeRecord):
                yield from self._put_range(record)
                touched[record.stream_id] = None
        for stream_id in touched:
            yield from self._check_stream(stream_id)

    def _put_stream(self, record: StreamRecord) -> Iterator[str]:
        before = self.streams.get(record.stream_id)
        if before is None and record.stream_id in self.known:
            yield f"I11: stream id {record.stream_id} is used again"
        if before is not None and before.deleted_ms >= 0 and record.deleted_ms < 0:
            yield f"I11: deleted stream {record.stream_id} lives again"
        self.known.add(record.stream_id)
        self.streams[record.stream_id] = record

    def _put_range(self, record: RangeRecord) -> Iterator[str]:
        key = (record.stream_id, record.range_index)
        name = f"range {record.stream_id}/{record.range_index}"
        if key in self.gone:
            yield f"I5: {name} comes back"
        before = self.ranges[record.stream_id].get(record.range_index)
        end = self.ends.get(key, -1)
        if end >= 0 and record.end != end:
            yield f"I5: end of {name} changes from {end} to {record.end}"
        if record.end >= 0:
            self.ends[key] = record.end
        if before is not None and record.writer_epoch < before.writer_epoch:
            yield f"I5: epoch of {name} falls to {record.writer_epoch}"
        if len(set(record.replicas)) != len(record.replicas) or not record.replicas:
            yield f"I14: replicas of {name} are {record.replicas}"
        if before is not None and before.end < 0 and before.replicas != record.replicas:
            yield f"I5: replicas of open {name} change to {record.replicas}"
        self.ranges[record.stream_id][record.range_index] = record

    def _check_stream(self, stream_id: int) -> Iterator[str]:
        ranges = [r for _, r in sorted(self.ranges[stream_id].items())]
        stream = self.streams.get(stream_id)
        if stream is None or stream.deleted_ms >= 0:
            if ranges:
                yield f"I2: deleted stream {stream_id} keeps {len(ranges)} ranges"
            return
        for first, second in pairwise(ranges):
            if first.end < 0:
                yield f"I4: open range {first.range_index} of stream {stream_id} is not the last"
            elif first.end != second.start:
                yield (
                    f"I2: stream {stream_id}: range {first.range_index} ends at {first.end},"
                    f" range {second.range_index} starts at {second.start}"
                )
        for each in ranges:
            if 0 <= each.end < each.start:
                yield f"I2: range {stream_id}/{each.range_index} is [{each.start}, {each.end})"
        start = ranges[0].start if ranges else self.starts.get(stream_id, 0)
        if start < self.starts.get(stream_id, 0):
            yield f"I13: start of stream {stream_id} falls to {start}"
        self.starts[stream_id] = max(start, self.starts.get(stream_id, 0))


def check_metadata(transactions: Sequence[Transaction], history: History) -> list[str]:
    metadata = Metadata()
    found: list[str] = []
    signs = _signs_of_life(history)
    for transaction in transactions:
        known = {(s, i) for s, ranges in metadata.ranges.items() for i in ranges}
        found += [f"{transaction.time:.6f} {text}" for text in metadata.apply(transaction)]
        if transaction.author != transaction.leader:
            found.append(
                f"{transaction.time:.6f} I12: {transaction.author} wrote while"
                f" {transaction.leader or 'nobody'} led"
            )
        for record in transaction.puts:
            if not isinstance(record, RangeRecord) or record.end >= 0:
                continue
            if (record.stream_id, record.range_index) not in known:
                found += _dead_replicas(record, transaction.time, signs)
    return found + _node_ids(history)


LIFE_SECONDS = 25.0
"""A node whose last sign of life is older counts as dead for I14. Longer than its time-out by what
a placement manager may stall: it takes the heartbeats that wait for it then for fresh ones."""


def _signs_of_life(history: History) -> dict[int, list[float]]:
    """By node id: when it was heard of, in order."""
    by_host: dict[str, list[float]] = defaultdict(list)
    for call in history.calls:
        by_host[call.host].append(call.invoked)
        if call.reply is not None:
            by_host[call.peer.partition(":")[0]].append(call.answered)
    return {node_id: sorted(by_host.get(host, ())) for host, node_id in history.hosts.items()}


def _dead_replicas(
    record: RangeRecord, time: float, signs: Mapping[int, Sequence[float]]
) -> Iterator[str]:
    for node_id in record.replicas:
        heard = signs.get(node_id)
        if heard is None:
            continue
        at = bisect_right(heard, time) - 1
        if at < 0 or time - heard[at] > LIFE_SECONDS:
            yield (
                f"{time:.6f} I14: range {record.stream_id}/{record.range_index} is placed on"
                f" node {node_id}, which is silent"
            )


def _node_ids(history: History) -> list[str]:
    given: dict[int, Call] = {}
    found: list[str] = []
    for call in history.of(Code.ALLOCATE_ID):
        if isinstance(call.reply, m.IdAllocationResponse) and succeeded(call.reply.status):
            if call.reply.id in given:
                found.append(f"I11: node id {call.reply.id} is given out twice: {call}")
            given[call.reply.id] = call
    return found
