"""What streams, topics and partitions are like; notebooks show them as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

from headrace.client.records import html_table, moment
from headrace.wire.iggy.messages.topics import NEVER_EXPIRES, UNLIMITED, Stream, Topic

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamInfo:
    name: str
    topics: int
    messages: int
    bytes: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    """`stream/topic`"""
    partitions: int
    messages: int
    bytes: int
    created_at: datetime
    expiry: timedelta | None
    """How long messages are kept; None: for ever."""
    bytes_max: int | None
    """The oldest are deleted above that size; None: never."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A partition holds offsets [low, high); a group has committed those below `committed`."""

    partition: int
    low: int
    high: int
    committed: int | None = None

    @property
    def lag(self) -> int:
        """Messages that a reader at `committed`, or at the very beginning, has before it."""
        return self.high - max(self.low, self.committed or 0)


class Table(tuple[T, ...]):
    """A tuple that a notebook shows as a table."""

    title = ""

    def __new__(cls, rows: Sequence[T], title: str = "") -> Table[T]:
        made = super().__new__(cls, rows)
        made.title = title
        return made

    def _repr_html_(self) -> str:
        if not self:
            return html_table(self.title, ("nothing here",), ())
        kind: Any = type(self[0])
        names = [each.name for each in fields(kind)]
        rows = [list(astuple(row)) for row in self]  # type: ignore[call-overload]  # all rows are dataclasses
        if kind is Watermark:
            names.append("lag")
            for row, each in zip(rows, self, strict=True):
                row.append(each.lag)  # type: ignore[attr-defined]  # as just seen
        return html_table(self.title, names, rows)


def stream_info(stream: Stream) -> StreamInfo:
    return StreamInfo(
        stream.name,
        stream.topics_count,
        stream.messages_count,
        stream.size_bytes,
        moment(stream.created_at_us),
    )


def topic_info(stream: str, topic: Topic) -> TopicInfo:
    expiry = topic.message_expiry_us
    return TopicInfo(
        f"{stream}/{topic.name}",
        topic.partitions_count,
        topic.messages_count,
        topic.size_bytes,
        moment(topic.created_at_us),
        None if expiry in (0, NEVER_EXPIRES) else timedelta(microseconds=expiry),
        None if topic.max_size_bytes in (0, UNLIMITED) else topic.max_size_bytes,
    )
