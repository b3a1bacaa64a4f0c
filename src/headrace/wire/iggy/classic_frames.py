"""Classic framing, both directions; all numbers little endian.

| Request  | `u32 length, u32 code, payload`   | `length` counts the code and the payload |
| Response | `u32 status, u32 length, payload` | `length` counts the payload alone        |

There is no request id: one request at a time, replies in order. A failed request has no payload.
A success of length 0 or 1 is empty and no byte follows it, so a payload of one byte cannot be sent.

A connection whose first four bytes are zero speaks dialect C, which has another framing (`vsr/`);
`request_stream.py` tells the two apart.
Decoders keep at most what arrived: a frame that states a large length costs nothing until its bytes
come, and more than the limit is refused as soon as the length is read.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.vsr.frames import Head, encode_reply

_HEAD = struct.Struct("<II")
_U32 = struct.Struct("<I")
CODE_BYTES = 4
HEAD_BYTES = _HEAD.size
WITH_MESSAGES = frozenset((101, 9002))  # SEND_MESSAGES, STAGE

FRAME_BYTES_MAX = 16 * 1024 * 1024
SEND_FRAME_BYTES_MAX = (
    64 * 1024 * 1024
)  # many messages of up to 10,000,000 bytes travel in one SEND
ALL = sys.maxsize
_PLACE_BYTES_MIN = 2 * 1024 * 1024
_PLACE_RATIO = 128  # memory that is taken before its bytes came is in proportion to those that did
RESPONSE_BYTES_MAX = 256 * 1024 * 1024  # a poll may ask a plain Iggy server for a great deal


@dataclass(frozen=True, slots=True)
class RequestFrame:
    code: int
    payload: memoryview
    """Owned by this frame and writable: the broker stamps messages in place."""
    head: Head | None = None
    """What dialect C's header says; None in classic framing. The same in TooLarge."""


