"""Publishing a micro-batch to an edge between queries: rows as Arrow, one window a batch.

    sink = EdgeSink(target, publisher="pipeline/shop/valid/0", partition=0, epoch=7, key=("sku",))
    entered = windows.enter(batch_id, lambda: [last_closed(sink)])      # the side log of the query
    publish_window(frame, sink, window=entered.window, previous=entered.closed[0])

Whoever asks for the last closed window becomes the publisher: every run with a lower epoch is
refused from then on. `previous` is a compare-and-set: a window that does not follow it is refused.
Publishing a window again does nothing, whatever its rows are now, but the frame is evaluated all
the same: a stateful query needs that. `advance` lets windows pass in which there is nothing to
publish. With key columns each row carries a hash (`HASH_COLUMN`), by which the instances of a
reader share the rows.

What is `async` here runs in the simulator as it is; the rest is for Spark's processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from headrace.net.credentials import exactly
from headrace.spark.edges.offsets import encode_index
from headrace.spark.options import Target
from headrace.spark.server import Remote, Window, connect, lend_writing
from headrace.spark.sink.sink import Delivered, Delivering, Piece, close

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

HASH_COLUMN = "__headrace_hash"
HASH_MASK = 0x7FFF_FFFF  # a hash has 31 bits: never negative, whoever reads it
SEND_BYTES_MAX = 4 << 20  # of one request; more rows become several requests


@dataclass(frozen=True, slots=True)
class EdgeSink:
    """Where and as whom a query publishes one of its outputs; small and picklable."""

    target: Target
    publisher: str
    partition: int
    epoch: int
    """The run that the controller deployed: a lower one is a zombie."""
    key: tuple[str, ...] = ()
    """Columns that rows are shared by among the instances of a reader; empty: there is one."""
    mask: int = 0
    """The readers' mask: their rows are kept apart, so that each instance reads only its own. 0:
    they are not, and each instance reads all and leaves out what is not its own."""

    def window(self, number: int, previous: int | None = None, *, last: bool = False) -> Window:
        return Window(self.publisher, str(self.epoch), number, last, self.epoch, previous)


# --- for Spark


def last_closed(sink: EdgeSink) -> int:
    """The last window that was closed, -1 for none. From now on lower epochs are refused."""
    server = connect(sink.target)
    return server.run(server.remote.last_closed(sink.window(0)))


def publish_window(frame: DataFrame, sink: EdgeSink, *, window: int, previous: int) -> int:
    """Publish every row as one window that follows `previous`; returns how many rows it has."""
    published = sink.window(window, previous)
    lent = replace(sink, target=lend_writing(sink.target, exactly(sink.publisher)))

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        delivered = msgspec.msgpack.encode(_write(lent, published, batches))
        yield pyarrow.RecordBatch.from_pydict({"delivered": [delivered]})

    rows = with_hash(frame, sink.key).mapInArrow(write_part, "delivered binary").collect()
    parts = [msgspec.msgpack.decode(row.delivered, type=Delivered) for row in rows]
    server = connect(sink.target)
    server.run(close_window(server.remote, sink, published, parts))
    return sum(each.rows for each in parts)


def advance(sink: EdgeSink, *, window: int, previous: int, last: bool = False) -> None:
    """Close windows up to this one without rows. `last`: there are no more after it."""
    server = connect(sink.target)
    server.run(close_window(server.remote, sink, sink.window(window, previous, last=last), ()))


def with_hash(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    if not key:
        return frame
    from pyspark.sql import functions as F

    hashed = F.xxhash64(*(F.col(name) for name in key)).bitwiseAND(HASH_MASK)
    return frame.withColumn(HASH_COLUMN, hashed.cast("int"))


def _write(sink: EdgeSink, window: Window, batches: Iterable[pa.RecordBatch]) -> Delivered:
    """A task's part: stage its rows."""
    server = connect(sink.target)
    staging = EdgeStaging(server.remote, sink, window)
    try:
        for batch in batches:
            for piece in staging.pieces(batch):
                server.run(staging.delivering.add(piece))
        return server.run(staging.finish())
    except BaseException:
        server.submit(staging.delivering.cancel())
        raise


# --- for anyone


class EdgeStaging:
    """One task's rows on their way to be published by whoever closes the window."""

    def __init__(self, remote: Remote, sink: EdgeSink, window: Window) -> None:
        self.delivering = Delivering(remote, sink.target, window)
        self._sink = sink
        self._rows = 0
        self._labels: list[int] = []

    def pieces(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Rows as messages of Arrow, laid out for the wire, those of one share after the other."""
        from headrace.client.arrow import to_area
        from headrace.spark.formats.encoding import arrow_messages
        from headrace.wire.iggy.batch import split

        self._rows += batch.num_rows
        for label, part in _by_share(batch, self._sink.mask):
            area, starts = to_area(arrow_messages(part), None, None)
            for piece, positions in split(area, starts, SEND_BYTES_MAX):
                self._labels.append(label)
                yield self._sink.partition, piece, positions

    async def finish(self) -> Delivered:
        delivered = await self.delivering.finish()
        return replace(delivered, rows=self._rows, labels=tuple(self._labels))


def _by_share(batch: pa.RecordBatch, mask: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not mask or HASH_COLUMN not in batch.schema.names:
        if batch.num_rows:
            yield 0, batch
        return
    import pyarrow.compute as pc

    labels = pc.bit_wise_and(batch.column(HASH_COLUMN), mask)
    for label in sorted(pc.unique(labels).to_pylist()):
        yield label, batch.filter(pc.equal(labels, label))


async def close_window(
    remote: Remote, sink: EdgeSink, window: Window, parts: Sequence[Delivered]
) -> None:
    """The driver's part. A frame without partitions has no tasks that staged anything."""
    index = encode_index(
        sink.mask,
        [
            (label, span.count)
            for part in parts
            for label, span in zip(part.labels, part.spans, strict=True)
        ],
    )
    await close(remote, list(parts) or [Delivered(0, window)], index)
