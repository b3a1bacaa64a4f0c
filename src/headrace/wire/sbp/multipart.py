"""Answers over several frames: how they are cut. `connection.py` puts them together again.

Every frame stands for itself: its header lists only the results that it carries. A FETCH result
whose data does not fit goes on in the next frame under the same request_index, and its data
concatenates in arrival order; an error is final for its request_index. The ranges of one
LIST_RANGES criterion go on in the same way. Results of other operations are never cut, only spread.

Payloads are cut between pieces, so that pieces of whole batches stay whole; only a piece that no
frame can hold is cut inside.

The headers that are sent most have a short way: an append of one batch, and the answer that it is
stored. Each is encoded once with values that occur nowhere else. The next one differs in a few
numbers, so it is those numbers packed between the bytes of the first. Generic encoding takes
several times as long (`benchmarks/hot_steps.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from operator import itemgetter

from headrace.errors import LocalProtocolError
from headrace.wire.sbp.flat import Buffer, FlatField, Kind, encode
from headrace.wire.sbp.frames import FRAME_BYTES_MAX, payload_bytes
from headrace.wire.sbp.messages import (
    OK,
    AppendInfo,
    AppendRequest,
    AppendResponse,
    AppendResult,
    FetchResponse,
    FetchResult,
    ListRangesResponse,
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


PAYLOAD_BYTES = 4 << 20  # cut a FETCH answer where it would pass this
HEADER_BYTES = 1 << 20  # spread results where their header would pass this
_PIECE_BYTES_MAX = FRAME_BYTES_MAX - 2 * HEADER_BYTES


def encode_answer(
    message: Message, payload: Sequence[Buffer]
) -> list[tuple[bytes, Sequence[Buffer]]]:
    """Header and payload of each frame that the answer takes; one, nearly always."""
    stored = encode_stored(message) if isinstance(message, AppendResponse) else None
    return [(stored, payload)] if stored is not None else list(_encode_parts(message, payload))


def _encode_parts(
    message: Message, payload: Sequence[Buffer]
) -> Iterator[tuple[bytes, Sequence[Buffer]]]:
    if isinstance(message, FetchResponse) and payload_bytes(payload) > PAYLOAD_BYTES:
        for part, pieces in _cut_fetch(message, payload):
            yield encode(part), pieces
        return
    header = encode(message)
    halves = _halve(message) if len(header) > HEADER_BYTES and not payload else None
    if halves is None:
        yield header, payload
        return
    for half in halves:
        yield from _encode_parts(half, ())


def _halve(message: Message) -> list[Message] | None:
    """Two messages that say the same together, or None when it cannot be cut."""
    name = _results_field(message)
    if name is None:
        return None
    results: tuple[Message, ...] = getattr(message, name)
    if len(results) > 1:
        middle = len(results) // 2
        cut: list[tuple[Message, ...]] = [results[:middle], results[middle:]]
    elif isinstance(message, ListRangesResponse) and len(message.list_responses[0].ranges) > 1:
        (one,) = message.list_responses
        middle = len(one.ranges) // 2
        cut = [
            (replace(one, ranges=one.ranges[:middle]),),
            (replace(one, ranges=one.ranges[middle:]),),
        ]
    else:
        return None
    return [replace(message, **{name: half}) for half in cut]  # type: ignore[type-var]  # a dataclass


def _results_field(message: Message) -> str | None:
    for field in fields(message):  # type: ignore[arg-type]  # every message is a dataclass
        spec: FlatField = field.metadata["flat"]
        if spec.kind is Kind.TABLES and getattr(message, field.name):
            return field.name
    return None


def _cut_fetch(
    message: FetchResponse, payload: Sequence[Buffer]
) -> Iterator[tuple[FetchResponse, list[Buffer]]]:
    results: list[FetchResult] = []
    pieces: list[Buffer] = []
    room = PAYLOAD_BYTES
    source = PayloadPieces(payload)
    for result in message.fetch_responses:
        here = 0  # bytes of this result in the frame being filled
        for piece in source.take(result.batch_length):
            if pieces and len(piece) > room:
                if here:
                    results.append(replace(result, batch_length=here))
                yield replace(message, fetch_responses=tuple(results)), pieces
                results, pieces, room, here = [], [], PAYLOAD_BYTES, 0
            pieces.append(piece)
            here += len(piece)
            room -= len(piece)
        results.append(replace(result, batch_length=here))
    if source.left:
        raise LocalProtocolError("payload longer than its results", bytes=source.left)
    yield replace(message, fetch_responses=tuple(results)), pieces


class PayloadPieces:
    """Takes runs of bytes off a payload without copying."""

    def __init__(self, payload: Sequence[Buffer]) -> None:
        self._pieces = [memoryview(piece) for piece in reversed(payload) if len(piece)]
        self.left = payload_bytes(payload)

    def take(self, length: int) -> Iterator[memoryview]:
        """The next `length` bytes in pieces as they are, but none longer than a frame can hold."""
        if length > self.left:
            raise LocalProtocolError("payload shorter than its results", missing=length - self.left)
        self.left -= length
        while length:
            piece = self._pieces.pop()
            limit = min(length, _PIECE_BYTES_MAX)
            if len(piece) > limit:
                self._pieces.append(piece[limit:])
                piece = piece[:limit]
            length -= len(piece)
            yield piece
