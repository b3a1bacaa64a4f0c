"""The protocol's fields: every one the origin names exists, none ever changes its number.

`golden/<call>.<request|response>.hex` are the samples as our codec first encoded them;
tests/integration/test_hadoop_rpc.py shows that Java's protobuf reads and writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.wire.umbilical import codec
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical._generated import umbilical_pb2
from tests.conformance.umbilical import samples
from tests.conformance.umbilical.proofs import PROOFS

GOLDEN = Path(__file__).parent / "golden"

# Names as the description of Stram's umbilical writes them, by message.
ORIGIN = {
    "StreamingContainerContext": "startWindowMillis deployBufferServer",
    "ReportErrorRequest": "containerId operators msg logFileInfo",
    "LogRequest": "containerId msg",
    "LogFileInfo": "fileName fileOffset",
    "ContainerHeartbeat": (
        "bufferServerHost bufferServerPort jvmName memoryMBFree restartRequested gcCollectionTime"
        " gcCollectionCount stats sentTms stackTrace"
    ),
    "ContainerStats": "id operators",
    "OperatorHeartbeat": "windowStats nodeId generatedTms intervalMs state requestResponse",
    "OperatorStats": (
        "windowId checkpoint inputPorts outputPorts cpuTimeUsed checkpointStats counters metrics"
        " recordingId"
    ),
    "PortStats": "id tupleCount endWindowTimestamp bufferServerBytes queueSize recordingId",
    "Checkpoint": "windowId applicationWindowCount checkpointWindowCount",
    "CheckpointStats": "checkpointStartTime checkpointTime",
    "OperatorResponse": "responseId response",
    "ContainerHeartbeatResponse": (
        "shutdown nodeRequests hasPendingRequests undeployRequest deployRequest committedWindowId"
        " stackTraceRequired"
    ),
    "StramToNodeRequest": (
        "operatorId requestType recoveryCheckpoint portName deleted cmd requestId numWindows"
    ),
    "OperatorDeployInfo": "id type name checkpoint inputs outputs contextAttributes",
    "InputDeployInfo": (
        "locality portName declaredStreamId sourceNodeId sourcePortName bufferServerHost"
        " bufferServerPort bufferServerToken streamCodecs partitionKeys partitionMask"
        " contextAttributes"
    ),
    "OutputDeployInfo": (
        "portName declaredStreamId bufferServerHost bufferServerPort bufferServerToken"
        " streamCodecs contextAttributes"
    ),
}
ENUMS = {
    m.DeployState: "ACTIVE SHUTDOWN FAILED",
    m.ShutdownType: "WAIT_TERMINATE ABORT",
    m.OperatorType: "INPUT UNIFIER GENERIC OIO",
    m.Locality: "THREAD_LOCAL CONTAINER_LOCAL NODE_LOCAL RACK_LOCAL",
    m.RequestType: "START_RECORDING STOP_RECORDING SYNC_RECORDING SET_LOG_LEVEL CUSTOM",
}
# Additions of this project; their numbers start at 50.
OURS = {
    "OperatorStats": {"window_count", "batch_id", "run_id"},
    "OperatorHeartbeat": {"run_id"},
    "StramToNodeRequest": {"arguments"},
    "OperatorDeployInfo": {"function", "properties", "query", "run_id", "checkpoint_folder"},
}


@pytest.mark.parametrize("message", ORIGIN)
def test_every_field_of_the_origin_exists_under_its_name(message: str) -> None:
    columns = getattr(umbilical_pb2, message).DESCRIPTOR.fields
    assert set(ORIGIN[message].split()) <= {column.json_name for column in columns}


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_enums_have_the_origins_values(enum: Any) -> None:
    assert [member.name for member in enum] == ENUMS[enum].split()
    described = next(
        column.enum_type
        for cls in m.FIELD_GROUPS
        for column in getattr(umbilical_pb2, cls).DESCRIPTOR.fields
        if column.enum_type is not None and column.enum_type.name == enum.__name__
    )
    numbers = {one.name: one.number for one in described.values if one.number}
    assert numbers == {member.name: member.value for member in enum}


@pytest.mark.parametrize("message", m.FIELD_GROUPS)
def test_additions_are_numbered_from_fifty(message: str) -> None:
    columns = getattr(umbilical_pb2, message).DESCRIPTOR.fields
    assert {column.name for column in columns if column.number >= 50} == OURS.get(message, set())


@pytest.mark.parametrize("name", codec.TABLE)
@pytest.mark.parametrize("side", ["request", "response"])
def test_golden_bytes(name: str, side: str) -> None:
    message = (samples.REQUESTS if side == "request" else samples.RESPONSES)[name]
    golden = bytes.fromhex((GOLDEN / f"{name}.{side}.hex").read_text())
    assert codec.encode(message) == golden
    assert codec.decode(type(message), golden) == message


def parts(value: object) -> Iterator[m.Message]:
    if isinstance(value, m.Message):
        yield value
        for field in fields(cast(Any, value)):
            yield from parts(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from parts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from parts(item)


@pytest.mark.parametrize("group", m.FIELD_GROUPS)
def test_the_samples_set_every_field(group: str) -> None:
    """So that the cross-tests with Hadoop prove each of them."""
    everything = [
        part
        for message in (*samples.REQUESTS.values(), *samples.RESPONSES.values())
        for part in parts(message)
        if type(part).__name__ == group
    ]
    assert everything
    for column in getattr(umbilical_pb2, group).DESCRIPTOR.fields:
        sent = [
            part
            for part in everything
            if any(one.name == column.name for one, _ in codec.to_protobuf(part).ListFields())
        ]
        assert sent, f"{group}.{column.name} is in no sample"


def test_every_call_and_group_has_a_proof() -> None:
    assert PROOFS.keys() == {*codec.TABLE, *m.FIELD_GROUPS}
