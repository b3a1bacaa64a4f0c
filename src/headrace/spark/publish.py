"""Publishing the rows of one micro-batch to a topic, from the tasks that made them.

A writer of Spark's own is planned anew for every batch, in processes of its own; a function mapped
over the rows is not, and tells the driver how many rows each task sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.errors import ConfigError
from headrace.spark.options import SinkOptions
from headrace.spark.sink import SINK_COLUMNS, check_schema, commit, write
from headrace.spark.windows import Delivered, Window

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


def publish(messages: DataFrame, options: SinkOptions, window: Window) -> int:
    """Publish every row (see `to_messages`) as one window; returns how many rows it has.

    A window that was published before is not published again, whatever its rows are now.
    """

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        delivered = msgspec.msgpack.encode(write(options, batches, window))
        yield pyarrow.RecordBatch.from_pydict({"delivered": [delivered]})

    rows = messages.mapInArrow(write_part, "delivered binary").collect()
    delivered = [msgspec.msgpack.decode(row.delivered, type=Delivered) for row in rows]
    commit(options, delivered)
    return sum(each.rows for each in delivered)
