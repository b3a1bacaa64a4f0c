"""Where reading begins or ends, as callers say it, and the offsets that this means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from headrace.client.topic_reader import Span, TopicReading
from headrace.errors import InvalidArgumentError, NotFoundError

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
