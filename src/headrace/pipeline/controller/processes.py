"""Starts containers. Locally a container is a child process of the controller that outlives it: a
controller that comes back adopts it, one that stays away is given up after the umbilical's budget.

Its environment: HEADRACE_CONTAINER_ID, HEADRACE_APPLICATION_PATH, HEADRACE_PACKAGE (folder, first
on PYTHONPATH), HEADRACE_ENTRY, HEADRACE_BROKER, HEADRACE_AVAILABLE_NOW, SPARK_LOCAL_IP,
PYSPARK_PYTHON, what the operator's own environment says, and how the broker is reached. No secret
is in it: the container's umbilical token and its grant for the broker (`grants.py`) are in files of
mode 0600 under the application path, which HEADRACE_UMBILICAL_TOKEN_FILE and HEADRACE_TOKEN_FILE
name (`LaunchRequest.login_environment`). A launcher whose containers cannot read that path sets
HEADRACE_UMBILICAL_TOKEN to `LaunchRequest.token` and HEADRACE_TOKEN to `LaunchRequest.grant`
instead, and has to start them anew before the grant ends.
HEADRACE_UMBILICAL_PATH is where the controller's address is published.

The processes of containers: started, adopted, watched, killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from headrace.client.url import TOKEN_FILE_VARIABLE as GRANT_FILE_VARIABLE
from headrace.concurrency.tasks import TaskSet
from headrace.errors import DeadlineError, InvalidArgumentError, NotFoundError
from headrace.observability.logging import get_logger
from headrace.pipeline.container.umbilical import PATH_VARIABLE, TOKEN_FILE_VARIABLE
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.backlog import Backlog
from headrace.pipeline.controller.grants import grant_path
from headrace.pipeline.controller.observations import Observations
from headrace.pipeline.controller.views import ApplicationView
from headrace.pipeline.plan.packages import prepare_environment, python_path
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.pipeline.plan.resources import Resources
from headrace.runtime.interfaces import Process, Runtime
from headrace.spark.limited_daemon import MEMORY_VARIABLE
from headrace.spark.limited_daemon import MODULE as LIMITED_DAEMON

CONTAINER_MODULE = "headrace.pipeline.container.container"
DESCRIBE_MODULE = "headrace.pipeline.plan.describe"
SHAPES_MODULE = "headrace.pipeline.plan.checkpoint_contents"
SPARK_CONF = "HEADRACE_SPARK_CONF_"  # prefix of a variable that is a Spark setting
PLAN_FILE = "plan.json"
LOG_TAIL_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    container_id: str
    application_path: str
    package_folder: str
    entry: str
    available_now: bool
    resources: Resources = field(default_factory=Resources)
    token: str = field(default="", repr=False)  # for the umbilical; the controller takes it back
    umbilical_path: str = ""  # where the controller's address is, local or at an fsspec address
    grant: str = field(default="", repr=False)  # for the broker; the controller renews the file

    @property
    def token_path(self) -> str:
        """Where the controller keeps the token while the container runs."""
        return token_path(self.application_path, self.container_id)

    @property
    def grant_path(self) -> str:
        return grant_path(self.application_path, self.container_id)

    @property
    def login_environment(self) -> dict[str, str]:
        """What a container needs to find the controller and to log in there."""
        path = self.umbilical_path or self.application_path
        files = {TOKEN_FILE_VARIABLE: self.token_path, PATH_VARIABLE: path}
        if self.grant:
            files[GRANT_FILE_VARIABLE] = self.grant_path
        return files

    @property
    def log_path(self) -> str:
        return f"{self.application_path}/logs/{self.container_id}.log"


def token_path(application_path: str, container_id: str) -> str:
    return f"{application_path}/tokens/{container_id}"


class Launcher(Protocol):
    async def launch(self, request: LaunchRequest) -> Process: ...

    async def adopt(self, container_id: str, application_path: str) -> Process | None:
        """The container that an earlier life of this controller started, if it still runs."""

    async def describe(
        self, package_folder: str, entry: str, *, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        """The plan that a package's entry declares. InvalidArgumentError with its own words when
        it declares none. Runs the package's code, so never in this process."""


