"""Bytes of the three protocols as frames that people can read.

A conversation is told in the order its bytes are fed, each side's as they come, whole frames or
not. Replies of Iggy's classic framing say nothing of their request, so they are matched in order.
What cannot be decoded becomes a frame that says why; later frames are told all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any

import msgspec

from headrace.errors import HeadraceError

ITEMS_MAX = 20  # of a list; the rest is counted
BYTES_MAX = 32  # of a value; the rest is counted
_PING, _POLL = 1, 100
_FIRST_REQUESTS = 4


class Protocol(StrEnum):
    AUTO = "auto"
    SBP = "sbp"
    IGGY = "iggy"
    UMBILICAL = "umbilical"


class Side(StrEnum):
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class ExplainedFrame:
    protocol: Protocol
    sender: Side
    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def detect(first: bytes) -> Protocol:
    """Tell the protocol from the first bytes of the side that connected."""
    if first[:4] == b"hrpc":
        return Protocol.UMBILICAL
    if len(first) >= 12 and first[4] == 23 and first[0] == 0:
        return Protocol.SBP
    return Protocol.IGGY


def plain(value: object) -> Any:
    """A message as dictionaries, lists and text, without what has nothing to say."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, msgspec.Struct):
        return _named({name: getattr(value, name) for name in value.__struct_fields__})
    if is_dataclass(value):
        if hasattr(value, "area"):  # SEND: where its messages lie says nothing to people
            shown = ("stream", "topic", "partitioning", "count")
            return {
                **_named({name: getattr(value, name) for name in shown}),
                "bytes": len(value.area),
            }
        return _named({each.name: getattr(value, each.name, None) for each in fields(value)})
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        more = f"… {len(data)} bytes" if len(data) > BYTES_MAX else ""
        return f"0x{data[:BYTES_MAX].hex()}{more}" if data else ""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        listed = list(value)
        told = [plain(item) for item in listed[:ITEMS_MAX]]
        left = len(listed) - ITEMS_MAX
        return [*told, f"… {left} more"] if left > 0 else told
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def _named(values: dict[str, object]) -> dict[str, Any]:
    return {
        name: "•••" if _is_secret(name) and value else plain(value)
        for name, value in values.items()
        if value is not None and not (isinstance(value, bytes | tuple) and not value)
    }


def _is_secret(name: str) -> bool:
    """What is decoded may be shown to others."""
    return "password" in name or name in ("token", "credential")


class Conversation:
    """One connection. `feed` gives what the bytes complete."""

    def __init__(self, protocol: Protocol = Protocol.AUTO) -> None:
        self._protocol = protocol
        self._told: Callable[[Side, bytes], Iterator[ExplainedFrame]] | None = None

    def feed(self, sender: Side, data: bytes) -> Iterator[ExplainedFrame]:
        if self._told is None:
            if self._protocol is Protocol.AUTO:
                self._protocol = detect(data)
            kinds: dict[Protocol, type[_Sbp | _Iggy | _Umbilical]] = {
                Protocol.SBP: _Sbp, Protocol.IGGY: _Iggy, Protocol.UMBILICAL: _Umbilical,
            }  # fmt: skip
            self._told = kinds[self._protocol]().feed
        try:
            yield from self._told(sender, data)
        except HeadraceError as error:
            yield ExplainedFrame(self._protocol, sender, "?", error=str(error))


class _Sbp:
    def __init__(self) -> None:
        from headrace.wire.sbp.frames import FrameDecoder

        self._decoders = {side: FrameDecoder() for side in Side}

    def feed(self, sender: Side, data: bytes) -> Iterator[ExplainedFrame]:
        from headrace.wire.sbp.frames import Frame

        for event in self._decoders[sender].feed(data):
            if isinstance(event, Frame):
                yield self._explain(sender, event)
            else:
                yield ExplainedFrame(Protocol.SBP, sender, type(event).__name__, plain(event))

    def _explain(self, sender: Side, frame: Any) -> ExplainedFrame:
        from headrace.wire.sbp.flat import decode
        from headrace.wire.sbp.frames import SYSTEM_ERROR
        from headrace.wire.sbp.messages import SystemErrorResponse
        from headrace.wire.sbp.opcodes import TABLE

        row = TABLE.get(frame.opcode)
        name = row.name if row is not None else f"0x{frame.opcode:04x}"
        told: dict[str, Any] = {"id": frame.stream_id}
        kind: Any = None
        if frame.flags & SYSTEM_ERROR:
            kind = SystemErrorResponse
        elif row is not None:
            kind = row.response if frame.is_response else row.request
        error = ""
        try:
            if kind is not None and len(frame.header):
                told |= plain(decode(kind, frame.header))
        except HeadraceError as problem:
            error = str(problem)
        if len(frame.payload):
            told["payload"] = _batches(frame.payload)
        what = "error" if frame.flags & SYSTEM_ERROR else "answer" if frame.is_response else ""
        return ExplainedFrame(Protocol.SBP, sender, f"{name} {what}".strip(), told, error)


