"""The access token in a login's reply: proof, for an hour, that its holder knew the password.

    "iggypat-s." + base64url of  u64 user uid, u64 expiry (ms since the epoch), 32 bytes HMAC-SHA256

The HMAC is keyed with the cluster's secret and covers the two numbers and the user's password hash:
nothing is stored, and changing the password or deleting the user ends every token at once. Logging
in with one gives no new one, so it cannot be stretched; nothing else ends it early. The prefix
lets it stand in a connection string; a personal access token never has a dot.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass

_PREFIX = "iggypat-s."
_BODY = struct.Struct("<QQ")
_MAC_BYTES = hashlib.sha256().digest_size
_TEXT_BYTES = (_BODY.size + _MAC_BYTES) * 4 // 3  # 48 bytes: base64 needs no padding
_PURPOSE = b"headrace session token\0"


@dataclass(frozen=True, slots=True)
class SessionToken:
    """What a token claims; true only if `is_signed`."""

    user_uid: int
    expires_ms: int
    mac: bytes

    def is_signed(self, secret: bytes, password_hash: str) -> bool:
        body = _BODY.pack(self.user_uid, self.expires_ms)
        return hmac.compare_digest(self.mac, _mac(secret, body, password_hash))


def make_session_token(secret: bytes, *, user_uid: int, password_hash: str, expires_ms: int) -> str:
    body = _BODY.pack(user_uid, expires_ms)
    return _PREFIX + urlsafe_b64encode(body + _mac(secret, body, password_hash)).decode()


def parse_session_token(token: str) -> SessionToken | None:
    """None for anything that does not look like one."""
    text = token.removeprefix(_PREFIX)
    if text == token or len(text) != _TEXT_BYTES or not text.isascii():
        return None
    try:
        data = urlsafe_b64decode(text)
    except Base64Error:
        return None
    if len(data) != _BODY.size + _MAC_BYTES:
        return None
    user_uid, expires_ms = _BODY.unpack_from(data)
    return SessionToken(user_uid, expires_ms, data[_BODY.size :])


def _mac(secret: bytes, body: bytes, password_hash: str) -> bytes:
    message = _PURPOSE + body + password_hash.encode()
    return hmac.new(secret, message, hashlib.sha256).digest()
