"""Stored consumer offsets (codes 120 to 122)."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.wire.iggy.fields import U64, Body, OptionalPartition, Partition
from headrace.wire.iggy.primitives import ConsumerField, Reference


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


@dataclass(frozen=True, slots=True)
class DeleteConsumerOffset(Body):
    consumer: ConsumerField
    stream: Reference
    topic: Reference
    partition: OptionalPartition = None
