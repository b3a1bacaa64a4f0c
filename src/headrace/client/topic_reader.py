"""Reading topics with the client: what their partitions hold, and their messages from any offset.

Where reading begins or ends comes as callers say it (`Position`), and becomes an offset of each
partition here. The command line and Spark's source parse forms of their own; all of them end in
`resolve_point`. The reading itself is `partition_reader.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from headrace.client.connection import BrokerConnection
from headrace.client.partition_reader import Access, PartitionReader, Place
from headrace.errors import InvalidArgumentError, LostRecordsError, NotFoundError, StateError
from headrace.wire.iggy.columns import MessageBuffer

_log = logging.getLogger(__name__)

TICKET_SECONDS_LEFT_MIN = 30.0


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


class OtherLifeError(StateError):
    """A partition is not the one that reading began with."""

    retryable = False


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """What a partition holds: offsets [low, high)."""

    place: Place
    low: int
    high: int
    life: str = ""
    """Another one since a purge, since the topic was deleted and made again, or in another cluster:
    an offset means nothing in it."""

    @property
    def partition(self) -> int:
        return self.place.key[1]


@dataclass(frozen=True, slots=True, eq=False)
class PartitionMessages:
    """Consecutive messages of one partition as they lie in the log."""

    partition: int
    start: int
    """The offset of the first."""
    buffer: MessageBuffer

    @property
    def next_offset(self) -> int:
        return self.start + len(self.buffer[1])


def partition_messages(
    partition: int, start: int, buffers: Sequence[MessageBuffer]
) -> tuple[PartitionMessages, ...]:
    """Buffers that follow each other, the first from offset `start` on."""
    parts: list[PartitionMessages] = []
    for buffer in buffers:
        parts.append(PartitionMessages(partition, start, buffer))
        start = parts[-1].next_offset
    return tuple(parts)


class TopicReader:
    """Reads any topic of one server; owned by a client."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._clock = connection.runtime.clock
        self._reader = PartitionReader(connection, ticket_seconds_min=TICKET_SECONDS_LEFT_MIN)
        self._access: dict[tuple[str, str], Access] = {}
        self._lives: dict[tuple[str, str], dict[int, str]] = {}

    async def close(self) -> None:
        await self._reader.close()

    async def bounds(self, stream: str, topic: str) -> tuple[PartitionBounds, ...]:
        """What the topic holds now. NotFoundError if there is no such topic."""
        state, access = await self._reader.describe(stream, [topic])
        found = tuple(
            PartitionBounds(
                Place(stream, topic, key),
                each.start,
                each.end,
                f"{state.cluster}/{key[0]}/{each.generation}",
            )
            for key, _, each in state.partitions()
        )
        self._access[stream, topic] = access
        self._lives[stream, topic] = {each.partition: each.life for each in found}
        return found

    async def fetch(
        self, bounds: PartitionBounds, *, start: int, end: int
    ) -> tuple[list[MessageBuffer], int]:
        """Messages from `start` on, at most up to `end`, and the offset after them; none where some
        were lost and given up.

        OtherLifeError when the partition is in another life by now.
        """
        place = bounds.place
        access = await self._current(place.stream, place.topic)
        lives = self._lives[place.stream, place.topic]
        if access.ticket and lives.get(bounds.partition) != bounds.life:
            raise OtherLifeError(
                f"partition {bounds.partition} of {place.stream}/{place.topic} was purged, or made "
                "again, while it was read; read it again from the start",
                offset=start,
            )
        try:
            read = await self._reader.fetch(place, access, start, end)
        except LostRecordsError as error:
            name = f"{place.stream}/{place.topic}"
            _log.warning("%s, partition %d: %s", name, bounds.partition, error)
            return [], min(error.resumed, end)
        return read.areas, read.next_offset

    async def renewed(self, bounds: PartitionBounds) -> bool:
        """Whether the partition is in another life by now, or gone; NotFoundError with its topic.

        For who follows it: fetching from a life that is over fails in one way or another.
        """
        now = await self.bounds(bounds.place.stream, bounds.place.topic)
        return all((each.partition, each.life) != (bounds.partition, bounds.life) for each in now)

    async def wait(self, stream: str, topic: str, ends: Mapping[int, int], seconds: float) -> None:
        """Until a partition may have grown past its end, or that long."""
        access = await self._current(stream, topic)
        wanted = {key: ends[key[1]] for key in access.streams if key[1] in ends}
        await self._reader.wait(access, wanted, seconds)

    async def _current(self, stream: str, topic: str) -> Access:
        access = self._access.get((stream, topic))
        now_ms = self._clock.now_ms()
        if access is None or access.expires_within(TICKET_SECONDS_LEFT_MIN, now_ms):
            await self.bounds(stream, topic)
        return self._access[stream, topic]

    async def resolve(
        self, partitions: Sequence[PartitionBounds], position: Position
    ) -> dict[int, int]:
        """The offset in each partition; what is left out of a mapping is its earliest message."""
        found = {}
        for each in partitions:
            point, at_time = _point(position, each.partition), None
            if isinstance(point, AtTime) and each.low < each.high:
                at_time = await self._reader.offset_at(each.place, point.timestamp_us)
            found[each.partition] = resolve_point(point, each.low, each.high, at_time)
        return found


Position: TypeAlias = int | str | datetime | Mapping[int, int]
"""`"earliest"`, `"latest"`, an offset, offsets by partition, or a time: a datetime (without a time
zone it is UTC) or its ISO 8601 text, which means the first message that is not older."""

_FORMS = '"earliest", "latest", an offset, {partition: offset}, or a time'


def _point(position: Position, partition: int) -> Point:
    if isinstance(position, Mapping):
        return position.get(partition, "earliest")
    if isinstance(position, str):
        if position == "earliest":
            return "earliest"
        if position == "latest":
            return "latest"
        try:
            position = datetime.fromisoformat(position)
        except ValueError:
            raise InvalidArgumentError(f"{position!r} is not {_FORMS}") from None
    if isinstance(position, datetime):
        return AtTime(timestamp_us(position))
    return position


def chosen(
    partitions: Sequence[PartitionBounds], partition: int | None
) -> tuple[PartitionBounds, ...]:
    found = tuple(each for each in partitions if partition in (None, each.partition))
    if not found:
        raise NotFoundError(f"there is no partition {partition}")
    return found
