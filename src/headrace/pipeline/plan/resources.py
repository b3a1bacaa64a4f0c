"""How much memory and how many cores a container gets, and whether a plan fits the machine.

A container is a JVM (its heap and what it needs beside it) and Python: the driver and Spark's
workers. Fused operators share all of it, so what counts is the container; an operator that states
MEMORY_MB or VCORES adds its own to what its container would get anyway. `headrace pipeline dry-run`
and the JSON API show the physical plan as this module describes it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.config.controller import ControllerSettings
from headrace.errors import InvalidArgumentError, TooLargeError
from headrace.pipeline.plan.physical import PhysicalOperator, PhysicalPlan
from headrace.wire.umbilical.messages import Values

JVM_BESIDE_HEAP_MB = 300  # metaspace, threads, buffers
DRIVER_MB = 150  # the Python process of the container


@dataclass(frozen=True, slots=True)
class Resources:
    heap_mb: int = 1_024
    workers_mb: int = 512
    cores: int = 0  # all there are

    @property
    def total_mb(self) -> int:
        return self.heap_mb + JVM_BESIDE_HEAP_MB + DRIVER_MB + self.workers_mb


def container_resources(plan: PhysicalPlan, index: int, settings: ControllerSettings) -> Resources:
    stated = [one.logical.attributes for one in plan.in_container(index)]
    heap_mb = sum(_stated(values, "MEMORY_MB") for values in stated)
    cores = sum(_stated(values, "VCORES") for values in stated)
    return Resources(
        heap_mb=heap_mb or settings.container_heap_mb,
        workers_mb=settings.container_workers_mb,
        cores=cores or settings.container_cores,
    )


def needed_mb(plan: PhysicalPlan, settings: ControllerSettings) -> int:
    return sum(container_resources(plan, one, settings).total_mb for one in plan.containers)


def check_memory(
    plan: PhysicalPlan, settings: ControllerSettings, *, machine_mb: int, taken_mb: int
) -> None:
    """TooLargeError with the sum when the plan does not fit beside what runs already."""
    parts = [container_resources(plan, one, settings).total_mb for one in plan.containers]
    if sum(parts) + taken_mb > machine_mb:
        raise TooLargeError(
            f"its {len(parts)} containers need {' + '.join(map(str, parts))} = {sum(parts)} MB, "
            f"running applications have {taken_mb} MB, and this machine has {machine_mb} MB: "
            "stop one, fuse operators, or lower MEMORY_MB or controller.container_heap_mb"
        )


def _stated(values: Values, name: str) -> int:
    value = values.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgumentError(f"{name} is a number", value=value)
    return value


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
