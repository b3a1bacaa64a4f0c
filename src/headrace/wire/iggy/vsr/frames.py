"""Framing of dialect C (apache-iggy 0.9.0): a header of 256 bytes, then the body. Little endian.

| At  | Bytes | Request                        | At  | Bytes | Reply                               |
|-----|-------|--------------------------------|-----|-------|-------------------------------------|
|   0 | 48    | checksums and cluster: zero    |   0 | 48    | zero                                |
|  48 |  4    | size, header included          |  48 |  4    | size, header included               |
|  60 |  1    | command 5                      |  60 |  1    | command 8                           |
| 128 | 16    | client id, not zero            | 128 | 16    | the request's checksum              |
| 144 | 16    | XXH3-64 of the body, widened;  | 160 | 16    | client id                           |
|     |       | zero where it is not stated    | 176 | 24    | op, commit, timestamp: zero here    |
| 168 |  8    | request number                 | 200 |  8    | request number                      |
| 176 |  1    | operation                      | 208 |  1    | operation, as in the request        |
| 184 |  8    | session; 0 before the login    | 216 |  4    | status: 0, or a refusal's number    |
| 196 |  4    | operation 2: a command's code  |     |       |                                     |

What stands between is zero. Operation 2 (`READ`) carries any command that changes nothing; each
other one stands for a command of its own (`OPERATIONS`). Replies to `RESULTS` begin with a result
section, `u32 count`, then count times `u32 index, u32 refusal`: none for success, one for a
refusal, which has no payload. Replies to the others have the refusal in their header.

A session that is over is told so by an eviction: a header alone, command 13, the client id at 128,
the newest and the oldest protocol version served at 144 and 148, a reason in the last byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.fields import Buffer

HEADER_BYTES = 256
REQUEST, REPLY, EVICTION = 5, 8, 13

REGISTER, READ, LOGOUT, SEND = 1, 2, 3, 160
_DELETE_SEGMENTS = 138

PROTOCOL_VERSION = (0, 11, 0)
"""What 0.9.0 states at its login; its server takes the same minor version alone."""


def pack_version(major: int, minor: int, patch: int) -> int:
    return major << 20 | minor << 10 | patch


VERSION_MAX = pack_version(0, 11, (1 << 10) - 1)
VERSION_MIN = pack_version(0, 11, 0)
VERSION = pack_version(*PROTOCOL_VERSION)

LOGIN_CODES = (40, 45)
"""Operation 1, by name and password or by token: the body tells which."""

OPERATIONS: dict[int, int] = {
    3: 39,
    128: 202, 129: 204, 130: 203, 131: 205, 132: 302, 133: 304, 134: 303, 135: 305,
    136: 402, 137: 403, 138: 503, 139: 602, 140: 603, 141: 33, 142: 35, 143: 34,
    144: 37, 145: 36, 146: 42, 147: 43, 148: 604, 149: 605, 160: 101, 161: 121, 162: 122,
}  # fmt: skip
"""Operation -> code of the command it stands for."""

OPERATION_OF: dict[int, int] = {code: operation for operation, code in OPERATIONS.items()}
_OWN = frozenset((*OPERATION_OF, *LOGIN_CODES, 38, 44))  # codes that operation 2 does not carry
RESULTS = frozenset(OPERATIONS) - {LOGOUT, SEND, _DELETE_SEGMENTS} | {REGISTER}

_SIZE = struct.Struct("<I")
_SIZE_AT = 48
_COMMAND_AT = 60
OPERATION_AT = 176
_ZEROS = bytes(_SIZE_AT)
_NOBODY = bytes(16)
_REQUEST = struct.Struct("<48sI8xB67x16s16s8xQB7xQ4xI56x")
_REPLY = struct.Struct("<48xI8xB67x16s16x16s24xQB7xI36x")
_EVICTION = struct.Struct("<48xI8xB67x16sII103xB")
_RESULT = struct.Struct("<III")
_SUCCESS = bytes(4)
_JOINED_BYTES_MAX = 4096  # a reply so short is written in one piece
_NUMBER_MAX = (1 << 63) - 1


KEPT_BYTES_MIN = 4096
"""The shortest request whose memory is kept: that of a shorter one is made anew as fast."""


class Lent(msgspec.Struct, gc=False, eq=False):
    """Memory that a request came in, to be given back where it was taken from.

    The garbage collector does not look here: what takes it back does not refer to it.
    """

    memory: Buffer
    take_back: Callable[[Any], None]
    kept: bool = False
    """Somebody needs it for longer than the request; then `give_back` is theirs to say."""

    def give_back(self) -> None:
        self.take_back(self.memory)


class Head(NamedTuple):
    """What a request's header says beside the command."""

    operation: int
    number: int
    session: int = 0
    client: bytes = _NOBODY
    checksum: bytes = _NOBODY
    fault: str = ""
    """Why this header is refused; the frame it starts is sound all the same."""
    room: memoryview | None = None
    """The body, and behind it room for what the messages in it grow by; to be written over."""
    lent: Lent | None = None
    """What a SEND is in, if that may be kept."""


