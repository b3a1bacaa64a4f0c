"""Both ends of an SBP connection without I/O: bytes in, events out; calls in, bytes out.

A response always answers a frame sent in the opposite direction, so the ids of the two directions
never collide. Clients count up from 1 (some servers insist on it); a server takes any id that is
not in flight. What the protocol itself demands (PONG, GOAWAY reply, system errors for what cannot
be dispatched) comes out as `Answer`: the shell only writes it.

GOAWAY carries the highest id that its sender will still serve. We send it with no flags: an
implementation that put a reason into the response bit made it look like an answer, so a GOAWAY
that claims to be a response without being the last one of it is taken for a request.

An answer that came over several frames (`multipart.py`) is put together again by `Assembler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import msgspec

from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    RemoteProtocolError,
    TooLargeError,
    UnavailableError,
)
from headrace.wire.sbp.errors import UnsupportedError, is_success, status_of
from headrace.wire.sbp.flat import Buffer, FlatField, Kind, Message, encode
from headrace.wire.sbp.frames import (
    ALL,
    END,
    FORMAT_FLATBUFFERS,
    FRAME_BYTES_MAX,
    RESPONSE,
    SYSTEM_ERROR,
    BadFrame,
    Frame,
    FrameDecoder,
    encode_frame,
    payload_bytes,
)
from headrace.wire.sbp.messages import (
    FetchResponse,
    FetchResult,
    ListRangesResult,
    SystemErrorResponse,
)
from headrace.wire.sbp.multipart import PayloadPieces
from headrace.wire.sbp.opcodes import TABLE, Code, Opcode, Role

REQUEST_HEADER_BYTES_MAX = 1 << 20  # decoding is work on the event loop; a batch fits many times
STREAM_ID_MAX = (1 << 31) - 1
ANSWER_BYTES_MAX = 256 << 20  # what one call may collect


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes the protocol owes the peer."""

    pieces: list[Buffer]


class Request(msgspec.Struct, frozen=True, eq=False):
    """A request that this role serves; it is in flight until the last `respond` or `fail`."""

    opcode: Opcode
    stream_id: int
    header: Buffer
    payload: memoryview | bytes

    @property
    def bytes(self) -> int:
        return len(self.header) + len(self.payload)


@dataclass(frozen=True, slots=True)
class Response:
    """One frame of the answer to request `stream_id`."""

    stream_id: int
    flags: int
    header: Buffer
    payload: memoryview | bytes

    @property
    def is_last(self) -> bool:
        return bool(self.flags & (END | SYSTEM_ERROR))

    @property
    def is_system_error(self) -> bool:
        return bool(self.flags & SYSTEM_ERROR)


