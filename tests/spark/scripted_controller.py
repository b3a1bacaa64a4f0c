"""A controller that does what a test tells it, over the real umbilical, and remembers it all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.net.hadoop_rpc import HadoopRpcServer
from headrace.pipeline.container.umbilical import HeartbeatUri, format_heartbeat_uri
from headrace.pipeline.declare.application import Application
from headrace.runtime.system import system_runtime
from headrace.wire.umbilical import codec
from headrace.wire.umbilical import messages as m

START_MS = 1_700_000_000_000


def deploy_infos(app: Application) -> tuple[m.OperatorDeployInfo, ...]:
    """The whole plan as one query."""
    plan = app.plan()
    ids = {one["name"]: number for number, one in enumerate(plan["operators"], start=1)}
    inputs: dict[str, list[m.InputDeployInfo]] = {}
    for stream in plan["streams"]:
        source = stream["source"]
        for sink in stream["sinks"]:
            inputs.setdefault(sink["operatorName"], []).append(
                m.InputDeployInfo(
                    port_name=sink["portName"],
                    source_node_id=ids[source["operatorName"]],
                    source_port_name=source["portName"],
                )
            )
    return tuple(
        m.OperatorDeployInfo(
            id=number,
            type=m.OperatorType.INPUT if number == 1 else m.OperatorType.OIO,
            name=operator["name"],
            function=operator["class"],
            properties=operator["properties"],
            query="orders",
            inputs=tuple(inputs.get(operator["name"], ())),
            checkpoint_folder="checkpoints/orders",
        )
        for number, operator in enumerate(plan["operators"], start=1)
    )


@dataclass
class ScriptedController:
    """`deploy` is sent to a container that reports no operators; `shutdown` with every answer."""

    path: Path
    deploy: tuple[m.OperatorDeployInfo, ...] = ()
    shutdown: m.ShutdownType | None = None
    undeploy: tuple[int, ...] = ()
    known: bool = True
    stack_trace_required: bool = False
    heartbeats: list[m.ContainerHeartbeat] = field(default_factory=list)
    errors: list[m.ReportErrorRequest] = field(default_factory=list)
    retry_timeout_ms: int = 30_000

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = HadoopRpcServer(
            system_runtime(),
            codec.PROTOCOL_NAME,
            codec.PROTOCOL_VERSION,
            {
                codec.GET_INIT_CONTEXT.name: self._get_init_context,
                codec.LOG.name: self._log,
                codec.REPORT_ERROR.name: self._report_error,
                codec.PROCESS_HEARTBEAT.name: self._process_heartbeat,
            },
        )
        self._run(self._server.start("127.0.0.1", 0))
        uri = HeartbeatUri(self._server.host, self._server.port, 30_000, 100, self.retry_timeout_ms)
        (self.path / "recovery").mkdir(parents=True, exist_ok=True)
        (self.path / "recovery" / "heartbeatUri").write_text(format_heartbeat_uri(uri))

    def stop(self) -> None:
        self._run(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stats(self, operator: int) -> list[m.OperatorStats]:
        """Every window that an operator reported, in order."""
        return [
            stats
            for heartbeat in list(self.heartbeats)
            for one in heartbeat.stats.operators
            if one.node_id == operator
            for stats in one.window_stats
            if stats.window_count  # else it only tells how far a long batch is
        ]

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _get_init_context(self, body: bytes, caller: str) -> bytes:
        context = m.StreamingContainerContext(
            start_window_millis=START_MS, attributes={"HEARTBEAT_INTERVAL_MILLIS": 300}
        )
        return codec.encode(m.GetInitContextResponse(context if self.known else None))

    async def _log(self, body: bytes, caller: str) -> bytes:
        return codec.encode(m.LogResponse())

    async def _report_error(self, body: bytes, caller: str) -> bytes:
        self.errors.append(codec.decode(m.ReportErrorRequest, body))
        return codec.encode(m.ReportErrorResponse())

    async def _process_heartbeat(self, body: bytes, caller: str) -> bytes:
        heartbeat = codec.decode(m.ContainerHeartbeat, body)
        self.heartbeats.append(heartbeat)
        reported = {one.node_id for one in heartbeat.stats.operators}
        response = m.ContainerHeartbeatResponse(
            shutdown=self.shutdown,
            deploy_request=tuple(info for info in self.deploy if info.id not in reported),
            undeploy_request=self.undeploy,
            stack_trace_required=self.stack_trace_required,
        )
        self.undeploy, self.stack_trace_required = (), False
        return codec.encode(response)
