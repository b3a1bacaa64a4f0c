"""Reading what was asked for out of an answer; RemoteProtocolError when it is not there.

What a fetch wants and returns, and what is believed of a replica's answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import CorruptionError, RangeNotFoundError, RemoteProtocolError
from headrace.sbp_client.ranges import primary_address
from headrace.wire.sbp.errors import NotPrimaryError
from headrace.wire.sbp.messages import Message, Range
from headrace.wire.sbp.records import decode_header, split

T = TypeVar("T")
R = TypeVar("R", bound=Message)


def typed(message: Message, expected: type[R]) -> R:
    if not isinstance(message, expected):
        raise RemoteProtocolError(
            "unexpected answer", expected=expected.__name__, found=type(message).__name__
        )
    return message


def present(value: T | None) -> T:
    if value is None:
        raise RemoteProtocolError("a result without its value")
    return value


def only(results: Sequence[T]) -> T:
    if len(results) != 1:
        raise RemoteProtocolError("one result expected", found=len(results))
    return results[0]


def milliseconds(seconds: float) -> int:
    """For a `timeout_ms`, where 0 would mean no deadline."""
    return max(1, int(seconds * 1000))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches, from the one that contains the offset asked for; none at the end."""

    pieces: list[memoryview]
    next_offset: int
    verified: bool = False
    """Whether the checksums were tried: not yet of what came over a connection."""


@dataclass(frozen=True, slots=True)
class Want:
    """From where, and about how much."""

    stream_id: int
    offset: int
    max_bytes: int
    local: bool = False
    """Whether it may be read from the node's files, where they are on this machine."""


def checked(pieces: list[memoryview], range_: Range, offset: int, address: str) -> Fetched:
    """What a replica returned, if it may be believed; RangeNotFoundError or CorruptionError."""
    data = {"stream_id": range_.stream_id, "offset": offset, "peer": address}
    if not pieces:
        if range_.end_offset >= 0:
            raise RangeNotFoundError("nothing returned of a sealed range", **data)
        if len(range_.replica_nodes) > 1 and address != primary_address(range_):
            raise NotPrimaryError("only the primary knows the end", **data)
        return Fetched([], offset)
    first = decode_header(pieces[0])
    if not first.base_offset <= offset < first.next_offset:
        raise CorruptionError("another offset returned than asked for", **data)
    end = end_of(pieces)
    if 0 <= range_.end_offset < end:
        # A replica that has not learned the final end: what lies beyond it never happened.
        pieces = _cut(pieces, range_.end_offset)
        end = range_.end_offset
    return Fetched(pieces, end)


def end_of(pieces: Sequence[memoryview]) -> int:
    """The offset after the last record of the batches."""
    end = 0
    for header, _ in split(pieces[-1]):
        end = header.next_offset
    return end


def _cut(pieces: Sequence[memoryview], end: int) -> list[memoryview]:
    kept: list[memoryview] = []
    for piece in pieces:
        size = sum(h.batch_bytes for h, _ in split(piece) if h.next_offset <= end)
        if size:
            kept.append(piece[:size])
    return kept