@dataclass(frozen=True, slots=True)
class BadResponse:
    """The answer to `stream_id` arrived damaged: nobody knows what it said."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class GoAway:
    """The peer wants no new requests; it never looked at those in `refused`."""

    refused: tuple[int, ...] = ()


ServerEvent: TypeAlias = Request | Answer | GoAway
ClientEvent: TypeAlias = Response | BadResponse | Answer | GoAway


class ServerConnection:
    """The side that serves."""

    def __init__(
        self,
        role: Role,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = REQUEST_HEADER_BYTES_MAX,
    ) -> None:
        self._served = {code for code, row in TABLE.items() if row.served_by & role}
        self._header_bytes_max = header_bytes_max
        self._decoder = FrameDecoder(frame_bytes_max)
        self._highest_id = 0
        self.in_flight: dict[int, Request] = {}
        self.leaving = False  # we sent GOAWAY

    @property
    def failure(self) -> RemoteProtocolError | None:
        """Set when the connection must close after the events returned so far."""
        return self._decoder.failure

    @property
    def inside_frame(self) -> bool:
        return self._decoder.inside_frame

    def receive(self, data: bytes, frames_max: int = ALL) -> list[ServerEvent]:
        """RemoteProtocolError: nothing more can be understood, close."""
        return self._on_frames(self._decoder.feed(data, frames_max))

    def set_limits(self, *, frame_bytes_max: int, header_bytes_max: int) -> None:
        """For the frames that follow those received so far."""
        self._decoder.set_limit(frame_bytes_max)
        self._header_bytes_max = header_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """The bytes received of a frame that is not complete."""
        return self._decoder.buffered_bytes

    def end(self) -> None:
        """Nothing more is received: let go of what is incomplete. What is in flight goes on."""
        self._decoder = FrameDecoder()

    @property
    def has_more(self) -> bool:
        """Whether frames that `receive` was given are left for `receive_more`."""
        return self._decoder.has_rest

    def receive_more(self, frames_max: int) -> list[ServerEvent]:
        return self._on_frames(self._decoder.more(frames_max))

    def _on_frames(self, frames: list[Frame | BadFrame]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        for frame in frames:
            event = self._on_bad(frame) if isinstance(frame, BadFrame) else self._on_frame(frame)
            if event is not None:
                events += event
        return events

    def _on_frame(self, frame: Frame) -> list[ServerEvent] | None:
        if _is_go_away(frame):
            return [Answer(_echo(frame)), GoAway()]
        if frame.is_response:
            return None  # we ask clients nothing
        if frame.opcode == Code.PING:
            return [Answer(_echo(frame))]
        opcode = TABLE.get(frame.opcode)
        if opcode is None or self.leaving:
            return None  # unknown: discarded as the seed wants; leaving: the GOAWAY's id tells
        problem = self._problem(frame, opcode)
        if problem is not None:
            return [Answer(_system_error(opcode.code, frame.stream_id, problem))]
        request = Request(opcode, frame.stream_id, frame.header, _one(frame.payload))
        self.in_flight[frame.stream_id] = request
        self._highest_id = max(self._highest_id, frame.stream_id)
        return [request]

    def _problem(self, frame: Frame, opcode: Opcode) -> HeadraceError | None:
        if opcode.code not in self._served:
            return InvalidArgumentError(f"{opcode.name} is not served here")
        if frame.stream_id in self.in_flight:
            return InvalidArgumentError("stream id is in flight", stream_id=frame.stream_id)
        if frame.header_format != FORMAT_FLATBUFFERS:
            return UnsupportedError("unknown header format", format=frame.header_format)
        if len(frame.header) > self._header_bytes_max:
            return TooLargeError("header too large", limit=self._header_bytes_max)
        return None

    def _on_bad(self, frame: BadFrame) -> list[ServerEvent] | None:
        if frame.flags & RESPONSE or frame.opcode not in TABLE:
            return None
        error = InvalidArgumentError(frame.reason)
        return [Answer(_system_error(frame.opcode, frame.stream_id, error))]

    def respond(
        self, request: Request, header: Buffer, payload: Sequence[Buffer], *, last: bool
    ) -> list[Buffer]:
        """One frame of the answer; nothing when the request was answered before (timeout)."""
        if not self._waits(request):
            return []
        flags = RESPONSE | END if last else RESPONSE
        code = request.opcode.code
        pieces = encode_frame(Frame(code, flags, request.stream_id, header, payload))
        if last:
            del self.in_flight[request.stream_id]
        return pieces

    def fail(self, request: Request, error: HeadraceError) -> list[Buffer]:
        """A system error as the last frame of the answer; nothing when it was answered before."""
        if not self._waits(request):
            return []
        del self.in_flight[request.stream_id]
        return _system_error(request.opcode.code, request.stream_id, error)

    def _waits(self, request: Request) -> bool:
        # By identity: an answered id may be in flight again for another request.
        return self.in_flight.get(request.stream_id) is request

    def go_away(self) -> list[Buffer]:
        """Requests not received by now are never served; those in flight are."""
        self.leaving = True
        return encode_frame(Frame(Code.GOAWAY, 0, self._highest_id))


class ClientConnection:
    """The side that asks."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._decoder = FrameDecoder(frame_bytes_max)
        self._next_id = 1
        self._in_flight: dict[int, int] = {}
        self.going_away = False  # the peer sent GOAWAY, or our ids are used up

    @property
    def failure(self) -> RemoteProtocolError | None:
        return self._decoder.failure

    def request(
        self, code: int, header: Buffer = b"", payload: Buffer | Sequence[Buffer] = b""
    ) -> tuple[int, list[Buffer]]:
        """An id and what to write. UnavailableError: use another connection."""
        if self._next_id > STREAM_ID_MAX:
            self.going_away = True
        if self.going_away:
            raise UnavailableError("connection takes no new requests", refused=True)
        stream_id = self._next_id
        pieces = encode_frame(Frame(code, 0, stream_id, header, payload))
        self._next_id += 1
        self._in_flight[stream_id] = code
        return stream_id, pieces

    def forget(self, stream_id: int) -> None:
        """Nobody waits any more; a late answer is dropped."""
        self._in_flight.pop(stream_id, None)

    def go_away(self) -> tuple[int, list[Buffer]]:
        """We send nothing more. Its id is a used one: the highest that wants an answer."""
        stream_id, pieces = self.request(Code.GOAWAY)
        self.going_away = True
        return stream_id, pieces

    def receive(self, data: bytes) -> list[ClientEvent]:
        """RemoteProtocolError: nothing more can be understood, close."""
        return self._on_frames(self._decoder.feed(data))

    def room(self) -> memoryview | None:
        """Where the next bytes belong, when a large answer has begun; `fill` says they came."""
        return self._decoder.room()

    def fill(self, count: int) -> list[ClientEvent]:
        return self._on_frames(self._decoder.fill(count))

    def _on_frames(self, frames: Sequence[Frame | BadFrame]) -> list[ClientEvent]:
        events: list[ClientEvent] = []
        for frame in frames:
            if isinstance(frame, BadFrame):
                if frame.flags & RESPONSE and frame.stream_id in self._in_flight:
                    events.append(BadResponse(frame.stream_id, frame.reason))
            elif _is_go_away(frame):
                self.going_away = True
                refused = tuple(id for id in self._in_flight if id > frame.stream_id)
                events += [Answer(_echo(frame)), GoAway(refused)]
            elif frame.is_response:
                events += self._on_response(frame)
            elif frame.opcode == Code.PING:
                events.append(Answer(_echo(frame)))
        return events

    def _on_response(self, frame: Frame) -> list[ClientEvent]:
        code = self._in_flight.get(frame.stream_id)
        if code is None:
            return []
        if code != frame.opcode:
            return [BadResponse(frame.stream_id, "answer to another operation")]
        payload = _one(frame.payload)
        return [Response(frame.stream_id, frame.flags, frame.header, payload)]


