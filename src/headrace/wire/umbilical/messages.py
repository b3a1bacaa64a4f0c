"""What a container and the controller say to each other, as plain frozen dataclasses.

Transport-neutral: `codec.py` turns them into protobuf and back (one field here is the field of the
same name in `umbilical.proto`), `rpc.py` carries those bytes over Hadoop RPC. Names are Stram's,
in Python's spelling. `None` stands where the origin allowed null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

NO_WINDOW = -1  # the initial state; also "nothing is committed"


@dataclass(frozen=True, slots=True)
class Json:
    """A value too deep for the plain kinds, as JSON text. Nobody decodes it on the way."""

    text: str


Value: TypeAlias = bool | int | float | str | bytes | Json | None
Values: TypeAlias = Mapping[str, Value]


class Message:
    """Marks the classes that `codec.py` knows."""

    __slots__ = ()


class DeployState(IntEnum):
    """State of an operator as its container sees it."""

    ACTIVE = 1
    SHUTDOWN = 2
    FAILED = 3


class ShutdownType(IntEnum):
    WAIT_TERMINATE = 1  # stop input operators, let the rest drain
    ABORT = 2  # leave the heartbeat loop and exit


class RequestType(IntEnum):
    START_RECORDING = 1
    STOP_RECORDING = 2
    SYNC_RECORDING = 3
    SET_LOG_LEVEL = 4
    CUSTOM = 5


class OperatorType(IntEnum):
    INPUT = 1
    UNIFIER = 2
    GENERIC = 3
    OIO = 4  # fused into the query of the operator before it


class Locality(IntEnum):
    THREAD_LOCAL = 1
    CONTAINER_LOCAL = 2
    NODE_LOCAL = 3
    RACK_LOCAL = 4


@dataclass(frozen=True, slots=True)
class StreamingContainerContext(Message):
    start_window_millis: int = 0  # origin of the window grid for the application's whole life
    deploy_buffer_server: bool = True
    attributes: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetInitContextRequest(Message):
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class GetInitContextResponse(Message):
    context: StreamingContainerContext | None = None  # None: unknown container id


@dataclass(frozen=True, slots=True)
class LogRequest(Message):
    container_id: str = ""
    msg: str = ""


@dataclass(frozen=True, slots=True)
class LogResponse(Message): ...


@dataclass(frozen=True, slots=True)
class LogFileInfo(Message):
    file_name: str = ""
    file_offset: int = 0


@dataclass(frozen=True, slots=True)
class ReportErrorRequest(Message):
    container_id: str = ""
    operators: tuple[int, ...] = ()  # empty: an error of the container itself
    msg: str = ""
    log_file_info: LogFileInfo | None = None


@dataclass(frozen=True, slots=True)
class ReportErrorResponse(Message): ...


@dataclass(frozen=True, slots=True)
class Checkpoint(Message):
    window_id: int = NO_WINDOW
    application_window_count: int = 0
    checkpoint_window_count: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointStats(Message):
    checkpoint_start_time: int = 0  # ms since the epoch
    checkpoint_time: int = 0  # ms it took


@dataclass(frozen=True, slots=True)
class PortStats(Message):
    id: str = ""
    tuple_count: int = 0
    end_window_timestamp: int = 0
    buffer_server_bytes: int = 0  # moved over the port's connection since the previous report
    queue_size: int = 0
    recording_id: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorStats(Message):
    """One finished window (or `window_count` of them, taken by one micro-batch)."""

    window_id: int = NO_WINDOW
    checkpoint: Checkpoint | None = None  # only in the first record after it became durable
    input_ports: tuple[PortStats, ...] = ()
    output_ports: tuple[PortStats, ...] = ()
    cpu_time_used: int = 0  # ns
    checkpoint_stats: CheckpointStats | None = None
    counters: Value = None  # deprecated in the origin
    metrics: Values = field(default_factory=dict)
    recording_id: str | None = None
    window_count: int = 1  # ours
    batch_id: int | None = None  # ours
    run_id: str = ""  # ours: Spark's run id of the query


@dataclass(frozen=True, slots=True)
class OperatorResponse(Message):
    response_id: int = 0
    response: Value = None


@dataclass(frozen=True, slots=True)
class OperatorHeartbeat(Message):
    node_id: int
    state: DeployState
    generated_tms: int = 0
    interval_ms: int = 0
    window_stats: tuple[OperatorStats, ...] = ()
    request_response: tuple[OperatorResponse, ...] = ()
    run_id: int = 0  # ours: of the deployment that runs; 0: not told


@dataclass(frozen=True, slots=True)
class ContainerStats(Message):
    id: str = ""
    operators: tuple[OperatorHeartbeat, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerHeartbeat(Message):
    buffer_server_host: str | None = None
    buffer_server_port: int = 0
    jvm_name: str = ""  # pid@host
    memory_mb_free: int = 0
    restart_requested: bool = False
    gc_collection_time: int = 0
    gc_collection_count: int = 0
    stats: ContainerStats = ContainerStats()
    sent_tms: int = 0
    stack_trace: str | None = None


@dataclass(frozen=True, slots=True)
class StramToNodeRequest(Message):
    operator_id: int
    request_type: RequestType
    recovery_checkpoint: Checkpoint | None = None
    port_name: str | None = None
    deleted: bool = False
    cmd: str | None = None
    request_id: int = 0
    recording_id: str | None = None
    num_windows: int = 0
    target_levels: Mapping[str, str] = field(default_factory=dict)
    arguments: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamCodec(Message):
    name: str = ""
    properties: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InputDeployInfo(Message):
    port_name: str = ""
    declared_stream_id: str = ""
    source_node_id: int = 0
    source_port_name: str = ""
    locality: Locality | None = None  # set only when the source is in the same container
    buffer_server_host: str | None = None  # these three only when it is not
    buffer_server_port: int = 0
    buffer_server_token: bytes | None = None
    stream_codecs: Mapping[int, StreamCodec] = field(default_factory=dict)
    partition_keys: tuple[int, ...] = ()
    partition_mask: int | None = None  # None: everything
    context_attributes: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutputDeployInfo(Message):
    port_name: str = ""
    declared_stream_id: str = ""
    buffer_server_host: str | None = None
    buffer_server_port: int = 0
    buffer_server_token: bytes | None = None
    stream_codecs: Mapping[int, StreamCodec] = field(default_factory=dict)
    context_attributes: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorDeployInfo(Message):
    id: int
    type: OperatorType
    name: str = ""
    checkpoint: Checkpoint | None = None
    inputs: tuple[InputDeployInfo, ...] = ()
    outputs: tuple[OutputDeployInfo, ...] = ()
    context_attributes: Values = field(default_factory=dict)
    operator_attributes: Values = field(default_factory=dict)
    function: str = ""  # ours: `module:function` of the deployed package, never code
    properties: Values = field(default_factory=dict)  # ours
    query: str = ""  # ours: of a terminal operator; empty: fused into the queries that need it
    run_id: int = 0  # ours: incarnation of the query, grows with every deploy
    checkpoint_folder: str = ""  # ours: under the application path; the query's own is inside


@dataclass(frozen=True, slots=True)
class ContainerHeartbeatResponse(Message):
    shutdown: ShutdownType | None = None
    node_requests: tuple[StramToNodeRequest, ...] = ()
    has_pending_requests: bool = False  # heartbeat again soon
    undeploy_request: tuple[int, ...] = ()
    deploy_request: tuple[OperatorDeployInfo, ...] = ()
    committed_window_id: int = NO_WINDOW
    stack_trace_required: bool = False


FIELD_GROUPS: Mapping[str, type[Message]] = {
    name: cls
    for name, cls in list(globals().items())
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
}
