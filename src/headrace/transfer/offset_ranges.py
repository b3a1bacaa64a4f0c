"""Which messages of a topic somebody means: offsets or times, turned into offsets once.

A range of offsets is fixed before anything is read: what is appended meanwhile does not belong to
it, and two runs over the same range read the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.iggy import IggyClient
from headrace.client.topic_reader import AtTime, Point, resolve_point
from headrace.errors import NotFoundError
from headrace.transfer.delivery import describe_topic
from headrace.wire.iggy.errors import IggyError, Status
from headrace.wire.iggy.primitives import Strategy


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int
    generation: int = 0

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic that is read, and the life of it that is meant: made again, it is another one."""

    stream: str
    topic: str
    identity: str
    partitions: tuple[OffsetRange, ...]
    """All that is there now."""


async def describe_source(client: IggyClient, stream: str, topic: str) -> SourceTopic:
    """Of a Headrace server or a plain Iggy server. NotFoundError if there is no such topic."""
    try:
        found = await describe_topic(client, stream, topic)
    except IggyError as error:
        if error.code != Status.INVALID_COMMAND:
            raise
        return await _describe_plain(client, stream, topic)
    if found is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    hello = await client.hello()
    return SourceTopic(
        stream,
        topic,
        f"{'' if hello is None else hello.cluster}/{found.uid}",
        tuple(OffsetRange(p.partition, p.start, p.next, p.generation) for p in found.partitions),
    )


async def _describe_plain(client: IggyClient, stream: str, topic: str) -> SourceTopic:
    details = await client.get_topic(stream, topic)
    if details is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    spans = []
    for each in details.partitions:
        first = await client.first_offset(stream, topic, each.id, Strategy.first())
        end = each.next_offset
        spans.append(OffsetRange(each.id, end if first is None else first, end))
    identity = f"{stream}/{topic}/{details.topic.created_at_us}"
    return SourceTopic(stream, topic, identity, tuple(spans))


async def resolve_offset_ranges(
    client: IggyClient,
    source: SourceTopic,
    *,
    start: Point = "earliest",
    end: Point = "latest",
    partition: int | None = None,
) -> list[OffsetRange]:
    """What lies between two points, partition by partition; spans without messages are left out."""
    chosen = [each for each in source.partitions if partition in (None, each.partition)]
    if not chosen:
        raise NotFoundError(f"{source.stream}/{source.topic} has no partition {partition}")
    spans = []
    for whole in chosen:
        first = await _resolve(client, source, whole, start)
        last = await _resolve(client, source, whole, end)
        if first < last:
            spans.append(OffsetRange(whole.partition, first, last, whole.generation))
    return spans


async def _resolve(
    client: IggyClient, source: SourceTopic, whole: OffsetRange, point: Point
) -> int:
    at_time = None
    if isinstance(point, AtTime):
        strategy = Strategy.timestamp(point.timestamp_us)
        at_time = await client.first_offset(source.stream, source.topic, whole.partition, strategy)
    at = resolve_point(point, whole.start, whole.end, at_time)
    return min(max(at, whole.start), whole.end)
