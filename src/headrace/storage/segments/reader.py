"""Blocking reads of a segment: batches from an offset, the first batch at a time.

Every returned batch has been checked: length, checksum, expected offset. Anything unexpected is a
FreshDamage; the caller then lets the scanner find out how far the damage goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import CorruptionError, RemoteProtocolError
from headrace.runtime import File
from headrace.storage.layout import Point
from headrace.storage.segments.formats import MARK_BYTES, MARK_MAGIC_BYTE, decode_mark
from headrace.storage.segments.scan import is_intact
from headrace.wire.sbp.records import (
    HEADER_BYTES,
    BatchHeader,
    checksum_at,
    decode_extent,
    decode_header,
)

_LOOK_BYTES = 64 * 1024  # to see what stands at a place
_LOOK_AHEAD_BYTES = MARK_BYTES + HEADER_BYTES


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


@dataclass(frozen=True, slots=True)
class Located:
    """A stretch and the file it is in, for readers in other processes of this machine."""

    path: str
    identity: str
    stretch: Stretch


def read_batches(
    file: File, stretch: Stretch, offset: int, *, max_bytes: int, fetch_bytes: int
) -> list[memoryview]:
    """Whole batches from the one that contains `offset`, at least one, else up to `max_bytes`.

    `fetch_bytes` are asked of the file at a time. Neighbours in it come out as one view; a mark
    between two batches separates them.
    """
    return _take(_Walk(file, stretch, fetch_bytes=fetch_bytes), offset, max_bytes)


def _take(walk: _Walk, offset: int, max_bytes: int) -> list[memoryview]:
    runs: list[memoryview] = []
    taken = run_start = run_end = 0
    while walk.offset < walk.stop_offset:
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


class StretchReader:
    """Batches of a stretch one run after the other, for whoever has no index of the segment.

    The size of the batch ahead tells how much to ask of the file, so that batches of about one size
    are read once: half a large one would be read for nothing.
    """

    def __init__(self, file: File, stretch: Stretch) -> None:
        self._file = file
        self._walk = _Walk(file, stretch, fetch_bytes=_LOOK_BYTES)
        self.bytes = 0
        """The size of the batches read so far."""

    @property
    def next_offset(self) -> int:
        return self._walk.offset

    @property
    def is_over(self) -> bool:
        return self._walk.offset >= self._walk.stop_offset

    def read(self, offset: int, max_bytes: int) -> list[memoryview]:
        """As `read_batches`; offsets may only rise. FreshDamage."""
        walk = self._walk
        walk.fetch_bytes = _LOOK_BYTES
        size = self._size_at(offset) + MARK_BYTES
        walk.fetch_bytes = max(1, max_bytes // size) * size + _LOOK_AHEAD_BYTES
        runs = _take(walk, offset, max_bytes)
        self.bytes += sum(map(len, runs))
        return runs

    def _size_at(self, offset: int) -> int:
        walk = self._walk
        while walk.offset < walk.stop_offset:
            if walk.skip_mark():
                continue
            next_offset, size, _ = walk.extent()
            if next_offset > offset:
                return size
            walk.advance(size, next_offset)
        return 0  # it is over

    def close(self) -> None:
        self._file.close()


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
        self._stop, self.stop_offset = stretch.stop
        self._position, self.offset = stretch.start
        self.fetch_bytes = fetch_bytes
        self.buffer = memoryview(b"")
        self.at = 0

    def buffered(self, length: int) -> bool:
        return self.at + length <= len(self.buffer)

    def require(self, length: int) -> None:
        if self.buffered(length):
            return
        wanted = min(max(length, self.fetch_bytes), self._stop - self._position)
        if wanted < length:
            raise self.damage("batch reaches beyond what was written")
        self.buffer = memoryview(self._file.pread(wanted, self._position))
        self.at = 0
        if len(self.buffer) < length:
            raise self.damage("file is shorter than what was written")

    def skip_mark(self) -> bool:
        self.require(MARK_BYTES)
        if self.buffer[self.at] != MARK_MAGIC_BYTE:
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
