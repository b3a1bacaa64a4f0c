"""Does a history keep the eighteen invariants? One function per invariant, each a list of faults.

| | Invariant | Checked |
|---|---|---|
| I1 | acknowledged = returned by every later read, same bytes | here, on reads and on replicas |
| I2 | ranges tile the stream | here, after every transaction |
| I3 | no two appends at one offset | here |
| I4 | one open range at most, the last | here, after every transaction |
| I5 | a sealed end never changes, nothing reopens | here: transactions, answers of data nodes |
| I6 | acknowledged <= sealed end <= some replica's durable end | here |
| I7 | nothing is acknowledged after the answer to a seal | here |
| I8 | nothing uncommitted is read | here: what was read stays, and was on a quorum by then |
| I9 | complete replicas are identical | here, at the end |
| I10 | appends of one connection keep their order | here |
| I11 | ids are never used again | here |
| I12 | a deposed leader writes nothing | here, after every transaction |
| I13 | starts never fall, nothing below is served | here: transactions, reads at the end |
| I14 | replicas are distinct live nodes | here, at each range's creation |
| I15 | one terminal answer per request | here: none is left open; frames: tests/unit/net |
| I16 | recovery keeps what was acknowledged, and is idempotent | here: power cuts at the end |
| I17 | no frame costs more than the largest one | tests/integration/test_sbp_malformed.py |
| I18 | one stored batch per producer sequence | here, at the end |
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headrace.placement.records import RangeRecord, StreamRecord, Table
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import SUCCESS
from headrace.wire.sbp.messages import ClientRole
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import PRODUCER
from tests.sim.history import Ack, Call, History, Read, Stored, Transaction, without_offset

RangeId = tuple[int, int]


@dataclass(slots=True)
class Replica:
    """One node's copy of a range at the end of a run."""

    host: str
    batches: list[Stored]
    error: str = ""


@dataclass(slots=True)
class Final:
    """What is there when all is quiet: metadata, and every replica's content."""

    streams: dict[int, StreamRecord]
    ranges: dict[RangeId, RangeRecord]
    replicas: dict[RangeId, list[Replica]] = field(default_factory=dict)
    served_below_start: list[str] = field(default_factory=list)

    def ranges_of(self, stream_id: int) -> list[RangeRecord]:
        return [r for (stream, _), r in sorted(self.ranges.items()) if stream == stream_id]


def check(history: History, final: Final) -> list[str]:
    """Every violation found; none is what we want."""
    acks = list(history.acks())
    reads = list(history.reads())
    found = list(history.complaints)
    found += check_metadata(history.transactions, history)
    found += _contents(acks, reads, final)
    found += _reads(acks, reads, history)
    found += _seals(acks, history, final)
    found += _order(acks)
    found += _replicas(final)
    found += _origin(history, final)
    found += _producers(final)
    found += _promises(history, final)
    found += final.served_below_start
    return found


# Metadata: I2, I4, I5, I11, I12, I13, I14


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


LIFE_SECONDS = 10.0
"""A node whose last sign of life is older counts as dead for I14; its time-out is well below."""


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
        if isinstance(call.reply, m.IdAllocationResponse) and _ok(call.reply.status):
            if call.reply.id in given:
                found.append(f"I11: node id {call.reply.id} is given out twice: {call}")
            given[call.reply.id] = call
    return found


def _ok(status: m.Status | None) -> bool:
    return status is None or status.code in SUCCESS


# Contents: I1, I3, I8


def _contents(acks: Sequence[Ack], reads: Sequence[Read], final: Final) -> list[str]:
    """An offset has one content for ever, whoever looks at it and whenever."""
    found: list[str] = []
    contents: dict[int, dict[int, Stored]] = defaultdict(dict)

    def note(stored: Stored, invariant: str, where: object) -> None:
        known = contents[stored.stream_id].setdefault(stored.base, stored)
        if known.batch != stored.batch:
            found.append(
                f"{invariant}: stream {stored.stream_id} offset {stored.base} has two contents:"
                f" {known.batch[55:95]!r} and {stored.batch[55:95]!r} ({where})"
            )

    for ack in acks:
        note(ack.stored, "I3", ack.call)
    for read in reads:
        for stored in read.batches:
            note(stored, "I8", read.call)
    for stream_id, by_base in contents.items():
        found += _overlaps(stream_id, by_base)
        if stream_id in final.streams:
            found += _kept(stream_id, by_base, final)
    return found


