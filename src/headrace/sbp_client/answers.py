"""Reading what was asked for out of an answer; RemoteProtocolError when it is not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from headrace.errors import RemoteProtocolError
from headrace.wire.sbp.messages import Message

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
