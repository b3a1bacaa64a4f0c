"""What the umbilical costs the controller: processor time with 100 containers that report.

The containers are clients in another process: each logs in with its token over TCP and reports two
finished windows of its operator every second, as a real one does. Counted is the processor time of
the controller's whole process (ticks and journal included), not wall time. The limit is 5 % of one
core. Run with `python -m benchmarks umbilical`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from headrace.config.controller import ControllerSettings
from headrace.pipeline.container.umbilical import UmbilicalClient
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.controller.launcher import LaunchRequest
from headrace.pipeline.plan.packages import PackageSpec
from headrace.runtime.interfaces import Process
from headrace.runtime.system import run as run_loop
from headrace.runtime.system import system_runtime
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.tokens import parse_token
from headrace.wire.umbilical.windows import WindowGrid

CONTAINERS = 100
SETTLE_SECONDS = 5.0
SECONDS = 20.0
LIMIT_PERCENT = 5.0
_PORT = {"kind": "output", "name": "output"}
_PLAN = {
    "name": "swarm",
    "operators": [
        {"name": "orders", "ports": [_PORT]},
        {
            "name": "work",
            "class": "swarm:work",
            "ports": [{"kind": "input", "name": "orders"}],
            "instances": CONTAINERS - 1,
        },
    ],
    "streams": [
        {
            "name": "orders",
            "source": {"operatorName": "orders", "portName": "output"},
            "sinks": [{"operatorName": "work", "portName": "orders"}],
        }
    ],
}


def run() -> Iterator[dict[str, Any]]:
    percent, heartbeats = run_loop(_measure())
    yield {
        "name": f"controller, {CONTAINERS} containers (lower is better)",
        "value": percent,
        "unit": "% of a core",
        "limit": LIMIT_PERCENT,
        "ratio": percent / LIMIT_PERCENT,
        "heartbeats": heartbeats,
    }


async def _measure() -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder:
        launcher = _Launcher()
        controller = Controller(
            system_runtime(),
            # Nothing is started; a cluster's memory, unlike this machine's, is not checked.
            ControllerSettings(master="spark://nobody:7077", shared_path=folder),
            data_dir=folder,
            open_log=_MemoryLog().open,
            launcher=launcher,
        )
        await controller.start()
        package = PackageSpec("swarm.py", {"swarm.py": b""})
        await controller.operations.submit(package)
        told = [
            [request.container_id, request.umbilical_path, request.token]
            for request in launcher.requests
        ]
        swarm = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.umbilical", stdin=asyncio.subprocess.PIPE
        )
        assert swarm.stdin is not None
        swarm.stdin.write(json.dumps(told).encode())
        swarm.stdin.close()
        try:
            while not _all_active(controller):  # noqa: ASYNC110 - the controller tells nobody
                await asyncio.sleep(0.2)
            await asyncio.sleep(SETTLE_SECONDS)
            served = controller.operations.statistics().umbilical["calls_served"]
            started, used = time.monotonic(), time.process_time()
            await asyncio.sleep(SECONDS)
            used, wall = time.process_time() - used, time.monotonic() - started
            served = controller.operations.statistics().umbilical["calls_served"] - served
            assert served > 0.9 * CONTAINERS * SECONDS, f"only {served} heartbeats came"
            return 100 * used / wall, served
        finally:
            swarm.kill()
            await swarm.wait()
            for process in launcher.processes:
                process.kill()
            await controller.close()


def _all_active(controller: Controller) -> bool:
    return all(one.state == "ACTIVE" for one in controller.operations.show("swarm").operators)


class _Process:
    """Stands for a container that the swarm runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def exit_status(self) -> int | None:
        return self._status.result() if self._status.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        if not self._status.done():
            self._status.set_result(0)


class _Launcher:
    def __init__(self) -> None:
        self.requests: list[LaunchRequest] = []
        self.processes: list[_Process] = []

    async def launch(self, request: LaunchRequest) -> Process:
        self.requests.append(request)
        self.processes.append(_Process(len(self.requests)))
        return self.processes[-1]

    async def adopt(self, container_id: str, application_path: str) -> Process | None:
        return None

    async def describe(self, *_: Any, **__: Any) -> dict[str, Any]:
        return _PLAN


class _MemoryLog:
    """A journal that costs nothing: the umbilical alone is measured."""

    async def open(self, apply: Any, snapshot: Any, restore: Any) -> _MemoryLog:
        self._apply = apply
        return self

    async def append(self, kind: str, body: object, version: int = 1) -> int:
        self._apply(version, kind, body)
        return 0

    async def write_snapshot(self) -> None: ...

    async def close(self) -> None: ...


async def _swarm(told: list[list[str]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number, (id_, path, token) in enumerate(told):
            tasks.create_task(_container(id_, path, token, number / len(told)))


async def _container(id_: str, path: str, token: str, phase: float) -> None:
    runtime = system_runtime()
    await asyncio.sleep(phase)
    client = UmbilicalClient(runtime, path, parse_token(token))
    context = await client.get_init_context(id_)
    assert context is not None
    grid = WindowGrid(context.start_window_millis, 500)
    running: set[int] = set()
    while True:
        now_ms = runtime.clock.now_ms()
        windows = (grid.window_at(now_ms - 500), grid.window_at(now_ms))
        heartbeat = m.ContainerHeartbeat(
            buffer_server_host="127.0.0.1",
            buffer_server_port=8090,
            jvm_name="4711@swarm",
            memory_mb_free=512,
            gc_collection_time=1_000,
            gc_collection_count=10,
            stats=m.ContainerStats(id_, tuple(_report(one, windows, now_ms) for one in running)),
            sent_tms=now_ms,
        )
        response = await client.process_heartbeat(heartbeat)
        running.difference_update(response.undeploy_request)
        running.update(info.id for info in response.deploy_request)
        await asyncio.sleep(0.5 if response.has_pending_requests else 1.0)


def _report(operator: int, windows: tuple[int, ...], now_ms: int) -> m.OperatorHeartbeat:
    port = m.PortStats("orders", 1_000, now_ms, 64_000, 3)
    stats = tuple(
        m.OperatorStats(
            window_id=window,
            checkpoint=m.Checkpoint(window),
            input_ports=(port,),
            output_ports=(m.PortStats("output", 1_000, now_ms),),
            cpu_time_used=1_000_000,
            checkpoint_stats=m.CheckpointStats(now_ms, 20),
            metrics={"rows": 1_000, "batch_duration_ms": 400, "lag_messages": 3},
            batch_id=1,
            run_id="0b0e9c2e-0000-0000-0000-000000000000",
        )
        for window in windows
    )
    return m.OperatorHeartbeat(operator, m.DeployState.ACTIVE, now_ms, 1_000, stats)


if __name__ == "__main__":
    asyncio.run(_swarm(json.load(sys.stdin)))
