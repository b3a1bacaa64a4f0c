"""From an application to DataFrames: every stage's function is called once, each terminal stage
becomes one streaming query in which everything above it is fused.

Where the rows come from is the caller's: the container passes the headrace source, a test passes
files. So a test runs the same parsing, the same conditions and the same operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.errors import ConfigError
from headrace.pipeline.application import Application, Properties
from headrace.pipeline.declarations import (
    BATCH,
    OUTPUT_PORT,
    SPARK,
    Batch,
    Stage,
    TopicInput,
)
from headrace.spark.options import COLUMNS

ReadTopic = Callable[[TopicInput, tuple[str, ...]], DataFrame]
"""Raw rows of a topic, with at least these columns of the source's raw schema."""

_BAD = "_corrupt"  # where Spark's JSON parser leaves a payload that does not fit the schema


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query: a terminal stage with all that feeds it."""

    name: str
    frame: DataFrame
    mode: str
    topic: str | None = None  # where the rows go, or
    key: str | None = None
    stage: Stage | None = None  # the sink function they are given to, with its
    properties: Mapping[str, Any] = field(default_factory=dict)
    operators: tuple[str, ...] = ()  # fused in it, upstream first


def build_queries(
    app: Application,
    spark: SparkSession,
    read_topic: ReadTopic,
    properties: Properties | None = None,
) -> list[Query]:
    """Call every operator; ConfigError with the remedy for what Spark cannot run."""
    terminals = app.terminals()
    used = _upstream(app, terminals)
    frames: dict[str, DataFrame] = {}
    queries: list[Query] = []
    for topic in app.topics.values():
        if topic.name in used:
            frames[topic.name], rejected = _parse(topic, read_topic)
            queries += rejected
    for stage in app.ordered():
        if stage.name not in used:
            continue
        inputs = {port: frames[feed] for port, feed in stage.ports.items()}
        values = _properties(stage, (properties or {}).get(stage.name, {}))
        if stage.sink:
            (frame,) = inputs.values()
            queries.append(_query(app, stage, frame, values))
            continue
        results = _call(stage, inputs, spark, values)
        for port, result in results.items():
            frame, rejected = _expect(app, stage, port, result)
            queries += rejected
            frames[stage.name if port == OUTPUT_PORT else f"{stage.name}.{port}"] = frame
        if stage.to is not None:
            queries.append(_query(app, stage, frames[stage.name], values))
    for query in queries:
        check_query(query, spark)
    return queries


def give(query: Query, frame: DataFrame, batch: Batch) -> None:
    """Call a sink function with its one input and what else it asks for."""
    assert query.stage is not None
    (port,) = query.stage.ports
    extra = {BATCH: batch, SPARK: frame.sparkSession}
    wanted = inspect.signature(query.stage.function).parameters
    arguments = {name: value for name, value in extra.items() if name in wanted}
    query.stage.function(**{port: frame}, **query.properties, **arguments)


def check_query(query: Query, spark: SparkSession) -> None:
    """What Spark would refuse at start, refused before anything has started."""
    jvm: Any = spark.sparkContext._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = getattr(modes, query.mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(query.frame._jdf.queryExecution().analyzed(), mode)
    except AnalysisException as error:
        raise ConfigError(f"{query.name} cannot run: {_remedy(query, error)}") from error


def _remedy(query: Query, error: AnalysisException) -> str:
    text = str(error).split("\n", 1)[0]
    if query.mode == "append" and "watermark" in text.lower():
        return (
            "it aggregates in append mode without a watermark, so Spark never knows when a group "
            'is complete. Add .withWatermark("<event time column>", "2 minutes") before the '
            'aggregation, or declare output_mode="update" to publish every change'
        )
    if query.mode == "complete":
        return f'{text}. output_mode="complete" needs an aggregation; use "append"'
    return text


def _upstream(app: Application, terminals: list[Stage]) -> dict[str, None]:
    """Names of all that the terminals need, upstream first; the rest is never read."""
    names: dict[str, None] = {}

    def visit(stage: Stage) -> None:
        for feed in stage.ports.values():
            source = feed.partition(".")[0]
            if source in app.stages:
                visit(app.stages[source])
            else:
                names[source] = None
        names[stage.name] = None

    for stage in terminals:
        visit(stage)
    return names


def _query(
    app: Application, stage: Stage, frame: DataFrame, properties: Mapping[str, Any]
) -> Query:
    if stage.key is not None and stage.key not in frame.columns:
        raise ConfigError(
            f"key {stage.key!r} of {stage.name} is not among its columns {', '.join(frame.columns)}"
        )
    return Query(
        name=stage.name,
        frame=frame,
        mode=stage.output_mode,
        topic=stage.to,
        key=stage.key,
        stage=stage if stage.sink else None,
        properties=properties,
        operators=tuple(_upstream(app, [stage])),
    )


def _properties(stage: Stage, given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(stage.properties))
    if unknown:
        raise ConfigError(
            f"{stage.name} has no property {', '.join(unknown)}; it has "
            f"{', '.join(stage.properties) or 'none'}"
        )
    return {**stage.properties, **given}


def _call(
    stage: Stage, inputs: Mapping[str, DataFrame], spark: SparkSession, values: Mapping[str, Any]
) -> dict[str, DataFrame]:
    """The stage's outputs by port. The function runs now, once; Spark runs what it returned."""
    arguments: dict[str, Any] = {**inputs, **values}
    if SPARK in inspect.signature(stage.function).parameters:
        arguments[SPARK] = spark
    result = stage.function(**arguments)
    results = {OUTPUT_PORT: result} if stage.outputs == (OUTPUT_PORT,) else result
    if not isinstance(results, dict) or set(results) != set(stage.outputs):
        raise ConfigError(f"{stage.name} must return a dict with {', '.join(stage.outputs)}")
    for port, frame in results.items():
        if not isinstance(frame, DataFrame):
            raise ConfigError(
                f"{stage.name} returned {type(frame).__name__} for {port}, not a DataFrame; "
                "is a `return` missing?"
            )
    return {port: results[port] for port in stage.outputs}


