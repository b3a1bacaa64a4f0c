"""What a container was given to run of an application, read out of its deploy requests.

Operators that share a container are fused. Where a port's rows come from another container the
deploy request names a topic; the schema of its rows is found by building the operators above it on
streams that are empty, which costs no query. A watermark that was declared above is declared again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.declarations import OUTPUT_PORT
from headrace.pipeline.plan import deploy as d
from headrace.wire.umbilical.messages import (
    InputDeployInfo,
    Json,
    OperatorDeployInfo,
    Value,
    Values,
)
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid, format_window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_WATERMARK = "spark.watermarkDelayMs"  # in the metadata of an event-time column


@dataclass(frozen=True, slots=True)
class EdgeInput:
    """What a container reads of others, and which rows of it."""

    topic: str
    mask: int | None = None
    keys: tuple[int, ...] = ()
    activation: int | None = None  # the first batch reads windows after it
    step: bool = False  # window by window, because somebody stops it at a certain one
    application_windows: int = 1  # batches end with every so many
    empty_batch_ms: int = 0  # run one without rows when windows pass for so long


@dataclass(frozen=True, slots=True)
class EdgeOutput:
    """What a container publishes for others, and as whom."""

    topic: str
    publisher: str
    partition: int
    epoch: int
    key: str | None  # "*": all columns
    mask: int = 0  # of its readers


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """The operators of a container, and the edges to and from other containers."""

    app: Application
    infos: Mapping[int, OperatorDeployInfo]
    inputs: Mapping[str, EdgeInput] = field(default_factory=dict)  # by feed, from elsewhere
    outputs: Mapping[str, EdgeOutput] = field(default_factory=dict)  # by feed, for elsewhere

    @property
    def terminals(self) -> set[str]:
        """Operators whose result leaves the application here."""
        return {info.name for info in self.infos.values() if info.query}

    def above(self, names: Iterable[str]) -> dict[str, EdgeInput]:
        """The edges that queries over these operators read."""
        ports = {
            feed
            for name in names
            if name in self.app.stages
            for feed in self.app.stages[name].ports.values()
        }
        return {feed: edge for feed, edge in self.inputs.items() if feed in ports}


def make_container_plan(app: Application, infos: Mapping[int, OperatorDeployInfo]) -> ContainerPlan:
    """Nothing is imported by a name from the wire; the names must be the package's own."""
    app = _positioned(app, infos)
    inputs: dict[str, EdgeInput] = {}
    outputs: dict[str, EdgeOutput] = {}
    for info in infos.values():
        stage = app.stages.get(info.name)
        declared = stage.reference if stage is not None else ""
        if info.name not in app.topics and (stage is None or info.function != declared):
            raise ConfigError(
                f"the controller deploys {info.name} as {info.function!r}, "
                f"the package declares {declared or 'no such operator'}"
            )
        for port in info.inputs:
            if port.buffer_server_host is not None and stage is not None:
                inputs[stage.ports[port.port_name]] = _input(info, port)
        for output in info.outputs:
            if output.buffer_server_host is not None:
                several = output.port_name != OUTPUT_PORT
                feed = f"{info.name}.{output.port_name}" if several else info.name
                outputs[feed] = _output(output.context_attributes, info.run_id)
    return ContainerPlan(app, infos, inputs, outputs)


def _positioned(app: Application, infos: Mapping[int, OperatorDeployInfo]) -> Application:
    """Where a topic is read from is the controller's to say: a replay changes it."""
    starting = {
        info.name: str(info.properties["starting"])
        for info in infos.values()
        if info.name in app.topics and info.properties.get("starting") is not None
    }
    changed = copy.copy(app)
    changed.topics = {
        name: replace(topic, starting=starting.get(name, topic.starting))
        for name, topic in app.topics.items()
    }
    return changed


def _input(info: OperatorDeployInfo, port: InputDeployInfo) -> EdgeInput:
    activation = info.context_attributes.get(d.ACTIVATION)
    count = info.context_attributes.get("APPLICATION_WINDOW_COUNT")
    idle = info.context_attributes.get("IDLE_WINDOW_MILLIS")
    return EdgeInput(
        topic=str(port.context_attributes[d.TOPIC]),
        mask=port.partition_mask,
        keys=port.partition_keys,
        activation=activation if isinstance(activation, int) and activation >= 0 else None,
        step=d.UNTIL in info.context_attributes,
        application_windows=count if isinstance(count, int) else 1,
        empty_batch_ms=idle if isinstance(idle, int) and idle > 0 else 0,
    )


