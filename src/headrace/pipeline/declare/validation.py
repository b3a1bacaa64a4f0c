"""`Application.validate`: everything is built on empty streams, and all that is wrong is told."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import ConfigError, HeadraceError
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.declarations import TopicInput
from headrace.pipeline.declare.inputs import row_schema
from headrace.pipeline.declare.inspection import check_query, plan_query
from headrace.pipeline.declare.properties import Properties
from headrace.pipeline.declare.stages import Builder
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.pipeline.shared_storage import storage_problem
from headrace.runtime.system import system_runtime

MOUNTS = "/proc/self/mounts"


def validate(
    app: Application,
    spark: SparkSession | None,
    *,
    properties: Properties,
    master: str | None = None,
    application_path: str | None = None,
) -> dict[str, str]:
    make_physical_plan(LogicalPlan.from_json(app.plan()))  # wiring, before Spark is started
    problems = []
    if master is not None and application_path is not None:
        mounts = system_runtime().disk.read(MOUNTS).decode(errors="replace")
        problem = storage_problem(master, application_path, mounts)
        problems += [problem] if problem else []
    with _session(app, spark) as session, empty_streams(session) as read_topic:
        builder = Builder(app, session, read_topic, properties)
        builder.build()
        problems += builder.problems + _check_terminals(app, builder, session)
        schemas = {feed: _ddl(frame.schema) for feed, frame in builder.frames.items()}
    if problems:
        several = f"application {app.name} has {len(problems)} problems:\n  "
        raise ConfigError((several if len(problems) > 1 else "") + "\n  ".join(problems))
    return schemas


class EmptyStreams:
    """Topics without messages: a stream with the right columns that is never started."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark, self._folder = spark, folder

    def __call__(self, topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
        schema = StructType.fromDDL(row_schema(topic, columns))
        if topic.schema is not None:
            _check_decodable(topic, columns, schema)
        return self._spark.readStream.schema(schema).format("parquet").load(self._folder)


@contextlib.contextmanager
def empty_streams(spark: SparkSession) -> Iterator[EmptyStreams]:
    with tempfile.TemporaryDirectory(prefix="headrace-empty-") as folder:
        yield EmptyStreams(spark, folder)


def _check_decodable(topic: TopicInput, columns: tuple[str, ...], schema: StructType) -> None:
    from headrace.spark.formats.options import FormatOptions
    from headrace.spark.formats.typed import TypedRows

    stream, name = topic.topic.split("/")
    arrow = to_arrow_schema(schema, timezone="UTC")
    try:
        TypedRows("json", FormatOptions(columns), arrow, stream=stream, topic=name, partition=0)
    except ConfigError as error:
        raise ConfigError(f"schema of {topic.name}: {error}") from error


def _check_terminals(app: Application, builder: Builder, spark: SparkSession) -> list[str]:
    problems = []
    for stage in app.terminals():
        feed = next(iter(stage.ports.values())) if stage.sink else stage.name
        if feed not in builder.frames:
            continue  # what stands above it was told already
        try:
            query = builder.query(stage)
            check_query(query, spark)
            plan_query(query)
        except HeadraceError as error:
            problems.append(str(error))
    return problems


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in schema)


@contextlib.contextmanager
def _session(app: Application, spark: SparkSession | None) -> Iterator[SparkSession]:
    running = spark or SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    from headrace.spark.session.session import session

    started = session(f"{app.name} (validation)", master="local[1]", conf=app.spark_conf)
    try:
        yield started
    finally:
        started.stop()
