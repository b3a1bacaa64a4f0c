"""Starting the processes of containers. Locally a container is a child process of the controller
that outlives it: a controller that comes back adopts it, one that stays away is given up after the
umbilical's budget.

Its environment: HEADRACE_CONTAINER_ID, HEADRACE_APPLICATION_PATH, HEADRACE_PACKAGE (folder, first
on PYTHONPATH), HEADRACE_ENTRY, HEADRACE_BROKER, HEADRACE_AVAILABLE_NOW, SPARK_LOCAL_IP,
PYSPARK_PYTHON, what the operator's own environment says, and how the broker is reached.
HEADRACE_UMBILICAL_PATH is where the controller's address is published.

No secret is in it: the container's umbilical token and its grant for the broker
(`container_credentials.py`) are in files of mode 0600 under the application path, which
HEADRACE_UMBILICAL_TOKEN_FILE and HEADRACE_TOKEN_FILE name (`LaunchRequest.login_environment`). A
launcher whose containers cannot read that path sets HEADRACE_UMBILICAL_TOKEN to
`LaunchRequest.token` and HEADRACE_TOKEN to `LaunchRequest.grant` instead, and has to start them
anew before the grant ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from headrace.client.url import TOKEN_FILE_VARIABLE as GRANT_FILE_VARIABLE
from headrace.errors import DeadlineError, InvalidArgumentError, NotFoundError
from headrace.pipeline.container.umbilical import PATH_VARIABLE, TOKEN_FILE_VARIABLE
from headrace.pipeline.controller.container_credentials import grant_path
from headrace.pipeline.plan.packages import prepare_environment, python_path
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
        """What checkpoints of the package's queries hold (`checkpoint_contents.py`)."""


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
        they show the broker comes with their tasks (`spark/server.py`)."""
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
