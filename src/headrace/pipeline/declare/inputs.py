"""How an application's topics are read: from the broker, or as rows that are given by hand.

From the broker the connector reads them. With a schema it decodes payloads itself, several times
as fast as Spark's `from_json`; a payload that does not fit is a row of nulls with its bytes in the
column CORRUPT. Rows given by hand (`Application.test`, `Application.preview`) are lines of text
files, one payload each, which the connector's own code decodes in Spark's workers: a sample fits
or does not fit exactly as a message would.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import ConfigError
from headrace.pipeline.declare.declarations import TopicInput

if TYPE_CHECKING:
    import pyarrow as pa

    ReadTopic = Callable[[TopicInput, tuple[str, ...]], DataFrame]
    """Rows of a topic: the named columns of the message itself, the fields of its schema if it has
    one, and then CORRUPT."""

CORRUPT = "_corrupt"
MESSAGE_TYPES = {
    "stream": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "origin_timestamp": "timestamp",
    "id": "string",
    "key": "binary",
    "headers": "map<string,binary>",
    "payload": "binary",
}


def message_columns(topic: TopicInput) -> tuple[str, ...]:
    """What the port has besides the fields of the schema; without one, everything."""
    return tuple(MESSAGE_TYPES) if topic.schema is None else topic.columns


def row_schema(topic: TopicInput, columns: tuple[str, ...]) -> str:
    """What `ReadTopic` returns, as DDL."""
    parts = [f"`{name}` {MESSAGE_TYPES[name]}" for name in columns]
    if topic.schema is not None:
        parts += [topic.schema, f"`{CORRUPT}` binary"]
    return ", ".join(parts)


def source_options(topic: TopicInput, columns: tuple[str, ...]) -> dict[str, str]:
    """Of `format("headrace")`, without address and positions."""
    options = {"topic": topic.topic}
    if topic.schema is not None:
        options["payloadFormat"] = "json"
    if columns:
        options["columns"] = ",".join(columns)
    return options


def read_stream(
    spark: SparkSession,
    topic: TopicInput,
    columns: tuple[str, ...],
    *,
    address: str,
    skip_backlog: bool = False,
) -> DataFrame:
    """The topic as a streaming DataFrame, from the broker at `address`. Several queries may read
    it; how far each has come its container stores (`query_positions`)."""
    reader = (
        spark.readStream.format("headrace")
        .option("address", address)
        .option("startingOffsets", topic.starting)
        .option("onDataLoss", topic.on_data_loss)
        .options(**source_options(topic, columns))
    )
    if skip_backlog:
        reader = reader.option("skipBacklog", "true")
    if topic.ending is not None:
        reader = reader.option("endingOffsets", topic.ending)
    if topic.messages_max is not None:
        reader = reader.option("maxMessagesPerTrigger", topic.messages_max)
    if topic.schema is not None:
        reader = reader.schema(row_schema(topic, columns))
    return reader.load()


def payload_of(row: Any) -> str:
    text = row if isinstance(row, str) else json.dumps(row, default=str)
    if "\n" in text:
        raise ConfigError(f"a payload given by hand is one line: {text!r}")
    return text


def write_window(folder: Path, index: int, window: Sequence[Any]) -> None:
    """One file per window; Spark reads the oldest file first."""
    path = folder / f"{index:06}.txt"
    path.write_text("".join(f"{payload_of(row)}\n" for row in window))
    os.utime(path, (index + 1, index + 1))


def windows_of(rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """A list of lists is a list of windows; any other is one window."""
    several = bool(rows) and isinstance(rows[0], list | tuple)
    return rows if several else [rows]


def read_windows(
    spark: SparkSession, folder: Path, topic: TopicInput, columns: tuple[str, ...]
) -> DataFrame:
    """The files of a folder as a stream, one window per micro-batch."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
    return decode(lines, topic, columns)


def decode(lines: DataFrame, topic: TopicInput, columns: tuple[str, ...]) -> DataFrame:
    """Lines of text as rows of the topic; of the message only its place and payload are known."""
    stream, name = topic.topic.split("/")
    known: dict[str, Any] = {"stream": F.lit(stream), "topic": F.lit(name), "partition": F.lit(0)}
    known["payload"] = F.col("value").cast("binary")
    message = [
        known.get(column, F.lit(None)).cast(MESSAGE_TYPES[column]).alias(column)
        for column in columns
    ]
    if topic.schema is None:
        return lines.select(*message)
    schema = StructType.fromDDL(row_schema(topic, columns))
    fields = StructType([each for each in schema if each.name not in columns])
    decoder = PayloadDecoder(to_arrow_schema(fields, timezone="UTC"), columns)
    payload = F.col("value").cast("binary").alias(CORRUPT)
    return lines.select(*message, payload).mapInArrow(partial(decode_batches, decoder), schema)


@dataclass(frozen=True, slots=True)
class PayloadDecoder:
    """Turns batches of (message columns, payload) into rows; small and picklable."""

    fields: pa.Schema
    columns: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        from headrace.client.arrow import to_area
        from headrace.spark.formats.options import FormatOptions
        from headrace.spark.formats.typed import TypedRows

        rows = TypedRows("json", FormatOptions(), self.fields, stream="", topic="", partition=0)
        (decoded,) = rows.read(*to_area(batch.column(CORRUPT), None, None))
        own = [batch.column(name) for name in self.columns]
        return pa.RecordBatch.from_arrays(
            [*own, *decoded.columns], names=[*self.columns, *decoded.schema.names]
        )


def decode_batches(decoder: PayloadDecoder, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        if batch.num_rows:
            yield decoder(batch)