def _is_go_away(frame: Frame) -> bool:
    return frame.opcode == Code.GOAWAY and frame.flags & (RESPONSE | END) != RESPONSE | END


def _echo(frame: Frame) -> list[Buffer]:
    flags = RESPONSE | END
    return encode_frame(
        Frame(
            frame.opcode, flags, frame.stream_id, frame.header, frame.payload, frame.header_format
        )
    )


def _system_error(code: int, stream_id: int, error: HeadraceError) -> list[Buffer]:
    header = encode(SystemErrorResponse(status_of(error)))
    return encode_frame(Frame(code, RESPONSE | END | SYSTEM_ERROR, stream_id, header))


def _one(payload: Buffer | Sequence[Buffer]) -> memoryview | bytes:
    assert isinstance(payload, memoryview | bytes), "a decoded frame has its payload in one piece"
    return payload


class Assembler:
    """Puts the frames of one answer together."""

    def __init__(self, *, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._left = bytes_max
        self._parts: list[tuple[Message, Sequence[Buffer]]] = []

    def add(self, message: Message, payload: Sequence[Buffer], *, header_bytes: int = 0) -> None:
        self._left -= header_bytes + payload_bytes(payload)
        if self._left < 0:
            raise RemoteProtocolError("answer too large")
        self._parts.append((message, payload))

    def finish(self) -> tuple[Message, Sequence[Buffer]]:
        """The whole answer. A single frame's message and payload come back as they are."""
        if len(self._parts) == 1:
            message, payload = self._parts[0]
            if isinstance(message, FetchResponse):
                _check_lengths(message, payload)
            return message, payload
        if not self._parts:
            raise RemoteProtocolError("answer without a frame")
        merged = _merge_scalars([message for message, _ in self._parts])
        if isinstance(merged, FetchResponse):
            return self._merge_fetch(merged)
        return merged, [piece for _, payload in self._parts for piece in payload]

    def _merge_fetch(self, merged: FetchResponse) -> tuple[Message, Sequence[Buffer]]:
        found: dict[int, FetchResult] = {}  # by request_index, in order of first appearance
        pieces: dict[int, list[Buffer]] = {}
        for message, payload in self._parts:
            assert isinstance(message, FetchResponse)
            _check_lengths(message, payload)
            source = PayloadPieces(payload)
            for result in message.fetch_responses:
                index = result.request_index
                before = found.get(index)
                if before is not None:
                    if not is_success(before.status):
                        raise RemoteProtocolError("data after an error", request_index=index)
                    length = before.batch_length + result.batch_length
                    result = replace(result, batch_length=length)
                    taken = length - before.batch_length
                else:
                    taken = result.batch_length
                found[index] = result
                pieces.setdefault(index, []).extend(source.take(taken))
        results = tuple(found.values())
        whole = [piece for index in found for piece in pieces[index]]
        return replace(merged, fetch_responses=results), whole


def _check_lengths(message: FetchResponse, payload: Sequence[Buffer]) -> None:
    lengths = [result.batch_length for result in message.fetch_responses]
    if min(lengths, default=0) < 0 or sum(lengths) != payload_bytes(payload):
        raise RemoteProtocolError("lengths of a fetch answer do not add up to its payload")


def _merge_scalars(messages: list[Message]) -> Message:
    """One message with all the results, the first bad status, the longest throttle."""
    first = messages[0]
    changes: dict[str, Any] = {}
    for field in fields(first):  # type: ignore[arg-type]  # every message is a dataclass
        spec: FlatField = field.metadata["flat"]
        values = [getattr(message, field.name) for message in messages]
        if spec.kind is Kind.TABLES:
            changes[field.name] = _join_results([item for value in values for item in value])
        elif field.name == "status":
            changes["status"] = next((v for v in values if not is_success(v)), values[0])
        elif field.name == "throttle_time_ms":
            changes["throttle_time_ms"] = max(values)
    return replace(first, **changes)  # type: ignore[type-var]  # every message is a dataclass


def _join_results(results: list[Any]) -> tuple[Any, ...]:
    """Ranges of one criterion that came in several frames become one result again."""
    joined: list[Any] = []
    for result in results:
        last = joined[-1] if joined else None
        if (
            isinstance(result, ListRangesResult)
            and isinstance(last, ListRangesResult)
            and last.range_criteria == result.range_criteria
            and is_success(last.status)
        ):
            ranges = last.ranges + result.ranges
            joined[-1] = replace(result, ranges=ranges)
        else:
            joined.append(result)
    return tuple(joined)
