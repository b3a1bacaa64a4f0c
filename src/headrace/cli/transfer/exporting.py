"""headrace export: a topic, or a part of it, as a file of JSON lines, Parquet or Arrow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connection import connects, with_broker
from headrace.cli.declare import argument, command, json_option, option, split_topic
from headrace.cli.messages.points import (
    from_option,
    one_partition_option,
    parse_point,
    until_option,
)
from headrace.cli.output import count_progress, print_json
from headrace.cli.server_names import topic_argument
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient


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
        from headrace.cli.transfer.exporting_formats import make_writer, write_spans
        from headrace.transfer.spans import describe_source, resolve_spans

        source = await describe_source(client, stream, topic)
        spans = await resolve_spans(
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
    from headrace.errors import AlreadyExistsError, ConfigError

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
