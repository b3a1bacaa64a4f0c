"""What the REST paths of Stram answer: names and shapes are the origin's, values ours.

Window ids are hexadecimal text, as the origin writes them. A field that does not apply is null.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from headrace.pipeline.controller.views import RecordedWindow


class Info(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all."""


class AppStats(Info, frozen=True):
    allocated_containers: int
    planned_containers: int
    failed_containers: int
    num_operators: int
    window_start_millis: int
    current_window_id: str
    recovery_window_id: str
    total_tuples_processed: int
    total_tuples_emitted: int
    tuples_processed_psma: float = field(name="tuplesProcessedPSMA")
    tuples_emitted_psma: float = field(name="tuplesEmittedPSMA")
    latency: int
    critical_path: list[int]


class AppInfo(Info, frozen=True):
    id: str
    name: str
    state: str
    app_path: str
    start_time: int
    elapsed_time: int
    last_error: str | None
    stats: AppStats
    attributes: dict[str, Any]


class PortInfo(Info, frozen=True):
    name: str
    type: str
    total_tuples: int
    queue_size: int
    buffer_server_bytes: int
    recording_id: str | None


class OperatorInfo(Info, frozen=True):
    id: int
    name: str
    logical_name: str
    class_name: str
    container: str
    host: str | None
    type: str
    status: str
    last_heartbeat: int | None
    failure_count: int
    current_window_id: str
    recovery_window_id: str
    checkpoint_window_id: str
    total_tuples_processed: int
    total_tuples_emitted: int
    tuples_processed_psma: float = field(name="tuplesProcessedPSMA")
    tuples_emitted_psma: float = field(name="tuplesEmittedPSMA")
    cpu_time_ms: int
    cpu_percentage_ma: float = field(name="cpuPercentageMA")
    latency_ma: int = field(name="latencyMA")
    checkpoint_time: int
    checkpoint_start_time: int | None
    recording_id: str | None
    unifier_class: str | None
    metrics: dict[str, Any]
    ports: list[PortInfo]


class ContainerInfo(Info, frozen=True):
    id: str
    host: str | None
    state: str
    jvm_name: str | None
    process_id: int | None
    last_heartbeat: int | None
    num_operators: int
    operators: dict[str, str]
    memory_mb_free: int | None = field(name="memoryMBFree")
    gc_collection_time: int | None
    gc_collection_count: int | None
    buffer_server: str | None
    started_time: int | None
    finished_time: int | None
    exit_status: int | None
    restarts: int
    container_log_file: str | None


class PhysicalStream(Info, frozen=True):
    logical_name: str
    locality: str | None
    source: dict[str, str]
    sinks: list[dict[str, str]]


class LoggerSetting(Info, frozen=True, forbid_unknown_fields=True):
    target: str
    log_level: str


class Loggers(Info, frozen=True, forbid_unknown_fields=True):
    loggers: list[LoggerSetting]


class PlanChange(Info, frozen=True, forbid_unknown_fields=True):
    """`requests` of the origin's kinds, each an object with a `requestType`."""

    requests: list[dict[str, Any]]


class RecordingStart(Info, frozen=True, forbid_unknown_fields=True):
    num_windows: int = 100


class Recording(Info, frozen=True):
    id: str


class Recorded(Info, frozen=True):
    windows: list[RecordedWindow]


class Instances(Info, frozen=True, forbid_unknown_fields=True):
    instances: int


class RollBack(Info, frozen=True, forbid_unknown_fields=True):
    """No operators are all of them."""

    window_id: str
    operators: list[str] = []


class Replay(Info, frozen=True, forbid_unknown_fields=True):
    """`starting`: earliest, latest, offsets as JSON, or a time."""

    topic: str
    starting: str


class Containers(Info, frozen=True):
    containers: list[ContainerInfo]


class Operators(Info, frozen=True):
    operators: list[OperatorInfo]


class Ports(Info, frozen=True):
    ports: list[PortInfo]


class Streams(Info, frozen=True):
    streams: list[PhysicalStream]


class PhysicalPlanInfo(Info, frozen=True):
    operators: list[OperatorInfo]
    streams: list[PhysicalStream]
    containers: list[ContainerInfo]


class OperatorClasses(Info, frozen=True):
    operator_classes: list[dict[str, Any]]


class Aggregation(Info, frozen=True):
    """Metrics of an operator over all its instances."""

    operator: str
    instances: int
    window_id: str
    metrics: dict[str, Any]


class Event(Info, frozen=True):
    id: int
    timestamp: int
    type: str
    reason: str
    level: str
    group_id: int
    data: dict[str, Any]


class Events(Info, frozen=True):
    events: list[Event]


class StackTrace(Info, frozen=True):
    container: str
    python: list[dict[str, Any]]
    jvm: list[dict[str, Any]]


class Done(Info, frozen=True):
    """Accepted; `detail` says what of."""

    detail: str = ""
