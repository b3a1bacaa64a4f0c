"""SBP frames. Big-endian; the FlatBuffers header inside is little-endian.

    0       u32  length L         everything after this field: 16 + H + P
    4       u8   magic            23
    5       u16  operation code
    7       u8   flags            1 response, 2 last frame of a response, 4 system error
    8       u32  stream id        correlates request and response; not a storage stream
    12      u8   header format    1 = FlatBuffers, also when the header is empty
    13      u24  header length H
    16      H    header
    16+H    P    payload
    16+H+P  u32  checksum         CRC-32 (zlib's) of the payload only; 0 and not checked when P = 0

A frame takes L + 4 bytes. L outside its bounds loses the frame boundary, so the connection must
close. While the boundary is known we go on: a frame with a wrong magic is skipped and counted, one
with a wrong checksum or an impossible header length is reported; the third of either kind ends the
connection.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from isal.isal_zlib import crc32  # zlib's polynomial, by vector instructions

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.sbp.flat import Buffer

MAGIC = 23
FORMAT_FLATBUFFERS = 1
RESPONSE = 1
END = 2
SYSTEM_ERROR = 4

FRAME_BYTES_MAX = 16 * 1024 * 1024  # of L, inclusive
HEADER_BYTES_MAX = (1 << 24) - 1
BAD_FRAMES_MAX = 3
ALL = sys.maxsize
OVERHEAD_BYTES = 16  # what L counts beside header and payload
ROOM_BYTES_MIN = 64 << 10  # of a frame still to come, for which room is made at once
ROOM_BYTES_MAX = 1 << 20  # offered at a time: whoever receives wants to know that bytes arrive

_HEAD = struct.Struct(">IBHBII")  # the last u32 is format and header length together
_LENGTH_BYTES = 4
_HEAD_BYTES = _HEAD.size
_CHECKSUM = struct.Struct(">I")
_NO_CHECKSUM = bytes(4)


class Frame(msgspec.Struct, frozen=True):
    opcode: int
    flags: int
    stream_id: int
    header: Buffer = b""
    payload: Buffer | Sequence[Buffer] = b""
    """One buffer when decoded; pieces are welcome when encoding."""
    header_format: int = FORMAT_FLATBUFFERS

    @property
    def is_response(self) -> bool:
        return bool(self.flags & RESPONSE)


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame whose boundary is known but whose content is not to be trusted."""

    opcode: int
    flags: int
    stream_id: int
    reason: str


def payload_bytes(pieces: Sequence[Buffer]) -> int:
    return sum([p.nbytes if isinstance(p, memoryview) else len(p) for p in pieces])


def encode_frame(frame: Frame) -> list[Buffer]:
    """Pieces to write one after the other; the payload's own buffers are among them, unchanged."""
    payload = frame.payload
    pieces = [payload] if isinstance(payload, bytes | bytearray | memoryview) else list(payload)
    total = payload_bytes(pieces)
    header_bytes = len(frame.header)
    length = OVERHEAD_BYTES + header_bytes + total
    if length > FRAME_BYTES_MAX or header_bytes > HEADER_BYTES_MAX:
        raise LocalProtocolError("frame too large", bytes=length, limit=FRAME_BYTES_MAX)
    head = _HEAD.pack(
        length, MAGIC, frame.opcode, frame.flags, frame.stream_id,
        frame.header_format << 24 | header_bytes,
    )  # fmt: skip
    if not total:
        return [b"".join((head, frame.header, _NO_CHECKSUM))]
    checksum = 0
    for piece in pieces:
        checksum = crc32(piece, checksum)
    return [head + frame.header, *pieces, _CHECKSUM.pack(checksum)]


