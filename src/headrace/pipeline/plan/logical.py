"""The logical plan: what the user declared, and where its dead letters go.

Immutable, and without Spark; `physical.py` says what runs where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from headrace.errors import InvalidArgumentError
from headrace.wire.umbilical import attributes
from headrace.wire.umbilical.messages import Json, Locality, Value, Values

NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # also a folder name, hence no "/"
OPERATORS_MAX = 1000
INSTANCES_MAX = 256
READ_TOPIC = "headrace.pipeline.declare.stages:read_topic"  # `class` of a topic port
OTHER_TOPICS = "OTHER_TOPICS"  # attribute of an application: patterns of `stream/topic`
PARTITION_KEY = "PARTITION_KEY"  # attribute: columns that decide which instance gets a row
FUSED = frozenset({None, Locality.THREAD_LOCAL, Locality.CONTAINER_LOCAL})

JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    attributes: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operator:
    """`function` is `module:function` in the deployed package; empty for a built-in such as a topic
    source, which its properties describe. No inputs makes it an input operator."""

    name: str
    function: str = ""
    properties: Values = field(default_factory=dict)
    attributes: Values = field(default_factory=dict)
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    isolate: bool = False
    instances: int = 1
    terminal: bool = False  # its result leaves the application


@dataclass(frozen=True, slots=True)
class Endpoint:
    operator: str
    port: str


@dataclass(frozen=True, slots=True)
class Stream:
    name: str
    source: Endpoint
    sinks: tuple[Endpoint, ...]
    locality: Locality | None = None
    remote: bool = False

    @property
    def fused(self) -> bool:
        return not self.remote and self.locality in FUSED


@dataclass(frozen=True)
class LogicalPlan:
    name: str
    operators: tuple[Operator, ...]
    streams: tuple[Stream, ...] = ()
    attributes: Values = field(default_factory=dict)

    def attribute(self, name: str) -> Value:
        return attributes.look_up(name, self.attributes, defaults=attributes.DAG)

    def validate(self) -> None:
        """InvalidArgumentError names the first thing that cannot run."""
        _check_names(self)
        _check_streams(self)
        for operator in self.operators:
            _check_operator(operator)
        self.topological  # noqa: B018 - raises on a cycle

    @cached_property
    def topological(self) -> tuple[str, ...]:
        """Operator names, upstream first, otherwise in the order of declaration."""
        waiting: dict[str, set[str]] = {operator.name: set() for operator in self.operators}
        for stream in self.streams:
            for sink in stream.sinks:
                waiting[sink.operator].add(stream.source.operator)
        ordered: list[str] = []
        while waiting:
            ready = next((name for name, above in waiting.items() if not above), None)
            if ready is None:
                raise InvalidArgumentError("operators form a cycle", operators=sorted(waiting))
            ordered.append(ready)
            del waiting[ready]
            for above in waiting.values():
                above.discard(ready)
        return tuple(ordered)

    def to_json(self) -> JsonObject:
        """Apex's shape: operators with ports, streams with source and sinks; `outputs` names the
        terminal operators. `from_json` reads over keys it does not know."""
        return {
            "name": self.name,
            "attributes": _values_to_json(self.attributes),
            "operators": [_operator_to_json(operator) for operator in self.operators],
            "streams": [_stream_to_json(stream) for stream in self.streams],
            "outputs": [{"operator": one.name} for one in self.operators if one.terminal],
        }

    @classmethod
    def from_json(cls, source: Mapping[str, Any]) -> LogicalPlan:
        try:
            terminals = frozenset(str(one["operator"]) for one in source.get("outputs", ()))
            return cls(
                name=str(source["name"]),
                operators=tuple(_operator_from_json(one, terminals) for one in source["operators"]),
                streams=tuple(_stream_from_json(one) for one in source.get("streams", ())),
                attributes=_values_from_json(source.get("attributes", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(f"not a plan: {error!r}") from error


def _check_names(plan: LogicalPlan) -> None:
    if not plan.operators:
        raise InvalidArgumentError("a plan needs an operator", plan=plan.name)
    if sum(max(1, operator.instances) for operator in plan.operators) > OPERATORS_MAX:
        raise InvalidArgumentError("too many operators", most=OPERATORS_MAX)
    kinds: tuple[tuple[str, list[str]], ...] = (
        ("application", [plan.name]),
        ("operator", [operator.name for operator in plan.operators]),
        ("stream", [stream.name for stream in plan.streams]),
        *(
            (f"port of {operator.name}", [port.name for port in ports])
            for operator in plan.operators
            for ports in (operator.inputs, operator.outputs)
        ),
    )
    for kind, names in kinds:
        for name in names:
            if NAME_PATTERN.fullmatch(name) is None:
                raise InvalidArgumentError(f"not a name for a {kind}", name=name)
        if len(set(names)) != len(names):
            raise InvalidArgumentError(f"a {kind} name is used twice", names=sorted(names))


def _check_streams(plan: LogicalPlan) -> None:
    inputs = {(o.name, port.name) for o in plan.operators for port in o.inputs}
    outputs = {(o.name, port.name) for o in plan.operators for port in o.outputs}
    fed: set[tuple[str, str]] = set()
    for stream in plan.streams:
        if (stream.source.operator, stream.source.port) not in outputs:
            raise InvalidArgumentError("a stream's source does not exist", stream=stream.name)
        if not stream.sinks:
            raise InvalidArgumentError("a stream needs a sink", stream=stream.name)
        for sink in stream.sinks:
            port = (sink.operator, sink.port)
            if port not in inputs:
                raise InvalidArgumentError("a stream's sink does not exist", stream=stream.name)
            if port in fed:
                raise InvalidArgumentError("an input port has two streams", port=".".join(port))
            fed.add(port)
    if unfed := inputs - fed:
        raise InvalidArgumentError(
            "input ports are not connected", ports=sorted(".".join(port) for port in unfed)
        )


def _check_operator(operator: Operator) -> None:
    if not 1 <= operator.instances <= INSTANCES_MAX:
        raise InvalidArgumentError(f"instances must be 1..{INSTANCES_MAX}", operator=operator.name)
    counts = [
        attributes.look_up(name, operator.attributes, defaults=attributes.OPERATOR)
        for name in ("CHECKPOINT_WINDOW_COUNT", "APPLICATION_WINDOW_COUNT")
    ]
    checkpoint, application = (int(count) if isinstance(count, int) else 0 for count in counts)
    if application < 1 or checkpoint < 1 or checkpoint % application:
        raise InvalidArgumentError(
            "CHECKPOINT_WINDOW_COUNT must be a multiple of APPLICATION_WINDOW_COUNT",
            operator=operator.name,
        )


def _values_to_json(values: Values) -> JsonObject:
    result: JsonObject = {}
    for name, value in values.items():
        if isinstance(value, bytes):
            raise InvalidArgumentError("bytes do not fit in a plan", name=name)
        result[name] = json.loads(value.text) if isinstance(value, Json) else value
    return result


def _values_from_json(source: Mapping[str, Any]) -> dict[str, Value]:
    """Lists and objects stay JSON text: plain values are all that the wire carries."""
    return {
        str(name): value
        if value is None or isinstance(value, bool | int | float | str)
        else Json(json.dumps(value, sort_keys=True))
        for name, value in source.items()
    }


def _operator_to_json(operator: Operator) -> JsonObject:
    ports = (("input", operator.inputs), ("output", operator.outputs))
    return {
        "name": operator.name,
        "class": operator.function,
        "properties": _values_to_json(operator.properties),
        "attributes": _values_to_json(operator.attributes),
        "ports": [
            {"name": port.name, "kind": kind, "attributes": _values_to_json(port.attributes)}
            for kind, some in ports
            for port in some
        ],
        "isolate": operator.isolate,
        "instances": operator.instances,
    }


def _operator_from_json(source: Mapping[str, Any], terminals: frozenset[str]) -> Operator:
    ports: dict[str, list[Port]] = {"input": [], "output": []}
    for port in source.get("ports", ()):
        attributes_ = _values_from_json(port.get("attributes", {}))
        ports[port["kind"]].append(Port(str(port["name"]), attributes_))
    return Operator(
        name=str(source["name"]),
        function=str(source.get("class", "")),
        properties=_values_from_json(source.get("properties", {})),
        attributes=_values_from_json(source.get("attributes", {})),
        inputs=tuple(ports["input"]),
        outputs=tuple(ports["output"]),
        isolate=bool(source.get("isolate", False)),
        instances=int(source.get("instances", 1)),
        terminal=str(source["name"]) in terminals,
    )


def _stream_to_json(stream: Stream) -> JsonObject:
    return {
        "name": stream.name,
        "source": _endpoint_to_json(stream.source),
        "sinks": [_endpoint_to_json(sink) for sink in stream.sinks],
        "locality": stream.locality.name if stream.locality else None,
        "remote": stream.remote,
    }


def _stream_from_json(source: Mapping[str, Any]) -> Stream:
    locality = source.get("locality")
    return Stream(
        name=str(source["name"]),
        source=_endpoint_from_json(source["source"]),
        sinks=tuple(_endpoint_from_json(sink) for sink in source["sinks"]),
        locality=Locality[locality] if locality else None,
        remote=bool(source.get("remote", False)),
    )


def _endpoint_to_json(endpoint: Endpoint) -> JsonObject:
    return {"operatorName": endpoint.operator, "portName": endpoint.port}


def _endpoint_from_json(source: Mapping[str, Any]) -> Endpoint:
    return Endpoint(str(source["operatorName"]), str(source["portName"]))


SUFFIX = ".dead_letter"
LETTERS_SUFFIX = "LETTERS_SUFFIX"  # attribute of an application: behind SUFFIX; of a backfill


def letter_topics(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The topics, `stream/topic`, that each operator's letters go to, should there be any.

    What does not fit a topic's schema goes beside that topic. Any other operator's letters go to
    the stream of a topic the application reads: which one, a plan of several does not say.
    """
    topics = topic_inputs(plan)
    suffix = f"{SUFFIX}{plan.get('attributes', {}).get(LETTERS_SUFFIX, '')}"
    streams = dict.fromkeys(topic.split("/", 1)[0] for topic in topics.values())
    found: dict[str, tuple[str, ...]] = {}
    for one in plan.get("operators", ()):
        name = str(one["name"])
        if name in topics:
            found[name] = (f"{topics[name]}{suffix}",)
        else:
            found[name] = tuple(f"{stream}/{name}{suffix}" for stream in streams)
    return found


def topic_inputs(plan: Mapping[str, Any]) -> dict[str, str]:
    """The topics that an application reads, by the names of their ports."""
    return {
        str(one["name"]): str(one["properties"]["topic"])
        for one in plan.get("operators", ())
        if one.get("properties", {}).get("topic") and _reads(one)
    }


def plan_topics(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Every topic that an application reads or writes; not those between its containers."""
    written = (one.get("attributes", {}).get("OUTPUT_TOPIC") for one in plan.get("operators", ()))
    found = dict.fromkeys(topic_inputs(plan).values())
    return tuple({**found, **dict.fromkeys(str(one) for one in written if one)})


def _reads(operator: Mapping[str, Any]) -> bool:
    return not any(port.get("kind") == "input" for port in operator.get("ports", ()))
