"""What a broker tells: requests, messages, topics, the lag of consumer groups.

Topics and groups beyond a limit are added up as `other`; the oldest have samples of their own. With
more than PARTITIONS_ASKED_MAX partitions only those in use are told of: a scrape must not cost as
much as a listing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import NamedTuple

from headrace.broker.catalogue.resources import Group, Topic
from headrace.broker.core import Broker
from headrace.broker.partitions.offsets import Kind, Place, Reader
from headrace.broker.partitions.open_partitions import place_of
from headrace.broker.partitions.stored_sizes import Figures
from headrace.broker.service import BrokerService
from headrace.broker.traffic import Traffic, command_name, dialect_counts
from headrace.errors import HeadraceError, UnavailableError
from headrace.observability.exposition import Family, Number, bounded, family, single
from headrace.web.metrics.checks import Check

PARTITIONS_ASKED_MAX = 5_000

_CATALOGUE = {
    "streams": "broker_streams",
    "topics": "broker_topics",
    "users": "broker_users",
    "groups": "broker_groups",
    "partitions_open": "broker_partitions_open",
    "doomed_streams": "broker_streams_doomed",
    "publishers": "broker_publishers",
    "staged_messages": "broker_staged_messages",
    "staged_bytes": "broker_staged_bytes",
}
_COUNTERS = {
    "sent_messages": "broker_messages_received_total",
    "sent_bytes": "broker_messages_received_bytes_total",
    "polled_messages": "broker_messages_delivered_total",
    "polled_bytes": "broker_messages_delivered_bytes_total",
    "repeated_requests": "broker_requests_repeated_total",
    "publishers_expired": "broker_publishers_expired_total",
}
# What TCP calls a figure, and QUIC.
_TRANSPORT = {
    "broker_connections": ("connections", "quic_connections"),
    "broker_connections_refused_total": ("connections_refused", "quic_connections_refused"),
    "broker_connections_cut_off_total": ("connections_cut_off", "quic_cut_off"),
    "broker_frames_malformed_total": ("frames_malformed", "quic_frames_malformed"),
    "broker_held_bytes": ("held_bytes", "quic_held_bytes"),
}


class ObservedBroker:
    role = "broker"

    def __init__(self, service: Callable[[], BrokerService | None], *, labels_max: int) -> None:
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
            serves = service.term is not None and service.term.transports is not None
            return [Check("leader", serves, "leads" if serves else "takes over")]
        try:
            address = await service.find_leader()
        except HeadraceError as error:
            return [Check("leader", False, f"no placement manager answers: {error}")]
        known = f"stands by; {address} leads"
        return [Check("leader", bool(address), known if address else "nobody leads yet")]


async def families(service: BrokerService, labels_max: int) -> AsyncIterator[Family]:
    figures = service.statistics()
    yield single("broker_leading", int(service.leads))
    yield single("broker_epoch", _int(figures, "epoch"))
    yield single("broker_relayed_connections", _int(figures, "relayed_connections"))
    if service.term is None or not service.leads:
        return
    for names in (_CATALOGUE, _COUNTERS):
        for key, name in names.items():
            yield single(name, _int(figures, key))
    yield single("broker_staged_oldest_seconds", _int(figures, "staged_oldest_ms") / 1000)
    for name, keys in _TRANSPORT.items():
        made = family(name)
        for transport, key in zip(("tcp", "quic"), keys, strict=True):
            if key in figures:
                made.add(_int(figures, key), transport=transport)
        yield made
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

    def rows(value: Callable[[End], int]) -> Iterator[tuple[tuple[str, ...], Number]]:
        for topic in written:
            yield _names(broker, topic), sum(map(value, ends[topic.uid]))

    measures: tuple[tuple[str, Callable[[End], int]], ...] = (
        ("broker_topic_messages_total", lambda end: end.next),
        ("broker_topic_stored_messages", lambda end: end.next - end.start),
        ("broker_topic_stored_bytes", lambda end: end.bytes),
    )
    made = [_of_rows(name, bounded(rows(value), labels_max)) for name, value in measures]
    lags = bounded(_lags(broker, topics, ends), labels_max)
    made.append(_of_rows("broker_group_lag_messages", lags))
    made.append(_of_rows("broker_group_members", bounded(_members(broker, topics), labels_max)))
    return iter(made)


class End(NamedTuple):
    """How far one partition reaches."""

    place: Place
    start: int
    next: int
    bytes: int


async def _ends(broker: Broker, topics: list[Topic]) -> dict[int, list[End]]:
    """By topic uid. What partitions that nobody opened hold is asked for once and kept."""
    pairs = [(topic, partition) for topic in topics for partition in topic.partitions]
    found: list[Figures | None]
    try:
        if len(pairs) > PARTITIONS_ASKED_MAX:
            raise UnavailableError("too many to ask for")
        found = await broker.partitions.figures(pairs)
    except HeadraceError:
        found = [broker.partitions.peek(*pair) for pair in pairs]
    ends: dict[int, list[End]] = {}
    for (topic, partition), figures in zip(pairs, found, strict=True):
        if figures is not None:
            end = End(
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
    broker: Broker, topics: list[Topic], ends: dict[int, list[End]]
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


def _int(figures: dict[str, object], key: str) -> int:
    value = figures.get(key, 0)
    return value if isinstance(value, int) else 0
