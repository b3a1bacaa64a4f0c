"""Publishing the rows of one micro-batch to a topic, from the tasks that made them.

A writer of Spark's own is planned anew for every batch, in processes of its own; a function mapped
over the rows is not, and tells the driver how many rows each task sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.errors import ConfigError
from headrace.spark.options import Target
from headrace.spark.sink import SINK_COLUMNS, check_schema, send

if TYPE_CHECKING:
    import pyarrow as pa


def to_messages(frame: DataFrame, key: str | None = None) -> DataFrame:
    """The frame in the sink's columns: as it is if it has a payload, else rows as JSON objects."""
    if "payload" in frame.columns:
        if key is not None and key != "key":
            frame = frame.withColumn("key", F.col(key).cast("string"))
        extra = [name for name in frame.columns if name not in (*SINK_COLUMNS, key)]
        if extra:
            raise ConfigError(
                f"columns {', '.join(extra)} stand beside payload, which is written alone; "
                "drop them or put them into the payload"
            )
        messages = frame.select(*(name for name in SINK_COLUMNS if name in frame.columns))
    else:
        columns = [F.to_json(F.struct("*")).alias("payload")]
        if key is not None:
            columns.append(F.col(key).cast("string").alias("key"))
        messages = frame.select(*columns)
    check_schema(messages.schema)
    return messages


def publish(messages: DataFrame, target: Target) -> int:
    """Send every row (see `to_messages`); returns how many, once all are acknowledged."""

    def send_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        sent = send(target, batches)
        yield pyarrow.RecordBatch.from_pydict({"rows": [sent]})

    counts = messages.mapInArrow(send_part, "rows bigint").collect()
    return sum(count.rows for count in counts)