def _overlaps(stream_id: int, by_base: Mapping[int, Stored]) -> Iterator[str]:
    end = 0
    for base, stored in sorted(by_base.items()):
        if base < end:
            yield f"I3: stream {stream_id}: two batches hold offset {base}"
        end = max(end, stored.end)


def _kept(stream_id: int, by_base: Mapping[int, Stored], final: Final) -> Iterator[str]:
    """What was acknowledged or read is on every replica of its range, unless trimmed."""
    for range_ in final.ranges_of(stream_id):
        key = (stream_id, range_.range_index)
        end = range_.end if range_.end >= 0 else float("inf")
        wanted = [s for s in by_base.values() if range_.start <= s.base < end]
        for replica in final.replicas.get(key, ()):
            held = {stored.base: stored.batch for stored in replica.batches}
            for stored in wanted:
                if held.get(stored.base) != stored.batch:
                    what = "other bytes" if stored.base in held else "nothing"
                    yield (
                        f"I1: range {stream_id}/{range_.range_index} on {replica.host} has {what}"
                        f" at {stored.base}: {stored.batch[55:95]!r} {replica.error}"
                    )
    ranges = final.ranges_of(stream_id)
    for stored in by_base.values():
        if stored.end > ranges[0].start and not any(
            r.start < stored.end and (r.end < 0 or stored.base < r.end) for r in ranges
        ):
            yield f"I1: stream {stream_id} ends before {stored.base}: {stored.batch[55:95]!r}"


# Reads: I1, I8


def _reads(acks: Sequence[Ack], reads: Sequence[Read], history: History) -> list[str]:
    found: list[str] = []
    promised: dict[int, list[Ack]] = defaultdict(list)
    for ack in acks:
        promised[ack.stored.stream_id].append(ack)
    excused = _trimmed_or_deleted(history)
    for read in reads:
        if read.status not in SUCCESS:
            continue
        if read.batches:
            found += _dense(read)
        elif read.call.invoked >= excused.get((read.stream_id, read.offset), float("inf")):
            continue
        elif any(
            ack.stored.base <= read.offset < ack.stored.end
            and ack.call.answered < read.call.invoked
            for ack in promised[read.stream_id]
        ) and not _below_trim(excused, read):
            found.append(f"I1: acknowledged offset {read.offset} reads as the end: {read.call}")
    return found


def _dense(read: Read) -> Iterator[str]:
    first = read.batches[0]
    if not first.base <= read.offset < first.end:
        yield f"I1: asked for {read.offset}, got [{first.base}, {first.end}): {read.call}"
    for one, two in pairwise(read.batches):
        if one.end != two.base:
            yield f"I2: a read jumps from {one.end} to {two.base}: {read.call}"


def _trimmed_or_deleted(history: History) -> dict[tuple[int, int], float]:
    """(stream, trim offset) -> when it was first asked for; a deletion is a trim of everything."""
    found: dict[tuple[int, int], float] = {}
    for call in history.of(Code.TRIM_STREAMS, Code.DELETE_STREAMS):
        if isinstance(call.request, m.TrimStreamsRequest):
            for trimmed in call.request.trimmed_streams:
                found.setdefault((trimmed.stream_id, trimmed.trim_offset), call.invoked)
        elif isinstance(call.request, m.DeleteStreamsRequest):
            for stream in call.request.streams:
                found.setdefault((stream.stream_id, 1 << 62), call.invoked)
    return found


def _below_trim(excused: Mapping[tuple[int, int], float], read: Read) -> bool:
    return any(
        stream_id == read.stream_id and read.offset < offset and asked < read.call.answered
        for (stream_id, offset), asked in excused.items()
    )


