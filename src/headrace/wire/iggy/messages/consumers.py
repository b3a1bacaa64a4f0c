"""Consumer groups (codes 600 to 606).

Stored consumer offsets (codes 120 to 122).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from headrace.wire.iggy.fields import (
    FLAG,
    ONLY_C,
    PARTITION,
    U32,
    U64,
    Body,
    Id,
    OptionalPartition,
    Partition,
    RequestedId,
    Str8,
    counted,
    in_dialects,
    nested,
    tail,
    to_end,
)
from headrace.wire.iggy.primitives import ConsumerField, Reference


@dataclass(frozen=True, slots=True)
class Group(Body):
    id: Id
    partitions_count: U32
    members_count: U32
    name: Str8


@dataclass(frozen=True, slots=True)
class GroupMember(Body):
    """`id` is the client id of the member's connection, which is never shifted."""

    id: U32
    partitions: Annotated[tuple[int, ...], counted(PARTITION)]


@dataclass(frozen=True, slots=True)
class GroupDetails(Body):
    group: Annotated[Group, nested(Group)]
    members: Annotated[tuple[GroupMember, ...], to_end(nested(GroupMember))] = ()


@dataclass(frozen=True, slots=True)
class Groups(Body):
    groups: Annotated[tuple[Group, ...], to_end(nested(Group))]


@dataclass(frozen=True, slots=True)
class GetGroup(Body):
    stream: Reference
    topic: Reference
    group: Reference


@dataclass(frozen=True, slots=True)
class GetGroups(Body):
    stream: Reference
    topic: Reference


@dataclass(frozen=True, slots=True)
class CreateGroup(Body):
    stream: Reference
    topic: Reference
    group_id: RequestedId = field(default=None, kw_only=True)
    name: Str8


@dataclass(frozen=True, slots=True)
class DeleteGroup(Body):
    stream: Reference
    topic: Reference
    group: Reference


@dataclass(frozen=True, slots=True)
class JoinGroup(Body):
    stream: Reference
    topic: Reference
    group: Reference


@dataclass(frozen=True, slots=True)
class LeaveGroup(Body):
    stream: Reference
    topic: Reference
    group: Reference


@dataclass(frozen=True, slots=True)
class SyncGroup(Body):
    """Dialect C: a member asks which partitions are its own, and polls each by its number."""

    stream: Reference
    topic: Reference
    group: Reference


@dataclass(frozen=True, slots=True)
class GroupAssignment(Body):
    generation: U64
    """Another one whenever partitions have changed hands."""
    partitions: Annotated[tuple[int, ...], counted(PARTITION)]


_Acknowledge: TypeAlias = Annotated[bool, in_dialects(tail(FLAG, True), ONLY_C, True)]
"""Whether to wait until the change is safe; here every change is, before it is answered."""


@dataclass(frozen=True, slots=True)
class GetConsumerOffset(Body):
    consumer: ConsumerField
    stream: Reference
    topic: Reference
    partition: OptionalPartition = None


@dataclass(frozen=True, slots=True)
class ConsumerOffset(Body):
    partition: Partition
    current_offset: U64
    """The partition's last offset."""
    stored_offset: U64


@dataclass(frozen=True, slots=True)
class StoreConsumerOffset(Body):
    consumer: ConsumerField
    stream: Reference
    topic: Reference
    partition: OptionalPartition
    offset: U64
    acknowledge: _Acknowledge = True


@dataclass(frozen=True, slots=True)
class DeleteConsumerOffset(Body):
    consumer: ConsumerField
    stream: Reference
    topic: Reference
    partition: OptionalPartition = None
    acknowledge: _Acknowledge = True
