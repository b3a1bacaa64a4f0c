"""What a user's file declares: topics, operators, sinks. Plain values, checked when they are made.

An *operator* is a function of DataFrames; the names of its parameters are its input ports. A port
is wired to the topic or operator of the same name, or to what `inputs=` says. Keyword-only
parameters are properties: they have a default and may be set per deployment.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ConfigError

OUTPUT_PORT = "output"  # of an operator that declares no outputs
SPARK, BATCH = "spark", "batch"  # parameters that are given, not wired
OUTPUT_MODES = ("append", "update", "complete")
ON_BAD_ROW = ("dead_letter", "drop", "fail")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TOPIC = re.compile(r"[^/\s]+/[^/\s]+\Z")


@dataclass(frozen=True, slots=True)
class Batch:
    """What a sink function is told beside its rows.

    A batch that was cut off is run again with the same rows, ids and `replay=True`: a sink that
    writes under its `window_id` (or `batch_id`) and overwrites is exactly-once.
    """

    window_id: int
    batch_id: int
    replay: bool


@dataclass(frozen=True, slots=True)
class TopicInput:
    """A topic as an input of the application; with a schema its payloads are JSON objects."""

    name: str
    topic: str
    schema: str | None = None
    on_bad_row: str = "drop"
    starting: str = "earliest"
    messages_max: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "topic port")
        check_topic(self.topic)
        _check_choice("on_bad_row", self.on_bad_row, ON_BAD_ROW)
        if self.starting not in ("earliest", "latest") and not self.starting.startswith("{"):
            raise ConfigError(f"starting is earliest, latest or JSON offsets: {self.starting!r}")


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
    output_mode: str = "append"
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name, "operator")
        _check_choice("output_mode", self.output_mode, OUTPUT_MODES)
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
        return f"{self.function.__module__}:{self.function.__qualname__}"


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


def _check_choice(what: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ConfigError(f"{what} is one of {', '.join(values)}: {value!r}")
