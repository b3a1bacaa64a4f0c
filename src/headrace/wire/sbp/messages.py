"""SBP header tables as dataclasses; the FlatBuffers field id and type stand at each field.

Ids are explicit and only ever appended. Fields marked "ours" are Headrace's extensions: absent
means the seed's behaviour, scalars default to -1. `flat.py` turns these classes into FlatBuffers
and back. In one process the objects themselves are handed over and nothing is encoded.
"""

from __future__ import annotations

from enum import IntEnum

from headrace.wire.sbp.flat import (
    Message,
    boolean,
    i8,
    i16,
    i32,
    i64,
    i64_vector,
    message,
    octets,
    string,
    table,
    tables,
)

__all__ = ["Message"]


class ClientRole(IntEnum):
    UNSPECIFIED = 0
    PLACEMENT_MANAGER = 1
    DATA_NODE = 2
    CUSTOMER = 3


class Durability(IntEnum):
    """What an acknowledged append promises (Stream.durability; -1 reads as SYNCED)."""

    SYNCED = 0  # fdatasync before the acknowledgement
    WRITTEN = 1  # in the page cache: survives the process, not a power cut


@message
class Status(Message):
    code: int = i16(0)
    message: str = string(1)
    detail: bytes = octets(2)


OK = Status()


@message
class SystemErrorResponse(Message):
    status: Status | None = table(0, Status)


@message
class PlacementManagerNode(Message):
    name: str = string(0)
    advertise_addr: str = string(1)
    is_leader: bool = boolean(2)


@message
class PlacementManager(Message):
    """Root of Status.detail when the code is PM_NOT_LEADER."""

    nodes: tuple[PlacementManagerNode, ...] = tables(0, PlacementManagerNode)


@message
class DataNode(Message):
    node_id: int = i32(0, -1)
    advertise_addr: str = string(1)


@message
class ReplicaNode(Message):
    data_node: DataNode | None = table(0, DataNode)
    is_primary: bool = boolean(1)


@message
class RangeId(Message):
    stream_id: int = i64(0, -1)
    range_index: int = i32(1, -1)
    writer_epoch: int = i64(2, -1)  # ours
    accept_loss: int = i64(3, -1)  # ours: give up what a sealed range lacks from this offset on
    preferred_node: int = i32(4, -1)  # ours: who should lead the next range; -1: anybody


@message
class ProducerState(Message):
    """Ours: a batch of a producer that is in the log, travels with seal and sync."""

    producer_id: int = i64(0, -1)
    next_sequence: int = i64(1, -1)
    last_base_offset: int = i64(2, -1)
    records: int = i32(3, -1)  # of that batch; -1, here and below: not known
    crc: int = i64(4, -1)


@message
class Range(Message):
    stream_id: int = i64(0, -1)
    range_index: int = i32(1, -1)
    start_offset: int = i64(2)
    end_offset: int = i64(
        3, -1, written=True
    )  # -1 = open; always written, the seed's default was 0
    next_offset: int = i64(4)
    replica_nodes: tuple[ReplicaNode, ...] = tables(5, ReplicaNode)
    writer_epoch: int = i64(6, -1)  # ours
    producers: tuple[ProducerState, ...] = tables(7, ProducerState)  # ours
    ack_quorum: int = i8(8, -1)  # ours: replicas that hold an offset before it is acknowledged
    producers_whole: bool = boolean(9)  # ours: all there is to know of producers comes with it
    acknowledged_offset: int = i64(
        10, -1
    )  # ours, in the answer to a seal: where ends what this node acknowledged; -1: it cannot tell
    doubtful_offset: int = i64(
        11, -1
    )  # ours: from here on fewer disks may hold it than an acknowledgement takes; -1: none of it
    held_offset: int = i64(12, -1)  # ours: as far as a living node has it; -1: one has all of it
    lost_until: int = i64(13, -1)  # ours: from the end to here an operator has given it up


def ack_quorum(replicas: int) -> int:
    """How many of a range's replicas hold a record before the record is acknowledged: a majority,
    and both of two. `Range.ack_quorum` says so where a range was opened by another rule."""
    return replicas // 2 + 1


