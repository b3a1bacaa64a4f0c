"""Topics, partitions, segments (codes 300 to 305, 402, 403, 503)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

from headrace.wire.iggy.fields import (
    U8,
    U32,
    U64,
    Body,
    Id,
    Partition,
    RequestedId,
    Str8,
    choice,
    nested,
    to_end,
)
from headrace.wire.iggy.primitives import Reference

SERVER_DEFAULT = 0  # message expiry and topic size: what the server is configured to
NEVER_EXPIRES = UNLIMITED = 0xFFFF_FFFF_FFFF_FFFF


class Compression(IntEnum):
    NONE = 1
    GZIP = 2


_COMPRESSION = choice(Compression)


@dataclass(frozen=True, slots=True)
class Topic(Body):
    """Expiry and maximal size are resolved values: old clients read 0 as "never"."""

    id: Id
    created_at_us: U64
    partitions_count: U32
    message_expiry_us: U64
    compression: Annotated[Compression, _COMPRESSION]
    max_size_bytes: U64
    replication_factor: U8
    size_bytes: U64
    messages_count: U64
    name: Str8


@dataclass(frozen=True, slots=True)
class PartitionInfo(Body):
    """`current_offset` is 0 for an empty partition too; `messages_count` tells the difference."""

    id: Partition
    created_at_us: U64
    segments_count: U32
    current_offset: U64
    size_bytes: U64
    messages_count: U64


@dataclass(frozen=True, slots=True)
class TopicDetails(Body):
    topic: Annotated[Topic, nested(Topic)]
    partitions: Annotated[tuple[PartitionInfo, ...], to_end(nested(PartitionInfo))] = ()


@dataclass(frozen=True, slots=True)
class Topics(Body):
    topics: Annotated[tuple[Topic, ...], to_end(nested(Topic))]


@dataclass(frozen=True, slots=True)
class GetTopic(Body):
    stream: Reference
    topic: Reference


@dataclass(frozen=True, slots=True)
class GetTopics(Body):
    stream: Reference


@dataclass(frozen=True, slots=True)
class CreateTopic(Body):
    """`replication_factor` 0 means "not given"."""

    stream: Reference
    topic_id: RequestedId = field(default=None, kw_only=True)
    partitions_count: U32
    compression: Annotated[Compression, _COMPRESSION]
    message_expiry_us: U64
    max_size_bytes: U64
    replication_factor: U8
    name: Str8


@dataclass(frozen=True, slots=True)
class DeleteTopic(Body):
    stream: Reference
    topic: Reference


@dataclass(frozen=True, slots=True)
class UpdateTopic(Body):
    stream: Reference
    topic: Reference
    compression: Annotated[Compression, _COMPRESSION]
    message_expiry_us: U64
    max_size_bytes: U64
    replication_factor: U8
    name: Str8


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
