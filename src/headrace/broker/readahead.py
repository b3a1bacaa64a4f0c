"""Batches fetched beyond what a poll asked for, kept for the polls that follow.

Consumers read forwards, a few messages at a time, and several of them read the same place; a fetch
from disk costs about the same for 100 KB as for 1 MB. Stored batches never change, so what is kept
here is right for as long as its log lives. One run of consecutive batches per stream; the streams
least recently read make room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.wire.sbp.records import BatchHeader, split

Batch = tuple[BatchHeader, memoryview]


@dataclass(slots=True)
class _Run:
    """Consecutive batches."""

    batches: list[Batch]
    bases: list[int]
    bytes: int

    @property
    def end(self) -> int:
        return self.batches[-1][0].next_offset


class ReadAhead:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._runs: OrderedDict[int, _Run] = OrderedDict()

    def get(self, stream_id: int, offset: int) -> Sequence[Batch]:
        """Batches from the one that contains `offset`; none when that one is not here."""
        run = self._runs.get(stream_id)
        if run is None or not run.bases[0] <= offset < run.end:
            return ()
        self._runs.move_to_end(stream_id)
        return run.batches[bisect_right(run.bases, offset) - 1 :]

    def put(self, stream_id: int, pieces: Sequence[memoryview]) -> Sequence[Batch]:
        """Keep fetched batches instead of those kept before; returns them."""
        batches = [batch for piece in pieces for batch in split(piece)]
        self.drop(stream_id)
        size = sum(len(view) for _, view in batches)
        if batches and size <= self._bytes_max:
            bases = [header.base_offset for header, _ in batches]
            self._runs[stream_id] = _Run(batches, bases, size)
            self._bytes += size
            while self._bytes > self._bytes_max:
                self.drop(next(iter(self._runs)))
        return batches

    def drop(self, stream_id: int) -> None:
        run = self._runs.pop(stream_id, None)
        if run is not None:
            self._bytes -= run.bytes

    @property
    def bytes(self) -> int:
        return self._bytes