@message
class Stream(Message):
    stream_id: int = i64(0, -1)
    replica_nums: int = i8(1)
    retention_period_ms: int = i64(2)
    name: str = string(3)  # ours: unique, create-if-absent
    durability: int = i8(4, -1)  # ours
    preferred_node: int = i32(5, -1)  # ours, to create it: who should lead its first range


@message
class HeartbeatRequest(Message):
    client_id: str = string(0)
    client_role: int = i8(1)
    data_node: DataNode | None = table(2, DataNode)
    credential: bytes = octets(3)  # ours
    metadata_version: int = i64(4, -1)  # ours: the newest that this data node has seen
    host: str = string(5)  # ours: the machine that a data node is on
    host_id: str = string(6)  # ours: same for all data nodes that run as one; empty: by itself


@message
class HeartbeatResponse(Message):
    client_id: str = string(0)
    client_role: int = i8(1)
    data_node: DataNode | None = table(2, DataNode)
    status: Status | None = table(3, Status)
    metadata_version: int = i64(4, -1)  # ours: of a placement manager that leads


@message
class IdAllocationRequest(Message):
    timeout_ms: int = i32(0)
    host: str = string(1)


@message
class IdAllocationResponse(Message):
    id: int = i32(0, -1, written=True)
    status: Status | None = table(1, Status)


@message
class AppendInfo(Message):
    range: Range | None = table(0, Range)
    request_index: int = i32(1)
    batch_length: int = i32(2)
    writer_epoch: int = i64(3, -1)  # ours
    expected_offset: int = i64(4, -1)  # ours


@message
class AppendRequest(Message):
    """Payload: the record batches one after the other, `batch_length` bytes each."""

    timeout_ms: int = i32(0)
    append_requests: tuple[AppendInfo, ...] = tables(1, AppendInfo)


@message
class AppendResult(Message):
    stream_id: int = i64(0, -1)
    request_index: int = i32(1)
    base_offset: int = i64(2)
    stream_append_time_ms: int = i64(3)
    status: Status | None = table(4, Status)


@message
class AppendResponse(Message):
    throttle_time_ms: int = i32(0)
    append_responses: tuple[AppendResult, ...] = tables(1, AppendResult)
    status: Status | None = table(2, Status)


@message
class FetchInfo(Message):
    stream_id: int = i64(0, -1)
    request_index: int = i32(1)
    fetch_offset: int = i64(2)
    batch_max_bytes: int = i32(3)
    start_timestamp: int = i64(4, -1)  # ours: ms; the first batch whose max_timestamp reaches it
    machine: str = string(5)  # ours: where the reader runs, if it can read the node's files there


@message
class FetchRequest(Message):
    max_wait_ms: int = i32(0)
    min_bytes: int = i32(1)
    fetch_requests: tuple[FetchInfo, ...] = tables(2, FetchInfo)


@message
class FileStretch(Message):
    """Ours: where whole batches stand in a file, for a reader on the node's machine that asked for
    it. The first starts at `start_position` with `start_offset`, the last ends at `stop_offset`,
    below `stop_position`; between two of them there may be marks."""

    path: str = string(0)
    identity: str = string(1)  # of the file: a path alone may lead elsewhere
    binding: int = i64(2)  # of the marks to this file
    start_position: int = i64(3)
    start_offset: int = i64(4)
    stop_position: int = i64(5)
    stop_offset: int = i64(6)


@message
class FetchResult(Message):
    stream_id: int = i64(0, -1)
    request_index: int = i32(1)
    batch_length: int = i32(2)  # bytes of this result inside this frame's payload
    status: Status | None = table(3, Status)
    stretch: FileStretch | None = table(4, FileStretch)  # ours: instead of bytes


@message
class FetchResponse(Message):
    throttle_time_ms: int = i32(0)
    fetch_responses: tuple[FetchResult, ...] = tables(1, FetchResult)
    status: Status | None = table(2, Status)


@message
class RangeCriteria(Message):
    data_node: DataNode | None = table(0, DataNode)
    stream_id: int = i64(1, -1)
    quarantined: bool = boolean(2)  # ours, to a data node: those that it keeps aside


