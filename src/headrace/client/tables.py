"""Batches of messages as Arrow tables and pandas frames, and tables as messages: no row is touched.

Imported at first use: not every client has pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.json

from headrace.client.arrow import KeyPartitions, by_partition, to_area, to_record_batch
from headrace.client.topic_reader import PartitionMessages
from headrace.errors import InvalidArgumentError
from headrace.wire.iggy.batch import split
from headrace.wire.iggy.columns import COLUMNS, MessageBuffer, join

if TYPE_CHECKING:
    import pandas as pd

SEND_BYTES_MAX = 4 << 20  # of one request
ROWS_MAX = 100_000  # of a table at a time, so that a huge one is never there twice
JOINED_ROWS = 8192
_TYPES = {
    "stream": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "origin_timestamp": pa.timestamp("us", tz="UTC"),
    "id": pa.string(),
    "key": pa.binary(),
    "headers": pa.map_(pa.string(), pa.binary()),
    "payload": pa.binary(),
}
_SENT = ("payload", "key", "partition", "headers")


def schema(columns: Sequence[str], *, text: bool = False) -> pa.Schema:
    unknown = [name for name in columns if name not in _TYPES]
    if unknown:
        raise InvalidArgumentError(
            f"no column {', '.join(unknown)}; there are {', '.join(COLUMNS)}"
        )
    types = {**_TYPES, "payload": pa.string()} if text else _TYPES
    return pa.schema([(name, types[name]) for name in columns])


def to_table(
    stream: str,
    topic: str,
    parts: Sequence[PartitionMessages],
    columns: Sequence[str] = COLUMNS,
    *,
    text: bool = False,
) -> pa.Table:
    """The messages of a topic as one table; `text` gives payloads as strings."""
    wanted = schema(columns, text=text)
    batches = [
        to_record_batch(
            *part.buffer,
            stream=stream,
            topic=topic,
            partition=part.partition,
            names=columns,
            payload_format="string" if text else "binary",
        )
        for part in _joined(parts)
    ]
    return pa.Table.from_batches(batches, wanted)


def _joined(parts: Sequence[PartitionMessages]) -> Iterator[PartitionMessages]:
    """Neighbours of one partition as one, so that every step runs once for them.

    Only up to a size: where one message has headers of its own, its whole run is looked through.
    """
    run: list[PartitionMessages] = []
    rows = 0
    for part in parts:
        follows = run and part.partition == run[0].partition and part.start == run[-1].next_offset
        if run and (not follows or rows >= JOINED_ROWS):
            yield _one(run)
            run, rows = [], 0
        run.append(part)
        rows += len(part.buffer[1])
    if run:
        yield _one(run)


def _one(run: Sequence[PartitionMessages]) -> PartitionMessages:
    return PartitionMessages(run[0].partition, run[0].start, join([part.buffer for part in run]))


def to_frame(
    stream: str, topic: str, parts: Sequence[PartitionMessages], *, json: bool = False
) -> pd.DataFrame:
    """With `json` the fields of payloads, which must be JSON objects, beside the message's own."""
    if not json:
        return to_table(stream, topic, parts).to_pandas()
    own = [name for name in COLUMNS if name not in ("stream", "topic", "id", "headers", "payload")]
    table = to_table(stream, topic, parts, own)
    fields = _parsed(to_table(stream, topic, parts, ["payload"]).column("payload"))
    for name in fields.column_names:
        free = name if name not in own else f"payload_{name}"
        table = table.append_column(free, fields.column(name))
    return table.to_pandas()


def _parsed(payloads: pa.ChunkedArray) -> pa.Table:
    if not len(payloads):
        return pa.table({})
    lines = pa.compute.binary_join(
        pa.ListArray.from_arrays(
            pa.array([0, len(payloads)], pa.int32()), payloads.combine_chunks().cast(pa.binary())
        ),
        b"\n",
    )
    options = pyarrow.json.ParseOptions(newlines_in_values=True)
    try:
        found = pyarrow.json.read_json(pa.BufferReader(lines[0].as_buffer()), parse_options=options)
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"not every payload is a JSON object: {error}") from error
    if found.num_rows != len(payloads):
        raise InvalidArgumentError("not every payload is one JSON object")
    return found


def requests(
    data: pa.Table | pa.RecordBatch, partitions: Callable[[], int]
) -> Iterator[tuple[int | None, MessageBuffer]]:
    """What to send of a table: the partition, or None for the server's choice, and messages."""
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    if "payload" not in table.column_names:
        raise InvalidArgumentError("the table needs a column payload, of strings or binary")
    table = table.select([name for name in _SENT if name in table.column_names])
    homes = KeyPartitions(partitions)
    for batch in table.to_batches(max_chunksize=ROWS_MAX):
        if not batch.num_rows:
            continue
        for partition, part in by_partition(batch, homes):
            columns = {name: part.column(name) for name in part.schema.names}
            area, starts = to_area(columns["payload"], columns.get("key"), columns.get("headers"))
            for piece in split(area, starts, SEND_BYTES_MAX):
                yield partition, piece
