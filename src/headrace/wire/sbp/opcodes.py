"""The one table of SBP opcodes: code, name, message classes, and who serves it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, IntEnum, auto

from headrace.wire.sbp import messages as m


class Role(Flag):
    PLACEMENT_MANAGER = auto()
    DATA_NODE = auto()
    ANY = PLACEMENT_MANAGER | DATA_NODE


class Code(IntEnum):
    PING = 0x0001
    GOAWAY = 0x0002
    HEARTBEAT = 0x0003
    ALLOCATE_ID = 0x0004
    APPEND = 0x1001
    FETCH = 0x1002
    LIST_RANGES = 0x2001
    SEAL_RANGES = 0x2002
    SYNC_RANGES = 0x2003
    DESCRIBE_RANGES = 0x2004
    CREATE_STREAMS = 0x3001
    DELETE_STREAMS = 0x3002
    UPDATE_STREAMS = 0x3003
    DESCRIBE_STREAMS = 0x3004
    TRIM_STREAMS = 0x3005
    REPORT_METRICS = 0x4001
    LEASE = 0x7001  # ours: named leases with epochs
    DESCRIBE_CLUSTER = 0x7002  # ours: who is there
    ADOPT = 0x7003  # ours: list again what data nodes keep aside


@dataclass(frozen=True, slots=True)
class Opcode:
    code: Code
    request: type[m.Message] | None
    """None: the header is opaque (PING echoes it) or empty (GOAWAY)."""
    response: type[m.Message] | None
    served_by: Role

    @property
    def name(self) -> str:
        return self.code.name


_PM = Role.PLACEMENT_MANAGER
_DN = Role.DATA_NODE

TABLE: dict[int, Opcode] = {
    row.code: row
    for row in (
        Opcode(Code.PING, None, None, Role.ANY),
        Opcode(Code.GOAWAY, None, None, Role.ANY),
        Opcode(Code.HEARTBEAT, m.HeartbeatRequest, m.HeartbeatResponse, Role.ANY),
        Opcode(Code.ALLOCATE_ID, m.IdAllocationRequest, m.IdAllocationResponse, _PM),
        Opcode(Code.APPEND, m.AppendRequest, m.AppendResponse, _DN),
        Opcode(Code.FETCH, m.FetchRequest, m.FetchResponse, _DN),
        Opcode(Code.LIST_RANGES, m.ListRangesRequest, m.ListRangesResponse, Role.ANY),
        Opcode(Code.SEAL_RANGES, m.SealRangesRequest, m.SealRangesResponse, Role.ANY),
        Opcode(Code.SYNC_RANGES, m.SyncRangesRequest, m.SyncRangesResponse, _DN),
        Opcode(Code.DESCRIBE_RANGES, m.DescribeRangesRequest, m.DescribeRangesResponse, Role.ANY),
        Opcode(Code.CREATE_STREAMS, m.CreateStreamsRequest, m.CreateStreamsResponse, _PM),
        Opcode(Code.DELETE_STREAMS, m.DeleteStreamsRequest, m.DeleteStreamsResponse, Role.ANY),
        Opcode(Code.UPDATE_STREAMS, m.UpdateStreamsRequest, m.UpdateStreamsResponse, _PM),
        Opcode(Code.DESCRIBE_STREAMS, m.DescribeStreamsRequest, m.DescribeStreamsResponse, _PM),
        Opcode(Code.TRIM_STREAMS, m.TrimStreamsRequest, m.TrimStreamsResponse, Role.ANY),
        Opcode(Code.REPORT_METRICS, m.ReportMetricsRequest, m.ReportMetricsResponse, _PM),
        Opcode(Code.LEASE, m.LeaseRequest, m.LeaseResponse, _PM),
        Opcode(Code.DESCRIBE_CLUSTER, m.DescribeClusterRequest, m.DescribeClusterResponse, _PM),
        Opcode(Code.ADOPT, m.AdoptRequest, m.AdoptResponse, _PM),
    )
}