def _parse(topic: TopicInput, read_topic: ReadTopic) -> tuple[DataFrame, list[Query]]:
    """The port's rows, and the query of those that do not fit its schema, if it has one."""
    if topic.schema is None:
        return read_topic(topic, COLUMNS), []
    raw = read_topic(topic, ("payload",))
    row = F.from_json(
        F.col("payload").cast("string"),
        f"{topic.schema}, {_BAD} string",
        {"columnNameOfCorruptRecord": _BAD},
    )
    # A payload that is not an object at all gives no row; one that does not fit leaves its text.
    bad = F.col("row").isNull() | F.col(f"row.{_BAD}").isNotNull()
    parsed = raw.select("payload", row.alias("row")).withColumn("bad", bad)
    if topic.on_bad_row == "fail":
        message = F.concat(F.lit(f"bad row in {topic.topic}: "), F.col("payload").cast("string"))
        parsed = parsed.withColumn("bad", F.when(bad, F.raise_error(message)).otherwise(bad))
    observed = parsed.observe(
        f"{topic.name}_{OUTPUT_PORT}",
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col("bad")).alias("bad_rows"),
    )
    good = observed.filter(~F.col("bad")).select("row.*").drop(_BAD)
    if topic.on_bad_row != "dead_letter":
        return good, []
    rejected = parsed.filter(F.col("bad")).select("payload")
    return good, [
        Query(
            name=f"{topic.name}_dead_letter",
            frame=rejected,
            mode="append",
            topic=f"{topic.topic}.dead_letter",
            operators=(topic.name,),
        )
    ]


def _expect(
    app: Application, stage: Stage, port: str, frame: DataFrame
) -> tuple[DataFrame, list[Query]]:
    """Rows that meet every condition, and the query of those that break one set to dead_letter."""
    rejected: list[Query] = []
    for condition, action in stage.expect.items():
        # A condition that is NULL did not hold: a missing quantity is not a positive one.
        holds = F.coalesce(F.expr(condition), F.lit(False))
        if action == "fail":
            message = F.lit(f"{stage.name} expects {condition}")
            frame = frame.filter(F.when(holds, F.lit(True)).otherwise(F.raise_error(message)))
            continue
        if action == "dead_letter":
            stream = next(iter(app.topics.values())).topic.split("/")[0]
            number = f"_{len(rejected) + 1}" if rejected else ""
            suffix = "" if port == OUTPUT_PORT else f"_{port}"
            rejected.append(
                Query(
                    name=f"{stage.name}{suffix}_dead_letter{number}",
                    frame=frame.filter(~holds),
                    mode="append",
                    topic=f"{stream}/{stage.name}.dead_letter",
                    operators=tuple(_upstream(app, [stage])),
                )
            )
        frame = frame.filter(holds)
    return frame, rejected
