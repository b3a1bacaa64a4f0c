"""What the controller tells of its applications: the structures that the pages, the JSON API and
the command line read.

`application_views` makes them from an application's state, `running` and `backlog` add what
they measure. A field whose value may be UNSET is absent from the JSON until a heartbeat has told
it. In JSON an event's data stand beside its other fields (`to_json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from headrace.errors import UnavailableError
from headrace.pipeline.controller.application.events import Event

UNREADABLE = "UNREADABLE"  # state of an application whose plan makes no sense to this version


class ApplicationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An application in one row."""

    name: str
    state: str
    package: str  # content hash
    entry: str
    submitted_ms: int
    finished_ms: int | None
    window: str | None
    committed_window: str
    rows: int
    rows_per_second: float
    rows_late: int
    rows_bad: int
    lag: int
    restarts: int
    containers: int
    last_error: str | None
    lag_seconds: float | None = None  # None: nobody measured it


class UnreadableApplication(msgspec.Struct, frozen=True, kw_only=True):
    """An application whose plan makes no sense to this version: its record is all there is."""

    name: str
    state: str = UNREADABLE
    package: str
    entry: str
    submitted_ms: int
    last_error: str


ApplicationRow: TypeAlias = ApplicationSummary | UnreadableApplication


class ContainerView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    index: int
    state: str
    pid: int | None
    restarts: int
    recovery_ms: int | None  # how long the last recovery took
    exit_status: int | None
    operators: list[str]
    last_heartbeat_ms: int | None
    heartbeat_age_ms: int | None
    restart_at_ms: int | None
    jvm_name: str | None
    memory_mb_free: int | None
    gc_collection_time: int | None
    gc_collection_count: int | None
    log: str | None  # below the application's path
    started_ms: int | UnsetType = UNSET
    buffer_server: str | UnsetType | None = UNSET
    rpc_latency_ms: int | UnsetType | None = UNSET
    clock_ahead: bool | UnsetType = UNSET


class InputView(msgspec.Struct, frozen=True, kw_only=True):
    """One of the streams that an operator reads."""

    port: str
    source: int  # operator id
    local: bool  # in the same container
    partition_keys: list[int]
    partition_mask: int | None  # None: everything


class PortView(msgspec.Struct, frozen=True, kw_only=True):
    queue_size: int
    bytes: int
    recording_id: str | None


class OperatorView(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of an operator."""

    id: int
    name: str
    function: str
    type: str
    query: str | None
    container: str
    state: str
    run: int
    failures: int
    failures_lost: int  # of these, with its container
    last_error: str | None
    instance: int
    inputs: list[InputView]
    properties: dict[str, Any]
    checkpoint_folder: str | None
    checkpoint_window: str
    recovery_window: str
    window: str
    batch_id: int | None
    rows_in: int
    rows_out: int
    rows_in_per_second: float
    rows_out_per_second: float
    bytes_in: int
    lag: int
    rows_late: int
    rows_bad: int
    cpu_ns: int
    end_window_ms: int
    checkpoint_ms: int
    ports: dict[str, int]  # rows by port
    metrics: dict[str, Any]
    cpu_percent: float | UnsetType = UNSET
    recording_id: str | UnsetType | None = UNSET
    checkpoint_start_ms: int | UnsetType | None = UNSET
    port_details: dict[str, PortView] | UnsetType = UNSET
    lag_seconds: float | None = None
    still_ms: int | None = None  # how long its position has not moved although rows wait


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of the plan; its ends are `operator.port`."""

    name: str
    source: str
    sinks: list[str]
    locality: str | None
    topic: str | None  # that the controller made for it, between containers


class ApplicationView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one application."""

    name: str
    state: str
    package: str
    entry: str
    submitted_ms: int
    finished_ms: int | None
    window: str | None
    committed_window: str
    rows: int
    rows_per_second: float
    rows_late: int
    rows_bad: int
    lag: int
    restarts: int
    containers: list[ContainerView]
    last_error: str | None
    path: str
    plan: dict[str, Any]  # the logical plan, as it was declared
    window_ms: int
    start_window_ms: int
    current_window: str
    operators: list[OperatorView]
    streams: list[StreamView]
    events: list[Event]
    lag_seconds: float | None = None

    @property
    def declared(self) -> dict[str, dict[str, Any]]:
        """The operators of the plan, as they were declared, by name."""
        return {one["name"]: one for one in self.plan["operators"]}


class WindowPoint(NamedTuple):
    """One window of an operator. A tuple, because many are kept; what is not known is 0."""

    at_ms: int  # when the controller heard of it
    window: int
    duration_ms: int  # of the batch
    checkpoint_ms: int
    rows_in: int
    rows_out: int
    lag: int  # rows that waited when the batch was planned
    rows_late: int
    rows_bad: int
    state_rows: int
    state_bytes: int
    watermark_ms: int


class RecordedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The sample rows that a recording has of one window."""

    window: str
    rows: list[Any]


class OperatorComparison(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    verdict: str
    reasons: list[str]


class VersionComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What deploying a package over its application would keep."""

    name: str
    deployed: str  # content hash of what runs
    package: str  # and of what would
    verdict: str
    state_compared: bool
    operators: list[OperatorComparison]


class ControllerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    applications: int = 0
    applications_running: int = 0
    containers: int = 0
    umbilical: dict[str, int] = {}


def to_json(view: ApplicationView | ApplicationRow) -> dict[str, Any]:
    """The JSON object that tells of an application."""
    if not isinstance(view, ApplicationView):
        return dict(msgspec.to_builtins(view))
    plain = msgspec.to_builtins(msgspec.structs.replace(view, events=[]))
    plain["events"] = [one.to_json() for one in view.events]
    return dict(plain)


def read_view(source: Mapping[str, Any]) -> ApplicationView:
    """A view as `to_json` wrote it, but for its events: a newer server has more kinds of them.
    UnavailableError when the server's version tells other things."""
    try:
        return msgspec.convert({**source, "events": []}, ApplicationView)
    except msgspec.ValidationError as error:
        raise UnavailableError(f"the server is of another version: {error}") from error