# Seals: I5, I6, I7


def _seals(acks: Sequence[Ack], history: History, final: Final) -> list[str]:
    found: list[str] = []
    ends = _sealed_ends(history)
    answers = _node_answers(history)
    for ack in acks:
        key = (ack.stored.stream_id, ack.range_index)
        end = ends.get(key)
        if end is not None and ack.stored.end > end:
            found.append(
                f"I6: range {key} ends at {end}, below acknowledged {ack.stored.end}: {ack.call}"
            )
    for key, by_node in answers.items():
        end = ends.get(key)
        decided = _decided(history, key, end)
        for host, node_ends in by_node.items():
            first = node_ends[0][1]
            if any(e != first and not (e == end and time > decided) for time, e in node_ends):
                found.append(f"I5: {host} answered seals of {key} with {node_ends}, final {end}")
        lost = set(by_node) & set(history.lost)
        if end is not None and not lost and max(e for a in by_node.values() for _, e in a) < end:
            found.append(f"I6: range {key} ends at {end}, no replica has it: {by_node}")
    sealed = _sealed_for_clients(history)
    owners = _owners(history)
    for ack in acks:
        key = (ack.stored.stream_id, ack.range_index)
        if ack.call.invoked > sealed.get(key, float("inf")):
            found.append(f"I7: acknowledged after its range was sealed: {ack.call}")
        for epoch, since in owners.get(ack.stored.stream_id, ()):
            if 0 <= ack.writer_epoch < epoch and ack.call.invoked > since:
                found.append(
                    f"I7: acknowledged under epoch {ack.writer_epoch} after {epoch} owns the"
                    f" stream: {ack.call}"
                )
                break
    return found


def _owners(history: History) -> dict[int, list[tuple[int, float]]]:
    """By stream: epochs, and when a client was told that it owns the stream under each."""
    owners: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for call in history.of(Code.SEAL_RANGES):
        if call.role is ClientRole.CUSTOMER and isinstance(call.reply, m.SealRangesResponse):
            for result in call.reply.seal_responses:
                if (
                    result.range is not None
                    and _ok(result.status)
                    and result.range.writer_epoch > 0
                ):
                    owners[result.range.stream_id].append(
                        (result.range.writer_epoch, call.answered)
                    )
    return owners


def _sealed_ends(history: History) -> dict[RangeId, int]:
    ends: dict[RangeId, int] = {}
    starts: dict[RangeId, int] = {}
    for transaction in history.transactions:
        for record in transaction.puts:
            if isinstance(record, RangeRecord):
                key = (record.stream_id, record.range_index)
                starts.setdefault(key, record.start)
                if record.end >= 0:
                    ends[key] = record.end
                before = (record.stream_id, record.range_index - 1)
                if before in starts and before not in ends:
                    ends[before] = record.start  # an empty range is dropped, not closed
    return ends


def _decided(history: History, key: RangeId, end: int | None) -> float:
    """When the range's end became durable."""
    for transaction in history.transactions:
        for record in transaction.puts:
            if isinstance(record, RangeRecord) and record.stream_id == key[0]:
                closed = record.range_index == key[1] and record.end >= 0
                if closed or (record.range_index == key[1] + 1 and record.start == end):
                    return transaction.time
    return float("inf")


