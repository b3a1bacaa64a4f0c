"""Replies of dialect C to polls: stored messages as batches (see `vsr/batch.py`), and back.

A stored batch becomes one of a reply. Producers often send few messages at a time, so a poll takes
many stored batches: they are converted together, by array operations over all their messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.wire.iggy import batch
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.vsr.batch import (
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
    decode_batch,
    frame_starts,
    fresh_memory,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.wire.iggy.batch import Positions

_ORIGIN_AT = 40  # in a message
_OFFSET_AT = 24
_EMPTY = bytes(BATCH_HEADER_BYTES)


class Run(NamedTuple):
    """How messages that follow each other become batches."""

    counts: Sequence[int]
    bases: Sequence[int] | None = None
    """Where the stored batches begin that they are of, if they have the checksums of their frames
    in these; otherwise those are made, and the batches begin with them."""
    oldest_us: Mapping[int, int] = {}
    """The oldest origin timestamp of stored batches of which this may not be among the messages."""


def encode_batches(
    area: Buffer, starts: Positions, run: Run, *, partition: int, memory: Memory = fresh_memory
) -> memoryview:
    """Canonical messages of consecutive offsets, stamped by a server, as batches back to back.

    The messages of each have one timestamp. There are more batches where origin timestamps are too
    far apart for one.
    """
    if len(starts) <= batch.FEW:
        return _encode_few(area, starts.tolist(), run, partition)
    stride = batch.stride_of(starts, len(area))
    alike = run.counts.count(run.counts[0]) == len(run.counts)
    if stride and alike and (len(run.counts) == 1 or not run.oldest_us):
        made = _encode_equal(area, stride, run, partition, memory)
        if made is not None:
            return made
    return _encode_any(area, starts, run, partition)


def _encode_few(area: Buffer, starts: list[int], run: Run, partition: int) -> memoryview:
    """One message after the other, which is faster."""
    import xxhash

    heads = [MESSAGE.unpack_from(area, start) for start in starts]
    origins = [head[4] for head in heads]
    run = _fitting(run, origins)
    view, ends, made, last = memoryview(area), [*starts[1:], len(area)], bytearray(), 0
    for number, count in enumerate(run.counts):
        first, last = last, last + count
        oldest = run.oldest_us.get(number)
        if oldest is None:
            oldest = min(origins[first:last])
        base = heads[first][2] if run.bases is None else run.bases[number]
        begin, sums = len(made), b""
        made += _EMPTY
        for at in range(first, last):
            checksum, id_, offset, _, origin, headers_length, payload_length, _ = heads[at]
            front = FRAME.pack(
                checksum, id_, offset - base, origin - oldest, headers_length, payload_length, 0
            )
            rest = view[starts[at] + batch.HEADER_BYTES : ends[at]]
            if run.bases is None:
                covered = b"".join((front[8:], rest))
                front = xxhash.xxh3_64_digest(covered)[::-1] + front[8:]
            sums += front[:8]
            made += front
            made += rest
        fields = (partition, base, heads[first][3], oldest, len(made) - begin)
        made[begin : begin + BATCH_HEADER_BYTES] = _header(fields, sums)
    return memoryview(made)


def _fitting(run: Run, origins: Sequence[int]) -> Run:
    """Smaller batches where origin timestamps are too far apart. Of framed ones they never are."""
    if run.bases is not None:
        return run
    counts, end = [], 0
    for count in run.counts:
        begin, end = end, end + count
        oldest = newest = origins[begin]
        for at in range(begin, end):
            oldest, newest = min(oldest, origins[at]), max(newest, origins[at])
            if newest - oldest > U32_MAX:
                counts.append(at - begin)
                begin, oldest, newest = at, origins[at], origins[at]
        counts.append(end - begin)
    return Run(counts)


def _encode_equal(
    area: Buffer, stride: int, run: Run, partition: int, memory: Memory
) -> memoryview | None:
    """Batches of the same number of messages of one size, which is usual in bulk; None if origin
    timestamps are too far apart."""
    import numpy as np

    batches, each = len(run.counts), run.counts[0]
    count, size = batches * each, stride - batch.HEADER_BYTES + FRAME_HEADER_BYTES
    length = BATCH_HEADER_BYTES + each * size
    shape: tuple[int, ...]
    far: tuple[int, ...]
    near: tuple[int, ...]
    # As few dimensions as will do: loops over short ones are slow.
    if batches == 1 or each == 1:
        shape, far, near = (count,), (size if batches == 1 else length,), (stride,)
    else:
        shape, far, near = (batches, each), (length, size), (each * stride, stride)
    origins = np.ndarray((batches, each), "<u8", area, _ORIGIN_AT, (each * stride, stride)).copy()
    oldest = origins.min(axis=1) if each > 1 else origins[:, 0].copy()
    if run.bases is None and (origins.max(axis=1) - oldest > U32_MAX).any():
        return None
    for number, told in run.oldest_us.items():
        oldest[number] = told
    stamps = np.ndarray((batches, 2), "<u8", area, _OFFSET_AT, (each * stride, 8))
    bases = stamps[:, 0] if run.bases is None else np.array(run.bases, np.uint64)
    first = int(stamps[0, 0]) - int(bases[0])
    deltas = origins
    deltas -= oldest[:, None]
    deltas <<= np.uint64(32)
    deltas |= np.arange(first, first + each, dtype=np.uint64)
    out = memory(batches * length)
    frames = out[BATCH_HEADER_BYTES:]
    ids = np.ndarray(shape, "V24", area, 0, near)  # and the checksums before them
    np.ndarray(shape, "V24", frames, 0, far)[:] = ids
    np.ndarray(shape, "<u8", frames, 24, far)[:] = deltas.reshape(shape)
    rest = f"V{size - LENGTHS_AT}"
    rests = np.ndarray(shape, rest, area, batch.LENGTHS_AT, near)
    np.ndarray(shape, rest, frames, LENGTHS_AT, far)[:] = rests
    places = np.ndarray(shape, "V8", frames, 0, far)
    if run.bases is None:
        bodies = (
            batch.equal_bodies(frames[at : at + each * size], size)
            for at in range(0, len(frames), length)
        )
        places[:] = batch.checksums(chain.from_iterable(bodies)).reshape(shape)
    sums = places.tobytes()
    if batches == 1:
        only = (partition, int(bases[0]), int(stamps[0, 1]), int(oldest[0]), length)
        out[:BATCH_HEADER_BYTES] = _header(only, sums)
        return out
    fields = np.empty((batches, 5), "<u8")
    for position, value in enumerate((partition, bases, stamps[:, 1], oldest, length)):
        fields[:, position] = value
    headers = np.ndarray(batches, f"V{BATCH_HEADER_BYTES}", out, 0, (length,))
    headers[:] = _headers(fields, run.counts, sums)
    return out


def _headers(fields: Any, counts: Sequence[int], sums: bytes) -> Any:
    """The headers of batches of so many frames, which have these checksums."""
    import numpy as np
    import xxhash

    each = counts[0]
    if counts.count(each) == len(counts):
        rows = np.empty((len(counts), COVERED.size + 8 * each), np.uint8)
        rows[:, :40] = fields.view(np.uint8)
        rows[:, 40:44] = np.frombuffer(each.to_bytes(4, "little"), np.uint8)
        rows[:, 44:] = np.frombuffer(sums, np.uint8).reshape(len(counts), 8 * each)
        covered = rows.view(f"V{rows.shape[1]}")[:, 0].tolist()
    else:
        heads, ends = fields.tobytes(), [8 * end for end in accumulate(counts)]
        covered = [
            heads[at : at + 40] + count.to_bytes(4, "little") + sums[end - 8 * count : end]
            for at, count, end in zip(range(0, len(heads), 40), counts, ends, strict=True)
        ]
    headers = np.zeros((len(fields), BATCH_HEADER_BYTES // 8), "<u8")
    headers[:, :5] = fields
    headers[:, 5] = np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, covered)), ">u8")
    headers[:, 6] = counts
    return headers.view(f"V{BATCH_HEADER_BYTES}")[:, 0]


def _encode_any(area: Buffer, starts: Positions, run: Run, partition: int) -> memoryview:
    import numpy as np

    words = _heads(area, starts)
    origins = words[:, 5]
    if origins.max() - origins.min() > U32_MAX:
        run = _fitting(run, origins.tolist())
    counts = np.array(run.counts, np.intp)
    firsts = np.cumsum(counts) - counts
    oldest = np.minimum.reduceat(origins, firsts)
    for number, value in run.oldest_us.items():
        oldest[number] = value
    times = words[firsts, 4]
    bases = words[firsts, 3] if run.bases is None else np.array(run.bases, np.uint64)
    of_batch = np.repeat(np.arange(len(counts)), counts)
    numbers = words[:, 3] - bases[of_batch]
    words[:, 3] = origins - oldest[of_batch] << np.uint64(32) | numbers
    # Where frames and batches stand.
    saved = batch.HEADER_BYTES - FRAME_HEADER_BYTES
    places = starts.astype(np.int64) - saved * np.arange(len(starts))
    places += BATCH_HEADER_BYTES * (of_batch + 1)
    batches = places[firsts] - BATCH_HEADER_BYTES
    total = len(area) + BATCH_HEADER_BYTES * len(counts) - saved * len(starts)
    lengths = np.diff(batches, append=total)
    fields = np.empty((len(counts), 5), "<u8")
    for position, value in enumerate((partition, bases, times, oldest, lengths)):
        fields[:, position] = value
    fronts = np.ascontiguousarray(words[:, :4]).view(f"V{LENGTHS_AT}")[:, 0].tolist()
    if run.bases is not None:
        headers = _headers(fields, run.counts, words[:, 0].tobytes())
        return _join(area, starts, fronts, firsts.tolist(), headers.tolist())
    out = _join(area, starts, fronts, firsts.tolist(), repeat(_EMPTY))
    sums = _write_checksums(out, places, firsts)
    headers = _headers(fields, run.counts, sums.tobytes())
    batch.items(out, BATCH_HEADER_BYTES)[batches] = headers
    return out


def _heads(area: Buffer, starts: Positions) -> NDArray[Any]:
    """Copies of the messages' headers, as numbers of eight bytes."""
    gathered = batch.items(area, batch.HEADER_BYTES)[starts]
    words: NDArray[Any] = gathered.view("<u8").reshape(len(starts), batch.HEADER_BYTES // 8)
    return words


def _join(
    area: Buffer,
    starts: Positions,
    fronts: list[bytes],
    firsts: list[int],
    headers: Iterable[bytes],
) -> memoryview:
    """Frames, and before the first ones of batches their headers."""
    for first, header in zip(firsts, headers, strict=False):
        fronts[first] = header + fronts[first]
    begins = (starts + batch.LENGTHS_AT).tolist()
    ends = [*starts[1:].tolist(), len(area)]
    pieces: list[Buffer] = [b""] * (2 * len(fronts))
    pieces[::2] = fronts
    pieces[1::2] = map(memoryview(area).__getitem__, map(slice, begins, ends))
    return memoryview(bytearray().join(pieces))


def _write_checksums(out: memoryview, places: Any, firsts: Any) -> NDArray[Any]:
    """Write the checksums of the frames there; each ends where the next or another batch begins."""
    begins = places.tolist()
    ends = [*begins[1:], len(out)]
    for position in firsts[1:].tolist():
        ends[position - 1] -= BATCH_HEADER_BYTES
    bodies = map(out.__getitem__, map(slice, [begin + 8 for begin in begins], ends))
    sums = batch.checksums(bodies)
    batch.items(out, 8)[places] = sums
    return sums


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
        run = Run([end - begin for begin, end in pairwise(cuts)])
        made.append(encode_batches(area, starts, run, partition=partition))
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
