"""Messages of dialect C, in batches, to the canonical form and back: many at a time.

A batch is a header of 256 bytes, then frames back to back:

| At | Bytes | Batch header                      | At | Bytes | Frame                             |
|----|-------|-----------------------------------|----|-------|-----------------------------------|
|  0 |  8    | partition id                      |  0 |  8    | checksum: XXH3-64 of what follows |
|  8 |  8    | base offset                       |  8 | 16    | id                                |
| 16 |  8    | base timestamp, µs                | 24 |  4    | offset minus the base             |
| 24 |  8    | origin timestamp, µs: the oldest  | 28 |  4    | origin timestamp minus that, µs   |
| 32 |  8    | length of header and frames       | 32 |  4    | length of the user headers        |
| 40 |  8    | checksum                          | 36 |  4    | length of the payload             |
| 48 |  4    | count of frames                   | 40 |  8    | zero                              |
| 52 | 204   | zero                              | 48 |       | payload, user headers             |

The batch's checksum is XXH3-64 of its first five fields, its count and the checksums of all frames.
A producer leaves the first three fields 0. The base timestamp is that of all messages of a batch,
so messages of several, or whose origin timestamps are further apart than four bytes can tell (71
minutes), become several batches of a reply.

A frame's header is 16 bytes shorter than a canonical one; from the lengths on both are the same
bytes. So a conversion makes fronts, which end there, and copies the rest once, for messages of one
size by one array operation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headrace.errors import LocalProtocolError
from headrace.wire.iggy import batch
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.userheaders import USER_HEADERS_BYTES_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.wire.iggy.batch import Positions, Records

BATCH_HEADER_BYTES = 256
FRAME_HEADER_BYTES = 48

_HEADER = struct.Struct("<QQQQQQI")
_COVERED = struct.Struct("<QQQQQI")  # by the batch's checksum, before the frames' checksums
_FRAME = struct.Struct("<Q16sIIIIQ")
_MESSAGE = struct.Struct("<Q16sQQQIIQ")
_LENGTHS = struct.Struct("<II")
_ENDS = struct.Struct("<IIQ")  # of a frame's header: its lengths and what is reserved
_LENGTHS_AT = 32
_PADDING = bytes(BATCH_HEADER_BYTES - _HEADER.size)
_U32_MAX = 0xFFFF_FFFF
_U64_MAX = (1 << 64) - 1
_JOINED_BYTES_MIN = 384
"""Above, on average, copying bodies one by one is faster than a boolean mask over all bytes."""


@cache
def _frame_dtype() -> np.dtype[np.void]:
    import numpy as np

    return np.dtype(
        [
            ("checksum", "<u8"),
            ("id", "<u8", (2,)),
            ("offset_delta", "<u4"),
            ("timestamp_delta", "<u4"),
            ("headers_length", "<u4"),
            ("payload_length", "<u4"),
            ("reserved", "<u8"),
        ]
    )


# --- from a SEND ----------------------------------------------------------------------------------


def decode_batch(
    data: memoryview, count: int, room: memoryview | None = None
) -> tuple[memoryview, Positions]:
    """The messages of a producer's batch in canonical form, checked.

    In a buffer of their own; or, where `room` is given (`data` itself, and more behind it), in that
    one, if the messages are such that this is faster. Then the batch is gone, refused or not.
    """
    if count == 1 and (one := _decode_one(data)) is not None:
        return one, batch.only_start()
    if len(data) < BATCH_HEADER_BYTES:
        raise DecodeError(Status.INVALID_COMMAND, "batch header cut short", length=len(data))
    *fields, length, checksum, stated = _HEADER.unpack_from(data)
    if bytes(data[_HEADER.size : BATCH_HEADER_BYTES]) != _PADDING:  # views compare byte by byte
        raise DecodeError(Status.INVALID_RESERVED_FIELD)
    if length != len(data) or stated != count:
        raise DecodeError(
            Status.INVALID_COMMAND, "batch length or count", length=length, count=stated
        )
    if count == 0:
        raise DecodeError(Status.INVALID_MESSAGES_COUNT)
    frames = data[BATCH_HEADER_BYTES:]
    covered = _COVERED.pack(*fields, length, count)
    if count <= batch.FEW:
        return _decode_few(frames, count, fields[3], covered, checksum)
    beyond = None if room is None else room[BATCH_HEADER_BYTES:]
    return _decode_many(frames, count, fields[3], covered, checksum, beyond)


_CHECKSUM_END = 48
_METADATA = struct.Struct("<I")
_METADATA_BYTES_MAX = 3 * 257 + 4  # stream, topic and partitioning, the count


def identity_of_send(payload: Buffer) -> bytes:
    """Where a SEND goes and its batch's header up to the checksum, read without a check; empty if
    cut short, or longer than any place: it is kept."""
    if len(payload) < _METADATA.size:
        return b""
    (length,) = _METADATA.unpack_from(payload)
    if length > _METADATA_BYTES_MAX:
        return b""
    return bytes(payload[: _METADATA.size + length + _CHECKSUM_END])


IN_PLACE_BYTES_MIN = 512 * 1024
"""A shorter SEND stays near the processor, together with a copy of it."""


def growth_of_send(payload: Buffer, length: int) -> int:
    """By how many bytes a SEND of that length grows when its messages become canonical ones, told
    by its beginning, which is not checked; 0 where that cannot be, or a copy is faster."""
    if length < IN_PLACE_BYTES_MIN or len(payload) < _METADATA.size:
        return 0
    (metadata,) = _METADATA.unpack_from(payload)
    if not _METADATA.size <= metadata <= _METADATA_BYTES_MAX or len(payload) < 4 + metadata:
        return 0
    (count,) = _METADATA.unpack_from(payload, metadata)  # its last four bytes
    if count <= batch.FEW or count * FRAME_HEADER_BYTES > length:
        return 0
    return int(count) * (batch.HEADER_BYTES - FRAME_HEADER_BYTES)


_ONE = struct.Struct("<24xQQQI204sQ16s4xIIIQ")  # a batch's header and that of its first frame


def _decode_one(data: memoryview) -> memoryview | None:
    """As `_decode_few`, for a sound batch of one message; None for any other.

    Written out: who sends messages one by one sends many of them.
    """
    import xxhash

    if len(data) < _ONE.size:
        return None
    (
        origin_us, length, checksum, count, padding,
        found, id_, delta, headers_length, payload_length, reserved,
    ) = _ONE.unpack_from(data)  # fmt: skip
    if length != len(data) or length != _ONE.size + headers_length + payload_length:
        return None
    if count != 1 or reserved or padding != _PADDING:
        return None
    if headers_length > USER_HEADERS_BYTES_MAX or payload_length > batch.PAYLOAD_BYTES_MAX:
        return None
    digest = xxhash.xxh3_64_intdigest
    if digest(data[BATCH_HEADER_BYTES + 8 :]) != found:
        return None
    if digest(b"".join((data[:40], data[48:52], data[256:264]))) != checksum:  # see `_COVERED`
        return None
    origin = (origin_us + delta) & _U64_MAX
    head = _MESSAGE.pack(0, id_, 0, 0, origin, headers_length, payload_length, 0)
    return memoryview(bytearray().join((head, data[_ONE.size :])))


def _decode_few(
    frames: memoryview, count: int, origin_us: int, covered: bytes, checksum: int
) -> tuple[memoryview, Positions]:
    import numpy as np
    import xxhash

    area, starts, position = bytearray(), [], 0
    for _ in range(count):
        if position + FRAME_HEADER_BYTES > len(frames):
            raise DecodeError(Status.TOO_SMALL_MESSAGE, position=position)
        found, id_, _, delta, headers_length, payload_length, reserved = _FRAME.unpack_from(
            frames, position
        )
        end = position + FRAME_HEADER_BYTES + headers_length + payload_length
        if end > len(frames):
            raise DecodeError(Status.INVALID_MESSAGES_SIZE, expected=end, found=len(frames))
        _check_frame(headers_length, payload_length, reserved)
        body = frames[position + 8 : end]
        if xxhash.xxh3_64_intdigest(body) != found:
            raise DecodeError(Status.INVALID_MESSAGE_CHECKSUM, position=position)
        covered += frames[position : position + 8]
        starts.append(len(area))
        origin = (origin_us + delta) & _U64_MAX
        area += _MESSAGE.pack(0, id_, 0, 0, origin, headers_length, payload_length, 0)
        area += body[FRAME_HEADER_BYTES - 8 :]
        position = end
    if position != len(frames):
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, expected=position, found=len(frames))
    if xxhash.xxh3_64_intdigest(covered) != checksum:
        raise DecodeError(Status.INVALID_BATCH_CHECKSUM)
    return memoryview(area), np.array(starts, np.uint32)


def _check_frame(headers_length: int, payload_length: int, reserved: object) -> None:
    if headers_length > USER_HEADERS_BYTES_MAX:
        raise DecodeError(Status.TOO_BIG_USER_HEADERS, length=headers_length)
    if payload_length > batch.PAYLOAD_BYTES_MAX:
        raise DecodeError(Status.TOO_BIG_MESSAGE_PAYLOAD, length=payload_length)
    if reserved:
        raise DecodeError(Status.INVALID_RESERVED_FIELD)


def _decode_many(
    frames: memoryview,
    count: int,
    origin_us: int,
    covered: bytes,
    checksum: int,
    room: memoryview | None,
) -> tuple[memoryview, Positions]:
    """Frames of one size, the usual case in bulk, are not walked."""
    import numpy as np

    if count * FRAME_HEADER_BYTES > len(frames):
        raise DecodeError(Status.TOO_SMALL_MESSAGE, count=count, length=len(frames))
    stride, rest = divmod(len(frames), count)
    first = _LENGTHS.unpack_from(frames, _LENGTHS_AT)
    if not rest and FRAME_HEADER_BYTES + sum(first) == stride:
        words = _words(np.ndarray(count, "V48", frames, 0, (stride,)).copy(), count)
        ends = np.ndarray(count, "V16", words, _LENGTHS_AT, (FRAME_HEADER_BYTES,))
        if ends.tobytes() == _ENDS.pack(*first, 0) * count:  # the same lengths, nothing reserved
            _check_frame(first[0], first[1], 0)
            area, digests = _widen_equal(frames, stride, room)
            _check_sums(digests, words[:, 0], covered, checksum)
            _write_fronts(area, _fronts(words, origin_us))
            return area, batch.equal_starts(count, len(area) // count)
    starts = _walk(frames, count)
    words = _words(batch.items(frames, FRAME_HEADER_BYTES)[starts], count)
    lengths = words[:, _LENGTHS_WORD]
    longest = int((lengths & np.uint64(_U32_MAX)).max()), int((lengths >> np.uint64(32)).max())
    _check_frame(*longest, words[:, -1].any())
    digests = b"".join(map(_digest(), _slices(frames, starts, 8)))
    _check_sums(digests, words[:, 0], covered, checksum)
    return _move(frames, starts, 0, _fronts(words, origin_us), _LENGTHS_AT)


_LENGTHS_WORD = 4  # of a frame's header, taken as six numbers of eight bytes


@cache
def _digest() -> Callable[[Buffer], bytes]:
    import xxhash

    return xxhash.xxh3_64_digest


def _check_sums(digests: bytes, sums: Any, covered: bytes, checksum: int) -> None:
    import xxhash

    # A digest is the number in the order of the network.
    if digests != sums.astype(">u8").tobytes():
        raise DecodeError(Status.INVALID_MESSAGE_CHECKSUM)
    if xxhash.xxh3_64_intdigest(covered + sums.tobytes()) != checksum:
        raise DecodeError(Status.INVALID_BATCH_CHECKSUM)


_AT_ONCE_BYTES = 160 * 1024
"""Of a batch that are hashed and then copied, while they are near the processor: a fifth less time
with messages of 1000 bytes."""


def _widen_equal(
    frames: memoryview, stride: int, room: memoryview | None
) -> tuple[memoryview, bytes]:
    """The messages of frames of one size but for their fronts; and, joined, the digests of what
    the frames' checksums cover.

    In `room`, where it is given, both begin at the same byte. From the last to the first, so that
    nothing lands on a frame that is still to be read. Less memory is touched than by a copy, and
    memory that nobody used lately is what costs most.
    """
    count, wide = len(frames) // stride, stride + batch.HEADER_BYTES - FRAME_HEADER_BYTES
    fits = room is not None and len(room) >= count * wide
    out = room[: count * wide] if room is not None and fits else memory(count * wide)
    # As one opaque item each, which takes half the time of rows of bytes.
    rests, places = _column(frames, stride, _LENGTHS_AT), _column(out, wide, batch.LENGTHS_AT)
    several = max(1, _AT_ONCE_BYTES // stride)
    parts: list[bytes] = []
    for end in range(count, 0, -several):
        begin = max(0, end - several)
        covered = batch.equal_bodies(frames[begin * stride : end * stride], stride)
        parts.append(b"".join(map(_digest(), covered)))
        places[begin:end] = rests[begin:end]
    parts.reverse()
    return out, b"".join(parts)


def memory(length: int) -> memoryview:
    """What is in it is anybody's."""
    import numpy as np

    return np.empty(length, np.uint8).data


