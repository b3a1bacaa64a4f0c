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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headrace.errors import LocalProtocolError
from headrace.wire.iggy import batch
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.user_headers import USER_HEADERS_BYTES_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.wire.iggy.batch import Positions, Records

BATCH_HEADER_BYTES = 256
FRAME_HEADER_BYTES = 48

HEADER = struct.Struct("<QQQQQQI")
COVERED = struct.Struct("<QQQQQI")  # by the batch's checksum, before the frames' checksums
FRAME = struct.Struct("<Q16sIIIIQ")
MESSAGE = struct.Struct("<Q16sQQQIIQ")
_LENGTHS = struct.Struct("<II")
_ENDS = struct.Struct("<IIQ")  # of a frame's header: its lengths and what is reserved
LENGTHS_AT = 32
PADDING = bytes(BATCH_HEADER_BYTES - HEADER.size)
U32_MAX = 0xFFFF_FFFF
_U64_MAX = (1 << 64) - 1
_NO_ID = bytes(16)
_ORIGIN_MAX = _U64_MAX - U32_MAX  # sums with it do not wrap around
_JOINED_BYTES_MIN = 384
"""Above, on average, copying bodies one by one is faster than a boolean mask over all bytes."""


Memory: TypeAlias = "Callable[[int], memoryview]"
"""Gives so many bytes to be written over."""


# --- from a SEND ----------------------------------------------------------------------------------


class Frames(NamedTuple):
    """The frames of a batch as a producer made them, which is as a reply has them."""

    data: memoryview
    sums: bytes
    origin_us: int

    @property
    def messages(self) -> int:
        return len(self.sums) // 8


class Decoded(NamedTuple):
    """Canonical messages of a batch."""

    area: memoryview
    starts: Positions
    framed: bool
    """Whether they have the checksums of their frames, which are those of a reply's: all have ids,
    count from 0 and from the oldest origin timestamp. Otherwise they have no checksums."""
    frames: Frames | None = None
    """The frames, if several and still there."""


def decode_batch(data: memoryview, count: int, room: memoryview | None = None) -> Decoded:
    """The messages of a producer's batch in canonical form, checked.

    In a buffer of their own; or, where `room` is given (`data` itself, and more behind it), in that
    one, if the messages are such that this is faster. Then the batch is gone, refused or not.
    """
    if count == 1 and (one := _decode_one(data)) is not None:
        return one
    if len(data) < BATCH_HEADER_BYTES:
        raise DecodeError(Status.INVALID_COMMAND, "batch header cut short", length=len(data))
    *fields, length, checksum, stated = HEADER.unpack_from(data)
    if bytes(data[HEADER.size : BATCH_HEADER_BYTES]) != PADDING:  # views compare byte by byte
        raise DecodeError(Status.INVALID_RESERVED_FIELD)
    if length != len(data) or stated != count:
        raise DecodeError(
            Status.INVALID_COMMAND, "batch length or count", length=length, count=stated
        )
    if count == 0:
        raise DecodeError(Status.INVALID_MESSAGES_COUNT)
    frames = data[BATCH_HEADER_BYTES:]
    covered = COVERED.pack(*fields, length, count)
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


_ONE = struct.Struct("<24xQQQI204sQ16sIIIIQ")  # a batch's header and that of its first frame


def _decode_one(data: memoryview) -> Decoded | None:
    """As `_decode_few`, for a sound batch of one message; None for any other.

    Written out: who sends messages one by one sends many of them.
    """
    import xxhash

    if len(data) < _ONE.size:
        return None
    (
        origin_us, length, checksum, count, padding,
        found, id_, index, delta, headers_length, payload_length, reserved,
    ) = _ONE.unpack_from(data)  # fmt: skip
    if length != len(data) or length != _ONE.size + headers_length + payload_length:
        return None
    if count != 1 or reserved or padding != PADDING:
        return None
    if headers_length > USER_HEADERS_BYTES_MAX or payload_length > batch.PAYLOAD_BYTES_MAX:
        return None
    digest = xxhash.xxh3_64_intdigest
    if digest(data[BATCH_HEADER_BYTES + 8 :]) != found:
        return None
    if digest(b"".join((data[:40], data[48:52], data[256:264]))) != checksum:  # see `COVERED`
        return None
    origin = (origin_us + delta) & _U64_MAX
    framed = not (index or delta) and id_ != _NO_ID
    head = MESSAGE.pack(found * framed, id_, 0, 0, origin, headers_length, payload_length, 0)
    area = memoryview(bytearray().join((head, data[_ONE.size :])))
    return Decoded(area, batch.only_start(), framed)


