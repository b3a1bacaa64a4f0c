"""The positions that queries stored, as the controller asks the broker for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headrace.client.iggy import IggyClient
from headrace.pipeline.container.query_positions import LETTERS, operator_of
from headrace.pipeline.controller.backlog import Reading
from headrace.spark.source.positions import parse_topics
from headrace.wire.iggy.messages.topics import PartitionInfo
from headrace.wire.iggy.primitives import Consumer


async def readings(
    client: IggyClient, application: str, topic: str, operators: Collection[str]
) -> dict[str, dict[str, Reading]]:
    """How far these operators' queries have read a topic (or several, as the connector names them),
    by `topic/partition`: of several queries the slowest. Those of dead letters, which run now and
    then, do not count. Empty for a topic that is gone."""
    found: dict[str, dict[str, Reading]] = {operator: {} for operator in sorted(operators)}
    for stream, name in await _topics(client, topic):
        details = await client.get_topic(stream, name)
        if details is None:
            continue
        groups = await _groups(client, application, stream, name, operators)
        for operator, partitions in found.items():
            mine = [one for one, owner in groups.items() if owner == operator]
            counted = [one for one in mine if not one.endswith(LETTERS)]
            for one in details.partitions:
                reading = await _reading(client, stream, name, counted, one)
                partitions[f"{name}/{one.id}"] = reading
    return found


async def _topics(client: IggyClient, topic: str) -> list[tuple[str, str]]:
    stream, topics = parse_topics("", topic)
    names: Iterable[str] = topics.names
    if topics.pattern:
        names = topics.matching(one.name for one in await client.get_topics(stream))
    return [(stream, name) for name in names]


async def remove_positions(
    client: IggyClient, application: str, topic: str, operators: Collection[str]
) -> None:
    for stream, name in await _topics(client, topic):
        if await client.get_topic(stream, name) is not None:
            for group in await _groups(client, application, stream, name, operators):
                await client.delete_group(stream, name, group)


async def _groups(
    client: IggyClient, application: str, stream: str, topic: str, operators: Collection[str]
) -> dict[str, str]:
    """Groups of these operators' queries, with the operator."""
    names = [one.name for one in await client.get_groups(stream, topic)]
    owners = {name: operator_of(name, application, operators) for name in names}
    return {name: owner for name, owner in owners.items() if owner is not None}


async def _reading(
    client: IggyClient, stream: str, topic: str, groups: Iterable[str], partition: PartitionInfo
) -> Reading:
    # The last offset is 0 for an empty partition, too.
    empty = not partition.messages_count and not partition.current_offset
    end = 0 if empty else partition.current_offset + 1
    positions = []
    for group in groups:
        stored = await client.get_consumer_offset(
            Consumer.group(group), stream, topic, partition.id
        )
        positions.append(0 if stored is None else stored.stored_offset + 1)
    next_ = min(positions, default=None)
    return Reading(end - partition.messages_count, end, next_)
