"""What a user's file declares: topics, operators, sinks. Plain values, checked when they are made.

An *operator* is a function of DataFrames; the names of its parameters are its input ports. A port
is wired to the topic or operator of the same name, or to what `inputs=` says. Keyword-only
parameters are properties: they have a default and may be set per deployment.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace.errors import ConfigError
from headrace.pipeline.declare.stores import Store
from headrace.wire.umbilical import attributes as origin
from headrace.wire.umbilical.messages import Locality

OUTPUT_PORT = "output"  # of an operator that declares no outputs
SPARK, BATCH = "spark", "batch"  # parameters that are given, not wired
OUTPUT_MODES = ("append", "update", "complete")
ON_BAD_ROW = ("dead_letter", "drop", "fail")
ON_DATA_LOSS = ("skip", "fail")
MESSAGE_COLUMNS = (
    *("stream", "topic", "partition", "offset", "timestamp", "origin_timestamp"),
    *("id", "key", "headers", "payload"),
)
AGGREGATES = ("sum", "min", "max", "avg", "last")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TOPIC = re.compile(r"[^/\s]+/[^/\s]+\Z")


@dataclass(frozen=True, slots=True)
class TopicInput:
    """A topic as an input of the application; with a schema its payloads are JSON objects."""

    name: str
    topic: str
    schema: str | None = None
    on_bad_row: str = "drop"
    starting: str = "earliest"
    messages_max: int | None = None
    columns: tuple[str, ...] = ()  # of the message itself, beside those of the schema
    ending: str | None = None  # of a backfill: the first position that is not read
    renamed_from: str | None = None
    on_data_loss: str = "skip"

    def __post_init__(self) -> None:
        check_name(self.name, "topic port")
        check_topic(self.topic)
        _check_choice("on_bad_row", self.on_bad_row, ON_BAD_ROW)
        _check_choice("on_data_loss", self.on_data_loss, ON_DATA_LOSS)
        if self.columns and self.schema is None:
            raise ConfigError(
                f"topic port {self.name} has no schema and so every column of the message; "
                "columns= adds some of them to a schema"
            )
        for column in self.columns:
            _check_choice("columns", column, MESSAGE_COLUMNS)
        for what, position in (("starting", self.starting), ("ending", self.ending)):
            if position is not None:
                check_position(what, position)


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of every window: an SQL aggregate over the rows of an output port.

    `aggregate` says how the values of several instances become one.
    """

    name: str
    expression: str
    port: str = OUTPUT_PORT
    aggregate: str = "sum"

    def __post_init__(self) -> None:
        check_name(self.name, "metric")
        _check_choice("aggregate", self.aggregate, AGGREGATES)
        if self.name in ("rows", "bad_rows"):
            raise ConfigError(f"metric {self.name!r} is counted by itself; choose another name")


