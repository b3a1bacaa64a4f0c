"""Reading topics with Spark, as a table and as a stream.

Readers and partitions are small picklable values; sockets are opened where they are used and kept
per process. A task returns exactly the messages of its range, or it fails. What is done about
messages that are gone is decided on the driver (`following`) and recorded in the offset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.client.partition_reader import Access
from headrace.errors import ConfigError, CorruptionError
from headrace.runtime.system import system_runtime
from headrace.spark.formats.options import RAW_FORMATS
from headrace.spark.limited_daemon import freeze_long_lived
from headrace.spark.options import Credentials, SourceOptions, parse_source
from headrace.spark.server import connect, lend_reading
from headrace.spark.source.batch_plan import OffsetRange, plan

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.formats.typed import TypedRows
    from headrace.spark.source.following import Following, Limits
    from headrace.spark.source.reading import Reading
    from headrace.wire.iggy.columns import MessageBuffer

T = TypeVar("T")

BATCH_ROWS_MIN = 20_000  # join fetched runs until a record batch has this many rows,
BATCH_BYTES_MIN = 8 << 20  # or this many bytes

_TYPES = {
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
_KAFKA_TYPES = _TYPES | {
    "value": "binary",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


def raw_schema(options: Mapping[str, str]) -> str:
    # Of a table or of a stream, not of both.
    passed = {"endingoffsets", "consumergroup", "skipbacklog"}
    parsed = parse_source(
        {name: value for name, value in options.items() if name.lower() not in passed},
        streaming=True,
    )
    if parsed.payload_format not in RAW_FORMATS:
        raise ConfigError(
            f"payloadFormat={parsed.payload_format} needs a schema: .schema('sku string, qty int')"
        )
    types = _TYPES if parsed.column_style == "headrace" else _KAFKA_TYPES
    if parsed.payload_format == "string":
        types = types | {"payload": "string", "value": "string"}
    return ", ".join(f"`{name}` {types[name]}" for name in parsed.columns)


@dataclass
class TopicPartition(InputPartition):  # type: ignore[misc]  # pyspark's classes are untyped
    """What one task reads. The access holds a ticket, so it stays out of every representation."""

    span: OffsetRange
    access: Access = field(repr=False)
    lent: Credentials | None = field(default=None, repr=False)
    """To be used instead of the options' own, if there are any."""


class TopicReader(DataSourceReader):  # type: ignore[misc]  # pyspark's classes are untyped
    """A batch read: the bounds are fixed when the read is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_source(options, streaming=False)
        self._schema = schema
        _check_format(self._options, schema)

    def partitions(self) -> list[InputPartition]:
        server = connect(self._options.target)
        lent = lend_reading(self._options)
        tasks = server.run(self._plan(server.remote.reading))
        return [TopicPartition(*task, lent) for task in tasks]

    async def _plan(self, reading: Reading) -> list[tuple[OffsetRange, Access]]:
        from headrace.spark.source.following import resolve_position, tasks

        options = self._options
        state, access = await reading.describe(options.target, options.topics, sizes=True)
        clamp = options.on_data_loss == "skip"
        start = await resolve_position(reading, options, state, options.starting, clamp=clamp)
        end = await resolve_position(
            reading, options, state, options.ending, rest="latest", clamp=clamp
        )
        spans = plan(start, end, state, options.on_data_loss, by_name=True)
        return tasks(spans, state, access, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark's classes are untyped
    """Spark's calls, handed on to `following`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_source(options, streaming=True)
        self._schema = schema
        self._following: Following | None = None  # made in the process that plans batches
        _check_format(self._options, schema)

    def initialOffset(self) -> dict[str, Any]:
        return self._run(self.following.initial_offset())

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._run(self.following.end_at_latest())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch, or `start` when there was nothing for a while."""
        return self._run(self.following.latest_offset(start, self._limits(limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self.following.reported_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        lent = lend_reading(self._options)
        tasks = self._run(self.following.plan(start, end))
        return [TopicPartition(*task, lent) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this when it plans the next batch; the last one never gets it."""
        self._run(self.following.commit(end))

    def stop(self) -> None: ...

    @property
    def following(self) -> Following:
        if self._following is None:
            from headrace.spark.source.following import Following  # the driver's alone

            reading = connect(self._options.target).remote.reading
            self._following = Following(reading, self._options, system_runtime().clock)
        return self._following

    def _run(self, work: Awaitable[T]) -> T:
        return connect(self._options.target).run(work)

    def _limits(self, limit: ReadLimit) -> Limits:
        from headrace.spark.source.following import NO_LIMITS, Limits

        if isinstance(limit, ReadAllAvailable):
            return NO_LIMITS
        rows, size = self._options.messages_max, self._options.bytes_max
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return Limits(rows, size)