@message
class ListRangesRequest(Message):
    timeout_ms: int = i32(0)
    range_criteria: tuple[RangeCriteria, ...] = tables(1, RangeCriteria)


@message
class ListRangesResult(Message):
    range_criteria: RangeCriteria | None = table(0, RangeCriteria)
    ranges: tuple[Range, ...] = tables(1, Range)
    status: Status | None = table(2, Status)


@message
class ListRangesResponse(Message):
    throttle_time_ms: int = i32(0)
    list_responses: tuple[ListRangesResult, ...] = tables(1, ListRangesResult)
    status: Status | None = table(2, Status)


@message
class SealRangesRequest(Message):
    timeout_ms: int = i32(0)
    ranges: tuple[RangeId, ...] = tables(1, RangeId)
    metadata_version: int = i64(2, -1)  # ours, to a data node: the placement manager's


@message
class SealRangesResult(Message):
    """From a data node the sealed range, from the placement manager the new writable one."""

    range: Range | None = table(0, Range)
    status: Status | None = table(1, Status)
    producers: tuple[ProducerState, ...] = tables(2, ProducerState)  # ours


@message
class SealRangesResponse(Message):
    throttle_time_ms: int = i32(0)
    seal_responses: tuple[SealRangesResult, ...] = tables(1, SealRangesResult)
    status: Status | None = table(2, Status)


@message
class StreamRanges(Message):
    stream_id: int = i64(0, -1)
    ranges: tuple[Range, ...] = tables(1, Range)
    durability: int = i8(2, -1)  # ours: the data node must know what its acknowledgement promises
    reserved: bool = boolean(3)  # ours: control state, may use the disk space kept back for it


@message
class SyncRangesRequest(Message):
    timeout_ms: int = i32(0)
    stream_ranges: tuple[StreamRanges, ...] = tables(1, StreamRanges)
    metadata_version: int = i64(2, -1)  # ours: the placement manager's


@message
class SyncRangesResult(Message):
    stream_id: int = i64(0, -1)
    ranges: tuple[Range, ...] = tables(1, Range)
    status: Status | None = table(2, Status)


@message
class SyncRangesResponse(Message):
    throttle_time_ms: int = i32(0)
    sync_responses: tuple[SyncRangesResult, ...] = tables(1, SyncRangesResult)
    status: Status | None = table(2, Status)


@message
class DescribeRangesRequest(Message):
    timeout_ms: int = i32(0)
    ranges: tuple[RangeId, ...] = tables(1, RangeId)
    sync: bool = boolean(2)  # ours: make everything written durable before answering


@message
class SegmentInfo(Message):
    """Ours: one segment file of a range."""

    base: int = i64(0)
    end: int = i64(1)
    bytes: int = i64(2)
    max_timestamp: int = i64(3)


@message
class DescribeRangeResult(Message):
    stream_id: int = i64(0, -1)
    range: Range | None = table(1, Range)
    status: Status | None = table(2, Status)
    segments: tuple[SegmentInfo, ...] = tables(3, SegmentInfo)  # ours


@message
class DescribeRangesResponse(Message):
    throttle_time_ms: int = i32(0)
    describe_responses: tuple[DescribeRangeResult, ...] = tables(1, DescribeRangeResult)
    status: Status | None = table(2, Status)


@message
class CreateStreamsRequest(Message):
    timeout_ms: int = i32(0)
    streams: tuple[Stream, ...] = tables(1, Stream)


@message
class CreateStreamResult(Message):
    stream: Stream | None = table(0, Stream)
    range: Range | None = table(1, Range)
    status: Status | None = table(2, Status)


@message
class CreateStreamsResponse(Message):
    throttle_time_ms: int = i32(0)
    create_responses: tuple[CreateStreamResult, ...] = tables(1, CreateStreamResult)
    status: Status | None = table(2, Status)


@message
class DeleteStreamsRequest(Message):
    timeout_ms: int = i32(0)
    streams: tuple[Stream, ...] = tables(1, Stream)
    metadata_version: int = i64(2, -1)  # ours, to a data node: the placement manager's


