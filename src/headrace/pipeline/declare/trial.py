"""How an application is tried without a controller: `test`, `preview` and `validate`.

All three run the parsing, conditions and operators that run in production.

* `test` runs the queries on given rows. Every window of a port is a file of payloads, which
  Spark's file stream reads one window per micro-batch; sink functions are called, stores (tables,
  files) are left alone, and the caller gets the rows that they would get.
* `preview` shows a notebook the first rows of every stream. Its operators run on *batch*
  DataFrames, so there is no state and no watermark to wait for: an aggregation shows what it makes
  of the rows that were read.
* `validate` builds everything on empty streams and tells all that is wrong.
"""

from __future__ import annotations

import contextlib
import html
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import ConfigError, HeadraceError
from headrace.pipeline.declare.declarations import TopicInput
from headrace.pipeline.declare.graph import ApplicationGraph, Properties
from headrace.pipeline.declare.inputs import (
    decode,
    payload_of,
    read_windows,
    row_schema,
    source_options,
    windows_of,
    write_window,
)
from headrace.pipeline.declare.queries import check_query, plan_query, store_settings
from headrace.pipeline.declare.stages import Builder, Query, build_queries, give
from headrace.pipeline.declare.stores import Batch, Store
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.logical_json import to_plan
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.pipeline.shared_files import storage_problem
from headrace.runtime.system import system_runtime
from headrace.spark.session.queries import settings

END_OF_INPUT = 999_999  # number of the empty window that lets a finished query run once more
END_OF_TIME_MS = 253_402_300_799_000  # the last second of the year 9999
TIMEOUT_SECONDS = 120

_CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"


def emulate(
    app: ApplicationGraph,
    spark: SparkSession,
    rows: Mapping[str, Sequence[Any]],
    *,
    close: bool,
    properties: Properties,
) -> dict[str, list[Row]]:
    unknown = sorted(set(rows) - set(app.topics))
    if unknown:
        raise ConfigError(
            f"no topic port {', '.join(unknown)}; there is {', '.join(app.topics) or 'none'}"
        )
    with tempfile.TemporaryDirectory(prefix="headrace-test-") as folder, _no_checksums(spark):
        for name in app.topics:
            source = Path(folder, "in", name)
            source.mkdir(parents=True)
            for index, window in enumerate(windows_of(rows.get(name, ()))):
                write_window(source, index, window)

        def read_topic(topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
            return read_windows(spark, Path(folder, "in", topic.name), topic, columns)

        queries = [
            (query, Path(folder, "checkpoints", query.name))
            for query in build_queries(app, spark, read_topic, properties)
        ]
        results = {query.name: _run(query, checkpoint) for query, checkpoint in queries}
        if close:
            for name in app.topics:
                write_window(Path(folder, "in", name), END_OF_INPUT, ())
            for query, checkpoint in queries:
                _end_event_time(checkpoint)
                results[query.name] += _run(query, checkpoint)
        return results


def _run(query: Query, checkpoint: Path) -> list[Row]:
    """Process what is there and not processed yet; the rows that came out."""
    collected: list[Row] = []

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        frame = query.finish(frame)
        collected.extend(frame.collect())
        if query.stage is not None and not isinstance(query.stage.function, Store):
            give(query, frame, Batch(window_id=batch_id, batch_id=batch_id, replay=False))

    with settings(query.frame.sparkSession, store_settings(query.frame)):
        running = (
            query.frame.writeStream.outputMode(query.mode)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(on_batch)
            .start()
        )
    if not running.awaitTermination(TIMEOUT_SECONDS):
        running.stop()
        raise ConfigError(f"{query.name} did not finish in {TIMEOUT_SECONDS} s")
    return collected


def _end_event_time(checkpoint: Path) -> None:
    """Move the watermark to the end of time, as if every source had sent something that late.

    The commit log holds the watermark that the next micro-batch starts with. So nothing has to be
    invented that could show up in the results: an empty window then closes every open group.
    """
    commits = [path for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    version, metadata = last.read_text().split("\n", 1)
    state = json.loads(metadata)
    state["nextBatchWatermarkMs"] = END_OF_TIME_MS
    last.write_text(f"{version}\n{json.dumps(state)}")
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@contextlib.contextmanager
def _no_checksums(spark: SparkSession) -> Iterator[None]:
    """Spark may guard checkpoint files by checksums, which a changed commit would fail."""
    before = spark.conf.get(_CHECKSUMS)
    spark.conf.set(_CHECKSUMS, "false")
    try:
        yield
    finally:
        spark.conf.set(_CHECKSUMS, before)


CELL_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[tuple[str, str], ...]  # name, type
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """Tables by stream ("valid", "split.ok"), as a notebook shows them, and the `frames` behind."""

    tables: Mapping[str, Table]
    problems: Sequence[str] = ()
    frames: Mapping[str, DataFrame] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> DataFrame:
        return self.frames[name]

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(problem)}</b></p>" for problem in self.problems]
        for name, table in self.tables.items():
            head = "".join(
                f"<th>{html.escape(column)}<br><small>{html.escape(kind)}</small></th>"
                for column, kind in table.columns
            )
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row) + "</tr>"
                for row in table.rows
            )
            parts.append(
                f"<h4>{html.escape(name)}</h4>"
                f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            )
        return "\n".join(parts)

    def __str__(self) -> str:
        parts = list(self.problems)
        for name, table in self.tables.items():
            columns = ", ".join(f"{column} {kind}" for column, kind in table.columns)
            rows = ["  " + "  ".join(map(_cell, row)) for row in table.rows]
            parts.append("\n".join([f"{name} ({columns})", *rows]))
        return "\n\n".join(parts)


