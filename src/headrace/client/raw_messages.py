"""Messages as they lie in the log: runs of bytes, and where in them each message starts.

Everything here is by array operations; nothing needs Arrow, which not every client has. `COLUMNS`
names what Arrow tables and Spark show of a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from headrace.errors import CorruptionError
from headrace.wire.iggy.batch import gather_headers, locate, read_starts
from headrace.wire.sbp import records

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions

Area: TypeAlias = "tuple[memoryview, Positions]"
"""Whole messages back to back, and where each begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Consecutive messages of one partition as they lie in the log."""

    partition: int
    start: int
    """The offset of the first."""
    area: Area

    @property
    def next_offset(self) -> int:
        return self.start + len(self.area[1])


def parts_of(partition: int, start: int, areas: Sequence[Area]) -> tuple[Part, ...]:
    """Areas that follow each other, the first from offset `start` on."""
    parts: list[Part] = []
    for area in areas:
        parts.append(Part(partition, start, area))
        start = parts[-1].next_offset
    return tuple(parts)


def unpack(
    pieces: Sequence[memoryview], start: int, end: int, *, verified: bool = False
) -> Iterator[Area]:
    """The messages with offsets [start, end) in whole record batches, which must not leave gaps.

    Checksums are tried here unless they were `verified` before.
    """
    expected = None
    for piece in pieces:
        for header, batch in records.split(piece):
            body = batch[records.HEADER_BYTES :]
            if not verified:
                records.verify(batch[: records.HEADER_BYTES], [body])
            if expected is not None and header.base_offset != expected:
                raise CorruptionError(
                    "a gap in the log", expected=expected, found=header.base_offset
                )
            expected = header.base_offset + header.record_count
            area, starts = _messages(header, body)
            first = max(0, start - header.base_offset)
            last = min(header.record_count, end - header.base_offset)
            if first < last:
                yield cut(area, starts, first, last)


def _messages(header: records.BatchHeader, body: memoryview) -> Area:
    if header.records != records.RECORDS_IGGY:
        raise CorruptionError("a batch that holds no messages", offset=header.base_offset)
    if header.attributes & records.INDEXED:
        return read_starts(body, header.record_count)
    return body, locate(body)


def cut(area: memoryview, starts: Positions, first: int, last: int) -> Area:
    """Messages [first, last) of an area."""
    import numpy as np

    begin = int(starts[first])
    end = int(starts[last]) if last < len(starts) else len(area)
    return area[begin:end], starts[first:last] - np.uint32(begin)


def first_offset(area: memoryview) -> int:
    """The offset of the first message of an area."""
    import numpy as np

    return int(gather_headers(area, np.zeros(1, np.uint32))["offset"][0])


def join(areas: Sequence[Area]) -> Area:
    """Consecutive areas as one: a copy at memory speed, for which every later step runs once."""
    import numpy as np

    if len(areas) == 1:
        return areas[0]
    ends = np.cumsum([len(area) for area, _ in areas])
    shifts = [0, *ends[:-1].tolist()]
    starts = [starts + np.uint32(shift) for (_, starts), shift in zip(areas, shifts, strict=True)]
    return memoryview(b"".join(area for area, _ in areas)), np.concatenate(starts)


COLUMNS = (
    "stream",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "origin_timestamp",
    "id",
    "key",
    "headers",
    "payload",
)
