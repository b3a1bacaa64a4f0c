"""What is stored in partitions, many at a time, without opening them.

Opening a partition fences its stream and may seal it; to say how much is in ten thousand of them
the data nodes are asked instead, hundreds in a request. Only the leader writes, so what is learned
about a partition that nobody has opened stays true until somebody does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import StateError
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.messages import SegmentInfo

STREAMS_PER_REQUEST = 500


class PartitionFigures(Protocol):
    """What is stored in one partition, open or not."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def messages_count(self) -> int: ...

    @property
    def start_offset(self) -> int:
        """The offset of the oldest message that is kept; `next_offset` where none is."""

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""

    @property
    def current_offset(self) -> int:
        """The offset of the last message; 0 where there is none, as clients expect."""

    @property
    def segments(self) -> list[SegmentInfo]: ...

    @property
    def closed_segments(self) -> list[SegmentInfo]: ...


@dataclass(slots=True)
class StoredPartition:
    """What the data nodes hold of one stream."""

    start_offset: int = 0
    next_offset: int = 0
    segments: list[SegmentInfo] = field(default_factory=list)
    closed_segments: list[SegmentInfo] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @property
    def messages_count(self) -> int:
        return self.next_offset - self.start_offset

    @property
    def current_offset(self) -> int:
        return max(self.next_offset - 1, 0)


async def describe(client: SbpClient, stream_ids: Iterable[int]) -> dict[int, StoredPartition]:
    """By stream id; streams that are gone, or whose data nodes are, are left out: what is known
    of the others is shown all the same."""
    wanted, found = list(stream_ids), {}
    for start in range(0, len(wanted), STREAMS_PER_REQUEST):
        found.update(await _describe(client, wanted[start : start + STREAMS_PER_REQUEST]))
    return found


async def _describe(client: SbpClient, stream_ids: list[int]) -> dict[int, StoredPartition]:
    listed = await client.list_ranges_of(stream_ids)
    asked = [
        range_
        for ranges in listed.values()
        for range_ in ranges
        if range_.end_offset != range_.start_offset  # else sealed before anything was written
    ]
    described = await _describe_reachable(client, asked)
    found = {
        stream_id: StoredPartition(ranges[0].start_offset, ranges[-1].start_offset)
        for stream_id, ranges in listed.items()
        if ranges
    }
    for range_, result in zip(asked, described, strict=True):
        if result is None:  # deleted or trimmed meanwhile, or out of reach
            found.pop(range_.stream_id, None)
        elif range_.stream_id in found:
            _add(found[range_.stream_id], range_, result)
    return found


async def _describe_reachable(
    client: SbpClient, ranges: list[m.Range]
) -> list[m.DescribeRangeResult | None]:
    try:
        return await client.describe_ranges(ranges)
    except StateError:
        if len(ranges) == 1:
            return [None]
    # One that nobody answers for must not hide the others; they are asked for side by side.
    found = await asyncio.gather(*(_describe_reachable(client, [range_]) for range_ in ranges))
    return [each[0] for each in found]


def _add(stored: StoredPartition, range_: m.Range, result: m.DescribeRangeResult) -> None:
    is_open = range_.end_offset < 0
    stored.segments += result.segments
    stored.closed_segments += result.segments[:-1] if is_open else result.segments
    if is_open:
        if result.range is None:
            stored.next_offset = range_.start_offset
        else:
            stored.next_offset = result.range.next_offset
    else:
        stored.next_offset = range_.end_offset
