"""The processes of containers: started, adopted, watched, killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.concurrency.tasks import TaskSet
from headrace.observability.logging import get_logger
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.backlog import Backlog
from headrace.pipeline.controller.observations import Observations
from headrace.pipeline.controller.processes import Launcher, LaunchRequest
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.runtime.interfaces import Process

log = get_logger(__name__)

CLOSE_SECONDS = 10.0  # for containers to end after SIGTERM


@dataclass(slots=True)
class Running:
    """An application and what the controller holds for it."""

    application: Application
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    processes: dict[str, Process] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    beat: asyncio.Event = field(default_factory=asyncio.Event)  # a new one after each heartbeat
    edges_made: PhysicalPlan | None = None
    observations: Observations = field(default_factory=Observations)
    backlog: Backlog = field(default_factory=Backlog)

    def annotate(self, view: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """The view of the application with what is known beside its state."""
        return self.backlog.annotate(self.observations.annotate(view, now_ms), now_ms)


OnExit = Callable[[Running, str, int], Awaitable[None]]


class Fleet:
    def __init__(self, launcher: Launcher, tasks: TaskSet, on_exit: OnExit) -> None:
        self._launcher = launcher
        self._tasks = tasks
        self._on_exit = on_exit
        self.homes: dict[str, Running] = {}  # by container id

    async def launch(self, running: Running, request: LaunchRequest) -> None:
        process = await self._launcher.launch(request)
        log.info("container_started", container=request.container_id, pid=process.pid)
        self._keep(running, request.container_id, process)

    async def adopt(self, running: Running, container_id: str) -> bool:
        """Whether the container still runs, from an earlier life of the controller."""
        path = running.application.path
        process = await self._launcher.adopt(container_id, path)
        if process is None:
            return False
        log.info("container_adopted", container=container_id, pid=process.pid)
        self._keep(running, container_id, process)
        return True

    def kill(self, running: Running, container_id: str) -> None:
        if container_id in running.processes:
            running.processes[container_id].kill()

    async def end(self, everything: Iterable[Running]) -> None:
        """Ask all to end, then make them."""
        processes = [one for running in everything for one in running.processes.values()]
        for process in processes:
            process.terminate()
        waiting = [asyncio.ensure_future(process.wait()) for process in processes]
        if waiting:
            await asyncio.wait(waiting, timeout=CLOSE_SECONDS)
            for process in processes:
                process.kill()
            await asyncio.wait(waiting)

    def _keep(self, running: Running, container_id: str, process: Process) -> None:
        self.homes[container_id] = running
        running.processes[container_id] = process
        running.application.on_launched(container_id, process.pid)
        self._tasks.start(self._watch(running, container_id, process), name="watch")

    async def _watch(self, running: Running, container_id: str, process: Process) -> None:
        """Notices the end of a process at once, whatever ended it."""
        status = await process.wait()
        log.info("container_ended", container=container_id, exit_status=status)
        running.processes.pop(container_id, None)
        self.homes.pop(container_id, None)
        await self._on_exit(running, container_id, status)
