"""What `/api/v1` takes and gives. Sizes are bytes, times milliseconds since 1970, rates a second's.

Fields that may be absent in what is sent have defaults; None in an answer: not known, or no limit.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from headrace.web.stram.types import Done as Done

Name = Annotated[str, Meta(min_length=1, max_length=255)]


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """An answer."""


class Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request."""


class SessionStart(Given, frozen=True):
    username: Annotated[str, Meta(min_length=1, max_length=255)]
    password: Annotated[str, Meta(min_length=1, max_length=255)]


class Rights(Info, frozen=True):
    """What the user may do everywhere; rights for single streams and topics come on top."""

    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class SessionInfo(Info, frozen=True):
    username: str
    may_manage: bool
    """Pipelines may be run, changed and stopped."""
    rights: Rights
    version: str


class Totals(Info, frozen=True):
    streams: int
    topics: int
    partitions: int
    messages: int
    bytes: int
    groups: int
    segments: int | None = None
    """None here and below: for who may not read the server's state."""
    clients: int | None = None
    users: int | None = None


class Rates(Info, frozen=True):
    messages_in: float
    bytes_in: float


class ServerInfo(Info, frozen=True):
    """All but the version: for who may read the server's state."""

    version: str
    hostname: str | None = None
    process_id: int | None = None
    uptime_ms: int | None = None
    started_ms: int | None = None
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


class PipelineTotals(Info, frozen=True):
    all: int
    running: int
    failed: int


class Overview(Info, frozen=True):
    time_ms: int
    server: ServerInfo
    totals: Totals
    rates: Rates
    pipelines: PipelineTotals
    history: list[list[float]] = field(default_factory=list)
    """[time, messages a second, bytes a second], oldest first."""


class StreamRow(Info, frozen=True):
    id: int
    name: str
    created_ms: int
    topics: int
    messages: int
    bytes: int
    messages_per_second: float
    bytes_per_second: float


class StreamRows(Info, frozen=True):
    streams: list[StreamRow]


class TopicRow(Info, frozen=True):
    stream_id: int
    stream: str
    id: int
    name: str
    created_ms: int
    partitions: int
    messages: int
    bytes: int
    messages_per_second: float
    bytes_per_second: float
    expiry_ms: int | None
    max_bytes: int | None
    replicas: int
    durability: str | None
    """`synced`: on disk before the answer; `written`: in the page cache."""


class TopicRows(Info, frozen=True):
    topics: list[TopicRow]
    total: int


class PartitionRow(Info, frozen=True):
    id: int
    messages: int
    bytes: int
    segments: int
    start_offset: int | None
    next_offset: int


class TopicInfo(TopicRow, frozen=True):
    parts: list[PartitionRow]
    history: list[list[float]]
    may_manage: bool
    may_send: bool
    may_poll: bool


class GroupRow(Info, frozen=True):
    stream: str
    topic: str
    id: int
    name: str
    members: int
    partitions: int
    lag: int | None
    lag_per_second: float


class GroupRows(Info, frozen=True):
    groups: list[GroupRow]


class GroupPartition(Info, frozen=True):
    partition: int
    member: int | None
    stored_offset: int | None
    current_offset: int
    lag: int


class GroupMember(Info, frozen=True):
    client_id: int
    address: str | None
    partitions: list[int]


class GroupInfo(GroupRow, frozen=True):
    members_list: list[GroupMember]
    parts: list[GroupPartition]
    history: list[list[float]]
    """[time, lag], oldest first."""


class CreateStream(Given, frozen=True):
    name: Name


class CreateTopic(Given, frozen=True):
    name: Name
    partitions: Annotated[int, Meta(ge=1, le=1000)] = 1
    expiry_ms: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    """None: the server's default; 0: never."""
    max_bytes: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    replicas: Annotated[int, Meta(ge=0, le=3)] = 0


class UpdateTopic(Given, frozen=True):
    """What is not named stays as it is."""

    name: Name | None = None
    expiry_ms: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    max_bytes: Annotated[int, Meta(ge=0, le=2**62)] | None = None


class AddPartitions(Given, frozen=True):
    count: Annotated[int, Meta(ge=1, le=1000)]


class CreateGroup(Given, frozen=True):
    name: Name


class MessageHeader(Info, frozen=True):
    name: str
    kind: str
    value: str


class ArrowColumn(Info, frozen=True):
    name: str
    type: str


class ArrowTable(Info, frozen=True):
    columns: list[ArrowColumn]
    rows: list[list[str | None]]
    """The first ones, as text."""
    count: int


class MessageRow(Info, frozen=True):
    partition: int
    offset: int
    timestamp_ms: int
    origin_timestamp_ms: int
    id: str
    key: str | None
    headers: list[MessageHeader]
    bytes: int
    format: Literal["json", "text", "arrow", "hex", "empty"]
    """How `value` is to be read; of Arrow it is empty, and `table` has the rows."""
    value: str
    truncated: bool
    table: ArrowTable | None = None
    note: str = ""
    """Why it is not shown as what it seems to be."""