@dataclass(frozen=True, slots=True)
class BadLength:
    """A length below 4. Answer INVALID_COMMAND; the frame's bytes are skipped, the next is fine."""

    length: int


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A frame above the limit. Answer INVALID_COMMAND and close: nobody will read its bytes."""

    code: int | None
    length: int
    head: Head | None = None


@dataclass(frozen=True, slots=True)
class OtherFraming:
    """The peer speaks no framing of ours. Nothing after this event is decoded."""


RequestEvent: TypeAlias = RequestFrame | BadLength | TooLarge | OtherFraming


class FrameMemory:
    """Memory for one large frame, taken once. Memory that grows with what arrives is moved again
    and again, and of many such frames side by side more stays behind than they hold."""

    __slots__ = ("filled", "memory")

    def __init__(self, total: int, first: Buffer) -> None:
        import numpy as np  # not at the top: a third of a second, for the command line, too

        self.memory: memoryview = np.empty(total, np.uint8).data
        self.filled = len(first)
        self.memory[: self.filled] = first

    @classmethod
    def of(cls, total: int, first: Buffer) -> FrameMemory | None:
        """None while too little of the frame came, or it is no large one. Pages that nothing came
        for are never touched."""
        if total < _PLACE_BYTES_MIN or total > len(first) * _PLACE_RATIO:
            return None
        return cls(total, first)

    def fill(self, view: memoryview) -> int:
        """How many of the bytes belong here."""
        count = min(len(self.memory) - self.filled, len(view))
        self.memory[self.filled : self.filled + count] = view[:count]
        self.filled += count
        return count

    @property
    def is_full(self) -> bool:
        return self.filled == len(self.memory)


class RequestDecoder:
    """Bytes in, events out. After TooLarge or OtherFraming it stays silent.

    With `events_max` a `feed` stops after so many, and `more` goes on behind them until it gives
    none: a peer that sends many small frames does not hold up whoever else is to be served.
    """

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        send_frame_bytes_max: int = SEND_FRAME_BYTES_MAX,
        begins: bool = True,
    ) -> None:
        """Without `begins` the peer has sent frames before."""
        self._pending = bytearray()
        self._place: FrameMemory | None = None  # instead, of a large frame
        self._rest: memoryview | None = None  # of what was fed, not looked at yet
        self._first = begins
        self._ended = False
        self.set_limits(frame_bytes_max, send_frame_bytes_max)

    def set_limits(self, frame_bytes_max: int, send_frame_bytes_max: int) -> None:
        """For the frames whose length is read from now on."""
        self._frame_bytes_max = frame_bytes_max
        self._send_frame_bytes_max = max(frame_bytes_max, send_frame_bytes_max)

    @property
    def buffered_bytes(self) -> int:
        return len(self._pending) if self._place is None else self._place.filled

    def unfinished(self) -> bytes:
        """As in `RequestStream`."""
        place = self._place
        return bytes(self._pending if place is None else place.memory[: place.filled])

    def room(self, least: int, most: int) -> memoryview | None:
        """Memory for the rest of the frame under way, to be filled and then told by `complete`.

        None unless `least` bytes of it are here and all of it is no more than `most`: memory that
        is taken before its bytes came must be in proportion to those that did.
        """
        have = len(self._pending)
        if self._ended or have < max(least, _HEAD.size):
            return None
        total = _U32.size + _U32.unpack_from(self._pending)[0]
        if total > most:
            return None
        frame = bytearray(total)
        frame[:have] = self._pending
        self._pending = frame
        return memoryview(frame)[have:]

    def complete(self) -> RequestEvent:
        """The memory that `room` gave is full."""
        return self._take(len(self._pending) - _U32.size)

    def feed(self, data: Buffer, events_max: int = ALL) -> list[RequestEvent]:
        assert self._rest is None, "`more` comes first"
        if not self._pending and self._place is None and len(data) > _HEAD.size:
            (length,) = _U32.unpack_from(data)
            if len(data) == _U32.size + length <= self._frame_bytes_max and not self._ended:
                self._pending = bytearray(data)  # one whole frame, as requests mostly come
                return [self._take(length)]
        return self._decode(memoryview(data), events_max)

    def more(self, events_max: int) -> list[RequestEvent]:
        """Out of what is left of the bytes that were fed last."""
        rest, self._rest = self._rest, None
        return [] if rest is None else self._decode(rest, events_max)

    def _decode(self, view: memoryview, events_max: int) -> list[RequestEvent]:
        events: list[RequestEvent] = []
        position = 0
        if self._place is not None:
            position = self._place.fill(view)
            if not self._place.is_full:
                return events
            events.append(self._take_place(self._place))
        while not self._ended:
            if len(events) == events_max:
                self._rest = view[position:]
                break
            position += self._fill(view, position, _U32.size)
            if len(self._pending) < _U32.size:
                break
            (length,) = _U32.unpack_from(self._pending)
            head_bytes = _U32.size + min(length, CODE_BYTES)
            position += self._fill(view, position, head_bytes)
            if refusal := self._refusal(length):
                events.append(refusal)
                self._ended = True
                break
            total = _U32.size + length
            position += self._fill(view, position, total)
            if len(self._pending) < total:
                self._place = FrameMemory.of(total, self._pending)
                if self._place is not None:
                    self._pending = bytearray()
                break
            events.append(self._take(length))
        return events

    def _fill(self, view: memoryview, position: int, wanted: int) -> int:
        """Move bytes into the pending frame until it has `wanted`; the only copy a frame costs."""
        count = max(0, min(wanted - len(self._pending), len(view) - position))
        self._pending += view[position : position + count]
        return count

    def _refusal(self, length: int) -> TooLarge | OtherFraming | None:
        if self._first and length == 0:
            return OtherFraming()
        if length > self._send_frame_bytes_max:
            return TooLarge(None, length)
        if length > self._frame_bytes_max and len(self._pending) >= _HEAD.size:
            (code,) = _U32.unpack_from(self._pending, _U32.size)
            if code not in WITH_MESSAGES:
                return TooLarge(code, length)
        return None

    def _take_place(self, place: FrameMemory) -> RequestFrame:
        self._place, self._first = None, False
        (code,) = _U32.unpack_from(place.memory, _U32.size)
        return RequestFrame(code, place.memory[_HEAD.size :])

    def _take(self, length: int) -> RequestFrame | BadLength:
        frame, self._pending, self._first = self._pending, bytearray(), False
        if length < CODE_BYTES:
            return BadLength(length)
        (code,) = _U32.unpack_from(frame, _U32.size)
        return RequestFrame(code, memoryview(frame)[_HEAD.size :])


def decode_head(frame: Buffer) -> tuple[int, int]:
    """Length (of code and payload) and code of a request frame."""
    length, code = _HEAD.unpack_from(frame)
    return length, code


def encode_request(code: int, pieces: Sequence[Buffer] = ()) -> list[Buffer]:
    length = CODE_BYTES + sum(len(piece) for piece in pieces)
    if length > 0xFFFF_FFFF:
        raise LocalProtocolError("request too large", length=length)
    return [_HEAD.pack(length, code), *pieces]


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    status: int
    payload: memoryview


class ResponseDecoder:
    """Bytes in, responses out. A response above the limit is a RemoteProtocolError."""

    def __init__(self, *, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self._response_bytes_max = response_bytes_max
        self._pending = bytearray()

    @property
    def buffered_bytes(self) -> int:
        return len(self._pending)

    def feed(self, data: Buffer) -> list[ResponseFrame]:
        frames: list[ResponseFrame] = []
        view, position = memoryview(data), 0
        while True:
            position += self._fill(view, position, _HEAD.size)
            if len(self._pending) < _HEAD.size:
                return frames
            status, length = _HEAD.unpack_from(self._pending)
            if length > self._response_bytes_max:
                raise RemoteProtocolError("response too large", status=status, length=length)
            body_bytes = 0 if status == 0 and length <= 1 else length
            position += self._fill(view, position, _HEAD.size + body_bytes)
            if len(self._pending) < _HEAD.size + body_bytes:
                return frames
            frame, self._pending = self._pending, bytearray()
            frames.append(ResponseFrame(status, memoryview(frame)[_HEAD.size :]))

    def _fill(self, view: memoryview, position: int, wanted: int) -> int:
        count = max(0, min(wanted - len(self._pending), len(view) - position))
        self._pending += view[position : position + count]
        return count


def encode_response(status: int, pieces: Sequence[Buffer] = ()) -> list[Buffer]:
    length = sum(map(len, pieces))
    if length == 1 or length > 0xFFFF_FFFF or (status != 0 and length != 0):
        raise LocalProtocolError("no such response can be framed", status=status, length=length)
    return [_HEAD.pack(status, length), *pieces]


def encode_answer(head: Head | None, status: int, pieces: Sequence[Buffer] = ()) -> list[Buffer]:
    """In the framing of the request, which had this head."""
    return encode_response(status, pieces) if head is None else encode_reply(head, status, pieces)
