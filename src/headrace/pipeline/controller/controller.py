"""The pipeline controller: applications, their containers, the umbilical they report to.

The shell around `state.Application`: it feeds it heartbeats, exits and ticks, and carries out what
it answers. Events of one application are handled one at a time, records durable before anything
else happens. After a restart every application goes on: the journal says what should run, living
containers are adopted and find the new address in the rewritten URI file, dead ones are replaced.

Close: stop accepting, end the containers (their applications stay wanted), close the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.concurrency.tasks import TaskSet
from headrace.config.controller import ControllerSettings
from headrace.errors import ConfigError, HeadraceError, UnavailableError
from headrace.ids import WindowId
from headrace.net.addresses import format_address
from headrace.net.hadoop_rpc import HadoopRpcServer
from headrace.observability import tracing
from headrace.observability.logging import get_logger
from headrace.pipeline import traces
from headrace.pipeline.container.umbilical import (
    HeartbeatUri,
    format_heartbeat_uri,
    heartbeat_uri_path,
)
from headrace.pipeline.controller import container_files
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    ContainerState,
    Kill,
    Launch,
    MakeEdges,
    Phase,
    PurgeEdges,
    Record,
    ResetEdges,
)
from headrace.pipeline.controller.backlog import topics_read
from headrace.pipeline.controller.broker_edges import Edges, NoEdges
from headrace.pipeline.controller.grants import Grants, grant_path
from headrace.pipeline.controller.journal import ApplicationRecord, Journal, Log, OpenLog
from headrace.pipeline.controller.lineage import Lineage
from headrace.pipeline.controller.operations import Operations
from headrace.pipeline.controller.processes import (
    Fleet,
    Launcher,
    LaunchRequest,
    Running,
    token_path,
)
from headrace.pipeline.controller.submission import Submission
from headrace.pipeline.controller.umbilical import ContainerTokens, build_handlers
from headrace.pipeline.controller.views import ControllerStatistics
from headrace.pipeline.plan import packages
from headrace.pipeline.plan.deploy import add_token
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.pipeline.plan.resources import container_resources
from headrace.pipeline.shared_files import write_shared
from headrace.runtime.interfaces import Runtime
from headrace.wire.umbilical import codec
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.tokens import format_token

log = get_logger(__name__)

EARLIEST = "earliest"
LAUNCH_FAILED = 127  # exit status of a container that could not be started
MESSAGE_CHARACTERS_MAX = 4_096


class Controller(Operations):
    def __init__(
        self,
        runtime: Runtime,
        settings: ControllerSettings,
        *,
        data_dir: str,
        open_log: OpenLog,
        launcher: Launcher,
        edges: Edges | None = None,
        secret: bytes = b"",
        broker: tuple[str, int] = ("127.0.0.1", 8090),
        host: str = "127.0.0.1",
        port_before: int = 0,
        lineage: Lineage | None = None,
    ) -> None:
        """Containers log in with tokens made from `secret`, the cluster's, and get grants for the
        broker made from it; without one, those of an earlier controller are not known. The
        umbilical's port is any free one, `port_before` if that is."""
        self._runtime = runtime
        self._settings = settings
        self._folder = f"{(settings.shared_path or data_dir).rstrip('/')}/applications"
        self._open_log = open_log
        self._edges = edges or NoEdges()
        self._lineage = lineage
        self._broker = broker
        self._host, self._port_before = host, port_before
        self._journal = Journal(settings.events_max)
        self._log: Log | None = None
        self._log_events = 0
        self._disk = runtime.executor("controller-disk", 1)
        self._tasks = TaskSet("controller")
        self._running: dict[str, Running] = {}
        self._fleet = Fleet(launcher, self._tasks, self._on_exit)
        self._submission = Submission(
            runtime, settings, launcher, folder=self._folder, disk=self._disk
        )
        self._submitting = asyncio.Lock()
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = False
        self._started = (runtime.clock.now_ms(), runtime.clock.monotonic())
        self.failure: HeadraceError | None = None
        secret = secret or runtime.random.bytes(32)
        self._grants = Grants(secret)
        self._tokens = ContainerTokens(
            secret,
            runtime.clock.now_ms,
            self._fleet.homes.__contains__,
            settings.token_lifetime_ms,
        )
        self._server = HadoopRpcServer(
            runtime,
            codec.PROTOCOL_NAME,
            codec.PROTOCOL_VERSION,
            build_handlers(self),
            look_up=self._tokens.look_up,
            frame_bytes_max=settings.umbilical_frame_bytes_max,
        )

    # life

    async def start(self) -> None:
        """Replay the journal, listen, publish the address, go on with every application."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        self._log = await self._open_log(
            self._journal.apply, self._journal.snapshot, self._journal.restore
        )
        for record in self._journal.applications.values():
            try:
                self._add(record)
            except HeadraceError as error:
                log.error("application_unreadable", application=record.name, reason=str(error))
        # Known again before anybody can ask: a stranger would be told to end.
        actions = {
            name: await self._adopt(running)
            for name, running in self._running.items()
            if not running.application.finished
        }
        try:
            await self._server.start(self._host, self._port_before)
        except ConfigError:  # somebody else has the port by now
            await self._server.start(self._host, 0)
        for name, some in actions.items():
            running = self._running[name]
            await self._publish_address(running.application.path)
            async with running.lock:
                await self._perform(running, some)
        self._tasks.start(self._tick_for_ever(), name="tick")
        self._tasks.start(self._measure_for_ever(), name="backlog")

    async def close(self) -> None:
        self._closing = True
        await self._server.close()
        await self._fleet.end(self._running.values())
        await self._tasks.close()
        await self._edges.close()
        if self._lineage is not None:
            await self._lineage.close()
        if self._log is not None:
            await self._log.close()
        self._disk.close()

    async def wait_ended(self) -> HeadraceError | None:
        """Until the controller cannot go on, for example because another one leads."""
        await self._ended.wait()
        return self.failure

    @property
    def umbilical_address(self) -> tuple[str, int]:
        return self._server.host, self._server.port

    def statistics(self) -> ControllerStatistics:
        living = [one for one in self._running.values() if not one.application.finished]
        return ControllerStatistics(
            applications=len(self._journal.applications),
            applications_running=len(living),
            containers=sum(len(one.processes) for one in self._running.values()),
            umbilical=self._server.statistics(),
        )

    # the umbilical (handlers.UmbilicalService)

    async def get_init_context(self, request: m.GetInitContextRequest) -> m.GetInitContextResponse:
        running = self._fleet.homes.get(request.container_id)
        if running is None:
            return m.GetInitContextResponse(None)
        return m.GetInitContextResponse(running.application.on_init_context(request.container_id))

    async def log(self, request: m.LogRequest) -> m.LogResponse:
        if request.container_id in self._fleet.homes:
            text = request.msg[:MESSAGE_CHARACTERS_MAX]
            log.info("container_says", container=request.container_id, text=text)
        return m.LogResponse()

    async def report_error(self, request: m.ReportErrorRequest) -> m.ReportErrorResponse:
        running = self._fleet.homes.get(request.container_id)
        if running is not None:
            text = request.msg[:MESSAGE_CHARACTERS_MAX]
            log.warning("container_error", container=request.container_id, text=text)
            async with running.lock:
                actions = running.application.on_error(request, self._now_ms())
                await self._perform(running, actions)
        return m.ReportErrorResponse()

    async def process_heartbeat(
        self, request: m.ContainerHeartbeat
    ) -> m.ContainerHeartbeatResponse:
        running = self._fleet.homes.get(request.stats.id)
        if running is None or self.failure is not None:
            return m.ContainerHeartbeatResponse(shutdown=m.ShutdownType.ABORT)
        async with running.lock:
            now_ms, known = self._now_ms(), running.application.operators
            if running.observations.on_heartbeat(request, now_ms, known):
                log.warning("container_clock_ahead", container=request.stats.id)
            before = running.application.checkpoints.committed
            outcome = running.application.deployment.on_heartbeat(request, now_ms)
            await self._perform(running, outcome.actions)
            if tracing.active:
                traces.on_committed(running.application, before, now_ms)
        running.beat.set()
        running.beat = asyncio.Event()
        response = await self._with_grant(running, request.stats.id, outcome.response)
        if response.shutdown is None and (more := running.observations.requests(request.stats.id)):
            response = replace(response, node_requests=(*response.node_requests, *more))
        return response

    async def _with_grant(
        self, running: Running, container_id: str, response: m.ContainerHeartbeatResponse
    ) -> m.ContainerHeartbeatResponse:
        """What is to be deployed may use topics that the plan did not have before."""
        if not response.deploy_request:
            return response
        await self._renew_grant(running, container_id)
        grant = self._grants.held(container_id).encode()
        infos = (add_token(info, grant) for info in response.deploy_request)
        return replace(response, deploy_request=tuple(infos))

    async def _renew_grant(self, running: Running, container_id: str) -> None:
        """One that cannot be written now is written with the next tick: the old one lasts long."""
        application, now_ms = running.application, self._runtime.clock.now_ms()
        grant = self._grants.renewed(container_id, application.plan.logical, now_ms)
        if grant is None:
            return
        path = grant_path(application.path, container_id)
        try:
            await self._disk.run(
                partial(self._runtime.disk.write_atomic, path, grant.encode(), mode=0o600)
            )
        except HeadraceError as error:
            self._grants.end(container_id)
            log.warning("grant_not_renewed", container=container_id, reason=str(error))

    # shell

    def _add(self, record: ApplicationRecord) -> Running:
        application = self._make_application(record)
        running = Running(application)
        if application.finished:
            running.over.set()
        self._running[record.name] = running
        return running

    def _make_application(self, record: ApplicationRecord) -> Application:
        path = self._path(record.name)
        return Application(record, self._settings, path=path, broker=self._broker)

    async def _begin(self, name: str, type: EventType, **data: Any) -> None:
        running = self._add(self._journal.applications[name])
        running.application.events.add(self._now_ms(), type, **data)
        await self._publish_address(running.application.path)
        async with running.lock:
            await self._perform(running, running.application.on_start(self._now_ms()))

    async def _adopt(self, running: Running) -> list[Action]:
        """Go on with what an earlier life of the controller started; what is then to be done."""
        application = running.application
        actions = application.on_start(self._now_ms(), adopt=True)
        launched = {one.container_id for one in actions if isinstance(one, Launch)}
        for container in application.containers:
            if container.state is not ContainerState.ALLOCATED or container.id in launched:
                continue
            self._fleet.homes[container.id] = running
            if not await self._fleet.adopt(running, container.id):
                del self._fleet.homes[container.id]
                actions += application.on_not_found(container.id, self._now_ms())
        return actions

    async def _perform(self, running: Running, actions: Sequence[Action]) -> None:
        """In order; the caller holds the application's lock."""
        application = running.application
        done = True
        for action in actions:
            if isinstance(action, Record):
                await self._append(action.kind, action.body)
            elif isinstance(action, Launch):
                await self._launch(running, action)
            elif isinstance(action, Kill):
                self._fleet.kill(running, action.container_id)
            elif isinstance(action, MakeEdges):
                done = await self._make_scaled_edges(running, action) and done
            elif isinstance(action, ResetEdges):
                done = await self._reset_edges(running, action) and done
            elif isinstance(action, PurgeEdges):
                await self._purge_edges(running, action)
        for event in application.events.take_unrecorded():
            await self._append("event", {"application": application.name, "event": event.to_json()})
            if self._lineage is not None:
                self._lineage.on_event(application, event)
        if application.finished:
            running.over.set()
        if actions and done:  # a heartbeat that changed nothing makes nothing due
            self._wake.set()

    async def _launch(self, running: Running, action: Launch) -> None:
        if self._closing:
            return
        application = running.application
        record = application.record
        folder = f"{application.path}/packages/{record.package}"
        token = self._tokens.issue(action.container_id, format_address(*self.umbilical_address))
        request = LaunchRequest(
            action.container_id,
            application.path,
            folder,
            record.entry,
            record.available_now,
            container_resources(application.plan, action.index, self._settings),
            format_token(token),
            self._umbilical_path(application.path),
            self._grants.renewed(
                action.container_id, application.plan.logical, self._runtime.clock.now_ms()
            )
            or self._grants.held(action.container_id),
        )
        self._fleet.homes[action.container_id] = running
        try:
            await self._disk.run(packages.verify, self._runtime.disk, folder, record.package)
            await self._disk.run(
                container_files.make_room,
                self._runtime.disk,
                f"{application.path}/logs",
                len(application.containers),
            )
            if application.plan.split_streams and running.edges_made != application.plan:
                await self._edges.make(application.plan)
                running.edges_made = application.plan
            await self._disk.run(self._hand_over, request)
            await self._fleet.launch(running, request)
        except HeadraceError as error:
            self._fleet.homes.pop(action.container_id, None)
            await self._take_back(application.path, action.container_id)
            log.error("launch_failed", container=action.container_id, reason=str(error))
            now_ms = self._now_ms()
            report = m.ReportErrorRequest(action.container_id, (), f"not started: {error}")
            application.on_error(report, now_ms)
            actions = application.supervision.on_exit(action.container_id, LAUNCH_FAILED, now_ms)
            await self._perform(running, actions)

    async def _make_edges(self, plan: PhysicalPlan) -> None:
        await self._edges.make(plan)

    async def _remove_edges(self, name: str) -> None:
        await self._edges.remove(name)

    async def _make_scaled_edges(self, running: Running, action: MakeEdges) -> bool:
        """False when the broker did not do it: the next tick tries again, in its own time."""
        application = running.application
        try:
            closed = await self._edges.closed(application.plan, action.streams)
            if closed <= action.after:
                await self._edges.make(action.plan, WindowId(action.after))
        except HeadraceError as error:
            log.warning("edges_not_made", application=application.name, reason=str(error))
            return False
        if closed > action.after:
            await self._perform(running, application.scaling.on_windows_passed(closed))
            return True
        running.edges_made = action.plan
        await self._perform(running, application.scaling.on_edges_made(self._now_ms()))
        return True

    def _hand_over(self, request: LaunchRequest) -> None:
        """Blocks. The container's token and grant, for the user that runs it alone."""
        disk = self._runtime.disk
        disk.make_folder(f"{request.application_path}/tokens")
        disk.write_atomic(request.token_path, request.token.encode(), mode=0o600)
        disk.write_atomic(request.grant_path, request.grant.encode(), mode=0o600)

    async def _take_back(self, path: str, container_id: str) -> None:
        self._grants.end(container_id)
        for file in (token_path(path, container_id), grant_path(path, container_id)):
            await self._disk.run(self._runtime.disk.remove, file)

    async def _reset_edges(self, running: Running, action: ResetEdges) -> bool:
        application = running.application
        try:
            await self._edges.reset(
                application.plan,
                action.edges,
                window=WindowId(action.window),
                epoch=action.epoch,
            )
        except HeadraceError as error:
            log.warning("edges_not_reset", application=application.name, reason=str(error))
            application.rollback.on_edges_not_reset()
            return False
        await self._perform(running, application.rollback.on_edges_reset())
        return True

    async def _purge_edges(self, running: Running, action: PurgeEdges) -> None:
        """What was not purged now goes with the next purge."""
        try:
            await self._edges.purge(running.application.plan, WindowId(action.window))
        except HeadraceError as error:
            log.warning("edges_not_purged", application=running.application.name, reason=str(error))

    async def _measure_for_ever(self) -> None:
        """Ask the broker what waits for applications, whoever of them runs: at most a tenth of the
        time, however many partitions there are."""
        clock = self._runtime.clock
        while self.failure is None:
            began = clock.monotonic()
            for running in list(self._running.values()):
                try:
                    await self._measure(running)
                except HeadraceError as error:
                    name = running.application.name
                    log.debug("backlog_not_measured", application=name, reason=str(error))
            least = self._settings.lag_interval_ms / 1000
            await clock.sleep(max(least, 9 * (clock.monotonic() - began)))

    async def _measure(self, running: Running) -> None:
        application = running.application
        if application.phase is Phase.FINISHED:
            return
        sample, starts = {}, {}
        for port, (source, operators) in topics_read(application.plan).items():
            properties = {
                **source.logical.properties,
                **application.record.properties.get(port, {}),
            }
            topic = str(properties.get("topic", ""))
            found = await self._edges.readings(application.name, topic, operators)
            if found is None:
                return
            sample[port] = found
            starts[port] = properties.get("starting", EARLIEST) == EARLIEST
        if sample:
            running.backlog.on_sample(sample, starts, self._now_ms())

    async def _remove_positions(self, plan: PhysicalPlan, kept: PhysicalPlan | None = None) -> None:
        """What is not removed holds retention for as long as it may, and no longer."""
        still = topics_read(kept) if kept is not None else {}
        for port, (source, operators) in topics_read(plan).items():
            gone = operators - (still[port][1] if port in still else set())
            topic = str(source.logical.properties.get("topic", ""))
            try:
                if gone:
                    await self._edges.remove_positions(plan.logical.name, topic, gone)
            except HeadraceError as error:
                log.warning("positions_not_removed", topic=topic, reason=str(error))

    async def _on_exit(self, running: Running, container_id: str, status: int) -> None:
        running.observations.on_end(container_id)
        await self._take_back(running.application.path, container_id)
        if self._closing:
            return  # it ends because we do; the application stays wanted
        async with running.lock:
            actions = running.application.supervision.on_exit(container_id, status, self._now_ms())
            await self._perform_or_fail(running, actions)

    async def _tick_for_ever(self) -> None:
        while self.failure is None:
            self._wake.clear()
            for running in list(self._running.values()):
                for container_id in list(running.processes):
                    await self._renew_grant(running, container_id)
                async with running.lock:
                    actions = running.application.on_tick(self._now_ms())
                    if actions:
                        await self._perform_or_fail(running, actions)
                if self._lineage is not None:
                    self._lineage.on_tick(running.application, self._now_ms())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_next_tick()):
                    await self._wake.wait()

    def _until_next_tick(self) -> float:
        """Restarts happen when they are due, not up to a tick later."""
        now_ms = self._now_ms()
        due = [
            container.launch_after_ms - now_ms
            for running in self._running.values()
            for container in running.application.containers
            if container.launch_after_ms is not None
        ]
        return max(0, min(self._settings.tick_interval_ms, *due, 2**31)) / 1000

    async def _perform_or_fail(self, running: Running, actions: Sequence[Action]) -> None:
        """For tasks that have nobody to tell: what stops the journal has stopped the controller."""
        try:
            await self._perform(running, actions)
        except HeadraceError as error:
            self._fail(error)

    def _fail(self, error: HeadraceError) -> None:
        """The journal is lost to us: whoever has it now runs the applications, so we must not."""
        if self.failure is not None or self._closing:
            return
        log.error("controller_failed", reason=str(error))
        self.failure = error
        for running in self._running.values():
            for process in running.processes.values():
                process.kill()
        self._ended.set()

    async def _append(self, kind: str, body: object) -> None:
        if self.failure is not None or self._log is None:
            raise UnavailableError("the controller has stopped")
        try:
            await self._log.append(kind, body)
        except HeadraceError as error:
            self._fail(error)
            raise
        self._log_events += 1
        if self._log_events >= self._settings.snapshot_events:
            self._log_events = 0
            await self._log.write_snapshot()

    async def _publish_address(self, path: str) -> None:
        settings = self._settings
        uri = HeartbeatUri(
            *self.umbilical_address,
            settings.rpc_timeout_ms,
            settings.retry_delay_ms,
            settings.retry_timeout_ms,
        )
        file = heartbeat_uri_path(self._umbilical_path(path))
        data = format_heartbeat_uri(uri).encode()
        await self._disk.run(write_shared, self._runtime.disk, file, data)

    def _umbilical_path(self, path: str) -> str:
        """Under which an application's containers look for our address."""
        root = self._settings.umbilical_path.rstrip("/")
        return f"{root}/{path.rpartition('/')[2]}" if root else path

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _now_ms(self) -> int:
        """Wall time that never jumps: time-outs may not follow somebody who sets the clock."""
        elapsed = self._runtime.clock.monotonic() - self._started[1]
        return self._started[0] + int(elapsed * 1000)
