"""One sample of everything for `headrace top`, and what changed between two samples.

A sample is asked of the broker over its own protocol (a call for each stream, one or two for each
topic that has consumer groups) and of the control plane's JSON API, which may be absent. What is
asked for is bounded: beyond TOPICS_MAX topics the lag of groups is not looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.cli.control_api import PipelineRow
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.topics import TopicDetails

TOPICS_MAX = 200
GROUPS_MAX = 100
GROUP_PARTITIONS_MAX = 64


@dataclass(slots=True)
class ServerFigures:
    """What the broker says of itself; rates are None in the first sample."""

    version: str
    host: str
    uptime_seconds: float
    cpu_percent: float
    memory_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    clients: int
    streams: int
    topics: int
    partitions: int
    messages: int
    bytes: int
    written_bytes: int
    messages_per_second: float | None = None
    bytes_per_second: float | None = None
    written_bytes_per_second: float | None = None


@dataclass(slots=True)
class TopicFigures:
    topic: str
    """STREAM/TOPIC"""
    partitions: int
    messages: int
    bytes: int
    messages_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(slots=True)
class GroupLag:
    """How many messages a consumer group has not read yet."""

    group: str
    topic: str
    members: int
    lag: int
    lag_per_second: float | None = None
    """Below 0 while the group catches up."""


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker of the cluster."""

    name: str
    address: str
    role: str
    status: str


@dataclass(slots=True)
class Sample:
    at: float
    """Monotonic seconds."""
    server: ServerFigures
    topics: list[TopicFigures] = field(default_factory=list)
    groups: list[GroupLag] = field(default_factory=list)
    nodes: list[BrokerNode] = field(default_factory=list)
    pipelines: list[PipelineRow] | None = None
    """None while the control plane does not answer."""
    pipelines_error: str = ""

    def to_json(self) -> dict[str, Any]:
        pipelines = self.pipelines
        return {
            "server": asdict(self.server),
            "cluster": [asdict(one) for one in self.nodes],
            "topics": [asdict(one) for one in self.topics],
            "groups": [asdict(one) for one in self.groups],
            "pipelines": None if pipelines is None else [asdict(one) for one in pipelines],
            "pipelines_error": self.pipelines_error or None,
        }


ListPipelines = Callable[[], "list[PipelineRow]"]
"""Asks the control plane, and blocks meanwhile."""


async def take_sample(
    client: IggyClient, list_pipelines: ListPipelines | None, before: Sample | None
) -> Sample:
    """Ask for everything once; rates are since the sample `before`."""
    made = Sample(time.monotonic(), await _server(client))
    made.nodes = await _nodes(client)
    for stream in await client.get_streams():
        for topic in await client.get_topics(stream.id):
            made.topics.append(
                TopicFigures(
                    topic=f"{stream.name}/{topic.name}",
                    partitions=topic.partitions_count,
                    messages=topic.messages_count,
                    bytes=topic.size_bytes,
                )
            )
            if len(made.topics) <= TOPICS_MAX and len(made.groups) < GROUPS_MAX:
                made.groups += await _groups(client, stream.name, topic.name)
    await _ask_pipelines(made, list_pipelines)
    add_rates(made, before)
    return made


async def _server(client: IggyClient) -> ServerFigures:
    stats = await client.get_stats()
    return ServerFigures(
        version=stats.server_version,
        host=stats.hostname,
        uptime_seconds=stats.run_time_us / 1e6,
        cpu_percent=round(stats.cpu_usage, 1),
        memory_bytes=stats.memory_usage,
        disk_free_bytes=stats.free_disk_space,
        disk_total_bytes=stats.total_disk_space,
        clients=stats.clients_count,
        streams=stats.streams_count,
        topics=stats.topics_count,
        partitions=stats.partitions_count,
        messages=stats.messages_count,
        bytes=stats.messages_size_bytes,
        written_bytes=stats.written_bytes,
    )


async def _nodes(client: IggyClient) -> list[BrokerNode]:
    from headrace.errors import HeadraceError

    try:
        metadata = await client.get_cluster_metadata()
    except HeadraceError:
        return []  # a server that knows no clusters
    return [
        BrokerNode(
            name=node.name,
            address=f"{node.ip}:{node.tcp_port}",
            role=node.role.name.lower(),
            status=node.status.name.lower(),
        )
        for node in metadata.nodes
    ]


async def _groups(client: IggyClient, stream: str, topic: str) -> list[GroupLag]:
    found = await client.get_groups(stream, topic)
    details = await client.get_topic(stream, topic) if found else None
    if details is None:
        return []
    return [
        GroupLag(
            group=group.name,
            topic=f"{stream}/{topic}",
            members=group.members_count,
            lag=await _lag(client, stream, topic, group.name, details),
        )
        for group in found
    ]


async def _lag(
    client: IggyClient, stream: str, topic: str, group: str, details: TopicDetails
) -> int:
    from headrace.wire.iggy.primitives import Consumer

    lag = 0
    for partition in details.partitions[:GROUP_PARTITIONS_MAX]:
        if not partition.messages_count:
            continue
        stored = await client.get_consumer_offset(
            Consumer.group(group), stream, topic, partition.id
        )
        lag += partition.lag(None if stored is None else stored.stored_offset)
    return lag


async def _ask_pipelines(made: Sample, list_pipelines: ListPipelines | None) -> None:
    from headrace.errors import HeadraceError

    if list_pipelines is None:
        return
    try:
        made.pipelines = await asyncio.to_thread(list_pipelines)
    except HeadraceError as error:
        made.pipelines_error = str(error)


def add_rates(made: Sample, before: Sample | None) -> None:
    """Fill in the rates per second since the sample before; the first sample has none."""
    if before is None or not (seconds := made.at - before.at):
        return
    server, old_server = made.server, before.server
    server.messages_per_second = _rate(server.messages - old_server.messages, seconds)
    server.bytes_per_second = _rate(server.bytes - old_server.bytes, seconds)
    written = server.written_bytes - old_server.written_bytes
    server.written_bytes_per_second = _rate(written, seconds)
    topics = {one.topic: one for one in before.topics}
    for topic in made.topics:
        if (old_topic := topics.get(topic.topic)) is not None:
            topic.messages_per_second = _rate(topic.messages - old_topic.messages, seconds)
            topic.bytes_per_second = _rate(topic.bytes - old_topic.bytes, seconds)
    groups = {(one.group, one.topic): one for one in before.groups}
    for group in made.groups:
        if (old_group := groups.get((group.group, group.topic))) is not None:
            group.lag_per_second = round((group.lag - old_group.lag) / seconds, 1)


def _rate(change: int, seconds: float) -> float:
    """Never below 0: retention takes messages away, which is nobody's rate."""
    return round(max(0.0, change / seconds), 1)
