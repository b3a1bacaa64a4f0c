"""Frames of links between brokers. Little-endian.

    0     u32  length L       everything after this field: 13 + H + B
    4     u8   kind
    5     u64  number         tells whose answer it is
    13    u32  head length H
    17    H    head
    17+H  B    body           what is left of L

| kind         | number           | head                                | body          |
|--------------|------------------|-------------------------------------|---------------|
| 1 HELLO      | 0                | see `login.py`                      | -             |
| 2 CHALLENGE  | 0                | see `login.py`                      | -             |
| 3 PROOF      | 0                | see `login.py`                      | -             |
| 4 REQUEST    | the caller's own | the caller's                        | the caller's  |
| 5 ANSWER     | of its request   | the handler's                       | the handler's |
| 6 FAILED     | of its request   | UTF-8: why nobody knows the outcome | -             |
| 7 REFUSED    | of its request   | UTF-8: why it was never begun       | -             |
| 8 NOTICE     | 0                | the sender's                        | the sender's  |
| 9 PING       | 0                | -                                   | -             |
| 10 MOVE      | the caller's own | a token of 16 bytes, the caller's   | first bytes   |

Who opened the link sends REQUEST, NOTICE and MOVE, in the order in which they are to be begun; the
other side sends ANSWER, FAILED and REFUSED, in any order. MOVE announces a connection that was
posted under its token (`runtime/interfaces.py`): the answer says that the other side goes on with
it. PING has no answer: each side sends one when it had nothing to say for a while, also while it
does not read, so that the other side knows it to be alive.

L outside its bounds, H beyond L or its own bound, and a kind that is not in the table end the link.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from headrace.errors import LocalProtocolError, RemoteProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

FRAME_BYTES_MAX = 72 * 1024 * 1024  # of L: the longest SEND of a client fits
HEAD_BYTES_MAX = 1 << 20
OVERHEAD_BYTES = 13  # what L counts beside head and body
PREFIX_BYTES = 17
TOKEN_BYTES = 16
ROOM_BYTES_MIN = 32 << 10  # of a body still to come, for which room is made at once
ROOM_BYTES_MAX = 1 << 20  # offered at a time: whoever receives wants to know that bytes arrive
_JOINED_BYTES_MAX = 4 << 10  # a body up to here is copied: one piece is sent faster than two

_PREFIX = struct.Struct("<IBQI")


class Kind(IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    REQUEST = 4
    ANSWER = 5
    FAILED = 6
    REFUSED = 7
    NOTICE = 8
    PING = 9
    MOVE = 10


_LAST = max(Kind)


class Frame(NamedTuple):
    kind: int
    number: int
    head: bytes
    body: memoryview


EMPTY = memoryview(b"")


def body_bytes(pieces: Sequence[Buffer]) -> int:
    return sum([p.nbytes if isinstance(p, memoryview) else len(p) for p in pieces])


def encode_frame(
    kind: int,
    number: int = 0,
    head: Buffer = b"",
    body: Sequence[Buffer] = (),
    *,
    frame_bytes_max: int = FRAME_BYTES_MAX,
) -> list[Buffer]:
    """Pieces to write one after the other; buffers of a long body are among them, unchanged."""
    total = body_bytes(body)
    length = OVERHEAD_BYTES + len(head) + total
    if length > frame_bytes_max or len(head) > HEAD_BYTES_MAX:
        raise LocalProtocolError("frame too large", bytes=length, limit=frame_bytes_max)
    prefix = _PREFIX.pack(length, kind, number, len(head))
    if total <= _JOINED_BYTES_MAX:
        return [b"".join((prefix, head, *body))]
    return [prefix + head, *body]


PING = b"".join(encode_frame(Kind.PING))


class FrameDecoder:
    """Bytes in, frames out, each in memory of its own.

    When bytes that must end the link follow good frames in one `feed`, the good frames are returned
    and `failure` is set; whoever feeds on gets it raised.

    Memory follows what was received, unless whoever feeds asks for `room`: then all of a body is
    taken at once, so that it can be received where it stays.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.failure: RemoteProtocolError | None = None
        self._frame_bytes_max = frame_bytes_max
        self._partial = bytearray()
        self._head: tuple[int, int, bytes] | None = None  # of the frame whose body has room
        self._body = EMPTY
        self._filled = 0

    def set_limit(self, frame_bytes_max: int) -> None:
        """For the frames whose length is read from now on."""
        self._frame_bytes_max = frame_bytes_max

    @property
    def is_between_frames(self) -> bool:
        return not self._partial and self._head is None

    @property
    def next_bytes(self) -> int:
        """How long the frame is that has begun to arrive; 0 when nobody knows yet."""
        if self._head is not None or len(self._partial) < PREFIX_BYTES:
            return 0
        return 4 + int.from_bytes(self._partial[:4], "little")

    def split(self, data: memoryview, frames_max: int) -> list[Frame] | None:
        """All frames of `data`, if it is nothing but whole and good ones, and no more than so many;
        otherwise None, and nothing has been taken."""
        if self._partial or self._head is not None or self.failure is not None:
            return None
        found: list[Frame] = []
        position, end = 0, len(data)
        while position < end:
            if end - position < PREFIX_BYTES or len(found) == frames_max:
                return None
            length, kind, number, head_length = _PREFIX.unpack_from(data, position)
            after = position + 4 + length
            if after > end or self._fault(length, kind, head_length):
                return None
            body_at = position + PREFIX_BYTES + head_length
            head = bytes(data[position + PREFIX_BYTES : body_at])
            body = memoryview(bytes(data[body_at:after])) if body_at < after else EMPTY
            found.append(Frame(kind, number, head, body))
            position = after
        return found

    def feed(self, data: Buffer) -> list[Frame]:
        if self.failure is not None:
            raise self.failure
        if self._head is not None:
            return self._feed_body(memoryview(data))
        frames: list[Frame] = []
        kept = self._partial
        if kept:
            kept += data
        with memoryview(kept or data) as view:
            position, end = 0, len(view)
            while end - position >= PREFIX_BYTES:
                length, kind, number, head_length = _PREFIX.unpack_from(view, position)
                fault = self._fault(length, kind, head_length)
                if fault:
                    self.failure = RemoteProtocolError(fault, length=length, kind=kind)
                    if not frames:
                        raise self.failure
                    return frames
                after = position + 4 + length
                if after > end:
                    break
                body_at = position + PREFIX_BYTES + head_length
                head = bytes(view[position + PREFIX_BYTES : body_at])
                body = memoryview(bytes(view[body_at:after])) if body_at < after else EMPTY
                frames.append(Frame(kind, number, head, body))
                position = after
            if position or not kept:
                self._partial = bytearray(view[position:])
        return frames

    def room(self) -> memoryview | None:
        """Where the next bytes of a long body belong; None when it is not long, or its head is not
        complete. What is received there is told to `fill`."""
        if self._head is None and not self._make_room():
            return None
        return self._body[self._filled : self._filled + ROOM_BYTES_MAX]

    def fill(self, byte_count: int) -> list[Frame]:
        """So many bytes were received into what `room` gave."""
        assert self._head is not None, "no room was given"
        self._filled += byte_count
        if self._filled < len(self._body):
            return []
        frame = Frame(*self._head, self._body)
        self._head, self._body = None, EMPTY
        return [frame]

    def _make_room(self) -> bool:
        if len(self._partial) < PREFIX_BYTES:
            return False
        length, kind, number, head_length = _PREFIX.unpack_from(self._partial)
        body_at, after = PREFIX_BYTES + head_length, 4 + length
        if len(self._partial) < body_at or after - len(self._partial) < ROOM_BYTES_MIN:
            return False
        self._head = kind, number, bytes(self._partial[PREFIX_BYTES:body_at])
        self._body = _fresh_memory(after - body_at)
        arrived = self._partial[body_at:]
        self._filled = len(arrived)
        self._body[: self._filled] = arrived
        self._partial = bytearray()
        return True

    def _feed_body(self, data: memoryview) -> list[Frame]:
        count = min(len(data), len(self._body) - self._filled)
        self._body[self._filled : self._filled + count] = data[:count]
        frames = self.fill(count)
        return frames + self.feed(data[count:]) if count < len(data) else frames

    def _fault(self, length: int, kind: int, head_length: int) -> str:
        if not OVERHEAD_BYTES <= length <= self._frame_bytes_max:
            return "frame of a bad length"
        if head_length > length - OVERHEAD_BYTES or head_length > HEAD_BYTES_MAX:
            return "frame with a head of a bad length"
        if not 1 <= kind <= _LAST:
            return "frame of an unknown kind"
        return ""


def _fresh_memory(length: int) -> memoryview:
    """What is in it is anybody's: zeros would cost as much as receiving the bytes."""
    import numpy as np

    return np.empty(length, np.uint8).data
