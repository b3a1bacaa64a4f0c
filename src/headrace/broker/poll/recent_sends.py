"""Short SENDs of dialect C as its readers get them: a log's newest, back to back in memory.

A poll takes many of them. Looked up and sent one by one they cost about as much as to convert all
of them together; here those that follow each other are one piece, for which nothing has to be done.
`MemoryAtHand` lends a few buffers again and again, because memory that is taken from the system
anew costs as much as a conversion.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.wire.iggy.vsr.batch import fresh_memory

_AT_HAND_BYTES_MAX = 2 * 1024 * 1024
_AT_HAND_MAX = 8


class MemoryAtHand:
    """A few buffers, each lent again once nobody views it."""

    def __init__(self) -> None:
        self._lent: list[bytearray] = []

    def take(self, length: int) -> memoryview:
        if length > _AT_HAND_BYTES_MAX:
            return fresh_memory(length)
        for memory in self._lent:
            if length <= len(memory) <= 2 * length and is_free(memory):
                return memoryview(memory)[:length]
        memory = bytearray(length)
        self._lent.insert(0, memory)
        del self._lent[_AT_HAND_MAX:]
        return memoryview(memory)


def is_free(memory: bytearray) -> bool:
    """Whether nobody views it: while somebody does, its length cannot change."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return False
    return True


CHUNK_BYTES_MIN = 16 * 1024
CHUNK_BYTES_MAX = 256 * 1024
_GROWTH = 4
_CHUNKS_MIN = 4  # in all: one is forgotten at a time


class Part(NamedTuple):
    """Batches of messages that follow each other."""

    first: int
    end: int
    data: memoryview


@dataclass(slots=True, eq=False)
class _Chunk:
    """Memory that is filled once, from its beginning; nothing in it changes then."""

    memory: bytearray
    used: int = 0
    bases: list[int] = field(default_factory=list)
    """The first offset of each batch, and for each also"""
    ends: list[int] = field(default_factory=list)
    """the one after its last,"""
    places: list[int] = field(default_factory=list)
    """and where it stands."""
    gaps: list[int] = field(default_factory=list)
    """The batches, by number, that do not follow those before them."""

    def has_room(self, length: int) -> bool:
        return self.used + length <= len(self.memory)

    def add(self, first: int, count: int, header: bytes, frames: memoryview) -> None:
        if self.ends and self.ends[-1] != first:
            self.gaps.append(len(self.bases))
        self.bases.append(first)
        self.ends.append(first + count)
        self.places.append(self.used)
        at = self.used + len(header)
        self.memory[self.used : at] = header
        self.used = at + len(frames)
        self.memory[at : self.used] = frames

    def parts(self, first: int, end: int) -> Iterator[Part]:
        count, begin = len(self.bases), bisect_left(self.bases, first)
        while begin < count and self.bases[begin] < end:
            gap = bisect_right(self.gaps, begin)
            follow = self.gaps[gap] if gap < len(self.gaps) else count
            last = bisect_right(self.ends, end, begin, follow) - 1
            if last >= begin:
                stop = self.places[last + 1] if last + 1 < count else self.used
                data = memoryview(self.memory)[self.places[begin] : stop]
                yield Part(self.bases[begin], self.ends[last], data)
            begin = follow


class RecentSends:
    """The newest short SENDs of each log, up to a bound over all of them."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._logs: dict[int, list[_Chunk]] = {}
        self._order: deque[int] = deque()
        """Whose each chunk is, the oldest first."""

    def add(self, log: int, first: int, count: int, header: bytes, frames: memoryview) -> None:
        """A batch, behind those that were added before: one that comes late is left out."""
        length = len(header) + len(frames)
        chunks = self._logs.get(log)
        chunk = chunks[-1] if chunks else None
        if chunk is not None and first < chunk.ends[-1]:
            return
        if chunk is None or not chunk.has_room(length):
            before = 0 if chunk is None else len(chunk.memory)
            size = min(_GROWTH * before, CHUNK_BYTES_MAX, self._bytes_max // _CHUNKS_MIN)
            size = max(size, CHUNK_BYTES_MIN, length)
            if size > self._bytes_max:
                return
            chunk = _Chunk(self._memory(size))
            self._logs.setdefault(log, []).append(chunk)
            self._order.append(log)
        chunk.add(first, count, header, frames)

    def _memory(self, size: int) -> bytearray:
        """That of the oldest, if there must be room and nobody views it: fresh memory costs more
        than what is copied there."""
        self.bytes += size
        memory = None
        while self.bytes > self._bytes_max:
            memory = self.forget_oldest()
        if memory is not None and len(memory) == size and is_free(memory):
            return memory
        return bytearray(size)

    def forget_oldest(self) -> bytearray:
        """Make room; returns the memory of the oldest chunk, which somebody may view still."""
        oldest = self._order.popleft()
        chunks = self._logs[oldest]
        memory = chunks.pop(0).memory
        self.bytes -= len(memory)
        if not chunks:
            del self._logs[oldest]
        return memory

    def parts(self, log: int, first: int, end: int) -> Iterator[Part]:
        """What there is of these messages, in order, whole batches only."""
        chunks = self._logs.get(log)
        if chunks is None or chunks[-1].ends[-1] <= first:
            return
        begin = bisect_right(chunks, first, key=_first_of)
        for chunk in chunks[max(0, begin - 1) :]:
            if chunk.bases[0] >= end:
                return
            yield from chunk.parts(first, end)


def _first_of(chunk: _Chunk) -> int:
    return chunk.bases[0]
