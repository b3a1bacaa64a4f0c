from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Locality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOCALITY_UNSPECIFIED: _ClassVar[Locality]
    THREAD_LOCAL: _ClassVar[Locality]
    CONTAINER_LOCAL: _ClassVar[Locality]
    NODE_LOCAL: _ClassVar[Locality]
    RACK_LOCAL: _ClassVar[Locality]
LOCALITY_UNSPECIFIED: Locality
THREAD_LOCAL: Locality
CONTAINER_LOCAL: Locality
NODE_LOCAL: Locality
RACK_LOCAL: Locality

class Value(_message.Message):
    __slots__ = ("integer", "real", "text", "binary", "json", "flag")
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    integer: int
    real: float
    text: str
    binary: bytes
    json: str
    flag: bool
    def __init__(self, integer: _Optional[int] = ..., real: _Optional[float] = ..., text: _Optional[str] = ..., binary: _Optional[bytes] = ..., json: _Optional[str] = ..., flag: _Optional[bool] = ...) -> None: ...

class GetInitContextRequest(_message.Message):
    __slots__ = ("container_id",)
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    def __init__(self, container_id: _Optional[str] = ...) -> None: ...

class GetInitContextResponse(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: StreamingContainerContext
    def __init__(self, context: _Optional[_Union[StreamingContainerContext, _Mapping]] = ...) -> None: ...

class StreamingContainerContext(_message.Message):
    __slots__ = ("start_window_millis", "deploy_buffer_server", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    START_WINDOW_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DEPLOY_BUFFER_SERVER_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    start_window_millis: int
    deploy_buffer_server: bool
    attributes: _containers.MessageMap[str, Value]
    def __init__(self, start_window_millis: _Optional[int] = ..., deploy_buffer_server: _Optional[bool] = ..., attributes: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("container_id", "msg")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    MSG_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    msg: str
    def __init__(self, container_id: _Optional[str] = ..., msg: _Optional[str] = ...) -> None: ...

class LogResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportErrorRequest(_message.Message):
    __slots__ = ("container_id", "operators", "msg", "log_file_info")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    MSG_FIELD_NUMBER: _ClassVar[int]
    LOG_FILE_INFO_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    operators: _containers.RepeatedScalarFieldContainer[int]
    msg: str
    log_file_info: LogFileInfo
    def __init__(self, container_id: _Optional[str] = ..., operators: _Optional[_Iterable[int]] = ..., msg: _Optional[str] = ..., log_file_info: _Optional[_Union[LogFileInfo, _Mapping]] = ...) -> None: ...

class ReportErrorResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogFileInfo(_message.Message):
    __slots__ = ("file_name", "file_offset")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    FILE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    file_offset: int
    def __init__(self, file_name: _Optional[str] = ..., file_offset: _Optional[int] = ...) -> None: ...

class ContainerHeartbeat(_message.Message):
    __slots__ = ("buffer_server_host", "buffer_server_port", "jvm_name", "memory_mb_free", "restart_requested", "gc_collection_time", "gc_collection_count", "stats", "sent_tms", "stack_trace")
    BUFFER_SERVER_HOST_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SERVER_PORT_FIELD_NUMBER: _ClassVar[int]
    JVM_NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FREE_FIELD_NUMBER: _ClassVar[int]
    RESTART_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    GC_COLLECTION_TIME_FIELD_NUMBER: _ClassVar[int]
    GC_COLLECTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    SENT_TMS_FIELD_NUMBER: _ClassVar[int]
    STACK_TRACE_FIELD_NUMBER: _ClassVar[int]
    buffer_server_host: str
    buffer_server_port: int
    jvm_name: str
    memory_mb_free: int
    restart_requested: bool
    gc_collection_time: int
    gc_collection_count: int
    stats: ContainerStats
    sent_tms: int
    stack_trace: str
    def __init__(self, buffer_server_host: _Optional[str] = ..., buffer_server_port: _Optional[int] = ..., jvm_name: _Optional[str] = ..., memory_mb_free: _Optional[int] = ..., restart_requested: _Optional[bool] = ..., gc_collection_time: _Optional[int] = ..., gc_collection_count: _Optional[int] = ..., stats: _Optional[_Union[ContainerStats, _Mapping]] = ..., sent_tms: _Optional[int] = ..., stack_trace: _Optional[str] = ...) -> None: ...

class ContainerStats(_message.Message):
    __slots__ = ("id", "operators")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    id: str
    operators: _containers.RepeatedCompositeFieldContainer[OperatorHeartbeat]
    def __init__(self, id: _Optional[str] = ..., operators: _Optional[_Iterable[_Union[OperatorHeartbeat, _Mapping]]] = ...) -> None: ...

class OperatorHeartbeat(_message.Message):
    __slots__ = ("node_id", "generated_tms", "interval_ms", "state", "window_stats", "request_response", "run_id")
    class DeployState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DEPLOY_STATE_UNSPECIFIED: _ClassVar[OperatorHeartbeat.DeployState]
        ACTIVE: _ClassVar[OperatorHeartbeat.DeployState]
        SHUTDOWN: _ClassVar[OperatorHeartbeat.DeployState]
        FAILED: _ClassVar[OperatorHeartbeat.DeployState]
    DEPLOY_STATE_UNSPECIFIED: OperatorHeartbeat.DeployState
    ACTIVE: OperatorHeartbeat.DeployState
    SHUTDOWN: OperatorHeartbeat.DeployState
    FAILED: OperatorHeartbeat.DeployState
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TMS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_STATS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    generated_tms: int
    interval_ms: int
    state: OperatorHeartbeat.DeployState
    window_stats: _containers.RepeatedCompositeFieldContainer[OperatorStats]
    request_response: _containers.RepeatedCompositeFieldContainer[OperatorResponse]
    run_id: int
    def __init__(self, node_id: _Optional[int] = ..., generated_tms: _Optional[int] = ..., interval_ms: _Optional[int] = ..., state: _Optional[_Union[OperatorHeartbeat.DeployState, str]] = ..., window_stats: _Optional[_Iterable[_Union[OperatorStats, _Mapping]]] = ..., request_response: _Optional[_Iterable[_Union[OperatorResponse, _Mapping]]] = ..., run_id: _Optional[int] = ...) -> None: ...

class OperatorStats(_message.Message):
    __slots__ = ("window_id", "checkpoint", "input_ports", "output_ports", "cpu_time_used", "checkpoint_stats", "counters", "metrics", "recording_id", "window_count", "batch_id", "run_id")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    WINDOW_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    INPUT_PORTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PORTS_FIELD_NUMBER: _ClassVar[int]
    CPU_TIME_USED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STATS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    RECORDING_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_COUNT_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    window_id: int
    checkpoint: Checkpoint
    input_ports: _containers.RepeatedCompositeFieldContainer[PortStats]
    output_ports: _containers.RepeatedCompositeFieldContainer[PortStats]
    cpu_time_used: int
    checkpoint_stats: CheckpointStats
    counters: Value
    metrics: _containers.MessageMap[str, Value]
    recording_id: str
    window_count: int
    batch_id: int
    run_id: str
    def __init__(self, window_id: _Optional[int] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., input_ports: _Optional[_Iterable[_Union[PortStats, _Mapping]]] = ..., output_ports: _Optional[_Iterable[_Union[PortStats, _Mapping]]] = ..., cpu_time_used: _Optional[int] = ..., checkpoint_stats: _Optional[_Union[CheckpointStats, _Mapping]] = ..., counters: _Optional[_Union[Value, _Mapping]] = ..., metrics: _Optional[_Mapping[str, Value]] = ..., recording_id: _Optional[str] = ..., window_count: _Optional[int] = ..., batch_id: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("window_id", "application_window_count", "checkpoint_window_count")
    WINDOW_ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_WINDOW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_WINDOW_COUNT_FIELD_NUMBER: _ClassVar[int]
    window_id: int
    application_window_count: int
    checkpoint_window_count: int
    def __init__(self, window_id: _Optional[int] = ..., application_window_count: _Optional[int] = ..., checkpoint_window_count: _Optional[int] = ...) -> None: ...

class CheckpointStats(_message.Message):
    __slots__ = ("checkpoint_start_time", "checkpoint_time")
    CHECKPOINT_START_TIME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_TIME_FIELD_NUMBER: _ClassVar[int]
    checkpoint_start_time: int
    checkpoint_time: int
    def __init__(self, checkpoint_start_time: _Optional[int] = ..., checkpoint_time: _Optional[int] = ...) -> None: ...

class PortStats(_message.Message):
    __slots__ = ("id", "tuple_count", "end_window_timestamp", "buffer_server_bytes", "queue_size", "recording_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    TUPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    END_WINDOW_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SERVER_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    RECORDING_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    tuple_count: int
    end_window_timestamp: int
    buffer_server_bytes: int
    queue_size: int
    recording_id: str
    def __init__(self, id: _Optional[str] = ..., tuple_count: _Optional[int] = ..., end_window_timestamp: _Optional[int] = ..., buffer_server_bytes: _Optional[int] = ..., queue_size: _Optional[int] = ..., recording_id: _Optional[str] = ...) -> None: ...

class OperatorResponse(_message.Message):
    __slots__ = ("response_id", "response")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response_id: int
    response: Value
    def __init__(self, response_id: _Optional[int] = ..., response: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class ContainerHeartbeatResponse(_message.Message):
    __slots__ = ("shutdown", "node_requests", "has_pending_requests", "undeploy_request", "deploy_request", "committed_window_id", "stack_trace_required")
    class ShutdownType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SHUTDOWN_TYPE_UNSPECIFIED: _ClassVar[ContainerHeartbeatResponse.ShutdownType]
        WAIT_TERMINATE: _ClassVar[ContainerHeartbeatResponse.ShutdownType]
        ABORT: _ClassVar[ContainerHeartbeatResponse.ShutdownType]
    SHUTDOWN_TYPE_UNSPECIFIED: ContainerHeartbeatResponse.ShutdownType
    WAIT_TERMINATE: ContainerHeartbeatResponse.ShutdownType
    ABORT: ContainerHeartbeatResponse.ShutdownType
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    NODE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    HAS_PENDING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    UNDEPLOY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    DEPLOY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_WINDOW_ID_FIELD_NUMBER: _ClassVar[int]
    STACK_TRACE_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    shutdown: ContainerHeartbeatResponse.ShutdownType
    node_requests: _containers.RepeatedCompositeFieldContainer[StramToNodeRequest]
    has_pending_requests: bool
    undeploy_request: _containers.RepeatedScalarFieldContainer[int]
    deploy_request: _containers.RepeatedCompositeFieldContainer[OperatorDeployInfo]
    committed_window_id: int
    stack_trace_required: bool
    def __init__(self, shutdown: _Optional[_Union[ContainerHeartbeatResponse.ShutdownType, str]] = ..., node_requests: _Optional[_Iterable[_Union[StramToNodeRequest, _Mapping]]] = ..., has_pending_requests: _Optional[bool] = ..., undeploy_request: _Optional[_Iterable[int]] = ..., deploy_request: _Optional[_Iterable[_Union[OperatorDeployInfo, _Mapping]]] = ..., committed_window_id: _Optional[int] = ..., stack_trace_required: _Optional[bool] = ...) -> None: ...

class StramToNodeRequest(_message.Message):
    __slots__ = ("operator_id", "request_type", "recovery_checkpoint", "port_name", "deleted", "cmd", "request_id", "recording_id", "num_windows", "target_levels", "arguments")
    class RequestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REQUEST_TYPE_UNSPECIFIED: _ClassVar[StramToNodeRequest.RequestType]
        START_RECORDING: _ClassVar[StramToNodeRequest.RequestType]
        STOP_RECORDING: _ClassVar[StramToNodeRequest.RequestType]
        SYNC_RECORDING: _ClassVar[StramToNodeRequest.RequestType]
        SET_LOG_LEVEL: _ClassVar[StramToNodeRequest.RequestType]
        CUSTOM: _ClassVar[StramToNodeRequest.RequestType]
    REQUEST_TYPE_UNSPECIFIED: StramToNodeRequest.RequestType
    START_RECORDING: StramToNodeRequest.RequestType
    STOP_RECORDING: StramToNodeRequest.RequestType
    SYNC_RECORDING: StramToNodeRequest.RequestType
    SET_LOG_LEVEL: StramToNodeRequest.RequestType
    CUSTOM: StramToNodeRequest.RequestType
    class TargetLevelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    OPERATOR_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PORT_NAME_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    CMD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDING_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    TARGET_LEVELS_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    operator_id: int
    request_type: StramToNodeRequest.RequestType
    recovery_checkpoint: Checkpoint
    port_name: str
    deleted: bool
    cmd: str
    request_id: int
    recording_id: str
    num_windows: int
    target_levels: _containers.ScalarMap[str, str]
    arguments: _containers.MessageMap[str, Value]
    def __init__(self, operator_id: _Optional[int] = ..., request_type: _Optional[_Union[StramToNodeRequest.RequestType, str]] = ..., recovery_checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., port_name: _Optional[str] = ..., deleted: _Optional[bool] = ..., cmd: _Optional[str] = ..., request_id: _Optional[int] = ..., recording_id: _Optional[str] = ..., num_windows: _Optional[int] = ..., target_levels: _Optional[_Mapping[str, str]] = ..., arguments: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class OperatorDeployInfo(_message.Message):
    __slots__ = ("id", "type", "name", "checkpoint", "inputs", "outputs", "context_attributes", "operator_attributes", "function", "properties", "query", "run_id", "checkpoint_folder")
    class OperatorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPERATOR_TYPE_UNSPECIFIED: _ClassVar[OperatorDeployInfo.OperatorType]
        INPUT: _ClassVar[OperatorDeployInfo.OperatorType]
        UNIFIER: _ClassVar[OperatorDeployInfo.OperatorType]
        GENERIC: _ClassVar[OperatorDeployInfo.OperatorType]
        OIO: _ClassVar[OperatorDeployInfo.OperatorType]
    OPERATOR_TYPE_UNSPECIFIED: OperatorDeployInfo.OperatorType
    INPUT: OperatorDeployInfo.OperatorType
    UNIFIER: OperatorDeployInfo.OperatorType
    GENERIC: OperatorDeployInfo.OperatorType
    OIO: OperatorDeployInfo.OperatorType
    class ContextAttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class OperatorAttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FOLDER_FIELD_NUMBER: _ClassVar[int]
    id: int
    type: OperatorDeployInfo.OperatorType
    name: str
    checkpoint: Checkpoint
    inputs: _containers.RepeatedCompositeFieldContainer[InputDeployInfo]
    outputs: _containers.RepeatedCompositeFieldContainer[OutputDeployInfo]
    context_attributes: _containers.MessageMap[str, Value]
    operator_attributes: _containers.MessageMap[str, Value]
    function: str
    properties: _containers.MessageMap[str, Value]
    query: str
    run_id: int
    checkpoint_folder: str
    def __init__(self, id: _Optional[int] = ..., type: _Optional[_Union[OperatorDeployInfo.OperatorType, str]] = ..., name: _Optional[str] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[InputDeployInfo, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[OutputDeployInfo, _Mapping]]] = ..., context_attributes: _Optional[_Mapping[str, Value]] = ..., operator_attributes: _Optional[_Mapping[str, Value]] = ..., function: _Optional[str] = ..., properties: _Optional[_Mapping[str, Value]] = ..., query: _Optional[str] = ..., run_id: _Optional[int] = ..., checkpoint_folder: _Optional[str] = ...) -> None: ...

class InputDeployInfo(_message.Message):
    __slots__ = ("locality", "port_name", "declared_stream_id", "source_node_id", "source_port_name", "buffer_server_host", "buffer_server_port", "buffer_server_token", "stream_codecs", "partition_keys", "partition_mask", "context_attributes")
    class StreamCodecsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: StreamCodec
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[StreamCodec, _Mapping]] = ...) -> None: ...
    class ContextAttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    LOCALITY_FIELD_NUMBER: _ClassVar[int]
    PORT_NAME_FIELD_NUMBER: _ClassVar[int]
    DECLARED_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PORT_NAME_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SERVER_HOST_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SERVER_PORT_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SERVER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STREAM_CODECS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_KEYS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_MASK_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    locality: Locality
    port_name: str
    declared_stream_id: str
    source_node_id: int
    source_port_name: str
    buffer_server_host: str
    buffer_server_port: int
    buffer_server_token: bytes
    stream_codecs: _containers.MessageMap[int, StreamCodec]
    partition_keys: _containers.RepeatedScalarFieldContainer[int]
    partition_mask: int
    context_attributes: _containers.MessageMap[str, Value]
    def __init__(self, locality: _Optional[_Union[Locality, str]] = ..., port_name: _Optional[str] = ..., declared_stream_id: _Optional[str] = ..., source_node_id: _Optional[int] = ..., source_port_name: _Optional[str] = ..., buffer_server_host: _Optional[str] = ..., buffer_server_port: _Optional[int] = ..., buffer_server_token: _Optional[bytes] = ..., stream_codecs: _Optional[_Mapping[int, StreamCodec]] = ..., partition_keys: _Optional[_Iterable[int]] = ..., partition_mask: _Optional[int] = ..., context_attributes: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class OutputDeployInfo(_message.Message):
    __slots__ = ("port_name", "declared_stream_id", "buffer_server_host", "buffer_server_port", "buffer_server_token", "stream_codecs", "context_attributes")
    class StreamCodecsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: StreamCodec
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[StreamCodec, _Mapping]] = ...) -> None: ...
    class ContextAttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    PORT_NAME_FIELD_NUMBER: _ClassVar[int]
    DECLARED_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SERVER_HOST_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SERVER_PORT_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SERVER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STREAM_CODECS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    port_name: str
    declared_stream_id: str
    buffer_server_host: str
    buffer_server_port: int
    buffer_server_token: bytes
    stream_codecs: _containers.MessageMap[int, StreamCodec]
    context_attributes: _containers.MessageMap[str, Value]
    def __init__(self, port_name: _Optional[str] = ..., declared_stream_id: _Optional[str] = ..., buffer_server_host: _Optional[str] = ..., buffer_server_port: _Optional[int] = ..., buffer_server_token: _Optional[bytes] = ..., stream_codecs: _Optional[_Mapping[int, StreamCodec]] = ..., context_attributes: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class StreamCodec(_message.Message):
    __slots__ = ("name", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    properties: _containers.MessageMap[str, Value]
    def __init__(self, name: _Optional[str] = ..., properties: _Optional[_Mapping[str, Value]] = ...) -> None: ...
