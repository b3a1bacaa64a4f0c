"""Hadoop's tokens: what a launched container proves itself with.

    identifier   u8 version 0 | Text owner | Text renewer | Text real user
                 | vlong issued ms | vlong expires ms | vint sequence | vint master key
    token        vint length, identifier | vint length, password | Text kind | Text service
    Text         vint length | UTF-8
    vint, vlong  -112..127 in one byte; otherwise a byte that says sign and count, then that many
                 bytes, big-endian, of the number (of its complement when negative)

These are Hadoop's own layouts, so that a container in a JVM can read its token with Hadoop's
classes (`Token.decodeFromUrlString`). The owner is the container's id.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

from headrace.errors import RemoteProtocolError

KIND = "DT_DELEGATION_TOKEN"
TOKEN_BYTES_MAX = 4_096
_VERSION = 0
_ONE_BYTE_MIN, _ONE_BYTE_MAX = -112, 127


@dataclass(frozen=True, slots=True)
class TokenIdentifier:
    owner: str
    issued_ms: int = 0
    expires_ms: int = 0
    sequence: int = 0
    master_key: int = 0
    renewer: str = ""
    real_user: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    identifier: bytes
    password: bytes = field(repr=False)
    kind: str = KIND
    service: str = ""  # `host:port` of the server, for clients that choose among several tokens


def encode_identifier(identifier: TokenIdentifier) -> bytes:
    texts = (identifier.owner, identifier.renewer, identifier.real_user)
    numbers = (
        identifier.issued_ms,
        identifier.expires_ms,
        identifier.sequence,
        identifier.master_key,
    )
    return b"".join(
        (bytes((_VERSION,)), *map(_encode_text, texts), *(_encode_vlong(one) for one in numbers))
    )


def decode_identifier(data: bytes) -> TokenIdentifier:
    """RemoteProtocolError when it is none."""
    if not data or data[0] != _VERSION:
        raise RemoteProtocolError("a token identifier of another version")
    reader = _Reader(data, 1)
    owner, renewer, real_user = reader.text(), reader.text(), reader.text()
    issued_ms, expires_ms, sequence, master_key = (reader.number() for _ in range(4))
    reader.check_end()
    return TokenIdentifier(
        owner, issued_ms, expires_ms, sequence, master_key, renewer=renewer, real_user=real_user
    )


def format_token(token: Token) -> str:
    """Hadoop's URL form: base64 without padding, fit for a variable or a file."""
    data = b"".join(
        (
            _encode_vlong(len(token.identifier)),
            token.identifier,
            _encode_vlong(len(token.password)),
            token.password,
            _encode_text(token.kind),
            _encode_text(token.service),
        )
    )
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def parse_token(text: str) -> Token:
    """RemoteProtocolError when it is none."""
    text = text.strip()
    if len(text) > TOKEN_BYTES_MAX:
        raise RemoteProtocolError(f"a token longer than {TOKEN_BYTES_MAX} characters")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise RemoteProtocolError("a token is not base64") from None  # its text stays secret
    reader = _Reader(data, 0)
    identifier, password = reader.data(), reader.data()
    token = Token(identifier, password, reader.text(), reader.text())
    reader.check_end()
    return token


def _encode_vlong(value: int) -> bytes:
    if _ONE_BYTE_MIN <= value <= _ONE_BYTE_MAX:
        return value.to_bytes(1, "big", signed=True)
    first, value = (-112, value) if value >= 0 else (-120, ~value)
    count = (value.bit_length() + 7) // 8
    return (first - count).to_bytes(1, "big", signed=True) + value.to_bytes(count, "big")


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return _encode_vlong(len(data)) + data


class _Reader:
    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def number(self) -> int:
        first = int.from_bytes(self._take(1), "big", signed=True)
        if first >= _ONE_BYTE_MIN:
            return first
        negative = first < -120
        count = -(first + (120 if negative else 112))
        value = int.from_bytes(self._take(count), "big")
        return ~value if negative else value

    def data(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        try:
            return self.data().decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("a token's text is not UTF-8") from None

    def check_end(self) -> None:
        if self._position != len(self._data):
            raise RemoteProtocolError("bytes after the end of a token")

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise RemoteProtocolError("a token ends too early")
        taken = self._data[self._position : end]
        self._position = end
        return taken
