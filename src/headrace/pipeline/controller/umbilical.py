"""The umbilical's calls, bound to a service that knows dataclasses and no transport.

Whoever logged in with a container's token speaks for that container alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from headrace.errors import UnauthorizedError
from headrace.net.hadoop_rpc import Handler
from headrace.wire.umbilical import calls, codec
from headrace.wire.umbilical import messages as m


class UmbilicalService(Protocol):
    async def get_init_context(
        self, request: m.GetInitContextRequest
    ) -> m.GetInitContextResponse: ...

    async def log(self, request: m.LogRequest) -> m.LogResponse: ...

    async def report_error(self, request: m.ReportErrorRequest) -> m.ReportErrorResponse: ...

    async def process_heartbeat(
        self, request: m.ContainerHeartbeat
    ) -> m.ContainerHeartbeatResponse: ...


def build_handlers(service: UmbilicalService) -> Mapping[str, Handler]:
    """One handler per row of the call table; a row without one is an error at start."""
    methods: dict[str, Callable[[Any], Awaitable[m.Message]]] = {
        calls.GET_INIT_CONTEXT.name: service.get_init_context,
        calls.LOG.name: service.log,
        calls.REPORT_ERROR.name: service.report_error,
        calls.PROCESS_HEARTBEAT.name: service.process_heartbeat,
    }
    if methods.keys() != calls.TABLE.keys():
        raise RuntimeError(f"calls out of step: {sorted(methods.keys() ^ calls.TABLE.keys())}")
    return {name: _bind(calls.TABLE[name], method) for name, method in methods.items()}


def _bind(call: calls.Call[Any, Any], method: Callable[[Any], Awaitable[m.Message]]) -> Handler:
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
