"""Reading an edge between queries with Spark: whole windows, as the rows that were published."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping
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

from headrace.client.tickets import Access
from headrace.errors import ConfigError, CorruptionError
from headrace.runtime.system import system_runtime
from headrace.spark.edges.edge_following import EdgeFollowing
from headrace.spark.edges.offsets import Share
from headrace.spark.edges.options import parse_edge
from headrace.spark.edges.sink import HASH_COLUMN
from headrace.spark.lending import lend, topic_of
from headrace.spark.options import Credentials
from headrace.spark.server import connect
from headrace.spark.source.splits import Span

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.raw_messages import Area

T = TypeVar("T")


@dataclass
class EdgePartition(InputPartition):  # type: ignore[misc]  # pyspark's classes are untyped
    """What one task reads. The access holds a ticket, so it stays out of every representation."""

    span: Span
    access: Access = field(repr=False)
    credentials: Credentials = field(repr=False)


class EdgeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark's classes are untyped
    """Spark's calls, handed on to `edge_following`."""

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
    schema: pa.Schema, share: Share | None, span: Span, runs: Iterable[list[Area]]
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