class Eviction(IntEnum):
    """Why a session is over."""

    NO_SESSION = 1
    SESSION_TOO_LOW = 7
    INVALID_CREDENTIALS = 9
    INVALID_TOKEN = 10
    USER_INACTIVE = 11
    SESSION_ERROR = 12
    STALE_CLIENT = 13
    INCOMPATIBLE_PROTOCOL = 14
    MALFORMED_LOGIN = 15


# At a login these refusals end the session that was to begin; others are worth another try.
_LOGIN_EVICTIONS: dict[int, Eviction] = {
    Status.INVALID_CREDENTIALS: Eviction.INVALID_CREDENTIALS,
    Status.INVALID_PERSONAL_ACCESS_TOKEN: Eviction.INVALID_TOKEN,
    Status.PERSONAL_ACCESS_TOKEN_EXPIRED: Eviction.INVALID_TOKEN,
    Status.RESOURCE_NOT_FOUND: Eviction.INVALID_TOKEN,
    Status.USER_INACTIVE: Eviction.USER_INACTIVE,
    Status.INCOMPATIBLE_PROTOCOL_VERSION: Eviction.INCOMPATIBLE_PROTOCOL,
    Status.INVALID_COMMAND: Eviction.MALFORMED_LOGIN,
    Status.INVALID_NUMBER_ENCODING: Eviction.MALFORMED_LOGIN,
    Status.INVALID_UTF8: Eviction.MALFORMED_LOGIN,
}
# Reads have no session, so only the connection's end is told to them this way.
_EVICTIONS: dict[int, Eviction] = {
    Status.UNAUTHENTICATED: Eviction.NO_SESSION,
    Status.INVALID_SESSION: Eviction.SESSION_TOO_LOW,
    Status.STALE_CLIENT: Eviction.STALE_CLIENT,
}
_READ_EVICTIONS: dict[int, Eviction] = {Status.STALE_CLIENT: Eviction.STALE_CLIENT}
STATUS_OF_EVICTION: dict[int, Status] = {
    Eviction.NO_SESSION: Status.UNAUTHENTICATED,
    Eviction.SESSION_TOO_LOW: Status.INVALID_SESSION,
    Eviction.INVALID_CREDENTIALS: Status.INVALID_CREDENTIALS,
    Eviction.INVALID_TOKEN: Status.INVALID_PERSONAL_ACCESS_TOKEN,
    Eviction.USER_INACTIVE: Status.USER_INACTIVE,
    Eviction.SESSION_ERROR: Status.INVALID_SESSION,
    Eviction.STALE_CLIENT: Status.STALE_CLIENT,
    Eviction.INCOMPATIBLE_PROTOCOL: Status.INCOMPATIBLE_PROTOCOL_VERSION,
    Eviction.MALFORMED_LOGIN: Status.INVALID_COMMAND,
}


# --- requests -------------------------------------------------------------------------------------


def starts_here(first: Buffer) -> bool | None:
    """Whether these first bytes of a connection begin a header; None while too few are here."""
    if len(first) <= _COMMAND_AT:
        return None
    return frame_bytes(first) >= HEADER_BYTES and first[_COMMAND_AT] == REQUEST


def frame_bytes(header: Buffer) -> int:
    """The size that the first 52 bytes of a header state."""
    return int(_SIZE.unpack_from(header, _SIZE_AT)[0])


def is_read(header: Buffer) -> bool:
    return header[OPERATION_AT] == READ


def decode_request(frame: Buffer) -> tuple[Head, int]:
    """The header of a whole frame, and the code of its command; the code is -1 for none.

    Faults are noted, not raised: the frame's length was right, so the next one can be read, and
    who sent it is told.
    """
    head, code = decode_header(frame)
    if head.operation == REGISTER:
        code = _login_code(memoryview(frame)[HEADER_BYTES:])
    if head.checksum == _NOBODY or head.fault:
        return head, code
    if head.checksum != body_checksum(memoryview(frame)[HEADER_BYTES:]):
        return head._replace(fault="the body does not have this checksum"), code
    return head, code


