"""What the dashboard knows of the broker: sampled as the service, shown as far as a user may see.

One refresh asks for the statistics, the streams and the topics of those that changed; between two
requests the event loop is free. Rates are differences of two refreshes. Histories are rings.

`may` applies the broker's own rules to rights off the wire. It decides only what is shown: what is
done is asked of the broker, which decides for itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from headrace.broker.catalogue import resources
from headrace.broker.sessions.authorization import allowed
from headrace.client.iggy import IggyClient
from headrace.runtime import Runtime
from headrace.web.broker_api import types as t
from headrace.web.server.logins import Broker, Login
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.system import Stats
from headrace.wire.iggy.messages.topics import UNLIMITED, Stream, Topic
from headrace.wire.iggy.messages.users import Permissions

HISTORY_SAMPLES = 360
TOPIC_HISTORY_SAMPLES = 120
TOPIC_HISTORIES_MAX = 2_000
_WHOLE_EVERY = 10  # refreshes after which streams are read that seem unchanged

History = deque[tuple[float, float, float]]


@dataclass(slots=True)
class TopicState:
    stream: Stream
    topic: Topic
    at: float
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0
    durability: str | None = None
    history: History = field(default_factory=lambda: deque(maxlen=TOPIC_HISTORY_SAMPLES))

    def on_sample(self, stream: Stream, topic: Topic, at: float) -> None:
        seconds = at - self.at
        if seconds > 0:
            # Retention takes messages away: a fall is no negative rate.
            added = topic.messages_count - self.topic.messages_count
            grown = topic.size_bytes - self.topic.size_bytes
            self.messages_per_second = max(0.0, added / seconds)
            self.bytes_per_second = max(0.0, grown / seconds)
        self.stream, self.topic, self.at = stream, topic, at

    def row(self) -> t.TopicRow:
        topic = self.topic
        return t.TopicRow(
            stream_id=self.stream.id,
            stream=self.stream.name,
            id=topic.id,
            name=topic.name,
            created_ms=topic.created_at_us // 1000,
            partitions=topic.partitions_count,
            messages=topic.messages_count,
            bytes=topic.size_bytes,
            messages_per_second=round(self.messages_per_second, 2),
            bytes_per_second=round(self.bytes_per_second, 1),
            expiry_ms=_limit(topic.message_expiry_us, 1000),
            max_bytes=_limit(topic.max_size_bytes, 1),
            replicas=topic.replication_factor,
            durability=self.durability,
        )


class Catalogue:
    def __init__(self, runtime: Runtime, broker: Broker) -> None:
        self._clock = runtime.clock
        self._broker = broker
        self._refreshes = 0
        self.stats: Stats | None = None
        self.sampled_ms = 0
        self.streams: dict[int, Stream] = {}
        self.topics: dict[tuple[int, int], TopicState] = {}
        """By the ids of stream and topic."""
        self._named: dict[tuple[str, str], TopicState] = {}
        self.history: History = deque(maxlen=HISTORY_SAMPLES)

    async def refresh(self) -> None:
        whole = self._refreshes % _WHOLE_EVERY == 0
        self._refreshes += 1
        async with self._broker.as_service() as client:
            self.stats = await client.get_stats()
            found = {one.id: one for one in await client.get_streams()}
            for one in found.values():
                if whole or one != self.streams.get(one.id) or self._moves(one.id):
                    await self._read_topics(client, one)
        for key in [key for key in self.topics if key[0] not in found]:
            del self.topics[key]
        self.streams = found
        self._named = {(one.stream.name, one.topic.name): one for one in self.topics.values()}
        self.sampled_ms = self._clock.now_ms()
        messages, size = self.rates()
        self.history.append((float(self.sampled_ms), round(messages, 2), round(size, 1)))

    async def look_again(self) -> None:
        """Something was created or deleted: read every stream, now."""
        self._refreshes = 0
        await self.refresh()

    def _moves(self, stream_id: int) -> bool:
        """Whether a rate is still to be set to zero."""
        return any(
            one.messages_per_second or one.bytes_per_second
            for (stream, _), one in self.topics.items()
            if stream == stream_id
        )

    async def _read_topics(self, client: IggyClient, stream: Stream) -> None:
        rows = await client.get_topics(stream.id)
        now, now_ms = self._clock.monotonic(), float(self._clock.now_ms())
        kept = set()
        for row in rows:
            key = (stream.id, row.id)
            kept.add(key)
            state = self.topics.get(key)
            if state is None or state.topic.created_at_us != row.created_at_us:
                state = self.topics[key] = TopicState(stream, row, now)
            else:
                state.on_sample(stream, row, now)
            if len(self.topics) <= TOPIC_HISTORIES_MAX or state.history:
                state.history.append(
                    (now_ms, round(state.messages_per_second, 2), round(state.bytes_per_second, 1))
                )
        for key in [key for key in self.topics if key[0] == stream.id and key not in kept]:
            del self.topics[key]

    def rates(self) -> tuple[float, float]:
        """Messages and bytes a second, all topics together."""
        messages = size = 0.0
        for one in self.topics.values():
            messages += one.messages_per_second
            size += one.bytes_per_second
        return messages, size

    def topic_rows(self, login: Login) -> list[t.TopicRow]:
        return [
            state.row()
            for (stream_id, topic_id), state in self.topics.items()
            if may(login.permissions, Permission.READ_TOPIC, stream_id, topic_id)
        ]

    def stream_rows(self, login: Login) -> list[t.StreamRow]:
        rates: dict[int, list[float]] = {}
        for (stream_id, _), state in self.topics.items():
            sums = rates.setdefault(stream_id, [0.0, 0.0])
            sums[0] += state.messages_per_second
            sums[1] += state.bytes_per_second
        return [
            t.StreamRow(
                id=one.id,
                name=one.name,
                created_ms=one.created_at_us // 1000,
                topics=one.topics_count,
                messages=one.messages_count,
                bytes=one.size_bytes,
                messages_per_second=round(rates.get(one.id, (0.0, 0.0))[0], 2),
                bytes_per_second=round(rates.get(one.id, (0.0, 0.0))[1], 1),
            )
            for one in self.streams.values()
            if may(login.permissions, Permission.GET_STREAM, one.id)
        ]

    def find(self, stream: str, topic: str) -> TopicState | None:
        return self._named.get((stream, topic))


def _limit(value: int, unit: int) -> int | None:
    return None if value in (0, UNLIMITED) else value // unit


def may(
    permissions: Permissions | None, action: Permission, stream_id: int = -1, topic_id: int = -1
) -> bool:
    """Numbers stand where the broker has uids: both name a resource that is there now."""
    if permissions is None:
        return False
    return allowed(
        _broker_permissions(permissions), action, stream_uid=stream_id, topic_uid=topic_id
    )


@lru_cache(256)
def _broker_permissions(given: Permissions) -> resources.Permissions:
    return resources.Permissions(
        rights=_bits(given.everywhere),
        streams={
            stream.stream_id: resources.StreamGrant(
                rights=_bits(stream),
                topics={topic.topic_id: _bits(topic) for topic in stream.topics},
            )
            for stream in given.streams
        },
    )


def _bits(block: Any) -> int:
    """Bit i is flag i of the block, as the broker numbers them."""
    flags = [getattr(block, one.name) for one in fields(block)]
    return sum(value << i for i, value in enumerate(f for f in flags if isinstance(f, bool)))
