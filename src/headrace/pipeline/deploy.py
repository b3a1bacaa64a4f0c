"""What a container is told about itself and its operators."""

from __future__ import annotations

from headrace.pipeline.plan import Connection, PhysicalOperator, PhysicalPlan
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical import messages as m

ARROW = {0: m.StreamCodec("arrow")}  # rows between containers travel as Arrow batches


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


def checkpoint_folder(operator: PhysicalOperator) -> str:
    """Holds the query's checkpoint, in a folder with the operator's name: the name is what a
    query is known by over restarts. Relative to the application path."""
    return "checkpoints" if operator.logical.instances == 1 else f"checkpoints/{operator.instance}"


def deploy_info(
    plan: PhysicalPlan,
    operator: PhysicalOperator,
    *,
    run_id: int,
    recovery: int,
    broker: tuple[str, int],
) -> m.OperatorDeployInfo:
    logical = operator.logical
    return m.OperatorDeployInfo(
        id=operator.id,
        type=operator.type,
        name=logical.name,
        checkpoint=m.Checkpoint(recovery),
        inputs=tuple(_input(plan, operator, one, broker) for one in operator.inputs),
        outputs=tuple(
            _output(operator, port, stream, broker if elsewhere else None)
            for port, stream, elsewhere in operator.outputs
        ),
        context_attributes=dict(logical.attributes),
        function=logical.function,
        properties=dict(logical.properties),
        query=operator.query,
        run_id=run_id,
        checkpoint_folder=checkpoint_folder(operator),
    )


def _input(
    plan: PhysicalPlan, operator: PhysicalOperator, connection: Connection, broker: tuple[str, int]
) -> m.InputDeployInfo:
    locality = None
    if connection.local:
        declared = next(one for one in plan.logical.streams if one.name == connection.stream)
        locality = declared.locality or m.Locality.CONTAINER_LOCAL
    port = next(one for one in operator.logical.inputs if one.name == connection.port)
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
        context_attributes=dict(port.attributes),
    )


def _output(
    operator: PhysicalOperator, port_name: str, stream: str, broker: tuple[str, int] | None
) -> m.OutputDeployInfo:
    port = next(one for one in operator.logical.outputs if one.name == port_name)
    return m.OutputDeployInfo(
        port_name=port_name,
        declared_stream_id=stream,
        buffer_server_host=broker[0] if broker else None,
        buffer_server_port=broker[1] if broker else 0,
        stream_codecs=ARROW,
        context_attributes=dict(port.attributes),
    )
