"""Messages of one topic into another, whole polls at a time: keys, headers, ids and times kept.

A message's origin timestamp is when its producer made it; where that says nothing, it becomes the
time at which the source stored it. Messages of one source partition keep their order. They go to
the partition of the same number; where the topics differ in that, a key goes where any client would
send it, and what has no key to the number modulo the partitions there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import xxhash

from headrace.client.iggy import IggyClient
from headrace.errors import OffsetOutOfRangeError
from headrace.runtime.interfaces import Clock
from headrace.transfer.delivery import Piece, WindowDelivery
from headrace.transfer.offset_ranges import OffsetRange
from headrace.wire.iggy.batch import gather_headers, items, locate, subset
from headrace.wire.iggy.columns import columns, keys
from headrace.wire.iggy.primitives import Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.wire.iggy.batch import Positions

    Area = tuple[memoryview, Positions]

POLL_MESSAGES = 10_000
POLL_MESSAGES_FIRST = 64
POLL_BYTES = 8 << 20
POLL_SECONDS = 60.0
_ORIGIN_AT = 40  # of the origin timestamp in a message's header

OnProgress = Callable[[int], None]


class Pace:
    """So many messages in a second, and no more; 0: as fast as it goes."""

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._sent = 0
        self._started = clock.monotonic()

    @property
    def batch(self) -> int:
        """Messages to take at a time: a tenth of a second's worth."""
        return max(1, min(POLL_MESSAGES, int(self._rate / 10))) if self._rate else POLL_MESSAGES

    async def on_sent(self, count: int) -> None:
        self._sent += count
        ahead = self._started + self._sent / self._rate if self._rate else 0.0
        if (wait := ahead - self._clock.monotonic()) > 0:
            await self._clock.sleep(wait)


class Copy:
    """From a source topic to a target topic, which may be on another server."""

    def __init__(
        self,
        client: IggyClient,
        source: tuple[str, str],
        target: tuple[str, str],
        *,
        partitions: tuple[int, int],
        pace: Pace,
        by_key: bool = False,
        accept_loss: bool = False,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        """`partitions` is how many the source has, and the target; `by_key` sends keys where
        clients of the target would, even if both have as many."""
        self._client = client
        self._source, self._target = source, target
        self._counts, self._by_key = partitions, by_key
        self._pace = pace
        self._accept_loss = accept_loss
        self._on_progress = on_progress

    async def span(self, span: OffsetRange, delivery: WindowDelivery, *, ends: bool) -> int:
        """How many messages were copied now; those that the delivery knows of are not again.

        `ends`: nothing will ever follow the span under this delivery.
        """
        copied = 0
        at = resume_at(span, delivery.last, accept_loss=self._accept_loss)
        self._on_progress(at - span.start)
        async for area, starts, end in read_span(
            self._client, self._source, OffsetRange(span.partition, at, span.end), self._pace
        ):
            keep_times(area, starts)
            pieces = self._route(area, starts, span.partition)
            await delivery.publish(end, pieces, last=ends and end >= span.end)
            copied += len(starts)
            self._on_progress(len(starts))
            await self._pace.on_sent(len(starts))
        return copied

    def _route(self, area: memoryview, starts: Positions, partition: int) -> list[Piece]:
        routed = route(area, starts, partition, counts=self._counts, by_key=self._by_key)
        return [Piece(*self._target, number, *part) for number, part in routed]


async def read_span(
    client: IggyClient, topic: tuple[str, str], span: OffsetRange, pace: Pace
) -> AsyncIterator[tuple[memoryview, Positions, int]]:
    """The messages of a span, which can be written to, and the offset after them.

    OffsetOutOfRangeError when retention took some of them meanwhile: what was asked for cannot be
    had any more, and whoever asked should know.
    """
    import numpy as np

    at, batch = span.start, POLL_MESSAGES_FIRST
    while at < span.end:
        polled = await client.poll(
            *topic,
            partition=span.partition,
            strategy=Strategy.offset(at),
            count=min(batch, pace.batch, span.end - at),
            timeout=POLL_SECONDS,
        )
        area = memoryview(bytearray().join(polled.slices))
        starts = locate(area)
        offsets = gather_headers(area, starts)["offset"] if len(starts) else np.empty(0, "<u8")
        if not len(offsets) or int(offsets[0]) != at:
            raise OffsetOutOfRangeError(
                f"messages of {'/'.join(topic)} are gone", partition=span.partition, offset=at
            )
        count = int(np.searchsorted(offsets, span.end))
        if count < len(starts):
            area, starts = subset(area, starts, 0, count)
        # Not every server stops before an answer becomes too large.
        batch = max(1, POLL_BYTES * len(offsets) // max(1, len(area)))
        at = int(offsets[count - 1]) + 1
        yield area, starts, at


def resume_at(span: OffsetRange, last: int, *, accept_loss: bool = False) -> int:
    """Where to go on when everything before `last` was copied; -1: nothing was."""
    if last > span.end:
        raise OffsetOutOfRangeError(
            "the source ends before what was copied of it: it is not the topic it was",
            partition=span.partition, copied=last, end=span.end,
        )  # fmt: skip
    if 0 <= last < span.start and not accept_loss:
        raise OffsetOutOfRangeError(
            "the source no longer has what follows the last message that was copied",
            partition=span.partition, copied=last, start=span.start,
        )  # fmt: skip
    return max(span.start, last)


def keep_times(area: memoryview, starts: Positions) -> None:
    """Write the stored time where the producer told none."""
    import numpy as np

    headers = gather_headers(area, starts)
    origin = headers["origin_timestamp"]
    if not origin.all():
        times = np.where(origin == 0, headers["timestamp"], origin)
        items(area, 8)[starts + np.uint32(_ORIGIN_AT)] = times.view("V8")


def route(
    area: memoryview,
    starts: Positions,
    partition: int,
    *,
    counts: tuple[int, int],
    by_key: bool = False,
) -> list[tuple[int, Area]]:
    """Messages by the partition they go to; `counts` are partitions of source and target."""
    source, target = counts
    if source == target and not by_key:
        return [(partition, (area, starts))]
    fallback = partition % target
    homes = _homes(area, starts, fallback, target)
    return [(home, _select(area, starts, homes == home)) for home in sorted(set(homes.tolist()))]


def _homes(area: memoryview, starts: Positions, fallback: int, count: int) -> NDArray[np.int64]:
    """XXH32 of the key modulo the partitions, as any Iggy client has it; once per distinct key."""
    import numpy as np

    apart = columns(area, starts)
    data, offsets, valid = keys(apart.headers_data, apart.headers_offsets)
    if not valid.any():
        return np.full(len(starts), fallback, np.int64)
    whole, bounds = data.tobytes(), offsets.tolist()
    known: dict[bytes, int] = {b"": fallback}
    homes = []
    for begin, end in pairwise(bounds):
        key = whole[begin:end]
        if key not in known:
            known[key] = xxhash.xxh32_intdigest(key) % count
        homes.append(known[key])
    return np.array(homes, np.int64)


def _select(area: memoryview, starts: Positions, chosen: NDArray[np.bool_]) -> Area:
    """The chosen messages as an area of their own."""
    import numpy as np

    if chosen.all():
        return area, starts
    lengths = np.diff(np.append(starts.astype(np.int64), len(area)))
    kept = np.frombuffer(area, np.uint8)[np.repeat(chosen, lengths)]
    ends = np.cumsum(lengths[chosen])
    return kept.data, (ends - lengths[chosen]).astype(np.uint32)
