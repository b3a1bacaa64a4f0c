"""Which test proves each row of the SBP page.

Message tables: bytes that `flatc` wrote are decoded and come back. Opcodes: what the transport does
with them; what a role answers is proved by that role's own tests, which replace their rows here.
"""

from __future__ import annotations

_FLATC = "tests/conformance/sbp/test_golden.py::test_headers_written_by_flatc"
_SERVER = "tests/unit/net/test_sbp_server.py"
_PARTS = "tests/unit/wire/sbp/test_multipart.py"
_LOG = "tests/integration/test_log.py"
_NODE = "tests/unit/datanode"
_META = "tests/sim/test_scenarios_metadata.py"
_UNIT = "tests/unit/placement"
_LEASES = f"{_UNIT}/test_lease_requests.py"
_RULES = f"{_UNIT}/test_rules.py"

PROOFS: dict[str, str] = {
    # Opcodes
    "PING": f"{_SERVER}::test_ping_echoes_header_and_payload",
    "GOAWAY": f"{_SERVER}::test_close_says_goaway_and_finishes_what_is_in_flight",
    "HEARTBEAT": f"{_SERVER}::test_heartbeat_tells_who_the_peer_is",
    "ALLOCATE_ID": f"{_LOG}::test_clean_restart_of_everything_goes_on",
    "APPEND": f"{_SERVER}::test_appends_of_a_connection_start_in_the_order_they_were_sent",
    "FETCH": f"{_SERVER}::test_a_large_fetch_comes_in_frames_and_arrives_as_one",
    "LIST_RANGES": f"{_PARTS}::test_long_range_lists_take_several_frames",
    "SEAL_RANGES": f"{_LOG}::test_seal_and_new_keeps_offsets_contiguous",
    "SYNC_RANGES": f"{_NODE}/test_state.py::test_sync",
    "DESCRIBE_RANGES": f"{_LOG}::test_describe_tells_bounds_and_segments_of_a_range",
    "CREATE_STREAMS": f"{_LOG}::test_create_by_name_is_create_if_absent",
    "DELETE_STREAMS": f"{_LOG}::test_trim_and_delete_reach_the_data_node",
    "UPDATE_STREAMS": f"{_LOG}::test_update_changes_only_what_is_given",
    "DESCRIBE_STREAMS": f"{_LOG}::test_update_changes_only_what_is_given",
    "TRIM_STREAMS": f"{_LOG}::test_trim_and_delete_reach_the_data_node",
    "REPORT_METRICS": f"{_NODE}/test_failures.py::test_load_is_reported_to_the_placement_manager",
    "LEASE": f"{_LOG}::test_lease_epochs_survive_the_placement_manager",
    "DESCRIBE_CLUSTER": f"{_LOG}::test_the_cluster_describes_itself",
    "ADOPT": f"{_META}::test_what_was_written_since_is_adopted_with_older_metadata",
    # Actions of LEASE
    "LEASE ACQUIRE": f"{_LOG}::test_lease_epochs_survive_the_placement_manager",
    "LEASE RELEASE": f"{_UNIT}/test_leases.py::test_release_frees_the_lease_and_keeps_the_epoch",
    "LEASE QUERY": f"{_LEASES}::test_one_name_and_many_are_the_same_leases",
    "LEASE CHANGE_MANY": f"{_LEASES}::test_each_name_is_answered_for_itself",
    "LEASE LIST": f"{_LEASES}::test_news_wake_whoever_waits",
    "LEASE RELEASE_HOLDER": f"{_LEASES}::test_a_dead_holder_is_fenced_and_its_leases_are_free",
    # Tables
    **{
        name: f"{_FLATC}[{name}]"
        for name in (
            "AdoptRequest", "AdoptResponse",
            "AppendInfo", "AppendRequest", "AppendResponse", "AppendResult", "CreateStreamResult",
            "CreateStreamsRequest", "CreateStreamsResponse", "DataNode", "DeleteStreamResult",
            "DeleteStreamsRequest", "DeleteStreamsResponse", "DescribeRangeResult",
            "DescribeClusterRequest", "DescribeClusterResponse", "DescribeRangesRequest",
            "DescribeRangesResponse", "DescribeStreamResult",
            "DescribeStreamsRequest", "DescribeStreamsResponse", "FetchInfo", "FetchRequest",
            "FetchResponse", "FetchResult", "FileStretch", "HeartbeatRequest", "HeartbeatResponse",
            "IdAllocationRequest", "IdAllocationResponse", "LeaseChange", "LeaseInfo",
            "LeaseRequest", "LeaseResponse", "LeaseResult",
            "ListRangesRequest", "ListRangesResponse", "ListRangesResult", "NodeInfo",
            "PlacementManager",
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
    "hosts": f"{_RULES}::test_nodes_of_one_host_id_are_one_host",
    "home": f"{_RULES}::test_a_stream_opens_and_goes_on_at_the_node_its_owner_prefers",
    "StreamRanges extension": f"{_FLATC}[StreamRanges]",
    "FetchInfo extension": f"{_FLATC}[FetchInfo]",
    "FetchResult extension": f"{_FLATC}[FetchResult]",
    "DescribeRangesRequest extension": f"{_FLATC}[DescribeRangesRequest]",
    "DescribeRangeResult extension": f"{_FLATC}[DescribeRangeResult]",
    "record batch 0x23": "tests/unit/wire/sbp/test_records.py::test_layout",
    "record batch index": "tests/unit/wire/sbp/test_records.py::test_index_finds_every_record",
    "record batch 0x22": "tests/unit/wire/sbp/test_era.py::test_the_count_comes_from_the_records",
    "status codes": "tests/unit/wire/sbp/test_errors.py::test_both_directions",
}  # fmt: skip
