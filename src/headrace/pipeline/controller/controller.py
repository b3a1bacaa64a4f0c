"""The pipeline controller as a service: it starts, ticks, listens to containers, and closes.

It makes the parts that run applications and joins them: `operations` (what people ask),
`UmbilicalCalls` (what containers say), `ActionPerformer` (what applications decided),
`JournalWriter`, `ContainerLaunches`, `ContainerProcesses`. Events of one application are handled
one at a time, records durable before anything else happens. After a restart every application goes
on: the journal says what should run, living containers are adopted and find the new address in the
rewritten URI file, dead ones are replaced.

Close: stop accepting, end the containers (their applications stay wanted), close the journal.
"""

from __future__ import annotations

import asyncio
import contextlib

from headrace.concurrency.tasks import TaskSet
from headrace.config.controller import ControllerSettings
from headrace.errors import ConfigError, HeadraceError
from headrace.net.hadoop_rpc import HadoopRpcServer
from headrace.observability.logging import get_logger
from headrace.pipeline.controller.action_performer import ActionPerformer
from headrace.pipeline.controller.application.lifecycle import (
    Action,
    ContainerState,
    Launch,
    Phase,
)
from headrace.pipeline.controller.backlog import topics_read
from headrace.pipeline.controller.broker_edges import Edges, NoEdges
from headrace.pipeline.controller.container_credentials import ContainerTokens, Grants
from headrace.pipeline.controller.container_launches import ContainerLaunches
from headrace.pipeline.controller.journal import Journal, JournalWriter, OpenLog
from headrace.pipeline.controller.launcher import Launcher
from headrace.pipeline.controller.lineage import Lineage
from headrace.pipeline.controller.operations import Operations
from headrace.pipeline.controller.running import (
    ContainerProcesses,
    RunningApplication,
    RunningApplications,
)
from headrace.pipeline.controller.submission import Submission
from headrace.pipeline.controller.umbilical import UmbilicalCalls, build_handlers
from headrace.runtime.interfaces import Runtime
from headrace.wire.umbilical import codec

log = get_logger(__name__)

EARLIEST = "earliest"


