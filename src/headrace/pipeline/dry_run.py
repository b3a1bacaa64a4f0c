"""The physical plan as `headrace pipeline dry-run` and the JSON API show it. Pure."""

from __future__ import annotations

from typing import Any

from headrace.pipeline.plan import PhysicalOperator, PhysicalPlan
from headrace.wire.umbilical import attributes


def physical_view(plan: PhysicalPlan) -> dict[str, Any]:
    containers = [
        _container(plan, index, plan.in_container(index)) for index in range(plan.container_count)
    ]
    return {
        "name": plan.logical.name,
        "window_ms": plan.logical.attribute("STREAMING_WINDOW_SIZE_MILLIS"),
        "memory_mb": sum(one["memory_mb"] for one in containers),
        "containers": containers,
        "streams": [
            {
                "name": stream.name,
                "source": f"{stream.source.operator}.{stream.source.port}",
                "sinks": [f"{sink.operator}.{sink.port}" for sink in stream.sinks],
                "locality": stream.locality.name if stream.locality else None,
                "fused": not any(
                    elsewhere
                    for operator in plan.operators
                    for _, name, elsewhere in operator.outputs
                    if name == stream.name
                ),
            }
            for stream in plan.logical.streams
        ],
    }


def _container(
    plan: PhysicalPlan, index: int, operators: tuple[PhysicalOperator, ...]
) -> dict[str, Any]:
    views = [_operator(plan, operator) for operator in operators]
    return {
        "index": index,
        "memory_mb": sum(view["memory_mb"] + view["buffer_mb"] for view in views),
        "operators": views,
    }


def _operator(plan: PhysicalPlan, operator: PhysicalOperator) -> dict[str, Any]:
    """Its memory is the origin's sum: MEMORY_MB, and BUFFER_MEMORY_MB of outputs that leave."""
    logical = operator.logical
    memory = plan.attribute(operator, "MEMORY_MB")
    buffers = [
        attributes.look_up("BUFFER_MEMORY_MB", port.attributes, defaults=attributes.PORT)
        for port in logical.outputs
        if any(name == port.name and elsewhere for name, _, elsewhere in operator.outputs)
    ]
    return {
        "id": operator.id,
        "name": logical.name,
        "type": operator.type.name,
        "query": operator.query or None,
        "instance": operator.instance,
        "memory_mb": memory if isinstance(memory, int) else 0,
        "buffer_mb": sum(size for size in buffers if isinstance(size, int)),
        "reads": [
            f"{plan.by_id[one.source].logical.name}.{one.source_port}" for one in operator.inputs
        ],
        "writes": logical.attributes.get("OUTPUT_TOPIC"),
        "partition_keys": [list(one.partition_keys) for one in operator.inputs],
    }
