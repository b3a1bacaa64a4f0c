"""One look at everything for `headrace top`, and what changed between two looks.

Asked of the broker over its own protocol (a call for each stream, one or two for each topic that
has consumer groups) and of the control plane's JSON API, which may be absent. What is asked for is
bounded: beyond TOPICS_MAX topics the lag of groups is not looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.topics import TopicDetails

TOPICS_MAX = 200
GROUPS_MAX = 100
GROUP_PARTITIONS_MAX = 64


@dataclass(slots=True)
class Look:
    at: float
    """Monotonic seconds."""
    server: dict[str, Any] = field(default_factory=dict)
    topics: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pipelines: list[dict[str, Any]] | None = None
    """None while the control plane does not answer."""
    pipelines_error: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "cluster": self.nodes,
            "topics": self.topics,
            "groups": self.groups,
            "pipelines": self.pipelines,
            "pipelines_error": self.pipelines_error or None,
        }


Pipelines = Callable[[], list[dict[str, Any]]]
"""Blocks; what the control plane lists."""


async def look(client: IggyClient, pipelines: Pipelines | None, before: Look | None) -> Look:
    made = Look(time.monotonic())
    made.server = await _server(client)
    made.nodes = await _nodes(client)
    for stream in await client.get_streams():
        for topic in await client.get_topics(stream.id):
            made.topics.append(
                {
                    "topic": f"{stream.name}/{topic.name}",
                    "partitions": topic.partitions_count,
                    "messages": topic.messages_count,
                    "bytes": topic.size_bytes,
                }
            )
            if len(made.topics) <= TOPICS_MAX and len(made.groups) < GROUPS_MAX:
                made.groups += await _groups(client, stream.name, topic.name)
    await _ask_pipelines(made, pipelines)
    add_rates(made, before)
    return made


async def _server(client: IggyClient) -> dict[str, Any]:
    stats = await client.get_stats()
    return {
        "version": stats.server_version,
        "host": stats.hostname,
        "uptime_seconds": stats.run_time_us / 1e6,
        "cpu_percent": round(stats.cpu_usage, 1),
        "memory_bytes": stats.memory_usage,
        "disk_free_bytes": stats.free_disk_space,
        "disk_total_bytes": stats.total_disk_space,
        "clients": stats.clients_count,
        "streams": stats.streams_count,
        "topics": stats.topics_count,
        "partitions": stats.partitions_count,
        "messages": stats.messages_count,
        "bytes": stats.messages_size_bytes,
        "written_bytes": stats.written_bytes,
    }


async def _nodes(client: IggyClient) -> list[dict[str, Any]]:
    from headrace.errors import HeadraceError

    try:
        metadata = await client.get_cluster_metadata()
    except HeadraceError:
        return []  # a server that knows no clusters
    return [
        {
            "name": node.name,
            "address": f"{node.ip}:{node.tcp_port}",
            "role": node.role.name.lower(),
            "status": node.status.name.lower(),
        }
        for node in metadata.nodes
    ]


async def _groups(client: IggyClient, stream: str, topic: str) -> list[dict[str, Any]]:
    found = await client.get_groups(stream, topic)
    details = await client.get_topic(stream, topic) if found else None
    if details is None:
        return []
    return [
        {
            "group": group.name,
            "topic": f"{stream}/{topic}",
            "members": group.members_count,
            "lag": await _lag(client, stream, topic, group.name, details),
        }
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


async def _ask_pipelines(made: Look, pipelines: Pipelines | None) -> None:
    from headrace.errors import HeadraceError

    if pipelines is None:
        return
    try:
        listed = await asyncio.to_thread(pipelines)
    except HeadraceError as error:
        made.pipelines_error = str(error)
        return
    kept = ("name", "state", "rows", "rows_per_second", "lag", "window", "committed_window",
            "rows_late", "rows_bad", "restarts", "last_error")  # fmt: skip
    made.pipelines = [{key: one.get(key) for key in kept} for one in listed]


def add_rates(made: Look, before: Look | None) -> None:
    """Per second since the look before; None at the first."""
    seconds = 0.0 if before is None else made.at - before.at
    topics = _by(before.topics if before else [], "topic")
    groups = _by(before.groups if before else [], "group", "topic")
    for row in made.topics:
        old = topics.get((row["topic"],))
        row["messages_per_second"] = _rate(row, old, "messages", seconds)
        row["bytes_per_second"] = _rate(row, old, "bytes", seconds)
    for row in made.groups:
        old = groups.get((row["group"], row["topic"]))
        change = None if old is None or not seconds else (row["lag"] - old["lag"]) / seconds
        row["lag_per_second"] = None if change is None else round(change, 1)
    old = before.server if before else None
    for key in ("messages", "bytes", "written_bytes"):
        made.server[f"{key}_per_second"] = _rate(made.server, old, key, seconds)


def _by(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[key] for key in keys): row for row in rows}


def _rate(
    now: Mapping[str, Any], before: Mapping[str, Any] | None, key: str, seconds: float
) -> float | None:
    """Never below 0: retention takes messages away, which is nobody's rate."""
    if before is None or not seconds:
        return None
    change: float = now[key] - before[key]
    return round(max(0.0, change / seconds), 1)
