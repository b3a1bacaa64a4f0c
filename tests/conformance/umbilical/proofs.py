"""Which test proves each call and each message of the umbilical."""

from __future__ import annotations

from collections.abc import Mapping

_HADOOPS_CLIENT = "tests/integration/test_hadoop_rpc.py::test_hadoops_client_calls_our_server"
_HADOOPS_SERVER = "tests/integration/test_hadoop_rpc.py::test_our_client_calls_hadoops_server"

_CALLS = ("getInitContext", "log", "reportError", "processHeartbeat")

# The call whose samples carry the message with every field set.
_CARRIED_BY = {
    "GetInitContextRequest": "getInitContext",
    "GetInitContextResponse": "getInitContext",
    "StreamingContainerContext": "getInitContext",
    "LogRequest": "log",
    "LogResponse": "log",
    "ReportErrorRequest": "reportError",
    "ReportErrorResponse": "reportError",
    "LogFileInfo": "reportError",
    "ContainerHeartbeat": "processHeartbeat",
    "ContainerStats": "processHeartbeat",
    "OperatorHeartbeat": "processHeartbeat",
    "OperatorStats": "processHeartbeat",
    "OperatorResponse": "processHeartbeat",
    "PortStats": "processHeartbeat",
    "Checkpoint": "processHeartbeat",
    "CheckpointStats": "processHeartbeat",
    "ContainerHeartbeatResponse": "processHeartbeat",
    "StramToNodeRequest": "processHeartbeat",
    "OperatorDeployInfo": "processHeartbeat",
    "InputDeployInfo": "processHeartbeat",
    "OutputDeployInfo": "processHeartbeat",
    "StreamCodec": "processHeartbeat",
}

PROOFS: Mapping[str, str] = {
    **{call: f"{_HADOOPS_CLIENT}[{call}]" for call in _CALLS},
    **{message: f"{_HADOOPS_SERVER}[{call}]" for message, call in _CARRIED_BY.items()},
}
