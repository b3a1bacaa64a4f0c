"""Messages as columns: out of an area into contiguous arrays, and back.

Spark's reader and writer, and the translation between 64-byte (B2) and 56-byte (A, B1) headers,
move payloads by one boolean mask over the whole area instead of message by message: about 0.1 µs
for 200 bytes, where slicing in Python takes twice that and an index array per byte eight times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.errors import LocalProtocolError
from headrace.wire.iggy.batch import (
    HEADER_BYTES,
    LENGTHS_AT,
    NARROW_HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    column,
    gather_headers,
    header_dtype,
    items,
    payload_too_large,
    stride_of,
)
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.user_headers import (
    KEY_PREFIX_BYTES,
    USER_HEADERS_BYTES_MAX,
    convert_headers,
    headers_too_large,
    key_header,
    key_prefix,
    split_key,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.wire.iggy.batch import Positions, Records

    Bytes: TypeAlias = NDArray[np.uint8]
    Offsets: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.uint64]

AREA_BYTES_MAX = 0xFFFF_FFFF  # positions are u32

MessageBuffer: TypeAlias = "tuple[memoryview, Positions]"
"""Whole messages back to back, and where each begins."""

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
"""What Arrow tables and Spark show of a message, in this order."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Payload i is `payload_data[payload_offsets[i] : payload_offsets[i + 1]]`; headers alike."""

    offset: Numbers
    timestamp_us: Numbers
    origin_timestamp_us: Numbers
    id: Bytes
    """n rows of 16 bytes."""
    payload_data: Bytes
    payload_offsets: Offsets
    headers_data: Bytes
    headers_offsets: Offsets

    def __len__(self) -> int:
        return len(self.offset)


def columns(area: Buffer, starts: Positions) -> Columns:
    """Take a whole area apart. What the headers state must add up to where messages start."""
    headers = checked_headers(area, starts)
    payload_data, headers_data = _bodies(area, headers, HEADER_BYTES)
    return Columns(
        offset=headers["offset"],
        timestamp_us=headers["timestamp"],
        origin_timestamp_us=headers["origin_timestamp"],
        id=headers["id"].copy().view("u1").reshape(len(starts), 16),
        payload_data=payload_data,
        payload_offsets=_offsets(headers["payload_length"]),
        headers_data=headers_data,
        headers_offsets=_offsets(headers["headers_length"]),
    )


def build_area(
    payload_data: Buffer | Bytes,
    payload_offsets: NDArray[Any],
    *,
    headers_data: Buffer | Bytes = b"",
    headers_offsets: NDArray[Any] | None = None,
    ids: Bytes | None = None,
    origin_timestamp_us: int | Numbers = 0,
) -> tuple[memoryview, Positions]:
    """Messages to send, out of Arrow's buffers: data and n + 1 offsets, the first maybe above 0.

    Keys go into `headers_*` by `key_headers`. Without ids the server gives them.
    """
    import numpy as np

    payloads, payload_lengths = _column(payload_data, payload_offsets)
    blocks, block_lengths = np.empty(0, np.uint8), None
    if headers_offsets is not None and len(payload_lengths):
        blocks, block_lengths = _column(headers_data, headers_offsets)
    headers = message_headers(payload_lengths, block_lengths)
    if ids is not None:
        headers["id"] = np.ascontiguousarray(ids).reshape(-1, 16).view("<u8")
    headers["origin_timestamp"] = origin_timestamp_us
    return _assemble(headers, payloads, blocks, HEADER_BYTES)


def message_headers(payload_lengths: NDArray[Any], block_lengths: NDArray[Any] | None) -> Records:
    """Headers of messages to send, whose area is header, payload, header block, and so on.

    LocalProtocolError for lengths that no server takes, before any memory is taken for them.
    """
    import numpy as np

    headers = np.zeros(len(payload_lengths), header_dtype())
    if len(payload_lengths) and payload_lengths.max() > PAYLOAD_BYTES_MAX:
        raise payload_too_large(int(payload_lengths.max()))
    headers["payload_length"] = payload_lengths
    if block_lengths is not None and len(block_lengths):
        if block_lengths.max() > USER_HEADERS_BYTES_MAX:
            raise headers_too_large(int(block_lengths.max()))
        headers["headers_length"] = block_lengths
    return headers


