"""What the placement manager remembers, and the operations that change it.

A record is a msgpack map with named fields, so that fields may be added with defaults. Keys are
fixed-width text: an ordered scan of the store is a scan in numeric order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, TypeAlias

import msgspec


class Table(StrEnum):
    STREAMS = "streams"
    RANGES = "ranges"
    NODES = "nodes"
    LEASES = "leases"
    COUNTERS = "counters"


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[Table] = Table.STREAMS
    stream_id: int
    name: str = ""
    replica_nums: int = 1
    retention_period_ms: int = 0
    durability: int = 0
    deleted_ms: int = -1  # a tombstone since then; -1 while the stream lives

    @property
    def key(self) -> str:
        return f"{self.stream_id:020d}"


class RangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[Table] = Table.RANGES
    stream_id: int
    range_index: int
    start: int
    end: int = -1  # -1 while open
    sealing: bool = False  # the intent is durable; data nodes may have sealed it already
    replicas: tuple[int, ...] = ()  # node ids, the primary first
    ack_quorum: int = 1  # replicas that hold an offset before it is acknowledged
    writer_epoch: int = -1  # -1: a plain stream, anybody appends
    replica_nums: int = 0  # copies that were asked for when it was opened; 0: as many as it got
    joining: tuple[int, ...] = ()  # sealed: nodes that are becoming replicas
    incomplete: tuple[int, ...] = ()  # sealed: replicas not known to hold all of it
    doubtful: int = -1  # sealed: from here on too few are known to hold it; -1: enough hold all
    lost: int = -1  # sealed: from here on an operator has given it up; -1: nothing

    @property
    def key(self) -> str:
        return f"{self.stream_id:020d}/{self.range_index:011d}"

    @property
    def open(self) -> bool:
        return self.end < 0

    @property
    def content_end(self) -> int:
        """Where ends what replicas hold of it, or should; the next range begins at its end."""
        return self.end if self.lost < 0 else self.lost


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[Table] = Table.NODES
    node_id: int
    address: str
    store_id: str = ""
    host: str = ""  # the machine it says it is on
    host_id: str = ""  # the same for all nodes that run as one; empty: a node by itself
    replaced: bool = False  # another node has its address: its disk, or the machine, is gone

    @property
    def key(self) -> str:
        return f"{self.node_id:011d}"


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    table: ClassVar[Table] = Table.LEASES
    name: str
    epoch: int
    holder: str = ""  # empty after a release
    duration_ms: int = 0
    address: str = ""

    @property
    def key(self) -> str:
        return self.name


class CounterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Ids below `bound` may have been given out; after a restart the next one is `bound`."""

    table: ClassVar[Table] = Table.COUNTERS
    name: str
    bound: int

    @property
    def key(self) -> str:
        return self.name


Record: TypeAlias = StreamRecord | RangeRecord | NodeRecord | LeaseRecord | CounterRecord

RECORDS: dict[Table, type[Record]] = {
    cls.table: cls for cls in (StreamRecord, RangeRecord, NodeRecord, LeaseRecord, CounterRecord)
}


class Put(msgspec.Struct, frozen=True):
    record: Record


class Remove(msgspec.Struct, frozen=True):
    record: Record


Operation: TypeAlias = Put | Remove
Operations: TypeAlias = Sequence[Operation]

OPERATIONS_MAX = 100
"""Of one transaction: what etcd takes by default, so that every store can keep the promise."""


def encode_record(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_record(table: Table, value: bytes) -> Record:
    return msgspec.msgpack.decode(value, type=RECORDS[table])
