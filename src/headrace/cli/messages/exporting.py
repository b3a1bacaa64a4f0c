"""headrace export: a topic, or a part of it, as a file of JSON lines, Parquet or Arrow.

A writer of one of the three forms gets whole polls and keeps a bounded part of them in memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from headrace.cli.connection import connects, with_broker
from headrace.cli.declare import (
    argument,
    command,
    from_option,
    json_option,
    one_partition_option,
    option,
    parse_point,
    split_topic,
    until_option,
)
from headrace.cli.output import count_progress, print_json
from headrace.cli.server_names import topic_argument
from headrace.errors import ConfigError
from headrace.observability.escaping import note

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.iggy import IggyClient
    from headrace.transfer.offset_ranges import OffsetRange
    from headrace.wire.iggy.batch import Positions

    Writer = Callable[[int, memoryview, Positions], None]
    """Takes the messages of a partition."""


class Format(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


_SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".ipc": Format.ARROW,
    ".feather": Format.ARROW,
}


@command("export")
@topic_argument
@argument("file", metavar="FILE", help="- for standard output, as JSON lines.")
@option(
    "--format", type=click.Choice([*map(str, Format)]), help="If the file's name does not say it."
)
@from_option
@until_option
@one_partition_option
@option("--columns", default="", help="Of Parquet and Arrow, comma separated; all if empty.")
@option("--overwrite", is_flag=True, help="Replace the file if there is one.")
@json_option
@connects
def export(
    name: str,
    file: str,
    format: str | None,
    start: str,
    until: str,
    partition: int,
    columns: str,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write messages to a file, partition by partition in offset order.

    The file appears when it is complete and on disk; an export that fails leaves none.
    """
    stream, topic = split_topic(name)
    begin, end = parse_point(start), parse_point(until)
    chosen = _format(file, None if format is None else Format(format))
    wanted = tuple(each.strip() for each in columns.split(",") if each.strip())

    async def work(client: IggyClient) -> dict[str, Any]:
        from headrace.transfer.offset_ranges import describe_source, resolve_offset_ranges

        source = await describe_source(client, stream, topic)
        spans = await resolve_offset_ranges(
            client, source, start=begin, end=end, partition=None if partition < 0 else partition
        )
        total = sum(span.count for span in spans)
        with (
            _complete(file, overwrite=overwrite) as sink,
            make_writer(chosen.value, sink, stream, topic, wanted) as writer,
            count_progress("exporting", total) as progress,
        ):
            await write_spans(client, (stream, topic), spans, writer, progress)
        return {
            "topic": name, "file": file, "format": chosen.value, "messages": total,
            "partitions": {str(span.partition): [span.start, span.end] for span in spans},
        }  # fmt: skip

    done = with_broker(work)
    if as_json and file != "-":
        print_json(done)
    else:
        note(f"{done['messages']} messages of {name} are in {file}")


def _format(file: str, stated: Format | None) -> Format:
    if file == "-":
        if stated not in (None, Format.JSONL):
            raise click.BadParameter("standard output takes JSON lines only")
        return Format.JSONL
    found = stated or _SUFFIXES.get(Path(file).suffix.lower())
    if found is None:
        raise click.BadParameter(f"--format says what {file} is to be: jsonl, parquet or arrow")
    return found


@contextmanager
def _complete(file: str, *, overwrite: bool) -> Iterator[Any]:
    """A file to write to, which gets its name once everything is in it and synced."""
    from headrace.errors import AlreadyExistsError

    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    if path.exists() and not overwrite:
        raise AlreadyExistsError(f"there is a file {file}; --overwrite replaces it")
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 64 << 20


async def write_spans(
    client: IggyClient,
    topic: tuple[str, str],
    spans: Sequence[OffsetRange],
    writer: Writer,
    on_progress: Callable[[int], None],
) -> None:
    from headrace.transfer.copying import Pace, read_span

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
    import msgspec

    from headrace.cli.messages import records
    from headrace.wire.iggy.messages.messages import decode_messages

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
        from headrace.wire.iggy.columns import COLUMNS

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
