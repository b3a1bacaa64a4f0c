"""Reading an edge between queries with Spark: whole windows, as the rows that were published.

`EdgeFollowing` is the driver's half: which windows the next batch reads. It is asynchronous and
runs in the simulator as it is. `EdgeStreamReader` is what Spark calls, on the driver and in tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.client.partition_reader import Access
from headrace.errors import ConfigError, CorruptionError, OffsetOutOfRangeError, UnavailableError
from headrace.runtime.interfaces import Clock
from headrace.runtime.system import system_runtime
from headrace.spark.edges.offsets import Admitted, EdgeOffset, Share, admit, ended, spans_between
from headrace.spark.edges.options import EdgeOptions, parse_edge
from headrace.spark.edges.sink import HASH_COLUMN
from headrace.spark.options import PARTITION_BYTES, Credentials, Target
from headrace.spark.server import Remote, connect, lend, topic_of
from headrace.spark.source.batch_plan import OffsetRange, split
from headrace.spark.source.following import IdlePace
from headrace.spark.source.positions import Topics
from headrace.wire.iggy.messages.extensions import WindowsListed
from headrace.wire.umbilical.windows import NO_WINDOW

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.wire.iggy.columns import MessageBuffer

_LAST = (1 << 63) - 1  # no window is later
END_SECONDS = 20.0  # of one question while a run waits for its publishers' end


class EdgeFollowing:
    """One query that reads an edge, in one process."""

    def __init__(self, remote: Remote, options: EdgeOptions, clock: Clock) -> None:
        self._remote = remote
        self._options = options
        self._clock = clock
        self._pace = IdlePace()
        self._to_the_end = False
        self._seen: WindowsListed | None = None
        self._batch_at = clock.monotonic()

    async def initial_offset(self) -> dict[str, Any]:
        listed = await self._list(self._options.target, after=_LAST)
        starting = self._options.starting
        window = listed.purged if starting is None else max(starting, listed.purged)
        return EdgeOffset(listed.cluster, str(listed.uid), window).to_json()

    async def end_when_ended(self) -> None:
        """AvailableNow: read until every publisher has said that there is no more."""
        self._to_the_end = True

    async def latest_offset(self, start: dict[str, Any]) -> dict[str, Any] | None:
        """The end of the next batch, or `start` when there was nothing for a while.

        None, when reading up to the publishers' end: that has not come yet, ask again.
        """
        begin = EdgeOffset.from_json(start)
        now = self._clock.monotonic()
        deadline = now + (END_SECONDS if self._to_the_end else self._pace.on_asked(now))
        targets = (self._options.target, *self._options.aligned)
        while True:
            edges = [await self._list(target, begin.window) for target in targets]
            self._seen = edges[0]
            begin.check(edges[0])
            admitted = admit(begin.window, edges, self._options.limits, self._options.application)
            left_ms = int((deadline - self._clock.monotonic()) * 1000)
            over = self._to_the_end and all(map(ended, edges))
            if admitted.rows or over or left_ms <= 0:
                break
            slowest, target = min(zip(edges, targets, strict=True), key=lambda one: one[0].closed)
            await self._list(target, slowest.closed, left_ms)
        now = self._clock.monotonic()
        due = self._options.empty_batch_ms and admitted.end > begin.window
        if due and (now - self._batch_at) * 1000 >= self._options.empty_batch_ms:
            admitted = Admitted(admitted.end, rows=True)
        self._pace.on_answered(now, idle=not admitted.rows)
        if not admitted.rows:
            return None if self._to_the_end and not over else start
        self._batch_at = now
        return EdgeOffset(begin.cluster, begin.uid, admitted.end).to_json()

    def reported_offset(self) -> dict[str, Any] | None:
        """The last window that all publishers have closed."""
        listed = self._seen
        if listed is None:
            return None
        return EdgeOffset(listed.cluster, str(listed.uid), listed.closed).to_json()

    async def plan(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[tuple[OffsetRange, Access]]:
        """What the tasks of a batch read."""
        begin, finish = EdgeOffset.from_json(start), EdgeOffset.from_json(end)
        finish.check_topic(begin.cluster, begin.uid)  # a first batch's start is asked for anew
        target = self._options.target
        pages = [page async for page in self._pages(begin, finish)]
        spans = spans_between(
            pages,
            target.topic,
            start=begin.window,
            end=finish.window,
            skip_until=self._options.skip_until,
            share=self._options.share,
        )
        if not spans:
            return []
        state, access = await self._remote.reading.describe(
            target, Topics((target.topic,)), sizes=True
        )
        held = {key: each for key, _, each in state.partitions()}
        for span in spans:
            each = held.get(span.key)
            if each is None or each.generation != span.generation or span.start < each.start:
                raise OffsetOutOfRangeError(
                    f"windows of {target.stream}/{target.topic} are closed, but their messages "
                    f"{span.start} to {span.end} in partition {span.partition} are gone"
                )
        return [(part, access.only(part.key)) for part in split(spans, state, PARTITION_BYTES)]

    async def _pages(self, begin: EdgeOffset, end: EdgeOffset) -> AsyncIterator[WindowsListed]:
        after = begin.window
        while after < end.window:
            listed = await self._list(self._options.target, after)
            begin.check(listed)
            if listed.closed < end.window:
                # Voided since the batch was planned: it can be read when it is published again.
                raise UnavailableError(
                    "a window of the batch is not closed any more",
                    window=end.window,
                    closed=listed.closed,
                )
            yield listed
            after = listed.complete

    async def _list(self, target: Target, after: int, wait_ms: int = 0) -> WindowsListed:
        return await list_windows(self._remote, target, after, wait_ms)


async def list_windows(
    remote: Remote, target: Target, after: int, wait_ms: int = 0
) -> WindowsListed:
    return await remote.call(
        lambda client: client.list_windows(
            target.stream, target.topic, after=after, wait_ms=wait_ms
        )
    )


async def last_window(remote: Remote, edges: Sequence[Target]) -> int:
    """The last one that all publishers of all these edges have closed."""
    listed = [await list_windows(remote, target, _LAST) for target in edges]
    return min(one.closed for one in listed)


async def quiet_through(
    remote: Remote, edges: Sequence[Target], read: Mapping[str, int]
) -> int | None:
    """How far all these edges are closed while a query that has read so much of them (by topic
    uid) has nothing to do; None when it has."""
    closed = []
    for target in edges:
        listed = await list_windows(remote, target, min(read.values(), default=NO_WINDOW))
        position = max(read.get(str(listed.uid), NO_WINDOW), listed.purged)
        if any(each.window > position for one in listed.publishers for each in one.windows):
            return None
        closed.append(listed.closed)
    return min(closed, default=None)


T = TypeVar("T")


@dataclass
class EdgePartition(InputPartition):  # type: ignore[misc]  # pyspark's classes are untyped
    """What one task reads. The access holds a ticket, so it stays out of every representation."""

    span: OffsetRange
    access: Access = field(repr=False)
    credentials: Credentials = field(repr=False)


class EdgeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark's classes are untyped
    """Spark's calls, handed on to `EdgeFollowing`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_edge(options)
        self._schema = schema
        self._following: EdgeFollowing | None = None  # made in the process that plans batches

    def initialOffset(self) -> dict[str, Any]:
        return self._run(self.following.initial_offset())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()  # of our own limits, which count windows and rows

    def prepareForTriggerAvailableNow(self) -> None:
        self._run(self.following.end_when_ended())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        while (end := self._run(self.following.latest_offset(start))) is None:
            pass  # each question waits
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self.following.reported_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        target = self._options.target
        lent = lend(target, reads=(topic_of(target),)).credentials
        tasks = self._run(self.following.plan(start, end))
        return [EdgePartition(*task, lent) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EdgePartition):
            return  # Spark's stand-in for "no partitions"
        target = replace(self._options.target, credentials=partition.credentials)
        server = connect(target)
        runs = server.iterate(
            server.remote.reading.read(target, partition.access, partition.span, "auto")
        )
        schema = to_arrow_schema(self._schema, timezone="UTC")
        yield from edge_rows(schema, self._options.share, partition.span, runs)

    def commit(self, end: dict[str, Any]) -> None:
        """What may be purged is the controller's to say."""

    def stop(self) -> None: ...

    @property
    def following(self) -> EdgeFollowing:
        if self._following is None:
            remote = connect(self._options.target).remote
            self._following = EdgeFollowing(remote, self._options, system_runtime().clock)
        return self._following

    def _run(self, work: Awaitable[T]) -> T:
        return connect(self._options.target).run(work)