# --- keys -----------------------------------------------------------------------------------------


def key_headers(data: Buffer | Bytes, offsets: NDArray[Any]) -> tuple[Bytes, Offsets]:
    """Header blocks that carry these keys (see `userheaders`); an empty key, an empty block."""
    import numpy as np

    keys, lengths = _column(data, offsets)
    if len(lengths) and lengths.max() > 255:  # several entries per key: rare, so one by one
        ends = np.cumsum(lengths).tolist()
        begins = [0, *ends[:-1]]
        blocks = [key_header(keys[a:b].tobytes()) for a, b in zip(begins, ends, strict=True)]
        joined = np.frombuffer(b"".join(blocks), np.uint8)
        return joined, _offsets(np.array([len(block) for block in blocks], np.int64))
    present = lengths > 0
    prefix_lengths = np.where(present, KEY_PREFIX_BYTES, 0)
    block_offsets = _offsets(prefix_lengths + lengths)
    out = np.empty(int(block_offsets[-1]), np.uint8)
    if len(out):
        prefixes = np.empty((int(present.sum()), KEY_PREFIX_BYTES), np.uint8)
        prefixes[:] = np.frombuffer(key_prefix(1), np.uint8)
        prefixes[:, -4:] = lengths[present].astype("<u4").view(np.uint8).reshape(-1, 4)
        places = items(out, KEY_PREFIX_BYTES)
        places[block_offsets[:-1][present]] = prefixes.view(f"V{KEY_PREFIX_BYTES}").ravel()
        out[_mask((prefix_lengths, lengths), 1)] = keys
    return out, block_offsets


def keys(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets, NDArray[np.bool_]]:
    """The keys in header blocks: data, offsets, and which messages have one."""
    import numpy as np

    lengths = np.diff(offsets)
    valid = lengths > 0
    if not valid.any():
        return np.empty(0, np.uint8), np.zeros(len(lengths) + 1, np.int64), valid
    if lengths[valid].min() > KEY_PREFIX_BYTES:
        found = items(data, KEY_PREFIX_BYTES)[offsets[:-1][valid]]
        prefixes = found.view(np.uint8).reshape(-1, KEY_PREFIX_BYTES)
        stated = prefixes[:, -4:].copy().view("<u4").ravel()
        expected = np.frombuffer(key_prefix(1), np.uint8)[:-4]
        whole = stated == lengths[valid] - KEY_PREFIX_BYTES
        if whole.all() and (prefixes[:, :-4] == expected).all():
            before = np.where(valid, KEY_PREFIX_BYTES, 0)
            key_lengths = lengths - before
            return data[_mask((before, key_lengths), 1)], _offsets(key_lengths), valid
    return _keys_one_by_one(data, offsets)


def _keys_one_by_one(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets, NDArray[np.bool_]]:
    """For blocks that hold other headers too."""
    import numpy as np

    view, bounds = np.ascontiguousarray(data).data, offsets.tolist()
    found = [split_key(view[a:b])[0] for a, b in pairwise(bounds)]
    joined = np.frombuffer(b"".join(key or b"" for key in found), np.uint8)
    lengths = np.array([len(key or b"") for key in found], np.int64)
    return joined, _offsets(lengths), np.array([key is not None for key in found], np.bool_)


# --- 56-byte headers ------------------------------------------------------------------------------


def widen(area: Buffer, starts: Positions) -> tuple[memoryview, Positions]:
    """Messages of A or B1 in canonical form."""
    return _resize(area, starts, NARROW_HEADER_BYTES, HEADER_BYTES, Dialect.B1, Dialect.B2)


