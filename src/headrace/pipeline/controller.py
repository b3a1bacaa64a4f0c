"""The pipeline controller: applications, their containers, the umbilical they report to.

The shell around `state.Application`: it feeds it heartbeats, exits and ticks, and carries out what
it answers. Events of one application are handled one at a time, records durable before anything
else happens. After a restart every application goes on: the journal says what should run, the
rewritten URI file tells living containers where to report.

Close: stop accepting, end the containers (their applications stay wanted), close the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from headrace.client.tasks import TaskSet
from headrace.client.umbilical import HeartbeatUri, format_heartbeat_uri, heartbeat_uri_path
from headrace.config.controller import ControllerSettings
from headrace.errors import (
    AlreadyExistsError,
    HeadraceError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
)
from headrace.net.hadoop_rpc import HadoopRpcServer
from headrace.observability.logging import get_logger
from headrace.pipeline import packages, views
from headrace.pipeline.events import EventType
from headrace.pipeline.handlers import build_handlers
from headrace.pipeline.journal import ApplicationRecord, Journal, Log, OpenLog
from headrace.pipeline.launcher import Launcher, LaunchRequest
from headrace.pipeline.lifecycle import Action, Kill, Launch, Record
from headrace.pipeline.plan import LogicalPlan
from headrace.pipeline.state import Application
from headrace.runtime.interfaces import Process, Runtime
from headrace.wire.umbilical import calls
from headrace.wire.umbilical import messages as m

log = get_logger(__name__)

LAUNCH_FAILED = 127  # exit status of a container that could not be started
CLOSE_SECONDS = 10.0  # for containers to end after SIGTERM
LOGS_MAX = 10  # log files kept per application
MESSAGE_CHARACTERS_MAX = 4_096

Views: TypeAlias = list[dict[str, Any]]  # `list` is a method of the class below


@dataclass(slots=True)
class _Running:
    """An application and what the shell holds for it."""

    application: Application
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    processes: dict[str, Process] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Controller:
    def __init__(
        self,
        runtime: Runtime,
        settings: ControllerSettings,
        *,
        data_dir: str,
        open_log: OpenLog,
        launcher: Launcher,
        broker: tuple[str, int] = ("127.0.0.1", 8090),
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._folder = f"{data_dir.rstrip('/')}/applications"
        self._open_log = open_log
        self._launcher = launcher
        self._broker = broker
        self._address = (host, port)
        self._journal = Journal()
        self._log: Log | None = None
        self._log_events = 0
        self._disk = runtime.executor("controller-disk", 1)
        self._tasks = TaskSet("controller")
        self._running: dict[str, _Running] = {}
        self._homes: dict[str, _Running] = {}  # by container id
        self._submitting = asyncio.Lock()
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = False
        self._started = (runtime.clock.now_ms(), runtime.clock.monotonic())
        self.failure: HeadraceError | None = None
        self._server = HadoopRpcServer(
            runtime,
            calls.PROTOCOL_NAME,
            calls.PROTOCOL_VERSION,
            build_handlers(self),
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
        await self._server.start(*self._address)
        for running in list(self._running.values()):
            if not running.application.finished:
                await self._publish_address(running.application.path)
                await self._go_on(running, adopt=self._launcher.survives)
        self._tasks.start(self._tick_for_ever(), name="tick")

    async def close(self) -> None:
        self._closing = True
        await self._server.close()
        await self._end_processes()
        await self._tasks.close()
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

    # what the CLI and the JSON API call

    async def submit(self, package: packages.Package) -> dict[str, Any]:
        """Deploy a package and start its application; what `show` says of it.

        AlreadyExistsError while one of that name runs. One that ended is replaced and goes on
        from its checkpoints.
        """
        packages.check_files(
            package.entry, package.files, bytes_max=self._settings.package_bytes_max
        )
        async with self._submitting:
            hash_ = packages.content_hash(package.files)
            plan = await self._plan_of(package, hash_)
            LogicalPlan.from_json(plan).validate()
            record = self._make_record(package, plan, hash_)
            self._make_application(record)  # refuses now what could not run after a restart either
            path = self._path(record.name)
            await self._disk.run(
                packages.install,
                self._runtime.disk,
                f"{path}/packages/{hash_}",
                package.files,
            )
            await self._append("submit", msgspec.to_builtins(record))
            running = self._add(self._journal.applications[record.name])
            running.application.events.add(self._now_ms(), EventType.SUBMIT, package=hash_)
            await self._publish_address(path)
            await self._go_on(running, adopt=False)
        return self.show(record.name)

    def list(self) -> Views:
        now_ms = self._now_ms()
        return [
            views.summary(self._running[name].application, now_ms)
            if name in self._running
            else views.forgotten(record, "its plan cannot be read by this version")
            for name, record in self._journal.applications.items()
        ]

    def show(self, name: str) -> dict[str, Any]:
        return views.details(self._get(name).application, self._now_ms())

    def events(self, name: str, *, after: int = 0) -> Views:
        return [one.to_json() for one in self._get(name).application.events.list(after=after)]

    async def stop(self, name: str) -> None:
        """Ask an application to end; `wait` tells when it has."""
        running = self._get(name)
        async with running.lock:
            await self._perform(running, running.application.on_stop(self._now_ms()))

    async def kill_container(self, name: str, container_id: str) -> None:
        """Kill a container's process; it is restarted."""
        running = self._get(name)
        async with running.lock:
            actions = running.application.on_kill(container_id, self._now_ms())
            await self._perform(running, actions)

    async def send_request(self, name: str, request: m.StramToNodeRequest) -> None:
        """Queue an operator request; it goes out with the next heartbeat's answer."""
        self._get(name).application.on_request(request)

    async def request_stack_trace(self, name: str, container_id: str) -> None:
        self._get(name).application.on_stack_trace_wanted(container_id)

    async def wait(self, name: str) -> dict[str, Any]:
        """Until the application has ended and its processes with it; then what `show` says."""
        running = self._get(name)
        await running.over.wait()
        while running.processes:
            await asyncio.wait(
                [asyncio.ensure_future(one.wait()) for one in running.processes.values()]
            )
            await self._runtime.clock.sleep(0)
        return views.details(running.application, self._now_ms())

    async def logs(self, name: str, lines: int = 100) -> str:
        """The last lines of the application's containers, the newest container last."""
        folder = f"{self._get(name).application.path}/logs"
        text = ""
        for file in reversed(await self._log_files(folder)):
            text = await self._tail(f"{folder}/{file}") + text
            if text.count("\n") >= lines:
                break
        return "".join(text.splitlines(keepends=True)[-lines:])

    def statistics(self) -> dict[str, Any]:
        living = [one for one in self._running.values() if not one.application.finished]
        return {
            "applications": len(self._journal.applications),
            "applications_running": len(living),
            "containers": sum(len(one.processes) for one in self._running.values()),
            "umbilical": self._server.statistics(),
        }

    # the umbilical (handlers.UmbilicalService)

    async def get_init_context(self, request: m.GetInitContextRequest) -> m.GetInitContextResponse:
        running = self._homes.get(request.container_id)
        if running is None:
            return m.GetInitContextResponse(None)
        return m.GetInitContextResponse(running.application.on_init_context(request.container_id))

    async def log(self, request: m.LogRequest) -> m.LogResponse:
        if request.container_id in self._homes:
            text = request.msg[:MESSAGE_CHARACTERS_MAX]
            log.info("container_says", container=request.container_id, text=text)
        return m.LogResponse()

    async def report_error(self, request: m.ReportErrorRequest) -> m.ReportErrorResponse:
        running = self._homes.get(request.container_id)
        if running is not None:
            text = request.msg[:MESSAGE_CHARACTERS_MAX]
            log.warning("container_error", container=request.container_id, text=text)
            running.application.on_error(request, self._now_ms())
        return m.ReportErrorResponse()

    async def process_heartbeat(
        self, request: m.ContainerHeartbeat
    ) -> m.ContainerHeartbeatResponse:
        running = self._homes.get(request.stats.id)
        if running is None or self.failure is not None:
            return m.ContainerHeartbeatResponse(shutdown=m.ShutdownType.ABORT)
        async with running.lock:
            outcome = running.application.on_heartbeat(request, self._now_ms())
            await self._perform(running, outcome.actions)
        return outcome.response

    # shell

    def _add(self, record: ApplicationRecord) -> _Running:
        application = self._make_application(record)
        running = _Running(application)
        if application.finished:
            running.over.set()
        self._running[record.name] = running
        return running

    def _make_application(self, record: ApplicationRecord) -> Application:
        path = self._path(record.name)
        return Application(record, self._settings, path=path, broker=self._broker)

    def _get(self, name: str) -> _Running:
        try:
            return self._running[name]
        except KeyError:
            raise NotFoundError("no such application", name=name) from None

    async def _go_on(self, running: _Running, *, adopt: bool) -> None:
        async with running.lock:
            actions = running.application.on_start(self._now_ms(), adopt=adopt)
            for container in running.application.containers:
                if container.id:
                    self._homes[container.id] = running
            await self._perform(running, actions)

    async def _perform(self, running: _Running, actions: Sequence[Action]) -> None:
        """In order; the caller holds the application's lock."""
        for action in actions:
            if isinstance(action, Record):
                await self._append(action.kind, action.body)
            elif isinstance(action, Launch):
                await self._launch(running, action)
            elif isinstance(action, Kill) and action.container_id in running.processes:
                running.processes[action.container_id].kill()
        if running.application.finished:
            running.over.set()
        self._wake.set()

    async def _launch(self, running: _Running, action: Launch) -> None:
        if self._closing:
            return
        application = running.application
        record = application.record
        folder = f"{application.path}/packages/{record.package}"
        request = LaunchRequest(
            action.container_id, application.path, folder, record.entry, record.available_now
        )
        self._homes[action.container_id] = running
        try:
            await self._disk.run(packages.verify, self._runtime.disk, folder, record.package)
            await self._prepare_logs(f"{application.path}/logs")
            process = await self._launcher.launch(request)
        except HeadraceError as error:
            log.error("launch_failed", container=action.container_id, reason=str(error))
            now_ms = self._now_ms()
            report = m.ReportErrorRequest(action.container_id, (), f"not started: {error}")
            application.on_error(report, now_ms)
            actions = application.on_exit(action.container_id, LAUNCH_FAILED, now_ms)
            await self._perform(running, actions)
            return
        running.processes[action.container_id] = process
        application.on_launched(action.container_id, process.pid)
        log.info("container_started", container=action.container_id, pid=process.pid)
        self._tasks.start(self._watch(running, action.container_id, process), name="watch")

    async def _watch(self, running: _Running, container_id: str, process: Process) -> None:
        """Notices the end of a child at once, whatever ended it."""
        status = await process.wait()
        log.info("container_ended", container=container_id, exit_status=status)
        running.processes.pop(container_id, None)
        self._homes.pop(container_id, None)
        if self._closing:
            return  # it ends because we do; the application stays wanted
        async with running.lock:
            actions = running.application.on_exit(container_id, status, self._now_ms())
            await self._perform_or_fail(running, actions)

    async def _tick_for_ever(self) -> None:
        while self.failure is None:
            self._wake.clear()
            for running in list(self._running.values()):
                async with running.lock:
                    actions = running.application.on_tick(self._now_ms())
                    if actions:
                        await self._perform_or_fail(running, actions)
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

    async def _perform_or_fail(self, running: _Running, actions: Sequence[Action]) -> None:
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

    async def _end_processes(self) -> None:
        processes = [
            one for running in self._running.values() for one in running.processes.values()
        ]
        for process in processes:
            process.terminate()
        waiting = [asyncio.ensure_future(process.wait()) for process in processes]
        if waiting:
            await asyncio.wait(waiting, timeout=CLOSE_SECONDS)
            for process in processes:
                process.kill()
            await asyncio.wait(waiting)

    async def _plan_of(self, package: packages.Package, hash_: str) -> dict[str, Any]:
        given = getattr(package, "plan", None)
        plan = dict(given) if given is not None else await self._describe(package, hash_)
        if package.name:
            plan["name"] = package.name
        return plan

    async def _describe(self, package: packages.Package, hash_: str) -> dict[str, Any]:
        disk = self._runtime.disk
        work_folder = f"{self._folder}/.staging"
        folder = f"{work_folder}/{hash_}"
        await self._disk.run(disk.remove_tree, work_folder)
        await self._disk.run(packages.install, disk, folder, package.files)
        try:
            return await self._launcher.describe(
                folder,
                package.entry,
                work_folder=work_folder,
                timeout=self._settings.describe_timeout_ms / 1000,
            )
        finally:
            await self._disk.run(disk.remove_tree, work_folder)

    def _make_record(
        self, package: packages.Package, plan: dict[str, Any], hash_: str
    ) -> ApplicationRecord:
        name = str(plan["name"])
        running = self._running.get(name)
        if running is not None and not running.application.finished:
            raise AlreadyExistsError("an application of this name runs", name=name)
        if running is not None and running.processes:
            raise AlreadyExistsError("its last container has not ended yet", name=name)
        before = self._journal.applications.get(name)
        if before is None and len(self._journal.applications) >= self._settings.applications_max:
            raise TooLargeError("too many applications", most=self._settings.applications_max)
        now_ms = self._now_ms()
        return ApplicationRecord(
            name=name,
            plan=plan,
            package=hash_,
            entry=package.entry,
            # Window ids and run ids go on growing over an application's whole life.
            start_window_ms=before.start_window_ms if before else now_ms // 1000 * 1000,
            submitted_ms=now_ms,
            available_now=package.available_now,
            run=before.run if before else 0,
            committed=before.committed if before else m.NO_WINDOW,
        )

    async def _publish_address(self, path: str) -> None:
        settings = self._settings
        uri = HeartbeatUri(
            *self.umbilical_address,
            settings.rpc_timeout_ms,
            settings.retry_delay_ms,
            settings.retry_timeout_ms,
        )
        disk = self._runtime.disk
        await self._disk.run(disk.make_folder, f"{path}/recovery")
        data = format_heartbeat_uri(uri).encode()
        await self._disk.run(disk.write_atomic, heartbeat_uri_path(path), data)

    async def _prepare_logs(self, folder: str) -> None:
        disk = self._runtime.disk
        await self._disk.run(disk.make_folder, folder)
        for old in (await self._log_files(folder))[: -LOGS_MAX + 1]:
            await self._disk.run(disk.remove, f"{folder}/{old}")

    async def _log_files(self, folder: str) -> Sequence[str]:
        """Oldest first: a container's id ends with its run."""
        names = await self._disk.run(self._runtime.disk.list, folder)
        return sorted(
            (name for name in names if name.endswith(".log")),
            key=lambda name: int(name.removesuffix(".log").rpartition(".")[2]),
        )

    async def _tail(self, path: str) -> str:
        disk = self._runtime.disk
        most = self._settings.log_tail_bytes_max

        def read() -> bytes:
            file = disk.open(path)
            try:
                return file.pread(most, max(0, file.size() - most))
            finally:
                file.close()

        try:
            return (await self._disk.run(read)).decode("utf-8", "replace")
        except NotFoundError:
            return ""

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _now_ms(self) -> int:
        """Wall time that never jumps: time-outs may not follow somebody who sets the clock."""
        elapsed = self._runtime.clock.monotonic() - self._started[1]
        return self._started[0] + int(elapsed * 1000)