@message
class DeleteStreamResult(Message):
    deleted_stream: Stream | None = table(0, Stream)
    status: Status | None = table(1, Status)


@message
class DeleteStreamsResponse(Message):
    throttle_time_ms: int = i32(0)
    delete_responses: tuple[DeleteStreamResult, ...] = tables(1, DeleteStreamResult)
    status: Status | None = table(2, Status)


@message
class UpdateStreamsRequest(Message):
    timeout_ms: int = i32(0)
    streams: tuple[Stream, ...] = tables(1, Stream)


@message
class UpdateStreamResult(Message):
    stream: Stream | None = table(0, Stream)
    status: Status | None = table(1, Status)


@message
class UpdateStreamsResponse(Message):
    throttle_time_ms: int = i32(0)
    update_responses: tuple[UpdateStreamResult, ...] = tables(1, UpdateStreamResult)
    status: Status | None = table(2, Status)


@message
class DescribeStreamsRequest(Message):
    timeout_ms: int = i32(0)
    stream_ids: tuple[int, ...] = i64_vector(1)


@message
class DescribeStreamResult(Message):
    stream: Stream | None = table(0, Stream)
    status: Status | None = table(1, Status)


@message
class DescribeStreamsResponse(Message):
    throttle_time_ms: int = i32(0)
    describe_responses: tuple[DescribeStreamResult, ...] = tables(1, DescribeStreamResult)
    status: Status | None = table(2, Status)


@message
class TrimmedStream(Message):
    stream_id: int = i64(0, -1)
    trim_offset: int = i64(1)


@message
class TrimStreamsRequest(Message):
    timeout_ms: int = i32(0)
    trimmed_streams: tuple[TrimmedStream, ...] = tables(1, TrimmedStream)
    metadata_version: int = i64(2, -1)  # ours, to a data node: the placement manager's


@message
class TrimStreamResult(Message):
    trimmed_stream: Stream | None = table(0, Stream)
    range: Range | None = table(1, Range)
    status: Status | None = table(2, Status)


@message
class TrimStreamsResponse(Message):
    throttle_time_ms: int = i32(0)
    trim_responses: tuple[TrimStreamResult, ...] = tables(1, TrimStreamResult)
    status: Status | None = table(2, Status)


@message
class ReportMetricsRequest(Message):
    data_node: DataNode | None = table(0, DataNode)
    disk_in_rate: int = i64(1)
    disk_out_rate: int = i64(2)
    disk_free_space: int = i64(3)
    disk_unindexed_data_size: int = i64(4)
    memory_used: int = i64(5)
    uring_task_rate: int = i16(6)
    uring_inflight_task_cnt: int = i16(7)
    uring_pending_task_cnt: int = i32(8)
    uring_task_avg_latency: int = i16(9)
    network_append_rate: int = i16(10)
    network_fetch_rate: int = i16(11)
    network_failed_append_rate: int = i16(12)
    network_failed_fetch_rate: int = i16(13)
    network_append_avg_latency: int = i16(14)
    network_fetch_avg_latency: int = i16(15)
    range_missing_replica_cnt: int = i16(16)
    range_active_cnt: int = i16(17)
    disk_total_space: int = i64(18, -1)  # ours: what disk_free_space is a part of
    range_quarantined_cnt: int = i32(19, -1)  # ours: kept aside, unknown to placement


@message
class ReportMetricsResponse(Message):
    data_node: DataNode | None = table(0, DataNode)
    status: Status | None = table(1, Status)


class LeaseAction(IntEnum):
    ACQUIRE = 0  # also renews when the holder is the same
    RELEASE = 1
    QUERY = 2
    CHANGE_MANY = 3  # each of `leases` as its own action says, on its own
    LIST = 4  # all that begin with `name`; once they differ from `version`, or `wait_ms` is over
    RELEASE_HOLDER = 5  # all of `holder` that begin with `name`: the holder is dead


@message
class LeaseChange(Message):
    """Ours: what CHANGE_MANY asks for one name; holder, duration and address are the request's."""

    name: str = string(0)
    action: int = i8(1)  # ACQUIRE, RELEASE or QUERY
    epoch: int = i64(2, -1)  # as in LeaseRequest


