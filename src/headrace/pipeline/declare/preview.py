"""`Application.preview`: the first rows of every stream, for a notebook.

The operators run on *batch* DataFrames, so there is no state and no watermark to wait for: an
aggregation shows what it makes of the rows that were read.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import ConfigError
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.declarations import TopicInput
from headrace.pipeline.declare.inputs import row_schema, source_options
from headrace.pipeline.declare.properties import Properties
from headrace.pipeline.declare.samples import decode, payload_of
from headrace.pipeline.declare.stages import Builder

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
    app: Application,
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
