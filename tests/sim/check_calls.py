"""What clients and placement managers were answered: I1, I3, I5, I6, I7, I8, I10, I15."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from headrace.errors import DeadlineError
from headrace.placement.metadata.records import RangeRecord
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import SUCCESS
from headrace.wire.sbp.messages import ClientRole
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import PRODUCER
from tests.sim.check_ending import Final
from tests.sim.history import Ack, History, RangeId, Read, Stored, succeeded


def check_calls(history: History, final: Final) -> list[str]:
    acks = list(history.acks())
    reads = list(history.reads())
    return [
        *_contents(acks, reads, final),
        *_reads(acks, reads, history),
        *_seals(acks, history),
        *_order(acks),
        *_answers(history),
    ]


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


def _seals(acks: Sequence[Ack], history: History) -> list[str]:
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
                    and succeeded(result.status)
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
                if result.range is not None and succeeded(result.status):
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
                if result.range is not None and succeeded(result.status):
                    for index in range(result.range.range_index):
                        key = (result.range.stream_id, index)
                        sealed[key] = min(call.answered, sealed.get(key, float("inf")))
    return sealed


# Order and answers: I10, I15


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


def _answers(history: History) -> list[str]:
    """When nothing is wrong any more, nobody waits in vain."""
    return [
        f"I15: no answer: {call}"
        for call in history.calls
        if call.invoked > history.quiet and isinstance(call.error, DeadlineError)
    ]