def _read(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, TopicPartition):
        return  # Spark's stand-in for "no partitions"
    if partition.lent is not None:
        options = replace(options, target=replace(options.target, credentials=partition.lent))
    server = connect(options.target)
    runs = server.iterate(
        server.remote.reading.read(
            options.target,
            partition.access,
            partition.span,
            options.read_from,
            local=options.local_reads,
            skips_lost=options.on_data_loss == "skip",
        )
    )
    yield from record_batches(options, schema, partition.span, runs)
    freeze_long_lived()


def record_batches(
    options: SourceOptions,
    schema: StructType,
    span: OffsetRange,
    runs: Iterable[list[MessageBuffer]],
) -> Iterator[pa.RecordBatch]:
    """What Spark gets for the messages of a range, which come in these runs."""
    from headrace.client.arrow import to_record_batch
    from headrace.spark.kafka_style import raw_names, to_kafka
    from headrace.wire.iggy.columns import join

    kafka = options.column_style == "kafka"
    typed = None
    if options.payload_format not in RAW_FORMATS:
        typed = typed_rows(options, schema, span.topic, span.partition)
    for areas in _gathered(options, span, runs):
        area, starts = join(areas)
        if typed is not None:
            yield from typed.read(area, starts)
            continue
        batch = to_record_batch(
            area,
            starts,
            stream=options.target.stream,
            topic=span.topic,
            partition=span.partition,
            names=raw_names(options.columns) if kafka else options.columns,
            payload_format=options.payload_format,
        )
        yield to_kafka(batch, options.columns) if kafka else batch


def typed_rows(options: SourceOptions, schema: StructType, topic: str, partition: int) -> TypedRows:
    """The decoder of one partition's payloads; ConfigError for a schema it cannot give."""
    from headrace.spark.formats.typed import DeadLetters, TypedRows

    source = replace(options.target, topic=topic)
    letters = None
    if options.format.dead_letter_topic:
        letters = DeadLetters(connect(source), source, options.format.dead_letter_topic, partition)
    return TypedRows(
        options.payload_format,
        options.format,
        to_arrow_schema(schema, timezone="UTC"),
        stream=source.stream,
        topic=topic,
        partition=partition,
        dead_letters=letters,
    )


def _check_format(options: SourceOptions, schema: StructType) -> None:
    """Before any task runs into it."""
    if options.payload_format not in RAW_FORMATS:
        typed_rows(options, schema, options.target.topic, 0)


def _gathered(
    options: SourceOptions, span: OffsetRange, runs: Iterable[list[MessageBuffer]]
) -> Iterator[list[MessageBuffer]]:
    """Fetched runs, joined to what makes a good record batch; the whole of them is checked."""
    areas: list[MessageBuffer] = []
    rows = size = 0
    read = span.start
    for area, starts in chain.from_iterable(runs):
        areas.append((area, starts))
        rows, size, read = rows + len(starts), size + len(area), read + len(starts)
        if rows >= BATCH_ROWS_MIN or size >= BATCH_BYTES_MIN:
            yield areas
            areas, rows, size = [], 0, 0
    if read != span.end:
        raise CorruptionError(
            f"partition {span.partition} of {options.target.stream}/{span.topic} gave "
            f"{read - span.start} messages, not the {span.end - span.start} "
            f"from {span.start} to {span.end}"
        )
    if areas:
        yield areas