@dataclass(frozen=True, slots=True)
class Stage:
    """An operator or a sink."""

    name: str
    function: Callable[..., Any]
    ports: Mapping[str, str]  # input port: the `name` or `name.port` that feeds it
    sink: bool = False
    outputs: tuple[str, ...] = (OUTPUT_PORT,)
    properties: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, str] = field(default_factory=dict)  # SQL condition: what else happens
    to: str | None = None
    key: str | None = None
    output_mode: str | None = None  # None: not stated, which an aggregation may not leave open
    attributes: Mapping[str, Any] = field(default_factory=dict)
    port_attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    live: tuple[str, ...] = ()  # properties that are read again for every batch
    metrics: tuple[Metric, ...] = ()
    isolate: bool = False
    instances: int = 1
    renamed_from: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "operator")
        if self.output_mode is not None:
            _check_choice("output_mode", self.output_mode, OUTPUT_MODES)
        if unknown := sorted(set(self.live) - set(self.properties)):
            raise ConfigError(
                f"live= of {self.name} names {', '.join(unknown)}; its properties are "
                f"{', '.join(self.properties) or 'none'} (keyword-only parameters)"
            )
        if unknown := sorted(set(self.port_attributes) - {*self.ports, *self.outputs}):
            raise ConfigError(f"{self.name} has no port {', '.join(unknown)}")
        if self.instances < 1:
            raise ConfigError(f"instances of {self.name} must be 1 or more: {self.instances}")
        for name in self.outputs:
            check_name(name, "output port")
        for action in self.expect.values():
            _check_choice("expect", action, ON_BAD_ROW)
        if self.to is not None:
            check_topic(self.to)
            if self.outputs != (OUTPUT_PORT,):
                raise ConfigError(
                    f"operator {self.name} has several outputs; publish one of them with an "
                    f'operator of its own: @app.operator(inputs={{"rows": "{self.name}.'
                    f'{self.outputs[0]}"}}, to="{self.to}")'
                )
        if self.key is not None and self.to is None:
            raise ConfigError(f"operator {self.name} has a key but no topic; add to='stream/topic'")

    @property
    def reference(self) -> str:
        """How a deployment names the function: `module:function`, never code."""
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"{named.__module__}:{named.__qualname__}"

    @property
    def delivery(self) -> str:
        """How what leaves the application here is delivered; "" if nothing does."""
        if isinstance(self.function, Store):
            return self.function.delivery
        # A function may write under `batch.window_id` and overwrite; nobody but it knows.
        return "exactly-once" if self.to is not None else "at-least-once" if self.sink else ""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What is said about the stream of an output besides who reads it."""

    feed: str
    name: str | None = None
    locality: str | None = None
    remote: bool = False

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name, "stream")
        if self.locality is not None:
            _check_choice("locality", self.locality, tuple(Locality.__members__))


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that is told of committed windows, where `operator` runs or everywhere."""

    function: Callable[..., Any]
    operator: str | None = None

    def __post_init__(self) -> None:
        names = list(inspect.signature(self.function).parameters)
        if len([name for name in names if name != SPARK]) != 1:
            raise ConfigError(
                f"{self.function.__qualname__}: a committed() hook takes the window id"
                f" (and, if it likes, `spark`), not {', '.join(names) or 'nothing'}"
            )


def make_stage(
    function: Callable[..., Any],
    *,
    sink: bool,
    name: str | None = None,
    inputs: Mapping[str, str] | None = None,
    outputs: Sequence[str] = (),
    expect: Mapping[str, str] | None = None,
    to: str | None = None,
    key: str | None = None,
    output_mode: str | None = None,
    live: bool | Sequence[str] = False,
    isolate: bool = False,
    instances: int = 1,
    renamed_from: str | None = None,
    ports: Mapping[str, Mapping[str, Any]] | None = None,
    **attributes: Any,
) -> Stage:
    """A stage out of a function and what its declaration says."""
    name = name or function.__name__
    check_attributes(name, attributes, origin.OPERATOR)
    for port, values in (ports or {}).items():
        check_attributes(f"port {port} of {name}", values, origin.PORT)
    inlets, properties = read_signature(function, sink=sink)
    if sink and len(inlets) != 1:
        raise ConfigError(
            f"sink {name} has {len(inlets)} inputs {inlets}; it takes one "
            "(and, if it likes, `batch` and `spark`): join them in an operator first"
        )
    return Stage(
        name=name,
        function=function,
        ports=_wire(name, inlets, inputs or {}),
        sink=sink,
        outputs=() if sink else tuple(outputs) or (OUTPUT_PORT,),
        properties=properties,
        expect=dict(expect or {}),
        to=to,
        key=key,
        output_mode=output_mode,
        attributes=attributes,
        port_attributes={port: dict(values) for port, values in (ports or {}).items()},
        live=_live(live, properties),
        isolate=isolate,
        instances=instances,
        renamed_from=renamed_from,
    )


