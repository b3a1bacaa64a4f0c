"""Messages as they travel and as they are stored: many at a time, by array operations.

A message is a 64-byte header, its payload, its user headers (B2, the canonical form):

| At | Bytes | Field                                                              |
|----|-------|--------------------------------------------------------------------|
|  0 |  8    | checksum: XXH3-64 of every byte behind it; producers send 0         |
|  8 | 16    | id: 0 asks the server for one                                       |
| 24 |  8    | offset: the server's                                                |
| 32 |  8    | timestamp in microseconds: the server's, one for the batch          |
| 40 |  8    | origin timestamp: the producer's, kept                              |
| 48 |  4    | length of the user headers                                          |
| 52 |  4    | length of the payload                                               |
| 56 |  8    | reserved, 0; absent in A and B1                                     |

An *area* is messages back to back; `starts` are their positions in it. Messages stand at any byte,
so fields are gathered through overlapping views with a stride of one byte: `view[starts]` copies
each header as one 64-byte item, about 7 ns per message. numpy is imported inside functions: it
costs a third of a second, and the command line must not pay it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.errors import LocalProtocolError
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.user_headers import USER_HEADERS_BYTES_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Positions: TypeAlias = NDArray[np.uint32]
    Records: TypeAlias = NDArray[np.void]

PAYLOAD_BYTES_MAX = 10_000_000
HEADER_BYTES = 64
NARROW_HEADER_BYTES = 56  # dialects A and B1
INDEX_ENTRY_BYTES = 16

FEW = 16
"""Up to here messages are taken one by one: a numpy call costs as much as a message does."""

_LENGTHS = struct.Struct("<II")
LENGTHS_AT = 48
_POSITION = struct.Struct("<I")
_ENTRY = struct.Struct("<IIII")
_ID = struct.Struct("16s")
_STAMP = struct.Struct("<QQ")  # offset and timestamp
_CHECKSUM = struct.Struct("<Q")
_NO_ID = bytes(16)
_LOWER = 0xFFFF_FFFF_FFFF_FFFF
_NOTHING = bytes(HEADER_BYTES - NARROW_HEADER_BYTES)

_EQUAL_COUNT_MAX = 4096
"""Messages of one size up to here have their index kept: at most 80 KiB of each, 64 of them."""

COPIED_BYTES_MAX = 2048
"""Up to here hashing a copy of a message is faster than making a view of it."""
_COPIED_AT_ONCE = 128 * 1024


def payload_too_large(length: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"a payload of {length:,} bytes is too large: it may have {PAYLOAD_BYTES_MAX:,}"
    )


def user_headers_at(area: memoryview, start: int) -> memoryview:
    """The user headers of the message that stands there."""
    headers, payload = _LENGTHS.unpack_from(area, start + LENGTHS_AT)
    begin = start + HEADER_BYTES + payload
    return area[begin : begin + headers]


@cache
def header_dtype() -> np.dtype[np.void]:
    import numpy as np

    return np.dtype(
        [
            ("checksum", "<u8"),
            ("id", "<u8", (2,)),
            ("offset", "<u8"),
            ("timestamp", "<u8"),
            ("origin_timestamp", "<u8"),
            ("headers_length", "<u4"),
            ("payload_length", "<u4"),
            ("reserved", "<u8"),
        ]
    )


def items(area: Any, length: int) -> Records:
    """Every run of `length` bytes in `area` as one opaque item: item `i` starts at byte `i`."""
    import numpy as np

    count = max(0, memoryview(area).nbytes - length + 1)
    return np.ndarray((count,), f"V{length}", area, 0, (1,))


def gather_headers(area: Any, starts: Positions, header_bytes: int = HEADER_BYTES) -> Records:
    """Copies of the message headers, as records of `header_dtype`; a narrow header is widened."""
    import numpy as np

    gathered = items(area, header_bytes)[starts]
    if header_bytes == HEADER_BYTES:
        return gathered.view(header_dtype())
    headers = np.zeros(len(starts), header_dtype())
    np.ndarray(len(starts), f"V{header_bytes}", headers, 0, (HEADER_BYTES,))[:] = gathered
    return headers


# --- where messages start -------------------------------------------------------------------------


def check_messages(index: Buffer, area: Buffer) -> tuple[Positions, int]:
    """Check the messages of a SEND and its index; returns their starts and header size (56 or 64).

    An index entry is `u32 0, u32 cumulative end, u64 0`. The published description of the protocol
    has `u64 0, u32 cumulative end, u32 0` instead: no message is empty, so the first entry tells.
    """
    if len(index) == 0:
        raise DecodeError(Status.INVALID_MESSAGES_COUNT)
    if len(index) <= FEW * INDEX_ENTRY_BYTES:
        return _check_few(index, area)
    stride = _POSITION.unpack_from(index, _POSITION.size)[0]
    count = len(index) // INDEX_ENTRY_BYTES
    wide_enough = stride >= NARROW_HEADER_BYTES
    if wide_enough and count <= _EQUAL_COUNT_MAX and count * stride == len(area):
        expected, starts = equal_index(count, stride)
        if bytes(index) == expected:  # of messages of one size: nothing else to be read from it
            return starts, _check_equal(area, starts, stride)
    starts = _read_index(index, len(area))
    stride = stride_of(starts, len(area))
    return starts, _check_equal(area, starts, stride) if stride else _check_sizes(area, starts)


def _check_few(index: Buffer, area: Buffer) -> tuple[Positions, int]:
    import numpy as np

    starts, start, header_bytes = [], 0, 0
    _, at_second, at_third, _ = _ENTRY.unpack_from(index)
    seed_form = at_second == 0 and at_third != 0
    for first, second, third, last in _ENTRY.iter_unpack(index):
        end, other = (third, second) if seed_form else (second, third)
        if first or (seed_form and other):
            raise DecodeError(Status.NON_ZERO_OFFSET)
        if last or (not seed_form and other):
            raise DecodeError(Status.NON_ZERO_TIMESTAMP)
        if not start <= end <= len(area):
            raise DecodeError(Status.INVALID_MESSAGES_SIZE, found=end, expected=len(area))
        found = _check_one(area, start, end)
        if header_bytes not in (0, found):
            raise DecodeError(Status.INVALID_MESSAGES_SIZE, size=end - start)
        starts.append(start)
        start, header_bytes = end, found
    if start != len(area):
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, found=start, expected=len(area))
    if len(starts) == 1:
        return only_start(), header_bytes
    return np.array(starts, np.uint32), header_bytes


@cache
def only_start() -> Positions:
    import numpy as np

    starts = np.zeros(1, np.uint32)
    starts.flags.writeable = False  # shared by all requests of one message
    return starts


def _check_one(area: Buffer, start: int, end: int) -> int:
    if end - start < NARROW_HEADER_BYTES:
        raise DecodeError(Status.TOO_SMALL_MESSAGE, size=end - start)
    headers_length, payload_length = _LENGTHS.unpack_from(area, start + LENGTHS_AT)
    header_bytes: int = end - start - headers_length - payload_length
    if header_bytes not in (HEADER_BYTES, NARROW_HEADER_BYTES):
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, size=end - start)
    if headers_length > USER_HEADERS_BYTES_MAX:
        raise DecodeError(Status.TOO_BIG_USER_HEADERS, length=headers_length)
    if payload_length > PAYLOAD_BYTES_MAX:
        raise DecodeError(Status.TOO_BIG_MESSAGE_PAYLOAD, length=payload_length)
    if header_bytes == HEADER_BYTES and area[start + NARROW_HEADER_BYTES : start + 64] != _NOTHING:
        raise DecodeError(Status.INVALID_RESERVED_FIELD)
    return header_bytes


def _read_index(index: Buffer, area_bytes: int) -> Positions:
    import numpy as np

    table = np.frombuffer(index, "<u4").reshape(-1, 4).T.copy()  # columns: contiguous is faster
    seed_form = table[1, 0] == 0 and table[2, 0] != 0
    ends, other = (table[2], table[1]) if seed_form else (table[1], table[2])
    if table[0].any() or (seed_form and other.any()):
        raise DecodeError(Status.NON_ZERO_OFFSET)
    if table[3].any() or (not seed_form and other.any()):
        raise DecodeError(Status.NON_ZERO_TIMESTAMP)
    if ends[-1] != area_bytes or (ends[1:] < ends[:-1]).any():
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, found=int(ends[-1]), expected=area_bytes)
    starts = np.empty(len(ends), np.uint32)
    starts[0] = 0
    starts[1:] = ends[:-1]
    return starts


@lru_cache(64)
def equal_index(count: int, stride: int) -> tuple[bytes, Positions]:
    """The index of so many messages of one size, and their starts, which many requests share."""
    import numpy as np

    starts = np.arange(0, count * stride, stride, dtype=np.uint32)
    starts.flags.writeable = False
    table = np.zeros((count, 4), "<u4")
    table[:, 1] = starts + np.uint32(stride)
    return table.tobytes(), starts


def equal_starts(count: int, stride: int) -> Positions:
    """Where so many messages of one size start; shared where it is kept, so not to be written."""
    import numpy as np

    if count <= _EQUAL_COUNT_MAX:
        return equal_index(count, stride)[1]
    return np.arange(0, count * stride, stride, dtype=np.uint32)


def stride_of(starts: Positions, area_bytes: int, header_bytes: int = NARROW_HEADER_BYTES) -> int:
    """The size of each message when all have the same, as in bulk they usually do; otherwise 0.

    Fields then lie at a fixed distance and plain strided views reach them, without a gather.
    """
    import numpy as np

    stride, rest = divmod(area_bytes, len(starts))
    if rest or stride < header_bytes:
        return 0
    if len(starts) > _EQUAL_COUNT_MAX:
        expected = np.arange(0, area_bytes, stride, dtype=np.uint32)
        return stride if (starts == expected).all() else 0
    kept = equal_index(len(starts), stride)[1]
    return stride if kept is starts or kept.tobytes() == starts.tobytes() else 0


def column(area: Any, stride: int, at: int, field: str, width: int = 1) -> NDArray[Any]:
    """A field of messages of one size, as a view: one row per message, `width` numbers in it."""
    import numpy as np

    dtype = np.dtype(field)
    shape = (memoryview(area).nbytes // stride, width)
    return np.ndarray(shape, dtype, area, at, (stride, dtype.itemsize))


def _check_equal(area: Buffer, starts: Positions, stride: int) -> int:
    """As `_check_sizes`, for messages of one size."""
    lengths = column(area, stride, LENGTHS_AT, "<u8")
    if (lengths != lengths[0, 0]).any():  # headers and payloads that differ, or add up to no sum
        return _check_sizes(area, starts)
    header_bytes = _check_one(area, 0, stride)
    if header_bytes == HEADER_BYTES and column(area, stride, NARROW_HEADER_BYTES, "<u8").any():
        raise DecodeError(Status.INVALID_RESERVED_FIELD)
    return header_bytes


def _check_sizes(area: Buffer, starts: Positions) -> int:
    import numpy as np

    sizes = np.diff(starts.astype(np.int64), append=len(area))
    if sizes.min() < NARROW_HEADER_BYTES:
        raise DecodeError(Status.TOO_SMALL_MESSAGE, size=int(sizes.min()))
    lengths = items(area, _LENGTHS.size)[starts + np.uint32(LENGTHS_AT)]
    pairs = lengths.view("<u4").reshape(-1, 2).astype(np.int64)
    header_bytes = int(sizes[0] - pairs[0].sum())
    if header_bytes not in (HEADER_BYTES, NARROW_HEADER_BYTES):
        raise DecodeError(
            Status.INVALID_MESSAGES_SIZE, size=int(sizes[0]), stated=pairs[0].tolist()
        )
    if (pairs.sum(axis=1) + header_bytes != sizes).any():
        raise DecodeError(Status.INVALID_MESSAGES_SIZE)
    if pairs[:, 0].max() > USER_HEADERS_BYTES_MAX:
        raise DecodeError(Status.TOO_BIG_USER_HEADERS, length=int(pairs[:, 0].max()))
    if pairs[:, 1].max() > PAYLOAD_BYTES_MAX:
        raise DecodeError(Status.TOO_BIG_MESSAGE_PAYLOAD, length=int(pairs[:, 1].max()))
    if header_bytes == HEADER_BYTES:
        reserved = items(area, 8)[starts + np.uint32(NARROW_HEADER_BYTES)].view("<u8")
        if reserved.any():
            raise DecodeError(Status.INVALID_RESERVED_FIELD)
    return header_bytes


def walk(area: Buffer, header_bytes: int = HEADER_BYTES) -> list[int]:
    """Find the start of every message from the lengths in its header, one after the other."""
    starts = []
    position, end = 0, len(area)
    while position < end:
        if position + header_bytes > end:
            raise DecodeError(Status.TOO_SMALL_MESSAGE, position=position)
        starts.append(position)
        headers_length, payload_length = _LENGTHS.unpack_from(area, position + LENGTHS_AT)
        position += header_bytes + headers_length + payload_length
    if position != end:
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, found=end, expected=position)
    return starts


def locate(area: Buffer, header_bytes: int = HEADER_BYTES) -> Positions:
    """Like `walk`, as an array; messages of one size, the usual case in bulk, are not walked."""
    import numpy as np

    found = locate_equal(area, header_bytes)
    return np.array(walk(area, header_bytes), np.uint32) if found is None else found


def locate_equal(area: Buffer, header_bytes: int = HEADER_BYTES) -> Positions | None:
    """Like `locate`, of messages of one size; None if they are not."""
    import numpy as np

    if len(area) < header_bytes:
        return None
    size = header_bytes + sum(_LENGTHS.unpack_from(area, LENGTHS_AT))
    count, rest = divmod(len(area), size)
    if rest:
        return None
    lengths = np.ndarray(count, "V8", area, LENGTHS_AT, (size,)).tobytes()
    return equal_starts(count, size) if lengths == lengths[:8] * count else None


# --- the batch on disk ----------------------------------------------------------------------------


def build_index(starts: Positions) -> bytes:
    """The trailer of an INDEXED batch: start positions, u32 little endian."""
    return starts.astype("<u4", copy=False).tobytes()


def read_starts(body: Buffer, record_count: int) -> tuple[memoryview, Positions]:
    """The area and the start positions in the body of an INDEXED batch."""
    import numpy as np

    area_bytes = _area_bytes(body, record_count)
    return memoryview(body)[:area_bytes], np.frombuffer(body, "<u4", record_count, area_bytes)


def slice_batch(area: memoryview, index: memoryview, first: int, count: int) -> memoryview:
    """Messages [first, first + count) of an INDEXED batch, without copying them."""
    record_count = len(index) // _POSITION.size
    if not 0 <= first <= first + count <= record_count:
        raise DecodeError(Status.INVALID_OFFSET, first=first, count=count, found=record_count)
    if count == 0:
        return area[:0]
    (start,) = _POSITION.unpack_from(index, _POSITION.size * first)
    end = len(area)
    if first + count < record_count:
        (end,) = _POSITION.unpack_from(index, _POSITION.size * (first + count))
    if not start <= end <= len(area):
        raise DecodeError(Status.INVALID_INDEXES_COUNT, start=start, end=end, area=len(area))
    return area[start:end]


def _area_bytes(body: Buffer, record_count: int) -> int:
    area_bytes = len(body) - 4 * record_count
    if area_bytes < 0:
        raise DecodeError(Status.INVALID_INDEXES_COUNT, count=record_count, found=len(body))
    return area_bytes


def subset(
    area: memoryview, starts: Positions, first: int, count: int
) -> tuple[memoryview, Positions]:
    """Messages [first, first + count) of an area, as an area of their own; nothing is copied."""
    if not 0 <= first < first + count <= len(starts):
        raise DecodeError(Status.INVALID_OFFSET, first=first, count=count, found=len(starts))
    last = first + count
    end = int(starts[last]) if last < len(starts) else len(area)
    return area[int(starts[first]) : end], starts[first:last] - starts[first]


def split(
    area: memoryview, starts: Positions, bytes_max: int
) -> list[tuple[memoryview, Positions]]:
    """Cut an area into consecutive ones of at most `bytes_max`, or of one larger message."""
    if len(area) <= bytes_max:
        return [(area, starts)]
    import numpy as np

    ends = np.append(starts[1:], np.uint32(len(area)))
    cuts, first = [0], 0
    while first < len(starts):
        limit = int(starts[first]) + bytes_max
        first = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
        cuts.append(first)
    return [
        (area[int(starts[a]) : int(ends[b - 1])], starts[a:b] - starts[a])
        for a, b in pairwise(cuts)
    ]


# --- stamping -------------------------------------------------------------------------------------


def stamp(
    area: bytearray | memoryview,
    starts: Positions,
    *,
    base_offset: int,
    timestamp_us: int,
    new_ids: Callable[[int], bytes] | None,
    summed: bool = True,
) -> None:
    """Write offsets, the timestamp, missing ids and checksums into canonical messages, in place.

    `new_ids(n)` gives n * 16 bytes of fresh ids; it is asked only for messages whose id is 0. None
    says that there are no such.
    Not `summed`: checksums stay as they are; `with_checksums` makes them later.
    """
    if len(starts) <= FEW:
        _stamp_few(memoryview(area), starts.tolist(), base_offset, timestamp_us, new_ids, summed)
    else:
        _stamp_many(area, starts, base_offset, timestamp_us, new_ids, summed)


def with_checksums(
    area: Buffer, starts: Positions, memory: Callable[[int], memoryview]
) -> memoryview:
    """A copy of stamped messages that have their checksums, in memory that is asked for."""
    copy = memory(len(area))
    copy[:] = area
    write_checksums(copy, starts, stride_of(starts, len(copy)))
    return copy


def write_checksums(area: bytearray | memoryview, starts: Positions, stride: int) -> Records:
    """Into messages, or whatever has its checksum first; `stride` as by `stride_of`."""
    if stride:
        sums = checksums(equal_bodies(area, stride))
        column(area, stride, 0, "V8")[:, 0] = sums
        return sums
    begins, ends = (starts + 8).tolist(), [*starts[1:].tolist(), len(area)]
    sums = checksums(map(memoryview(area).__getitem__, map(slice, begins, ends)))
    items(area, 8)[starts] = sums
    return sums


def _stamp_few(
    area: memoryview,
    starts: list[int],
    base_offset: int,
    timestamp_us: int,
    new_ids: Callable[[int], bytes] | None,
    summed: bool,
) -> None:
    import xxhash  # `from` would cost as much as the digest

    if new_ids is not None:
        missing = [at for at in starts if area[at + 8 : at + 24].tobytes() == _NO_ID]
        fresh = new_ids(len(missing)) if missing else b""
        for number, start in enumerate(missing):
            _ID.pack_into(area, start + 8, fresh[16 * number : 16 * number + 16])
    for i, start in enumerate(starts):
        _STAMP.pack_into(area, start + 24, base_offset + i, timestamp_us)
    if summed:
        for start, end in pairwise([*starts, len(area)]):
            _CHECKSUM.pack_into(area, start, xxhash.xxh3_64_intdigest(area[start + 8 : end]))


def _stamp_many(
    area: bytearray | memoryview,
    starts: Positions,
    base_offset: int,
    timestamp_us: int,
    new_ids: Callable[[int], bytes] | None,
    summed: bool,
) -> None:
    import numpy as np

    offsets = np.arange(base_offset, base_offset + len(starts), dtype=np.uint64)
    stride = stride_of(starts, len(area))
    if stride:
        if new_ids is not None:
            _fill_ids(column(area, stride, 8, "<u8", 2), new_ids)
        stamps = np.empty((len(starts), 2), "<u8")
        stamps[:, 0] = offsets
        stamps[:, 1] = timestamp_us
        np.ndarray(len(starts), "V16", area, 24, (stride,))[:] = np.ndarray(
            len(starts), "V16", stamps
        )
        if summed:
            write_checksums(area, starts, stride)
        return
    stamped = np.empty(len(starts), np.dtype([("id", "<u8", 2), ("offset", "<u8"), ("at", "<u8")]))
    at = starts + np.uint32(8)
    stamped["id"] = items(area, 16)[at].view("<u8").reshape(-1, 2)
    if new_ids is not None:
        _fill_ids(stamped["id"], new_ids)
    stamped["offset"] = offsets
    stamped["at"] = timestamp_us
    items(area, stamped.itemsize)[at] = stamped.view(f"V{stamped.itemsize}")
    if summed:
        write_checksums(area, starts, 0)


def consecutive_ids(first: int, count: int) -> bytes:
    """`count` ids of 16 bytes. The lower half wraps around, so they are distinct; none is 0."""
    if count <= FEW:
        upper = ((first >> 64) or 1) << 64
        return b"".join(
            [(upper | (first + n) & _LOWER).to_bytes(16, "little") for n in range(count)]
        )
    import numpy as np

    ids = np.empty((count, 2), "<u8")
    ids[:, 0] = np.arange(count, dtype=np.uint64) + np.uint64(first & _LOWER)
    ids[:, 1] = (first >> 64) or 1
    return ids.tobytes()


def _fill_ids(ids: NDArray[Any], new_ids: Callable[[int], bytes]) -> None:
    """Give fresh ids where both halves are 0."""
    import numpy as np

    if ids[0].any() and (ids[:, 0] | ids[:, 1]).all():  # as from producers that give them
        return
    if not ids.any():  # as from producers that leave it to the server
        ids[:] = np.frombuffer(new_ids(len(ids)), "<u8").reshape(-1, 2)
        return
    missing = np.flatnonzero((ids[:, 0] | ids[:, 1]) == 0)
    if len(missing):
        ids[missing] = np.frombuffer(new_ids(len(missing)), "<u8").reshape(-1, 2)


def equal_bodies(area: bytearray | memoryview, stride: int) -> Iterator[Buffer]:
    """What the checksums of messages of one size cover."""
    if stride <= COPIED_BYTES_MAX:
        import numpy as np

        bodies = np.ndarray(len(area) // stride, f"V{stride - 8}", area, 8, (stride,))
        several = max(1, _COPIED_AT_ONCE // stride)
        return chain.from_iterable(
            bodies[at : at + several].tolist() for at in range(0, len(bodies), several)
        )
    begins, ends = range(8, len(area), stride), range(stride, len(area) + 1, stride)
    return map(memoryview(area).__getitem__, map(slice, begins, ends))


def checksums(bodies: Iterator[Buffer]) -> NDArray[np.void]:
    """One C call per message: XXH3 has no form for many, and this is most of what a SEND costs."""
    import numpy as np
    import xxhash

    big_endian = np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, bodies)), ">u8")
    return big_endian.astype("<u8").view("V8")
