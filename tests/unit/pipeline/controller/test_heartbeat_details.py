"""What is kept of heartbeats beside progress."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headrace.errors import InvalidArgumentError, TooLargeError
from headrace.pipeline.controller import running as module
from headrace.pipeline.controller.application_views import details
from headrace.pipeline.controller.running import HeartbeatDetails
from headrace.pipeline.controller.views import ContainerView, OperatorView, PortView
from headrace.pipeline.loglevels import LOGGERS_MAX, check_levels
from headrace.wire.umbilical import messages as m
from tests.unit.pipeline.controller.application.test_state import Driver

NOW = 1_700_000_000_000


def heartbeat(*stats: m.OperatorStats, sent: int = NOW, **more: Any) -> m.ContainerHeartbeat:
    report = m.OperatorHeartbeat(1, m.DeployState.ACTIVE, window_stats=stats)
    return m.ContainerHeartbeat(stats=m.ContainerStats("c", (report,)), sent_tms=sent, **more)


def watch(observed: HeartbeatDetails, told: m.ContainerHeartbeat, now_ms: int) -> bool:
    return observed.on_heartbeat(told, now_ms, {1})


def seen(observed: HeartbeatDetails, now_ms: int = NOW) -> tuple[ContainerView, OperatorView]:
    view = details(Driver().application, now_ms)
    view = replace(view, containers=[replace(view.containers[0], id="c")])
    view = observed.annotate(view, now_ms)
    return view.containers[0], view.operators[0]


def test_the_buffer_server_is_taken_from_the_first_heartbeat() -> None:
    observed = HeartbeatDetails()
    watch(observed, heartbeat(buffer_server_host="b", buffer_server_port=8090), NOW)
    watch(observed, heartbeat(buffer_server_host="x", buffer_server_port=1), NOW + 1)
    container, _ = seen(observed)
    assert container.buffer_server == "b:8090"
    assert container.started_ms == NOW


def test_latency_is_a_moving_average() -> None:
    observed = HeartbeatDetails()
    for late in [1_000] * 50 + [10] * module.LATENCY_SAMPLES:
        assert not watch(observed, heartbeat(sent=NOW - late), NOW)
    assert seen(observed)[0].rpc_latency_ms == 10


def test_a_clock_that_is_ahead_is_told_once() -> None:
    observed = HeartbeatDetails()
    assert not watch(observed, heartbeat(sent=NOW + 50), NOW)
    assert watch(observed, heartbeat(sent=NOW + 51), NOW)
    assert not watch(observed, heartbeat(sent=NOW + 51), NOW)
    assert seen(observed)[0].clock_ahead


def test_ports_and_processor_time() -> None:
    observed = HeartbeatDetails()
    port = m.PortStats("orders", 10, NOW, 500, 7, "r1")
    first = m.OperatorStats(1, input_ports=(port,), cpu_time_used=2_000_000_000, recording_id="r1")
    second = m.OperatorStats(2, input_ports=(port,), cpu_time_used=1_000_000_000)
    watch(observed, heartbeat(first), NOW)
    watch(observed, heartbeat(first, second), NOW + 1_000)  # the first one came twice
    _, operator = seen(observed, NOW + 1_000)
    assert operator.port_details == {
        "orders": PortView(queue_size=7, bytes=1_000, recording_id="r1")
    }
    assert operator.cpu_percent == 30.0
    assert operator.recording_id is None
    assert seen(observed, NOW + 20_000)[1].cpu_percent == 0.0


def test_ports_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORTS_MAX", 2)
    observed = HeartbeatDetails()
    told = tuple(m.PortStats(f"p{number}") for number in range(5))
    watch(observed, heartbeat(m.OperatorStats(1, input_ports=told)), NOW)
    ports = seen(observed)[1].port_details
    assert isinstance(ports, dict)
    assert list(ports) == ["p0", "p1"]


def test_nothing_is_kept_of_operators_that_the_plan_does_not_have() -> None:
    observed = HeartbeatDetails()
    observed.on_heartbeat(heartbeat(m.OperatorStats(1)), NOW, {2})
    assert seen(observed)[1] == seen(HeartbeatDetails())[1]


def test_what_is_gone_is_forgotten() -> None:
    observed = HeartbeatDetails()
    watch(observed, heartbeat(m.OperatorStats(1)), NOW)
    observed.on_end("c")
    observed.on_heartbeat(m.ContainerHeartbeat(), NOW, ())  # the plan changed
    assert seen(observed) == seen(HeartbeatDetails())


def test_a_container_that_comes_later_gets_the_log_levels_too() -> None:
    observed = HeartbeatDetails()
    assert observed.requests("c") == ()
    observed.on_log_levels({"a": "INFO"})
    watch(observed, heartbeat(), NOW)
    (request,) = observed.requests("c")
    assert request.target_levels == {"a": "INFO"}
    assert observed.requests("c") == ()
    observed.on_log_levels({"b": "WARN"})
    assert observed.requests("c")[0].target_levels == {"a": "INFO", "b": "WARN"}


def test_levels_are_checked() -> None:
    assert check_levels({"a": "warn"}, {}) == {"a": "WARN"}
    with pytest.raises(InvalidArgumentError, match="one of TRACE"):
        check_levels({"a": "loud"}, {})
    with pytest.raises(InvalidArgumentError, match="name"):
        check_levels({"a" * 300: "INFO"}, {})
    with pytest.raises(TooLargeError):
        check_levels({"a": "INFO"}, {str(number): "INFO" for number in range(LOGGERS_MAX)})


def test_windows_that_come_again_after_a_rollback_are_seen() -> None:
    observed = HeartbeatDetails()

    def tell(run: int, *windows: int) -> list[int]:
        stats = tuple(m.OperatorStats(one) for one in windows)
        report = m.OperatorHeartbeat(1, m.DeployState.ACTIVE, window_stats=stats, run_id=run)
        watch(observed, m.ContainerHeartbeat(stats=m.ContainerStats("c", (report,))), NOW)
        return [one.window for one in observed.history()[1]]

    assert tell(4, 1, 2, 3) == [1, 2, 3]
    assert tell(4, 2, 3) == [1, 2, 3], "a heartbeat that came twice"
    assert tell(5, 4) == [1, 2, 3, 4], "a restart goes on"
    assert tell(6, 2) == [1, 2], "a rollback takes back what came after"
    assert tell(6, 3) == [1, 2, 3]


def test_the_last_windows_are_remembered_as_points() -> None:
    observed = HeartbeatDetails()
    port = m.PortStats("output", 10, NOW, 500, 7)
    metrics: dict[str, m.Value] = {
        "batch_duration_ms": 300,
        "rows_late": 1,
        "ok.bad_rows": 2,
        "bad_rows": 3,
        "state_rows": 4,
        "state_bytes": 5,
        "watermark_ms": 6,
        "label": "x",
    }
    for number in range(1, module.POINTS_MAX + 3):
        stats = m.OperatorStats(
            number,
            output_ports=(port,),
            metrics=metrics,
            checkpoint_stats=m.CheckpointStats(NOW, 40),
        )
        watch(observed, heartbeat(stats), NOW + number)
        watch(observed, heartbeat(stats), NOW + number)  # the same heartbeat twice
    points = observed.history()[1]
    assert len(points) == module.POINTS_MAX
    last = points[-1]
    assert (last.window, last.at_ms) == (module.POINTS_MAX + 2, NOW + module.POINTS_MAX + 2)
    assert (last.duration_ms, last.checkpoint_ms, last.rows_out, last.lag) == (300, 40, 10, 7)
    assert (last.rows_late, last.rows_bad) == (1, 5)
    assert (last.state_rows, last.state_bytes, last.watermark_ms) == (4, 5, 6)