def _decode_few(
    frames: memoryview, count: int, origin_us: int, covered: bytes, checksum: int
) -> Decoded:
    """Written for speed: each name looked up and each call made counts, message by message."""
    import numpy as np
    import xxhash

    unpack, pack, digest = FRAME.unpack_from, MESSAGE.pack, xxhash.xxh3_64_intdigest
    pieces: list[Buffer] = []
    sums, starts = [], []
    position, place, length, most = 0, 0, len(frames), batch.PAYLOAD_BYTES_MAX
    in_order, oldest = origin_us <= _ORIGIN_MAX, U32_MAX
    for index in range(count):
        body = position + FRAME_HEADER_BYTES
        if body > length:
            raise DecodeError(Status.TOO_SMALL_MESSAGE, position=position)
        found, id_, number, delta, headers_length, payload_length, reserved = unpack(
            frames, position
        )
        end = body + headers_length + payload_length
        if end > length:
            raise DecodeError(Status.INVALID_MESSAGES_SIZE, expected=end, found=length)
        if reserved or headers_length > USER_HEADERS_BYTES_MAX or payload_length > most:
            _check_frame(headers_length, payload_length, reserved)
        if digest(frames[position + 8 : end]) != found:
            raise DecodeError(Status.INVALID_MESSAGE_CHECKSUM, position=position)
        if number != index or id_ == _NO_ID:
            in_order = False
        if delta < oldest:
            oldest = delta
        origin = (origin_us + delta) & _U64_MAX
        pieces += (
            pack(found, id_, 0, 0, origin, headers_length, payload_length, 0),
            frames[body:end],
        )
        sums.append(found)
        starts.append(place)
        place += batch.HEADER_BYTES + end - body
        position = end
    if position != length:
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, expected=position, found=length)
    told = struct.pack(f"<{count}Q", *sums)
    if digest(covered + told) != checksum:
        raise DecodeError(Status.INVALID_BATCH_CHECKSUM)
    area = bytearray().join(pieces)
    framed = in_order and not oldest
    if not framed:
        for start in starts:
            area[start : start + 8] = bytes(8)
    there = Frames(frames, told, origin_us) if framed else None
    return Decoded(memoryview(area), np.array(starts, np.uint32), framed, there)


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
) -> Decoded:
    """Frames of one size, the usual case in bulk, are not walked."""
    import numpy as np

    if count * FRAME_HEADER_BYTES > len(frames):
        raise DecodeError(Status.TOO_SMALL_MESSAGE, count=count, length=len(frames))
    stride, rest = divmod(len(frames), count)
    first = _LENGTHS.unpack_from(frames, LENGTHS_AT)
    if not rest and FRAME_HEADER_BYTES + sum(first) == stride:
        _check_frame(first[0], first[1], 0)
        widened = _widen_equal(frames, stride, _ENDS.pack(*first, 0), room)
        if widened is not None:
            area, heads, digests = widened
            words = _words(heads, count)
            sums = _check_sums(digests, words[:, 0], covered, checksum)
            framed = _become_fronts(words, origin_us)
            _write_fronts(area, words)
            starts = batch.equal_starts(count, len(area) // count)
            there = framed and room is None
            return Decoded(area, starts, framed, Frames(frames, sums, origin_us) if there else None)
    starts = frame_starts(frames, count)
    words = _words(batch.items(frames, FRAME_HEADER_BYTES)[starts], count)
    lengths = words[:, _LENGTHS_WORD]
    longest = int((lengths & np.uint64(U32_MAX)).max()), int((lengths >> np.uint64(32)).max())
    _check_frame(*longest, words[:, -1].any())
    digests = b"".join(map(_digest(), _slices(frames, starts, 8)))
    sums = _check_sums(digests, words[:, 0], covered, checksum)
    framed = _become_fronts(words, origin_us)
    area, starts = _move(frames, starts, 0, words, LENGTHS_AT)
    return Decoded(area, starts, framed, Frames(frames, sums, origin_us) if framed else None)


_LENGTHS_WORD = 4  # of a frame's header, taken as six numbers of eight bytes


@cache
def _digest() -> Callable[[Buffer], bytes]:
    import xxhash

    return xxhash.xxh3_64_digest


def _check_sums(digests: bytes, sums: Any, covered: bytes, checksum: int) -> bytes:
    import xxhash

    # A digest is the number in the order of the network.
    if digests != sums.astype(">u8").tobytes():
        raise DecodeError(Status.INVALID_MESSAGE_CHECKSUM)
    found: bytes = sums.tobytes()
    if xxhash.xxh3_64_intdigest(covered + found) != checksum:
        raise DecodeError(Status.INVALID_BATCH_CHECKSUM)
    return found


_AT_ONCE_BYTES = 256 * 1024
"""How much of a batch is hashed, looked at and then copied while it is near the processor. Hashing
comes first: it reads one byte after the other, and the rest finds them in the cache."""


def _widen_equal(
    frames: memoryview, stride: int, ends: bytes, room: memoryview | None
) -> tuple[memoryview, Records, bytes] | None:
    """The messages of frames of one size but for their fronts; the frames' headers; and, joined,
    the digests of what their checksums cover. None if not all headers end like this.

    In `room`, where it is given, both begin at the same byte. From the last to the first, so that
    nothing lands on a frame that is still to be read. Less memory is touched than by a copy, and
    memory that nobody used lately is what costs most.
    """
    import numpy as np

    count, wide = len(frames) // stride, stride + batch.HEADER_BYTES - FRAME_HEADER_BYTES
    fits = room is not None and len(room) >= count * wide
    out = room[: count * wide] if room is not None and fits else fresh_memory(count * wide)
    # As one opaque item each, which takes half the time of rows of bytes.
    rests, places = _column(frames, stride, LENGTHS_AT), _column(out, wide, batch.LENGTHS_AT)
    fronts, heads = np.ndarray(count, "V48", frames, 0, (stride,)), np.empty(count, "V48")
    several = max(1, _AT_ONCE_BYTES // stride)
    parts: list[bytes] = []
    for end in range(count, 0, -several):
        begin = max(0, end - several)
        covered = batch.equal_bodies(frames[begin * stride : end * stride], stride)
        parts.append(b"".join(map(_digest(), covered)))
        heads[begin:end] = fronts[begin:end]
        if _last_16(heads[begin:end]) != ends * (end - begin):
            if fits:  # as it was
                for at in range(end, count, several):
                    rests[at : at + several] = places[at : at + several]
                    fronts[at : at + several] = heads[at : at + several]
            return None
        places[begin:end] = rests[begin:end]
    parts.reverse()
    return out, heads, b"".join(parts)


def _last_16(heads: Records) -> bytes:
    """The last 16 bytes of each header: its lengths and what is reserved."""
    import numpy as np

    return np.ndarray(len(heads), "V16", heads, LENGTHS_AT, (FRAME_HEADER_BYTES,)).tobytes()


def fresh_memory(length: int) -> memoryview:
    """What is in it is anybody's."""
    import numpy as np

    return np.empty(length, np.uint8).data


def _column(area: Any, stride: int, at: int) -> Records:
    """What stands behind the first `at` bytes of messages of one size, as one item each."""
    import numpy as np

    return np.ndarray(len(area) // stride, f"V{stride - at}", area, at, (stride,))


def _become_fronts(words: Any, origin_us: int) -> bool:
    """Headers of frames become the fronts of messages: up to the lengths, from where both are the
    same, and as long. Says whether the messages are framed."""
    import numpy as np

    count = len(words)
    numbers = np.ndarray(count, "<u4", words, 24, (FRAME_HEADER_BYTES,))
    deltas = words[:, 3] >> np.uint64(32)
    framed = (
        origin_us <= _ORIGIN_MAX
        and numbers.tobytes() == batch.build_index(batch.equal_starts(count, 1))
        and not (deltas[0] and deltas.min())
        and (
            np.count_nonzero(words[:, 2]) == count
            or np.count_nonzero(words[:, 1] | words[:, 2]) == count
        )
    )
    np.add(deltas, np.uint64(origin_us), out=words[:, 5])
    words[:, 3] = words[:, 4] = 0
    if not framed:
        words[:, 0] = 0
    return framed


def _write_fronts(area: memoryview, fronts: Any) -> None:
    """Write the fronts of messages of one size."""
    import numpy as np

    count = len(fronts)
    np.ndarray(count, "V48", area, 0, (len(area) // count,))[:] = np.ndarray(count, "V48", fronts)


def _words(gathered: Any, count: int) -> Any:
    import numpy as np

    return np.ndarray((count, FRAME_HEADER_BYTES // 8), "<u8", gathered)


def frame_starts(frames: memoryview, count: int) -> Positions:
    """Where each frame starts, from the lengths in the one before."""
    import numpy as np

    starts, position, end = [], 0, len(frames)
    unpack = _LENGTHS.unpack_from
    for _ in range(count):
        if position + FRAME_HEADER_BYTES > end:
            raise DecodeError(Status.TOO_SMALL_MESSAGE, position=position)
        starts.append(position)
        headers_length, payload_length = unpack(frames, position + LENGTHS_AT)
        position += FRAME_HEADER_BYTES + headers_length + payload_length
    if position != end:
        raise DecodeError(Status.INVALID_MESSAGES_SIZE, expected=position, found=end)
    return np.array(starts, np.uint32)


def _slices(area: Buffer, starts: Positions, skip: int) -> Any:
    """What stands behind the first `skip` bytes of each message."""
    begins = (starts + skip).tolist()
    ends = [*starts[1:].tolist(), len(area)]
    return map(memoryview(area).__getitem__, map(slice, begins, ends))


def _move(
    area: Buffer,
    starts: Positions,
    stride: int,
    headers: NDArray[Any],
    before: int,
    room: int = 0,
) -> tuple[memoryview, Positions]:
    """Put `headers` in the place of those that the messages had, which took `before` bytes.

    The result begins with `room` bytes for something else, from where its starts do not count.
    """
    import numpy as np

    after, count = headers.nbytes // len(headers), len(headers)
    total = len(area) + count * (after - before)
    if stride:
        made, size = fresh_memory(room + total), stride - before + after
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
    made = fresh_memory(room + total)
    messages = np.frombuffer(made, np.uint8)[room:]
    batch.items(messages, after)[moved] = np.ndarray(count, f"V{after}", headers)
    lengths = np.diff(starts.astype(np.int64), append=len(area)) - before
    kept = np.frombuffer(area, np.uint8)[_bodies_mask(before, lengths)]
    messages[_bodies_mask(after, lengths)] = kept
    return made, moved.astype(np.uint32)


def _bodies_mask(header_bytes: int, lengths: Any) -> Any:
    """Over messages of such headers and bodies: which bytes belong to a body."""
    import numpy as np

    runs = np.empty(2 * len(lengths), np.int64)
    runs[::2] = header_bytes
    runs[1::2] = lengths
    pattern = np.zeros(2 * len(lengths), np.bool_)
    pattern[1::2] = True
    return np.repeat(pattern, runs)


# --- to a SEND ------------------------------------------------------------------------------------


def encode_produced(area: Buffer, starts: Positions) -> memoryview:
    """As a producer sends them."""
    import numpy as np
    import xxhash

    count, stride = len(starts), batch.stride_of(starts, len(area))
    words = _words(batch.items(area, FRAME_HEADER_BYTES)[starts], count)
    oldest = int(words[:, 5].min())
    if int(words[:, 5].max()) - oldest > U32_MAX:
        raise LocalProtocolError(
            "origin timestamps of one SEND are more than 71 minutes apart: send them in several"
        )
    words[:, 3] = words[:, 5] - np.uint64(oldest) << np.uint64(32)
    words[:, 3] |= np.arange(count, dtype=np.uint64)
    heads = np.ndarray(count, "V32", words, 0, (FRAME_HEADER_BYTES,)).copy()
    out, places = _move(area, starts, stride, heads, batch.LENGTHS_AT, BATCH_HEADER_BYTES)
    stride -= stride and batch.HEADER_BYTES - FRAME_HEADER_BYTES
    sums = batch.write_checksums(out[BATCH_HEADER_BYTES:], places, stride)
    fields = (0, 0, 0, oldest, len(out))
    checksum = xxhash.xxh3_64_intdigest(COVERED.pack(*fields, count) + sums.tobytes())
    HEADER.pack_into(out, 0, *fields, checksum, count)
    out[HEADER.size : BATCH_HEADER_BYTES] = PADDING
    return out
