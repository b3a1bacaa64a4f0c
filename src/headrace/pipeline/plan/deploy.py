"""What a container is told about itself and its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.pipeline.plan.edges import CODEC_ID, Edge
from headrace.pipeline.plan.physical import Connection, PhysicalOperator, PhysicalPlan
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical import messages as m

ARROW = {CODEC_ID: m.StreamCodec("arrow")}  # rows between containers travel as Arrow batches
CHECKPOINT_LOST = "checkpoint lost: "  # what a container's report of that begins with

# Attributes that only the controller sets.
TOPIC = "TOPIC"  # of a remote port: where its rows are
PUBLISHER = "PUBLISHER"  # of a remote output: under which name it writes to which PARTITION
PARTITION = "PARTITION"
HASH_MASK = "HASH_MASK"  # the mask by which they do, so that each reads only its own
HASH_KEY = "HASH_KEY"  # and by which columns its readers share the rows; "*" are all
ROLL_BACK_TO = "ROLL_BACK_TO"  # of an operator: forget what came after this window, then go on
UNTIL = "UNTIL"  # end when every window up to this one is read
ACTIVATION = "ACTIVATION_WINDOW_ID"  # a fresh checkpoint begins after this window
ROLLBACKS = "ROLLBACKS"  # how often the application went back: the number of this rollback


def init_context(
    plan: PhysicalPlan,
    *,
    container_id: str,
    application_path: str,
    start_window_ms: int,
    available_now: bool,
    attempt: int,
) -> m.StreamingContainerContext:
    """All DAG attributes, the plan's over the defaults, and the container's own."""
    values: dict[str, m.Value] = {
        **attributes.DAG,
        **attributes.CONTAINER,
        **plan.logical.attributes,
        "APPLICATION_ID": plan.logical.name,
        "APPLICATION_NAME": plan.logical.name,
        "APPLICATION_PATH": application_path,
        "APPLICATION_ATTEMPT_ID": attempt,
        "IDENTIFIER": container_id,
        "AVAILABLE_NOW": available_now,
    }
    set_values = {name: value for name, value in values.items() if value is not None}
    return m.StreamingContainerContext(start_window_ms, True, set_values)


@dataclass(frozen=True, slots=True)
class Deployed:
    """What changes from one deployment of an operator to the next."""

    run_id: int
    recovery: int
    broker: tuple[str, int]
    properties: Mapping[str, Any] = field(default_factory=dict)  # set at run time
    generation: int = 0
    roll_back_to: int | None = None
    rollbacks: int = 0
    until: int | None = None
    activation: int | None = None  # the window after which its checkpoint begins


def checkpoint_folder(operator: PhysicalOperator, generation: int = 0) -> str:
    """Holds the query's checkpoint, in a folder with the operator's name: the name is what a
    query is known by over restarts. Relative to the application path."""
    folder = "checkpoints" if generation == 0 else f"checkpoints/generation-{generation}"
    return folder if operator.logical.instances == 1 else f"{folder}/{operator.instance}"


def deploy_info(
    plan: PhysicalPlan, operator: PhysicalOperator, deployed: Deployed
) -> m.OperatorDeployInfo:
    logical = operator.logical
    attributes_: dict[str, m.Value] = {**logical.attributes, ROLLBACKS: deployed.rollbacks}
    if deployed.roll_back_to is not None:
        attributes_[ROLL_BACK_TO] = deployed.roll_back_to
    if deployed.until is not None:
        attributes_[UNTIL] = deployed.until
    if deployed.activation is not None:
        attributes_[ACTIVATION] = deployed.activation
    return m.OperatorDeployInfo(
        id=operator.id,
        type=operator.type,
        name=logical.name,
        checkpoint=m.Checkpoint(deployed.recovery),
        inputs=tuple(_input(plan, operator, one, deployed.broker) for one in operator.inputs),
        outputs=tuple(
            _output(plan, operator, port, stream, deployed.broker if elsewhere else None)
            for port, stream, elsewhere in operator.outputs
        ),
        context_attributes=attributes_,
        function=logical.function,
        properties={**logical.properties, **deployed.properties},
        query=operator.query,
        run_id=deployed.run_id,
        checkpoint_folder=checkpoint_folder(operator, deployed.generation),
    )


def _input(
    plan: PhysicalPlan, operator: PhysicalOperator, connection: Connection, broker: tuple[str, int]
) -> m.InputDeployInfo:
    locality = None
    port = next(one for one in operator.logical.inputs if one.name == connection.port)
    attributes_: dict[str, m.Value] = dict(port.attributes)
    if connection.local:
        declared = next(one for one in plan.logical.streams if one.name == connection.stream)
        locality = declared.locality or m.Locality.CONTAINER_LOCAL
    else:
        attributes_[TOPIC] = Edge(plan.logical.name, connection.stream).address
    return m.InputDeployInfo(
        port_name=connection.port,
        declared_stream_id=connection.stream,
        source_node_id=connection.source,
        source_port_name=connection.source_port,
        locality=locality,
        buffer_server_host=None if connection.local else broker[0],
        buffer_server_port=0 if connection.local else broker[1],
        stream_codecs=ARROW,
        partition_keys=connection.partition_keys,
        partition_mask=connection.partition_mask,
        context_attributes=attributes_,
    )


def _output(
    plan: PhysicalPlan,
    operator: PhysicalOperator,
    port_name: str,
    stream: str,
    broker: tuple[str, int] | None,
) -> m.OutputDeployInfo:
    port = next(one for one in operator.logical.outputs if one.name == port_name)
    attributes_: dict[str, m.Value] = dict(port.attributes)
    if broker is not None:
        edge = Edge(plan.logical.name, stream, operator.logical.instances)
        attributes_[TOPIC] = edge.address
        attributes_[PUBLISHER] = edge.publisher(operator.instance)
        attributes_[PARTITION] = operator.instance
        key = plan.partition_key(stream)
        if key is not None:
            attributes_[HASH_KEY] = ",".join(key) or "*"
            masks = {
                connection.partition_mask
                for one in plan.operators
                for connection in one.inputs
                if connection.stream == stream and connection.partition_mask is not None
            }
            attributes_[HASH_MASK] = max(masks, default=0)
    return m.OutputDeployInfo(
        port_name=port_name,
        declared_stream_id=stream,
        buffer_server_host=broker[0] if broker else None,
        buffer_server_port=broker[1] if broker else 0,
        stream_codecs=ARROW,
        context_attributes=attributes_,
    )


def add_token(info: m.OperatorDeployInfo, token: bytes) -> m.OperatorDeployInfo:
    """With what the serving broker asks for, wherever the broker is named. At the last moment, so
    that it is in no plan, state or journal."""
    return replace(
        info,
        inputs=tuple(
            replace(one, buffer_server_token=token) if one.buffer_server_host else one
            for one in info.inputs
        ),
        outputs=tuple(
            replace(one, buffer_server_token=token) if one.buffer_server_host else one
            for one in info.outputs
        ),
    )
