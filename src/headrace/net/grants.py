"""Grants: what containers of pipelines, and the tasks of their queries, show the broker.

    text     "headrace-grant-" + base64url of msgpack [[scope, ...], mac]
    scope    msgpack map {exp: ms since the epoch, holder, reads, writes, publishers, closes}
    mac      k(0) = HMAC-SHA256(secret, "grant" 0x00 scope 0), k(i) = HMAC-SHA256(k(i-1), scope i)

The controller makes the first scope with the cluster's secret: the topics of one application, for
some hours. Whoever holds a grant can add a narrower scope to it without asking anybody, because the
next key is the last one's HMAC, and can take none away. What a grant allows is what each of its
scopes does, so a driver hands its tasks the right to stage rows for one topic, for some hours,
and nothing else.

Names are patterns of `fnmatch`, `stream/topic` for topics; `exactly` makes one of a name. Secrets
of this kind are never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from headrace.errors import UnauthorizedError

PREFIX = "headrace-grant-"
GRANT_BYTES_MAX = 7 * 1024
"""It comes before the login, when a connection is allowed no long request."""
SCOPE_BYTES_MAX = 4 * 1024
SCOPES_MAX = 4
EVERYTHING = "*"

_PURPOSE = b"grant\0"
_MAGIC = re.compile(r"([*?[])")


class Scope(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    exp: int
    """Milliseconds since the epoch."""
    holder: str = ""
    """Whom audit lines name; of the first scope alone."""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    """May be made, too, if they are not there."""
    publishers: tuple[str, ...] = ()
    closes: bool = True
    """Windows of these publishers: False for a task, which stages and does not publish."""


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    scopes: tuple[bytes, ...]
    mac: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """One that is signed by this cluster."""

    scopes: tuple[Scope, ...]

    @property
    def holder(self) -> str:
        return self.scopes[0].holder

    @property
    def expires_ms(self) -> int:
        return min(scope.exp for scope in self.scopes)

    def may_read(self, stream: str, topic: str) -> bool:
        return all(_covers(scope.reads, stream, topic) for scope in self.scopes)

    def may_write(self, stream: str, topic: str) -> bool:
        return all(_covers(scope.writes, stream, topic) for scope in self.scopes)

    def may_publish(self, name: str) -> bool:
        return all(
            any(fnmatchcase(name, pattern) for pattern in scope.publishers) for scope in self.scopes
        )

    @property
    def may_close(self) -> bool:
        return all(scope.closes for scope in self.scopes)

    def knows_stream(self, stream: str) -> bool:
        """Whether a topic of it may be read or written."""
        return all(
            any(
                fnmatchcase(stream, _parts(pattern)[0]) for pattern in (*scope.reads, *scope.writes)
            )
            for scope in self.scopes
        )


def exactly(name: str) -> str:
    """The pattern that matches this name alone."""
    return _MAGIC.sub(r"[\1]", name)


def make_grant(secret: bytes, scope: Scope) -> str:
    body = msgspec.msgpack.encode(scope)
    return _seal(_Sealed((body,), _mac(secret, _PURPOSE + body)))


def narrow_grant(text: str, scope: Scope) -> str:
    """A grant that allows what both do. UnauthorizedError for a text that is none."""
    sealed = _open(grant_bytes(text))
    body = msgspec.msgpack.encode(scope)
    return _seal(_Sealed((*sealed.scopes, body), _mac(sealed.mac, body)))


def is_grant(text: str) -> bool:
    return text.startswith(PREFIX)


def grant_bytes(text: str) -> bytes:
    """As it goes over the wire."""
    try:
        return urlsafe_b64decode(text.removeprefix(PREFIX).encode("ascii"))
    except (Base64Error, ValueError) as error:
        raise UnauthorizedError("not a grant") from error


def verify_grant(secret: bytes, data: bytes, now_ms: int) -> Grant:
    """UnauthorizedError unless this cluster's secret signed it and it has not expired."""
    sealed = _open(data)
    key = secret
    for number, body in enumerate(sealed.scopes):
        key = _mac(key, body if number else _PURPOSE + body)
    if not hmac.compare_digest(key, sealed.mac):
        raise UnauthorizedError("grant not signed by this cluster")
    try:
        scopes = tuple(msgspec.msgpack.decode(body, type=Scope) for body in sealed.scopes)
    except msgspec.MsgspecError as error:
        raise UnauthorizedError("grant of another version") from error
    grant = Grant(scopes)
    if grant.expires_ms <= now_ms:
        raise UnauthorizedError("grant expired", expires_ms=grant.expires_ms)
    return grant


def _seal(sealed: _Sealed) -> str:
    data = msgspec.msgpack.encode(sealed)
    if len(data) > GRANT_BYTES_MAX:
        raise UnauthorizedError("grant too long", limit=GRANT_BYTES_MAX)
    return PREFIX + urlsafe_b64encode(data).decode()


def _open(data: bytes) -> _Sealed:
    if len(data) > GRANT_BYTES_MAX:
        raise UnauthorizedError("grant too long", limit=GRANT_BYTES_MAX)
    try:
        sealed = msgspec.msgpack.decode(data, type=_Sealed)
    except msgspec.MsgspecError as error:
        raise UnauthorizedError("not a grant") from error
    if not 1 <= len(sealed.scopes) <= SCOPES_MAX:
        raise UnauthorizedError("not a grant")
    return sealed


def _covers(patterns: Iterable[str], stream: str, topic: str) -> bool:
    return any(
        fnmatchcase(stream, of_stream) and fnmatchcase(topic, of_topic)
        for of_stream, of_topic in map(_parts, patterns)
    )


def _parts(pattern: str) -> tuple[str, str]:
    """Of the stream and of the topic, matched apart: either may hold a slash itself."""
    if pattern == EVERYTHING:
        return EVERYTHING, EVERYTHING
    stream, _, topic = pattern.partition("/")
    return stream, topic


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
