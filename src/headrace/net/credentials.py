"""Proofs made with the cluster's secret: who may use an SBP port, and what pipelines may do at the
broker. None of them is ever logged; all are compared in constant time.

On an SBP port they are sent in HEARTBEAT.credential:

    node     b"node:" + HMAC-SHA256(secret, b"node")
    ticket   b"ticket:" + body + b"." + HMAC-SHA256(secret, b"ticket:" + body)
             body: msgpack map {streams: [stream id], read: true, exp_ms: ms since the epoch}

A node may do everything. A ticket, signed by the broker, reads the streams it names until it
expires; executors only ever get tickets.

The controller logs in to the broker with a token, its containers and the tasks of their queries
with a grant:

    service  "headrace-service-" + hex of HMAC-SHA256(secret, b"service")
    grant    "headrace-grant-" + base64url of msgpack [[scope, ...], mac]
             scope: msgpack map {exp: ms since the epoch, holder, reads, writes, publishers, closes}
             mac: k(0) = HMAC-SHA256(secret, "grant" 0x00 scope 0),
                  k(i) = HMAC-SHA256(k(i-1), scope i)

The controller makes the first scope with the cluster's secret: the topics of one application, for
some hours. Whoever holds a grant can add a narrower scope to it without asking anybody, because the
next key is the last one's HMAC, and can take none away. A grant allows what each of its scopes
allows, so a driver hands its tasks the right to stage rows for one topic, for some hours, and
nothing else. Names are patterns of `fnmatch`, `stream/topic` for topics; `exactly` makes one of a
name.
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

TICKET_BYTES_MAX = 64 * 1024

_NODE = b"node:"
_TICKET = b"ticket:"
_SERVICE = "headrace-service-"
_MAC_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class NodeCredential:
    """The peer holds the cluster's secret."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """The peer may read these streams."""

    stream_ids: frozenset[int]
    expires_ms: int

    def allows(self, stream_id: int, now_ms: int) -> bool:
        return now_ms < self.expires_ms and stream_id in self.stream_ids


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    streams: list[int]
    read: bool
    exp_ms: int


def node_credential(secret: bytes) -> bytes:
    return _NODE + _mac(secret, b"node")


def service_token(secret: bytes) -> str:
    """Logs in to the broker as root, without a user record that clients would see."""
    return _SERVICE + _mac(secret, b"service").hex()


def make_ticket(secret: bytes, stream_ids: Iterable[int], expires_ms: int) -> bytes:
    body = _Body(streams=sorted(stream_ids), read=True, exp_ms=expires_ms)
    signed = _TICKET + msgspec.msgpack.encode(body)
    return signed + b"." + _mac(secret, signed)


def verify(secret: bytes, credential: bytes, now_ms: int) -> NodeCredential | Ticket:
    """What the credential proves. UnauthorizedError when it proves nothing (any more)."""
    if credential.startswith(_NODE):
        if hmac.compare_digest(credential, node_credential(secret)):
            return NodeCredential()
        raise UnauthorizedError("node credential of another cluster")
    if credential.startswith(_TICKET) and len(credential) <= TICKET_BYTES_MAX:
        return _verify_ticket(secret, credential, now_ms)
    raise UnauthorizedError("unknown kind of credential")


def _verify_ticket(secret: bytes, credential: bytes, now_ms: int) -> Ticket:
    signed, mac = credential[: -_MAC_BYTES - 1], credential[-_MAC_BYTES:]
    dot = credential[-_MAC_BYTES - 1 : -_MAC_BYTES]
    if dot != b"." or not hmac.compare_digest(mac, _mac(secret, signed)):
        raise UnauthorizedError("ticket not signed by this cluster")
    try:
        body = msgspec.msgpack.decode(signed[len(_TICKET) :], type=_Body)
    except msgspec.MsgspecError as error:
        raise UnauthorizedError("ticket of another version") from error
    if not body.read or now_ms >= body.exp_ms:
        raise UnauthorizedError("ticket expired", expires_ms=body.exp_ms)
    return Ticket(frozenset(body.streams), body.exp_ms)


def _mac(secret: bytes, message: bytes) -> bytes:
    return hmac.new(secret, message, hashlib.sha256).digest()


PREFIX = "headrace-grant-"
GRANT_BYTES_MAX = 7 * 1024
"""The longest grant: it comes before the login, when a connection is allowed no long request."""
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
    return _seal(_Sealed((body,), _grant_mac(secret, _PURPOSE + body)))


def narrow_grant(text: str, scope: Scope) -> str:
    """A grant that allows what both do. UnauthorizedError for a text that is none."""
    sealed = _open(grant_bytes(text))
    body = msgspec.msgpack.encode(scope)
    return _seal(_Sealed((*sealed.scopes, body), _grant_mac(sealed.mac, body)))


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
        key = _grant_mac(key, body if number else _PURPOSE + body)
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
    """The patterns of stream and topic, matched apart: either may hold a slash itself."""
    if pattern == EVERYTHING:
        return EVERYTHING, EVERYTHING
    stream, _, topic = pattern.partition("/")
    return stream, topic


def _grant_mac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
