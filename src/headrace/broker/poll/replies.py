"""What polls make of stored messages: batches for clients of dialect C, and checksums for others of
what came without.

A SEND of dialect C already has the form that another client of the dialect is to get, so its frames
are kept: of short SENDs in `recent_sends.py`, of long ones where they came. Both only while there
are readers in the dialect; without readers keeping short ones is work for nothing, and long ones
are faster converted in place. Most other batches are read once. They are made in memory that is
used again and again, because fresh memory costs more than the conversion. What is read a second
time is kept, since several consumers read the same place. Stored messages never change, so what was
made of them stays right for as long as their log is open; logs go by their serial.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.broker.partitions.partition import Slice
from headrace.broker.poll.readahead import index_of, messages_of
from headrace.broker.poll.recent_sends import MemoryAtHand, RecentSends, is_free
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy import batch
from headrace.wire.iggy.vsr.batch import Frames, Memory, fresh_memory
from headrace.wire.iggy.vsr.frames import KEPT_BYTES_MIN, Lent
from headrace.wire.iggy.vsr.reply import Run, encode_batches, header_of, oldest_origin_us
from headrace.wire.sbp.records import FRAMED, UNSUMMED

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions

_ALONE_BYTES_MIN = 16 * 1024  # of a batch; shorter ones are converted together
_KEPT_SHARE = 4  # no SEND takes more than this part of what may be kept, nor do all short ones
_SHORT_BYTES_MAX = 32 * 1024  # of messages; longer ones stay in the memory they came in
_SHORT_COUNT_MIN = 4  # fewer messages cost more to keep than to convert
_SEEN_MAX = 16_384
_MESSAGE = struct.Struct("<24xQQ")  # offset and timestamp
_POSITION_BYTES = 4
_KIND = UNSUMMED | FRAMED

_Key = tuple[bool, int, int, int]
"""In dialect C or with checksums, the log, the first offset, the length of the messages."""


class _Kept(msgspec.Struct, gc=False, eq=False):
    """Nothing that it refers to may lead back to it: the garbage collector does not look here,
    where thousands are."""

    header: bytes
    """What stands before the frames of a SEND; of what was made it is a part."""
    data: memoryview
    bytes: int
    lent: Lent | None = None


class ReplyCache:
    """What readers get that is not as it is stored, up to a bound.

    `on_growth` is called after more was kept: the owner of several caches may then forget some.
    """

    def __init__(self, bytes_max: int, on_growth: Callable[[], None] = lambda: None) -> None:
        self._bytes_max = bytes_max
        self._on_growth = on_growth
        self._recent = RecentSends(bytes_max // _KEPT_SHARE)
        self.bytes = 0
        """What is kept, of all kinds."""
        self._kept_bytes = 0
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._seen: OrderedDict[_Key, None] = OrderedDict()
        self._at_hand = MemoryAtHand()
        self._sent = 0
        self._sent_at_read: int | None = None

    def keeps_frames(self) -> bool:
        """Whether somebody reads in dialect C what is sent: since the last time no more was sent
        than may be kept."""
        read = self._sent_at_read
        return read is not None and self._sent - read < self._bytes_max

    def on_sent(self, length: int) -> None:
        """So many bytes of messages in dialect C."""
        self._sent += length

    def keep(
        self, log: int, partition: int, area: memoryview, frames: Frames, lent: Lent | None
    ) -> None:
        """The frames of a SEND whose messages, now stored, are in `area`: as one batch, if that was
        stamped as a whole. Of one that is not short only if it may stay in the memory it is in."""
        first, timestamp_us = _MESSAGE.unpack_from(area)
        if not timestamp_us:
            return
        short = len(area) < _SHORT_BYTES_MAX and frames.messages >= _SHORT_COUNT_MIN
        if short and self.keeps_frames():
            header = _header(frames, partition, first, timestamp_us)
            self._recent.add(log, first, frames.messages, header, frames.data)
            self._make_room()
            return
        alone = len(area) >= _ALONE_BYTES_MIN  # as `_convert` will ask for it
        if lent is None or not alone or len(lent.memory) * _KEPT_SHARE > self._bytes_max:
            return
        key = True, log, first, len(area)
        if key in self._kept:  # two have read it already
            return
        lent.kept = True
        header = _header(frames, partition, first, timestamp_us)
        self._put(key, _Kept(header, frames.data, len(lent.memory), lent))

    def batches(self, log: int, partition: int, found: Slice) -> list[Buffer]:
        """In dialect C."""
        self._sent_at_read = self._sent
        made: list[Buffer] = []
        begin, count = 0, len(found.pieces)
        for part in self._recent.parts(log, found.first, found.first + found.count):
            number = found.number_of(part.first)
            if begin < number:
                made += self._convert(log, partition, found, slice(begin, number))
            made.append(part.data)
            begin = found.number_of(part.end)
        if begin < count:
            made += self._convert(log, partition, found, slice(begin, count))
        return made

    def _convert(self, log: int, partition: int, found: Slice, of: slice) -> list[Buffer]:
        made: list[Buffer] = []
        for some in _together(found, of):
            key = _key(True, log, found, some)
            kept = self._kept.get(key)
            if kept is None:
                made.append(self._make(key, _Batches(found, some, partition)))
            elif kept.lent is None:
                self._kept.move_to_end(key)
                made.append(kept.data)
            else:  # it keeps its place: most are read once, and at once
                made += (kept.header, kept.data)
        return made

    def summed(self, log: int, found: Slice) -> Sequence[Buffer]:
        """The messages, all with checksums."""
        if not found.unsummed:
            return found.pieces
        made: list[Buffer] = []
        for some in _together(found, slice(0, len(found.pieces))):
            if not found.stored[some.start][0].attributes & UNSUMMED:
                made += found.pieces[some]
                continue
            key = _key(False, log, found, some)
            kept = self._kept.get(key)
            if kept is None:
                made.append(self._make(key, _Summed(found, some)))
            else:
                self._kept.move_to_end(key)
                made.append(kept.data)
        return made

    def _make(self, key: _Key, wanted: _Batches | _Summed) -> memoryview:
        if key[-1] < KEPT_BYTES_MIN:
            return wanted.make(fresh_memory)
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _SEEN_MAX:
                self._seen.popitem(last=False)
            return wanted.make(self._at_hand.take)
        made = wanted.make(fresh_memory)
        self._put(key, _Kept(b"", made, len(made)))
        return made

    def _put(self, key: _Key, kept: _Kept) -> None:
        self._kept[key] = kept
        self._kept_bytes += kept.bytes
        self._make_room()

    def _make_room(self) -> None:
        self.bytes = self._kept_bytes + self._recent.bytes
        while self.bytes > self._bytes_max:
            self.forget_oldest()
        self._on_growth()

    def forget_oldest(self) -> None:
        """Make room: long SENDs and what was made first, then the oldest short SENDs."""
        if not self._kept:
            self.bytes -= len(self._recent.forget_oldest())
            return
        oldest = self._kept.popitem(last=False)[1]
        self._kept_bytes -= oldest.bytes
        self.bytes -= oldest.bytes
        lent = oldest.lent
        del oldest  # it has views of that memory
        if lent and isinstance(lent.memory, bytearray) and is_free(lent.memory):
            lent.give_back()


def _together(found: Slice, of: slice) -> Iterator[slice]:
    """Long pieces one by one, short ones that follow each other and are alike as one."""
    begin, kind, end = of.start, -1, of.stop
    pieces, stored = found.pieces[of], found.stored[of]
    short = len(pieces) > 1 and max(map(len, pieces)) < _ALONE_BYTES_MIN
    if len(pieces) == 1 or (short and len({header.attributes for header, _, _ in stored}) == 1):
        yield of  # as is usual
        return
    for number in range(begin, end):
        alone = len(found.pieces[number]) >= _ALONE_BYTES_MIN
        this = -1 if alone else found.stored[number][0].attributes & _KIND
        if number > begin and (alone or this != kind):
            yield slice(begin, number)
            begin = number
        kind = this
    if begin < end:
        yield slice(begin, end)


def _header(frames: Frames, partition: int, first: int, timestamp_us: int) -> bytes:
    return header_of(frames, partition=partition, base_offset=first, timestamp_us=timestamp_us)


def _key(in_c: bool, log: int, found: Slice, some: slice) -> _Key:
    first = max(found.first, found.stored[some.start][0].base_offset)
    if some.stop == some.start + 1:
        return in_c, log, first, len(found.pieces[some.start])
    if some.stop - some.start == len(found.pieces):
        return in_c, log, first, found.bytes
    return in_c, log, first, sum(map(len, found.pieces[some]))


# --- making ---------------------------------------------------------------------------------------


class _Batches(NamedTuple):
    found: Slice
    some: slice
    partition: int

    def make(self, memory: Memory) -> memoryview:
        found, some = self.found, self.some
        counts = found.counts(some)
        area, starts = _join(found, some, counts)
        run = Run(counts)
        if found.stored[some.start][0].attributes & FRAMED:
            bases = [header.base_offset for header, _, _ in found.stored[some]]
            run = Run(counts, bases, _oldest(found, some, counts))
        return encode_batches(area, starts, run, partition=self.partition, memory=memory)


class _Summed(NamedTuple):
    found: Slice
    some: slice

    def make(self, memory: Memory) -> memoryview:
        found, some = self.found, self.some
        area, starts = _join(found, some, found.counts(some))
        return batch.with_checksums(area, starts, memory)


def _oldest(found: Slice, some: slice, counts: list[int]) -> dict[int, int]:
    """The oldest origin timestamps of batches that are not here as a whole."""
    import numpy as np

    oldest = {}
    for number in {0, len(counts) - 1}:
        stored = found.stored[some.start + number]
        if counts[number] < stored[0].record_count:
            starts = np.frombuffer(index_of(stored), "<u4")
            oldest[number] = oldest_origin_us(messages_of(stored), starts)
    return oldest


def _join(found: Slice, some: slice, counts: list[int]) -> tuple[Buffer, Positions]:
    """The messages in a row, and where each starts."""
    pieces = found.pieces[some]
    if len(pieces) == 1:
        return pieces[0], _starts(found, some, counts)
    area = b"".join(pieces)
    starts = batch.locate_equal(area)
    return area, _starts(found, some, counts) if starts is None else starts


def _starts(found: Slice, some: slice, counts: list[int]) -> Positions:
    """As the batches' indexes tell."""
    import numpy as np

    indexes, skip = [], found.skipped(some)
    for stored, count in zip(found.stored[some], counts, strict=True):
        at = _POSITION_BYTES * skip
        indexes.append(index_of(stored)[at : at + _POSITION_BYTES * count])
        skip = 0
    starts: Positions = np.frombuffer(b"".join(indexes), "<u4")
    if len(counts) == 1 and not starts[0]:
        return starts
    firsts = np.cumsum(counts) - counts
    moves = -starts[firsts]
    moves[1:] += np.cumsum(list(map(len, found.pieces[some])), dtype=np.uint32)[:-1]
    starts = starts + np.repeat(moves, counts)
    return starts