def _batches(payload: Any) -> Any:
    """The record batches of a payload, if it is some."""
    from headrace.wire.sbp.records import split

    try:
        return [plain(header) for header, _ in split(payload)]
    except HeadraceError:
        return plain(payload)


class _Iggy:
    def __init__(self) -> None:
        from headrace.wire.iggy.detection import SpokenDialect
        from headrace.wire.iggy.dialects import Dialect
        from headrace.wire.iggy.request_stream import RequestStream

        self._requests = RequestStream()
        self._replies: Any = None
        self._spoken = SpokenDialect(Dialect.B2)
        self._asked: deque[int] = deque()
        self._requests_seen = 0

    def feed(self, sender: Side, data: bytes) -> Iterator[ExplainedFrame]:
        if sender is Side.CLIENT:
            for event in self._requests.feed(data):
                yield self._request(event)
        else:
            for frame in self._reply_decoder().feed(data):
                yield self._reply(frame)

    def _request(self, event: Any) -> ExplainedFrame:
        from headrace.wire.iggy.classic_frames import RequestFrame
        from headrace.wire.iggy.commands import TABLE
        from headrace.wire.iggy.detection import DIALECT_SPECIFIC, candidates, hint
        from headrace.wire.iggy.dialects import of_version

        if not isinstance(event, RequestFrame):
            return ExplainedFrame(Protocol.IGGY, Side.CLIENT, type(event).__name__, plain(event))
        self._asked.append(event.code)
        self._requests_seen += 1
        if event.head is not None:
            self._spoken.on_framing()
        elif event.code == _PING:
            # There is no clock here: what stands among the first ones came soon.
            self._spoken.on_ping(early=self._requests_seen <= _FIRST_REQUESTS)
        elif event.code in DIALECT_SPECIFIC:
            self._spoken.on_shape(candidates(event.code, event.payload))
            if event.code == _POLL:
                self._spoken.on_poll(nobody=False)
        else:
            self._spoken.on_hint(hint(event.code))
        command = TABLE.get(event.code)
        told: dict[str, Any] = {"code": event.code, "dialect": self._spoken.dialect.name}
        if event.head is not None:
            told |= {"number": event.head.number, "session": event.head.session}
        if command is None:
            return ExplainedFrame(Protocol.IGGY, Side.CLIENT, "unknown command", told)
        try:
            request = command.decode_request(event.payload, self._spoken.dialect)
            told |= plain(request)
            if stated := of_version(getattr(request, "version", "")):
                self._spoken.on_version(stated)
                told["dialect"] = self._spoken.dialect.name
        except HeadraceError as error:
            return ExplainedFrame(Protocol.IGGY, Side.CLIENT, command.name, told, str(error))
        return ExplainedFrame(Protocol.IGGY, Side.CLIENT, command.name, told)

    def _reply_decoder(self) -> Any:
        if self._replies is None:
            from headrace.wire.iggy.classic_frames import ResponseDecoder
            from headrace.wire.iggy.vsr.client import VsrReplyDecoder

            self._replies = VsrReplyDecoder() if self._requests.has_heads else ResponseDecoder()
        return self._replies

    def _reply(self, frame: Any) -> ExplainedFrame:
        from headrace.wire.iggy.commands import TABLE
        from headrace.wire.iggy.errors import Status

        command = TABLE.get(self._asked.popleft()) if self._asked else None
        name = f"{command.name if command else 'unknown'} answer"
        told: dict[str, Any] = {}
        if frame.status:
            known = frame.status in Status.__members__.values()
            told["refused"] = Status(frame.status).name if known else frame.status
            return ExplainedFrame(Protocol.IGGY, Side.SERVER, name, told)
        if command is None or not len(frame.payload):
            told["bytes"] = len(frame.payload)
            return ExplainedFrame(Protocol.IGGY, Side.SERVER, name, told)
        try:
            told |= plain(command.decode_response(frame.payload, self._spoken.dialect)) or {}
        except HeadraceError as error:
            return ExplainedFrame(Protocol.IGGY, Side.SERVER, name, told, str(error))
        return ExplainedFrame(Protocol.IGGY, Side.SERVER, name, told)


