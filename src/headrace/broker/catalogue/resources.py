"""What the catalogue holds. Plain values: only `state.Catalogue` changes them.

Every resource has a uid, drawn from one counter and never used again. The small numeric id that
clients see is an alias: the lowest free slot, used again after a delete.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import msgspec

ROOT_ID = 0
UNASSIGNED = -1
SERVER_DEFAULT = 0
SHARDS = 64
"""Of a cluster, unless it was made with another number: enough for as many processes."""
NEVER = UNLIMITED = (1 << 64) - 1
OUTSIDE_UID = 1 << 62
"""Uids from here on are nobody's in the catalogue."""
OUTSIDE_ID = (1 << 32) - 2
"""What the wire shows of such a user: no slot of the catalogue."""


class UserStatus(IntEnum):
    ACTIVE = 1
    INACTIVE = 2


class GlobalRight(IntFlag):
    """Bit i is byte i of the permissions block."""

    MANAGE_SERVERS = 1 << 0
    READ_SERVERS = 1 << 1
    MANAGE_USERS = 1 << 2
    READ_USERS = 1 << 3
    MANAGE_STREAMS = 1 << 4
    READ_STREAMS = 1 << 5
    MANAGE_TOPICS = 1 << 6
    READ_TOPICS = 1 << 7
    POLL_MESSAGES = 1 << 8
    SEND_MESSAGES = 1 << 9
    ALL = (1 << 10) - 1


class StreamRight(IntFlag):
    MANAGE_STREAM = 1 << 0
    READ_STREAM = 1 << 1
    MANAGE_TOPICS = 1 << 2
    READ_TOPICS = 1 << 3
    POLL_MESSAGES = 1 << 4
    SEND_MESSAGES = 1 << 5


class TopicRight(IntFlag):
    MANAGE_TOPIC = 1 << 0
    READ_TOPIC = 1 << 1
    POLL_MESSAGES = 1 << 2
    SEND_MESSAGES = 1 << 3


class StreamGrant(msgspec.Struct, frozen=True):
    rights: int
    topics: dict[int, int] = {}  # topic uid -> TopicRight bits; msgspec copies the default


class Permissions(msgspec.Struct, frozen=True):
    """Keyed by uids: a stream created later under a freed id inherits nobody's rights."""

    rights: int
    streams: dict[int, StreamGrant] = {}


ROOT_PERMISSIONS = Permissions(rights=int(GlobalRight.ALL))


class Token(msgspec.Struct, frozen=True):
    name: str
    digest: bytes
    expiry_at: int  # microseconds since the epoch, 0 = never


class User(msgspec.Struct):
    uid: int
    id: int
    name: str
    created_at: int
    status: int
    password_hash: str
    permissions: Permissions | None
    tokens: dict[str, Token] = {}
    options: bytes = b""
    """As they were given, encoded; streams and topics have theirs in the same form."""

    @property
    def active(self) -> bool:
        return self.status == UserStatus.ACTIVE


class Partition(msgspec.Struct):
    id: int
    created_at: int
    generation: int
    """Higher after each purge or re-creation: offsets of another generation mean nothing here."""
    stream_id: int = UNASSIGNED
    """The SBP stream behind it; assigned when it is first used."""
    shard: int = 0
    """Who leads the shard leads the partition; 0 of those made before there were shards."""


class Group(msgspec.Struct):
    uid: int
    id: int
    name: str


class Topic(msgspec.Struct):
    uid: int
    stream_uid: int
    id: int
    name: str
    created_at: int
    compression: int
    expiry: int  # microseconds; SERVER_DEFAULT and NEVER are kept as given
    max_size: int  # bytes; SERVER_DEFAULT and UNLIMITED are kept as given
    replication: int
    generation: int = 0
    partitions: list[Partition] = []
    groups: dict[int, Group] = {}  # by id
    options: bytes = b""


class Stream(msgspec.Struct):
    uid: int
    id: int
    name: str
    created_at: int
    topics: dict[int, Topic] = {}  # by id
    options: bytes = b""


def log_name(topic_uid: int, partition: int, generation: int) -> str:
    """The name of the SBP stream behind a partition."""
    return f"p/{topic_uid}/{partition}/{generation}"
