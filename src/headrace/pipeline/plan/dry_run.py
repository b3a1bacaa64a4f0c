"""The physical plan as `headrace pipeline dry-run` and the JSON API show it. Pure."""

from __future__ import annotations

from typing import Any

from headrace.config.controller import ControllerSettings
from headrace.pipeline.plan.physical import PhysicalOperator, PhysicalPlan
from headrace.pipeline.plan.resources import container_resources, needed_mb


def physical_view(plan: PhysicalPlan, settings: ControllerSettings) -> dict[str, Any]:
    containers = [_container(plan, index, settings) for index in plan.containers]
    return {
        "name": plan.logical.name,
        "window_ms": plan.logical.attribute("STREAMING_WINDOW_SIZE_MILLIS"),
        "memory_mb": needed_mb(plan, settings),
        "containers": containers,
        "streams": [
            {
                "name": stream.name,
                "source": f"{stream.source.operator}.{stream.source.port}",
                "sinks": [f"{sink.operator}.{sink.port}" for sink in stream.sinks],
                "locality": stream.locality.name if stream.locality else None,
                "fused": stream.name not in plan.split_streams,
            }
            for stream in plan.logical.streams
        ],
    }


def _container(plan: PhysicalPlan, index: int, settings: ControllerSettings) -> dict[str, Any]:
    resources = container_resources(plan, index, settings)
    return {
        "index": index,
        "memory_mb": resources.total_mb,
        "heap_mb": resources.heap_mb,
        "workers_mb": resources.workers_mb,
        "cores": resources.cores or None,  # None: all there are
        "operators": [_operator(plan, operator) for operator in plan.in_container(index)],
    }


def _operator(plan: PhysicalPlan, operator: PhysicalOperator) -> dict[str, Any]:
    logical = operator.logical
    return {
        "id": operator.id,
        "name": logical.name,
        "type": operator.type.name,
        "query": operator.query or None,
        "instance": operator.instance,
        "reads": [
            f"{plan.by_id[one.source].logical.name}.{one.source_port}" for one in operator.inputs
        ]
        or logical.properties.get("topic"),
        "writes": logical.attributes.get("OUTPUT_TOPIC"),
        "partition_keys": [list(one.partition_keys) for one in operator.inputs],
    }
