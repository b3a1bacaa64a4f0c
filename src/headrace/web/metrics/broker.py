"""What a broker tells: requests, messages, topics, the lag of consumer groups.

Topics and groups beyond a limit are added up as `other`; the oldest have samples of their own. With
more than PARTITIONS_ASKED_MAX partitions only those in use are told of: a scrape must not cost as
much as a listing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from headrace.broker.catalogue.resources import Group, Topic
from headrace.broker.core import Broker
from headrace.broker.partitions.offsets import Kind, Place, Reader
from headrace.broker.partitions.open_partitions import place_of
from headrace.broker.partitions.stored_sizes import PartitionFigures
from headrace.broker.service import BrokerService
from headrace.broker.shards.service import WorkerService
from headrace.broker.traffic import Traffic, command_name, dialect_counts
from headrace.errors import HeadraceError, UnavailableError
from headrace.observability.exposition import Family, Number, bounded, family, single
from headrace.web.metrics.process import Check

PARTITIONS_ASKED_MAX = 5_000


class BrokerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What `BrokerService.statistics` tells, as far as metrics are made of it.

    A broker that stands by counts nothing; a transport that it does not serve has no figures.
    """

    epoch: int
    coordinates: bool = False
    shards: int = 0
    requests_passed_on: int = 0
    requests_taken_in: int = 0
    relayed_connections: int = 0
    streams: int = 0
    topics: int = 0
    users: int = 0
    groups: int = 0
    partitions_open: int = 0
    doomed_streams: int = 0
    publishers: int = 0
    publishers_expired: int = 0
    staged_messages: int = 0
    staged_bytes: int = 0
    staged_oldest_ms: int = 0
    sent_messages: int = 0
    sent_bytes: int = 0
    polled_messages: int = 0
    polled_bytes: int = 0
    repeated_requests: int = 0
    polls_held: int = 0
    polls_woken: int = 0
    polls_waiting: int = 0
    connections: int | None = None
    connections_refused: int | None = None
    connections_cut_off: int | None = None
    frames_malformed: int | None = None
    held_bytes: int | None = None
    quic_connections: int | None = None
    quic_connections_refused: int | None = None
    quic_cut_off: int | None = None
    quic_frames_malformed: int | None = None
    quic_held_bytes: int | None = None

    def singles(self) -> dict[str, Number]:
        """The figures of a broker that leads, by the name of the metric."""
        return {
            "broker_coordinating": int(self.coordinates),
            "broker_shards_led": self.shards,
            "broker_requests_passed_on_total": self.requests_passed_on,
            "broker_requests_taken_in_total": self.requests_taken_in,
            "broker_streams": self.streams,
            "broker_topics": self.topics,
            "broker_users": self.users,
            "broker_groups": self.groups,
            "broker_partitions_open": self.partitions_open,
            "broker_streams_doomed": self.doomed_streams,
            "broker_publishers": self.publishers,
            "broker_staged_messages": self.staged_messages,
            "broker_staged_bytes": self.staged_bytes,
            "broker_messages_received_total": self.sent_messages,
            "broker_messages_received_bytes_total": self.sent_bytes,
            "broker_messages_delivered_total": self.polled_messages,
            "broker_messages_delivered_bytes_total": self.polled_bytes,
            "broker_requests_repeated_total": self.repeated_requests,
            "broker_polls_held_total": self.polls_held,
            "broker_polls_woken_total": self.polls_woken,
            "broker_polls_waiting": self.polls_waiting,
            "broker_publishers_expired_total": self.publishers_expired,
            "broker_staged_oldest_seconds": self.staged_oldest_ms / 1000,
        }

    def by_transport(self) -> dict[str, tuple[int | None, int | None]]:
        """What TCP and QUIC count, by the name of the metric."""
        return {
            "broker_connections": (self.connections, self.quic_connections),
            "broker_connections_refused_total": (
                self.connections_refused,
                self.quic_connections_refused,
            ),
            "broker_connections_cut_off_total": (self.connections_cut_off, self.quic_cut_off),
            "broker_frames_malformed_total": (self.frames_malformed, self.quic_frames_malformed),
            "broker_held_bytes": (self.held_bytes, self.quic_held_bytes),
        }


class ObservedBroker:
    role = "broker"

    def __init__(
        self, service: Callable[[], BrokerService | WorkerService | None], *, labels_max: int
    ) -> None:
        self._service = service
        self._labels_max = labels_max

    async def families(self) -> Iterable[Family]:
        service = self._service()
        return [] if service is None else [f async for f in families(service, self._labels_max)]

    async def checks(self) -> list[Check]:
        service = self._service()
        if service is None:
            return [Check("started", False, "still starting")]
        if service.failure is not None:
            return [Check("leader", False, str(service.failure))]
        if service.leads:
            serves = service.serves
            return [Check("leader", serves, "leads" if serves else "takes over")]
        try:
            address = await service.find_leader()
        except HeadraceError as error:
            return [Check("leader", False, f"no placement manager answers: {error}")]
        known = f"stands by; {address} leads"
        return [Check("leader", bool(address), known if address else "nobody leads yet")]


