"""Status codes and error classes, one table for both directions.

We emit the seed's code wherever the seed has one and numbers of the original implementation's
range for the rest; both families are understood on read. `detail` holds a PlacementManager table
with PM_NOT_LEADER, otherwise the error's data as a msgpack map, so that an error that crossed the
wire says the same as one raised in this process.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from headrace.errors import (
    AlreadyExistsError,
    CorruptionError,
    DeadlineError,
    DiskFullError,
    FencedError,
    HeadraceError,
    InvalidArgumentError,
    NotEnoughNodesError,
    NotFoundError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    RemoteProtocolError,
    RequestError,
    SealedError,
    StateError,
    ThrottledError,
    TooLargeError,
    UnauthenticatedError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.messages import PlacementManager, PlacementManagerNode, Status

DETAIL_BYTES_MAX = 4096
MESSAGE_CHARACTERS_MAX = 1024


class UnsupportedError(RequestError):
    """Header format, batch magic or operation that this peer does not speak."""


class NotPrimaryError(RangeNotFoundError):
    """This node holds the range, another one orders it."""


class AlreadyDurableError(StateError):
    """A replica append below the replica's committed offset: counts as success."""


class AppendPendingError(StateError):
    """A replica append that is being written; ask again."""


class AppendGapError(StateError):
    """A replica append above the replica's next offset; send from there."""


class QuorumError(StateError):
    """Too few replicas hold the append; seal the range and go on in a new one."""


class SealUnansweredError(StateError):
    """Too few data nodes answered a seal to know where the range ends."""


class OutdatedMetadataError(StateError):
    """A data node has seen newer metadata than the placement manager has: it was put back."""

    def __init__(self, message: str = "", **data: object) -> None:
        super().__init__(
            message
            or "the placement metadata is older than what data nodes have seen: bring the newer "
            "one back, or go on with this one by `headrace cluster accept-metadata`",
            **data,
        )


class StatusCode(IntEnum):
    NONE = 0
    UNKNOWN = 1
    INVALID_REQUEST = 2
    UNSUPPORTED_VERSION = 3
    PM_NOT_LEADER = 5
    NO_NEW_RECORD = 1204
    UNAUTHORIZED = 1401
    FORBIDDEN = 1403
    NOT_FOUND = 1404
    ALREADY_EXISTS = 1409  # ours
    PRECONDITION_FAILED = 1412
    PAYLOAD_TOO_LARGE = 1413
    TOO_MANY_REQUESTS = 1429
    RANGE_ALREADY_SEALED = 1460
    OFFSET_OVERFLOW = 1461
    RANGE_NOT_FOUND = 1462
    OFFSET_OUT_OF_RANGE_BOUNDS = 1463
    APPEND_TO_COMMITTED_OFFSET = 1464
    APPEND_TO_PENDING_OFFSET = 1465
    APPEND_TO_OVERTAKEN_OFFSET = 1466
    REPLICA_NOT_ENOUGH = 1479
    RPC_TIMEOUT = 1482
    EXPIRED_STREAM_EPOCH = 1489
    PM_NO_AVAILABLE_DN = 1502
    PM_SEAL_RANGE_NO_DN_RESPONDED = 1511
    PM_METADATA_OUTDATED = 1590  # ours
    DN_NOT_LEADER_RANGE = 2502
    DN_DATA_CORRUPTED = 2503
    DN_DISK_FULL = 2507  # ours


SUCCESS = frozenset({0, 1200, 1204})

STATUS: dict[type[HeadraceError], StatusCode] = {
    HeadraceError: StatusCode.UNKNOWN,
    RequestError: StatusCode.INVALID_REQUEST,
    RemoteProtocolError: StatusCode.INVALID_REQUEST,
    InvalidArgumentError: StatusCode.INVALID_REQUEST,
    UnsupportedError: StatusCode.UNSUPPORTED_VERSION,
    NotLeaderError: StatusCode.PM_NOT_LEADER,
    UnauthenticatedError: StatusCode.UNAUTHORIZED,
    UnauthorizedError: StatusCode.FORBIDDEN,
    NotFoundError: StatusCode.NOT_FOUND,
    AlreadyExistsError: StatusCode.ALREADY_EXISTS,
    UnexpectedOffsetError: StatusCode.PRECONDITION_FAILED,
    TooLargeError: StatusCode.PAYLOAD_TOO_LARGE,
    ThrottledError: StatusCode.TOO_MANY_REQUESTS,
    SealedError: StatusCode.RANGE_ALREADY_SEALED,
    OffsetOverflowError: StatusCode.OFFSET_OVERFLOW,
    RangeNotFoundError: StatusCode.RANGE_NOT_FOUND,
    OffsetOutOfRangeError: StatusCode.OFFSET_OUT_OF_RANGE_BOUNDS,
    AlreadyDurableError: StatusCode.APPEND_TO_COMMITTED_OFFSET,
    AppendPendingError: StatusCode.APPEND_TO_PENDING_OFFSET,
    AppendGapError: StatusCode.APPEND_TO_OVERTAKEN_OFFSET,
    QuorumError: StatusCode.REPLICA_NOT_ENOUGH,
    DeadlineError: StatusCode.UNKNOWN,  # with a text that starts with "timeout"
    UnavailableError: StatusCode.UNKNOWN,
    FencedError: StatusCode.EXPIRED_STREAM_EPOCH,
    NotEnoughNodesError: StatusCode.PM_NO_AVAILABLE_DN,
    SealUnansweredError: StatusCode.PM_SEAL_RANGE_NO_DN_RESPONDED,
    OutdatedMetadataError: StatusCode.PM_METADATA_OUTDATED,
    NotPrimaryError: StatusCode.DN_NOT_LEADER_RANGE,
    CorruptionError: StatusCode.DN_DATA_CORRUPTED,
    DiskFullError: StatusCode.DN_DISK_FULL,
}
"""The code to emit for a class; a class that is not here emits its nearest ancestor's."""

