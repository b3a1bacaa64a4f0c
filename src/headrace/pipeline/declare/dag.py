"""The explicit way to build an application: operators by name, streams between their ports.

    dag = Dag("shop")
    dag.add_topic("orders", "shop/orders", schema="sku string, qty int")
    dag.add_operator("valid", functions.valid, MEMORY_MB=2048)
    dag.add_operator("totals", functions.totals, to="shop/totals", output_mode="update")
    dag.add_stream("raw", "orders", "valid.orders")
    dag.add_stream("clean", "valid", "totals.rows", locality="CONTAINER_LOCAL")
    app = dag.application()

It makes the same application as the decorators do: for plans that a program writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ConfigError
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.declarations import read_signature
from headrace.pipeline.declare.graph import check_property


@dataclass(slots=True)
class _Node:
    function: Callable[..., Any]
    sink: bool
    options: dict[str, Any]
    properties: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Stream:
    name: str
    source: str
    sinks: tuple[str, ...]
    locality: str | None
    remote: bool


class Dag:
    """Collects operators and streams; `application` checks and wires them."""

    def __init__(self, name: str, *, trigger: str = "1 second", **attributes: Any) -> None:
        self._name, self._trigger, self._attributes = name, trigger, attributes
        self._topics: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, _Node] = {}
        self._streams: dict[str, _Stream] = {}
        self._metrics: list[tuple[str, dict[str, Any]]] = []

    def add_topic(self, name: str, topic: str, **options: Any) -> None:
        """An input operator that reads a topic; options as of `Application.topic`."""
        self._claim(name)
        self._topics[name] = {"topic": topic, **options}

    def add_operator(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        properties: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """A function of DataFrames; options as of `Application.operator`, but for `inputs`."""
        self._add(name, function, properties or {}, options, sink=False)

    def add_sink(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        properties: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """A function of a batch; options as of `Application.sink`, but for `inputs`."""
        self._add(name, function, properties or {}, options, sink=True)

    def add_stream(
        self,
        name: str,
        source: str,
        *sinks: str,
        locality: str | None = None,
        remote: bool = False,
    ) -> None:
        """From an output ("valid", or "split.ok" of several) to input ports ("totals.rows", or
        "totals" if it has but one)."""
        if name in self._streams:
            raise ConfigError(f"stream {name} is added twice")
        if not sinks:
            raise ConfigError(f'stream {name} goes nowhere: add_stream("{name}", source, sink)')
        self._streams[name] = _Stream(name, source, sinks, locality, remote)

    def add_metric(self, operator: str, **options: Any) -> None:
        """As `Application.metric`."""
        self._metrics.append((operator, options))

    def set_attribute(self, name: str, value: Any) -> None:
        """Of the application; an operator's are options of `add_operator`."""
        self._attributes[name] = value

    def application(self) -> Application:
        """ConfigError names what is missing or wired twice."""
        app = Application(self._name, trigger=self._trigger, **self._attributes)
        for name, options in self._topics.items():
            app.topic(name, **options)
        wires = self._wires()
        for name, node in self._nodes.items():
            declare = app.sink if node.sink else app.operator
            declare(name=name, inputs=wires[name], **node.options)(node.function)
            stage = app.stages[name]
            values = {
                each: check_property(app, name, each, value)
                for each, value in node.properties.items()
            }
            app.stages[name] = replace(stage, properties={**stage.properties, **values})
        for stream in self._streams.values():
            app.stream(
                stream.source, name=stream.name, locality=stream.locality, remote=stream.remote
            )
        for operator, options in self._metrics:
            app.metric(operator, **options)
        app.ordered()
        return app

    def _wires(self) -> dict[str, dict[str, str]]:
        """Operator: input port: feed."""
        ports = {
            name: read_signature(node.function, sink=node.sink)[0]
            for name, node in self._nodes.items()
        }
        wires: dict[str, dict[str, str]] = {name: {} for name in self._nodes}
        for stream in self._streams.values():
            for sink in stream.sinks:
                operator, _, port = sink.partition(".")
                known = ports.get(operator, ())
                port = port or (known[0] if len(known) == 1 else "")
                if port not in known:
                    there = ", ".join(
                        f"{each}.{one}" for each, some in ports.items() for one in some
                    )
                    raise ConfigError(
                        f"stream {stream.name}: there is no input port {sink}; there is {there}"
                    )
                if port in wires[operator]:
                    raise ConfigError(f"input port {operator}.{port} has two streams")
                wires[operator][port] = stream.source
        for name, known in ports.items():
            if unfed := [port for port in known if port not in wires[name]]:
                raise ConfigError(
                    f"port {', '.join(unfed)} of {name} has no stream: "
                    f'dag.add_stream("...", "...", "{name}.{unfed[0]}")'
                )
        return wires

    def _add(
        self,
        name: str,
        function: Callable[..., Any],
        properties: Mapping[str, Any],
        options: dict[str, Any],
        *,
        sink: bool,
    ) -> None:
        self._claim(name)
        if "inputs" in options:
            raise ConfigError(f"{name}: inputs= is for decorators; use add_stream")
        self._nodes[name] = _Node(function, sink, options, properties)

    def _claim(self, name: str) -> None:
        if name in self._topics or name in self._nodes:
            raise ConfigError(f"{name!r} is added twice")
