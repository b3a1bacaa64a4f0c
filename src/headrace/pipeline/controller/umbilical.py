"""The umbilical: what containers call, and how the controller answers.

Whoever logged in with a container's token speaks for that container alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from headrace.errors import UnauthorizedError
from headrace.net.hadoop_rpc import Handler
from headrace.observability import tracing
from headrace.observability.logging import get_logger
from headrace.pipeline import traces
from headrace.pipeline.controller.action_performer import ActionPerformer
from headrace.pipeline.controller.container_launches import ContainerLaunches
from headrace.pipeline.controller.journal import JournalWriter
from headrace.pipeline.controller.running import ContainerProcesses, RunningApplication
from headrace.pipeline.plan.deploy import add_token
from headrace.wire.umbilical import codec
from headrace.wire.umbilical import messages as m

log = get_logger(__name__)

MESSAGE_CHARACTERS_MAX = 4_096


class UmbilicalCalls:
    """The four calls, on messages that are decoded; no transport."""

    def __init__(
        self,
        processes: ContainerProcesses,
        launches: ContainerLaunches,
        performer: ActionPerformer,
        journal: JournalWriter,
        now_ms: Callable[[], int],
    ) -> None:
        self._owners = processes.owners
        self._launches = launches
        self._performer = performer
        self._journal = journal
        self._now_ms = now_ms

    async def get_init_context(self, request: m.GetInitContextRequest) -> m.GetInitContextResponse:
        running = self._owners.get(request.container_id)
        if running is None:
            return m.GetInitContextResponse(None)
        return m.GetInitContextResponse(running.application.on_init_context(request.container_id))

    async def log(self, request: m.LogRequest) -> m.LogResponse:
        if request.container_id in self._owners:
            text = request.msg[:MESSAGE_CHARACTERS_MAX]
            log.info("container_says", container=request.container_id, text=text)
        return m.LogResponse()

    async def report_error(self, request: m.ReportErrorRequest) -> m.ReportErrorResponse:
        running = self._owners.get(request.container_id)
        if running is not None:
            text = request.msg[:MESSAGE_CHARACTERS_MAX]
            log.warning("container_error", container=request.container_id, text=text)
            async with running.lock:
                actions = running.application.on_error(request, self._now_ms())
                await self._performer.perform(running, actions)
        return m.ReportErrorResponse()

    async def process_heartbeat(
        self, request: m.ContainerHeartbeat
    ) -> m.ContainerHeartbeatResponse:
        running = self._owners.get(request.stats.id)
        if running is None or self._journal.failure is not None:
            return m.ContainerHeartbeatResponse(shutdown=m.ShutdownType.ABORT)
        async with running.lock:
            now_ms, known = self._now_ms(), running.application.operators
            if running.heartbeat_details.on_heartbeat(request, now_ms, known):
                log.warning("container_clock_ahead", container=request.stats.id)
            before = running.application.checkpoints.committed
            outcome = running.application.deployment.on_heartbeat(request, now_ms)
            await self._performer.perform(running, outcome.actions)
            if tracing.active:
                traces.on_committed(running.application, before, now_ms)
        running.beat.set()
        running.beat = asyncio.Event()
        response = await self._with_grant(running, request.stats.id, outcome.response)
        if response.shutdown is None and (
            more := running.heartbeat_details.requests(request.stats.id)
        ):
            response = replace(response, node_requests=(*response.node_requests, *more))
        return response

    async def _with_grant(
        self,
        running: RunningApplication,
        container_id: str,
        response: m.ContainerHeartbeatResponse,
    ) -> m.ContainerHeartbeatResponse:
        """What is to be deployed may use topics that the plan did not have before."""
        if not response.deploy_request:
            return response
        grant = (await self._launches.renew_grant(running.application, container_id)).encode()
        infos = (add_token(info, grant) for info in response.deploy_request)
        return replace(response, deploy_request=tuple(infos))


def build_handlers(calls: UmbilicalCalls) -> Mapping[str, Handler]:
    """One handler per row of the call table; a row without one is an error at start."""
    methods: dict[str, Callable[[Any], Awaitable[m.Message]]] = {
        codec.GET_INIT_CONTEXT.name: calls.get_init_context,
        codec.LOG.name: calls.log,
        codec.REPORT_ERROR.name: calls.report_error,
        codec.PROCESS_HEARTBEAT.name: calls.process_heartbeat,
    }
    if methods.keys() != codec.TABLE.keys():
        raise RuntimeError(f"calls out of step: {sorted(methods.keys() ^ codec.TABLE.keys())}")
    return {name: _bind(codec.TABLE[name], method) for name, method in methods.items()}


def _bind(call: codec.Call[Any, Any], method: Callable[[Any], Awaitable[m.Message]]) -> Handler:
    async def handle(body: bytes, caller: str) -> bytes:
        request = codec.decode(call.request, body)
        container = _container_of(request)
        if caller and container != caller:
            raise UnauthorizedError(
                "a container speaks for itself alone", caller=caller, container=container[:100]
            )
        return codec.encode(await method(request))

    return handle


def _container_of(request: m.Message) -> str:
    if isinstance(request, m.ContainerHeartbeat):
        return request.stats.id
    assert isinstance(request, m.GetInitContextRequest | m.LogRequest | m.ReportErrorRequest)
    return request.container_id