def narrow(area: Buffer, starts: Positions, dialect: Dialect) -> tuple[memoryview, Positions]:
    """Canonical messages as A or B1 has them, with that dialect's checksum where there was one.

    A header block that does not decode is passed on as it is: servers take any bytes for one, and
    what a producer wrote there must not keep others from reading.
    """
    import numpy as np
    from isal.isal_zlib import crc32
    from xxhash import xxh3_64_intdigest

    out, places = _resize(area, starts, HEADER_BYTES, NARROW_HEADER_BYTES, Dialect.B2, dialect)
    digest = crc32 if dialect is Dialect.A else xxh3_64_intdigest
    begins = (places + np.uint32(8)).tolist()
    ends = [*places[1:].tolist(), len(out)]
    sums = np.array([digest(out[a:b]) for a, b in zip(begins, ends, strict=True)], "<u8")
    checksums = items(out, 8)
    checksums[places] = np.where(checksums[places].view("<u8") != 0, sums, 0).view("V8")
    return out, places


def _resize(
    area: Buffer, starts: Positions, before: int, after: int, source: Dialect, target: Dialect
) -> tuple[memoryview, Positions]:
    headers = checked_headers(area, starts, before)
    payload_data, headers_data = _bodies(area, headers, before)
    if len(headers_data):
        headers_data, lengths = _convert(headers_data, headers["headers_length"], source, target)
        headers["headers_length"] = lengths
    return _assemble(headers, payload_data, headers_data, after)


def _convert(
    data: Bytes, lengths: NDArray[Any], source: Dialect, target: Dialect
) -> tuple[Bytes, Offsets]:
    """Translate header blocks one by one: their entries cannot be found by array operations.

    Producers often give many messages the same headers, so each distinct block is read once.
    """
    import numpy as np

    bounds = _offsets(lengths).tolist()
    whole = data.tobytes()
    known: dict[bytes, bytes] = {b"": b""}
    blocks = []
    for begin, end in pairwise(bounds):
        block = whole[begin:end]
        if (converted := known.get(block)) is None:
            converted = known[block] = _convert_block(block, source, target)
        blocks.append(converted)
    changed = np.array([len(block) for block in blocks], np.int64)
    if changed.max() > USER_HEADERS_BYTES_MAX:
        raise DecodeError(Status.TOO_BIG_USER_HEADERS, length=int(changed.max()))
    return np.frombuffer(b"".join(blocks), np.uint8), changed


def _convert_block(block: bytes, source: Dialect, target: Dialect) -> bytes:
    try:
        return convert_headers(block, source, target)
    except DecodeError:
        if source is not Dialect.B2:
            raise
        return block


# --- pieces ---------------------------------------------------------------------------------------


def _offsets(lengths: NDArray[Any]) -> Offsets:
    import numpy as np

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _column(data: Buffer | Bytes, offsets: NDArray[Any]) -> tuple[Bytes, Offsets]:
    """The bytes that the offsets span, and the length of each value."""
    import numpy as np

    lengths = np.diff(offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    whole = np.frombuffer(data, np.uint8)
    if not 0 <= first <= last <= len(whole) or (len(lengths) and lengths.min() < 0):
        raise LocalProtocolError("offsets do not fit their data", first=first, last=last)
    return whole[first:last], lengths


def _mask(lengths: tuple[NDArray[Any] | int, ...], chosen: int) -> NDArray[np.bool_]:
    """Over records that are runs of these lengths: which bytes belong to run `chosen`."""
    import numpy as np

    runs = np.stack(np.broadcast_arrays(*lengths), axis=1)
    pattern = np.zeros(runs.shape, np.bool_)
    pattern[:, chosen] = True
    return np.repeat(pattern.ravel(), runs.ravel())


def checked_headers(area: Buffer, starts: Positions, header_bytes: int = HEADER_BYTES) -> Records:
    """Copies of the headers. What they state must add up to where messages start."""
    import numpy as np

    bounds = np.append(starts.astype(np.int64), len(area))
    if len(starts) == len(area) == 0:
        return np.zeros(0, header_dtype())
    # The gather below reads a whole header at each start, so each must lie inside the area.
    if not len(starts) or bounds[0] != 0 or bounds[-1] - bounds[:-1].max() < header_bytes:
        raise DecodeError(Status.INVALID_INDEXES_COUNT, count=len(starts), area=len(area))
    headers = gather_headers(area, starts, header_bytes)
    stated = headers["payload_length"].astype(np.int64) + headers["headers_length"] + header_bytes
    if (stated != np.diff(bounds)).any():
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, count=len(starts), area=len(area))
    return headers