async def families(
    service: BrokerService | WorkerService, labels_max: int
) -> AsyncIterator[Family]:
    figures = msgspec.convert(service.statistics(), BrokerFigures)
    yield single("broker_leading", int(service.leads))
    yield single("broker_epoch", figures.epoch)
    yield single("broker_relayed_connections", figures.relayed_connections)
    if not service.serves:
        return
    for name, number in figures.singles().items():
        yield single(name, number)
    for name, counts in figures.by_transport().items():
        made = family(name)
        for transport, count in zip(("tcp", "quic"), counts, strict=True):
            if count is not None:
                made.add(count, transport=transport)
        yield made
    delays = family("broker_loop_delay_seconds")
    delays.add(service.broker.loop_delay.delays)
    yield delays
    for made in of_traffic(service.broker.traffic):
        yield made
    for made in await of_topics(service.broker, labels_max):
        yield made


def of_traffic(traffic: Traffic) -> Iterator[Family]:
    requests, errors = family("broker_requests_total"), family("broker_request_errors_total")
    durations = family("broker_request_duration_seconds")
    for code, command in sorted(traffic.commands.items()):
        name = command_name(code)
        for dialect, count in dialect_counts(command):
            requests.add(count, command=name, dialect=dialect)
        for status, count in sorted(command.errors.items()):
            errors.add(count, command=name, code=str(int(status)))
        durations.add(command.durations, command=name)
    yield from (requests, errors, durations)
    yield single("broker_received_bytes_total", traffic.bytes_in)
    yield single("broker_sent_bytes_total", traffic.bytes_out)


async def of_topics(broker: Broker, labels_max: int) -> Iterator[Family]:
    topics = sorted(broker.catalogue.topics(), key=lambda topic: topic.uid)
    ends = await _ends(broker, topics)
    written = [topic for topic in topics if topic.uid in ends]

    def rows(value: Callable[[PartitionEnd], int]) -> Iterator[tuple[tuple[str, ...], Number]]:
        for topic in written:
            yield _names(broker, topic), sum(map(value, ends[topic.uid]))

    measures: tuple[tuple[str, Callable[[PartitionEnd], int]], ...] = (
        ("broker_topic_messages_total", lambda end: end.next),
        ("broker_topic_stored_messages", lambda end: end.next - end.start),
        ("broker_topic_stored_bytes", lambda end: end.bytes),
    )
    made = [_of_rows(name, bounded(rows(value), labels_max)) for name, value in measures]
    lags = bounded(_lags(broker, topics, ends), labels_max)
    made.append(_of_rows("broker_group_lag_messages", lags))
    made.append(_of_rows("broker_group_members", bounded(_members(broker, topics), labels_max)))
    return iter(made)


class PartitionEnd(NamedTuple):
    """How far one partition reaches."""

    place: Place
    start: int
    next: int
    bytes: int


async def _ends(broker: Broker, topics: list[Topic]) -> dict[int, list[PartitionEnd]]:
    """By topic uid. What partitions that nobody opened hold is asked for once and kept."""
    pairs = [(topic, partition) for topic in topics for partition in topic.partitions]
    found: list[PartitionFigures | None]
    try:
        if len(pairs) > PARTITIONS_ASKED_MAX:
            raise UnavailableError("too many to ask for")
        found = await broker.partitions.figures(pairs)
    except HeadraceError:
        found = [broker.partitions.peek(*pair) for pair in pairs]
    ends: dict[int, list[PartitionEnd]] = {}
    for (topic, partition), figures in zip(pairs, found, strict=True):
        if figures is not None:
            end = PartitionEnd(
                place_of(topic, partition),
                figures.start_offset,
                figures.next_offset,
                figures.size_bytes,
            )
            ends.setdefault(topic.uid, []).append(end)
    return ends


def _groups(topics: list[Topic]) -> Iterator[tuple[Topic, Group]]:
    for topic in topics:
        for group in sorted(topic.groups.values(), key=lambda group: group.uid):
            yield topic, group


def _lags(
    broker: Broker, topics: list[Topic], ends: dict[int, list[PartitionEnd]]
) -> Iterator[tuple[tuple[str, ...], Number]]:
    for topic, group in _groups(topics):
        reader = Reader(Kind.GROUP, group.uid)
        lag = 0
        for end in ends.get(topic.uid, ()):
            stored = broker.offsets.get(end.place, reader)
            position = end.start if stored is None else max(end.start, stored + 1)
            lag += max(0, end.next - position)
        yield (*_names(broker, topic), group.name), lag


def _members(broker: Broker, topics: list[Topic]) -> Iterator[tuple[tuple[str, ...], Number]]:
    for topic, group in _groups(topics):
        members = len(broker.membership.members(group.uid))
        yield (*_names(broker, topic), group.name), members


def _names(broker: Broker, topic: Topic) -> tuple[str, str]:
    stream = broker.catalogue.stream_by_uid(topic.stream_uid)
    return "" if stream is None else stream.name, topic.name


def _of_rows(name: str, rows: Iterable[tuple[tuple[str, ...], Number]]) -> Family:
    made = family(name)
    for values, number in rows:
        made.add(number, **dict(zip(made.metric.labels, values, strict=True)))
    return made
