"""Lines of JSON into a topic. A position is a byte of the file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

from headrace.cli.messages.records import from_line
from headrace.cli.transfer.import_sources import Imported, ImportTarget
from headrace.errors import ConfigError, InvalidArgumentError
from headrace.transfer.copying import Pace
from headrace.transfer.delivery import Piece
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning

BATCH_BYTES_MAX = 4 << 20
LINE_BYTES_MAX = 64 << 20


async def import_lines(
    target: ImportTarget,
    path: Path,
    *,
    rate: float = 0,
    by_key: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Imported:
    """`on_progress` is told bytes."""
    done = Imported()
    pace = Pace(target.client.runtime.clock, rate)
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            delivery = await target.delivery(_identity(path, file), "lines")
            at = max(0, delivery.last)
            _check_resume(file, at, size, path)
            done.before[str(path)] = at
            on_progress(at)
            for lines, end in _batches(file, at, pace.batch):
                messages = [from_line(line, f"at byte {place}") for line, place in lines]
                await delivery.publish(end, _pieces(target, messages, by_key=by_key))
                done.messages += len(messages)
                on_progress(end - at)
                at = end
                await pace.on_sent(len(messages))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return done


def _identity(path: Path, file: BinaryIO) -> dict[str, str]:
    """Tells the file from another one that is put in its place; a file that grows stays itself."""
    file.seek(0)
    first = file.readline(LINE_BYTES_MAX).rstrip(b"\r\n")
    return {"file": str(path.resolve()), "begin": hashlib.sha256(first).hexdigest()}


def _check_resume(file: BinaryIO, at: int, size: int, path: Path) -> None:
    if at == 0:
        return
    file.seek(at - 1)
    if at > size or (file.read(1) != b"\n" and at != size):
        raise InvalidArgumentError(
            f"{path} was imported up to byte {at}, and no line ends there now: it is another file. "
            "Give it another name to import it as well"
        )


def _batches(
    file: BinaryIO, at: int, count_max: int
) -> Iterator[tuple[list[tuple[bytes, int]], int]]:
    """Lines and where each begins, and the position after them."""
    file.seek(at)
    lines: list[tuple[bytes, int]] = []
    begin = at
    while line := file.readline(LINE_BYTES_MAX):
        place, at = at, at + len(line)
        if text := line.rstrip(b"\r\n"):
            lines.append((text, place))
        if len(lines) >= count_max or at - begin >= BATCH_BYTES_MAX:
            yield lines, at
            lines, begin = [], at
    if at > begin:
        yield lines, at


def _pieces(
    target: ImportTarget, messages: list[tuple[Message, int | None]], *, by_key: bool
) -> list[Piece]:
    """By partition: the line's own if there is such a one, else the key's, else any."""
    homes: dict[int | None, list[Message]] = {}
    for message, stated in messages:
        home = stated if stated is not None and stated < target.partitions and not by_key else None
        if home is None and (key := message.key):
            home = xxhash.xxh32_intdigest(key) % target.partitions
        homes.setdefault(home, []).append(message)
    pieces = []
    for home, group in homes.items():
        laid = encode_send(target.stream, target.topic, Partitioning.balanced(), group)
        pieces.append(Piece(target.stream, target.topic, home, laid.area, laid.starts))
    return pieces