def _live(live: bool | Sequence[str], properties: Mapping[str, Any]) -> tuple[str, ...]:
    if isinstance(live, bool):
        return tuple(properties) if live else ()
    return (live,) if isinstance(live, str) else tuple(live)


def _wire(name: str, ports: tuple[str, ...], inputs: Mapping[str, str]) -> dict[str, str]:
    if not ports:
        raise ConfigError(f"{name} has no input; its parameters name the topics it reads")
    unknown = sorted(set(inputs) - set(ports))
    if unknown:
        raise ConfigError(
            f"inputs= of {name} names {', '.join(unknown)}; its ports are {', '.join(ports)}"
        )
    return {port: inputs.get(port, port) for port in ports}


def check_attributes(owner: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Names and types are the origin's (`headrace.wire.umbilical.attributes`)."""
    if wrong := [name for name in given if not name.isupper()]:
        raise ConfigError(
            f"unknown argument {', '.join(wrong)}; attributes are written in capitals, "
            "like MEMORY_MB=2048"
        )
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"; did you mean {near[0]}?" if near else f"; there is {', '.join(sorted(known))}"
            )
            raise ConfigError(f"{owner} has no attribute {name}{hint}")
        default = known[name]
        number = type(default) is float and type(value) is int
        if default is not None and type(value) is not type(default) and not number:
            kind = type(default).__name__
            raise ConfigError(f"attribute {name} of {owner} is {kind}, like {default!r}: {value!r}")


def feed_of(stage: Stage, port: str) -> str:
    """What others call this output: `split.ok`, or just `valid` for the only one."""
    return stage.name if stage.outputs == (OUTPUT_PORT,) else f"{stage.name}.{port}"


def read_signature(
    function: Callable[..., Any], *, sink: bool
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(input ports, properties with their defaults) of an operator or sink function."""
    given = {SPARK, BATCH} if sink else {SPARK}
    ports, properties = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(
                f"{function.__qualname__}: write out the parameters instead of *{name}; "
                "their names are the input ports"
            )
        if name in given:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise ConfigError(f"{function.__qualname__}: property {name} needs a default")
            if not isinstance(parameter.default, bool | int | float | str | None):
                raise ConfigError(
                    f"{function.__qualname__}: property {name} is a {type(parameter.default)}; "
                    "properties are text, numbers, booleans or None"
                )
            properties[name] = parameter.default
        else:
            ports.append(name)
    return tuple(ports), properties


def check_name(name: str, what: str) -> None:
    """Names are ids of operators, folders of checkpoints and SQL metrics: keep them plain."""
    if not _NAME.match(name):
        raise ConfigError(f"{what} {name!r}: use letters, digits and underscores")


def check_topic(topic: str) -> None:
    if not _TOPIC.match(topic):
        raise ConfigError(f"topic {topic!r}: write stream/topic, like 'shop/orders'")


def check_position(what: str, text: str) -> None:
    """As the connector reads it; told here, before a container runs into it."""
    if text in ("earliest", "latest") or _is_time_ms(text):
        return
    try:
        if text.lstrip().startswith("{"):
            _check_offsets(json.loads(text))
        elif text.isdecimal():
            raise ValueError(text)
        else:
            datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{what} is earliest, latest, a time like 2026-01-31T12:00:00Z, or offsets like "
            f'{{"0": 100}}: {text!r}'
        ) from None


def _check_offsets(value: dict[str, Any]) -> None:
    """By partition, or by topic and partition."""
    if value and all(isinstance(inner, dict) for inner in value.values()):
        for inner in value.values():
            _check_offsets(inner)
        return
    good = all(
        key.isdecimal() and type(offset) is int and 0 <= offset < 2**63
        for key, offset in value.items()
    )
    if not good:
        raise ValueError(value)


def _is_time_ms(text: str) -> bool:
    return text.isdecimal() and len(text) <= 19 and int(text) < 2**63


def _check_choice(what: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ConfigError(f"{what} is one of {', '.join(values)}: {value!r}")