class Controller:
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
        self._edges = edges or NoEdges()
        self._lineage = lineage
        self._host, self._port_before = host, port_before
        self._started = (runtime.clock.now_ms(), runtime.clock.monotonic())
        self._disk = runtime.executor("controller-disk", 1)
        self._tasks = TaskSet("controller")
        self._ended = asyncio.Event()
        self._closing = False
        folder = f"{(settings.shared_path or data_dir).rstrip('/')}/applications"
        secret = secret or runtime.random.bytes(32)
        self._journal = JournalWriter(
            Journal(settings.events_max),
            open_log,
            snapshot_events=settings.snapshot_events,
            on_failure=self._on_failure,
        )
        self._applications = RunningApplications(settings, folder=folder, broker=broker)
        self._processes = ContainerProcesses(launcher, self._tasks, self._on_exit)
        tokens = ContainerTokens(
            secret,
            runtime.clock.now_ms,
            self._processes.owners.__contains__,
            settings.token_lifetime_ms,
        )
        self._launches = ContainerLaunches(
            runtime,
            settings,
            self._processes,
            self._edges,
            disk=self._disk,
            tokens=tokens,
            grants=Grants(secret),
            umbilical_address=lambda: self.umbilical_address,
        )
        self._performer = ActionPerformer(
            self._journal,
            self._launches,
            self._processes,
            self._edges,
            lineage=lineage,
            now_ms=self._now_ms,
        )
        calls = UmbilicalCalls(
            self._processes, self._launches, self._performer, self._journal, self._now_ms
        )
        self._server = HadoopRpcServer(
            runtime,
            codec.PROTOCOL_NAME,
            codec.PROTOCOL_VERSION,
            build_handlers(calls),
            look_up=tokens.look_up,
            frame_bytes_max=settings.umbilical_frame_bytes_max,
        )
        self.operations = Operations(
            runtime,
            settings,
            self._applications,
            self._performer,
            self._launches,
            Submission(runtime, settings, launcher, folder=folder, disk=self._disk),
            self._edges,
            journal=self._journal,
            disk=self._disk,
            now_ms=self._now_ms,
            umbilical_statistics=self._server.statistics,
        )

    async def start(self) -> None:
        """Replay the journal, listen, publish the address, go on with every application."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        await self._journal.open()
        for record in self._journal.applications.values():
            try:
                self._applications.add(record)
            except HeadraceError as error:
                log.error("application_unreadable", application=record.name, reason=str(error))
        # Known again before anybody can ask: a stranger would be told to end.
        adopted = [
            (running, await self._adopt(running))
            for running in self._applications
            if not running.application.finished
        ]
        try:
            await self._server.start(self._host, self._port_before)
        except ConfigError:  # somebody else has the port by now
            await self._server.start(self._host, 0)
        for running, actions in adopted:
            await self._launches.publish_address(running.application.path)
            async with running.lock:
                await self._performer.perform(running, actions)
        self._tasks.start(self._tick_for_ever(), name="tick")
        self._tasks.start(self._measure_for_ever(), name="backlog")

    async def close(self) -> None:
        self._closing = True
        self._journal.begin_close()
        self._performer.begin_close()
        await self._server.close()
        await self._processes.end(self._applications)
        await self._tasks.close()
        await self._edges.close()
        if self._lineage is not None:
            await self._lineage.close()
        await self._journal.close()
        self._disk.close()

    @property
    def failure(self) -> HeadraceError | None:
        return self._journal.failure

    async def wait_ended(self) -> HeadraceError | None:
        """Until the controller cannot go on, for example because another one leads."""
        await self._ended.wait()
        return self.failure

    @property
    def umbilical_address(self) -> tuple[str, int]:
        return self._server.host, self._server.port

    async def _adopt(self, running: RunningApplication) -> list[Action]:
        """Go on with what an earlier life of the controller started; what is then to be done."""
        application = running.application
        actions = application.on_start(self._now_ms(), adopt=True)
        launched = {one.container_id for one in actions if isinstance(one, Launch)}
        for container in application.containers:
            if container.state is not ContainerState.ALLOCATED or container.id in launched:
                continue
            if not await self._processes.adopt(running, container.id):
                actions += application.on_not_found(container.id, self._now_ms())
        return actions

    async def _measure_for_ever(self) -> None:
        """Ask the broker what waits for applications, whoever of them runs: at most a tenth of the
        time, however many partitions there are."""
        clock = self._runtime.clock
        while self.failure is None:
            began = clock.monotonic()
            for running in self._applications:
                try:
                    await self._measure(running)
                except HeadraceError as error:
                    name = running.application.name
                    log.debug("backlog_not_measured", application=name, reason=str(error))
            least = self._settings.lag_interval_ms / 1000
            await clock.sleep(max(least, 9 * (clock.monotonic() - began)))

    async def _measure(self, running: RunningApplication) -> None:
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

    async def _on_exit(self, running: RunningApplication, container_id: str, status: int) -> None:
        application = running.application
        running.heartbeat_details.on_end(container_id)
        await self._launches.take_back(application.path, container_id)
        if self._closing:
            return  # it ends because we do; the application stays wanted
        async with running.lock:
            actions = application.supervision.on_exit(container_id, status, self._now_ms())
            await self._performer.perform_or_fail(running, actions)

    async def _tick_for_ever(self) -> None:
        wake = self._performer.wake
        while self.failure is None:
            wake.clear()
            for running in self._applications:
                application = running.application
                for container_id in list(running.processes):
                    await self._launches.renew_grant(application, container_id)
                async with running.lock:
                    actions = application.on_tick(self._now_ms())
                    if actions:
                        await self._performer.perform_or_fail(running, actions)
                if self._lineage is not None:
                    self._lineage.on_tick(application, self._now_ms())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_next_tick()):
                    await wake.wait()

    def _until_next_tick(self) -> float:
        """Restarts happen when they are due, not up to a tick later."""
        now_ms = self._now_ms()
        due = [
            container.launch_after_ms - now_ms
            for running in self._applications
            for container in running.application.containers
            if container.launch_after_ms is not None
        ]
        return max(0, min(self._settings.tick_interval_ms, *due, 2**31)) / 1000

    def _on_failure(self) -> None:
        """The journal is lost to us: whoever has it now runs the applications, so we must not."""
        self._processes.kill_all(self._applications)
        self._ended.set()

    def _now_ms(self) -> int:
        """Wall time that never jumps: time-outs may not follow somebody who sets the clock."""
        elapsed = self._runtime.clock.monotonic() - self._started[1]
        return self._started[0] + int(elapsed * 1000)
