"""Blocking reads of a segment: batches from an offset, the first batch at a time.

Every returned batch has been checked: length, checksum, expected offset. Anything unexpected is a
FreshDamage; the caller then lets the scanner find out how far the damage goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import CorruptionError, RemoteProtocolError
from headrace.runtime import File
from headrace.storage.marks import MAGIC_BYTE, MARK_BYTES, decode_mark
from headrace.storage.model import Point
from headrace.storage.scan import is_intact
from headrace.wire.sbp.records import (
    HEADER_BYTES,
    BatchHeader,
    checksum_at,
    decode_extent,
    decode_header,
)


class FreshDamage(CorruptionError):
    """Met by a read; how far it goes is not known yet."""


class MissingFileError(FreshDamage):
    """The whole file is gone."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a segment without known damage: where reading starts and where it must stop."""

    binding: int
    start: Point
    stop: Point


def read_batches(
    file: File, stretch: Stretch, offset: int, *, max_bytes: int, fetch_bytes: int
) -> list[memoryview]:
    """Whole batches from the one that contains `offset`, at least one, else up to `max_bytes`.

    `fetch_bytes` are asked of the file at a time. Neighbours in it come out as one view; a mark
    between two batches separates them.
    """
    walk = _Walk(file, stretch, fetch_bytes=fetch_bytes)
    runs: list[memoryview] = []
    taken = run_start = run_end = 0
    while walk.offset < stretch.stop.offset:
        if taken and not walk.buffered(HEADER_BYTES):
            break
        if walk.skip_mark():
            continue
        next_offset, size, crc = walk.extent()
        if next_offset <= offset:
            walk.advance(size, next_offset)
            continue
        if taken and (taken + size > max_bytes or not walk.buffered(size)):
            break
        walk.require(size)
        at = walk.at
        if checksum_at(walk.buffer, at, size) != crc:
            raise walk.damage("checksum mismatch")
        if run_end != at or not taken:
            if taken:
                runs.append(walk.buffer[run_start:run_end])
            run_start = at
        run_end = at + size
        taken += size
        walk.advance(size, next_offset)
    if taken:
        runs.append(walk.buffer[run_start:run_end])
    return runs


def find_time(
    file: File, stretch: Stretch, timestamp: int, *, from_offset: int, fetch_bytes: int
) -> int | None:
    """Base offset of the first batch in the stretch that reaches both time and offset."""
    walk = _Walk(file, stretch, fetch_bytes=fetch_bytes)
    while walk.offset < stretch.stop.offset:
        if walk.skip_mark():
            continue
        header = walk.header()
        if header.max_timestamp >= timestamp and header.next_offset > from_offset:
            walk.require(header.batch_bytes)  # an unchecked header must not decide
            if not is_intact(header, walk.buffer[walk.at :]):
                raise walk.damage("checksum mismatch")
            return header.base_offset
        walk.advance(header.batch_bytes, header.next_offset)
    return None


class _Walk:
    """A position in the stretch and the buffer around it."""

    def __init__(self, file: File, stretch: Stretch, *, fetch_bytes: int) -> None:
        self._file = file
        self._binding = stretch.binding
        self._stop = stretch.stop.position
        self._position, self.offset = stretch.start
        self._fetch_bytes = fetch_bytes
        self.buffer = memoryview(b"")
        self.at = 0

    def buffered(self, length: int) -> bool:
        return self.at + length <= len(self.buffer)

    def require(self, length: int) -> None:
        if self.buffered(length):
            return
        wanted = min(max(length, self._fetch_bytes), self._stop - self._position)
        if wanted < length:
            raise self.damage("batch reaches beyond what was written")
        self.buffer = memoryview(self._file.pread(wanted, self._position))
        self.at = 0
        if len(self.buffer) < length:
            raise self.damage("file is shorter than what was written")

    def skip_mark(self) -> bool:
        self.require(MARK_BYTES)
        if self.buffer[self.at] != MAGIC_BYTE:
            return False
        mark = decode_mark(self.buffer, self.at, binding=self._binding, position=self._position)
        if mark is None or mark.first_offset != self.offset:
            raise self.damage("mark is damaged")
        self._move(MARK_BYTES)
        return True

    def header(self) -> BatchHeader:
        self.require(HEADER_BYTES)
        try:
            header = decode_header(self.buffer, self.at)
        except RemoteProtocolError as error:
            raise self.damage(error.message) from error
        if header.base_offset != self.offset:
            raise self.damage("batch has another offset")
        return header

    def extent(self) -> tuple[int, int, int]:
        """As `header`, of it only next offset, size and checksum."""
        self.require(HEADER_BYTES)
        try:
            base_offset, next_offset, size, crc = decode_extent(self.buffer, self.at)
        except RemoteProtocolError as error:
            raise self.damage(error.message) from error
        if base_offset != self.offset:
            raise self.damage("batch has another offset")
        return next_offset, size, crc

    def advance(self, size: int, next_offset: int) -> None:
        self._move(size)
        self.offset = next_offset

    def _move(self, length: int) -> None:
        self._position += length
        self.at += length

    def damage(self, why: str) -> FreshDamage:
        return FreshDamage(why, position=self._position, offset=self.offset)
