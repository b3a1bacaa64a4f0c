"""The headers that are sent most: an append of one batch, and the answer that it is stored.

Each is encoded once with values that occur nowhere else. The next one differs in a few numbers, so
it is those numbers packed between the bytes of the first. Generic encoding takes several times as
long (`benchmarks/hot_steps.py`).
"""

from __future__ import annotations

import struct
from operator import itemgetter

from headrace.wire.sbp.flat import encode
from headrace.wire.sbp.messages import (
    OK,
    AppendInfo,
    AppendRequest,
    AppendResponse,
    AppendResult,
    Message,
    Range,
)

_LETTERS = {8: "q", 4: "i"}
_LONG = tuple(0x0102030405060700 + n for n in range(8))
_SHORT = tuple(0x31323300 + n for n in range(8))


class _Template:
    """`message` holds each of `marks` once; `fill` takes what is to stand in their places."""

    def __init__(self, message: Message, marks: tuple[int, ...]) -> None:
        data = encode(message)
        places = []
        for index, mark in enumerate(marks):
            size = 8 if mark > 1 << 32 else 4
            places.append((data.index(mark.to_bytes(size, "little")), size, index))
        code, position = "<", 0
        order: list[int] = []
        between: list[bytes] = []
        for start, size, index in sorted(places):
            code += f"{start - position}s{_LETTERS[size]}"
            order += [len(marks) + len(between), index]
            between.append(data[position:start])
            position = start + size
        order.append(len(marks) + len(between))
        between.append(data[position:])
        self._layout = struct.Struct(f"{code}{len(between[-1])}s")
        self._between = tuple(between)
        self._arrange = itemgetter(*order)

    def fill(self, *values: int) -> bytes:
        return self._layout.pack(*self._arrange(values + self._between))


def _stored(*, index: int) -> _Template:
    result = AppendResult(_LONG[0], index, _LONG[1], _LONG[2], OK)
    marks = _LONG[:3] + ((index,) if index else ())
    return _Template(AppendResponse(append_responses=(result,), status=OK), marks)


_FIRST, _LATER = _stored(index=0), _stored(index=_SHORT[0])


def encode_stored(message: AppendResponse) -> bytes | None:
    """As `encode`, of an answer that says of one batch that it is stored; None for any other.

    A field that has its default is left out of a FlatBuffer, so that is another shape.
    """
    if len(message.append_responses) != 1 or message.throttle_time_ms or message.status is not OK:
        return None
    result = message.append_responses[0]
    usual = result.stream_id != -1 and result.base_offset and result.stream_append_time_ms
    if not usual or result.status is not OK:
        return None
    values = (result.stream_id, result.base_offset, result.stream_append_time_ms)
    if result.request_index:
        return _LATER.fill(*values, result.request_index)
    return _FIRST.fill(*values)


_REPLICATED = _Template(
    AppendRequest(
        append_requests=(
            AppendInfo(
                range=Range(_LONG[0], _SHORT[0], next_offset=_LONG[1]), batch_length=_SHORT[1]
            ),
        )
    ),
    (_LONG[0], _SHORT[0], _LONG[1], _SHORT[1]),
)


def encode_replicated(message: AppendRequest) -> bytes | None:
    """As `encode`, of a primary's append of one batch, with the range's id and what is committed;
    None for any other."""
    if len(message.append_requests) != 1:
        return None
    info = message.append_requests[0]
    range_ = info.range
    if range_ is None or range_.stream_id == -1 or range_.range_index == -1:
        return None
    if not range_.next_offset or not info.batch_length:
        return None
    plain = Range(range_.stream_id, range_.range_index, next_offset=range_.next_offset)
    if message != AppendRequest(append_requests=(AppendInfo(plain, 0, info.batch_length),)):
        return None
    return _REPLICATED.fill(
        range_.stream_id, range_.range_index, range_.next_offset, info.batch_length
    )
