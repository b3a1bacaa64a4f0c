"""`/metrics`: what the controller knows of its pipelines, for Prometheus.

Labels are bounded: application names (the controller keeps a limited number), operator names of
their plans, instance and container numbers, and the first METRICS_MAX metrics an operator has.
Container and run ids, which grow with every restart, are in no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from headrace.observability.exposition import Family, format_families
from headrace.web.stram_views import latencies_ms

METRICS_MAX = 50  # of one operator, by name
_ENDED = ("FINISHED", "STOPPED", "FAILED", "UNREADABLE")

_Row: TypeAlias = tuple[str, Literal["counter", "gauge"], str, str, int | float]

# family, kind, help, key in the view, factor to the family's unit
_OPERATOR: tuple[_Row, ...] = (
    ("rows_in_total", "counter", "Rows an operator took.", "rows_in", 1),
    ("rows_out_total", "counter", "Rows an operator gave.", "rows_out", 1),
    ("rows_late_total", "counter", "Rows dropped behind the watermark.", "rows_late", 1),
    ("rows_bad_total", "counter", "Rows that were set aside as bad.", "rows_bad", 1),
    ("rows_bad_total", "counter", "Rows that went to the dead letters.", "rows_bad", 1),
    ("bytes_in_total", "counter", "Bytes an operator read.", "bytes_in", 1),
    ("cpu_seconds_total", "counter", "Processor time, shared in a query.", "cpu_ns", 1e-9),
    ("lag_rows", "gauge", "Rows that wait to be read.", "lag", 1),
    ("checkpoint_seconds", "gauge", "Time the last checkpoint took.", "checkpoint_ms", 1e-3),
    ("failures", "gauge", "Failures since the last checkpoint.", "failures", 1),
)
_CONTAINER: tuple[_Row, ...] = (
    ("memory_free_bytes", "gauge", "Free heap.", "memory_mb_free", 1 << 20),
    ("gc_seconds_total", "counter", "Time in garbage collection.", "gc_collection_time", 1e-3),
    ("gc_collections_total", "counter", "Garbage collections.", "gc_collection_count", 1),
    ("heartbeat_age_seconds", "gauge", "Since the last heartbeat.", "heartbeat_age_ms", 1e-3),
    ("restarts_total", "counter", "Times it was started again.", "restarts", 1),
)


class Measured(Protocol):
    """What this layer needs of the controller."""

    def list(self) -> list[dict[str, Any]]: ...

    def show(self, name: str) -> dict[str, Any]: ...

    def statistics(self) -> dict[str, Any]: ...


def format_metrics(controller: Measured) -> str:
    return format_families(_families(controller))


def _families(controller: Measured) -> Iterator[Family]:
    summaries = controller.list()
    living = [controller.show(one["name"]) for one in summaries if one["state"] not in _ENDED]
    state = Family("headrace_pipeline_state", "gauge", "1 for the state an application is in.")
    for one in summaries:
        state.add(1, application=one["name"], state=one["state"])
    yield state
    yield from _of_operators(living)
    yield from _of_containers(living)
    yield from _of_umbilical(controller.statistics().get("umbilical", {}))


def _of_operators(living: list[dict[str, Any]]) -> Iterator[Family]:
    families = {
        key: (Family(f"headrace_pipeline_operator_{name}", kind, text), factor)
        for name, kind, text, key, factor in _OPERATOR
    }
    latency = Family(
        "headrace_pipeline_operator_latency_seconds",
        "gauge",
        "End of a window here less its end at the slowest upstream.",
    )
    metric = Family(
        "headrace_pipeline_operator_metric", "gauge", "A metric of the user's, or of Spark's."
    )
    for view in living:
        latencies, instances = latencies_ms(view), _instances(view)
        for one in view["operators"]:
            labels = {
                "application": view["name"],
                "operator": one["name"],
                "instance": str(instances[one["id"]]),
            }
            for key, (family, factor) in families.items():
                family.add(_scale(one[key], factor), **labels)
            latency.add(latencies[one["id"]] / 1000, **labels)
            for name, value in sorted(_numbers(one["metrics"]).items())[:METRICS_MAX]:
                metric.add(value, **labels, metric=name)
    yield from (family for family, _ in families.values())
    yield latency
    yield metric


def _of_containers(living: list[dict[str, Any]]) -> Iterator[Family]:
    for name, kind, text, key, factor in _CONTAINER:
        family = Family(f"headrace_pipeline_container_{name}", kind, text)
        for view in living:
            for one in view["containers"]:
                if one[key] is not None:
                    number = str(one["index"] + 1)
                    family.add(_scale(one[key], factor), application=view["name"], container=number)
        yield family


def _of_umbilical(statistics: Mapping[str, int]) -> Iterator[Family]:
    for name, value in statistics.items():
        if name in ("connections", "calls_in_flight"):
            family = Family(f"headrace_umbilical_{name}", "gauge", "Of containers, now.")
        else:
            family = Family(f"headrace_umbilical_{name}_total", "counter", "Since the start.")
        family.add(value)
        yield family


def _instances(view: Mapping[str, Any]) -> dict[int, int]:
    """Operator ids to their number among those of the same name."""
    seen: dict[str, int] = {}
    instances = {}
    for one in sorted(view["operators"], key=lambda operator: int(operator["id"])):
        instances[one["id"]] = seen.get(one["name"], 0)
        seen[one["name"]] = instances[one["id"]] + 1
    return instances


def _numbers(metrics: Mapping[str, Any]) -> dict[str, int | float]:
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _scale(value: int | float, factor: int | float) -> int | float:
    return value if factor == 1 else value * factor