def edge_schema(options: Mapping[str, str]) -> str:
    parse_edge(options)
    raise ConfigError("an edge holds the rows of a query: give their schema, .schema(...)")


def edge_rows(
    schema: pa.Schema, share: Share | None, span: OffsetRange, runs: Iterable[list[MessageBuffer]]
) -> Iterator[pa.RecordBatch]:
    """The rows that the messages of a span hold; the whole of them is checked."""
    from headrace.client.arrow import to_record_batch
    from headrace.spark.formats.arrow_rows import ArrowDecoder

    read = span.start
    wanted = schema if share is None else schema.append(_hash_field())
    decode = ArrowDecoder(wanted, trusted=True)
    for area, starts in chain.from_iterable(runs):
        read += len(starts)
        messages = to_record_batch(
            area, starts, stream="", topic=span.topic, partition=span.partition, names=("payload",)
        )
        decoded = decode(messages.column("payload"))
        if decoded.bad:
            raise CorruptionError(
                f"message {read - len(starts) + decoded.bad[0].row} of partition {span.partition} "
                f"holds no rows of this schema: {decoded.bad[0].reason}"
            )
        rows = decoded.table if share is None else _shared(decoded.table, share)
        yield from rows.combine_chunks().to_batches()
    if read != span.end:
        raise CorruptionError(
            f"partition {span.partition} of {span.topic} gave {read - span.start} messages, "
            f"not the {span.end - span.start} from {span.start} to {span.end}"
        )


def _hash_field() -> pa.Field:
    import pyarrow

    return pyarrow.field(HASH_COLUMN, pyarrow.int32())


def _shared(rows: pa.Table, share: Share) -> pa.Table:
    import pyarrow
    import pyarrow.compute as pc

    hashes = rows.column(HASH_COLUMN)
    if hashes.null_count:
        raise ConfigError("rows are to be shared by a key, but were published without one")
    masked = pc.bit_wise_and(hashes, share.mask)
    mine = pc.is_in(masked, value_set=pyarrow.array(share.keys, masked.type))
    return rows.filter(mine).drop_columns([HASH_COLUMN])
