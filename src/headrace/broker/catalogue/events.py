"""Catalogue events: effects, not requests.

Everything that was decided or drawn (ids, times, hashes) is inside, so that replaying them needs
no clock, no randomness and no validation. A class is never changed after release, but for fields
with a default: a new shape is a new `VERSION` and a conversion in `decode`.

A body may also say which numbered request it is the effect of (`request_dedup.py`), under `BY`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from headrace.broker.catalogue.resources import SHARDS, Permissions
from headrace.errors import FormatError

VERSION = 1
BY = "$by"


class _Event(msgspec.Struct, frozen=True): ...


class StreamCreated(_Event, frozen=True):
    uid: int
    id: int
    name: str
    created_at: int
    options: bytes = b""


class StreamRenamed(_Event, frozen=True):
    uid: int
    name: str
    options: bytes | None = None
    """None = as they are; also of topics and users."""


class StreamDeleted(_Event, frozen=True):
    uid: int


class TopicCreated(_Event, frozen=True):
    uid: int
    stream_uid: int
    id: int
    name: str
    created_at: int
    partitions: int
    compression: int
    expiry: int
    max_size: int
    replication: int
    options: bytes = b""
    shards: list[int] = []
    """Of each partition; none of those that were logged before there were shards."""


class TopicUpdated(_Event, frozen=True):
    uid: int
    name: str
    compression: int
    expiry: int
    max_size: int
    replication: int
    options: bytes | None = None


class TopicDeleted(_Event, frozen=True):
    uid: int


class TopicsPurged(_Event, frozen=True):
    """Each partition of these topics goes on with a new generation and no messages."""

    uids: list[int]


class PartitionsAdded(_Event, frozen=True):
    topic_uid: int
    count: int
    created_at: int
    shards: list[int] = []


class PartitionsRemoved(_Event, frozen=True):
    topic_uid: int
    count: int


class PartitionAssigned(_Event, frozen=True):
    topic_uid: int
    partition: int
    generation: int
    stream_id: int


class GroupCreated(_Event, frozen=True):
    uid: int
    topic_uid: int
    id: int
    name: str


class GroupDeleted(_Event, frozen=True):
    uid: int


class UserCreated(_Event, frozen=True):
    uid: int
    id: int
    name: str
    created_at: int
    status: int
    password_hash: str
    permissions: Permissions | None
    options: bytes = b""


class UserUpdated(_Event, frozen=True):
    uid: int
    name: str
    status: int
    options: bytes | None = None


class UserDeleted(_Event, frozen=True):
    uid: int


class PermissionsChanged(_Event, frozen=True):
    uid: int
    permissions: Permissions | None


class PasswordChanged(_Event, frozen=True):
    uid: int
    password_hash: str
    ends_tokens: bool = False
    """False of those that were logged before tokens ended with the password."""


class TokenCreated(_Event, frozen=True):
    user_uid: int
    name: str
    digest: bytes
    expiry_at: int


class TokenDeleted(_Event, frozen=True):
    user_uid: int
    name: str


class StreamsReclaimed(_Event, frozen=True):
    """SBP streams of deleted partitions that are gone from the placement manager too."""

    stream_ids: list[int]


class ClusterNamed(_Event, frozen=True):
    """Once in a catalogue's life."""

    uuid: str
    shards: int = SHARDS


class OffsetsDivided(_Event, frozen=True):
    """Consumers' offsets of these shards are in logs of their own from now on."""

    shards: list[int]


class PartitionsMoved(_Event, frozen=True):
    """These partitions belong to other shards from now on: topic uid, partition, generation and
    shard of each. Recorded only while nobody leads the shards that they leave or enter."""

    moves: list[tuple[int, int, int, int]]


class ShardPinned(_Event, frozen=True):
    """The shard is led by this worker while the worker lives; an empty name ends that."""

    shard: int
    worker: str


Event: TypeAlias = _Event

_KINDS: dict[str, type[_Event]] = {event.__name__: event for event in _Event.__subclasses__()}


def encode(event: Event) -> tuple[str, dict[str, Any]]:
    """(kind, body) for a StateLog; the body holds only what msgpack knows."""
    return type(event).__name__, msgspec.to_builtins(event, builtin_types=(bytes,))


def decode(version: int, kind: str, body: object) -> Event:
    if version != VERSION or kind not in _KINDS:
        raise FormatError("catalogue event of a newer version", version=version, kind=kind)
    return msgspec.convert(body, _KINDS[kind])