def preview(
    app: ApplicationGraph,
    spark: SparkSession,
    rows: Mapping[str, Sequence[Any]],
    *,
    limit: int,
    address: str | None,
    properties: Properties,
) -> Preview:
    if unknown := sorted(set(rows) - set(app.topics)):
        raise ConfigError(
            f"no topic port {', '.join(unknown)}; there is {', '.join(app.topics) or 'none'}"
        )

    def read_topic(topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
        if topic.name in rows:
            lines = [(payload_of(row),) for row in rows[topic.name][:limit]]
            return decode(spark.createDataFrame(lines, "value string"), topic, columns)
        return _read_newest(spark, topic, columns, limit=limit, address=address)

    builder = Builder(app, spark, read_topic, properties)
    builder.build()
    problems, tables = list(builder.problems), {}
    for feed, frame in builder.frames.items():
        try:
            tables[feed] = _take(frame, limit)
        except PySparkException as error:
            problems.append(f"{feed}: {str(error).splitlines()[0]}")
    return Preview(tables, problems, builder.frames)


def _take(frame: DataFrame, limit: int) -> Table:
    columns = tuple((each.name, each.dataType.simpleString()) for each in frame.schema)
    return Table(columns, tuple(tuple(row) for row in frame.limit(limit).collect()))


def _read_newest(
    spark: SparkSession,
    topic: TopicInput,
    columns: tuple[str, ...],
    *,
    limit: int,
    address: str | None,
) -> DataFrame:
    """The newest messages of every partition: a Python source reads all it is told to, whatever
    `limit()` says later."""
    from headrace.spark.options import parse_source
    from headrace.spark.server import connect

    options = source_options(topic, columns) | ({"address": address} if address else {})
    parsed = parse_source(options, streaming=False)
    server = connect(parsed.target)
    described = server.remote.reading.describe(parsed.target, parsed.topics, sizes=False)
    state, _ = server.run(described)
    start = {
        str(each.partition): max(each.start, each.end - limit) for _, _, each in state.partitions()
    }
    reader = spark.read.format("headrace").options(**options)
    reader = reader.option("startingOffsets", json.dumps(start))
    if topic.schema is not None:
        reader = reader.schema(row_schema(topic, columns))
    return reader.load()


def _cell(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
    cut = len(text) > CELL_CHARACTERS_MAX
    return text[: CELL_CHARACTERS_MAX - 1] + "…" if cut else text


MOUNTS = "/proc/self/mounts"


def validate(
    app: ApplicationGraph,
    spark: SparkSession | None,
    *,
    properties: Properties,
    master: str | None = None,
    application_path: str | None = None,
) -> dict[str, str]:
    make_physical_plan(LogicalPlan.from_json(to_plan(app)))  # wiring, before Spark is started
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


def _check_terminals(app: ApplicationGraph, builder: Builder, spark: SparkSession) -> list[str]:
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
def _session(app: ApplicationGraph, spark: SparkSession | None) -> Iterator[SparkSession]:
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