class _Umbilical:
    def __init__(self) -> None:
        from headrace.wire.umbilical.frames import FrameDecoder

        self._decoders = {side: FrameDecoder() for side in Side}
        self._greeted = False
        self._methods: dict[int, str] = {}

    def feed(self, sender: Side, data: bytes) -> Iterator[ExplainedFrame]:
        from headrace.wire.umbilical.rpc import PREAMBLE

        decoder = self._decoders[sender]
        decoder.feed(data)
        if sender is Side.CLIENT and not self._greeted:
            preamble = decoder.take(len(PREAMBLE))
            if preamble is None:
                return
            self._greeted = True
            told = {"version": preamble[4], "login": preamble[6] != 0}
            yield ExplainedFrame(Protocol.UMBILICAL, sender, "hello", told)
        while (body := decoder.take_frame()) is not None:
            yield self._request(body) if sender is Side.CLIENT else self._response(body)

    def _request(self, body: bytes) -> ExplainedFrame:
        from headrace.wire.umbilical import rpc
        from headrace.wire.umbilical._generated import hadoop_rpc_pb2 as pb
        from headrace.wire.umbilical.frames import take_delimited, take_message

        header, at = take_message(pb.RpcRequestHeaderProto, body, 0)
        told: dict[str, Any] = {"call": header.callId}
        names = {
            rpc.CALL_ID_CONTEXT: "context", rpc.CALL_ID_PING: "ping", rpc.CALL_ID_SASL: "login",
        }  # fmt: skip
        if header.callId in names:
            return ExplainedFrame(Protocol.UMBILICAL, Side.CLIENT, names[header.callId], told)
        method, at = take_message(pb.RequestHeaderProto, body, at)
        message, _ = take_delimited(body, at)
        self._methods[header.callId] = method.methodName
        if header.retryCount > 0:
            told["retry"] = header.retryCount
        return self._message(Side.CLIENT, method.methodName, message, told)

    def _response(self, body: bytes) -> ExplainedFrame:
        from headrace.wire.umbilical._generated import hadoop_rpc_pb2 as pb
        from headrace.wire.umbilical.frames import take_delimited, take_message

        header, at = take_message(pb.RpcResponseHeaderProto, body, 0)
        call = header.callId - (1 << 32) if header.callId >= 1 << 31 else header.callId
        told: dict[str, Any] = {"call": call}
        method = self._methods.pop(call, "")
        if header.status != pb.RpcResponseHeaderProto.RpcStatusProto.SUCCESS:
            told |= {"exception": header.exceptionClassName, "text": header.errorMsg}
            return ExplainedFrame(
                Protocol.UMBILICAL, Side.SERVER, f"{method} refused".strip(), told
            )
        if not method:
            return ExplainedFrame(Protocol.UMBILICAL, Side.SERVER, "login answer", told)
        message, _ = take_delimited(body, at)
        return self._message(Side.SERVER, method, message, told)

    def _message(
        self, sender: Side, method: str, message: bytes, told: dict[str, Any]
    ) -> ExplainedFrame:
        from headrace.wire.umbilical.codec import TABLE, decode

        name = method if sender is Side.CLIENT else f"{method} answer"
        call = TABLE.get(method)
        if call is None:
            return ExplainedFrame(
                Protocol.UMBILICAL, sender, name, told, "not a call of the umbilical"
            )
        kind = call.request if sender is Side.CLIENT else call.response
        try:
            return ExplainedFrame(
                Protocol.UMBILICAL, sender, name, told | plain(decode(kind, message))
            )
        except HeadraceError as error:
            return ExplainedFrame(Protocol.UMBILICAL, sender, name, told, str(error))
