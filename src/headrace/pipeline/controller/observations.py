"""What heartbeats tell beside progress: clocks, addresses, ports, processor time.

Nothing here decides anything; it is kept per container for as long as the container lives, in
memory alone, and shown. One `Observations` is one application's. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.pipeline.controller.application.statistics import window_point
from headrace.pipeline.controller.views import (
    ApplicationView,
    ContainerView,
    OperatorView,
    PortView,
    WindowPoint,
)
from headrace.wire.umbilical import messages as m

LATENCY_SAMPLES = 100  # RPC_LATENCY_COMPENSATION_SAMPLES
CLOCK_SKEW_MS = 50  # a container's clock may be so far ahead before it is worth a warning
RATE_MS = 10_000  # THROUGHPUT_CALCULATION_INTERVAL
SAMPLES_MAX = 1_000
PORTS_MAX = 256  # of one operator
POINTS_MAX = 180  # windows of one operator that are remembered


@dataclass(slots=True)
class _Port:
    queue_size: int = 0
    bytes: int = 0
    recording_id: str | None = None


@dataclass(slots=True)
class _Operator:
    window: int = m.NO_WINDOW
    run: int = 0  # of the deployment
    recording_id: str | None = None
    checkpoint_start_ms: int | None = None
    counters: m.Value = None
    ports: dict[str, _Port] = field(default_factory=dict)
    cpu: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    points: deque[WindowPoint] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))

    def on_run(self, run: int) -> None:
        """A deployment goes on after what it reported before, unless it was taken back."""
        if run != self.run:
            self.run, self.window = run, m.NO_WINDOW

    def fold(self, stats: m.OperatorStats, now_ms: int) -> None:
        if stats.window_id <= self.window:
            return  # a heartbeat that came twice
        self.window = stats.window_id
        while self.points and self.points[-1].window >= stats.window_id:
            self.points.pop()  # after a rollback its windows come again
        self.recording_id = stats.recording_id
        self.counters = stats.counters
        if stats.checkpoint_stats is not None:
            self.checkpoint_start_ms = stats.checkpoint_stats.checkpoint_start_time
        for report in (*stats.input_ports, *stats.output_ports):
            if report.id in self.ports or len(self.ports) < PORTS_MAX:
                port = self.ports.setdefault(report.id, _Port())
                port.queue_size = report.queue_size
                port.bytes += report.buffer_server_bytes
                port.recording_id = report.recording_id
        self.cpu.append((now_ms, stats.cpu_time_used))
        self.points.append(window_point(stats, now_ms))

    def annotate(self, view: OperatorView, now_ms: int) -> OperatorView:
        used = sum(ns for at_ms, ns in self.cpu if now_ms - at_ms < RATE_MS)
        return msgspec.structs.replace(
            view,
            cpu_percent=round(100 * used / (RATE_MS * 1_000_000), 2),
            recording_id=self.recording_id,
            checkpoint_start_ms=self.checkpoint_start_ms,
            port_details={
                name: PortView(
                    queue_size=port.queue_size, bytes=port.bytes, recording_id=port.recording_id
                )
                for name, port in self.ports.items()
            },
        )


@dataclass(slots=True)
class _Container:
    started_ms: int
    buffer_server: str | None
    ahead: bool = False  # of our clock
    latencies: deque[int] = field(default_factory=lambda: deque(maxlen=LATENCY_SAMPLES))
    levels_version: int = 0

    def annotate(self, view: ContainerView) -> ContainerView:
        average = sum(self.latencies) / len(self.latencies) if self.latencies else None
        return msgspec.structs.replace(
            view,
            started_ms=self.started_ms,
            buffer_server=self.buffer_server,
            rpc_latency_ms=None if average is None else round(average),
            clock_ahead=self.ahead,
        )


class Observations:
    def __init__(self) -> None:
        self._containers: dict[str, _Container] = {}
        self._operators: dict[int, _Operator] = {}
        self._levels: dict[str, str] = {}
        self._levels_version = 0

    @property
    def log_levels(self) -> Mapping[str, str]:
        """Those that were set, by logger; every container of the application has them."""
        return self._levels

    def on_log_levels(self, levels: Mapping[str, str]) -> None:
        self._levels |= levels
        self._levels_version += 1

    def on_heartbeat(
        self, heartbeat: m.ContainerHeartbeat, now_ms: int, operators: Collection[int]
    ) -> bool:
        """Whether the container's clock turns out to be ahead of ours, for the first time.

        `operators` are those of the plan; nothing is kept of others."""
        id_ = heartbeat.stats.id
        container = self._containers.get(id_)
        if container is None:
            host, port = heartbeat.buffer_server_host, heartbeat.buffer_server_port
            container = _Container(now_ms, f"{host}:{port}" if host else None)
            self._containers[id_] = container
        if len(self._operators) > len(operators):
            self._operators = {i: one for i, one in self._operators.items() if i in operators}
        for report in heartbeat.stats.operators:
            if report.node_id not in operators:
                continue
            operator = self._operators.setdefault(report.node_id, _Operator())
            operator.on_run(report.run_id)
            for stats in report.window_stats:
                operator.fold(stats, now_ms)
        if not heartbeat.sent_tms:
            return False
        container.latencies.append(now_ms - heartbeat.sent_tms)
        was, container.ahead = container.ahead, heartbeat.sent_tms > now_ms + CLOCK_SKEW_MS
        return container.ahead and not was

    def requests(self, container_id: str) -> tuple[m.StramToNodeRequest, ...]:
        """What goes to a container beside its operators' requests."""
        container = self._containers.get(container_id)
        if container is None or container.levels_version == self._levels_version:
            return ()
        container.levels_version = self._levels_version
        return (
            m.StramToNodeRequest(0, m.RequestType.SET_LOG_LEVEL, target_levels=dict(self._levels)),
        )

    def history(self) -> dict[int, tuple[WindowPoint, ...]]:
        """The last windows of every operator, oldest first."""
        return {id_: tuple(one.points) for id_, one in self._operators.items()}

    def on_end(self, container_id: str) -> None:
        self._containers.pop(container_id, None)

    def annotate(self, view: ApplicationView, now_ms: int) -> ApplicationView:
        """The view of an application with what is known here."""
        return msgspec.structs.replace(
            view,
            containers=[self.annotate_container(one) for one in view.containers],
            operators=[self.annotate_operator(one, now_ms) for one in view.operators],
        )

    def annotate_container(self, view: ContainerView) -> ContainerView:
        known = self._containers.get(view.id)
        return view if known is None else known.annotate(view)

    def annotate_operator(self, view: OperatorView, now_ms: int) -> OperatorView:
        known = self._operators.get(view.id)
        return view if known is None else known.annotate(view, now_ms)
