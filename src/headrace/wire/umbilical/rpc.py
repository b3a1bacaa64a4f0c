"""Hadoop RPC version 9, both sides, without I/O.

    connect    "hrpc" | version 0x09 | service class 0x00 | auth: 0x00 none, 0xDF SASL
    frame      i32 length, big-endian, counts the body alone | body
    context    delimited RpcRequestHeaderProto{callId -3} | delimited IpcConnectionContextProto
    request    delimited RpcRequestHeaderProto | delimited RequestHeaderProto | delimited message
    ping       delimited RpcRequestHeaderProto{callId -4}; no reply
    response   delimited RpcResponseHeaderProto | delimited message, if the status is SUCCESS

"delimited" is a varint length and that many bytes. A response's call id is an unsigned field that
holds a signed number. Nothing is allocated for a frame before its bytes arrive.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from google.protobuf import message as protobuf

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.umbilical._generated import hadoop_rpc_pb2 as pb

MAGIC: Final = b"hrpc"
VERSION: Final = 9
AUTH_NONE: Final = 0x00
AUTH_SASL: Final = 0xDF
PREAMBLE: Final = MAGIC + bytes((VERSION, 0, AUTH_NONE))

CALL_ID_CONTEXT: Final = -3
CALL_ID_PING: Final = -4
CALL_ID_SASL: Final = -33
CALL_ID_INVALID: Final = -2
CALL_ID_MAX: Final = 2**31 - 1
CLIENT_ID_BYTES: Final = 16

FRAME_BYTES_MAX = 64 * 1024 * 1024
TEXT_CHARACTERS_MAX = 8_192  # of an error's text, so that no answer grows with its cause

NO_SUCH_METHOD = "org.apache.hadoop.ipc.RpcNoSuchMethodException"
NO_SUCH_PROTOCOL = "org.apache.hadoop.ipc.RpcNoSuchProtocolException"
VERSION_MISMATCH = "org.apache.hadoop.ipc.RPC$VersionMismatch"
SERVER_EXCEPTION = "org.apache.hadoop.ipc.RpcServerException"
ACCESS_CONTROL = "org.apache.hadoop.security.AccessControlException"
IO_EXCEPTION = "java.io.IOException"

_LENGTH = struct.Struct(">i")
_VARINT_BYTES_MAX = 5
_Status = pb.RpcResponseHeaderProto.RpcStatusProto
ErrorCode = pb.RpcResponseHeaderProto.RpcErrorCodeProto
P = TypeVar("P", bound=protobuf.Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The client introduced itself."""

    effective_user: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Request:
    call_id: int
    client_id: bytes
    retry_count: int
    method: str
    protocol: str
    protocol_version: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Ping: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """The peer cannot be served: send `reply`, then close."""

    reply: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Response:
    """`error` is None on success."""

    call_id: int
    body: bytes
    error: RpcError | None = None


@dataclass(frozen=True, slots=True)
class RpcError:
    exception_class: str
    text: str
    code: int
    fatal: bool = False  # the server closes the connection


ServerEvent: TypeAlias = Context | Request | Ping | Refusal


class FrameDecoder:
    """Cuts the byte stream into frame bodies."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self, length: int) -> bytes | None:
        """`length` bytes off the front, or None to ask for more."""
        if len(self._buffer) < length:
            return None
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    def take_frame(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= length <= self._frame_bytes_max:
            raise RemoteProtocolError(f"frame length {length} outside 0..{self._frame_bytes_max}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return body


class ServerConnection:
    """Bytes of a client in, events out. After a Refusal everything else is ignored."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frames = FrameDecoder(frame_bytes_max)
        self._greeted = False
        self._refused = False

    def feed(self, data: bytes) -> list[ServerEvent]:
        """RemoteProtocolError when the connection must end without an answer."""
        events: list[ServerEvent] = []
        if self._refused:
            return events
        self._frames.feed(data)
        while not self._refused:
            event = self._next_event()
            if event is None:
                break
            events.append(event)
            self._refused = isinstance(event, Refusal)
        return events

    def _next_event(self) -> ServerEvent | None:
        if not self._greeted:
            preamble = self._frames.take(len(PREAMBLE))
            if preamble is None:
                return None
            if refusal := _check_preamble(preamble):
                return refusal
            self._greeted = True
        body = self._frames.take_frame()
        return None if body is None else _decode_request(body)


