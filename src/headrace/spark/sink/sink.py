"""Writing to a topic with Spark: Arrow batches become SEND_MESSAGES requests, whole at a time.

Columns: `payload` (string or binary), `key`, `partition` (int), `headers` (map<string,binary>). The
other columns of a frame without `payload` are its payload, as JSON, Avro or Arrow (`formats`); but
for a frame as Spark's Kafka sink takes it, whose `value` is the payload (`kafka_style`).
Rows with a key go to the partition that any Iggy client would choose for it.

Delivery is exactly once into Headrace. Tasks stage their rows under the publisher's current run and
tell the driver what they staged. When the batch commits, the driver closes the window with exactly
that, so retried and speculative tasks leave no trace; a window that was closed before is not
published again. A plain Iggy server, which does not know these commands, gets every row at least
once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.arrow import KeyPartitions, by_partition, to_area
from headrace.errors import ConfigError, HeadraceError, UnavailableError
from headrace.net.credentials import exactly
from headrace.spark.formats.encoding import RowEncoder
from headrace.spark.kafka_style import SINK_TYPES, from_kafka, is_message
from headrace.spark.limited_daemon import freeze_long_lived
from headrace.spark.options import SinkOptions, Target, parse_sink
from headrace.spark.server import Remote, Window, connect, lend_writing, topic_of
from headrace.wire.iggy.batch import split
from headrace.wire.iggy.messages.extensions import StagedSpan

if TYPE_CHECKING:
    from headrace.spark.options import Delivery
    from headrace.wire.iggy.batch import Positions

IN_FLIGHT_MAX = 4  # requests of one task: the next is made while the server syncs the last

Piece = tuple[int | None, memoryview, "Positions"]
"""Messages for a partition, or for one of the server's choice."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one task wrote. Without a window it is published already."""

    rows: int
    window: Window | None = None
    spans: tuple[StagedSpan, ...] = ()
    digest: bytes = b""
    labels: tuple[int, ...] = ()
    """What the messages of each span have in common, where somebody sorted them."""


async def publishes_windows(remote: Remote, target: Target, delivery: Delivery) -> bool:
    """Whether rows are delivered exactly once; ConfigError if they must be and cannot."""
    if delivery == "at-least-once":
        return False
    if await remote.publishes_windows():
        return True
    if delivery == "exactly-once":
        raise ConfigError(
            f"the server at {target.address} is a plain Iggy server, which cannot publish a window "
            "at once; set delivery=at-least-once, or delivery=auto to take what there is"
        )
    return False


class Delivering:
    """One task's rows on their way: staged for a window, or sent where that cannot be."""

    def __init__(self, remote: Remote, target: Target, window: Window | None) -> None:
        self._remote = remote
        self._target = target
        self._window = window
        self._digest = xxhash.xxh3_128()
        self._rows = 0
        self._spans: list[StagedSpan] = []
        self._under_way: deque[asyncio.Task[StagedSpan | int]] = deque()

    async def add(self, piece: Piece) -> None:
        """Returns while it is under way, unless too much is."""
        partition, area, starts = piece
        self._rows += len(starts)
        work: Coroutine[Any, Any, StagedSpan | int]
        if self._window is None:
            work = self._remote.send(self._target, partition, area, starts)
        else:
            self._digest.update(area)
            work = self._remote.stage(self._target, self._window, partition, area, starts)
        self._under_way.append(asyncio.get_running_loop().create_task(work))
        if len(self._under_way) >= IN_FLIGHT_MAX:
            await self._settle()

    async def finish(self) -> Delivered:
        """Acknowledged on return."""
        while self._under_way:
            await self._settle()
        if self._window is None:
            return Delivered(self._rows)
        return Delivered(self._rows, self._window, tuple(self._spans), self._digest.digest())

    async def cancel(self) -> None:
        """What was staged is never named to anyone; what was sent stays sent."""
        left, self._under_way = self._under_way, deque()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _settle(self) -> None:
        done = await self._under_way[0]
        self._under_way.popleft()
        if isinstance(done, StagedSpan):
            self._spans.append(done)


async def abandon(remote: Remote, window: Window) -> None:
    """Let go of what was staged for the only window of a publisher.

    It is closed without a row: tasks that are still at work are refused, and so is a close that is
    late. One that came before stands.
    """
    await remote.close_window(window, (), b"")


async def close(remote: Remote, delivered: Sequence[Delivered], index: bytes = b"") -> bool:
    """Publish what the tasks staged, in their order; False if the window was closed before.

    `index` is for who lists the windows of the topic.
    """
    windows = {each.window for each in delivered}
    if len(windows) != 1:
        raise ConfigError("the tasks of one write belong to different windows")
    (window,) = windows
    if window is None:
        return True
    spans = [span for each in delivered for span in each.spans]
    digest = xxhash.xxh3_128(b"".join(each.digest for each in delivered)).digest()
    rows = sum(each.rows for each in delivered)
    return await remote.close_window(window, spans, digest, rows=rows, index=index)


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
        freeze_long_lived()

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
        freeze_long_lived()

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
    freeze_long_lived()
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
    freeze_long_lived()


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
    homes = KeyPartitions(count)
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