def _node_answers(history: History) -> dict[RangeId, dict[str, list[tuple[float, int]]]]:
    """What each data node answered to seals of a range, and when."""
    answers: dict[RangeId, dict[str, list[tuple[float, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for call in history.of(Code.SEAL_RANGES):
        if call.role is ClientRole.PLACEMENT_MANAGER and isinstance(
            call.reply, m.SealRangesResponse
        ):
            for result in call.reply.seal_responses:
                if result.range is not None and _ok(result.status):
                    key = (result.range.stream_id, result.range.range_index)
                    host = call.peer.partition(":")[0]
                    answers[key][host].append((call.answered, result.range.end_offset))
    return answers


def _sealed_for_clients(history: History) -> dict[RangeId, float]:
    """When a client was first told of a later range."""
    sealed: dict[RangeId, float] = {}
    for call in history.of(Code.SEAL_RANGES):
        if call.role is ClientRole.CUSTOMER and isinstance(call.reply, m.SealRangesResponse):
            for result in call.reply.seal_responses:
                if result.range is not None and _ok(result.status):
                    for index in range(result.range.range_index):
                        key = (result.range.stream_id, index)
                        sealed[key] = min(call.answered, sealed.get(key, float("inf")))
    return sealed


# Order: I10


def _order(acks: Sequence[Ack]) -> list[str]:
    found: list[str] = []
    last: dict[tuple[int, int], Ack] = {}
    for ack in acks:  # in the order in which they were sent
        key = (ack.call.channel, ack.stored.stream_id)
        before = last.get(key)
        repeated = ack.stored.header.attributes & PRODUCER
        if before is not None and ack.stored.base < before.stored.end and not repeated:
            found.append(
                f"I10: sent after {before.call}, stored before it at {ack.stored.base}: {ack.call}"
            )
        last[key] = ack
    return found


# The end of the run: I1, I9, I16, I18


def _replicas(final: Final) -> list[str]:
    found: list[str] = []
    for (stream_id, index), replicas in final.replicas.items():
        range_ = final.ranges[stream_id, index]
        name = f"range {stream_id}/{index}"
        first = replicas[0]
        for replica in replicas:
            if replica.error:
                found.append(f"I9: {name} on {replica.host}: {replica.error}")
            if [b.batch for b in replica.batches] != [b.batch for b in first.batches]:
                found.append(
                    f"I9: {name} differs between {first.host} {_spans(first)}"
                    f" and {replica.host} {_spans(replica)}"
                )
        offset = range_.start
        for stored in first.batches:
            if stored.base > offset:
                found.append(f"I2: {name} has a gap at {offset}")
            offset = stored.end
        if range_.end >= 0 and offset != range_.end:
            found.append(f"I9: {name} ends at {range_.end}, its content at {offset}")
    return found


def _spans(replica: Replica) -> str:
    if not replica.batches:
        return "[)"
    return f"[{replica.batches[0].base}, {replica.batches[-1].end})"


def _origin(history: History, final: Final) -> list[str]:
    """Nothing is in the log that nobody sent there."""
    sent = set(history.sent())
    found: list[str] = []
    for (stream_id, index), replicas in final.replicas.items():
        for stored in replicas[0].batches:
            if (stream_id, without_offset(stored.batch)) not in sent:
                found.append(f"I1: range {stream_id}/{index} has at {stored.base} what nobody sent")
    return found


def _producers(final: Final) -> list[str]:
    found: list[str] = []
    expected: dict[tuple[int, int], int] = {}
    for (stream_id, _), replicas in sorted(final.replicas.items()):
        for stored in replicas[0].batches:
            header = stored.header
            if not header.attributes & PRODUCER:
                continue
            key = (stream_id, header.producer_id)
            if header.sequence != expected.get(key, header.sequence):
                found.append(
                    f"I18: stream {stream_id} producer {header.producer_id} has sequence"
                    f" {header.sequence} at {stored.base}, expected {expected[key]}"
                )
            expected[key] = header.sequence + header.record_count
    return found


def _promises(history: History, final: Final) -> list[str]:
    """What a client library answered is where it said."""
    found: list[str] = []
    stored: dict[int, list[Stored]] = defaultdict(list)
    for (stream_id, _), replicas in sorted(final.replicas.items()):
        stored[stream_id] += replicas[0].batches if replicas else []
    for stream_id, offset, record in history.promises:
        batches = stored[stream_id]
        if not batches or offset < batches[0].base:
            continue  # trimmed
        at = bisect_right(batches, offset, key=lambda each: each.base) - 1
        if offset >= batches[at].end or record not in batches[at].batch:
            found.append(f"I1: stream {stream_id} has not {record[:40]!r} at {offset}, as promised")
    return found
