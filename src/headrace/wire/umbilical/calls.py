"""The one table of umbilical calls: method name, request and response classes.

A call names its method, protocol and version in Hadoop's RequestHeaderProto; see `rpc.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from headrace.wire.umbilical import messages as m

PROTOCOL_NAME = "com.datatorrent.stram.api.StreamingContainerUmbilicalProtocol"
PROTOCOL_VERSION = 201208081755

Q = TypeVar("Q", bound=m.Message)
R = TypeVar("R", bound=m.Message)


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, R]):
    name: str
    request: type[Q]
    response: type[R]


GET_INIT_CONTEXT = Call("getInitContext", m.GetInitContextRequest, m.GetInitContextResponse)
LOG = Call("log", m.LogRequest, m.LogResponse)
REPORT_ERROR = Call("reportError", m.ReportErrorRequest, m.ReportErrorResponse)
PROCESS_HEARTBEAT = Call("processHeartbeat", m.ContainerHeartbeat, m.ContainerHeartbeatResponse)

TABLE: Mapping[str, Call[Any, Any]] = MappingProxyType(
    {call.name: call for call in (GET_INIT_CONTEXT, LOG, REPORT_ERROR, PROCESS_HEARTBEAT)}
)
