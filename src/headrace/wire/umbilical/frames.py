"""Frames of Hadoop RPC and the delimited parts inside them.

    frame      i32 length, big-endian, counts the body alone | body
    body       parts, each a varint length and that many bytes

Nothing is allocated for a frame before its bytes arrive.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from google.protobuf import message as protobuf

from headrace.errors import LocalProtocolError, RemoteProtocolError

FRAME_BYTES_MAX = 64 * 1024 * 1024

_LENGTH = struct.Struct(">i")
_VARINT_BYTES_MAX = 5
P = TypeVar("P", bound=protobuf.Message)
T = TypeVar("T")


class FrameDecoder:
    """Cuts the byte stream into frame bodies."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max  # may change between two frames
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self, length: int) -> bytes | None:
        """`length` bytes off the front, or None to ask for more."""
        if len(self._buffer) < length:
            return None
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    def take_frame(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= length <= self.frame_bytes_max:
            raise RemoteProtocolError(f"frame length {length} outside 0..{self.frame_bytes_max}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return body


def encode_frame(*parts: protobuf.Message | bytes) -> bytes:
    body = bytearray()
    for part in parts:
        data = part if isinstance(part, bytes) else part.SerializeToString()
        body += _encode_varint(len(data))
        body += data
    if len(body) > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"frame of {len(body)} bytes is longer than {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + bytes(body)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def take_delimited(body: bytes, position: int) -> tuple[bytes, int]:
    length = 0
    for index in range(_VARINT_BYTES_MAX):
        if position >= len(body):
            raise RemoteProtocolError("frame ends inside a length")
        byte = body[position]
        position += 1
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise RemoteProtocolError("length is longer than five bytes")
    if length > len(body) - position:
        raise RemoteProtocolError(f"part of {length} bytes in a frame with fewer")
    return body[position : position + length], position + length


def take_message(cls: type[P], body: bytes, position: int) -> tuple[P, int]:
    data, position = take_delimited(body, position)
    message = cls()
    try:
        message.ParseFromString(data)
    except (protobuf.DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"not a {cls.__name__}: {error}") from error
    return message, position


def check_end(body: bytes, position: int) -> None:
    if position != len(body):
        raise RemoteProtocolError(f"{len(body) - position} bytes after the end of a message")


def read_text(read: Callable[[], T]) -> T:
    """Header texts are decoded when they are read, not when they are parsed."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("a header's text is not UTF-8") from error
