"""Who may use an SBP port: proofs made with the cluster's secret, sent in HEARTBEAT.credential.

    node     b"node:" + HMAC-SHA256(secret, b"node")
    ticket   b"ticket:" + body + b"." + HMAC-SHA256(secret, b"ticket:" + body)
             body: msgpack map {streams: [stream id], read: true, exp_ms: ms since the epoch}

A node may do everything. A ticket, signed by the broker, reads the streams it names until it
expires; executors only ever get tickets. Credentials are compared in constant time, never logged.

The controller and its containers log in to the broker with a token made from the same secret:

    service  "headrace-service-" + hex of HMAC-SHA256(secret, b"service")
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

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