class FrameDecoder:
    """Bytes in, frames out. Memory follows what was received, never what a length field promises.

    When bytes that must end the connection follow good frames in one `feed`, the good frames are
    returned and `failure` is set; whoever feeds on gets it raised.

    With `frames_max` a `feed` stops after so many, and `more` goes on behind them until it gives
    none: a peer that sends many small frames does not hold up whoever else is to be served.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._partial = bytearray()
        self._total = 0  # bytes of the frame in `_partial`; 0 until its head is complete
        self._whole: memoryview | None = None  # the frame in `_partial`, where `room` is asked for
        self._filled = 0
        self._rest: tuple[memoryview, int] | None = None  # what was fed, and how far it was seen
        self._skip = 0  # bytes still to drop of a frame that is not taken
        self.wrong_magic_count = 0
        self.bad_count = 0
        self.failure: RemoteProtocolError | None = None

    def set_limit(self, frame_bytes_max: int) -> None:
        """For the frames whose length is read from now on."""
        self._frame_bytes_max = frame_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """The bytes received of a frame that is not complete."""
        return len(self._partial)

    @property
    def has_rest(self) -> bool:
        return self._rest is not None

    @property
    def inside_frame(self) -> bool:
        return bool(self._partial or self._skip or self._whole)

    def feed(self, data: bytes, frames_max: int = ALL) -> list[Frame | BadFrame]:
        """Frames completed by `data`. RemoteProtocolError: close the connection."""
        assert self._whole is None, "the rest of this frame goes into its room"
        assert self._rest is None, "`more` comes first"
        return self._decode(memoryview(data), 0, frames_max)

    def more(self, frames_max: int) -> list[Frame | BadFrame]:
        """Out of what is left of the bytes that were fed last."""
        rest, self._rest = self._rest, None
        return [] if rest is None else self._decode(*rest, frames_max)

    def _decode(self, view: memoryview, position: int, frames_max: int) -> list[Frame | BadFrame]:
        events: list[Frame | BadFrame] = []
        try:
            if self.failure is not None:
                raise self.failure
            self._feed(view, position, events, frames_max)
        except RemoteProtocolError as error:
            self.failure = error
            self._partial = bytearray()
            if not events:
                raise
        return events

    def room(self) -> memoryview | None:
        """Where to receive more of a large frame that has begun, without a copy; None to `feed`.

        For clients, who asked for what comes. Pages that nothing arrives in are never touched.
        """
        if self._whole is None:
            if self._total - len(self._partial) < ROOM_BYTES_MIN:
                return None
            import numpy as np  # not at the top: a third of a second, for the command line, too

            self._whole = np.empty(self._total, np.uint8).data
            self._filled = len(self._partial)
            self._whole[: self._filled] = self._partial
            self._partial = bytearray()
        return self._whole[self._filled : self._filled + ROOM_BYTES_MAX]

    def fill(self, count: int) -> list[Frame | BadFrame]:
        """Note that so many bytes of the room have arrived; gives the frame once it is complete."""
        assert self._whole is not None
        events: list[Frame | BadFrame] = []
        self._filled += count
        if self._filled == self._total:
            frame, self._whole, self._total = self._whole, None, 0
            try:
                self._finish(frame.toreadonly(), events)
            except RemoteProtocolError as error:
                self.failure = error
        return events

    def _feed(
        self, view: memoryview, position: int, events: list[Frame | BadFrame], frames_max: int
    ) -> None:
        while position < len(view):
            if len(events) >= frames_max:
                self._rest = view, position
                return
            if self._skip:
                step = min(self._skip, len(view) - position)
                self._skip -= step
                position += step
            elif self._partial:
                position = self._continue(view, position, events)
            else:
                position = self._start(view, position, events)

    def _start(self, view: memoryview, position: int, events: list[Frame | BadFrame]) -> int:
        """A frame starts at `position`; take it whole, or keep what there is of it."""
        left = len(view) - position
        if left >= _HEAD_BYTES:
            total = self._check_head(view, position, events)
            if not total:
                return position + _HEAD_BYTES
            if left >= total:
                frame = view[position : position + total]
                # A view pins the whole received chunk. Copy, unless the frame is most of it.
                self._finish(frame if 2 * total >= len(view) else memoryview(bytes(frame)), events)
                return position + total
            self._total = total
        elif left >= _LENGTH_BYTES:
            self._check_length(_CHECKSUM.unpack_from(view, position)[0])
        self._partial = bytearray(view[position:])
        return len(view)

    def _continue(self, view: memoryview, position: int, events: list[Frame | BadFrame]) -> int:
        """Bytes for the frame in `_partial`: first complete its head, then the rest."""
        partial = self._partial
        wanted = self._total or (_HEAD_BYTES if len(partial) >= _LENGTH_BYTES else _LENGTH_BYTES)
        end = min(len(view), position + wanted - len(partial))
        partial += view[position:end]
        if len(partial) < wanted:
            return end
        if wanted == _LENGTH_BYTES:
            self._check_length(_CHECKSUM.unpack_from(partial)[0])
        elif not self._total:
            self._total = self._check_head(partial, 0, events)
            if not self._total:
                self._partial = bytearray()
        if len(partial) == self._total:
            self._partial, self._total = bytearray(), 0
            self._finish(memoryview(partial).toreadonly(), events)
        return end

    def _check_length(self, length: int) -> None:
        if not OVERHEAD_BYTES <= length <= self._frame_bytes_max:
            limit = self._frame_bytes_max
            raise RemoteProtocolError("frame length out of bounds", length=length, limit=limit)

    def _check_head(self, data: Buffer, position: int, events: list[Frame | BadFrame]) -> int:
        """Bytes of the frame, or 0 when the rest of it is to be skipped."""
        length, magic, opcode, flags, stream_id, header = _HEAD.unpack_from(data, position)
        self._check_length(length)
        total: int = length + _LENGTH_BYTES
        if magic == MAGIC and header & HEADER_BYTES_MAX <= length - OVERHEAD_BYTES:
            return total
        self._skip = total - _HEAD_BYTES
        if magic == MAGIC:
            self._bad(BadFrame(opcode, flags, stream_id, "header longer than the frame"), events)
            return 0
        self.wrong_magic_count += 1
        if self.wrong_magic_count >= BAD_FRAMES_MAX:
            raise RemoteProtocolError("too many frames with a wrong magic", magic=magic)
        return 0

    def _finish(self, frame: memoryview, events: list[Frame | BadFrame]) -> None:
        _, _, opcode, flags, stream_id, header = _HEAD.unpack_from(frame)
        header_end = _HEAD_BYTES + (header & HEADER_BYTES_MAX)
        payload = frame[header_end:-4]
        if payload and crc32(payload) != _CHECKSUM.unpack_from(frame, len(frame) - 4)[0]:
            self._bad(BadFrame(opcode, flags, stream_id, "payload checksum mismatch"), events)
            return
        events.append(
            Frame(
                opcode,
                flags,
                stream_id,
                bytes(frame[_HEAD_BYTES:header_end]),
                payload,
                header >> 24,
            )
        )

    def _bad(self, event: BadFrame, events: list[Frame | BadFrame]) -> None:
        events.append(event)
        self.bad_count += 1
        if self.bad_count >= BAD_FRAMES_MAX:
            raise RemoteProtocolError("too many bad frames", reason=event.reason)
