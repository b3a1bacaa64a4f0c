"""Reading topics: what their partitions hold, and their messages from any offset.

Messages come straight from the data nodes with a ticket, or from the broker where those are out of
reach or the server is a plain Iggy server; both read the same log.

Where reading begins or ends, as callers say it, and the offsets that this means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from headrace.client.connection import BrokerConnection
from headrace.client.raw_messages import Area, cut
from headrace.client.tickets import Access, TicketReader
from headrace.concurrency.retry import OUTSIDE, retry
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidArgumentError,
    LostRecordsError,
    NotFoundError,
    OffsetOutOfRangeError,
    StateError,
    UnavailableError,
)
from headrace.wire.iggy.batch import gather_headers, locate
from headrace.wire.iggy.messages.extensions import Ticket
from headrace.wire.iggy.primitives import Strategy

_log = logging.getLogger(__name__)

POLL_MESSAGES_MAX = 20_000
FALLBACK_SECONDS = 5.0  # for data nodes that do not answer, before the broker is asked instead
AVOID_SECONDS = 60.0  # until they are tried again
TICKET_SECONDS_LEFT_MIN = 30.0
ASK_AGAIN_SECONDS = 0.05  # between two questions to a broker, which does not wait for messages


class OtherLifeError(StateError):
    """A partition is not the one that reading began with."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Span:
    """What a partition holds: offsets [low, high)."""

    partition: int
    low: int
    high: int
    life: str = ""
    """Another one since a purge, since the topic was deleted and made again, or in another cluster:
    an offset means nothing in it."""


