"""The applications that run, and the processes of their containers.

`RunningApplications` knows them by name, `ContainerProcesses` by container: started, adopted,
watched, killed.

`HeartbeatDetails` is what an application's heartbeats tell beside progress: clocks, addresses,
ports, processor time. It decides nothing. It is kept per container for as long as the container
lives, in memory alone, and shown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.concurrency.tasks import TaskSet
from headrace.config.controller import ControllerSettings
from headrace.errors import NotFoundError
from headrace.observability.logging import get_logger
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.application.statistics import window_point
from headrace.pipeline.controller.backlog import Backlog
from headrace.pipeline.controller.journal import ApplicationRecord
from headrace.pipeline.controller.launcher import Launcher, LaunchRequest
from headrace.pipeline.controller.views import (
    ApplicationView,
    ContainerView,
    OperatorView,
    PortView,
    WindowPoint,
)
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.runtime.interfaces import Process
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


class HeartbeatDetails:
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


log = get_logger(__name__)

CLOSE_SECONDS = 10.0  # for containers to end after SIGTERM


@dataclass(slots=True)
class RunningApplication:
    """An application and what the controller holds for it."""

    application: Application
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    processes: dict[str, Process] = field(default_factory=dict)  # by container id
    over: asyncio.Event = field(default_factory=asyncio.Event)
    beat: asyncio.Event = field(default_factory=asyncio.Event)  # a new one after each heartbeat
    edges_made: PhysicalPlan | None = None
    heartbeat_details: HeartbeatDetails = field(default_factory=HeartbeatDetails)
    backlog: Backlog = field(default_factory=Backlog)

    def annotate(self, view: ApplicationView, now_ms: int) -> ApplicationView:
        """The view of the application with what is known beside its state."""
        return self.backlog.annotate(self.heartbeat_details.annotate(view, now_ms), now_ms)


class RunningApplications:
    """All applications whose plan this version can read, also those that have ended."""

    def __init__(
        self, settings: ControllerSettings, *, folder: str, broker: tuple[str, int]
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._broker = broker
        self._by_name: dict[str, RunningApplication] = {}

    def __iter__(self) -> Iterator[RunningApplication]:
        """A copy: applications come and go while somebody waits in a loop."""
        return iter(list(self._by_name.values()))

    def path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def get(self, name: str) -> RunningApplication:
        try:
            return self._by_name[name]
        except KeyError:
            raise NotFoundError(f"there is no pipeline {name!r}") from None

    def find(self, name: str) -> RunningApplication | None:
        return self._by_name.get(name)

    def make(self, record: ApplicationRecord) -> Application:
        path = self.path(record.name)
        return Application(record, self._settings, path=path, broker=self._broker)

    def add(self, record: ApplicationRecord) -> RunningApplication:
        running = RunningApplication(self.make(record))
        if running.application.finished:
            running.over.set()
        self._by_name[record.name] = running
        return running

    def remove(self, name: str) -> None:
        del self._by_name[name]


OnExit = Callable[[RunningApplication, str, int], Awaitable[None]]


class ContainerProcesses:
    def __init__(self, launcher: Launcher, tasks: TaskSet, on_exit: OnExit) -> None:
        self._launcher = launcher
        self._tasks = tasks
        self._on_exit = on_exit
        self.owners: dict[str, RunningApplication] = {}  # by container id

    async def launch(self, running: RunningApplication, request: LaunchRequest) -> None:
        process = await self._launcher.launch(request)
        log.info("container_started", container=request.container_id, pid=process.pid)
        self._keep(running, request.container_id, process)

    async def adopt(self, running: RunningApplication, container_id: str) -> bool:
        """Whether the container still runs, from an earlier life of the controller."""
        self.owners[container_id] = running
        path = running.application.path
        process = await self._launcher.adopt(container_id, path)
        if process is None:
            del self.owners[container_id]
            return False
        log.info("container_adopted", container=container_id, pid=process.pid)
        self._keep(running, container_id, process)
        return True

    def kill(self, running: RunningApplication, container_id: str) -> None:
        if container_id in running.processes:
            running.processes[container_id].kill()

    def kill_all(self, applications: RunningApplications) -> None:
        for running in applications:
            for process in running.processes.values():
                process.kill()

    async def end(self, applications: RunningApplications) -> None:
        """Ask all to end, then make them."""
        processes = [one for running in applications for one in running.processes.values()]
        for process in processes:
            process.terminate()
        waiting = [asyncio.ensure_future(process.wait()) for process in processes]
        if waiting:
            await asyncio.wait(waiting, timeout=CLOSE_SECONDS)
            for process in processes:
                process.kill()
            await asyncio.wait(waiting)

    def _keep(self, running: RunningApplication, container_id: str, process: Process) -> None:
        self.owners[container_id] = running
        running.processes[container_id] = process
        running.application.on_launched(container_id, process.pid)
        self._tasks.start(self._watch(running, container_id, process), name="watch")

    async def _watch(
        self, running: RunningApplication, container_id: str, process: Process
    ) -> None:
        """Notices the end of a process at once, whatever ended it."""
        status = await process.wait()
        log.info("container_ended", container=container_id, exit_status=status)
        running.processes.pop(container_id, None)
        self.owners.pop(container_id, None)
        await self._on_exit(running, container_id, status)