@runtime_checkable
class VersionedLauncher(Protocol):
    """A launcher that can also prepare and compare versions of a package."""

    async def prepare(
        self, files: Mapping[str, bytes], package_folder: str, folder: str, *, timeout: float
    ) -> None:
        """Install the locked requirements of an installed package below `folder`."""

    async def shapes(
        self, package_folder: str, entry: str, *, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        """What checkpoints of the package's queries hold (`shapes.py`)."""


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """`environment` is what children inherit (PATH, HOME, JAVA_HOME, Spark settings); `reach` what
    tells them and their executors, wherever those are, how to reach the broker: no secrets."""

    runtime: Runtime
    broker: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    reach: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: Sequence[str] = (sys.executable, "-m", CONTAINER_MODULE)
    master: str = "local"
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    async def launch(self, request: LaunchRequest) -> Process:
        environment = {
            **self._spark(request),
            **await self._environment(
                request.package_folder, request.entry, request.application_path
            ),
            **self.reach,
            **request.login_environment,
            "HEADRACE_CONTAINER_ID": request.container_id,
            "HEADRACE_AVAILABLE_NOW": "1" if request.available_now else "",
        }
        return await self.runtime.processes.spawn(
            self.command,
            environment=environment,
            folder=request.application_path,
            output=request.log_path,
            outlives=True,
        )

    def _spark(self, request: LaunchRequest) -> dict[str, str]:
        """The session's master and settings. PySpark starts its JVM by spark-submit in client mode,
        so the driver is our child wherever its executors run; they need the code that it has. What
        they show the broker comes with their tasks (`spark/lending.py`)."""
        resources = request.resources
        local = self.master == "local"
        conf = {"spark.driver.memory": f"{resources.heap_mb}m"}
        limit = {}
        if resources.workers_mb and self._limits_workers:
            limit[MEMORY_VARIABLE] = str(resources.workers_mb)
            conf["spark.python.daemon.module"] = LIMITED_DAEMON
        if not local:
            conf |= {f"spark.executorEnv.{name}": value for name, value in limit.items()}
            conf |= {f"spark.executorEnv.{name}": value for name, value in self.reach.items()}
            if resources.cores:
                conf["spark.cores.max"] = str(resources.cores)
        return {
            "HEADRACE_SPARK_MASTER": f"local[{resources.cores or '*'}]" if local else self.master,
            **{f"{SPARK_CONF}{name}": value for name, value in {**conf, **self.spark_conf}.items()},
            **limit,
        }

    @property
    def _limits_workers(self) -> bool:
        """YARN and Kubernetes have limits of their own for all of an executor."""
        return self.master.startswith(("local", "spark://"))

    async def adopt(self, container_id: str, application_path: str) -> Process | None:
        return await self.runtime.processes.adopt(
            {
                "HEADRACE_CONTAINER_ID": container_id,
                "HEADRACE_APPLICATION_PATH": application_path,
            }
        )

    async def describe(
        self, package_folder: str, entry: str, *, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        return await self._ask(DESCRIBE_MODULE, package_folder, entry, work_folder, timeout)

    async def shapes(
        self, package_folder: str, entry: str, *, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        return await self._ask(SHAPES_MODULE, package_folder, entry, work_folder, timeout)

    async def prepare(
        self, files: Mapping[str, bytes], package_folder: str, folder: str, *, timeout: float
    ) -> None:
        await prepare_environment(
            self.runtime,
            files,
            package_folder,
            folder,
            variables=self.environment,
            timeout=timeout,
        )

    async def _ask(
        self, module: str, package_folder: str, entry: str, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        """What a module says about a package, in a process that runs the package's code."""
        disk = self.runtime.disk
        executor = self.runtime.executor("describe", 1)
        answer, log = f"{work_folder}/{PLAN_FILE}", f"{work_folder}/describe.log"
        try:
            await executor.run(disk.remove, answer)
            process = await self.runtime.processes.spawn(
                (sys.executable, "-m", module, answer),
                environment=await self._environment(package_folder, entry, work_folder),
                folder=work_folder,
                output=log,
            )
            status = await _wait(process, timeout, entry)
            try:
                plan = json.loads(await executor.run(disk.read, answer))
            except (NotFoundError, ValueError):
                data = await executor.run(disk.read, log)
                text = data[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
                raise InvalidArgumentError(
                    f"{entry} could not be loaded (exit status {status}): {text}"
                ) from None
        finally:
            executor.close()
        if "error" in plan:
            raise InvalidArgumentError(str(plan["error"]))
        return dict(plan)

    async def _environment(
        self, package_folder: str, entry: str, application_path: str
    ) -> dict[str, str]:
        executor = self.runtime.executor("launcher", 1)
        try:
            path = await executor.run(python_path, self.runtime.disk, package_folder)
        finally:
            executor.close()
        inherited = self.environment.get("PYTHONPATH", "")
        return {
            **self.environment,
            "HEADRACE_APPLICATION_PATH": application_path,
            "HEADRACE_PACKAGE": package_folder,
            "HEADRACE_ENTRY": entry,
            "HEADRACE_BROKER": self.broker,
            "PYTHONPATH": f"{path}:{inherited}" if inherited else path,
            "PYTHONPYCACHEPREFIX": f"{application_path}/cache",  # the package stays as it was
            "PYTHONUNBUFFERED": "1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": self.environment.get("SPARK_LOCAL_IP", "127.0.0.1"),
        }


async def _wait(process: Process, timeout: float, entry: str) -> int:
    try:
        async with asyncio.timeout(timeout):
            return await process.wait()
    except TimeoutError:
        raise DeadlineError(f"{entry} did not state its plan in time", seconds=timeout) from None
    finally:
        if process.exit_status is None:
            process.kill()
            await process.wait()


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

    def annotate(self, view: ApplicationView, now_ms: int) -> ApplicationView:
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
