"""The applications that run, and the processes of their containers.

`RunningApplications` knows them by name, `ContainerProcesses` by container: started, adopted,
watched, killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from headrace.concurrency.tasks import TaskSet
from headrace.config.controller import ControllerSettings
from headrace.errors import NotFoundError
from headrace.observability.logging import get_logger
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.backlog import Backlog
from headrace.pipeline.controller.journal import ApplicationRecord
from headrace.pipeline.controller.launcher import Launcher, LaunchRequest
from headrace.pipeline.controller.observations import Observations
from headrace.pipeline.controller.views import ApplicationView
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.runtime.interfaces import Process

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
    observations: Observations = field(default_factory=Observations)
    backlog: Backlog = field(default_factory=Backlog)

    def annotate(self, view: ApplicationView, now_ms: int) -> ApplicationView:
        """The view of the application with what is known beside its state."""
        return self.backlog.annotate(self.observations.annotate(view, now_ms), now_ms)


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
