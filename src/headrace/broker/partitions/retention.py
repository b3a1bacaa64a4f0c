"""Which messages a topic may forget. The decisions are pure; `enforce` carries them out.

Only closed segments go, oldest first, and unless a setting allows it not one that a stored
consumer offset has not passed: a reader holds back what it has not read, pipelines under the groups
they store their positions in. A hold is bounded: somebody who stays away longer than
`retention_hold_ms_max` after a segment was due keeps it no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.catalogue.resources import NEVER, UNLIMITED, Topic
from headrace.broker.core import Broker
from headrace.errors import HeadraceError
from headrace.observability.logging import get_logger
from headrace.wire.sbp.messages import SegmentInfo

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition's closed segments, and the offset below which everything was consumed."""

    partition: int
    closed: Sequence[SegmentInfo]
    barrier: int | None = None
    """None: nobody stored an offset."""

    def removable(self, released_us: int | None = None) -> list[SegmentInfo]:
        """What nobody holds; nobody holds what is older than `released_us`."""
        barrier = self.barrier
        return [
            s
            for s in self.closed
            if barrier is None
            or s.end <= barrier
            or (released_us is not None and s.max_timestamp * 1000 <= released_us)
        ]


def expired(removable: Sequence[SegmentInfo], *, expiry_us: int, now_us: int) -> int:
    """How many of these are expired."""
    count = 0
    for segment in removable:
        if segment.max_timestamp * 1000 + expiry_us > now_us:
            break
        count += 1
    return count


def plan(
    candidates: Sequence[Candidate],
    *,
    size: int,
    expiry_us: int,
    max_size: int,
    now_us: int,
    hold_us_max: int = 0,
) -> dict[int, int]:
    """Partition -> offset to trim to. `size` is the topic's, in bytes; a hold of 0 has no end."""
    due_us = 0 if expiry_us == NEVER else expiry_us
    released_us = now_us - due_us - hold_us_max if hold_us_max else None
    removable = {c.partition: c.removable(released_us) for c in candidates}
    removed = {
        p: 0 if expiry_us == NEVER else expired(segments, expiry_us=expiry_us, now_us=now_us)
        for p, segments in removable.items()
    }
    size -= sum(s.bytes for p, count in removed.items() for s in removable[p][:count])
    while max_size != UNLIMITED and size > max_size:
        oldest = [
            (removable[p][count].max_timestamp, p)
            for p, count in removed.items()
            if count < len(removable[p])
        ]
        if not oldest:
            break
        _, partition = min(oldest)
        size -= removable[partition][removed[partition]].bytes
        removed[partition] += 1
    return {p: removable[p][count - 1].end for p, count in removed.items() if count}


async def enforce(broker: Broker) -> int:
    """One round over all topics that have a limit; returns how many partitions were trimmed."""
    trimmed = 0
    for topic in list(broker.catalogue.topics()):
        if topic.uid in broker.publishing.state.topics:
            continue  # whoever reads its windows has them purged
        if broker.expiry_of(topic) == NEVER and broker.max_size_of(topic) == UNLIMITED:
            continue
        try:
            trimmed += await _enforce(broker, topic)
        except HeadraceError as error:
            log.warning("retention failed", topic=topic.uid, reason=str(error))
    return trimmed


async def _enforce(broker: Broker, topic: Topic) -> int:
    """Partitions are opened only when something in them has to go."""
    partitions = list(topic.partitions)
    for partition in partitions:
        opened = broker.partitions.peek(topic, partition)
        if opened is not None:
            await opened.refresh_if_written()
    figures = await broker.partitions.figures((topic, partition) for partition in partitions)
    stored = {
        partition.id: (partition, each)
        for partition, each in zip(partitions, figures, strict=True)
        if each is not None
    }
    candidates = []
    for partition, each in stored.values():
        lowest = None
        if broker.settings.retention_waits_for_consumers:
            lowest = await broker.lowest_offset(topic, partition)
        barrier = None if lowest is None else lowest + 1
        candidates.append(Candidate(partition.id, each.closed_segments, barrier))
    offsets = plan(
        candidates,
        size=sum(each.size_bytes for _, each in stored.values()),
        expiry_us=broker.expiry_of(topic),
        max_size=broker.max_size_of(topic),
        now_us=broker.runtime.clock.now_us(),
        hold_us_max=broker.settings.retention_hold_ms_max * 1000,
    )
    for partition_id, offset in offsets.items():
        await broker.trim(topic, stored[partition_id][0], offset)
        log.info("trimmed", topic=topic.uid, partition=partition_id, offset=offset)
    return len(offsets)
