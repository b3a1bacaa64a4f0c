"""Publishing the rows of one micro-batch to a topic, from the tasks that made them.

A writer of Spark's own is planned anew for every batch, in processes of its own; a function mapped
over the rows is not, and tells the driver how many rows each task sent.

A frame with a `payload` is messages already. Any other frame's rows become JSON objects, of all its
columns, as the sink writes them; whatever they are called, none has a meaning of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from headrace.errors import ConfigError
from headrace.net.credentials import exactly
from headrace.spark.options import SinkOptions
from headrace.spark.server import Window, lend_writing
from headrace.spark.sink.sink import SINK_COLUMNS, Delivered, check_schema, commit, write

_KEY = "_headrace_key"  # beside columns that are the payload
_SPECIAL = frozenset(".`")  # in a column's name


def check_messages(schema: StructType, key: str | None = None) -> None:
    """ConfigError for a frame that cannot be published."""
    if "payload" not in schema.names:
        from headrace.spark.formats.encoding import check_json

        if not schema.names:
            raise ConfigError("the frame has no column to publish")
        for each in to_arrow_schema(schema, timezone="UTC"):
            check_json(each.type, each.name)
        return
    extra = [name for name in schema.names if name not in (*SINK_COLUMNS, key)]
    if extra:
        raise ConfigError(
            f"columns {', '.join(extra)} stand beside payload, which is written alone; "
            "drop them or put them into the payload"
        )
    check_schema(StructType([schema[name] for name in _kept(schema.names, key)]))


def publish(frame: DataFrame, options: SinkOptions, window: Window, key: str | None = None) -> int:
    """Publish every row as one window, under the key in that column; returns how many there are.

    A window that was published before is not published again, whatever its rows are now.
    """
    check_messages(frame.schema, key)
    names = None if "payload" in frame.columns else frame.columns
    lent = replace(options, target=lend_writing(options.target, exactly(window.publisher)))

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        messages = batches if names is None else (_encoded(batch, names) for batch in batches)
        delivered = msgspec.msgpack.encode(write(lent, messages, window))
        yield pyarrow.RecordBatch.from_pydict({"delivered": [delivered]})

    sent = _messages(frame, key) if names is None else _rows(frame, key)
    rows = sent.mapInArrow(write_part, "delivered binary").collect()
    delivered = [msgspec.msgpack.decode(row.delivered, type=Delivered) for row in rows]
    commit(options, delivered)
    return sum(each.rows for each in delivered)


def _kept(columns: list[str], key: str | None) -> list[str]:
    """The message's columns of a frame that has a payload, without a key that another replaces."""
    return [name for name in columns if name in SINK_COLUMNS and (name != "key" or not key)]


def _messages(frame: DataFrame, key: str | None) -> DataFrame:
    return frame.select(*_kept(frame.columns, key), *_key(frame, key, "key"))


def _rows(frame: DataFrame, key: str | None) -> DataFrame:
    """The columns of the payload, and the key behind them if there is one."""
    names = {name.lower() for name in frame.columns}
    if len(names) < len(frame.columns) or any(_SPECIAL & set(name) for name in names):
        places = [str(i) for i in range(len(frame.columns))]  # mapInArrow looks columns up by name
        key = None if key is None else places[frame.columns.index(key)]
        frame = frame.toDF(*places)
    return frame if key is None else frame.select("*", *_key(frame, key, _KEY))


def _key(frame: DataFrame, key: str | None, name: str) -> list[Column]:
    if key is None:
        return []
    column = F.col(f"`{key}`")
    is_binary = isinstance(frame.schema[key].dataType, BinaryType)
    return [(column if is_binary else column.cast("string")).alias(name)]


def _encoded(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    import pyarrow

    from headrace.spark.formats.encoding import json_objects

    rows = batch.select(range(len(names))).rename_columns(names)
    keys = batch.columns[len(names) :]
    return pyarrow.RecordBatch.from_arrays(
        [json_objects(rows), *keys], names=["payload", "key"][: 1 + len(keys)]
    )
