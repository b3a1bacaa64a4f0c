"""The pipeline API: `Application`, its decorators, and the plan they amount to.

This module imports neither pyspark nor numpy; `stages.py` turns an application into DataFrames.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from headrace.errors import ConfigError
from headrace.pipeline.declarations import (
    BATCH,
    OUTPUT_PORT,
    SPARK,
    Batch,
    Stage,
    TopicInput,
    check_name,
    read_signature,
)

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = ["Application", "Batch"]

F = TypeVar("F", bound=Callable[..., Any])
Payload = Mapping[str, Any] | str  # an object, or the text of a payload, right or wrong
Properties = Mapping[str, Mapping[str, Any]]

READ_TOPIC = "headrace.pipeline.stages:read_topic"  # `class` of a topic port in the plan
_TRIGGER = re.compile(r"\d+(\.\d+)? (millisecond|second|minute|hour|day)s?\Z")


class Application:
    """A named pipeline: topics in, operators between, topics and sinks out.

    `trigger` is how often Spark starts a micro-batch. `attributes` are the controller's (for
    example `HEARTBEAT_TIMEOUT_MILLIS=10_000`) and travel in the plan.
    """

    def __init__(self, name: str, *, trigger: str = "1 second", **attributes: Any) -> None:
        if not re.match(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z", name):
            raise ConfigError(f"application name {name!r}: letters, digits, '_', '.', '-'")
        if not _TRIGGER.match(trigger):
            raise ConfigError(
                f"trigger {trigger!r}: write it like '1 second' or '500 milliseconds'"
            )
        _check_attributes(attributes)
        self.name = name
        self.trigger = trigger
        self.attributes = attributes
        self.topics: dict[str, TopicInput] = {}
        self.stages: dict[str, Stage] = {}

    def topic(
        self,
        port: str,
        topic: str,
        *,
        schema: str | None = None,
        on_bad_row: str = "drop",
        starting: str = "earliest",
        messages_max: int | None = None,
    ) -> None:
        """Declare `topic` ("stream/topic") as the input port `port`.

        With a `schema` (Spark's DDL text) payloads are JSON objects and the port has its columns;
        without one it has the source's raw columns. `on_bad_row` says what happens to a payload
        that does not fit: "drop" counts it, "dead_letter" publishes it to `<topic>.dead_letter`,
        "fail" stops the query. `starting` matters once, at the first start; `messages_max`
        bounds a micro-batch.
        """
        self._claim(port)
        self.topics[port] = TopicInput(port, topic, schema, on_bad_row, starting, messages_max)

    @overload
    def operator(self, function: F, /) -> F: ...
    @overload
    def operator(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        expect: Mapping[str, str] | None = None,
        to: str | None = None,
        key: str | None = None,
        output_mode: str = "append",
        **attributes: Any,
    ) -> Callable[[F], F]: ...
    def operator(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        expect: Mapping[str, str] | None = None,
        to: str | None = None,
        key: str | None = None,
        output_mode: str = "append",
        **attributes: Any,
    ) -> Any:
        """Declare a function of DataFrames; its parameters are input ports, its result the output.

        `to` publishes the result to a topic under the column `key`. With `outputs=("ok", "late")`
        it returns a dict of them, wired as `inputs={"rows": "split.ok"}`. `expect` maps a SQL
        condition to what happens to rows that break it.
        """
        _check_attributes(attributes)

        def declare(function: F) -> F:
            ports, properties = read_signature(function, sink=False)
            stage = Stage(
                name=name or function.__name__,
                function=function,
                ports=_wire(name or function.__name__, ports, inputs or {}),
                outputs=tuple(outputs) or (OUTPUT_PORT,),
                properties=properties,
                expect=dict(expect or {}),
                to=to,
                key=key,
                output_mode=output_mode,
                attributes=attributes,
            )
            self._add(stage)
            return function

        return declare if function is None else declare(function)

    @overload
    def sink(self, function: F, /) -> F: ...
    @overload
    def sink(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        output_mode: str = "append",
        **attributes: Any,
    ) -> Callable[[F], F]: ...
    def sink(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        inputs: Mapping[str, str] | None = None,
        output_mode: str = "append",
        **attributes: Any,
    ) -> Any:
        """Declare a function that receives one *batch* DataFrame and `batch` (see `Batch`)."""
        _check_attributes(attributes)

        def declare(function: F) -> F:
            ports, properties = read_signature(function, sink=True)
            if len(ports) != 1:
                raise ConfigError(
                    f"sink {function.__name__} has {len(ports)} inputs {ports}; it takes one "
                    "(and, if it likes, `batch` and `spark`): join them in an operator first"
                )
            stage = Stage(
                name=name or function.__name__,
                function=function,
                ports=_wire(name or function.__name__, ports, inputs or {}),
                sink=True,
                outputs=(),
                properties=properties,
                output_mode=output_mode,
                attributes=attributes,
            )
            self._add(stage)
            return function

        return declare if function is None else declare(function)

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

    def plan(self) -> dict[str, Any]:
        """The logical plan, Apex-shaped: operators with ports, and the streams between them."""
        self.terminals()
        stages = self.ordered()
        streams = [
            {
                "name": feed if port == OUTPUT_PORT else feed.replace(".", "_"),
                "source": {"operatorName": feed.partition(".")[0], "portName": port},
                "sinks": sinks,
                "locality": None,
            }
            for feed, port, sinks in self._feeds(stages)
        ]
        return {
            "name": self.name,
            "attributes": {"APPLICATION_NAME": self.name, "TRIGGER": self.trigger}
            | self.attributes,
            "operators": [_topic_plan(topic) for topic in self.topics.values()]
            + [_stage_plan(stage) for stage in stages],
            "streams": streams,
            "topics": [
                {"name": each.name, "topic": each.topic, "schema": each.schema}
                for each in self.topics.values()
            ],
            "outputs": [
                {
                    "operator": stage.name,
                    "port": OUTPUT_PORT,
                    "topic": stage.to,
                    "key": stage.key,
                    "mode": stage.output_mode,
                }
                for stage in self.terminals()
            ],
        }

    def test(
        self,
        spark: SparkSession,
        *,
        close: bool = False,
        properties: Properties | None = None,
        **rows: Sequence[Payload] | Sequence[Sequence[Payload]],
    ) -> dict[str, list[Row]]:
        """Run the application on rows, without broker or controller; rows per terminal stage.

        A list of lists is a list of windows, processed one after the other. `close=True` ends
        every event-time window, as time would.
        """
        from headrace.pipeline.emulation import emulate

        return emulate(self, spark, rows, close=close, properties=properties or {})

    def _feeds(self, stages: Sequence[Stage]) -> Iterator[tuple[str, str, list[dict[str, str]]]]:
        """Each output that someone reads: (feed, its port, the input ports on it)."""
        feeds: dict[str, list[dict[str, str]]] = {}
        for stage in stages:
            for port, feed in stage.ports.items():
                feeds.setdefault(feed, []).append({"operatorName": stage.name, "portName": port})
        for feed, sinks in feeds.items():
            yield feed, feed.partition(".")[2] or OUTPUT_PORT, sinks

    def _check_feed(self, stage: Stage, port: str, feed: str) -> None:
        name, _, output = feed.partition(".")
        available = self._available(stage.name)
        if feed in available:
            return
        if name in self.stages and not output and len(self.stages[name].outputs) > 1:
            fix = f"name one of its outputs: inputs={{{port!r}: {available_of(self.stages[name])}}}"
            raise ConfigError(f"port {port} of {stage.name}: {name} has several outputs; {fix}")
        raise ConfigError(
            f"port {port} of {stage.name} is fed by {feed!r}, which does not exist; there is "
            f"{', '.join(available) or 'nothing'}. Rename the parameter, or wire it with inputs="
        )

    def _available(self, but: str) -> list[str]:
        names = list(self.topics)
        for stage in self.stages.values():
            if stage.name != but and not stage.sink:
                several = stage.outputs != (OUTPUT_PORT,)
                names += (
                    [f"{stage.name}.{port}" for port in stage.outputs] if several else [stage.name]
                )
        return names

    def _claim(self, name: str) -> None:
        check_name(name, "port")
        if name in self.topics or name in self.stages:
            raise ConfigError(f"{name!r} is declared twice in application {self.name}")
        if name in (SPARK, BATCH):
            raise ConfigError(f"{name!r} is a parameter that functions are given; rename it")

    def _add(self, stage: Stage) -> None:
        self._claim(stage.name)
        self.stages[stage.name] = stage


def available_of(stage: Stage) -> str:
    return " or ".join(repr(f"{stage.name}.{port}") for port in stage.outputs)


def _wire(name: str, ports: tuple[str, ...], inputs: Mapping[str, str]) -> dict[str, str]:
    if not ports:
        raise ConfigError(f"{name} has no input; its parameters name the topics it reads")
    unknown = sorted(set(inputs) - set(ports))
    if unknown:
        raise ConfigError(
            f"inputs= of {name} names {', '.join(unknown)}; its ports are {', '.join(ports)}"
        )
    return {port: inputs.get(port, port) for port in ports}


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    wrong = [name for name in attributes if not name.isupper()]
    if wrong:
        raise ConfigError(
            f"unknown argument {', '.join(wrong)}; attributes are written in capitals, "
            "like MEMORY_MB=2048"
        )


def _topic_plan(topic: TopicInput) -> dict[str, Any]:
    properties = {
        "topic": topic.topic,
        "schema": topic.schema,
        "on_bad_row": topic.on_bad_row,
        "starting": topic.starting,
        "messages_max": topic.messages_max,
    }
    return _operator_plan(topic.name, READ_TOPIC, properties, {}, (), (OUTPUT_PORT,))


def _stage_plan(stage: Stage) -> dict[str, Any]:
    return _operator_plan(
        stage.name,
        stage.reference,
        stage.properties,
        stage.attributes,
        tuple(stage.ports),
        stage.outputs,
    )


def _operator_plan(
    name: str,
    function: str,
    properties: Mapping[str, Any],
    attributes: Mapping[str, Any],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> dict[str, Any]:
    kinds = [(port, "input") for port in inputs] + [(port, "output") for port in outputs]
    return {
        "name": name,
        "class": function,
        "properties": dict(properties),
        "attributes": dict(attributes),
        "ports": [{"name": port, "kind": kind, "attributes": {}} for port, kind in kinds],
    }
