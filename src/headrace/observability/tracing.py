"""Spans by OpenTelemetry, when somebody asked for them; otherwise one look at `active`.

Callers write

    span = tracing.begin("headrace.log.append", stream_id=7) if tracing.active else None
    try:
        ...
    finally:
        if span is not None:
            span.end()

so that a process without traces pays for nothing but the look. `begin` makes the span the parent
of what the task does until `end`; `begin_aside` does not, for what ends in a callback.

OpenTelemetry is an extra (`pip install "headrace[otel]"`) and is imported by `start` alone. It has
threads and clocks of its own: nothing the simulator runs may call `start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from headrace.errors import ConfigError

active = False
"""Whether spans are recorded. Look at it as `tracing.active`: it changes."""

_tracer: Any = None
_provider: Any = None
_api: Any = None

TRACEPARENT = "traceparent"
ATTRIBUTE_ITEMS_MAX = 16


class Kind(IntEnum):
    """Values of OpenTelemetry's SpanKind."""

    INTERNAL = 0
    SERVER = 1
    CLIENT = 2
    PRODUCER = 3
    CONSUMER = 4


class Span:
    __slots__ = ("_span", "_token")

    def __init__(self, span: Any, token: Any = None) -> None:
        self._span = span
        self._token = token

    def set(self, **attributes: Any) -> None:
        self._span.set_attributes(_named(attributes))

    def end(self, *, error: str = "", at_ns: int | None = None) -> None:
        """`error` says why what it stands for failed. `at_ns` is for what ended before now."""
        if self._token is not None:
            _api.context.detach(self._token)
        if error:
            self._span.set_status(_api.trace.Status(_api.trace.StatusCode.ERROR, error))
        self._span.end(at_ns)


def begin(name: str, *, kind: Kind = Kind.INTERNAL, parent: str = "", **attributes: Any) -> Span:
    """`parent` is a W3C traceparent of another process, if it sent one."""
    span = _start(name, kind, parent, attributes, None)
    return Span(span, _api.context.attach(_api.trace.set_span_in_context(span)))


def begin_aside(
    name: str,
    *,
    kind: Kind = Kind.INTERNAL,
    parent: str = "",
    at_ns: int | None = None,
    **attributes: Any,
) -> Span:
    """A span that is nobody's parent by itself; it may have begun at an earlier time."""
    return Span(_start(name, kind, parent, attributes, at_ns))


def _start(
    name: str, kind: Kind, parent: str, attributes: Mapping[str, Any], at_ns: int | None
) -> Any:
    context = _api.propagator.extract({TRACEPARENT: parent}) if parent else None
    return _tracer.start_span(
        name,
        context=context,
        kind=_api.kinds[kind],
        attributes=_named(attributes),
        start_time=at_ns,
    )


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """`stream_id` becomes `headrace.stream_id`; lists are cut, absent values left out."""
    return {
        f"headrace.{name}": list(value)[:ATTRIBUTE_ITEMS_MAX]
        if isinstance(value, list | tuple | set)
        else value
        for name, value in attributes.items()
        if value is not None
    }


def traceparent() -> str:
    """The span that the running task is in, written for another process; empty without one."""
    if not active:
        return ""
    carrier: dict[str, str] = {}
    _api.propagator.inject(carrier)
    return carrier.get(TRACEPARENT, "")


def ids() -> tuple[str, str]:
    """Trace and span id of the running task's span, in hex; empty without one."""
    if not active:
        return "", ""
    found = _api.trace.get_current_span().get_span_context()
    if not found.is_valid:
        return "", ""
    return f"{found.trace_id:032x}", f"{found.span_id:016x}"


class _Api:
    """The parts of OpenTelemetry that are used, imported once."""

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.context = context
        self.trace = trace
        self.propagator = TraceContextTextMapPropagator()
        self.kinds = {kind: trace.SpanKind(kind.value) for kind in Kind}


def start(endpoint: str, *, service: str, instance: str = "", ratio: float = 1.0) -> None:
    """Send spans to an OTLP/HTTP collector, `http://host:4318`; in batches, from a thread."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise ConfigError('traces need the extra `otel`: pip install "headrace[otel]"') from error
    about = {"service.name": service, "service.namespace": "headrace"}
    if instance:
        about["service.instance.id"] = instance
    provider = TracerProvider(
        resource=Resource.create(about), sampler=ParentBased(TraceIdRatioBased(ratio))
    )
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    install(provider)


def install(provider: Any) -> None:
    """Record spans with a TracerProvider of the caller's."""
    global active, _tracer, _provider, _api
    _api = _api or _Api()
    _provider = provider
    _tracer = provider.get_tracer("headrace")
    active = True


def stop() -> None:
    """Send what is left, and record nothing more. Blocks."""
    global active, _tracer, _provider
    if not active:
        return
    active = False
    _provider.shutdown()
    _tracer = _provider = None
