"""PING, statistics, snapshot, cluster metadata, options, clients (codes 1 to 22)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Self

from headrace.errors import LocalProtocolError
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import (
    F32,
    U8,
    U8_LAYOUT,
    U16,
    U32,
    U32_LAYOUT,
    U64,
    U64_LAYOUT,
    Body,
    Codec,
    Id,
    LoggedInUser,
    Partition,
    Reader,
    Str8,
    Str32,
    Writer,
    choice,
    counted,
    nested,
    tail,
    to_end,
)


@dataclass(frozen=True, slots=True)
class Empty(Body):
    """No bytes: the request of listings, the reply of most changes."""


@dataclass(frozen=True, slots=True)
class CacheMetrics(Body):
    stream_id: Id
    topic_id: Id
    partition: Partition
    hits: U64
    misses: U64
    hit_ratio: F32


def _late_number(layout: str) -> Codec[int]:
    number = {"u32": U32_LAYOUT, "u64": U64_LAYOUT}[layout]

    def write(writer: Writer, value: int) -> None:
        if writer.dialect not in (Dialect.A, Dialect.B1):
            writer.number(number, value)

    return tail(Codec(lambda r: int(r.number(number)), write), 0)


@dataclass(frozen=True, slots=True)
class Stats(Body):
    """The last three fields came with 0.8.0, whose client insists on them; 0.7.0, which is of the
    same dialect, skips them; A and B1 have none."""

    process_id: U32
    cpu_usage: F32
    total_cpu_usage: F32
    memory_usage: U64
    total_memory: U64
    available_memory: U64
    run_time_us: U64
    start_time_us: U64
    read_bytes: U64
    written_bytes: U64
    messages_size_bytes: U64
    streams_count: U32
    topics_count: U32
    partitions_count: U32
    segments_count: U32
    messages_count: U64
    clients_count: U32
    consumer_groups_count: U32
    hostname: Str32
    os_name: Str32
    os_version: Str32
    kernel_version: Str32
    server_version: Str32
    server_semver: U32
    cache_metrics: Annotated[tuple[CacheMetrics, ...], counted(nested(CacheMetrics))] = ()
    threads_count: Annotated[int, _late_number("u32")] = 0
    free_disk_space: Annotated[int, _late_number("u64")] = 0
    total_disk_space: Annotated[int, _late_number("u64")] = 0


def semver(version: str) -> int:
    """`0.8.1` as 8001: major * 1,000,000 + minor * 1,000 + patch."""
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return major * 1_000_000 + minor * 1_000 + patch


class SnapshotCompression(IntEnum):
    STORED = 1
    DEFLATED = 2
    BZIP2 = 3
    ZSTD = 4
    LZMA = 5
    XZ = 6


class SnapshotType(IntEnum):
    FILESYSTEM_OVERVIEW = 1
    PROCESS_LIST = 2
    RESOURCE_USAGE = 3
    TEST = 4
    SERVER_LOGS = 5
    SERVER_CONFIG = 6
    ALL = 100


@dataclass(frozen=True, slots=True)
class GetSnapshot(Body):
    compression: Annotated[SnapshotCompression, choice(SnapshotCompression)]
    types: Annotated[tuple[SnapshotType, ...], counted(choice(SnapshotType), U8_LAYOUT)]


@dataclass(frozen=True, slots=True)
class Snapshot(Body):
    """The bytes of a ZIP archive, as they are."""

    archive: Annotated[bytes, Codec(lambda r: bytes(r.take(r.remaining)), lambda w, v: w.extend(v))]


class NodeRole(IntEnum):
    LEADER = 0
    FOLLOWER = 1


class NodeStatus(IntEnum):
    HEALTHY = 0
    STARTING = 1
    STOPPING = 2
    UNREACHABLE = 3
    MAINTENANCE = 4
    UNKNOWN = 5


class TransportKind(IntEnum):
    TCP = 1
    QUIC = 2
    HTTP = 3
    WEBSOCKET = 4


@dataclass(frozen=True, slots=True)
class ClusterNode(Body):
    name: Str32
    ip: Str32
    tcp_port: U16
    quic_port: U16
    http_port: U16
    websocket_port: U16
    role: Annotated[NodeRole, choice(NodeRole)]
    status: Annotated[NodeStatus, choice(NodeStatus)]


@dataclass(frozen=True, slots=True)
class _ClusterNodeA(Body):
    id: U32
    name: Str32
    address: Str32
    role: Annotated[NodeRole, choice(NodeRole)]
    status: Annotated[NodeStatus, choice(NodeStatus)]


@dataclass(frozen=True, slots=True)
class _ClusterMetadataA(Body):
    name: Str32
    id: U32
    transport: U8
    nodes: Annotated[tuple[_ClusterNodeA, ...], counted(nested(_ClusterNodeA))]


@dataclass(frozen=True, slots=True)
class ClusterMetadata(Body):
    """With one node an SDK stays where it is; with several it goes to the healthy leader.

    Dialect A has one transport per cluster and an `ip:port` text per node; we speak TCP to it.
    """

    name: Str32
    nodes: Annotated[tuple[ClusterNode, ...], counted(nested(ClusterNode))]

    @classmethod
    def read(cls, reader: Reader) -> Self:
        if reader.dialect is not Dialect.A:
            return super(ClusterMetadata, cls).read(reader)
        old = _ClusterMetadataA.read(reader)
        return cls(old.name, tuple(_from_a(node) for node in old.nodes))

    def write(self, writer: Writer) -> None:
        if writer.dialect is not Dialect.A:
            super(ClusterMetadata, self).write(writer)
            return
        nodes = tuple(
            _ClusterNodeA(i, n.name, f"{n.ip}:{n.tcp_port}", n.role, n.status)
            for i, n in enumerate(self.nodes)
        )
        _ClusterMetadataA(self.name, 0, TransportKind.TCP, nodes).write(writer)


def _from_a(node: _ClusterNodeA) -> ClusterNode:
    ip, _, port = node.address.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 0xFFFF):
        raise DecodeError(
            Status.INVALID_FORMAT, "node address without a port", address=node.address
        )
    return ClusterNode(node.name, ip, int(port), 0, 0, 0, node.role, node.status)


@dataclass(frozen=True, slots=True)
class GetClient(Body):
    client_id: U32


@dataclass(frozen=True, slots=True)
class ClientInfo(Body):
    client_id: U32
    user_id: LoggedInUser
    transport: Annotated[TransportKind, choice(TransportKind)]
    address: Str32
    groups_count: U32


@dataclass(frozen=True, slots=True)
class Clients(Body):
    clients: Annotated[tuple[ClientInfo, ...], to_end(nested(ClientInfo))]


@dataclass(frozen=True, slots=True)
class ClientGroup(Body):
    stream_id: Id
    topic_id: Id
    group_id: Id


@dataclass(frozen=True, slots=True)
class ClientDetails(Body):
    client: Annotated[ClientInfo, nested(ClientInfo)]
    groups: Annotated[tuple[ClientGroup, ...], to_end(nested(ClientGroup))]

    def write(self, writer: Writer) -> None:
        if self.client.groups_count != len(self.groups):
            raise LocalProtocolError("groups_count does not match the groups")
        super(ClientDetails, self).write(writer)


def _write_bytes(writer: Writer, value: bytes) -> None:
    writer.number(U32_LAYOUT, len(value))
    writer += value


_BYTES32 = Codec(lambda r: bytes(r.take(r.u32())), _write_bytes)


class OptionScope(IntEnum):
    TOPIC = 1
    STREAM = 2
    USER = 3


@dataclass(frozen=True, slots=True)
class DescribeOptions(Body):
    scope: Annotated[OptionScope, choice(OptionScope)]


@dataclass(frozen=True, slots=True)
class OptionInfo(Body):
    key: Str8
    kind: U8
    """The kind of the option's value: one of user headers."""
    default: Annotated[bytes, _BYTES32]
    """A value of that kind: 0.9.0 reads nothing else."""
    description: Str32


@dataclass(frozen=True, slots=True)
class DescribedOptions(Body):
    options: Annotated[tuple[OptionInfo, ...], counted(nested(OptionInfo))]
