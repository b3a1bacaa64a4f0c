"""A container: one driver process that runs the operators the controller deploys to it.

    python -m headrace.pipeline.container.container

Everything it needs comes by the environment (`ContainerSettings.from_environment`). The event loop
only speaks to the controller; whatever touches Spark runs in threads, so that a long start or a
busy JVM never silences the heartbeat. Exit status: 0 after a shutdown or SIGTERM, 1 after anything
else, among it a controller that cannot be reached within the umbilical's retry budget.

What a container runs: an application's queries, or an ordinary script.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.errors import ConfigError, HeadraceError
from headrace.net.addresses import parse_address
from headrace.observability import tracing
from headrace.observability.logging import (
    LOG_FORMAT_VARIABLE,
    TRACES_RATIO_VARIABLE,
    TRACES_VARIABLE,
    Format,
    configure_logging,
    get_logger,
)
from headrace.pipeline.container.container_session import WorkloadSettings
from headrace.pipeline.container.heartbeat import HeartbeatFigures
from headrace.pipeline.container.script_workload import ScriptWorkload
from headrace.pipeline.container.umbilical import PATH_VARIABLE, UmbilicalClient, load_token
from headrace.pipeline.container.workload import Workload
from headrace.pipeline.loglevels import set_python_levels
from headrace.pipeline.plan.describe import script_text
from headrace.runtime.interfaces import Runtime
from headrace.runtime.system import run, system_runtime
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical.messages import (
    NO_WINDOW,
    ContainerHeartbeat,
    ContainerHeartbeatResponse,
    ContainerStats,
    LogFileInfo,
    OperatorDeployInfo,
    OperatorHeartbeat,
    RequestType,
    ShutdownType,
    StreamingContainerContext,
)
from headrace.wire.umbilical.tokens import Token

AnyWorkload: TypeAlias = Workload | ScriptWorkload


def make_workload(
    runtime: Runtime, settings: WorkloadSettings, context: StreamingContainerContext
) -> AnyWorkload:
    kind = ScriptWorkload if script_text(settings.package, settings.entry) else Workload
    return kind(runtime, settings, context)


log = get_logger(__name__)

PENDING_SECONDS = 0.5  # until the next heartbeat when the controller has more to say
PASS_SECONDS = 1.0  # between two looks at queries with nothing to do
SPARK_THREADS = 2  # one may be starting queries for a long while


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    container_id: str
    application_path: str
    package: str  # folder of the deployed code
    entry: str  # `shop.py`, `shop` or `shop:app`
    broker: str
    master: str = "local[*]"
    available_now: bool = False
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    umbilical_path: str = ""  # of the controller's address; empty: the application path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ContainerSettings:
        """ConfigError names every variable that is missing."""
        needed = {
            "container_id": "HEADRACE_CONTAINER_ID",
            "application_path": "HEADRACE_APPLICATION_PATH",
            "package": "HEADRACE_PACKAGE",
            "entry": "HEADRACE_ENTRY",
            "broker": "HEADRACE_BROKER",
        }
        missing = [name for name in needed.values() if not environment.get(name)]
        if missing:
            raise ConfigError(f"a container needs {', '.join(missing)} in its environment")
        prefix = "HEADRACE_SPARK_CONF_"  # HEADRACE_SPARK_CONF_spark.driver.memory=1g
        return cls(
            **{argument: environment[name] for argument, name in needed.items()},
            master=environment.get("HEADRACE_SPARK_MASTER") or "local[*]",
            available_now=environment.get("HEADRACE_AVAILABLE_NOW", "") not in ("", "0", "false"),
            spark_conf={
                name.removeprefix(prefix): value
                for name, value in environment.items()
                if name.startswith(prefix)
            },
            umbilical_path=environment.get(PATH_VARIABLE, ""),
        )


class Container:
    def __init__(
        self, runtime: Runtime, settings: ContainerSettings, token: Token | None = None
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._id = settings.container_id
        path = settings.umbilical_path or settings.application_path
        self._umbilical = UmbilicalClient(runtime, path, token)
        self._spark = runtime.executor("spark", SPARK_THREADS)
        self._windows = runtime.executor("windows", 1)
        self._workload: AnyWorkload | None = None
        self._deploying: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._failed = False
        self._stack_trace: str | None = None
        self._committed = NO_WINDOW
        self._figures: HeartbeatFigures | None = None

    async def run(self) -> int:
        """Live until told to stop; the exit status."""
        try:
            context = await self._umbilical.get_init_context(self._id)
            if context is None:
                log.error("container_unknown", container=self._id)
                return 1
            self._workload = make_workload(self._runtime, self._settings, context)
            self._figures = HeartbeatFigures.from_context(context)
            await self._umbilical.log(self._id, "entering the heartbeat loop")
            passing = asyncio.create_task(self._pass_windows(self._workload))
            try:
                await self._heartbeats(self._workload, context)
            finally:
                passing.cancel()
                await asyncio.wait([passing])
        except Exception as error:  # the controller out of reach, the JVM gone: nothing is left
            log.error("container_failed", container=self._id, reason=_text(error))
            self._failed = True
        finally:
            await self._shut_down()
        return 1 if self._failed else 0

    def stop(self) -> None:
        """Stop as after a shutdown request; for signals."""
        self._stop.set()

    async def _heartbeats(self, workload: AnyWorkload, context: StreamingContainerContext) -> None:
        interval_ms = attributes.look_up(
            "HEARTBEAT_INTERVAL_MILLIS", context.attributes, defaults=attributes.DAG
        )
        interval = (interval_ms if isinstance(interval_ms, int) and interval_ms else 1000) / 1000
        while not self._stop.is_set():
            heartbeat = await self._spark.run(self._collect, workload, int(interval * 1000))
            await self._report_failures(workload)
            response = await self._umbilical.process_heartbeat(heartbeat)
            await self._obey(workload, response)
            pause = PENDING_SECONDS if response.has_pending_requests else interval
            await self._sleep(pause)
            if self._deploying is not None and self._deploying.done():
                self._deploying.result()  # a failed deployment ends the container
                self._deploying = None

    async def _pass_windows(self, workload: AnyWorkload) -> None:
        """Beside the heartbeats, which must not wait for a broker that is away."""
        while True:
            await self._runtime.clock.sleep(PASS_SECONDS)
            try:
                await self._windows.run(workload.pass_windows, self._runtime.clock.now_ms())
            except Exception as error:  # the next round tries again, and a batch would tell
                log.warning("windows_not_passed", container=self._id, reason=_text(error))

    async def _sleep(self, seconds: float) -> None:
        """Until the time is over, a stop, or the end of a deployment: that is worth telling."""
        waiting: set[asyncio.Future[object]] = {asyncio.ensure_future(self._stop.wait())}
        if self._deploying is not None and not self._deploying.done():
            waiting.add(asyncio.ensure_future(asyncio.shield(self._deploying)))
        _, pending = await asyncio.wait(
            waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for each in pending:
            each.cancel()

    def _collect(self, workload: AnyWorkload, interval_ms: int) -> ContainerHeartbeat:
        now_ms = self._runtime.clock.now_ms()
        stack_trace, self._stack_trace = self._stack_trace, None
        free_mb, gc_ms, gc_count = workload.memory()
        host, port = parse_address(self._settings.broker)
        return ContainerHeartbeat(
            buffer_server_host=host,
            buffer_server_port=port,
            jvm_name=f"{os.getpid()}@{os.uname().nodename}",
            memory_mb_free=free_mb,
            gc_collection_time=gc_ms,
            gc_collection_count=gc_count,
            restart_requested=workload.is_broken(),
            stats=ContainerStats(
                self._id, self._complete(workload.heartbeats(now_ms, interval_ms))
            ),
            sent_tms=now_ms,
            stack_trace=stack_trace,
        )

    def _complete(self, reports: Sequence[OperatorHeartbeat]) -> tuple[OperatorHeartbeat, ...]:
        if self._figures is None:
            return tuple(reports)
        return self._figures.complete(reports, self._runtime.processes.cpu_ns())

    async def _report_error(self, operators: tuple[int, ...], message: str) -> None:
        """With the place in our log where more may stand."""
        path = f"logs/{self._id}.log"
        disk, file = self._runtime.disk, f"{self._settings.application_path}/{path}"
        position = None
        if await self._spark.run(disk.exists, file):
            position = LogFileInfo(path, await self._spark.run(disk.size, file))
        await self._umbilical.report_error(self._id, operators, message, position)

    async def _report_failures(self, workload: AnyWorkload) -> None:
        for operators, message in workload.take_failures():
            log.error("query_failed", operators=operators, reason=message)
            await self._report_error(operators, message)

    async def _obey(self, workload: AnyWorkload, response: ContainerHeartbeatResponse) -> None:
        """In the origin's order: undeploy, shutdown, deploy, the rest."""
        if response.committed_window_id != self._committed:
            self._committed = response.committed_window_id
            await self._tell_committed(workload, self._committed)
        if response.undeploy_request:
            await self._spark.run(workload.undeploy, response.undeploy_request)
            if self._figures is not None:
                self._figures.on_undeploy(response.undeploy_request)
        if response.shutdown is not None:
            log.info("shutdown", kind=ShutdownType(response.shutdown).name)
            self._stop.set()
            return
        fresh = tuple(info for info in response.deploy_request if not workload.knows(info.id))
        if fresh and self._deploying is None:
            workload.expect(fresh)
            if self._figures is not None:
                self._figures.on_deploy(fresh)
            self._deploying = asyncio.create_task(self._deploy(workload, fresh))
        for request in response.node_requests:
            if request.request_type is RequestType.SET_LOG_LEVEL:
                set_python_levels(request.target_levels)
        if response.node_requests:
            await self._spark.run(workload.handle, response.node_requests)
        if response.stack_trace_required:
            self._stack_trace = await self._spark.run(workload.stack_trace)

    async def _tell_committed(self, workload: AnyWorkload, window: int) -> None:
        """A hook is the user's code: what it raises is told, and the container lives on."""
        if window == NO_WINDOW:
            return
        try:
            await self._spark.run(workload.committed, window)
        except Exception as error:
            text = f"committed() hook at window {window:x}: {_text(error)}"
            log.error("committed_hook_failed", reason=text)
            await self._umbilical.report_error(self._id, (), text)

    async def _deploy(self, workload: AnyWorkload, infos: tuple[OperatorDeployInfo, ...]) -> None:
        try:
            await self._spark.run(workload.deploy, infos)
        except Exception as error:  # whatever the user's code raises ends the container
            text = _text(error)
            log.error("deploy_failed", reason=text)
            operators = tuple(info.id for info in infos)
            await self._report_error(operators, text)
            await self._umbilical.log(self._id, f"deploy failed: {text}")
            raise ConfigError(text) from error

    async def _shut_down(self) -> None:
        """Cut off what runs (it is run again by the next start), then close the JVM."""
        if self._deploying is not None and not self._deploying.done():
            await asyncio.wait([self._deploying])
        if self._workload is not None:
            try:
                await self._spark.run(self._workload.close)
            except Exception as error:  # a JVM that is gone cannot be stopped
                log.warning("spark_stop_failed", container=self._id, reason=_text(error))
        self._spark.close()
        self._windows.close()
        await self._umbilical.close()


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


async def run_container(settings: ContainerSettings, token: Token | None = None) -> int:
    container = Container(system_runtime(), settings, token)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, container.stop)
    return await container.run()


def main() -> int:
    format: Format = "json" if os.environ.get(LOG_FORMAT_VARIABLE) == "json" else "text"
    configure_logging(format=format, role="container")
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every callback
    try:
        settings = ContainerSettings.from_environment(os.environ)
        token = load_token(system_runtime().disk, os.environ)
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 2
    endpoint = os.environ.get(TRACES_VARIABLE, "")
    if endpoint:
        ratio = float(os.environ.get(TRACES_RATIO_VARIABLE) or 1)
        name = f"headrace-container-{settings.container_id}"
        tracing.start(endpoint, service="headrace-container", instance=name, ratio=ratio)
    try:
        return run(run_container(settings, token))
    finally:
        tracing.stop()


if __name__ == "__main__":
    sys.exit(main())