class TopicReading:
    """Reads any topic of one server; owned by a client."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._runtime = connection.runtime
        self._clock = connection.runtime.clock
        self._reader = TicketReader(connection.runtime, connection.tls)
        self._access: dict[tuple[str, str], Access] = {}
        self._lives: dict[tuple[str, str], dict[int, str]] = {}
        self._avoided_until = 0.0

    async def close(self) -> None:
        await self._reader.close()

    async def spans(self, stream: str, topic: str) -> tuple[Span, ...]:
        """NotFoundError if there is no such topic."""
        if await self._connection.hello() is None:
            return await self._plain_spans(stream, topic)
        ticket = await self._ticket(stream, topic)
        lives = _lives(ticket)
        return tuple(
            Span(p.partition, p.start, p.next, lives[p.partition])
            for p in ticket.topics[0].partitions
        )

    async def _ticket(self, stream: str, topic: str) -> Ticket:
        try:
            ticket = await self._connection.call(
                lambda client: client.read_ticket([(stream, topic)])
            )
        except NotFoundError:
            raise NotFoundError(f"there is no topic {stream}/{topic}") from None
        self._lives[stream, topic] = _lives(ticket)
        kept = self._access.get((stream, topic))
        streams = {("", p.partition): p.sbp_stream for p in ticket.topics[0].partitions}
        if (
            kept is None
            or kept.streams != streams
            or kept.expires_within(TICKET_SECONDS_LEFT_MIN, self._clock.now_ms())
        ):
            # Connections belong to a ticket, so one is used as long as it lasts.
            self._access[stream, topic] = Access(
                ticket.ticket, ticket.expires_ms, ticket.placement, streams
            )
        return ticket

    async def _plain_spans(self, stream: str, topic: str) -> tuple[Span, ...]:
        details = await self._connection.call(lambda client: client.get_topic(stream, topic))
        if details is None:
            raise NotFoundError(f"there is no topic {stream}/{topic}")
        made = str(details.topic.created_at_us)
        return tuple(
            Span(each.id, each.start_offset, each.next_offset, made) for each in details.partitions
        )

    async def offset_at(self, stream: str, topic: str, span: Span, timestamp_us: int) -> int:
        """The first message of the partition that is not older; its end where there is none."""
        if span.low == span.high:
            return span.high
        polled = await self._connection.call(
            lambda client: client.poll(
                stream,
                topic,
                partition=span.partition,
                strategy=Strategy.timestamp(timestamp_us),
                count=1,
            )
        )
        for piece in polled.slices[:1]:
            return _first_offset(memoryview(piece))
        return span.high

    async def fetch(
        self, stream: str, topic: str, span: Span, *, start: int, end: int
    ) -> tuple[list[Area], int]:
        """Messages from `start` on, at most up to `end`, and the offset after them; none where some
        were lost and given up.

        OtherLifeError when the partition is in another life by now.
        """
        partition = span.partition
        key = ("", partition)
        access = await self._current(stream, topic)
        if access is not None and self._lives[stream, topic].get(partition) != span.life:
            raise OtherLifeError(
                f"partition {partition} of {stream}/{topic} was purged, or made again, while it "
                "was read; read it again from the start",
                offset=start,
            )
        if access is not None and key in access.streams:
            try:
                async with asyncio.timeout(FALLBACK_SECONDS):
                    return await retry(
                        self._runtime,
                        lambda _: self._reader.fetch(access, key, start, end),
                        FALLBACK_SECONDS,
                        OUTSIDE,
                    )
            except LostRecordsError as error:
                _log.warning("%s/%s, partition %d: %s", stream, topic, partition, error)
                return [], min(error.resumed, end)
            except (UnavailableError, DeadlineError, TimeoutError):
                self._avoided_until = self._clock.monotonic() + AVOID_SECONDS
        return await self._poll(stream, topic, partition, start, end)

    async def renewed(self, stream: str, topic: str, span: Span) -> bool:
        """Whether the partition is in another life by now, or gone; NotFoundError with its topic.

        For who follows it: fetching from a life that is over fails in one way or another.
        """
        return all(
            (each.partition, each.life) != (span.partition, span.life)
            for each in await self.spans(stream, topic)
        )

    async def _current(self, stream: str, topic: str) -> Access | None:
        """None: ask the broker."""
        if await self._connection.hello() is None or self._clock.monotonic() < self._avoided_until:
            return None
        access = self._access.get((stream, topic))
        now_ms = self._clock.now_ms()
        if access is None or access.expires_within(TICKET_SECONDS_LEFT_MIN, now_ms):
            await self._ticket(stream, topic)
        return self._access[stream, topic]

    async def _poll(
        self, stream: str, topic: str, partition: int, start: int, end: int
    ) -> tuple[list[Area], int]:
        polled = await self._connection.call(
            lambda client: client.poll(
                stream,
                topic,
                partition=partition,
                strategy=Strategy.offset(start),
                count=min(end - start, POLL_MESSAGES_MAX),
            )
        )
        areas, at = [], start
        for piece in polled.slices:
            area = memoryview(piece)
            starts = locate(area)
            if not len(starts):
                continue
            if _first_offset(area) != at:
                break  # retention was faster
            areas.append(cut(area, starts, 0, min(len(starts), end - at)))
            at += len(areas[-1][1])
        if not areas:
            raise OffsetOutOfRangeError(
                "the server no longer has these messages", partition=partition, offset=start
            )
        return areas, at

    async def wait(self, stream: str, topic: str, ends: Mapping[int, int], seconds: float) -> None:
        """Until a partition may have grown past its end, or that long."""
        begun = self._clock.monotonic()
        access = await self._current(stream, topic)
        if access is not None:
            wanted = {
                ("", partition): end
                for partition, end in ends.items()
                if ("", partition) in access.streams
            }
            try:
                async with asyncio.timeout(seconds + 1.0):
                    if wanted and await self._reader.wait(access, wanted, seconds):
                        return
            except (HeadraceError, TimeoutError):
                self._avoided_until = self._clock.monotonic() + AVOID_SECONDS
        left = seconds - (self._clock.monotonic() - begun)
        if left > 0:
            await self._clock.sleep(min(left, ASK_AGAIN_SECONDS))


def _lives(ticket: Ticket) -> dict[int, str]:
    topic = ticket.topics[0]
    return {p.partition: f"{ticket.cluster}/{topic.uid}/{p.generation}" for p in topic.partitions}


def _first_offset(area: memoryview) -> int:
    import numpy as np

    return int(gather_headers(area, np.zeros(1, np.uint32))["offset"][0])


Position: TypeAlias = int | str | datetime | Mapping[int, int]
"""`"earliest"`, `"latest"`, an offset, offsets by partition, or a time: a datetime (without a time
zone it is UTC) or its ISO 8601 text, which means the first message that is not older."""

_FORMS = '"earliest", "latest", an offset, {partition: offset}, or a time'


def timestamp_us(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000_000)


def chosen(spans: Sequence[Span], partition: int | None) -> tuple[Span, ...]:
    found = tuple(span for span in spans if partition in (None, span.partition))
    if not found:
        raise NotFoundError(f"there is no partition {partition}")
    return found


async def resolve(
    reading: TopicReading, stream: str, topic: str, spans: Sequence[Span], position: Position
) -> dict[int, int]:
    """The offset in each partition; what is left out of a mapping is its earliest message."""
    if isinstance(position, str):
        if position == "earliest":
            return {span.partition: span.low for span in spans}
        if position == "latest":
            return {span.partition: span.high for span in spans}
        try:
            position = datetime.fromisoformat(position)
        except ValueError:
            raise InvalidArgumentError(f"{position!r} is not {_FORMS}") from None
    if isinstance(position, datetime):
        moment = timestamp_us(position)
        return {
            span.partition: await reading.offset_at(stream, topic, span, moment) for span in spans
        }
    if isinstance(position, int):
        return {span.partition: position for span in spans}
    return {span.partition: position.get(span.partition, span.low) for span in spans}
