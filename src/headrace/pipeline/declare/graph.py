"""The topics, operators and sinks of an application, and how they are wired.

`Application` is this graph with the decorators that people write it with and the calls that run
it. Whoever builds, plans or checks an application takes the graph, and knows nothing of these.
This module imports neither pyspark nor numpy.

Operators have properties, which are declared as keyword-only parameters and set per deployment. A
*live* property may change while its query runs: the next batch is processed with the new value.
Any other value is fixed when the query starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError
from headrace.pipeline.declare.declarations import (
    BATCH,
    SPARK,
    Hook,
    Stage,
    StreamOptions,
    TopicInput,
    check_attributes,
    check_name,
    check_topic,
    feed_of,
)
from headrace.pipeline.plan.spark_conf import check_spark_conf
from headrace.wire.umbilical import attributes as origin

Properties = Mapping[str, Mapping[str, Any]]


class PropertyValues:
    """What every property is set to. Batches read it while a heartbeat changes it, so an operator's
    values are replaced as a whole and never changed."""

    def __init__(self, app: ApplicationGraph, given: Properties | None = None) -> None:
        self._app = app
        self._values = {name: dict(stage.properties) for name, stage in app.stages.items()}
        for operator, values in (given or {}).items():
            checked = {name: check_property(app, operator, name, values[name]) for name in values}
            self._values[operator] = {**self._values[operator], **checked}

    def of(self, stage: Stage) -> dict[str, Any]:
        return dict(self._values[stage.name])

    def set(self, operator: str, name: str, value: Any) -> None:
        """Of a live property; ConfigError says why another one cannot change."""
        checked = check_property(self._app, operator, name, value)
        if name not in self._app.stages[operator].live:
            raise ConfigError(
                f"property {name} of {operator} is not live: it is fixed when the query starts. "
                f"Declare it with live=({name!r},), or deploy with the new value"
            )
        self._values[operator] = {**self._values[operator], name: checked}


def check_property(app: ApplicationGraph, operator: str, name: str, value: Any) -> Any:
    """The value, of the type of the property's default; text is read as that type."""
    if operator not in app.stages:
        raise ConfigError(f"no operator {operator}; there is {', '.join(app.stages) or 'none'}")
    declared = app.stages[operator].properties
    if name not in declared:
        raise ConfigError(
            f"{operator} has no property {name}; it has {', '.join(declared) or 'none'}"
        )
    default = declared[name]
    if default is None or value is None or type(value) is type(default):
        return value
    if isinstance(default, bool):
        words = {"true": True, "false": False}
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
    elif not isinstance(value, bool):
        try:
            if isinstance(default, int) and (not isinstance(value, float) or value.is_integer()):
                return int(value)
            if isinstance(default, float):
                return float(value)
        except ValueError:
            pass
    raise ConfigError(
        f"property {name} of {operator} is {type(default).__name__}, like {default!r}: {value!r}"
    )


_TRIGGER = re.compile(r"\d+(\.\d+)? (millisecond|second|minute|hour|day)s?\Z")


class ApplicationGraph:
    """What an application consists of; checked as it grows, and as a whole by `ordered`."""

    def __init__(
        self,
        name: str,
        *,
        trigger: str = "1 second",
        other_topics: Sequence[str] = (),
        spark_conf: Mapping[str, Any] | None = None,
        **attributes: Any,
    ) -> None:
        if not re.match(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z", name):
            raise ConfigError(f"application name {name!r}: letters, digits, '_', '.', '-'")
        if not _TRIGGER.match(trigger):
            raise ConfigError(
                f"trigger {trigger!r}: write it like '1 second' or '500 milliseconds'"
            )
        check_attributes(f"application {name}", attributes, origin.DAG)
        self.name = name
        self.trigger = trigger
        self.spark_conf = check_spark_conf(name, spark_conf or {})
        self.other_topics = tuple(other_topics)
        for topic in self.other_topics:
            check_topic(topic)
        self.attributes = attributes
        self.topics: dict[str, TopicInput] = {}
        self.stages: dict[str, Stage] = {}
        self.streams: dict[str, StreamOptions] = {}  # by feed
        self.hooks: list[Hook] = []
        self.letters_suffix = ""  # of dead-letter topics: a backfill has its own

    def add_topic(self, topic: TopicInput) -> None:
        self._claim(topic.name)
        self.topics[topic.name] = topic

    def add_stage(self, stage: Stage) -> None:
        self._claim(stage.name)
        self.stages[stage.name] = stage

    def ordered(self) -> list[Stage]:
        """Stages with every stage after those that feed it; checks all the wiring."""
        done: dict[str, Stage] = {}
        path: list[str] = []

        def visit(stage: Stage) -> None:
            if stage.name in done:
                return
            if stage.name in path:
                raise ConfigError(f"operators form a loop: {' -> '.join([*path, stage.name])}")
            path.append(stage.name)
            for port, feed in stage.ports.items():
                self._check_feed(stage, port, feed)
                source = feed.partition(".")[0]
                if source in self.stages:
                    visit(self.stages[source])
            path.pop()
            done[stage.name] = stage

        for stage in self.stages.values():
            visit(stage)
        known = self._available("")
        for feed in self.streams:
            if feed not in known:
                raise ConfigError(f"stream of {feed!r}: there is {', '.join(known)}")
        for hook in self.hooks:
            if hook.operator is not None and hook.operator not in {*self.stages, *self.topics}:
                raise ConfigError(f"committed({hook.operator!r}): there is no such operator")
        return list(done.values())

    def terminals(self) -> list[Stage]:
        """Stages whose result leaves the application: each is one streaming query."""
        stages = [stage for stage in self.ordered() if stage.sink or stage.to is not None]
        if not stages:
            raise ConfigError(
                f"application {self.name} writes nothing: give an operator to='stream/topic' "
                "or declare an @app.sink"
            )
        return stages

    def _check_feed(self, stage: Stage, port: str, feed: str) -> None:
        name, _, output = feed.partition(".")
        available = self._available(stage.name)
        if feed in available:
            return
        if name in self.stages and not output and len(self.stages[name].outputs) > 1:
            fix = f"name one of its outputs: inputs={{{port!r}: {_outputs_of(self.stages[name])}}}"
            raise ConfigError(f"port {port} of {stage.name}: {name} has several outputs; {fix}")
        raise ConfigError(
            f"port {port} of {stage.name} is fed by {feed!r}, which does not exist; there is "
            f"{', '.join(available) or 'nothing'}. Rename the parameter, or wire it with inputs="
        )

    def _available(self, but: str) -> list[str]:
        names = list(self.topics)
        for stage in self.stages.values():
            if stage.name != but and not stage.sink:
                names += [feed_of(stage, port) for port in stage.outputs]
        return names

    def _claim(self, name: str) -> None:
        check_name(name, "port")
        if name in self.topics or name in self.stages:
            raise ConfigError(f"{name!r} is declared twice in application {self.name}")
        if name in (SPARK, BATCH):
            raise ConfigError(f"{name!r} is a parameter that functions are given; rename it")


def _outputs_of(stage: Stage) -> str:
    return " or ".join(repr(f"{stage.name}.{port}") for port in stage.outputs)
