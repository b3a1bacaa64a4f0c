"""One request and one response per call, with every field of the protocol set to something."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.wire.umbilical import messages as m

WINDOW = 1_700_000_000 << 32 | 7
VALUES: Mapping[str, m.Value] = {
    "integer": -5,
    "real": 0.25,
    "text": "größe",
    "binary": b"\x00\xff",
    "json": m.Json('{"a":[1]}'),
    "flag": True,
    "nothing": None,
}
CHECKPOINT = m.Checkpoint(WINDOW, 2, 4)
CODECS = {3: m.StreamCodec("arrow", {"level": 1})}

_PORT = m.PortStats("orders", 1200, 1_700_000_003_500, 96_000, 12, "recording-1")
_STATS = m.OperatorStats(
    window_id=WINDOW,
    checkpoint=CHECKPOINT,
    input_ports=(_PORT,),
    output_ports=(_PORT, m.PortStats("late", 0)),
    cpu_time_used=1_000_000,
    checkpoint_stats=m.CheckpointStats(1_700_000_003_000, 40),
    counters=17,
    metrics=VALUES,
    recording_id="recording-2",
    window_count=3,
    batch_id=0,
    run_id="0b0e9c2e",
)
_INPUT = m.InputDeployInfo(
    port_name="orders",
    declared_stream_id="orders",
    source_node_id=1,
    source_port_name="output",
    locality=m.Locality.CONTAINER_LOCAL,
    buffer_server_host="127.0.0.1",
    buffer_server_port=8090,
    buffer_server_token=b"token",
    stream_codecs=CODECS,
    partition_keys=(0, 3),
    partition_mask=3,
    context_attributes={"QUEUE_CAPACITY": 1024},
)
_OUTPUT = m.OutputDeployInfo(
    port_name="output",
    declared_stream_id="valid",
    buffer_server_host="127.0.0.1",
    buffer_server_port=8090,
    buffer_server_token=b"token",
    stream_codecs=CODECS,
    context_attributes={"AUTO_RECORD": False},
)
_DEPLOY = m.OperatorDeployInfo(
    id=2,
    type=m.OperatorType.GENERIC,
    name="valid",
    checkpoint=CHECKPOINT,
    inputs=(_INPUT,),
    outputs=(_OUTPUT,),
    context_attributes=VALUES,
    operator_attributes={"MEMORY_MB": 1024},
    function="shop:valid",
    properties=VALUES,
    query="valid",
    run_id=4,
    checkpoint_folder="checkpoints/valid",
)
_REQUEST = m.StramToNodeRequest(
    operator_id=2,
    request_type=m.RequestType.CUSTOM,
    recovery_checkpoint=CHECKPOINT,
    port_name="orders",
    deleted=True,
    cmd="setProperty",
    request_id=99,
    recording_id="recording-3",
    num_windows=10,
    target_levels={"headrace": "DEBUG"},
    arguments=VALUES,
)

REQUESTS: Mapping[str, m.Message] = {
    "getInitContext": m.GetInitContextRequest("container-1"),
    "log": m.LogRequest("container-1", "entered the heartbeat loop"),
    "reportError": m.ReportErrorRequest(
        "container-1", (2, 3), "boom", m.LogFileInfo("container-1.log", 4096)
    ),
    "processHeartbeat": m.ContainerHeartbeat(
        buffer_server_host="127.0.0.1",
        buffer_server_port=40_001,
        jvm_name="4711@worker",
        memory_mb_free=700,
        restart_requested=True,
        gc_collection_time=35,
        gc_collection_count=4,
        stats=m.ContainerStats(
            "container-1",
            (
                m.OperatorHeartbeat(
                    node_id=2,
                    state=m.DeployState.ACTIVE,
                    generated_tms=1_700_000_003_900,
                    interval_ms=1_000,
                    window_stats=(_STATS, m.OperatorStats(WINDOW + 1)),
                    request_response=(m.OperatorResponse(99, "done"),),
                    run_id=4,
                ),
                m.OperatorHeartbeat(3, m.DeployState.FAILED),
                m.OperatorHeartbeat(4, m.DeployState.SHUTDOWN),
            ),
        ),
        sent_tms=1_700_000_004_000,
        stack_trace='{"threads":[]}',
    ),
}

RESPONSES: Mapping[str, m.Message] = {
    "getInitContext": m.GetInitContextResponse(
        m.StreamingContainerContext(1_700_000_000_000, True, VALUES)
    ),
    "log": m.LogResponse(),
    "reportError": m.ReportErrorResponse(),
    "processHeartbeat": m.ContainerHeartbeatResponse(
        shutdown=m.ShutdownType.WAIT_TERMINATE,
        node_requests=(_REQUEST,),
        has_pending_requests=True,
        undeploy_request=(2, 3),
        deploy_request=(_DEPLOY,),
        committed_window_id=WINDOW,
        stack_trace_required=True,
    ),
}
