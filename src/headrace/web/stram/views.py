"""The controller's view of an application in the shapes of Stram's REST interface. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UnsetType

from headrace.errors import NotFoundError
from headrace.pipeline.controller.application import events as e
from headrace.pipeline.controller.application.statistics import BATCH_DURATION_MS, WATERMARK_MS
from headrace.pipeline.controller.views import (
    ApplicationView,
    ContainerView,
    OperatorView,
    PortView,
)
from headrace.pipeline.declare.declarations import OUTPUT_PORT
from headrace.web.stram.types import (
    Aggregation,
    AppInfo,
    AppStats,
    ContainerInfo,
    Event,
    OperatorInfo,
    PhysicalPlanInfo,
    PhysicalStream,
    PortInfo,
)

T = TypeVar("T")

# What Spark and the container tell beside the declared metrics, where a sum would mean nothing.
_KNOWN = {BATCH_DURATION_MS: "max", WATERMARK_MS: "min"}


def app_info(view: ApplicationView, now_ms: int) -> AppInfo:
    operators = operator_infos(view)
    path = critical_path(view)
    return AppInfo(
        id=view.name,
        name=view.name,
        state=view.state,
        app_path=view.path,
        start_time=view.submitted_ms,
        elapsed_time=(view.finished_ms or now_ms) - view.submitted_ms,
        last_error=view.last_error,
        stats=AppStats(
            allocated_containers=sum(one.state == "ACTIVE" for one in view.containers),
            planned_containers=len(view.containers),
            failed_containers=view.restarts,
            num_operators=len(operators),
            window_start_millis=view.start_window_ms,
            current_window_id=view.current_window,
            recovery_window_id=view.committed_window,
            total_tuples_processed=sum(one.total_tuples_processed for one in operators),
            total_tuples_emitted=sum(one.total_tuples_emitted for one in operators),
            tuples_processed_psma=sum(one.tuples_processed_psma for one in operators),
            tuples_emitted_psma=sum(one.tuples_emitted_psma for one in operators),
            latency=sum(one.latency_ma for one in operators if one.id in path),
            critical_path=path,
        ),
        attributes=dict(view.plan.get("attributes", {})),
    )


def operator_infos(view: ApplicationView) -> list[OperatorInfo]:
    containers = {one.id: one for one in view.containers}
    latencies = latencies_ms(view)
    return [_operator(one, containers, latencies, view) for one in view.operators]


def operator_info(view: ApplicationView, id_: int) -> OperatorInfo:
    found = next((one for one in operator_infos(view) if one.id == id_), None)
    if found is None:
        raise NotFoundError(f"there is no operator {id_!r}")
    return found


def _operator(
    one: OperatorView,
    containers: Mapping[str, ContainerView],
    latencies: Mapping[int, int],
    view: ApplicationView,
) -> OperatorInfo:
    home = containers.get(one.container)
    return OperatorInfo(
        id=one.id,
        name=one.name,
        logical_name=one.name,
        class_name=one.function,
        container=one.container,
        host=None if home is None else _host(home),
        type=one.type,
        status=one.state,
        last_heartbeat=None if home is None else home.last_heartbeat_ms,
        failure_count=one.failures,
        current_window_id=one.window,
        recovery_window_id=one.recovery_window,
        checkpoint_window_id=one.checkpoint_window,
        total_tuples_processed=one.rows_in,
        total_tuples_emitted=one.rows_out,
        tuples_processed_psma=one.rows_in_per_second,
        tuples_emitted_psma=one.rows_out_per_second,
        cpu_time_ms=one.cpu_ns // 1_000_000,
        cpu_percentage_ma=_told(one.cpu_percent, 0.0),
        latency_ma=latencies.get(one.id, 0),
        checkpoint_time=one.checkpoint_ms,
        checkpoint_start_time=_told(one.checkpoint_start_ms, None),
        recording_id=_told(one.recording_id, None),
        unifier_class=one.function if one.type == "UNIFIER" else None,
        metrics=one.metrics,
        ports=_ports(one, view),
    )


def _ports(one: OperatorView, view: ApplicationView) -> list[PortInfo]:
    declared = view.declared.get(one.name, {}).get("ports", [])
    kinds = {port["name"]: port["kind"] for port in declared}
    details = _told(one.port_details, {})
    silent = PortView(queue_size=0, bytes=0, recording_id=None)
    return [
        PortInfo(
            name=name,
            type=kinds.get(name, "output"),
            total_tuples=one.ports.get(name, 0),
            queue_size=details.get(name, silent).queue_size,
            buffer_server_bytes=details.get(name, silent).bytes,
            recording_id=details.get(name, silent).recording_id,
        )
        for name in dict.fromkeys([*kinds, *one.ports])
    ]


def port_info(operator: OperatorInfo, name: str) -> PortInfo:
    return _one(operator.ports, name, "port")


def _one(ports: Iterable[PortInfo], name: str, what: str) -> PortInfo:
    found = next((port for port in ports if port.name == name), None)
    if found is None:
        raise NotFoundError(f"there is no {what} {name!r}")
    return found


def container_infos(
    view: ApplicationView, states: frozenset[str] = frozenset()
) -> list[ContainerInfo]:
    homes = {one.id: one.container for one in view.operators}
    names = {one.id: one.name for one in view.operators}
    return [
        ContainerInfo(
            id=one.id,
            host=_host(one),
            state=one.state,
            jvm_name=one.jvm_name,
            process_id=one.pid,
            last_heartbeat=one.last_heartbeat_ms,
            num_operators=len(one.operators),
            operators={str(id_): names[id_] for id_, home in homes.items() if home == one.id},
            memory_mb_free=one.memory_mb_free,
            gc_collection_time=one.gc_collection_time,
            gc_collection_count=one.gc_collection_count,
            buffer_server=_told(one.buffer_server, None),
            started_time=_told(one.started_ms, None),
            finished_time=None,
            exit_status=one.exit_status,
            restarts=one.restarts,
            container_log_file=one.log,
        )
        for one in view.containers
        if not states or one.state in states
    ]


def container_info(view: ApplicationView, id_: str) -> ContainerInfo:
    found = next((one for one in container_infos(view) if one.id == id_), None)
    if found is None:
        raise NotFoundError(f"there is no container {id_!r}")
    return found


def streams(view: ApplicationView) -> list[PhysicalStream]:
    return [
        PhysicalStream(
            logical_name=one.name,
            locality=one.locality,
            source=_endpoint(one.source),
            sinks=[_endpoint(sink) for sink in one.sinks],
        )
        for one in view.streams
    ]


def physical_plan(view: ApplicationView) -> PhysicalPlanInfo:
    return PhysicalPlanInfo(
        operators=operator_infos(view), streams=streams(view), containers=container_infos(view)
    )


def logical_operator(view: ApplicationView, name: str) -> dict[str, Any]:
    found = view.declared.get(name)
    if not found:
        raise NotFoundError(f"there is no operator {name!r}")
    return found


def properties(view: ApplicationView, name: str) -> dict[str, Any]:
    """The properties of an operator: as declared, and what was set since then."""
    declared: dict[str, Any] = logical_operator(view, name).get("properties", {})
    running = next((one.properties for one in view.operators if one.name == name), {})
    return {**declared, **running}


def logical_port(view: ApplicationView, name: str, port: str) -> dict[str, Any]:
    ports: list[dict[str, Any]] = logical_operator(view, name).get("ports", [])
    found = next((one for one in ports if one["name"] == port), None)
    if found is None:
        raise NotFoundError("no such port", operator=name, port=port)
    return found


def operator_classes(view: ApplicationView) -> list[dict[str, Any]]:
    """The functions that operators run, each with the operators that do."""
    found: dict[str, list[str]] = {}
    for one in view.declared.values():
        found.setdefault(one["class"], []).append(one["name"])
    return [{"name": name, "operators": users} for name, users in found.items()]


def aggregation(view: ApplicationView, name: str) -> Aggregation:
    """Metrics of all instances, each as it was declared: added up, the largest, the mean."""
    declared = logical_operator(view, name).get("attributes", {}).get("METRICS", ())
    instances = [one for one in view.operators if one.name == name]
    return Aggregation(
        operator=name,
        instances=len(instances),
        window_id=min((one.window for one in instances), default=""),
        metrics=aggregate([one.metrics for one in instances], declared),
    )


def events(rows: Iterable[e.Event]) -> list[Event]:
    return [
        Event(
            id=one.id,
            timestamp=one.time_ms,
            type=one.type.value,
            reason=one.reason,
            level=one.level,
            group_id=one.group,
            data=dict(one.data),
        )
        for one in rows
    ]


def latencies_ms(view: ApplicationView) -> dict[int, int]:
    """The latency of each operator: the end of its window less the end of its slowest upstream's.

    Ends are the containers' clocks, put right by what the controller knows of each of them.
    """
    corrections = {one.id: _told(one.rpc_latency_ms, None) or 0 for one in view.containers}
    ends = {one.id: one.end_window_ms + corrections.get(one.container, 0) for one in view.operators}
    above = _upstream(view)
    return {
        id_: max(0, end - max(ends[up] for up in above[id_]))
        if end and above[id_] and all(ends[up] for up in above[id_])
        else 0
        for id_, end in ends.items()
    }


def critical_path(view: ApplicationView) -> list[int]:
    """The chain of operators with the longest latency to a leaf."""
    latencies, above = latencies_ms(view), _upstream(view)
    longest: dict[int, tuple[int, list[int]]] = {}

    def chain(id_: int) -> tuple[int, list[int]]:
        if id_ not in longest:
            before = max((chain(up) for up in above[id_]), default=(0, []))
            longest[id_] = (before[0] + latencies[id_], [*before[1], id_])
        return longest[id_]

    leaves = set(above) - {up for ups in above.values() for up in ups}
    return max((chain(leaf) for leaf in sorted(leaves)), default=(0, []))[1]


def _upstream(view: ApplicationView) -> dict[int, set[int]]:
    ids: dict[str, list[int]] = {}
    for one in view.operators:
        ids.setdefault(one.name, []).append(one.id)
    above: dict[int, set[int]] = {one.id: set() for one in view.operators}
    for stream in view.streams:
        sources = ids.get(_endpoint(stream.source)["operatorName"], [])
        for sink in stream.sinks:
            for id_ in ids.get(_endpoint(sink)["operatorName"], []):
                above[id_].update(sources)
    return above


def _endpoint(text: str) -> dict[str, str]:
    operator, _, port = text.rpartition(".")
    return {"operatorName": operator, "portName": port}


def _host(container: ContainerView) -> str | None:
    name = container.jvm_name
    return name.rpartition("@")[2] or None if name else None


def _told(value: T | UnsetType, default: T) -> T:
    """What a heartbeat told, or the default where none has come yet."""
    return default if isinstance(value, UnsetType) else value


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
    return {key: _aggregate_one(ways.get(key, "sum"), found) for key, found in values.items()}


def _aggregate_one(way: str, found: Sequence[Any]) -> Any:
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