def decode_header(header: Buffer) -> tuple[Head, int]:
    """As `decode_request`, of the header alone."""
    sums, _, command, client, checksum, number, operation, session, code = _REQUEST.unpack_from(
        header
    )
    fault = ""
    if command != REQUEST:
        fault = "not a request"
    elif sums != _ZEROS:
        fault = "checksums that no client states"
    elif client == _NOBODY:
        fault = "no client id"
    elif number > _NUMBER_MAX or session > _NUMBER_MAX:
        fault = "number out of range"
    if operation != READ:
        code = OPERATIONS.get(operation, -1)
    elif code in _OWN:
        code = -1
    return Head(operation, number, session, client, checksum, fault), code


def body_checksum(body: Buffer) -> bytes:
    import xxhash

    return xxhash.xxh3_64_intdigest(body).to_bytes(16, "little")


def _login_code(body: Buffer) -> int:
    """By token where, behind version and names, one text and the context are exactly the rest."""
    try:
        at = 4
        for _ in range(3):
            at += 1 + body[at]
        (context_bytes,) = _SIZE.unpack_from(body, at)
    except (IndexError, struct.error):
        return LOGIN_CODES[0]  # malformed either way
    return LOGIN_CODES[at + _SIZE.size + context_bytes == len(body)]


def encode_request(head: Head, code: int, pieces: Sequence[Buffer] = ()) -> list[Buffer]:
    size = HEADER_BYTES + sum(map(len, pieces))
    if size > 0xFFFF_FFFF:
        raise LocalProtocolError("request too large", length=size)
    carried = code if head.operation == READ else 0
    header = _REQUEST.pack(
        _ZEROS, size, REQUEST, head.client, head.checksum, head.number, head.operation,
        head.session, carried,
    )  # fmt: skip
    return [header, *pieces]


# --- replies --------------------------------------------------------------------------------------


def encode_reply(head: Head, status: int, pieces: Sequence[Buffer] = ()) -> list[Buffer]:
    """The frames that answer a request: a reply, or the eviction that its status means here."""
    operation = head.operation
    if operation == SEND and not status and len(pieces) == 1:  # one call less for each thing
        size = HEADER_BYTES + len(pieces[0])
        return [
            _REPLY.pack(size, REPLY, head.checksum, head.client, head.number, SEND, 0) + pieces[0]
        ]
    if status:
        reason = _evictions(operation).get(status)
        if reason is not None:
            return [encode_eviction(head.client, reason)]
        if operation in RESULTS:
            status, pieces = 0, [_RESULT.pack(1, 0, status)]
        else:
            pieces = ()
    elif operation in RESULTS:
        pieces = [_SUCCESS, *pieces]
    size = HEADER_BYTES + sum(map(len, pieces))
    if size > 0xFFFF_FFFF:
        raise LocalProtocolError("reply too large", length=size)
    header = _REPLY.pack(size, REPLY, head.checksum, head.client, head.number, operation, status)
    if size <= _JOINED_BYTES_MAX:
        return [b"".join((header, *pieces))]
    return [header, *pieces]


def _evictions(operation: int) -> dict[int, Eviction]:
    if operation == READ:
        return _READ_EVICTIONS
    return _LOGIN_EVICTIONS if operation == REGISTER else _EVICTIONS


def encode_eviction(client: bytes, reason: Eviction) -> bytes:
    return _EVICTION.pack(HEADER_BYTES, EVICTION, client, VERSION_MAX, VERSION_MIN, reason)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as a client sees it; evictions count as refusals."""

    operation: int
    number: int
    status: int
    payload: memoryview
    evicted: Eviction | None = None


def decode_reply(frame: Buffer) -> Reply:
    """A whole frame from a server; RemoteProtocolError for anything else than §6.2 has."""
    view = memoryview(frame)
    if len(view) < HEADER_BYTES or frame_bytes(view) != len(view):
        raise RemoteProtocolError("reply of another length", length=len(view))
    if view[_COMMAND_AT] == EVICTION:
        try:
            reason = Eviction(view[HEADER_BYTES - 1])
        except ValueError:
            raise RemoteProtocolError("evicted for no known reason") from None
        return Reply(0, 0, int(STATUS_OF_EVICTION[reason]), view[:0], reason)
    _, command, _, _, number, operation, status = _REPLY.unpack_from(view)
    if command != REPLY:
        raise RemoteProtocolError("neither reply nor eviction", command=command)
    body = view[HEADER_BYTES:]
    if operation not in RESULTS or status:
        return Reply(operation, number, status, body)
    if len(body) < _SIZE.size:
        raise RemoteProtocolError("reply without its result section", operation=operation)
    (count,) = _SIZE.unpack_from(body)
    if count == 0:
        return Reply(operation, number, 0, body[_SIZE.size :])
    if len(body) < _RESULT.size:
        raise RemoteProtocolError("result section cut short", operation=operation)
    _, _, refusal = _RESULT.unpack_from(body)
    return Reply(operation, number, refusal or int(Status.ERROR), body[:0])
