"""How an application's topics are read: options and columns of the connector.

With a schema the connector decodes payloads itself, several times as fast as Spark's `from_json`.
A payload that does not fit is a row of nulls with its bytes in the column CORRUPT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.pipeline.declare.declarations import TopicInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
