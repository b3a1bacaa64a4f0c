"""What waits for an application: what its topics hold and its queries have not committed.

A backlog is worked out from the log's ends and the positions that queries stored
(`query_positions`), so it says the same whether containers run, crash or are stopped. `readings`
asks the broker for both; `Backlog` is pure and folds the samples that the shell brings. How long
rows wait is known as far back as samples go: what was there at the first one waits at least since
then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from headrace.client.iggy import IggyClient
from headrace.pipeline.container.query_positions import LETTERS, operator_of
from headrace.pipeline.controller.views import ApplicationSummary, ApplicationView, OperatorView
from headrace.pipeline.plan.logical import READ_TOPIC
from headrace.pipeline.plan.physical import PhysicalOperator, PhysicalPlan
from headrace.spark.source.positions import parse_topics
from headrace.wire.iggy.messages.topics import PartitionInfo
from headrace.wire.iggy.primitives import Consumer

GROWTHS_MAX = 512  # remembered of a partition; beyond, every other one is forgotten


@dataclass(frozen=True, slots=True)
class Reading:
    """Queries of one operator on one partition: they have read what is below `next`."""

    begin: int
    end: int
    next: int | None  # None: nobody stored a position

    def waiting(self, *, from_begin: bool) -> int:
        """`from_begin`: a query without a position starts with the first message."""
        if self.next is None:
            return self.end - self.begin if from_begin else 0
        return max(0, self.end - max(self.next, self.begin))


Sample = Mapping[str, Mapping[str, Mapping[str, Reading]]]
"""By topic port, by operator that a query ends in, by `topic/partition`."""


_View = TypeVar("_View", ApplicationSummary, ApplicationView)


@dataclass(slots=True)
class _Partition:
    growths: deque[tuple[int, int]] = field(default_factory=deque)  # (time, end), oldest first

    def on_end(self, end: int, now_ms: int) -> None:
        if self.growths and end < self.growths[-1][1]:
            self.growths.clear()  # purged: it starts anew
        if not self.growths or end > self.growths[-1][1]:
            self.growths.append((now_ms, end))
        if len(self.growths) > GROWTHS_MAX:
            self.growths = deque(list(self.growths)[::2])

    def since_ms(self, next_: int) -> int | None:
        """Since when a message at this offset is known to be there."""
        return next((at_ms for at_ms, end in self.growths if end > next_), None)

    def forget_below(self, next_: int) -> None:
        while len(self.growths) > 1 and self.growths[0][1] <= next_:
            self.growths.popleft()


@dataclass(slots=True)
class _Reader:
    """What is known of one operator's queries."""

    rows: int = 0
    oldest_ms: int | None = None  # since when the oldest row waits
    read: int = -1
    moved_ms: int = 0  # when its position last changed


class Backlog:
    """One application's."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, str], _Partition] = {}
        self._readers: dict[str, _Reader] = {}
        self._topics: dict[str, int] = {}  # rows that wait for the slowest, by port
        self.known = False

    def on_sample(self, sample: Sample, starts: Mapping[str, bool], now_ms: int) -> None:
        """`starts`: whether queries begin with the first message of a topic, by port."""
        ends = _ends(sample)
        for key, end in ends.items():
            self._partitions.setdefault(key, _Partition()).on_end(end, now_ms)
        self._partitions = {key: one for key, one in self._partitions.items() if key in ends}
        before, self._readers = self._readers, {}
        self._topics = {}
        for port, operators in sample.items():
            slowest: dict[str, int] = {}
            for operator, partitions in operators.items():
                reader = self._readers.setdefault(operator, _Reader())
                self._fold(reader, port, partitions, starts.get(port, True), slowest)
            self._topics[port] = sum(slowest.values())
            for number, rows in slowest.items():
                self._partitions[port, number].forget_below(ends[port, number] - rows)
        for operator, reader in self._readers.items():
            known = before.get(operator)
            still = known is not None and known.rows and known.read == reader.read
            reader.moved_ms = known.moved_ms if known is not None and still else now_ms
        self.known = True

    def _fold(
        self,
        reader: _Reader,
        port: str,
        partitions: Mapping[str, Reading],
        from_begin: bool,
        slowest: dict[str, int],
    ) -> None:
        for number, one in partitions.items():
            rows = one.waiting(from_begin=from_begin)
            reader.rows += rows
            reader.read += one.next or 0
            slowest[number] = max(slowest.get(number, 0), rows)
            since = self._partitions[port, number].since_ms(one.end - rows)
            if rows and since is not None:
                oldest = reader.oldest_ms
                reader.oldest_ms = since if oldest is None else min(oldest, since)

    @property
    def rows(self) -> int:
        return sum(self._topics.values())

    def summarize(self, view: _View, now_ms: int) -> _View:
        """The view of an application with what waits for it; what its containers told last stays
        where nothing was measured."""
        if not self.known:
            return view
        return msgspec.structs.replace(
            view, lag=self.rows, lag_seconds=_age(self._readers.values(), now_ms)
        )

    def annotate(self, view: ApplicationView, now_ms: int) -> ApplicationView:
        """The same with its operators."""
        operators = [self.annotate_operator(one, now_ms) for one in view.operators]
        return msgspec.structs.replace(self.summarize(view, now_ms), operators=operators)

    def annotate_operator(self, view: OperatorView, now_ms: int) -> OperatorView:
        """Of a topic's operator: what waits for the slowest that reads it; of one that queries end
        in: what waits for those."""
        if view.name in self._topics:
            return msgspec.structs.replace(view, lag=self._topics[view.name])
        reader = self._readers.get(view.name)
        if reader is None:
            return view
        return msgspec.structs.replace(
            view,
            lag=reader.rows,
            lag_seconds=_age([reader], now_ms),
            still_ms=now_ms - reader.moved_ms if reader.rows else 0,
        )


def _ends(sample: Sample) -> dict[tuple[str, str], int]:
    return {
        (port, number): one.end
        for port, operators in sample.items()
        for partitions in operators.values()
        for number, one in partitions.items()
    }


def _age(readers: Iterable[_Reader], now_ms: int) -> float:
    waiting = [one.oldest_ms for one in readers if one.oldest_ms is not None]
    return max(0, now_ms - min(waiting)) / 1000 if waiting else 0.0


def topics_read(plan: PhysicalPlan) -> dict[str, tuple[PhysicalOperator, set[str]]]:
    """The topics that an application reads, by port, with the operators in whose queries they
    are read. Those of a backfill, which store no positions, are left out."""
    found: dict[str, tuple[PhysicalOperator, set[str]]] = {}
    for operator in plan.operators:
        if operator.query:
            for source in _sources(plan, operator):
                found.setdefault(source.logical.name, (source, set()))[1].add(operator.logical.name)
    return found


def _sources(plan: PhysicalPlan, operator: PhysicalOperator) -> list[PhysicalOperator]:
    """The topics fused in an operator's queries."""
    logical = operator.logical
    if logical.function == READ_TOPIC:
        return [] if "ending" in logical.properties else [operator]
    return [
        source
        for connection in operator.inputs
        if connection.local
        for source in _sources(plan, plan.by_id[connection.source])
    ]


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
    positions = []
    for group in groups:
        stored = await client.get_consumer_offset(
            Consumer.group(group), stream, topic, partition.id
        )
        positions.append(0 if stored is None else stored.stored_offset + 1)
    next_ = min(positions, default=None)
    return Reading(partition.start_offset, partition.next_offset, next_)
