"""Rules of the codec that a round trip cannot show."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import pytest
from grpc_tools import protoc

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.umbilical import codec
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical._generated import umbilical_pb2 as pb

PACKAGE = Path(str(importlib.resources.files("headrace.wire.umbilical")))


def test_committed_generated_code_is_current(tmp_path: Path) -> None:
    names = ["umbilical.proto", "hadoop_rpc.proto"]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main(["protoc", f"-I{PACKAGE}", *outputs, *names]) == 0
    made = sorted(path.name for path in tmp_path.iterdir())
    assert len(made) == 4
    for name in made:
        committed = (PACKAGE / "_generated" / name).read_text()
        assert (tmp_path / name).read_text() == committed, f"{name}: run protoc again"


def test_absent_committed_window_reads_as_none_committed() -> None:
    assert codec.decode(m.ContainerHeartbeatResponse, b"").committed_window_id == -1


def test_window_zero_is_not_confused_with_absent() -> None:
    response = m.ContainerHeartbeatResponse(committed_window_id=0)
    assert codec.decode(m.ContainerHeartbeatResponse, codec.encode(response)) == response


def test_old_boolean_shutdown_reads_as_wait_terminate() -> None:
    field_1_true = b"\x08\x01"
    response = codec.decode(m.ContainerHeartbeatResponse, field_1_true)
    assert response.shutdown is m.ShutdownType.WAIT_TERMINATE


def test_old_report_error_without_a_log_position() -> None:
    request = pb.ReportErrorRequest(container_id="c", operators=[4], msg="boom")
    decoded = codec.decode(m.ReportErrorRequest, request.SerializeToString())
    assert decoded == m.ReportErrorRequest("c", (4,), "boom", None)


@pytest.mark.parametrize(
    "data",
    [
        pb.OperatorHeartbeat(node_id=1).SerializeToString(),
        b"\x08\x01\x20\x63",  # state 99
    ],
    ids=["absent", "unknown"],
)
def test_an_operator_without_a_known_state_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode(m.OperatorHeartbeat, data)


def test_fields_of_a_newer_version_are_read_over() -> None:
    unknown_field_1000 = b"\xc2\x3e\x03abc"
    data = codec.encode(m.LogRequest("c", "hello")) + unknown_field_1000
    assert codec.decode(m.LogRequest, data) == m.LogRequest("c", "hello")


def test_flags_and_integers_stay_apart() -> None:
    stats = m.OperatorStats(metrics={"flag": True, "one": 1})
    metrics = codec.decode(m.OperatorStats, codec.encode(stats)).metrics
    assert metrics["flag"] is True
    assert type(metrics["one"]) is int


def test_an_object_is_not_a_value() -> None:
    with pytest.raises(LocalProtocolError):
        codec.encode(m.OperatorStats(metrics={"object": object()}))  # type: ignore[dict-item]


def test_equal_messages_have_equal_bytes() -> None:
    forward = m.StreamingContainerContext(attributes={"a": 1, "b": 2})
    backward = m.StreamingContainerContext(attributes={"b": 2, "a": 1})
    assert codec.encode(forward) == codec.encode(backward)


@pytest.mark.parametrize("where", ["one list", "many lists", "a map"])
def test_more_records_than_the_limit_are_refused_before_objects_are_made(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = pb.OperatorHeartbeat.ACTIVE
    full = codec.RECORDS_MAX
    heartbeat = pb.ContainerHeartbeat()
    if where == "one list":
        operator = heartbeat.stats.operators.add(node_id=1, state=active)
        operator.window_stats.extend(pb.OperatorStats() for _ in range(full))
    elif where == "many lists":
        for _ in range(4):
            operator = heartbeat.stats.operators.add(node_id=1, state=active)
            operator.window_stats.extend(pb.OperatorStats() for _ in range(full // 4))
    else:
        stats = heartbeat.stats.operators.add(node_id=1, state=active).window_stats.add()
        for index in range(full):
            stats.metrics[str(index)].integer = index
    data = heartbeat.SerializeToString()
    monkeypatch.setattr(codec, "from_protobuf", None)  # not called
    with pytest.raises(RemoteProtocolError, match="records"):
        codec.decode(m.ContainerHeartbeat, data)


def test_as_many_records_as_the_limit_are_fine() -> None:
    request = m.ReportErrorRequest(operators=tuple(range(codec.RECORDS_MAX)))
    assert codec.decode(m.ReportErrorRequest, codec.encode(request)) == request
