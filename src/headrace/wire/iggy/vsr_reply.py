"""Replies of dialect C to polls: stored messages as batches (see `vsr_batch.py`), and back.

A stored batch becomes one of a reply. Producers often send few messages at a time, so a poll takes
many stored batches: they are converted together, by array operations over all their messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.wire.iggy import batch
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.vsr_batch import (
    BATCH_HEADER_BYTES,
    COVERED,
    FRAME,
    FRAME_HEADER_BYTES,
    HEADER,
    LENGTHS_AT,
    MESSAGE,
    PADDING,
    U32_MAX,
    Frames,
    Memory,
    column,
    decode_batch,
    frame_starts,
    fresh_memory,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.wire.iggy.batch import Positions

_ORIGIN_AT = 40  # in a message
_FRONT_BYTES = 32  # of a frame: up to its lengths
_EMPTY = bytes(BATCH_HEADER_BYTES)


class Outline(NamedTuple):
    """What is to become one batch: so many of the messages."""

    messages: int
    base_offset: int | None = None
    """Of the stored batch that they are part of, if they have the checksums of their frames in it;
    otherwise those are made, and the first of them begins the batch."""
    oldest_us: int | None = None
    """The oldest origin timestamp in the stored batch, if it may not be among them."""


def encode_batches(
    area: Buffer,
    starts: Positions,
    outlines: Sequence[Outline],
    *,
    partition: int,
    memory: Memory = fresh_memory,
) -> memoryview:
    """Canonical messages of consecutive offsets, stamped by a server, as batches back to back.

    One for each outline, whose messages have one timestamp; more where origin timestamps are too
    far apart for one.
    """
    import numpy as np

    if len(starts) <= batch.FEW:
        return _encode_few(area, starts.tolist(), outlines, partition)
    framed = all(outline.base_offset is not None for outline in outlines)
    stride = batch.stride_of(starts, len(area))
    if framed and stride and len(outlines) == 1:
        return _encode_framed(area, stride, outlines[0], partition, memory)
    counts = np.array([outline.messages for outline in outlines], np.intp)
    firsts = np.cumsum(counts) - counts
    words = _heads(area, starts)
    origins = words[:, 5]
    oldest = np.minimum.reduceat(origins, firsts)
    if (np.maximum.reduceat(origins, firsts) - oldest > U32_MAX).any():
        fitting = list(_fitting(outlines, origins.tolist()))
        return encode_batches(area, starts, fitting, partition=partition, memory=memory)
    bases = words[firsts, 3]
    for at, outline in enumerate(outlines):
        if outline.base_offset is not None:
            bases[at] = outline.base_offset
        if outline.oldest_us is not None:
            oldest[at] = outline.oldest_us
    of_batch = np.repeat(np.arange(len(counts)), counts)
    numbers = words[:, 3] - bases[of_batch]
    times = words[firsts, 4]
    words[:, 3] = origins - oldest[of_batch] << np.uint64(32) | numbers
    fronts = np.ndarray(len(words), f"V{_FRONT_BYTES}", words, 0, (words.strides[0],))
    layout = _Layout(starts, len(area), counts, firsts, of_batch)
    if stride and (counts == counts[0]).all():
        out = _place_equal(area, stride, fronts, layout, memory)
    else:
        out = _place(area, starts, fronts, layout)
    sums = words[:, 0] if framed else _write_checksums(out, layout, stride)
    fields = np.empty((len(counts), 5), np.uint64)
    for position, value in enumerate((partition, bases, times, oldest, layout.lengths)):
        fields[:, position] = value
    _write_headers(out, layout, fields, np.ascontiguousarray(sums).view("<u8"))
    return out


def _encode_few(
    area: Buffer, starts: list[int], outlines: Sequence[Outline], partition: int
) -> memoryview:
    """One message after the other, which is faster."""
    import xxhash

    heads = [MESSAGE.unpack_from(area, start) for start in starts]
    origins = [head[4] for head in heads]
    view, ends, made, first = memoryview(area), [*starts[1:], len(area)], bytearray(), 0
    for outline in _fitting(outlines, origins):
        last = first + outline.messages
        oldest, base = outline.oldest_us, outline.base_offset
        if oldest is None:
            oldest = min(origins[first:last])
        if base is None:
            base = heads[first][2]
        begin, sums = len(made), b""
        made += _EMPTY
        for at in range(first, last):
            checksum, id_, offset, _, origin, headers_length, payload_length, _ = heads[at]
            front = FRAME.pack(
                checksum, id_, offset - base, origin - oldest, headers_length, payload_length, 0
            )
            rest = view[starts[at] + batch.HEADER_BYTES : ends[at]]
            if outline.base_offset is None:
                covered = b"".join((front[8:], rest))
                front = xxhash.xxh3_64_digest(covered)[::-1] + front[8:]
            sums += front[:8]
            made += front
            made += rest
        fields = (partition, base, heads[first][3], oldest, len(made) - begin)
        made[begin : begin + BATCH_HEADER_BYTES] = _header(fields, sums)
        first = last
    return memoryview(made)


def _heads(area: Buffer, starts: Positions) -> NDArray[Any]:
    """Copies of the messages' headers, as numbers of eight bytes."""
    gathered = batch.items(area, batch.HEADER_BYTES)[starts]
    words: NDArray[Any] = gathered.view("<u8").reshape(len(starts), batch.HEADER_BYTES // 8)
    return words


def _fitting(outlines: Iterable[Outline], origins: list[int]) -> Iterable[Outline]:
    """Smaller ones where origin timestamps are too far apart. Such messages are not framed."""
    end = 0
    for outline in outlines:
        begin, end = end, end + outline.messages
        oldest, newest = min(origins[begin:end]), max(origins[begin:end])
        if newest - oldest <= U32_MAX:
            yield outline
            continue
        cut, oldest, newest = begin, origins[begin], origins[begin]
        for at in range(begin, end):
            oldest, newest = min(oldest, origins[at]), max(newest, origins[at])
            if newest - oldest > U32_MAX:
                yield Outline(at - cut)
                cut, oldest, newest = at, origins[at], origins[at]
        yield Outline(end - cut)


class _Layout:
    """Where batches and frames stand in what is made of messages."""

    def __init__(
        self, starts: Positions, end: int, counts: Any, firsts: Any, of_batch: Any
    ) -> None:
        import numpy as np

        self.counts = counts
        self.firsts = firsts
        saved = batch.HEADER_BYTES - FRAME_HEADER_BYTES
        moved = BATCH_HEADER_BYTES * (of_batch + 1) - saved * np.arange(len(starts))
        self.frames: Any = starts.astype(np.int64) + moved
        self.total = end + BATCH_HEADER_BYTES * len(counts) - saved * len(starts)
        self.batches: Any = self.frames[firsts] - BATCH_HEADER_BYTES
        self.lengths: Any = np.diff(self.batches, append=self.total)


def _place_equal(
    area: Buffer, stride: int, fronts: Any, layout: _Layout, memory: Memory
) -> memoryview:
    """Messages of one size, in batches of the same number of them."""
    import numpy as np

    batches, each = len(layout.counts), int(layout.counts[0])
    size = stride - batch.HEADER_BYTES + FRAME_HEADER_BYTES
    rest = size - _FRONT_BYTES
    out = memory(layout.total)
    shape, strides = (batches, each), (BATCH_HEADER_BYTES + each * size, size)
    there = np.ndarray(shape, f"V{_FRONT_BYTES}", out, BATCH_HEADER_BYTES, strides)
    there[:] = fronts.reshape(shape)
    there = np.ndarray(shape, f"V{rest}", out, BATCH_HEADER_BYTES + _FRONT_BYTES, strides)
    there[:] = np.ndarray(shape, f"V{rest}", area, batch.LENGTHS_AT, (each * stride, stride))
    return out


def _place(area: Buffer, starts: Positions, fronts: Any, layout: _Layout) -> memoryview:
    made = fronts.tobytes()
    heads = [made[at : at + _FRONT_BYTES] for at in range(0, len(made), _FRONT_BYTES)]
    for first in layout.firsts.tolist():
        heads[first] = _EMPTY + heads[first]
    begins = (starts + batch.LENGTHS_AT).tolist()
    ends = [*starts[1:].tolist(), len(area)]
    rests = map(memoryview(area).__getitem__, map(slice, begins, ends))
    pieces: list[Buffer] = [b""] * (2 * len(heads))
    pieces[::2] = heads
    pieces[1::2] = rests
    return memoryview(bytearray().join(pieces))


def _write_checksums(out: memoryview, layout: _Layout, stride: int) -> NDArray[Any]:
    """Of the frames, which end where the next one or another batch begins."""
    import numpy as np

    if stride and len(layout.counts) == 1:
        size = stride - batch.HEADER_BYTES + FRAME_HEADER_BYTES
        return batch.write_checksums(out[BATCH_HEADER_BYTES:], layout.frames, size)
    begins = layout.frames.tolist()
    ends = [*begins[1:], len(out)]
    for position in layout.firsts[1:].tolist():
        ends[position - 1] -= BATCH_HEADER_BYTES
    bodies = [out[begin + 8 : end] for begin, end in zip(begins, ends, strict=True)]
    sums = batch.checksums(iter(bodies))
    batch.items(out, 8)[layout.frames.astype(np.uint32)] = sums
    return sums


def _write_headers(out: memoryview, layout: _Layout, fields: Any, sums: Any) -> None:
    import numpy as np
    import xxhash

    count = len(fields)
    if (layout.counts == layout.counts[0]).all():
        each = int(layout.counts[0])
        rows = np.empty((count, COVERED.size + 8 * each), np.uint8)
        rows[:, :40] = fields.view(np.uint8).reshape(count, 40)
        rows[:, 40:44] = np.frombuffer(each.to_bytes(4, "little"), np.uint8)
        rows[:, 44:] = sums.view(np.uint8).reshape(count, 8 * each)
        covered = [rows.tobytes()] if count == 1 else rows.view(f"V{rows.shape[1]}")[:, 0].tolist()
    else:
        heads, digests = fields.tobytes(), sums.tobytes()
        covered = [
            heads[40 * at : 40 * at + 40]
            + each.to_bytes(4, "little")
            + digests[8 * first : 8 * (first + each)]
            for at, (first, each) in enumerate(
                zip(layout.firsts.tolist(), layout.counts.tolist(), strict=True)
            )
        ]
    checksums = b"".join(map(xxhash.xxh3_64_digest, covered))
    headers = np.zeros((count, BATCH_HEADER_BYTES // 8), "<u8")
    headers[:, :5] = fields
    headers[:, 5] = np.frombuffer(checksums, ">u8")
    headers[:, 6] = layout.counts
    whole = f"V{BATCH_HEADER_BYTES}"
    batch.items(out, BATCH_HEADER_BYTES)[layout.batches] = headers.view(whole)[:, 0]


def _encode_framed(
    area: Buffer, stride: int, outline: Outline, partition: int, memory: Memory
) -> memoryview:
    """One batch of messages of one size that have their checksums: the usual case in bulk."""
    import numpy as np

    count, size = outline.messages, stride - batch.HEADER_BYTES + FRAME_HEADER_BYTES
    base_offset = outline.base_offset or 0
    _, _, _, offset, time, *_ = np.frombuffer(area, "<u8", 6).tolist()
    deltas = np.ndarray(count, "<u8", area, _ORIGIN_AT, (stride,)).copy()
    oldest = int(deltas.min()) if outline.oldest_us is None else outline.oldest_us
    deltas -= np.uint64(oldest)
    deltas <<= np.uint64(32)
    deltas |= np.arange(offset - base_offset, offset - base_offset + count, dtype=np.uint64)
    out = memory(BATCH_HEADER_BYTES + count * size)
    frames = out[BATCH_HEADER_BYTES:]
    ids = np.ndarray(count, "V24", area, 0, (stride,))  # and the checksums before them
    np.ndarray(count, "V24", frames, 0, (size,))[:] = ids
    np.ndarray(count, "<u8", frames, 24, (size,))[:] = deltas
    column(frames, size, LENGTHS_AT)[:] = column(area, stride, batch.LENGTHS_AT)
    sums = np.ndarray(count, "V8", frames, 0, (size,)).tobytes()
    out[:BATCH_HEADER_BYTES] = _header((partition, base_offset, time, oldest, len(out)), sums)
    return out


def oldest_origin_us(area: Buffer, starts: Positions) -> int:
    import numpy as np

    return int(batch.items(area, 8)[starts + np.uint32(_ORIGIN_AT)].view("<u8").min())


def header_of(frames: Frames, *, partition: int, base_offset: int, timestamp_us: int) -> bytes:
    """What stands before these frames in a reply."""
    data, sums, origin_us = frames
    length = BATCH_HEADER_BYTES + len(data)
    return _header((partition, base_offset, timestamp_us, origin_us, length), sums)


def _header(fields: tuple[int, ...], sums: bytes) -> bytes:
    import xxhash

    count = len(sums) // 8
    checksum = xxhash.xxh3_64_intdigest(COVERED.pack(*fields, count) + sums)
    return HEADER.pack(*fields, checksum, count) + PADDING


def encode_areas(areas: Iterable[Buffer], partition: int) -> list[memoryview]:
    """Messages of which nothing is known: each area as a batch for each timestamp in it."""
    made = []
    for area in areas:
        starts = batch.locate(area)
        times = _heads(area, starts)[:, 4].tolist()
        cuts = [0, *(at for at in range(1, len(times)) if times[at] != times[at - 1]), len(times)]
        outlines = [Outline(end - begin) for begin, end in pairwise(cuts)]
        made.append(encode_batches(area, starts, outlines, partition=partition))
    return made


# --- and back -------------------------------------------------------------------------------------


def decode_batches(data: memoryview) -> tuple[memoryview, ...]:
    """The messages of a reply's batches in canonical form: what a client reads."""
    areas = []
    while len(data):
        if len(data) < BATCH_HEADER_BYTES:
            raise DecodeError(Status.INVALID_COMMAND, "batch header cut short", length=len(data))
        *_, length, _, count = HEADER.unpack_from(data)
        if not BATCH_HEADER_BYTES < length <= len(data):
            raise DecodeError(Status.INVALID_COMMAND, "batch length", length=length)
        areas.append(_decode_polled(data[:length], count))
        data = data[length:]
    return tuple(areas)


def _decode_polled(data: memoryview, count: int) -> memoryview:
    import numpy as np

    _, base_offset, base_us, *_ = HEADER.unpack_from(data)
    area, starts, *_ = decode_batch(data, count)
    frames = data[BATCH_HEADER_BYTES:]
    numbers = batch.items(frames, 4)[frame_starts(frames, count) + np.uint32(24)].view("<u4")
    stamps = np.empty((count, 2), "<u8")
    stamps[:, 0] = np.uint64(base_offset) + numbers.astype("<u8")
    stamps[:, 1] = base_us
    batch.items(area, 16)[starts + np.uint32(24)] = stamps.view("V16")[:, 0]
    batch.write_checksums(area, starts, batch.stride_of(starts, len(area)))
    return area
