"""Reading a topic with Spark, as a table and as a stream.

Readers and partitions are small picklable values; sockets are opened where they are used and kept
per process. A task returns exactly the messages [start, end) of its partition, or it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
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
from headrace.spark.offsets import TopicOffsets, TopicState, admit, check, resolve
from headrace.spark.options import SourceOptions, parse_source
from headrace.spark.server import connect
from headrace.spark.tickets import Access

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.arrow import Area

BATCH_ROWS_MIN = 20_000  # join fetched runs until a record batch has this many rows,
BATCH_BYTES_MIN = 8 << 20  # or this many bytes
# An idle query asks again at once. Waiting here stops that, but it also delays the other sources
# of the same query, which Spark asks one after the other: hence a short moment.
IDLE_WAIT_SECONDS = 0.1
IDLE_POLL_SECONDS = 0.02

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


def raw_schema(options: Mapping[str, str]) -> str:
    parsed = parse_source(
        {name: value for name, value in options.items() if name.lower() != "endingoffsets"},
        streaming=True,
    )
    if parsed.payload_format == "json":
        raise ConfigError("payloadFormat=json needs a schema: .schema('sku string, qty int')")
    types = _TYPES | ({"payload": "string"} if parsed.payload_format == "string" else {})
    return ", ".join(f"`{name}` {types[name]}" for name in parsed.columns)


@dataclass
class TopicPartition(InputPartition):  # type: ignore[misc]  # pyspark's classes are untyped
    """What one task reads. The access holds a ticket, so it stays out of every representation."""

    partition: int
    start: int
    end: int
    access: Access = field(repr=False)


class TopicReader(DataSourceReader):  # type: ignore[misc]  # pyspark's classes are untyped
    """A batch read: the bounds are fixed when the read is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_source(options, streaming=False)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        state, access = _describe(self._options)
        start = resolve(state, self._options.starting)
        end = resolve(state, self._options.ending, rest="latest")
        return list(_partitions(start, end, state, access))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark's classes are untyped
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_source(options, streaming=True)
        self._schema = schema
        self._last: TopicState | None = None  # AvailableNow: where this run ends
        self._seen: TopicState | None = None

    def initialOffset(self) -> dict[str, Any]:
        return resolve(self._describe(), self._options.starting).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._describe()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = TopicOffsets.from_json(start)
        state = self._last if self._last is not None else self._wait_past(begin)
        check(begin, state)
        return admit(begin, state, **self._limits(limit)).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._seen is None else resolve(self._seen, "latest").to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        state, access = _describe(self._options)
        self._seen = state
        begin, finish = TopicOffsets.from_json(start), TopicOffsets.from_json(end)
        check(begin, state)
        check(finish, state)
        return list(_partitions(begin, finish, state, access))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark's checkpoint is the position; the last batch never gets this call."""

    def stop(self) -> None: ...

    def _describe(self) -> TopicState:
        self._seen, _ = _describe(self._options)
        return self._seen

    def _wait_past(self, begin: TopicOffsets) -> TopicState:
        """The topic's state once it holds something new, or after a short moment."""
        deadline = monotonic() + IDLE_WAIT_SECONDS
        while True:
            state = self._describe()
            if admit(begin, state).positions != begin.positions or monotonic() >= deadline:
                return state
            sleep(IDLE_POLL_SECONDS)

    def _limits(self, limit: ReadLimit) -> dict[str, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return {}
        rows, size = self._options.messages_max, self._options.bytes_max
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return {"messages_max": rows, "bytes_max": size}


def _describe(options: SourceOptions) -> tuple[TopicState, Access]:
    state, access = connect(options.target).describe(options.target)
    return state, (access if options.read_from == "data-nodes" else Access())


def _partitions(
    start: TopicOffsets, end: TopicOffsets, state: TopicState, access: Access
) -> Iterator[TopicPartition]:
    firsts = {each.partition: each.start for each in state.partitions}
    for partition, (generation, finish) in sorted(end.positions.items()):
        # A partition that appeared since `start` was written is read from its first offset.
        begin = start.positions.get(partition, (generation, firsts[partition]))[1]
        if begin < finish:
            yield TopicPartition(partition, begin, finish, access)


def _read(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, TopicPartition):
        return  # Spark's stand-in for "no partitions"
    from headrace.spark.arrow import join, to_json_rows, to_record_batch

    target = options.target
    for areas in _gathered(options, partition):
        area, starts = join(areas)
        if options.payload_format == "json":
            yield to_json_rows(area, starts, to_arrow_schema(schema, timezone="UTC"))
            continue
        yield to_record_batch(
            area,
            starts,
            stream=target.stream,
            topic=target.topic,
            partition=partition.partition,
            names=options.columns,
            payload_format=options.payload_format,
        )


def _gathered(options: SourceOptions, partition: TopicPartition) -> Iterator[list[Area]]:
    """Fetched runs, joined to what makes a good record batch; the whole of them is checked."""
    areas: list[Area] = []
    rows = size = 0
    read = partition.start
    messages = connect(options.target).read(
        options.target, partition.access, partition.partition, read, partition.end
    )
    for area, starts in messages:
        areas.append((area, starts))
        rows, size, read = rows + len(starts), size + len(area), read + len(starts)
        if rows >= BATCH_ROWS_MIN or size >= BATCH_BYTES_MIN:
            yield areas
            areas, rows, size = [], 0, 0
    if read != partition.end:
        raise CorruptionError(
            f"partition {partition.partition} of {options.target.stream}/{options.target.topic} "
            f"gave {read - partition.start} messages, not the {partition.end - partition.start} "
            f"from {partition.start} to {partition.end}"
        )
    if areas:
        yield areas