class Messages(Info, frozen=True):
    messages: list[MessageRow]
    partition: int
    start_offset: int | None
    end_offset: int
    """The offset that the next message will get."""
    next_offset: int
    """Where to go on."""
    scanned: int
    """Messages that were looked at, those that the filter left out included."""


class SendMessage(Given, frozen=True):
    value: str
    encoding: Literal["text", "base64"] = "text"
    key: Annotated[str, Meta(max_length=255)] | None = None
    partition: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    """None: by the key, or else in turn."""
    headers: dict[str, str] = field(default_factory=dict)


class ClientRow(Info, frozen=True):
    id: int
    user_id: int | None
    user: str | None
    transport: str
    address: str
    groups: int


class ClientRows(Info, frozen=True):
    clients: list[ClientRow]


class UserRow(Info, frozen=True):
    id: int
    name: str
    created_ms: int
    active: bool


class UserRows(Info, frozen=True):
    users: list[UserRow]


class UserInfo(UserRow, frozen=True):
    rights: Rights
    streams: list[int]
    """Ids of streams that the user has rights of their own for."""


class CreateUser(Given, frozen=True):
    name: Annotated[str, Meta(min_length=3, max_length=50)]
    password: Annotated[str, Meta(min_length=3, max_length=100)]
    role: Literal["none", "read", "write", "admin"] = "read"


class UpdateUser(Given, frozen=True):
    active: bool


class NodeRow(Info, frozen=True):
    id: int
    address: str
    alive: bool
    draining: bool
    disk_free_bytes: int | None
    ranges: int
    open_ranges: int
    host: str = ""
    """What it is lost together with: its machine, or what `data_node.host` says."""
    host_id: str = ""
    """What all data nodes that run as one on a machine say."""
    quarantined_ranges: int = 0
    """Kept aside: no placement manager knows of them."""


class ManagerRow(Info, frozen=True):
    address: str
    state: str
    """leader, follower, outdated (leads on metadata that was put back), silent, unreachable."""


class BrokerRow(Info, frozen=True):
    address: str
    role: str


class WorkerLease(Info, frozen=True):
    """A worker that lives, as its leases tell."""

    name: str
    address: str
    """Where other workers reach it."""
    shards: int
    coordinates: bool


class ClusterInfo(Info, frozen=True):
    healthy: bool
    problems: list[str]
    placement_managers: list[ManagerRow]
    data_nodes: list[NodeRow]
    brokers: list[BrokerRow]
    streams: int
    ranges: int
    ranges_sealing: int
    ranges_under_replicated: int
    ranges_unavailable: int
    notes: list[str] = []
    """What is not wrong, and good to know."""
    metadata_version: int = -1
    metadata_seen: int = -1
    """By data nodes; higher than the version: the metadata was put back to an earlier state."""
    ranges_torn: list[str] = []
    """Sealed ranges whose end is on no living node, and what to do."""
    workers: list[WorkerLease] = []
    """Empty where one process leads everything."""


class WorkerRow(Info, frozen=True):
    """Counts are of the time since the worker started."""

    name: str
    number: int
    host: str
    address: str
    """Where clients reach it."""
    coordinates: bool
    shards: int
    partitions: int
    connections: int
    requests: int
    requests_passed_on: int
    """Of its clients' requests: answered by another worker."""
    requests_taken_in: int
    """Answered for clients of other workers."""
    loop_delay_ms: float
    """How late its event loop was: 99 of 100 ticks of the last minute were no later."""
    memory_bytes: int
    cpu_percent: float


class ShardRow(Info, frozen=True):
    shard: int
    worker: str | None
    """Who leads it, by name."""
    epoch: int | None
    partitions: int
    pinned: str | None
    """Who it was given to, by name; None: balance decides."""


class WorkerRows(Info, frozen=True):
    workers: list[WorkerRow]
    shards: list[ShardRow]


class MoveShard(Given, frozen=True):
    worker: Annotated[str, Meta(max_length=255)]
    """A name or a number; empty: balance decides."""


class ShardMoved(Info, frozen=True):
    shard: int
    worker: str | None
    """Who leads it now; not yet `pinned`: it goes there as soon as it can."""
    pinned: str | None


class ReplicaRow(Info, frozen=True):
    node_id: int
    address: str
    primary: bool


class RangeRow(Info, frozen=True):
    partition: int
    stream_id: int
    index: int
    start_offset: int
    end_offset: int | None
    """None: it is open."""
    epoch: int
    acknowledgements: int
    replicas: list[ReplicaRow]


class RangeRows(Info, frozen=True):
    ranges: list[RangeRow]
