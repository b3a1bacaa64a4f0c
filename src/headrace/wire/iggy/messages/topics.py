"""Topics, partitions, segments (codes 300 to 305, 402, 403, 503).

Streams (codes 200 to 205).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Self

from headrace.wire.iggy.dialects import CLASSIC, Dialect
from headrace.wire.iggy.fields import (
    ONLY_C,
    STR8,
    U32,
    U64,
    Body,
    Buffer,
    ClassicU8,
    ClassicU64,
    Id,
    Partition,
    Reader,
    RequestedId,
    Str8,
    by_dialect,
    choice,
    counted,
    in_dialects,
    nested,
    to_end,
)
from headrace.wire.iggy.primitives import (
    REFERENCE,
    Identifier,
    OptionsBlock,
    OptionsToEnd,
    Reference,
)

SERVER_DEFAULT = 0  # message expiry and topic size: what the server is configured to
NEVER_EXPIRES = UNLIMITED = 0xFFFF_FFFF_FFFF_FFFF


class Compression(IntEnum):
    NONE = 1
    GZIP = 2


_COMPRESSION = choice(Compression)
_CLASSIC_COMPRESSION = in_dialects(_COMPRESSION, CLASSIC, Compression.NONE)


@dataclass(frozen=True, slots=True)
class Topic(Body):
    """Expiry and maximal size are resolved values: old clients read 0 as "never"."""

    id: Id
    created_at_us: U64
    partitions_count: U32
    message_expiry_us: U64
    compression: Annotated[Compression, _COMPRESSION]
    max_size_bytes: U64
    replication_factor: ClassicU8
    size_bytes: U64
    messages_count: U64
    name: Str8
    options: OptionsBlock = ()
    """As they were given."""
    derived: OptionsBlock = ()
    """Options that nobody gave, as they are in effect."""


@dataclass(frozen=True, slots=True)
class PartitionInfo(Body):
    """One partition of a topic, as the protocol shows it: with its last offset, not its next."""

    id: Partition
    created_at_us: U64
    segments_count: U32
    current_offset: U64
    """The offset of the last message, deleted or not; 0 where there never was one."""
    size_bytes: U64
    messages_count: U64

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets.

        A partition whose messages were all deleted still has a last offset. The protocol leaves one
        case open: an only message, deleted, looks like no message, and counts as none here.
        """
        return self.current_offset + 1 if self.messages_count or self.current_offset else 0

    @property
    def start_offset(self) -> int:
        """The offset of the oldest message that is kept; `next_offset` where none is."""
        return max(0, self.next_offset - self.messages_count)

    def lag(self, stored_offset: int | None) -> int:
        """The number of kept messages that a consumer has yet to read."""
        if stored_offset is None:
            return self.messages_count
        return min(self.messages_count, max(0, self.next_offset - stored_offset - 1))


@dataclass(frozen=True, slots=True)
class TopicDetails(Body):
    topic: Annotated[Topic, nested(Topic)]
    partitions: Annotated[tuple[PartitionInfo, ...], to_end(nested(PartitionInfo))] = ()


_TOPICS = by_dialect(counted(nested(Topic)), ONLY_C, to_end(nested(Topic)))


@dataclass(frozen=True, slots=True)
class Topics(Body):
    """Dialect C has their count in front."""

    topics: Annotated[tuple[Topic, ...], _TOPICS]


@dataclass(frozen=True, slots=True)
class GetTopic(Body):
    stream: Reference
    topic: Reference


@dataclass(frozen=True, slots=True)
class GetTopics(Body):
    stream: Reference