@message
class LeaseRequest(Message):
    """Ours: leadership by name. The epoch rises whenever the holder changes and never falls."""

    timeout_ms: int = i32(0)
    action: int = i8(1)
    name: str = string(2)
    holder: str = string(3)
    duration_ms: int = i32(4)
    address: str = string(5)  # where the holder serves, told to others
    epoch: int = i64(6, -1)  # of the lease being renewed or released; -1 on first acquire
    leases: tuple[LeaseChange, ...] = tables(7, LeaseChange)  # for CHANGE_MANY
    version: int = i64(8, -1)  # for LIST: what the asker knows; -1: nothing
    wait_ms: int = i32(9)  # for LIST: how long an answer may wait for something new


@message
class LeaseResult(Message):
    """Ours: one lease of several. `holder`, `address`, `remaining_ms` are those of who holds it."""

    name: str = string(0)
    granted: bool = boolean(1)
    epoch: int = i64(2, -1)  # the last that was given out; -1: the name is unknown
    holder: str = string(3)
    remaining_ms: int = i32(4)
    address: str = string(5)
    status: Status | None = table(6, Status)


@message
class LeaseResponse(Message):
    granted: bool = boolean(0)
    epoch: int = i64(1, -1)
    holder: str = string(2)
    remaining_ms: int = i32(3)
    address: str = string(4)
    status: Status | None = table(5, Status)
    leases: tuple[LeaseResult, ...] = tables(6, LeaseResult)  # of several: in the order asked for
    version: int = i64(7, -1)  # of all leases together: another one with each change


@message
class LeaseInfo(Message):
    """Ours: a lease that is held now."""

    name: str = string(0)
    holder: str = string(1)
    address: str = string(2)
    epoch: int = i64(3, -1)
    remaining_ms: int = i32(4)


@message
class NodeInfo(Message):
    """Ours: a data node as the placement manager sees it."""

    data_node: DataNode | None = table(0, DataNode)
    is_alive: bool = boolean(1)
    disk_free_bytes: int = i64(2, -1)  # -1: it has not reported
    ranges: int = i32(3)
    open_ranges: int = i32(4)  # of those
    is_draining: bool = boolean(5)
    ranges_quarantined: int = i32(6, -1)  # -1: it has not reported
    host: str = string(7)
    host_id: str = string(8)  # what the node says; `host` is what replicas are kept apart by


@message
class DescribeClusterRequest(Message):
    """Ours: who is there and how the log is doing."""

    timeout_ms: int = i32(0)
    count_ranges: bool = boolean(1)  # looks at every range: for people, not for every second


@message
class DescribeClusterResponse(Message):
    placement_managers: tuple[PlacementManagerNode, ...] = tables(0, PlacementManagerNode)
    nodes: tuple[NodeInfo, ...] = tables(1, NodeInfo)
    leases: tuple[LeaseInfo, ...] = tables(2, LeaseInfo)
    streams: int = i32(3)
    ranges: int = i32(4)  # -1 from here on: not counted
    ranges_sealing: int = i32(5)
    ranges_short: int = i32(6)  # with fewer complete replicas on live nodes than their stream wants
    ranges_unavailable: int = i32(7)  # with none
    status: Status | None = table(8, Status)
    metadata_version: int = i64(9, -1)
    metadata_seen: int = i64(10, -1)  # the newest that a data node has seen; higher: ours is old
    ranges_torn: tuple[Range, ...] = tables(11, Range)  # the first of those without their end


@message
class AdoptRequest(Message):
    """Ours: take into the metadata what data nodes hold and it does not list."""

    timeout_ms: int = i32(0)
    stream_id: int = i64(1, -1)  # -1: of every stream that is listed
    name: str = string(2)  # of a stream that is not listed
    accept_metadata: bool = boolean(3)  # go on although data nodes have seen newer metadata


@message
class AdoptResponse(Message):
    ranges: tuple[Range, ...] = tables(0, Range)  # listed from now on
    metadata_version: int = i64(1, -1)
    status: Status | None = table(2, Status)
