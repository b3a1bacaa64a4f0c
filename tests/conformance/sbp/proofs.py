"""Which test proves each row of the SBP page.

Message tables: bytes that `flatc` wrote are decoded and come back. Opcodes: what the transport does
with them; what a role answers is proved by that role's own tests, which replace their rows here.
"""

from __future__ import annotations

_FLATC = "tests/conformance/sbp/test_golden.py::test_headers_written_by_flatc"
_SERVER = "tests/unit/net/test_sbp_server.py"
_PARTS = "tests/unit/wire_sbp/test_multipart.py"
_ROLES = (
    "tests/unit/wire_sbp/test_connection.py::test_every_opcode_is_served_by_the_roles_of_the_table"
)

PROOFS: dict[str, str] = {
    # Opcodes
    "PING": f"{_SERVER}::test_ping_echoes_header_and_payload",
    "GOAWAY": f"{_SERVER}::test_close_says_goaway_and_finishes_what_is_in_flight",
    "HEARTBEAT": f"{_SERVER}::test_heartbeat_tells_who_the_peer_is",
    "ALLOCATE_ID": _ROLES,
    "APPEND": f"{_SERVER}::test_appends_of_a_connection_start_in_the_order_they_were_sent",
    "FETCH": f"{_SERVER}::test_a_large_fetch_comes_in_frames_and_arrives_as_one",
    "LIST_RANGES": f"{_PARTS}::test_long_range_lists_take_several_frames",
    "SEAL_RANGES": _ROLES,
    "SYNC_RANGES": _ROLES,
    "DESCRIBE_RANGES": _ROLES,
    "CREATE_STREAMS": _ROLES,
    "DELETE_STREAMS": _ROLES,
    "UPDATE_STREAMS": _ROLES,
    "DESCRIBE_STREAMS": _ROLES,
    "TRIM_STREAMS": _ROLES,
    "REPORT_METRICS": _ROLES,
    "LEASE": _ROLES,
    # Tables
    **{
        name: f"{_FLATC}[{name}]"
        for name in (
            "AppendInfo", "AppendRequest", "AppendResponse", "AppendResult", "CreateStreamResult",
            "CreateStreamsRequest", "CreateStreamsResponse", "DataNode", "DeleteStreamResult",
            "DeleteStreamsRequest", "DeleteStreamsResponse", "DescribeRangeResult",
            "DescribeRangesRequest", "DescribeRangesResponse", "DescribeStreamResult",
            "DescribeStreamsRequest", "DescribeStreamsResponse", "FetchInfo", "FetchRequest",
            "FetchResponse", "FetchResult", "HeartbeatRequest", "HeartbeatResponse",
            "IdAllocationRequest", "IdAllocationResponse", "LeaseRequest", "LeaseResponse",
            "ListRangesRequest", "ListRangesResponse", "ListRangesResult", "PlacementManager",
            "PlacementManagerNode", "ProducerState", "Range", "RangeCriteria", "RangeId",
            "ReplicaNode", "ReportMetricsRequest", "ReportMetricsResponse", "SealRangesRequest",
            "SealRangesResponse", "SealRangesResult", "SegmentInfo", "Status", "Stream",
            "StreamRanges", "SyncRangesRequest", "SyncRangesResponse", "SyncRangesResult",
            "SystemErrorResponse", "TrimStreamResult", "TrimStreamsRequest", "TrimStreamsResponse",
            "TrimmedStream", "UpdateStreamResult", "UpdateStreamsRequest", "UpdateStreamsResponse",
        )
    },
    # Extension field groups
    "AppendInfo extension": f"{_FLATC}[AppendInfo]",
    "RangeId extension": f"{_FLATC}[RangeId]",
    "Range extension": f"{_FLATC}[Range]",
    "SealRangesResult extension": f"{_FLATC}[SealRangesResult]",
    "HeartbeatRequest extension": f"{_SERVER}::test_heartbeat_tells_who_the_peer_is",
    "Stream extension": f"{_FLATC}[Stream]",
    "StreamRanges extension": f"{_FLATC}[StreamRanges]",
    "FetchInfo extension": f"{_FLATC}[FetchInfo]",
    "DescribeRangesRequest extension": f"{_FLATC}[DescribeRangesRequest]",
    "DescribeRangeResult extension": f"{_FLATC}[DescribeRangeResult]",
    "record batch 0x23": "tests/unit/wire_sbp/test_records.py::test_layout",
    "record batch index": "tests/unit/wire_sbp/test_records.py::test_index_finds_every_record",
    "record batch 0x22": "tests/unit/wire_sbp/test_era.py::test_the_count_comes_from_the_records",
    "status codes": "tests/unit/wire_sbp/test_errors.py::test_both_directions",
}  # fmt: skip
