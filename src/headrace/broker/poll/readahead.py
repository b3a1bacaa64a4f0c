"""Batches fetched beyond what a poll asked for, kept for the polls that follow.

Consumers read forwards, a few messages at a time, and several of them read the same place; a fetch
from disk costs about the same for 100 KB as for 1 MB. Stored batches never change, so what is kept
here is right for as long as its log lives. A stream has a few runs of consecutive batches, one for
each place it is read at; a fetch that goes on where a run ends makes it longer, up to a bound. The
runs least recently read make room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.wire.sbp.records import HEADER_BYTES, BatchHeader, decode_header, split

Batch = tuple[BatchHeader, memoryview, memoryview | None]
"""Its header and all of it; or its messages, and apart from them where they start."""

_POSITION_BYTES = 4
_PIECES = 3  # of a batch that is as it was appended

RUNS_PER_STREAM_MAX = 8  # looked through one by one
RUN_BYTES_MAX = 8 << 20  # what is forgotten at a time


@dataclass(slots=True, eq=False)
class _Run:
    """Consecutive batches."""

    stream_id: int
    batches: list[Batch]
    bases: list[int]
    end: int
    bytes: int


def split_batches(fetched: Iterable[memoryview]) -> list[Batch]:
    """Each piece is one or more whole batches."""
    return [(header, view, None) for piece in fetched for header, view in split(piece)]


def batches_of(cached: Iterable[Sequence[memoryview]]) -> list[Batch]:
    """Each is one whole batch, in one or more pieces."""
    batches: list[Batch] = []
    for pieces in cached:
        header = decode_header(pieces[0])
        if len(pieces) == _PIECES and len(pieces[2]) == _POSITION_BYTES * header.record_count:
            batches.append((header, pieces[1], pieces[2]))
        else:
            view = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
            batches.append((header, view, None))
    return batches


def messages_of(batch: Batch) -> memoryview:
    header, view, index = batch
    if index is not None:
        return view
    return view[HEADER_BYTES : len(view) - _POSITION_BYTES * header.record_count]


def index_of(batch: Batch) -> memoryview:
    """Where its messages start, u32 each."""
    header, view, index = batch
    return view[len(view) - _POSITION_BYTES * header.record_count :] if index is None else index


class ReadAhead:
    """The batches, up to a bound.

    `on_growth` is called after more was kept: the owner of several caches may then forget some.
    """

    def __init__(self, bytes_max: int, on_growth: Callable[[], None] = lambda: None) -> None:
        self._bytes_max = bytes_max
        self._on_growth = on_growth
        self.bytes = 0
        self._streams: dict[int, list[_Run]] = {}
        self._recent: OrderedDict[_Run, None] = OrderedDict()

    def get(self, stream_id: int, offset: int) -> Iterable[Batch]:
        """Batches from the one that contains `offset`; () when that one is not here."""
        runs = self._streams.get(stream_id, [])
        for position in range(len(runs) - 1, -1, -1):
            run = runs[position]
            if run.bases[0] <= offset < run.end:
                if position < len(runs) - 1:
                    runs.append(runs.pop(position))  # the least recently read stand first
                self._recent.move_to_end(run)
                first = bisect_right(run.bases, offset) - 1
                # Not a slice: a run may hold thousands of batches, of which a poll takes a few.
                return map(run.batches.__getitem__, range(first, len(run.batches)))
        return ()

    def put(self, stream_id: int, batches: Sequence[Batch]) -> None:
        """Keep consecutive batches."""
        size = sum(header.batch_bytes for header, _, _ in batches)
        if not batches or size > self._bytes_max:
            return
        runs = self._streams.setdefault(stream_id, [])
        self.bytes += size
        self._extend(runs, stream_id, batches, size)
        if len(runs) > RUNS_PER_STREAM_MAX:
            self._forget(runs[0])
        while self.bytes > self._bytes_max:
            self.forget_oldest()
        self._on_growth()

    def _extend(
        self, runs: list[_Run], stream_id: int, batches: Sequence[Batch], size: int
    ) -> None:
        bases = [header.base_offset for header, _, _ in batches]
        bytes_max = min(RUN_BYTES_MAX, self._bytes_max)
        for position, run in enumerate(runs):
            if run.end == bases[0] and run.bytes + size <= bytes_max:
                runs.append(runs.pop(position))
                run.batches += batches
                run.bases += bases
                run.bytes += size
                run.end = batches[-1][0].next_offset
                self._recent.move_to_end(run)
                return
        run = _Run(stream_id, list(batches), bases, batches[-1][0].next_offset, size)
        runs.append(run)
        self._recent[run] = None

    def drop(self, stream_id: int) -> None:
        for run in list(self._streams.get(stream_id, ())):
            self._forget(run)

    def forget_oldest(self) -> None:
        """Make room: of what was least recently read."""
        self._forget(next(iter(self._recent)))

    def _forget(self, run: _Run) -> None:
        del self._recent[run]
        self.bytes -= run.bytes
        runs = self._streams[run.stream_id]
        runs.remove(run)
        if not runs:
            del self._streams[run.stream_id]