def headers_in_place(area: Buffer, starts: Positions) -> Records:
    """As `checked_headers`, of messages of one size without a copy: a third of the time."""
    import numpy as np

    stride = stride_of(starts, len(area), HEADER_BYTES) if len(starts) else 0
    if stride:
        headers: Records = np.ndarray(len(starts), header_dtype(), area, 0, (stride,))
        lengths = column(area, stride, LENGTHS_AT, "<u8")
        stated = int(headers["payload_length"][0]) + int(headers["headers_length"][0])
        if stated + HEADER_BYTES == stride and (lengths == lengths[0, 0]).all():
            return headers
    return checked_headers(area, starts)


def _bodies(area: Buffer, headers: Records, header_bytes: int) -> tuple[Bytes, Bytes]:
    """All payloads and all header blocks, each as one run of bytes."""
    import numpy as np

    flat = np.frombuffer(area, np.uint8)
    sizes = headers["payload_length"], headers["headers_length"]
    if not sizes[1].any():
        if len(headers) and (sizes[0] == sizes[0][0]).all():  # one size: a rectangle
            return flat.reshape(len(headers), -1)[:, header_bytes:].ravel(), flat[:0]
        return flat[_mask((header_bytes, sizes[0]), 1)], flat[:0]
    runs = header_bytes, *sizes
    return flat[_mask(runs, 1)], flat[_mask(runs, 2)]


def _assemble(
    headers: Records, payload_data: Bytes, headers_data: Bytes, header_bytes: int
) -> tuple[memoryview, Positions]:
    """The inverse of `_bodies`: `headers` state the lengths and are written as they are."""
    import numpy as np

    if not len(headers):
        raise LocalProtocolError("nothing to send")
    lengths = headers["payload_length"].astype(np.int64), headers["headers_length"].astype(np.int64)
    offsets = _offsets(lengths[0] + lengths[1] + header_bytes)
    total = int(offsets[-1])
    if total > AREA_BYTES_MAX:
        raise LocalProtocolError("too many bytes for one request", length=total)
    area = np.empty(total, np.uint8)
    starts = offsets[:-1].astype(np.uint32)
    narrow_view = np.ndarray(len(headers), f"V{header_bytes}", headers, 0, (HEADER_BYTES,))
    items(area, header_bytes)[starts] = narrow_view
    if len(headers_data):
        runs = header_bytes, *lengths
        area[_mask(runs, 1)] = payload_data
        area[_mask(runs, 2)] = headers_data
    elif (lengths[0] == lengths[0][0]).all():
        rows = area.reshape(len(headers), -1)
        rows[:, header_bytes:] = payload_data.reshape(len(headers), -1)
    else:
        area[_mask((header_bytes, lengths[0]), 1)] = payload_data
    return area.data, starts


def cut(area: memoryview, starts: Positions, first: int, last: int) -> MessageBuffer:
    """Messages [first, last) of a buffer."""
    import numpy as np

    begin = int(starts[first])
    end = int(starts[last]) if last < len(starts) else len(area)
    return area[begin:end], starts[first:last] - np.uint32(begin)


def join(buffers: Sequence[MessageBuffer]) -> MessageBuffer:
    """Consecutive buffers as one: a copy at memory speed, for which every later step runs once."""
    import numpy as np

    if len(buffers) == 1:
        return buffers[0]
    ends = np.cumsum([len(area) for area, _ in buffers])
    shifts = [0, *ends[:-1].tolist()]
    starts = [starts + np.uint32(shift) for (_, starts), shift in zip(buffers, shifts, strict=True)]
    return memoryview(b"".join(area for area, _ in buffers)), np.concatenate(starts)


def first_offset(area: memoryview) -> int:
    """The offset of the first message of a buffer."""
    import numpy as np

    return int(gather_headers(area, np.zeros(1, np.uint32))["offset"][0])
