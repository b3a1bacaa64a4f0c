"""Consumer groups and how far they are behind, sampled as the service.

A sample asks for a bounded number of things and goes on from there the next time, so many topics
make it slower and never heavier. Lag is the newest offset less the stored one; of a partition of
which a group stored nothing it is all that is retained.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError
from headrace.runtime import Runtime
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue, may
from headrace.web.server.logins import Broker, Login
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.consumers import Group
from headrace.wire.iggy.messages.topics import PartitionInfo
from headrace.wire.iggy.primitives import Consumer

TOPICS_A_SAMPLE = 200
PARTITIONS_A_SAMPLE = 256
GROUPS_MAX = 2_000
HISTORY_SAMPLES = 360

Key = tuple[int, int, int]
"""Ids of stream, topic and group."""


@dataclass(slots=True)
class GroupState:
    stream: str
    topic: str
    group: Group
    lag: int | None = None
    lag_per_second: float = 0.0
    at: float = 0.0
    history: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=HISTORY_SAMPLES)
    )

    def on_lag(self, lag: int, now: float, now_ms: int) -> None:
        if self.lag is not None and now > self.at:
            self.lag_per_second = (lag - self.lag) / (now - self.at)
        self.lag, self.at = lag, now
        self.history.append((float(now_ms), float(lag)))

    def row(self) -> t.GroupRow:
        return t.GroupRow(
            stream=self.stream,
            topic=self.topic,
            id=self.group.id,
            name=self.group.name,
            members=self.group.members_count,
            partitions=self.group.partitions_count,
            lag=self.lag,
            lag_per_second=round(self.lag_per_second, 2),
        )


class GroupWatch:
    def __init__(self, runtime: Runtime, broker: Broker, catalogue: Catalogue) -> None:
        self._clock = runtime.clock
        self._broker = broker
        self._catalogue = catalogue
        self._topics_left: deque[tuple[int, int]] = deque()
        self._groups_left: deque[Key] = deque()
        self.groups: dict[Key, GroupState] = {}

    async def sample(self) -> None:
        stats = self._catalogue.stats
        if stats is None or (not stats.consumer_groups_count and not self.groups):
            return
        async with self._broker.as_service() as client:
            await self._discover(client)
            await self._measure(client)

    async def _discover(self, client: IggyClient) -> None:
        if not self._topics_left:
            self._topics_left.extend(self._catalogue.topics)
            gone = [key for key in self.groups if key[:2] not in self._catalogue.topics]
            for key in gone:
                del self.groups[key]
        for _ in range(min(TOPICS_A_SAMPLE, len(self._topics_left))):
            await self.look_at(client, *self._topics_left.popleft())

    async def look_at(self, client: IggyClient, stream_id: int, topic_id: int) -> None:
        """Learn the groups of one topic."""
        state = self._catalogue.topics.get((stream_id, topic_id))
        if state is None:
            return
        try:
            found = await client.get_groups(stream_id, topic_id)
        except NotFoundError:
            found = ()
        kept = set()
        for group in found:
            key = (stream_id, topic_id, group.id)
            kept.add(key)
            known = self.groups.get(key)
            if known is not None and known.group.name == group.name:
                known.group = group
            elif len(self.groups) < GROUPS_MAX:
                self.groups[key] = GroupState(state.stream.name, state.topic.name, group)
        for key in [key for key in self.groups if key[:2] == (stream_id, topic_id)]:
            if key not in kept:
                del self.groups[key]

    async def _measure(self, client: IggyClient) -> None:
        if not self._groups_left:
            self._groups_left.extend(self.groups)
        asked = 0
        while self._groups_left and asked < PARTITIONS_A_SAMPLE:
            key = self._groups_left.popleft()
            state = self.groups.get(key)
            if state is None:
                continue
            details = await client.get_topic(*key[:2])
            if details is None:
                continue
            asked += len(details.partitions) + 1
            parts = await lags(client, *key, details.partitions)
            now, now_ms = self._clock.monotonic(), self._clock.now_ms()
            state.on_lag(sum(one.lag for one in parts), now, now_ms)

    def rows(self, login: Login) -> list[t.GroupRow]:
        return [
            state.row()
            for key, state in self.groups.items()
            if may(login.permissions, Permission.READ_TOPIC, *key[:2])
        ]

    def find(self, stream: str, topic: str, group: str) -> GroupState | None:
        return next(
            (
                one
                for one in self.groups.values()
                if (one.stream, one.topic, one.group.name) == (stream, topic, group)
            ),
            None,
        )


async def lags(
    client: IggyClient,
    stream: int | str,
    topic: int | str,
    group: int | str,
    partitions: tuple[PartitionInfo, ...],
) -> list[t.GroupPartition]:
    found = []
    for one in partitions:
        stored = await client.get_consumer_offset(Consumer.group(group), stream, topic, one.id)
        offset = None if stored is None else stored.stored_offset
        newest = one.current_offset if stored is None else stored.current_offset
        found.append(
            t.GroupPartition(
                partition=one.id,
                member=None,
                stored_offset=offset,
                current_offset=newest,
                lag=one.lag(offset),
            )
        )
    return found