def _column(area: Any, stride: int, at: int) -> Records:
    """What stands behind the first `at` bytes of messages of one size, as one item each."""
    import numpy as np

    return np.ndarray(len(area) // stride, f"V{stride - at}", area, at, (stride,))


def _fronts(words: Any, origin_us: int) -> Any:
    """Messages up to their lengths, from the headers of frames, which are written over: a front is
    as long. From the lengths on both are the same."""
    import numpy as np

    words[:, 5] = (words[:, 3] >> np.uint64(32)) + np.uint64(origin_us)
    words[:, 0] = words[:, 3] = words[:, 4] = 0
    return words


def _write_fronts(area: memoryview, fronts: Any) -> None:
    """Of messages of one size."""
    import numpy as np

    count = len(fronts)
    np.ndarray(count, "V48", area, 0, (len(area) // count,))[:] = np.ndarray(count, "V48", fronts)


def _words(gathered: Any, count: int) -> Any:
    import numpy as np

    return np.ndarray((count, FRAME_HEADER_BYTES // 8), "<u8", gathered)


def _walk(frames: memoryview, count: int) -> Positions:
    """Where each frame starts, from the lengths in the one before."""
    import numpy as np

    starts, position, end = [], 0, len(frames)
    unpack = _LENGTHS.unpack_from
    for _ in range(count):
        if position + FRAME_HEADER_BYTES > end:
            raise DecodeError(Status.TOO_SMALL_MESSAGE, position=position)
        starts.append(position)
        headers_length, payload_length = unpack(frames, position + _LENGTHS_AT)
        position += FRAME_HEADER_BYTES + headers_length + payload_length
    if position != end:
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, expected=position, found=end)
    return np.array(starts, np.uint32)


def _gather(frames: Any, starts: Positions) -> Records:
    return batch.items(frames, FRAME_HEADER_BYTES)[starts].view(_frame_dtype())


def _slices(area: Buffer, starts: Positions, skip: int) -> Any:
    """What stands behind the first `skip` bytes of each message."""
    begins = (starts + skip).tolist()
    ends = [*starts[1:].tolist(), len(area)]
    return map(memoryview(area).__getitem__, map(slice, begins, ends))


def _move(
    area: Buffer, starts: Positions, stride: int, headers: NDArray[Any], before: int, room: int = 0
) -> tuple[memoryview, Positions]:
    """Put `headers` in the place of those that the messages had, which took `before` bytes.

    The result begins with `room` bytes for something else, from where its starts do not count.
    """
    import numpy as np

    after, count = headers.nbytes // len(headers), len(headers)
    total = len(area) + count * (after - before)
    if stride:
        made, size = memory(room + total), stride - before + after
        np.ndarray(count, f"V{after}", made, room, (size,))[:] = np.ndarray(
            count, f"V{after}", headers
        )
        _column(made[room:], size, after)[:] = _column(area, stride, before)
        return made, batch.equal_starts(count, size)
    moved = starts.astype(np.int64) + np.arange(count) * (after - before)
    if len(area) >= _JOINED_BYTES_MIN * count:
        packed = headers.tobytes()
        heads = [packed[at : at + after] for at in range(0, len(packed), after)]
        pieces: list[Buffer] = [bytes(room)]
        for head, body in zip(heads, _slices(area, starts, before), strict=True):
            pieces += (head, body)
        return memoryview(bytearray().join(pieces)), moved.astype(np.uint32)
    out = np.empty(room + total, np.uint8)
    messages = out[room:]
    batch.items(messages, after)[moved] = np.ndarray(count, f"V{after}", headers)
    lengths = np.diff(starts.astype(np.int64), append=len(area)) - before
    kept = np.frombuffer(area, np.uint8)[_bodies_mask(before, lengths)]
    messages[_bodies_mask(after, lengths)] = kept
    return out.data, moved.astype(np.uint32)


def _bodies_mask(header_bytes: int, lengths: Any) -> Any:
    """Over messages of such headers and bodies: which bytes belong to a body."""
    import numpy as np

    runs = np.empty(2 * len(lengths), np.int64)
    runs[::2] = header_bytes
    runs[1::2] = lengths
    pattern = np.zeros(2 * len(lengths), np.bool_)
    pattern[1::2] = True
    return np.repeat(pattern, runs)


# --- to a poll's reply ----------------------------------------------------------------------------


def encode_batches(area: Buffer, *, partition: int) -> list[memoryview]:
    """Canonical messages of consecutive offsets, stamped by a server: as one batch if they fit."""
    starts = batch.locate(area)
    if len(starts) <= batch.FEW:
        heads = [_MESSAGE.unpack_from(area, start) for start in starts.tolist()]
        times, origins = [head[3] for head in heads], [head[4] for head in heads]
        if min(times) < max(times) or max(origins) - min(origins) > _U32_MAX:
            return _encode_parts(area, starts, times, origins, partition)
        return [_encode_few(area, starts, heads, (partition, heads[0][2], times[0], min(origins)))]
    words = _front_words(area, starts)
    offset, time, origin = words[0, 3], words[0, 4], words[:, 5].min()
    if words[:, 5].max() - origin > _U32_MAX or (words[:, 4] != time).any():
        times, origins = words[:, 4].tolist(), words[:, 5].tolist()
        return _encode_parts(area, starts, times, origins, partition)
    return [_encode(area, starts, words, (partition, int(offset), int(time), int(origin)))]


def _encode_parts(
    area: Buffer, starts: Positions, times: list[int], origins: list[int], partition: int
) -> list[memoryview]:
    cuts, oldest, newest = [0], origins[0], origins[0]
    for at, (time, origin) in enumerate(zip(times, origins, strict=True)):
        oldest, newest = min(oldest, origin), max(newest, origin)
        if time != times[cuts[-1]] or newest - oldest > _U32_MAX:
            cuts.append(at)
            oldest = newest = origin
    parts = [
        batch.subset(memoryview(area), starts, begin, end - begin)[0]
        for begin, end in pairwise([*cuts, len(starts)])
    ]
    return [made for part in parts for made in encode_batches(part, partition=partition)]


def encode_produced(area: Buffer, starts: Positions) -> memoryview:
    """As a producer sends them."""
    words = _front_words(area, starts)
    origin = words[:, 5].min()
    if words[:, 5].max() - origin > _U32_MAX:
        raise LocalProtocolError(
            "origin timestamps of one SEND are more than 71 minutes apart: send them in several"
        )
    return _encode(area, starts, words, (0, 0, 0, int(origin)))


def _front_words(area: Buffer, starts: Positions) -> Any:
    """Copies of the messages' fronts: up to their lengths, as `_fronts` makes them."""
    import numpy as np

    count = len(starts)
    stride = batch.stride_of(starts, len(area))
    if stride:
        return _words(np.ndarray(count, "V48", area, 0, (stride,)).copy(), count)
    return _words(batch.items(area, FRAME_HEADER_BYTES)[starts], count)


def _encode_few(
    area: Buffer, starts: Positions, heads: list[tuple[Any, ...]], fields: tuple[int, ...]
) -> memoryview:
    import xxhash

    view = memoryview(area)
    out, sums = bytearray(BATCH_HEADER_BYTES), b""
    ends = [*starts[1:].tolist(), len(view)]
    for index, (head, start, end) in enumerate(zip(heads, starts.tolist(), ends, strict=True)):
        _, id_, _, _, origin, headers_length, payload_length, _ = head
        delta = origin - fields[3]
        frame = bytearray(_FRAME.pack(0, id_, index, delta, headers_length, payload_length, 0))
        frame += view[start + batch.HEADER_BYTES : end]
        frame[:8] = xxhash.xxh3_64_intdigest(memoryview(frame)[8:]).to_bytes(8, "little")
        sums += frame[:8]
        out += frame
    _write_header(out, fields, len(starts), sums)
    return memoryview(out)


def _encode(area: Buffer, starts: Positions, words: Any, fields: tuple[int, ...]) -> memoryview:
    """`words`: the fronts of the messages, which are written over."""
    import numpy as np

    count, stride = len(starts), batch.stride_of(starts, len(area))
    words[:, 3] = words[:, 5] - np.uint64(fields[3]) << np.uint64(32)
    words[:, 3] |= np.arange(count, dtype=np.uint64)
    heads = np.ndarray(count, "V32", words, 0, (FRAME_HEADER_BYTES,)).copy()
    out, places = _move(area, starts, stride, heads, batch.LENGTHS_AT, BATCH_HEADER_BYTES)
    messages = out[BATCH_HEADER_BYTES:]
    stride -= stride and batch.HEADER_BYTES - FRAME_HEADER_BYTES
    sums = batch.write_checksums(messages, places, stride)
    _write_header(out, fields, count, sums.tobytes())
    return out


def _write_header(
    out: bytearray | memoryview, fields: tuple[int, ...], count: int, sums: bytes
) -> None:
    import xxhash

    checksum = xxhash.xxh3_64_intdigest(_COVERED.pack(*fields, len(out), count) + sums)
    _HEADER.pack_into(out, 0, *fields, len(out), checksum, count)
    out[_HEADER.size : BATCH_HEADER_BYTES] = _PADDING


# --- from a poll's reply --------------------------------------------------------------------------


def decode_batches(data: memoryview) -> tuple[memoryview, ...]:
    """The messages of a reply's batches in canonical form: what a client reads."""
    areas = []
    while len(data):
        if len(data) < BATCH_HEADER_BYTES:
            raise DecodeError(Status.INVALID_COMMAND, "batch header cut short", length=len(data))
        *_, length, _, count = _HEADER.unpack_from(data)
        if not BATCH_HEADER_BYTES < length <= len(data):
            raise DecodeError(Status.INVALID_COMMAND, "batch length", length=length)
        areas.append(_decode_polled(data[:length], count))
        data = data[length:]
    return tuple(areas)


def _decode_polled(data: memoryview, count: int) -> memoryview:
    import numpy as np

    _, base_offset, base_us, *_ = _HEADER.unpack_from(data)
    area, starts = decode_batch(data, count)
    frames = data[BATCH_HEADER_BYTES:]
    found = _gather(frames, _walk(frames, count))
    stamps = np.empty(count, np.dtype([("offset", "<u8"), ("at", "<u8")]))
    stamps["offset"] = np.uint64(base_offset) + found["offset_delta"].astype("<u8")
    stamps["at"] = base_us
    batch.items(area, stamps.itemsize)[starts + np.uint32(24)] = stamps.view(f"V{stamps.itemsize}")
    batch.write_checksums(area, starts, batch.stride_of(starts, len(area)))
    return area