def _check_preamble(preamble: bytes) -> Refusal | None:
    if not preamble.startswith(MAGIC):
        raise RemoteProtocolError("not a Hadoop RPC client", found=preamble[: len(MAGIC)])
    version, auth = preamble[4], preamble[6]
    if version != VERSION:
        text = f"this server speaks version {VERSION}, the client {version}"
        return _refuse(VERSION_MISMATCH, text, ErrorCode.FATAL_VERSION_MISMATCH)
    if auth == AUTH_SASL:
        # A client takes this for the answer to its NEGOTIATE and shows the text to its user.
        text = "this server offers no SASL; connect without a token and with simple authentication"
        return _refuse(ACCESS_CONTROL, text, ErrorCode.FATAL_UNAUTHORIZED, CALL_ID_SASL)
    if auth != AUTH_NONE:
        text = f"unknown authentication {auth:#04x}"
        return _refuse(ACCESS_CONTROL, text, ErrorCode.FATAL_UNAUTHORIZED)
    return None


def _decode_request(body: bytes) -> ServerEvent:
    header, position = _take_message(pb.RpcRequestHeaderProto, body, 0)
    if header.callId == CALL_ID_PING:
        return Ping()
    if header.callId == CALL_ID_CONTEXT:
        context, position = _take_message(pb.IpcConnectionContextProto, body, position)
        _check_end(body, position)
        return _read_text(lambda: Context(context.userInfo.effectiveUser, context.protocol))
    if header.callId == CALL_ID_SASL:
        text = "SASL message on a connection that did not ask for SASL"
        return _refuse(ACCESS_CONTROL, text, ErrorCode.FATAL_UNAUTHORIZED, CALL_ID_SASL)
    if (
        header.callId < 0
        or header.rpcKind != pb.RPC_PROTOCOL_BUFFER
        or header.rpcOp != pb.RpcRequestHeaderProto.RPC_FINAL_PACKET
    ):
        text = f"call {header.callId} of kind {header.rpcKind}, operation {header.rpcOp}"
        return _refuse(
            SERVER_EXCEPTION,
            f"only whole protobuf calls are served: {text}",
            ErrorCode.FATAL_INVALID_RPC_HEADER,
            header.callId,
        )
    method, position = _take_message(pb.RequestHeaderProto, body, position)
    message, position = _take_delimited(body, position)
    _check_end(body, position)
    return _read_text(
        lambda: Request(
            call_id=header.callId,
            client_id=header.clientId,
            retry_count=header.retryCount,
            method=method.methodName,
            protocol=method.declaringClassProtocolName,
            protocol_version=method.clientProtocolVersion,
            body=message,
        )
    )


def encode_success(request: Request, body: bytes) -> bytes:
    header = pb.RpcResponseHeaderProto(
        callId=request.call_id,
        status=_Status.SUCCESS,
        serverIpcVersionNum=VERSION,
        clientId=request.client_id,
        retryCount=request.retry_count,
    )
    return _frame(header, body)


def encode_error(request: Request, error: RpcError) -> bytes:
    return _frame(_error_header(error, request.call_id, request.client_id, request.retry_count))


