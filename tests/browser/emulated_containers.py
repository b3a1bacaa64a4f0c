"""Containers without Spark, for pages that show pipelines: each is a coroutine that speaks the real
umbilical, turns made-up progress records of Spark's shape into reports as a real one does, writes a
log file and does what the controller asks of it.

How an application behaves (what arrives, what it can take, what goes wrong) is its `Behaviour`,
which a test may change while it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.ids import WindowId
from headrace.pipeline.container.heartbeat import (
    HeartbeatFigures,
    Place,
    operator_stats,
    read_progress,
    with_bad_rows,
)
from headrace.pipeline.container.umbilical import UmbilicalClient, load_token
from headrace.pipeline.container.window_log import BatchWindow
from headrace.pipeline.controller.launcher import LaunchRequest
from headrace.pipeline.declare.application import Application
from headrace.pipeline.plan.deploy import UNTIL
from headrace.pipeline.plan.logical_json import to_plan
from headrace.pipeline.plan.packages import PackageSpec
from headrace.runtime.interfaces import Process, Runtime
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid, format_window
from tests.fake_process import FakeProcess

BEAT_SECONDS = 0.2
CHECKPOINT_MS = 35
STATEFUL = ("revenue", "counted")


@dataclass
class Behaviour:
    arrives: int = 1_000  # rows a second
    takes: int = 5_000  # at most, of each container
    backlog: int = 0
    busy: float = 0.35  # share of the time in batches, of what reads the topic
    late: int = 0  # of each batch
    bad: int = 0
    state_rows: int = 0
    error: str = ""  # reported once, then the query fails
    errors_left: int = 0
    crashes: bool = False  # the process ends with status 1 at its first beat


@dataclass
class EmulatedLauncher:
    """What the controller starts containers with."""

    runtime: Runtime
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    processes: dict[str, FakeProcess] = field(default_factory=dict)
    properties: dict[str, dict[str, Any]] = field(default_factory=dict)  # by application.operator
    beat_seconds: float = BEAT_SECONDS

    async def launch(self, request: LaunchRequest) -> Process:
        container = EmulatedContainer(self, request)
        process = FakeProcess(10_000 + len(self.processes), container.run())
        self.processes[request.container_id] = process
        return process

    async def adopt(self, container_id: str, application_path: str) -> Process | None:
        return None

    async def describe(
        self, package_folder: str, entry: str, *, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        raise AssertionError("packages of these tests bring their plans")


@dataclass
class EmulatedContainer:
    launcher: EmulatedLauncher
    request: LaunchRequest
    operators: dict[int, m.OperatorDeployInfo] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    ending: set[int] = field(default_factory=set)
    answers: dict[int, list[m.OperatorResponse]] = field(default_factory=dict)
    recordings: dict[str, str] = field(default_factory=dict)  # operator: recording
    stack_trace: str | None = None
    batch: int = 0
    ended_ms: int = 0
    log_bytes: int = 0
    taken: int = 0
    previous: WindowId = NO_WINDOW
    figures: HeartbeatFigures | None = None

    @property
    def application(self) -> str:
        return self.request.application_path.rpartition("/")[2]

    @property
    def reads_topic(self) -> bool:
        return any(not one.inputs for one in self.operators.values())

    @property
    def behaviour(self) -> Behaviour:
        return self.launcher.behaviours.setdefault(self.application, Behaviour())

    async def run(self) -> int:
        runtime = self.launcher.runtime
        token = load_token(runtime.disk, self.request.login_environment)
        client = UmbilicalClient(runtime, self.request.umbilical_path, token)
        self.log("info", "container_started", f"entry={self.request.entry}")
        try:
            return await self._beat(client)
        finally:
            await client.close()

    async def _beat(self, client: UmbilicalClient) -> int:
        context = await client.get_init_context(self.request.container_id)
        if context is None:
            return 1
        grid = WindowGrid(context.start_window_millis, 500)
        self.figures = HeartbeatFigures.from_context(context)
        while True:
            if self.operators and self.behaviour.crashes:
                self.log("error", "container_failed", "reason='OutOfMemoryError: Java heap space'")
                return 1
            await self._report_errors(client)
            response = await client.process_heartbeat(self._heartbeat(grid))
            self._obey(response)
            if response.shutdown is not None:
                self.log("info", "shutdown", "kind=WAIT_TERMINATE")
                return 0
            await self.launcher.runtime.clock.sleep(self.launcher.beat_seconds)

    async def _report_errors(self, client: UmbilicalClient) -> None:
        behaviour = self.behaviour
        targets = [one for one in self.operators.values() if one.query]
        if not behaviour.errors_left or not targets:
            return
        behaviour.errors_left -= 1
        operator = targets[-1]
        self.log("error", "query_failed", f"operators=({operator.id},)")
        self.write("Traceback (most recent call last):\n")
        self.write('  File "/opt/spark/python/shop.py", line 41, in revenue\n')
        self.write(f"{behaviour.error}\n")
        place = m.LogFileInfo(f"logs/{self.request.container_id}.log", self.log_bytes)
        await client.report_error(self.request.container_id, (operator.id,), behaviour.error, place)
        if " failed on " not in behaviour.error:
            self.failed.add(operator.id)

    def _heartbeat(self, grid: WindowGrid) -> m.ContainerHeartbeat:
        now_ms = self.launcher.runtime.clock.now_ms()
        window = grid.window_at(now_ms)
        stats = self._batch(grid, window, now_ms) if window > self.previous else {}
        trace, self.stack_trace = self.stack_trace, None
        return m.ContainerHeartbeat(
            jvm_name="4711@emulated",
            memory_mb_free=412,
            gc_collection_time=120 + self.batch,
            gc_collection_count=self.batch // 7,
            stats=m.ContainerStats(
                self.request.container_id,
                self._complete(
                    [
                        m.OperatorHeartbeat(
                            id_,
                            self._state(id_),
                            window_stats=stats.get(id_, ()),
                            request_response=tuple(self.answers.pop(id_, ())),
                        )
                        for id_ in sorted(self.operators)
                    ]
                ),
            ),
            sent_tms=now_ms,
            stack_trace=trace,
        )

    def _complete(self, reports: Sequence[m.OperatorHeartbeat]) -> tuple[m.OperatorHeartbeat, ...]:
        assert self.figures is not None
        return self.figures.complete(reports, 200_000_000 * self.batch)

    def _state(self, id_: int) -> m.DeployState:
        if id_ in self.failed:
            return m.DeployState.FAILED
        return m.DeployState.SHUTDOWN if id_ in self.ending else m.DeployState.ACTIVE

    def _batch(
        self, grid: WindowGrid, window: WindowId, now_ms: int
    ) -> dict[int, tuple[m.OperatorStats, ...]]:
        """A micro-batch of all operators here."""
        if not self.operators or self.failed:
            return {}
        behaviour, names = self.behaviour, [one.name for one in self.operators.values()]
        reads_topic = self.reads_topic
        share = 0.5  # a window's seconds
        waiting = behaviour.backlog + round(behaviour.arrives * share) if reads_topic else 0
        rows = min(waiting, round(behaviour.takes * share)) if reads_topic else 400
        if reads_topic:
            behaviour.backlog = waiting - rows
        self.taken += rows
        self.batch += 1
        progress = self._progress(rows, behaviour, now_ms, waiting - rows)
        entered = BatchWindow(window, self.previous if self.batch > 1 else NO_WINDOW, replay=False)
        report = read_progress(progress, entered, rows - behaviour.bad)
        if behaviour.bad and len(names) > 1:
            report = with_bad_rows(report, {names[1]: behaviour.bad})
        self.previous = window
        self._record(window)
        found: dict[int, tuple[m.OperatorStats, ...]] = {}
        for index, info in enumerate(self.operators.values()):
            place = Place(
                info.name,
                inputs=tuple(one.port_name for one in info.inputs),
                topic=not info.inputs,
                first=index == 0,
                last=index == len(names) - 1,
                stateful=behaviour.state_rows > 0 and info.name in STATEFUL,
            )
            found[info.id] = (operator_stats(report, grid, place),)
        return found

    def _progress(
        self, rows: int, behaviour: Behaviour, now_ms: int, lag: int
    ) -> Mapping[str, Any]:
        """As Spark would tell it."""
        # A share of the time since the last one: on a busy machine that is more than a window's.
        passed = max(500, now_ms - self.ended_ms) if self.ended_ms else 500
        self.ended_ms = now_ms
        duration = round(passed * (behaviour.busy if self.reads_topic else 0.3))

        def offset(at: int) -> str:
            return json.dumps({"v": 1, "c": "", "p": {"9/0": [0, at]}})

        def time(ms: int) -> str:
            return datetime.fromtimestamp(ms / 1000, UTC).isoformat()

        return {
            "runId": "4c1f9f0e-3d0c-4e0a-bd5e-6a1f0a1b2c3d",
            "timestamp": time(now_ms - duration),
            "batchId": self.batch,
            "batchDuration": duration,
            "numInputRows": rows,
            "inputRowsPerSecond": float(behaviour.arrives),
            "processedRowsPerSecond": rows * 1000 / max(1, duration),
            "durationMs": {
                "latestOffset": 9,
                "queryPlanning": 14,
                "addBatch": max(1, duration - 60),
                "walCommit": 12,
                "commitOffsets": CHECKPOINT_MS - 12,
            },
            "eventTime": {"watermark": time(now_ms - 125_000)},
            "stateOperators": [
                {
                    "numRowsTotal": behaviour.state_rows,
                    "memoryUsedBytes": behaviour.state_rows * 210,
                    "numRowsDroppedByWatermark": behaviour.late,
                }
            ]
            if behaviour.state_rows
            else [],
            "sources": [
                {"endOffset": offset(self.taken), "latestOffset": offset(self.taken + lag)}
            ],
        }

    def _record(self, window: int) -> None:
        for recording in self.recordings.values():
            folder = f"{self.request.application_path}/recordings/{recording}"
            disk = self.launcher.runtime.disk
            disk.make_folder(folder)
            rows = [{"sku": f"s{number}", "qty": number} for number in range(3)]
            text = "".join(f"{json.dumps(row)}\n" for row in rows)
            disk.write_atomic(f"{folder}/{format_window(window)}.jsonl", text.encode())

    def _obey(self, response: m.ContainerHeartbeatResponse) -> None:
        for id_ in response.undeploy_request:
            self.operators.pop(id_, None)
            self.failed.discard(id_)
            self.ending.discard(id_)
        for info in response.deploy_request:
            self.operators[info.id] = info
            assert self.figures is not None
            self.figures.on_deploy([info])
            self.log("info", "deployed", f"operator={info.name} run={info.run_id}")
            if UNTIL in info.context_attributes:
                self.ending.add(info.id)
        for request in response.node_requests:
            self._answer(request)
        if response.stack_trace_required:
            self.stack_trace = json.dumps(
                {
                    "python": [{"name": "MainThread", "stack": ["shop.py:41 in revenue\n"]}],
                    "jvm": [
                        {
                            "name": "stream execution thread for revenue",
                            "state": "TIMED_WAITING",
                            "stack": ["org.apache.spark.sql.execution.streaming.MicroBatch.run"],
                        }
                    ],
                }
            )

    def _answer(self, request: m.StramToNodeRequest) -> None:
        info = self.operators.get(request.operator_id)
        if info is None:
            return
        if request.request_type is m.RequestType.CUSTOM:
            values = self.launcher.properties.setdefault(f"{self.application}.{info.name}", {})
            values |= request.arguments
            self.log("info", "property_set", f"operator={info.name}")
        elif request.request_type is m.RequestType.START_RECORDING and request.recording_id:
            self.recordings[info.name] = request.recording_id
        elif request.request_type is m.RequestType.STOP_RECORDING:
            self.recordings.pop(info.name, None)
        answer = m.OperatorResponse(request.request_id, "")
        self.answers.setdefault(info.id, []).append(answer)

    def log(self, level: str, event: str, fields: str) -> None:
        now = datetime.fromtimestamp(self.launcher.runtime.clock.now_ms() / 1000, UTC)
        self.write(f"{now.isoformat()} [{level:<8}] {event} {fields}\n")

    def write(self, text: str) -> None:
        path = f"{self.request.application_path}/logs/{self.request.container_id}.log"
        with open(path, "a") as file:
            file.write(text)
        self.log_bytes += len(text.encode())


def shop(name: str = "shop", *, instances: int = 1, live: bool = True) -> Application:
    """A topic, a check with a live property, an enrichment of its own containers, a sum."""
    app = Application(name, trigger="500 milliseconds")
    app.topic(
        "orders",
        "shop/orders",
        schema="sku string, qty int, price double, at timestamp",
        on_bad_row="dead_letter",
    )

    @app.operator(expect={"qty > 0": "dead_letter"}, live=live)
    def valid(orders: Any, *, minimum: int = 1) -> Any:
        return orders

    @app.operator(instances=instances, isolate=True, STATELESS=True)
    def enriched(valid: Any, *, currency: str = "EUR") -> Any:
        return valid

    @app.operator(to="shop/revenue", key="sku", output_mode="append", isolate=True)
    def revenue(enriched: Any) -> Any:
        return enriched

    return app


def small(name: str, *, attempts: int = 1_000) -> Application:
    """One container: a topic and a copy of it. `attempts` to recover."""
    app = Application(name, trigger="500 milliseconds")
    app.topic("events", "web/events", schema="kind string, n int")

    @app.operator(to="web/counted", key="kind", RECOVERY_ATTEMPTS=attempts)
    def counted(events: Any) -> Any:
        return events

    return app


def package(app: Application) -> PackageSpec:
    text = f"# {app.name}: the plan of a test\n".encode()
    plan = json.loads(json.dumps(to_plan(app)))
    return PackageSpec(f"{app.name}.py", {f"{app.name}.py": text}, plan=plan)
