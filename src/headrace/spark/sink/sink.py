"""Writing to a topic with Spark: Arrow batches become SEND_MESSAGES requests, whole at a time.

Columns: `payload` (string or binary), `key`, `partition` (int), `headers` (map<string,binary>). The
other columns of a frame without `payload` are its payload, as JSON, Avro or Arrow (`formats`); but
for a frame as Spark's Kafka sink takes it, whose `value` is the payload (`kafka_style`).
Rows with a key go to the partition that any Iggy client would choose for it.

Delivery is exactly once into Headrace: what the tasks of a batch staged is published as one window
when the batch commits (`windows.py`). A plain Iggy server gets every row at least once.

Publishing the rows of one micro-batch to a topic, from the tasks that made them.

A writer of Spark's own is planned anew for every batch, in processes of its own; a function mapped
over the rows is not, and tells the driver how many rows each task sent.

A frame with a `payload` is messages already. Any other frame's rows become JSON objects, of all its
columns, as the sink writes them; whatever they are called, none has a meaning of its own.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from headrace.client.arrow import Homes, by_partition, to_area
from headrace.errors import ConfigError, HeadraceError, UnavailableError
from headrace.net.credentials import exactly
from headrace.spark.formats.encoding import RowEncoder
from headrace.spark.kafka_style import SINK_TYPES, from_kafka, is_message
from headrace.spark.lending import lend_writing, topic_of
from headrace.spark.options import SinkOptions, Target, parse_sink
from headrace.spark.remote import Remote, Window
from headrace.spark.server import connect
from headrace.spark.settled import settle
from headrace.spark.sink.windows import (
    Delivered,
    Delivering,
    Piece,
    abandon,
    close,
    publishes_windows,
)
from headrace.wire.iggy.batch import split

# Of one request; more rows become several. A broker receives up to 2 MiB straight into their place.
SEND_BYTES_MAX = 7 << 18
ABORT_SECONDS = 10.0  # a write that failed has waited long enough
SINK_COLUMNS = ("payload", "key", "partition", "headers")
_TYPES = {
    "payload": ("string", "binary"),
    "key": ("string", "binary"),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "headers": ("map<string,binary>",),
}

log = logging.getLogger(__name__)
_told: set[str] = set()


@dataclass
class Sent(WriterCommitMessage):  # type: ignore[misc]  # pyspark's classes are untyped
    """What one task wrote."""

    delivered: Delivered


class TopicWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark's classes are untyped
    """One window of a publisher that nobody else is."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("a topic cannot be overwritten; write with mode('append')")
        self._options = parse_sink(options)
        self._window = Window(f"spark/job/{uuid.uuid4()}", "1", 0, last=True)
        check_schema(schema, self._options)
        self._lent = _lent(self._options, exactly(self._window.publisher))
        settle()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return Sent(write(self._lent, iterator, self._window))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, _all(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was staged is given up; what was sent at least once cannot be taken back.

        A server that is out of reach now removes it by itself, later.
        """
        try:
            server = connect(self._options.target)
            server.run(_abandon(server.remote, self._options, self._window))
        except (HeadraceError, TimeoutError) as error:
            log.warning("what the failed write staged is not removed yet: %s", error)


class TopicStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark's classes are untyped
    """A window for every micro-batch, of a publisher named after the query and the topic."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_sink(options)
        check_schema(schema, self._options)
        # Which query it is, its tasks alone know.
        self._lent = _lent(self._options, f"spark/*/{topic_of(self._options.target)}")
        settle()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return Sent(write(self._lent, iterator, _window_of_task(self._options.target)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._options, _all(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was staged is removed when the next run of the query opens its publisher."""


async def _abandon(remote: Remote, options: SinkOptions, window: Window) -> None:
    async with asyncio.timeout(ABORT_SECONDS):
        if await publishes_windows(remote, options.target, options.delivery):
            await abandon(remote, window)


def _lent(options: SinkOptions, publisher: str) -> SinkOptions:
    """For tasks: `publisher` is a pattern."""
    return replace(options, target=lend_writing(options.target, publisher))


def _window_of_task(target: Target) -> Window:
    context = TaskContext.get()
    return window_of(target, lambda name: context and context.getLocalProperty(name))


def window_of(target: Target, local_property: Callable[[str], str | None]) -> Window:
    """Spark plans a writer more than once for a batch: what a run is, its tasks alone know."""
    query, run, batch = (
        local_property(name)
        for name in ("sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId")
    )
    if query is None or run is None or batch is None:
        raise UnavailableError("this Spark does not tell its tasks which batch they write")
    return Window(publisher_name(query, target), run, int(batch))


def publisher_name(query: str, target: Target) -> str:
    """A query keeps its id as long as its checkpoint, and so its publisher."""
    return f"spark/{query}/{target.stream}/{target.topic}"


def write(options: SinkOptions, batches: Iterator[pa.RecordBatch], window: Window) -> Delivered:
    """A task's part: stage its rows for the window, or send them where that cannot be."""
    server = connect(options.target)
    delivering = server.run(begin(server.remote, options, window))
    try:
        for piece in pieces(options, batches, lambda: server.partition_count(options.target)):
            server.run(delivering.add(piece))
        delivered = server.run(delivering.finish())
    except BaseException:
        server.submit(delivering.cancel())
        raise
    settle()
    return delivered


async def begin(remote: Remote, options: SinkOptions, window: Window) -> Delivering:
    exactly_once = await publishes_windows(remote, options.target, options.delivery)
    return Delivering(remote, options.target, window if exactly_once else None)


def commit(options: SinkOptions, delivered: Sequence[Delivered]) -> None:
    """The driver's part."""
    if not delivered:
        return
    server = connect(options.target)
    server.run(close(server.remote, delivered))
    if options.delivery == "auto" and delivered[0].window is None:
        _tell_at_least_once(options.target)
    settle()


def _tell_at_least_once(target: Target) -> None:
    """Once per process: Spark commits the batches of a query in one that lives as long."""
    if target.address not in _told:
        _told.add(target.address)
        log.warning(
            "the server at %s is a plain Iggy server: rows are written at least once, a task that "
            "is run again writes its rows again (delivery=at-least-once says that you know)",
            target.address,
        )


def check_schema(schema: StructType, options: SinkOptions | None = None) -> None:
    """ConfigError for a frame that cannot be written, before any row is."""
    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    value_format = None if options is None else options.value_format
    kafka = "payload" not in types and value_format is None and is_message(types)
    known = SINK_TYPES if kafka else _TYPES
    for name, found in types.items():
        if name not in known:
            if "payload" not in types:
                continue  # a part of the payload
            raise ConfigError(
                f"column {name} has no place in a message; a topic takes {', '.join(SINK_COLUMNS)} "
                "(or no payload column: then the others are written as one JSON object)"
            )
        if found not in known[name]:
            raise ConfigError(f"column {name} is {found}, it must be {' or '.join(known[name])}")
    if kafka:
        return
    if "payload" not in types:
        avro_schema = "" if options is None else options.avro_schema
        RowEncoder(value_format or "json", to_arrow_schema(schema, timezone="UTC"), avro_schema)
    elif value_format is not None:
        raise ConfigError(
            "the column payload is written as it is: drop it, or the option valueFormat"
        )


def pieces(
    options: SinkOptions, batches: Iterable[pa.RecordBatch], count: Callable[[], int]
) -> Iterator[Piece]:
    """The messages of a task; `count` says how many partitions there are, where that matters."""
    encoder = None
    homes = Homes(count)
    for batch in batches:
        if not batch.num_rows:
            continue
        if options.value_format is None and _is_kafka(batch.schema):
            batch = from_kafka(batch)
        if encoder is None and "payload" not in batch.schema.names:
            encoder = RowEncoder(options.value_format or "json", batch.schema, options.avro_schema)
        if encoder is not None and not encoder.joins_rows:
            batch = encoder.encode(batch)
        for partition, part in by_partition(batch, homes):
            if encoder is not None and encoder.joins_rows:
                part = encoder.encode(part)
            columns = {name: part.column(name) for name in part.schema.names}
            area, starts = to_area(columns["payload"], columns.get("key"), columns.get("headers"))
            for piece, positions in split(area, starts, SEND_BYTES_MAX):
                yield partition, piece, positions


def _is_kafka(schema: pa.Schema) -> bool:
    """As `check_schema` has found it, of the same columns in Arrow."""
    if "payload" in schema.names or "value" not in schema.names:
        return False
    value = schema.field("value").type
    message = set(schema.names) <= SINK_TYPES.keys()
    return message and (pa.types.is_string(value) or pa.types.is_binary(value))


def _all(messages: list[WriterCommitMessage | None]) -> list[Delivered]:
    if any(message is None for message in messages):
        raise UnavailableError("a write task ended without a result")
    return [message.delivered for message in messages if isinstance(message, Sent)]


_KEY = "_headrace_key"  # beside columns that are the payload
_SPECIAL = frozenset(".`")  # in a column's name


def check_messages(schema: StructType, key: str | None = None) -> None:
    """ConfigError for a frame that cannot be published."""
    if "payload" not in schema.names:
        from headrace.spark.formats.json_text import check_json

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

    from headrace.spark.formats.json_text import json_objects

    rows = batch.select(range(len(names))).rename_columns(names)
    keys = batch.columns[len(names) :]
    return pyarrow.RecordBatch.from_arrays(
        [json_objects(rows), *keys], names=["payload", "key"][: 1 + len(keys)]
    )
