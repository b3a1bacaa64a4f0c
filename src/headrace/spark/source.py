"""Reading topics with Spark, as a table and as a stream.

Readers and partitions are small picklable values; sockets are opened where they are used and kept
per process. A task returns exactly the messages of its span, or it fails. What is done about
messages that are gone is decided here, on the driver, and recorded in the offset.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
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

from headrace.errors import ConfigError, CorruptionError
from headrace.spark.filters import FOREVER, Bounds, bounds_of
from headrace.spark.formats.options import RAW_FORMATS
from headrace.spark.groups import GroupOffsets
from headrace.spark.idle import IdlePace
from headrace.spark.losses import decide, find_losses, surviving
from headrace.spark.offsets import Key, Offsets, SourceState, admit, limited, resolve
from headrace.spark.options import SourceOptions, parse_source
from headrace.spark.positions import AtTime, Position
from headrace.spark.reading import Reading
from headrace.spark.server import connect
from headrace.spark.splits import Span, plan, split
from headrace.spark.tickets import Access

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.arrow import Area
    from headrace.spark.formats.typed import TypedRows

BATCH_ROWS_MIN = 20_000  # join fetched runs until a record batch has this many rows,
BATCH_BYTES_MIN = 8 << 20  # or this many bytes

_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"
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
    passed = {"endingoffsets", "consumergroup"}  # of a table or of a stream, not of both
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

    span: Span
    access: Access = field(repr=False)


class TopicReader(DataSourceReader):  # type: ignore[misc]  # pyspark's classes are untyped
    """A batch read: the bounds are fixed when the read is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_source(options, streaming=False)
        self._schema = schema
        self._bounds = Bounds()
        _check_format(self._options, schema)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        reading = connect(options.target).reading
        state, access = reading.describe(options.target, options.topics, sizes=True)
        clamp = options.on_data_loss == "skip"
        start = _resolve(reading, options, state, options.starting, clamp=clamp)
        end = _resolve(reading, options, state, options.ending, rest="latest", clamp=clamp)
        spans = plan(start, end, state, options.on_data_loss)
        return _tasks(self._narrowed(reading, state, spans), state, access, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def _narrowed(self, reading: Reading, state: SourceState, spans: list[Span]) -> list[Span]:
        bounds, target = self._bounds, self._options.target
        first: dict[Key, int] = {}
        last: dict[Key, int] = {}
        if bounds.time_start > 0:
            ends = {key: each.end for key, _, each in state.partitions()}
            first = ends | reading.offsets_at(target, state, bounds.time_start)
        if bounds.time_end < FOREVER:
            last = reading.offsets_at(target, state, max(0, bounds.time_end))
        return [
            narrowed
            for span in spans
            if (narrowed := _narrow(span, bounds, first.get(span.key), last.get(span.key)))
        ]


class FilteringTopicReader(TopicReader):
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """All of them are left to Spark, too: bounds only spare reading what they rule out."""
        self._bounds = bounds_of(filters)
        return filters


def topic_reader(options: Mapping[str, str], schema: StructType) -> TopicReader:
    """The reader, with filters only where that is asked for and possible.

    Spark 4.3 keeps what it planned with filters with the DataFrame that was loaded, and uses it for
    every later query of it, also for those without filters: they would miss rows. Hence
    `pushFilters`. It also refuses a reader that takes filters while its own setting for it is off;
    where that is on, filters come in a worker module of their own.
    """
    reader = TopicReader(options, schema)
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    possible = _PUSHDOWN in sys.modules or getattr(main, "name", "") == _PUSHDOWN
    # With a schema of the payload's fields, `offset` may be one of them.
    raw = reader._options.payload_format in RAW_FORMATS
    if reader._options.push_filters and possible and raw:
        return FilteringTopicReader(options, schema)
    return reader


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark's classes are untyped
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_source(options, streaming=True)
        self._schema = schema
        _check_format(self._options, schema)
        self._last: SourceState | None = None  # AvailableNow: where this run ends
        self._seen: SourceState | None = None
        self._access = Access()
        self._initial: dict[str, Any] | None = None
        self._group = GroupOffsets(self._options)
        self._pace = IdlePace()

    def initialOffset(self) -> dict[str, Any]:
        state = self._describe()
        resolved = _resolve(self._reading, self._options, state, self._options.starting)
        self._initial = resolved.to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._describe()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch, or `start` when there was nothing for a while."""
        begin = Offsets.from_json(start)
        deadline = monotonic() + self._pace.on_asked(monotonic())
        finished = start != self._initial
        while True:
            state = self._describe()
            if finished:
                finished = False
                self._group.on_finished(self._reading, begin, state)
            end = self._admit(begin, state, limit)
            left = deadline - monotonic()
            if end is not begin or self._last is not None or left <= 0:
                break
            ends = {key: each.end for key, _, each in state.partitions()}
            self._reading.wait(self._access, ends, left)
        if end is begin:
            self._group.on_idle()
        self._pace.on_answered(monotonic(), idle=end is begin)
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._seen is None else resolve(self._seen, "latest").to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        state = self._describe(sizes=True)
        begin, finish = Offsets.from_json(start), Offsets.from_json(end)
        spans = plan(begin, finish, state, self._options.on_data_loss)
        return _tasks(spans, state, self._access, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this when it plans the next batch; the last one never gets it."""
        if self._seen is not None:
            self._group.on_finished(self._reading, Offsets.from_json(end), self._seen)

    def stop(self) -> None: ...

    @property
    def _reading(self) -> Reading:
        return connect(self._options.target).reading

    def _describe(self, *, sizes: bool = False) -> SourceState:
        options = self._options
        self._seen, self._access = self._reading.describe(
            options.target, options.topics, sizes=sizes or options.bytes_max is not None
        )
        return self._seen

    def _admit(self, begin: Offsets, state: SourceState, limit: ReadLimit) -> Offsets:
        """`begin` itself when there is nothing new."""
        by_name = not self._options.topics.pattern
        losses = find_losses(begin, state, by_name=by_name)
        resumed = decide(losses, self._options.on_data_loss)
        if self._last is not None:
            state = limited(state, self._last)
        start = surviving(begin, losses, state)
        return admit(start, state, resumed=resumed, **self._limits(limit))

    def _limits(self, limit: ReadLimit) -> dict[str, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return {}
        rows, size = self._options.messages_max, self._options.bytes_max
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return {"messages_max": rows, "bytes_max": size}


def _resolve(
    reading: Reading,
    options: SourceOptions,
    state: SourceState,
    position: Position,
    *,
    rest: Literal["earliest", "latest"] = "earliest",
    clamp: bool = False,
) -> Offsets:
    times = None
    if isinstance(position, AtTime):
        times = reading.offsets_at(options.target, state, position.timestamp_us)
    return resolve(state, position, rest=rest, times=times, clamp=clamp)


def _narrow(span: Span, bounds: Bounds, first: int | None, last: int | None) -> Span | None:
    """What is left of a span; `first` and `last` are where the wanted time begins and ends."""
    if not bounds.partition_start <= span.partition < bounds.partition_end:
        return None
    start = max(span.start, bounds.offset_start, first or 0)
    end = min(span.end, bounds.offset_end, span.end if last is None else last)
    return replace(span, start=start, end=end) if start < end else None


def _tasks(
    spans: list[Span], state: SourceState, access: Access, options: SourceOptions
) -> list[InputPartition]:
    if options.read_from == "broker":
        access = Access()
    return [
        TopicPartition(span, access.only(span.key))
        for span in split(spans, state, options.partition_bytes)
    ]


def _read(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, TopicPartition):
        return  # Spark's stand-in for "no partitions"
    from headrace.spark.arrow import join, to_record_batch
    from headrace.spark.kafka_style import raw_names, to_kafka

    kafka = options.column_style == "kafka"
    typed = None
    if options.payload_format not in RAW_FORMATS:
        typed = typed_rows(options, schema, partition.span.topic, partition.span.partition)
    for areas in _gathered(options, partition):
        area, starts = join(areas)
        if typed is not None:
            yield typed.read(area, starts)
            continue
        batch = to_record_batch(
            area,
            starts,
            stream=options.target.stream,
            topic=partition.span.topic,
            partition=partition.span.partition,
            names=raw_names(options.columns) if kafka else options.columns,
            payload_format=options.payload_format,
        )
        yield to_kafka(batch, options.columns) if kafka else batch


def typed_rows(options: SourceOptions, schema: StructType, topic: str, partition: int) -> TypedRows:
    """The decoder of one partition's payloads; ConfigError for a schema it cannot give."""
    from headrace.spark.formats.dead_letters import DeadLetters
    from headrace.spark.formats.typed import TypedRows

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


def _gathered(options: SourceOptions, partition: TopicPartition) -> Iterator[list[Area]]:
    """Fetched runs, joined to what makes a good record batch; the whole of them is checked."""
    areas: list[Area] = []
    rows = size = 0
    span = partition.span
    read = span.start
    messages = connect(options.target).reading.read(
        options.target, partition.access, span, options.read_from
    )
    for area, starts in messages:
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