def _output(attributes: Values, epoch: int) -> EdgeOutput:
    key = attributes.get(d.HASH_KEY)
    partition = attributes.get(d.PARTITION, 0)
    mask = attributes.get(d.HASH_MASK, 0)
    assert isinstance(partition, int)
    assert isinstance(mask, int)
    return EdgeOutput(
        topic=str(attributes[d.TOPIC]),
        publisher=str(attributes[d.PUBLISHER]),
        partition=partition,
        epoch=epoch,
        key=str(key) if key is not None else None,
        mask=mask,
    )


def edge_options(
    edge: EdgeInput,
    others: Iterable[str],
    *,
    address: str,
    grid: WindowGrid,
    skip_until: int = NO_WINDOW,
) -> dict[str, str]:
    """Of the source that reads an edge; `others` are topics that the same queries read."""
    options = {
        "windows": "true",
        "address": address,
        "topic": edge.topic,
        "windowMillis": str(grid.width_ms),
        "startWindowMillis": str(grid.start_ms),
    }
    if aligned := [one for one in others if one != edge.topic]:
        options["alignWith"] = ",".join(aligned)
    if edge.mask is not None:
        options["partitionMask"] = str(edge.mask)
        options["partitionKeys"] = ",".join(map(str, edge.keys))
    if edge.activation is not None:
        options["startingWindow"] = format_window(edge.activation)
    if edge.step:
        options["maxWindowsPerTrigger"] = "1"
    if edge.application_windows > 1:
        options["applicationWindowCount"] = str(edge.application_windows)
    if edge.empty_batch_ms:
        options["emptyBatchMillis"] = str(edge.empty_batch_ms)
    if skip_until != NO_WINDOW:
        options["skipUntil"] = format_window(skip_until)
    return options


def read_edges(
    plan: ContainerPlan,
    spark: SparkSession,
    *,
    address: str,
    grid: WindowGrid,
    folder: str,
    skip_until: int = NO_WINDOW,
) -> dict[str, DataFrame]:
    """Streams that other containers make, by feed; rows of windows up to `skip_until` are passed
    over. `folder` is empty, and stays so."""
    if not plan.inputs:
        return {}
    schemas = _schemas(plan, spark, folder)
    topics = sorted({one.topic for one in plan.inputs.values()})
    frames = {}
    for feed, edge in plan.inputs.items():
        options = edge_options(edge, topics, address=address, grid=grid, skip_until=skip_until)
        frame = spark.readStream.format("headrace").options(**options).schema(schemas[feed]).load()
        for each in schemas[feed].fields:
            if _WATERMARK in (each.metadata or {}):
                delay = f"{each.metadata[_WATERMARK]} milliseconds"
                frame = frame.withWatermark(each.name, delay)
        frames[feed] = frame
    return frames


def _schemas(plan: ContainerPlan, spark: SparkSession, folder: str) -> dict[str, StructType]:
    from headrace.pipeline.declare.inputs import row_schema
    from headrace.pipeline.declare.stages import Builder

    def read_nothing(topic: Any, columns: tuple[str, ...]) -> DataFrame:
        return spark.readStream.schema(row_schema(topic, columns)).json(folder)

    builder = Builder(plan.app, spark, read_nothing, properties_of(plan.app, plan.infos))
    builder.build([feed.partition(".")[0] for feed in plan.inputs])
    if builder.problems:
        raise ConfigError(builder.problems[0])
    return {feed: builder.frames[feed].schema for feed in plan.inputs}


def properties_of(
    app: Application, infos: Mapping[int, OperatorDeployInfo]
) -> dict[str, dict[str, Any]]:
    """As the controller has them; a topic's are not the user's."""
    return {
        info.name: {name: plain(value) for name, value in info.properties.items()}
        for info in infos.values()
        if info.name in app.stages
    }


def plain(value: Value) -> Any:
    return json.loads(value.text) if isinstance(value, Json) else value
