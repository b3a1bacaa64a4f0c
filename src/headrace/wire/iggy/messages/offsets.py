"""Stored consumer offsets (codes 120 to 122)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from headrace.wire.iggy.fields import (
    FLAG,
    ONLY_C,
    U64,
    Body,
    OptionalPartition,
    Partition,
    in_dialects,
    tail,
)
from headrace.wire.iggy.primitives import ConsumerField, Reference

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
