"""What is there when all is quiet: I1, I2, I9, I18."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from headrace.placement.metadata.records import RangeRecord, StreamRecord
from headrace.wire.sbp.records import PRODUCER
from tests.sim.history import History, RangeId, Stored, without_offset


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


def check_ending(history: History, final: Final) -> list[str]:
    return [
        *_replicas(final),
        *_origin(history, final),
        *_producers(final),
        *_promises(history, final),
        *final.served_below_start,
    ]


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
        if range_.end >= 0 and offset != range_.content_end:
            found.append(f"I9: {name} ends at {range_.content_end}, its content at {offset}")
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
