"""The forms an export takes. A writer gets whole polls and keeps a bounded part in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from headrace.cli.messages import records
from headrace.client.iggy import IggyClient
from headrace.errors import ConfigError
from headrace.transfer.copying import Pace, read_span
from headrace.transfer.spans import Span
from headrace.wire.iggy.messages.messages import decode_messages

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.wire.iggy.batch import Positions

    Writer = Callable[[int, memoryview, Positions], None]
    """Takes the messages of a partition."""

ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 64 << 20


async def write_spans(
    client: IggyClient,
    topic: tuple[str, str],
    spans: Sequence[Span],
    writer: Writer,
    on_progress: Callable[[int], None],
) -> None:
    pace = Pace(client.runtime.clock, 0)
    for span in spans:
        async for area, starts, _ in read_span(client, topic, span, pace):
            writer(span.partition, area, starts)
            on_progress(len(starts))


@contextmanager
def make_writer(
    format: str, sink: BinaryIO, stream: str, topic: str, columns: Sequence[str]
) -> Iterator[Writer]:
    if format == "jsonl":
        if columns:
            raise ConfigError("JSON lines have all columns; choose some for Parquet or Arrow")
        yield _lines(sink)
        return
    with _Tables(format, sink, stream, topic, columns) as tables:
        yield tables.add


def _lines(sink: BinaryIO) -> Writer:
    def write(partition: int, area: memoryview, starts: Positions) -> None:
        sink.write(
            msgspec.json.Encoder().encode_lines(
                [records.to_line(partition, message) for message in decode_messages(area)]
            )
        )

    return write


class _Tables:
    """Columns as Spark's source has them, in row groups (Parquet) or record batches (Arrow)."""

    def __init__(
        self, format: str, sink: BinaryIO, stream: str, topic: str, columns: Sequence[str]
    ) -> None:
        try:
            import pyarrow
        except ImportError as error:
            raise ConfigError(
                f"{format} needs pyarrow, which is not installed: pip install 'headrace[spark]'"
            ) from error
        from headrace.client.raw_messages import COLUMNS

        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise ConfigError(f"no column {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        self._pa = pyarrow
        self._names = tuple(columns) or COLUMNS
        self._topic = (stream, topic)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        schema = self._batch(0, memoryview(b""), _no_positions()).schema
        self._writer: Any = _open(format, sink, schema)

    def _batch(self, partition: int, area: memoryview, starts: Positions) -> pa.RecordBatch:
        from headrace.client.arrow import to_record_batch

        stream, topic = self._topic
        return to_record_batch(
            area, starts, stream=stream, topic=topic, partition=partition, names=self._names
        )

    def add(self, partition: int, area: memoryview, starts: Positions) -> None:
        self._waiting.append(self._batch(partition, area, starts))
        self._rows += len(starts)
        self._bytes += len(area)
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = self._pa.Table.from_batches(self._waiting).combine_chunks()
            self._writer.write_table(table)
        self._waiting.clear()
        self._rows = self._bytes = 0

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


def _open(format: str, sink: BinaryIO, schema: pa.Schema) -> Any:
    if format == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetWriter(sink, schema, compression="zstd")
    import pyarrow as pa

    return pa.ipc.new_file(sink, schema)


def _no_positions() -> Positions:
    import numpy as np

    return np.empty(0, np.uint32)
