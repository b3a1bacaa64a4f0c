"""What the controller knows of its pipelines, for Prometheus.

Labels are bounded: application names (the controller keeps a limited number, and those beyond
`labels_max` are told by their sums alone), operator names of their plans, instance and container
numbers, and the first METRICS_MAX metrics an operator has. Container and run ids, which grow with
every restart, are in no label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from headrace.errors import HeadraceError
from headrace.observability.exposition import (
    Family,
    Number,
    bounded,
    family,
    format_families,
    single,
)
from headrace.observability.metrics import TABLE
from headrace.pipeline.controller.views import (
    ApplicationRow,
    ApplicationView,
    ControllerStatistics,
)
from headrace.web.metrics.process import Check
from headrace.web.stram.views import latencies_ms
from headrace.wire.umbilical.windows import WindowGrid, parse_window

METRICS_MAX = 50  # of one operator, by name
LABELS_MAX = 500
_ENDED = ("FINISHED", "STOPPED", "FAILED", "UNREADABLE")
_DONE = ("FINISHED", "UNREADABLE")  # nothing waits for them
_LAGS = ("pipeline_lag_rows", "pipeline_lag_seconds")

_Row: TypeAlias = tuple[str, str, int | float]

# metric, field of the view, factor to the metric's unit
_APPLICATION: tuple[_Row, ...] = (
    ("pipeline_rows_total", "rows", 1),
    ("pipeline_lag_rows", "lag", 1),
    ("pipeline_lag_seconds", "lag_seconds", 1),
    ("pipeline_rows_late_total", "rows_late", 1),
    ("pipeline_rows_dead_total", "rows_bad", 1),
    ("pipeline_restarts_total", "restarts", 1),
)
_OPERATOR: tuple[_Row, ...] = (
    ("pipeline_operator_rows_in_total", "rows_in", 1),
    ("pipeline_operator_rows_out_total", "rows_out", 1),
    ("pipeline_operator_rows_late_total", "rows_late", 1),
    ("pipeline_operator_rows_bad_total", "rows_bad", 1),
    ("pipeline_operator_bytes_in_total", "bytes_in", 1),
    ("pipeline_operator_cpu_seconds_total", "cpu_ns", 1e-9),
    ("pipeline_operator_lag_rows", "lag", 1),
    ("pipeline_operator_checkpoint_seconds", "checkpoint_ms", 1e-3),
    ("pipeline_operator_failures", "failures", 1),
)
_CONTAINER: tuple[_Row, ...] = (
    ("pipeline_container_memory_free_bytes", "memory_mb_free", 1 << 20),
    ("pipeline_container_gc_seconds_total", "gc_collection_time", 1e-3),
    ("pipeline_container_gc_collections_total", "gc_collection_count", 1),
    ("pipeline_container_heartbeat_age_seconds", "heartbeat_age_ms", 1e-3),
    ("pipeline_container_restarts_total", "restarts", 1),
)


class MeasuredPipelines(Protocol):
    """What this layer needs of the controller."""

    def list(self) -> list[ApplicationRow]: ...

    def show(self, name: str) -> ApplicationView: ...

    def statistics(self) -> ControllerStatistics: ...


def format_metrics(controller: MeasuredPipelines) -> str:
    return format_families(families(controller))


class ObservedController:
    role = "controller"

    def __init__(
        self,
        controller: Callable[[], MeasuredPipelines | None],
        failure: Callable[[], HeadraceError | None],
        *,
        labels_max: int = LABELS_MAX,
    ) -> None:
        self._controller = controller
        self._failure = failure
        self._labels_max = labels_max

    async def families(self) -> Iterable[Family]:
        controller = self._controller()
        return [] if controller is None else list(families(controller, self._labels_max))

    async def checks(self) -> list[Check]:
        if self._controller() is None:
            return [Check("started", False, "waits for its lease, or replays its journal")]
        failure = self._failure()
        return [Check("leader", failure is None, str(failure or "works"))]


def families(controller: MeasuredPipelines, labels_max: int = LABELS_MAX) -> Iterator[Family]:
    summaries = controller.list()
    running = [one for one in summaries if one.state not in _ENDED]
    waited_for = [one for one in summaries if one.state not in _DONE]
    living = [controller.show(one.name) for one in running[:labels_max]]
    state = family("pipeline_state")
    for one in summaries[:labels_max]:
        state.add(1, application=one.name, state=one.state)
    yield state
    for name, key, factor in _APPLICATION:
        rows = (
            ((one.name,), _scale(getattr(one, key), factor))
            for one in (waited_for if name in _LAGS else running)
            if getattr(one, key) is not None
        )
        made = family(name)
        for (application,), value in bounded(rows, labels_max):
            made.add(value, application=application)
        yield made
    yield from _of_windows(living)
    yield from _of_operators(living)
    yield from _of_containers(living)
    yield from _of_umbilical(controller.statistics().umbilical)


def _of_windows(living: list[ApplicationView]) -> Iterator[Family]:
    behind = family("pipeline_windows_behind")
    age = family("pipeline_committed_window_age_seconds")
    for view in living:
        grid = WindowGrid(view.start_window_ms, view.window_ms)
        windows = grid.ordinal(parse_window(view.current_window))
        windows -= max(0, grid.ordinal(parse_window(view.committed_window)))
        behind.add(windows, application=view.name)
        age.add(windows * view.window_ms / 1000, application=view.name)
    yield from (behind, age)


def _of_operators(living: list[ApplicationView]) -> Iterator[Family]:
    families = [(family(name), key, factor) for name, key, factor in _OPERATOR]
    latency, metric = (
        family("pipeline_operator_latency_seconds"),
        family("pipeline_operator_metric"),
    )
    for view in living:
        latencies, instances = latencies_ms(view), _instances(view)
        for one in view.operators:
            labels = {
                "application": view.name,
                "operator": one.name,
                "instance": str(instances[one.id]),
            }
            for made, key, factor in families:
                made.add(_scale(getattr(one, key), factor), **labels)
            latency.add(latencies[one.id] / 1000, **labels)
            for name, value in sorted(_numbers(one.metrics).items())[:METRICS_MAX]:
                metric.add(value, **labels, metric=name)
    yield from (made for made, _, _ in families)
    yield latency
    yield metric


def _of_containers(living: list[ApplicationView]) -> Iterator[Family]:
    for name, key, factor in _CONTAINER:
        made = family(name)
        for view in living:
            for one in view.containers:
                if (value := getattr(one, key)) is not None:
                    number = str(one.index + 1)
                    made.add(_scale(value, factor), application=view.name, container=number)
        yield made


def _of_umbilical(statistics: Mapping[str, int]) -> Iterator[Family]:
    for name, value in statistics.items():
        known = f"umbilical_{name}"
        yield single(known if f"headrace_{known}" in TABLE else f"{known}_total", value)


def _instances(view: ApplicationView) -> dict[int, int]:
    """Operator ids to their number among those of the same name."""
    seen: dict[str, int] = {}
    instances = {}
    for one in sorted(view.operators, key=lambda operator: operator.id):
        instances[one.id] = seen.get(one.name, 0)
        seen[one.name] = instances[one.id] + 1
    return instances


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Number]:
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _scale(value: Number, factor: Number) -> Number:
    return value if factor == 1 else value * factor