@dataclass(frozen=True, slots=True)
class CreateTopic(Body):
    """`replication_factor` 0 means "not given". In dialect C the next four are options instead.

    Dialect A has two forms. No client is known to send the one of the protocol's published
    description, told by its length: `u32 topic id, u32 partitions, str8 name, u32 expiry in seconds
    (0: server default) [, u64 maximal size], u8 replication` behind the stream.
    """

    stream: Reference
    topic_id: RequestedId = field(default=None, kw_only=True)
    partitions_count: U32
    compression: Annotated[Compression, _CLASSIC_COMPRESSION]
    message_expiry_us: ClassicU64
    max_size_bytes: ClassicU64
    replication_factor: ClassicU8
    name: Str8
    options: OptionsToEnd = ()

    @classmethod
    def read(cls, reader: Reader) -> Self:
        if reader.dialect is Dialect.A:
            ahead = Reader(reader.data, reader.dialect, reader.position)
            stream = REFERENCE.read(ahead)
            if is_published_form(reader.data[ahead.position :]):
                return cls._read_published(ahead, stream)
        return super(CreateTopic, cls).read(reader)

    @classmethod
    def _read_published(cls, reader: Reader, stream: Identifier) -> Self:
        topic_id, partitions = reader.u32(), reader.u32()
        name, expiry_seconds = STR8.read(reader), reader.u32()
        max_size = SERVER_DEFAULT if reader.remaining == 1 else int(reader.number(_SIZE))
        return cls(
            stream,
            partitions,
            Compression.NONE,
            expiry_seconds * _SECOND_US,
            max_size,
            reader.u8(),
            name,
            topic_id=topic_id - 1 if topic_id else None,
        )


_SECOND_US = 1_000_000
_SIZE = struct.Struct("<Q")
_NAME_AT = 8


def is_published_form(rest: Buffer) -> bool:
    """Whether this, behind the stream of a CREATE_TOPIC, is the published description's form.

    A's real form has the compression (1 or 2) where this one has the length of the name, and is
    longer than a name of 1 or 2 bytes makes this one: no body is both.
    """
    return len(rest) > _NAME_AT and len(rest) - rest[_NAME_AT] in (14, 22)


@dataclass(frozen=True, slots=True)
class DeleteTopic(Body):
    stream: Reference
    topic: Reference


@dataclass(frozen=True, slots=True)
class UpdateTopic(Body):
    stream: Reference
    topic: Reference
    compression: Annotated[Compression, _CLASSIC_COMPRESSION]
    message_expiry_us: ClassicU64
    max_size_bytes: ClassicU64
    replication_factor: ClassicU8
    name: Str8
    options: OptionsToEnd = ()


@dataclass(frozen=True, slots=True)
class PurgeTopic(Body):
    stream: Reference
    topic: Reference


@dataclass(frozen=True, slots=True)
class CreatePartitions(Body):
    stream: Reference
    topic: Reference
    partitions_count: U32


@dataclass(frozen=True, slots=True)
class DeletePartitions(Body):
    stream: Reference
    topic: Reference
    partitions_count: U32


@dataclass(frozen=True, slots=True)
class DeleteSegments(Body):
    stream: Reference
    topic: Reference
    partition: Partition
    segments_count: U32


@dataclass(frozen=True, slots=True)
class Stream(Body):
    id: Id
    created_at_us: U64
    topics_count: U32
    size_bytes: U64
    messages_count: U64
    name: Str8
    options: OptionsBlock = ()


@dataclass(frozen=True, slots=True)
class StreamDetails(Body):
    stream: Annotated[Stream, nested(Stream)]
    topics: Annotated[tuple[Topic, ...], to_end(nested(Topic))] = ()


@dataclass(frozen=True, slots=True)
class Streams(Body):
    streams: Annotated[tuple[Stream, ...], to_end(nested(Stream))]


@dataclass(frozen=True, slots=True)
class GetStream(Body):
    stream: Reference


@dataclass(frozen=True, slots=True)
class CreateStream(Body):
    stream_id: RequestedId = field(default=None, kw_only=True)
    name: Str8
    options: OptionsToEnd = ()


@dataclass(frozen=True, slots=True)
class DeleteStream(Body):
    stream: Reference


@dataclass(frozen=True, slots=True)
class UpdateStream(Body):
    stream: Reference
    name: Str8
    options: OptionsToEnd = ()


@dataclass(frozen=True, slots=True)
class PurgeStream(Body):
    stream: Reference
