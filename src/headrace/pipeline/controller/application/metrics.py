"""One value for an operator out of those of its instances, as its metrics declare it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.pipeline.controller.application.statistics import BATCH_DURATION_MS, WATERMARK_MS
from headrace.pipeline.declare.declarations import OUTPUT_PORT

# What Spark and the container tell beside the declared metrics, where a sum would mean nothing.
_KNOWN = {BATCH_DURATION_MS: "max", WATERMARK_MS: "min"}


def aggregators(declared: Sequence[Sequence[str]]) -> dict[str, str]:
    """Metric key to aggregate; `declared` is the attribute METRICS of the plan."""
    return {
        name if port == OUTPUT_PORT else f"{port}.{name}": aggregate
        for name, _, port, aggregate in declared
    }


def aggregate(
    instances: Sequence[Mapping[str, Any]], declared: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Numbers are added up unless their metric says otherwise; else the last value is kept."""
    ways = {**_KNOWN, **aggregators(declared)}
    values: dict[str, list[Any]] = {}
    for metrics in instances:
        for key, value in metrics.items():
            values.setdefault(key, []).append(value)
    return {key: _one(ways.get(key, "sum"), found) for key, found in values.items()}


def _one(way: str, found: Sequence[Any]) -> Any:
    numbers = [each for each in found if isinstance(each, int | float) and type(each) is not bool]
    if way == "last" or not numbers:
        return found[-1]
    functions: dict[str, Callable[[Sequence[float]], float]] = {
        "sum": sum,
        "min": min,
        "max": max,
        "avg": lambda values: sum(values) / len(values),
    }
    return functions[way](numbers)
