"""The views of an application (`views`), made from its state."""

from __future__ import annotations

import msgspec

from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.application.lifecycle import Container, Operator
from headrace.pipeline.controller.application.statistics import plain
from headrace.pipeline.controller.views import (
    ApplicationSummary,
    ApplicationView,
    ContainerView,
    InputView,
    OperatorView,
    StreamView,
)
from headrace.pipeline.plan.deploy import checkpoint_folder
from headrace.pipeline.plan.edges import Edge
from headrace.wire.umbilical.windows import NO_WINDOW, format_window


def summary(application: Application, now_ms: int) -> ApplicationSummary:
    record = application.record
    leaves = [one for one in application.operators.values() if one.physical.query]
    sources = [one for one in application.operators.values() if not one.physical.inputs]
    window = min((one.statistics.window for one in leaves), default=NO_WINDOW)
    return ApplicationSummary(
        name=application.name,
        state=application.phase.value,
        package=record.package,
        entry=record.entry,
        submitted_ms=record.submitted_ms,
        finished_ms=record.finished_ms or None,
        window=format_window(window) if window != NO_WINDOW else None,
        committed_window=format_window(application.checkpoints.committed),
        rows=sum(one.statistics.rows_out for one in sources),
        rows_per_second=sum(one.statistics.rates(now_ms)[1] for one in sources),
        rows_late=sum(one.statistics.rows_late for one in application.operators.values()),
        rows_bad=sum(one.statistics.rows_bad for one in application.operators.values()),
        lag=sum(one.statistics.lag for one in sources),
        restarts=sum(one.restarts for one in application.containers),
        containers=len(application.containers),
        last_error=application.last_error or None,
    )


def details(
    application: Application, now_ms: int, *, events_max: int | None = None
) -> ApplicationView:
    """`events_max`: only so many of the newest events."""
    row = msgspec.structs.asdict(summary(application, now_ms))
    row["containers"] = [_container(one, now_ms) for one in application.containers]
    return ApplicationView(
        **row,
        path=application.path,
        plan=application.record.plan,
        window_ms=application.grid.width_ms,
        start_window_ms=application.grid.start_ms,
        current_window=format_window(application.grid.window_at(now_ms)),
        operators=[_operator(application, one, now_ms) for one in application.operators.values()],
        streams=[
            StreamView(
                name=stream.name,
                source=f"{stream.source.operator}.{stream.source.port}",
                sinks=[f"{sink.operator}.{sink.port}" for sink in stream.sinks],
                locality=stream.locality.name if stream.locality else None,
                topic=Edge(application.name, stream.name).address
                if stream.name in application.plan.split_streams
                else None,
            )
            for stream in application.plan.logical.streams
        ],
        events=list(application.events.newest(events_max)),
    )


def _container(container: Container, now_ms: int) -> ContainerView:
    last = container.last
    return ContainerView(
        id=container.id,
        index=container.index,
        state=container.state.value,
        pid=container.pid,
        restarts=container.restarts,
        recovery_ms=container.recovery_ms,
        exit_status=container.exit_status,
        operators=[one.physical.logical.name for one in container.operators],
        last_heartbeat_ms=container.heartbeat_ms or None,
        heartbeat_age_ms=now_ms - container.heartbeat_ms if container.heartbeat_ms else None,
        restart_at_ms=container.launch_after_ms,
        jvm_name=last.jvm_name if last else None,
        memory_mb_free=last.memory_mb_free if last else None,
        gc_collection_time=last.gc_collection_time if last else None,
        gc_collection_count=last.gc_collection_count if last else None,
        log=f"logs/{container.id}.log" if container.id else None,
    )


def _operator(application: Application, operator: Operator, now_ms: int) -> OperatorView:
    physical, checkpoints = operator.physical, application.checkpoints
    statistics, record, name = operator.statistics, application.record, physical.logical.name
    rate_in, rate_out = statistics.rates(now_ms)
    folder = checkpoint_folder(physical, record.generations.get(name, 0))
    properties = {**physical.logical.properties, **record.properties.get(name, {})}
    return OperatorView(
        id=physical.id,
        name=name,
        function=physical.logical.function,
        type=physical.type.name,
        query=physical.query or None,
        container=application.model.container(physical.container).id,
        state=operator.state.value,
        run=operator.run,
        failures=operator.failures,
        failures_lost=operator.lost,
        last_error=operator.last_error or None,
        instance=physical.instance,
        inputs=[
            InputView(
                port=one.port,
                source=one.source,
                local=one.local,
                partition_keys=list(one.partition_keys),
                partition_mask=one.partition_mask,
            )
            for one in physical.inputs
        ],
        properties={key: plain(value) for key, value in properties.items()},
        checkpoint_folder=f"{folder}/{name}" if physical.query else None,
        checkpoint_window=format_window(checkpoints.newest(physical.id)),
        recovery_window=format_window(checkpoints.recovery(physical.id)),
        window=format_window(statistics.window),
        batch_id=statistics.batch_id,
        rows_in=statistics.rows_in,
        rows_out=statistics.rows_out,
        rows_in_per_second=rate_in,
        rows_out_per_second=rate_out,
        bytes_in=statistics.bytes_in,
        lag=statistics.lag,
        rows_late=statistics.rows_late,
        rows_bad=statistics.rows_bad,
        cpu_ns=statistics.cpu_ns,
        end_window_ms=statistics.end_window_ms,
        checkpoint_ms=statistics.checkpoint_ms,
        ports=dict(statistics.ports),
        metrics={key: plain(value) for key, value in statistics.metrics.items()},
    )
