"""What people's programs get and give: messages, and what streams, topics and partitions are like.

A message is one to send, one received, or one of many at a time. Notebooks show them as tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

from headrace.client.topic_reader import PartitionMessages
from headrace.errors import InvalidArgumentError
from headrace.wire.iggy.columns import COLUMNS, cut
from headrace.wire.iggy.messages import messages as wire
from headrace.wire.iggy.messages.topics import NEVER_EXPIRES, UNLIMITED, Stream, Topic
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header, split_key

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


HeaderValue: TypeAlias = bytes | str | bool | int | float
Payload: TypeAlias = bytes | str | Mapping[str, Any] | Sequence[Any]
"""Bytes go as they are, text as UTF-8, mappings and lists as JSON."""
Key: TypeAlias = bytes | str

HTML_ROWS_MAX = 20
HTML_CHARACTERS_MAX = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Record:
    """A message to send.

    >>> Record({"sku": "tea", "qty": 2}, key="tea", headers={"source": "web"})
    """

    payload: Payload
    key: Key | None = None
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    partition: int | None = None
    """Where it goes whatever its key; otherwise the key decides, and without one the server."""

    def key_bytes(self) -> bytes:
        """Empty for none: the protocol has no empty keys."""
        return self.key.encode() if isinstance(self.key, str) else self.key or b""

    def to_wire(self) -> wire.Message:
        payload = encode_payload(self.payload)
        if not payload:
            raise InvalidArgumentError("a message needs a payload of at least one byte")
        named = [UserHeader.of(name, value) for name, value in self.headers.items()]
        return wire.Message(payload, key_header(self.key_bytes()) + encode_headers(named))


def encode_payload(payload: Payload) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        return payload.encode()
    try:
        return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the payload cannot be written as JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Receipt:
    """The server has it, as durable as its topic says."""

    partition: int | None = None
    offset: int | None = None
    """None where a plain Iggy server does not say."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was received."""

    topic: str
    """`stream/topic`"""
    partition: int
    offset: int
    timestamp: datetime
    """The server's; in a partition it never goes back."""
    origin_timestamp: datetime | None
    """The producer's, if it told its own."""
    id: UUID
    key: bytes | None
    headers: Mapping[str, HeaderValue]
    payload: bytes

    @property
    def text(self) -> str:
        return self.payload.decode()

    def json(self) -> Any:
        """The payload as JSON; InvalidArgumentError if it is none."""
        try:
            return json.loads(self.payload)
        except ValueError as error:
            raise InvalidArgumentError(
                f"not JSON: {error}", partition=self.partition, offset=self.offset
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class MessageBatch:
    """Messages that came together. Looked at one by one, or at once as an Arrow table.

    A notebook shows the last of them as a table.
    """

    stream: str
    topic: str
    parts: tuple[PartitionMessages, ...] = ()

    def __len__(self) -> int:
        return sum(len(part.buffer[1]) for part in self.parts)

    def __iter__(self) -> Iterator[Message]:
        for part in self.parts:
            for message in wire.decode_messages(part.buffer[0]):
                yield self._message(part.partition, message)

    def _message(self, partition: int, found: wire.Message) -> Message:
        key, headers = split_key(found.headers)
        origin = found.origin_timestamp_us
        return Message(
            topic=f"{self.stream}/{self.topic}",
            partition=partition,
            offset=found.offset,
            timestamp=moment(found.timestamp_us),
            origin_timestamp=moment(origin) if origin else None,
            id=UUID(int=found.id),
            key=key,
            headers={
                header.key.decode(errors="replace"): header.python_value() for header in headers
            },
            payload=found.payload,
        )

    def last(self, count: int) -> MessageBatch:
        """The last of them, in each partition as many."""
        parts = []
        for part in self.parts:
            area, starts = part.buffer
            first = max(0, len(starts) - count)
            parts.append(
                PartitionMessages(
                    part.partition, part.start + first, cut(area, starts, first, len(starts))
                )
            )
        return MessageBatch(self.stream, self.topic, tuple(parts))

    def to_arrow(self, columns: Sequence[str] = COLUMNS, *, text: bool = False) -> pa.Table:
        """A table with the columns that Spark's source has; `text` gives payloads as strings."""
        from headrace.client.tables import to_table

        return to_table(self.stream, self.topic, self.parts, columns, text=text)

    def to_pandas(self, *, json: bool = False) -> pd.DataFrame:
        """A DataFrame; with `json`, payloads that are JSON objects become columns of their own."""
        from headrace.client.tables import to_frame

        return to_frame(self.stream, self.topic, self.parts, json=json)

    def _repr_html_(self) -> str:
        shown = list(self.last(HTML_ROWS_MAX))[-HTML_ROWS_MAX:]
        rows = [
            (m.partition, m.offset, f"{m.timestamp:%Y-%m-%d %H:%M:%S.%f}", m.key, m.payload)
            for m in shown
        ]
        title = f"{self.stream}/{self.topic}: {len(self)} messages"
        if len(shown) < len(self):
            title += f", the last {len(shown)}"
        return html_table(title, ("partition", "offset", "timestamp", "key", "payload"), rows)


def moment(microseconds: int) -> datetime:
    """Exact, where a float of seconds is not."""
    return _EPOCH + timedelta(microseconds=microseconds)


def html_table(title: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for notebooks. Every value is text to them, whatever it holds."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_shown(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        try:
            text = value[: 4 * HTML_CHARACTERS_MAX].decode()
        except UnicodeDecodeError:
            text = value[:HTML_CHARACTERS_MAX].hex(" ")
    else:
        text = str(value)
    return text if len(text) <= HTML_CHARACTERS_MAX else f"{text[:HTML_CHARACTERS_MAX]}…"


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
