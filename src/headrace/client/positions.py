"""What partitions hold, and the offset that a point of a partition means.

The client, the command line and Spark's source parse their own forms of where reading begins or
ends; all of them end in `resolve_point`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from headrace.wire.iggy.messages.extensions import Ticket
    from headrace.wire.iggy.messages.topics import TopicDetails

Key: TypeAlias = tuple[str, int]
"""A topic's uid and a partition."""
ReadFrom = Literal["auto", "data-nodes", "broker"]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the broker says about a partition now: offsets [start, end) can be read."""

    partition: int
    generation: int
    start: int
    end: int
    bytes: int = 0  # of the messages it holds, for limits by size; 0 when nobody asked


@dataclass(frozen=True, slots=True)
class TopicState:
    uid: str
    stream: str
    topic: str
    partitions: tuple[PartitionState, ...]

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"


@dataclass(frozen=True, slots=True)
class SourceState:
    """All topics that somebody reads, as they are now."""

    cluster: str
    """A uid means nothing without it. "" for a plain Iggy server."""
    topics: tuple[TopicState, ...]

    def partitions(self) -> Iterator[tuple[Key, TopicState, PartitionState]]:
        for topic in self.topics:
            for each in topic.partitions:
                yield (topic.uid, each.partition), topic, each


def ticket_state(ticket: Ticket, mean_bytes: Mapping[str, float]) -> SourceState:
    """What a ticket says of its topics; `mean_bytes` is of a message, by topic."""
    return SourceState(
        ticket.cluster,
        tuple(
            TopicState(
                str(topic.uid),
                topic.stream,
                topic.topic,
                tuple(
                    PartitionState(
                        each.partition,
                        each.generation,
                        each.start,
                        each.next,
                        int(mean_bytes.get(topic.topic, 0) * (each.next - each.start)),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in ticket.topics
        ),
    )


def plain_topic(stream: str, details: TopicDetails) -> TopicState:
    """A plain Iggy server has no uids: the name with the time of creation stands for one."""
    partitions = tuple(
        PartitionState(each.id, 0, each.start_offset, each.next_offset, each.size_bytes)
        for each in details.partitions
    )
    topic = details.topic
    uid = f"{topic.name}@{topic.created_at_us}"
    return TopicState(uid, stream, topic.name, partitions)


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message of a partition that is not older."""

    timestamp_us: int


Point: TypeAlias = Literal["earliest", "latest"] | int | AtTime
"""A point of a partition: its begin or end, an offset, or a time."""


def timestamp_us(moment: datetime) -> int:
    """Microseconds since 1970; a moment without a time zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000_000)


def resolve_point(point: Point, start: int, end: int, at_time: int | None = None) -> int:
    """The offset of a point in a partition that holds offsets [start, end).

    `at_time` is the first message that is not older than the point's time, None where there is
    none. An offset comes back as it is, also where the partition does not hold it.
    """
    if point == "earliest":
        return start
    if point == "latest":
        return end
    if isinstance(point, int):
        return point
    return end if at_time is None else min(max(at_time, start), end)