ERRORS: dict[int, type[HeadraceError]] = {
    **{code: cls for cls, code in STATUS.items()},
    StatusCode.UNKNOWN: UnavailableError,
    StatusCode.INVALID_REQUEST: InvalidArgumentError,
    StatusCode.RPC_TIMEOUT: DeadlineError,
    1400: InvalidArgumentError,
    1402: UnauthorizedError,
    1405: UnsupportedError,
    1431: TooLargeError,
    1483: UnavailableError,
    1484: UnavailableError,
    1485: UnavailableError,
    1486: UnavailableError,
    1487: UnavailableError,
    1488: NotFoundError,
    1490: UnavailableError,
    1498: UnsupportedError,
    1499: UnsupportedError,
    1501: UnsupportedError,
    1503: NotLeaderError,
    1510: RangeNotFoundError,
    2501: UnsupportedError,
}
"""The class to raise for a code."""

_TIMEOUT = "timeout"
_CALLER = range(1400, 1500)  # numbers that speak of the caller, as in HTTP's 4xx


def status_of(error: HeadraceError) -> Status:
    """The status that tells a peer about `error`."""
    code = next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)
    message = error.message[:MESSAGE_CHARACTERS_MAX]
    if isinstance(error, DeadlineError) and not message.startswith(_TIMEOUT):
        message = f"{_TIMEOUT}: {message}"
    detail = _leader_detail(error) if isinstance(error, NotLeaderError) else _detail(error.data)
    return Status(code, message.encode(errors="replace").decode(), detail)


def is_success(status: Status | None) -> bool:
    return status is None or status.code in SUCCESS


def raise_for_status(status: Status | None, **data: object) -> None:
    """Raise what `status` stands for, with the peer's data and the caller's; nothing on success."""
    if status is not None and status.code not in SUCCESS:
        raise error_of(status, **data)


def error_of(status: Status, **data: object) -> HeadraceError:
    """The error that a status stands for. Unknown codes: retry unless they blame the caller."""
    cls = ERRORS.get(status.code)
    if cls is None:
        cls = RequestError if status.code in _CALLER else UnavailableError
        data = {"code": status.code, **data}
    elif cls is UnavailableError and status.message.startswith(_TIMEOUT):
        cls = DeadlineError
    read = _read_leader if cls is NotLeaderError else _read_detail
    return cls(status.message, **{**read(status.detail), **data})


def _leader_detail(error: HeadraceError) -> bytes:
    """`managers` in the error's data: all that are known; without them just `leader`."""
    managers = error.data.get("managers")
    leader = error.data.get("leader")
    if isinstance(managers, tuple) and managers:
        nodes = tuple(n for n in managers if isinstance(n, PlacementManagerNode))
    elif isinstance(leader, str) and leader:
        nodes = (PlacementManagerNode(advertise_addr=leader, is_leader=True),)
    else:
        nodes = ()
    return encode(PlacementManager(nodes))


def _read_leader(detail: bytes) -> dict[str, Any]:
    try:
        nodes = decode(PlacementManager, detail).nodes if detail else ()
    except RemoteProtocolError:
        nodes = ()  # a hint only: without it the client asks the others
    leader = next((n.advertise_addr for n in nodes if n.is_leader), "")
    return {"leader": leader, "managers": nodes} if len(nodes) > 1 else {"leader": leader}


def _detail(data: dict[str, object]) -> bytes:
    plain = {k: v for k, v in data.items() if isinstance(v, int | str | float | bool | None)}
    try:
        packed = msgspec.msgpack.encode(plain) if plain else b""
    except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError):
        return b""
    return packed if len(packed) <= DETAIL_BYTES_MAX else b""


_Plain = dict[str, int | str | float | bool | None]


def _read_detail(detail: bytes) -> dict[str, Any]:
    if not detail or len(detail) > DETAIL_BYTES_MAX:
        return {}
    try:
        return dict(msgspec.msgpack.decode(detail, type=_Plain))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}  # another implementation's detail