class ClientConnection:
    """One client's side of a connection: calls in, bytes out; bytes in, responses out."""

    def __init__(
        self, protocol: str, version: int, client_id: bytes, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        if len(client_id) != CLIENT_ID_BYTES:
            raise LocalProtocolError(f"a client id has {CLIENT_ID_BYTES} bytes")
        self._protocol = protocol
        self._version = version
        self._client_id = client_id
        self._frames = FrameDecoder(frame_bytes_max)

    def greet(self, user: str) -> bytes:
        """What goes first: the preamble and who calls."""
        context = pb.IpcConnectionContextProto(
            userInfo=pb.UserInformationProto(effectiveUser=user), protocol=self._protocol
        )
        return PREAMBLE + _frame(self._header(CALL_ID_CONTEXT), context)

    def call(self, call_id: int, method: str, body: bytes, *, retry_count: int = 0) -> bytes:
        """A repeated call keeps its id and counts up `retry_count`."""
        named = pb.RequestHeaderProto(
            methodName=method,
            declaringClassProtocolName=self._protocol,
            clientProtocolVersion=self._version,
        )
        return _frame(self._header(call_id, retry_count), named, body)

    def ping(self) -> bytes:
        return _frame(self._header(CALL_ID_PING))

    def feed(self, data: bytes) -> list[Response]:
        self._frames.feed(data)
        responses = []
        while (body := self._frames.take_frame()) is not None:
            responses.append(_decode_response(body))
        return responses

    def _header(self, call_id: int, retry_count: int = -1) -> pb.RpcRequestHeaderProto:
        return pb.RpcRequestHeaderProto(
            rpcKind=pb.RPC_PROTOCOL_BUFFER,
            rpcOp=pb.RpcRequestHeaderProto.RPC_FINAL_PACKET,
            callId=call_id,
            clientId=self._client_id,
            retryCount=retry_count,
        )


def _decode_response(body: bytes) -> Response:
    header, position = _take_message(pb.RpcResponseHeaderProto, body, 0)
    call_id = header.callId - 2**32 if header.callId >> 31 else header.callId
    if header.status == _Status.SUCCESS:
        message, position = _take_delimited(body, position)
        _check_end(body, position)
        return Response(call_id, message)
    _check_end(body, position)
    error = _read_text(
        lambda: RpcError(
            header.exceptionClassName,
            header.errorMsg,
            header.errorDetail,
            fatal=header.status == _Status.FATAL,
        )
    )
    return Response(call_id, b"", error)


def _refuse(exception_class: str, text: str, code: int, call_id: int = CALL_ID_INVALID) -> Refusal:
    error = RpcError(exception_class, text, code, fatal=True)
    return Refusal(_frame(_error_header(error, call_id, b"", -1)), text)


def _error_header(
    error: RpcError, call_id: int, client_id: bytes, retry_count: int
) -> pb.RpcResponseHeaderProto:
    return pb.RpcResponseHeaderProto(
        callId=call_id & 0xFFFFFFFF,
        status=_Status.FATAL if error.fatal else _Status.ERROR,
        serverIpcVersionNum=VERSION,
        exceptionClassName=error.exception_class,
        errorMsg=error.text[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode(),
        errorDetail=ErrorCode.Name(error.code),
        clientId=client_id,
        retryCount=retry_count,
    )


def _frame(*parts: protobuf.Message | bytes) -> bytes:
    body = bytearray()
    for part in parts:
        data = part if isinstance(part, bytes) else part.SerializeToString()
        body += _encode_varint(len(data))
        body += data
    if len(body) > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"frame of {len(body)} bytes is longer than {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + bytes(body)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _take_delimited(body: bytes, position: int) -> tuple[bytes, int]:
    length = 0
    for index in range(_VARINT_BYTES_MAX):
        if position >= len(body):
            raise RemoteProtocolError("frame ends inside a length")
        byte = body[position]
        position += 1
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise RemoteProtocolError("length is longer than five bytes")
    if length > len(body) - position:
        raise RemoteProtocolError(f"part of {length} bytes in a frame with fewer")
    return body[position : position + length], position + length


def _take_message(cls: type[P], body: bytes, position: int) -> tuple[P, int]:
    data, position = _take_delimited(body, position)
    message = cls()
    try:
        message.ParseFromString(data)
    except (protobuf.DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"not a {cls.__name__}: {error}") from error
    return message, position


def _check_end(body: bytes, position: int) -> None:
    if position != len(body):
        raise RemoteProtocolError(f"{len(body) - position} bytes after the end of a message")


def _read_text(read: Callable[[], T]) -> T:
    """Header texts are decoded when they are read, not when they are parsed."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("a header's text is not UTF-8") from error
