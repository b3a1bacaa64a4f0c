"""User headers of a message, and the message key that Headrace keeps in them.

Entries stand back to back. B2: `u8 key kind, u32 key length, key, u8 value kind, u32 value length,
value`; A and B1 have no key kind, their keys are text. Keys and values have 1 to 255 bytes. The
block is opaque to the server, except where it translates between dialects.

A key of a message is the header `headrace.key` (raw, 1 to 255 bytes); a longer one continues in
`headrace.key.1`, `headrace.key.2`, ... An empty key cannot be said here and counts as no key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from headrace.errors import LocalProtocolError
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import U8_LAYOUT, U32_LAYOUT, Buffer, Reader, Writer

USER_HEADERS_BYTES_MAX = 100_000
_TEXT_BYTES_MAX = 255  # of one key or one value


class HeaderKind(IntEnum):
    RAW = 1
    STRING = 2
    BOOL = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    INT128 = 8
    UINT8 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    UINT128 = 13
    FLOAT32 = 14
    FLOAT64 = 15


_SIZES = {
    HeaderKind.BOOL: 1,
    HeaderKind.INT8: 1,
    HeaderKind.INT16: 2,
    HeaderKind.INT32: 4,
    HeaderKind.INT64: 8,
    HeaderKind.INT128: 16,
    HeaderKind.UINT8: 1,
    HeaderKind.UINT16: 2,
    HeaderKind.UINT32: 4,
    HeaderKind.UINT64: 8,
    HeaderKind.UINT128: 16,
    HeaderKind.FLOAT32: 4,
    HeaderKind.FLOAT64: 8,
}
_FLOATS = {HeaderKind.FLOAT32: struct.Struct("<f"), HeaderKind.FLOAT64: struct.Struct("<d")}
_SIGNED = frozenset(kind for kind in HeaderKind if kind.name.startswith("INT"))


@dataclass(frozen=True, slots=True)
class UserHeader:
    key: bytes
    value: bytes
    kind: HeaderKind = HeaderKind.RAW
    key_kind: HeaderKind = HeaderKind.STRING

    @classmethod
    def of(cls, key: str, value: bytes | str | bool | int | float) -> UserHeader:
        """A header of the kind that fits a Python value: integers are INT64, floats FLOAT64."""
        if isinstance(value, bytes):
            return cls(key.encode(), value, HeaderKind.RAW)
        if isinstance(value, str):
            return cls(key.encode(), value.encode(), HeaderKind.STRING)
        if isinstance(value, bool):
            return cls(key.encode(), bytes([value]), HeaderKind.BOOL)
        try:
            if isinstance(value, int):
                return cls(key.encode(), value.to_bytes(8, "little", signed=True), HeaderKind.INT64)
            return cls(key.encode(), struct.pack("<d", value), HeaderKind.FLOAT64)
        except OverflowError as error:
            raise LocalProtocolError("number does not fit 64 bits", value=value) from error

    def python_value(self) -> bytes | str | bool | int | float:
        """The value as Python has it; text that is no UTF-8 stays bytes."""
        if self.kind is HeaderKind.RAW:
            return self.value
        if self.kind is HeaderKind.STRING:
            try:
                return self.value.decode()
            except UnicodeDecodeError:
                return self.value
        if self.kind is HeaderKind.BOOL:
            return self.value != b"\0"
        if self.kind in _FLOATS:
            return float(_FLOATS[self.kind].unpack(self.value)[0])
        return int.from_bytes(self.value, "little", signed=self.kind in _SIGNED)


def encode_headers(headers: Iterable[UserHeader], dialect: Dialect = Dialect.B2) -> bytes:
    block = _encode(headers, dialect)
    if len(block) > USER_HEADERS_BYTES_MAX:
        raise headers_too_large(len(block))
    return block


def headers_too_large(length: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"headers of {length:,} bytes are too large: those of a message, with its key, may have "
        f"{USER_HEADERS_BYTES_MAX:,}"
    )


def _encode(headers: Iterable[UserHeader], dialect: Dialect) -> bytes:
    writer = Writer(dialect)
    for header in headers:
        _check_length("key", header.key)
        _check_length("value", header.value)
        if _SIZES.get(header.kind, len(header.value)) != len(header.value):
            raise LocalProtocolError("value size does not fit its kind", kind=header.kind.name)
        if dialect.typed_header_keys:
            writer.append(header.key_kind)
        writer.number(U32_LAYOUT, len(header.key))
        writer += header.key
        writer.append(header.kind)
        writer.number(U32_LAYOUT, len(header.value))
        writer += header.value
    return bytes(writer)


def _check_length(what: str, data: bytes) -> None:
    if not 1 <= len(data) <= _TEXT_BYTES_MAX:
        raise LocalProtocolError(f"a header {what} has 1 to 255 bytes", length=len(data))


def decode_headers(data: Buffer, dialect: Dialect = Dialect.B2) -> tuple[UserHeader, ...]:
    reader = Reader(data, dialect)
    headers = []
    while reader.remaining:
        key_kind = _read_kind(reader) if dialect.typed_header_keys else HeaderKind.STRING
        key = _read_bytes(reader, Status.INVALID_HEADER_KEY)
        kind = _read_kind(reader)
        value = _read_bytes(reader, Status.INVALID_HEADER_VALUE)
        if _SIZES.get(kind, len(value)) != len(value):
            raise DecodeError(Status.INVALID_HEADER_VALUE, kind=kind.name, length=len(value))
        headers.append(UserHeader(key, value, kind, key_kind))
    return tuple(headers)


def _read_kind(reader: Reader) -> HeaderKind:
    value = reader.number(U8_LAYOUT)
    try:
        return HeaderKind(value)
    except ValueError:
        raise DecodeError(Status.INVALID_HEADER_KIND, value=value) from None


def _read_bytes(reader: Reader, status: Status) -> bytes:
    length = reader.u32()
    if not 1 <= length <= _TEXT_BYTES_MAX:
        raise DecodeError(status, length=length)
    return bytes(reader.take(length))


_ENTRY_LENGTH = struct.Struct("<I")
_KINDS = frozenset(HeaderKind)


def convert_headers(data: bytes, source: Dialect, target: Dialect) -> bytes:
    """The same headers in another dialect; on the way to A and B1 keys lose their kind.

    What `encode_headers(decode_headers(...))` gives, without an object for each: poll replies to A
    and B1 are made of this.
    """
    typed = source.typed_header_keys
    if typed == target.typed_header_keys:
        return data
    pieces: list[bytes] = []
    position, end = 0, len(data)
    try:
        while position < end:
            if typed:
                if data[position] not in _KINDS:
                    raise DecodeError(Status.INVALID_HEADER_KIND, value=data[position])
                position += 1
            else:
                pieces.append(_TEXT_KEY)
            (length,) = _ENTRY_LENGTH.unpack_from(data, position)
            value_kind_at = position + 4 + length
            if not 1 <= length <= _TEXT_BYTES_MAX:
                raise DecodeError(Status.INVALID_HEADER_KEY, length=length)
            (length,) = _ENTRY_LENGTH.unpack_from(data, value_kind_at + 1)
            kind, following = data[value_kind_at], value_kind_at + 5 + length
            if kind not in _KINDS:
                raise DecodeError(Status.INVALID_HEADER_KIND, value=kind)
            if not 1 <= length <= _TEXT_BYTES_MAX or _SIZES.get(HeaderKind(kind), length) != length:
                raise DecodeError(Status.INVALID_HEADER_VALUE, kind=kind, length=length)
            if following > end:
                raise DecodeError(Status.INVALID_COMMAND, "headers end inside a value")
            pieces.append(data[position:following])
            position = following
    except (struct.error, IndexError):
        raise DecodeError(Status.INVALID_NUMBER_ENCODING, position=position, length=end) from None
    return b"".join(pieces)


_TEXT_KEY = bytes((HeaderKind.STRING,))

# --- the message key ------------------------------------------------------------------------------

KEY_HEADER = b"headrace.key"
_KEY_ENTRY = struct.Struct(f"<BI{len(KEY_HEADER)}sBI")
KEY_PREFIX_BYTES = _KEY_ENTRY.size
"""Bytes of a `headrace.key` entry before its value."""


def key_header(key: bytes | None) -> bytes:
    """The header block (B2) that carries `key`; empty for no key."""
    if not key:
        return b""
    if len(key) <= _TEXT_BYTES_MAX:  # written out: Spark's writer calls this for every distinct key
        return key_prefix(len(key)) + key
    pieces = range(0, len(key), _TEXT_BYTES_MAX)
    return encode_headers(
        UserHeader(KEY_HEADER + (b".%d" % i if i else b""), key[at : at + _TEXT_BYTES_MAX])
        for i, at in enumerate(pieces)
    )


def key_prefix(length: int) -> bytes:
    """What stands before a key of 1 to 255 bytes."""
    return _KEY_ENTRY.pack(HeaderKind.STRING, len(KEY_HEADER), KEY_HEADER, HeaderKind.RAW, length)


def split_key(headers: Buffer) -> tuple[bytes | None, tuple[UserHeader, ...]]:
    """The message's key and its other headers, whatever their order."""
    parts: dict[int, bytes] = {}
    rest = []
    for header in decode_headers(headers):
        index = _key_index(header.key)
        if index is None:
            rest.append(header)
        else:
            parts[index] = header.value
    if 0 not in parts:
        return None, tuple(rest)
    return b"".join(parts[index] for index in sorted(parts)), tuple(rest)


def _key_index(name: bytes) -> int | None:
    if name == KEY_HEADER:
        return 0
    number = name.removeprefix(KEY_HEADER + b".")
    return int(number) if number != name and number.isdigit() and len(number) <= 3 else None
