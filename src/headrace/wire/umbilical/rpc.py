"""Hadoop RPC version 9, both sides, without I/O.

    connect    "hrpc" | version 0x09 | service class 0x00 | auth: 0x00 none, 0xDF SASL
    frame      i32 length, big-endian, counts the body alone | body
    context    delimited RpcRequestHeaderProto{callId -3} | delimited IpcConnectionContextProto
    request    delimited RpcRequestHeaderProto | delimited RequestHeaderProto | delimited message
    ping       delimited RpcRequestHeaderProto{callId -4}; no reply
    response   delimited RpcResponseHeaderProto | delimited message, if the status is SUCCESS

    login      as request, callId -33, RpcSaslProto alone; answered the same way (see `sasl.py`)

"delimited" is a varint length and that many bytes (see `frames.py`). A response's call id is an
unsigned field that holds a signed number. A server that asks for a login takes only short frames
until the client has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.errors import LocalProtocolError, RemoteProtocolError, UnauthenticatedError
from headrace.wire.umbilical._generated import hadoop_rpc_pb2 as pb
from headrace.wire.umbilical.frames import (
    FRAME_BYTES_MAX,
    FrameDecoder,
    check_end,
    encode_frame,
    read_text,
    take_delimited,
    take_message,
)
from headrace.wire.umbilical.sasl import ClientLogin, ServerLogin

MAGIC: Final = b"hrpc"
VERSION: Final = 9
AUTH_NONE: Final = 0x00
AUTH_SASL: Final = 0xDF
PREAMBLE: Final = MAGIC + bytes((VERSION, 0, AUTH_NONE))
_SASL_PREAMBLE: Final = MAGIC + bytes((VERSION, 0, AUTH_SASL))

CALL_ID_CONTEXT: Final = -3
CALL_ID_PING: Final = -4
CALL_ID_SASL: Final = -33
CALL_ID_INVALID: Final = -2
CALL_ID_MAX: Final = 2**31 - 1
CLIENT_ID_BYTES: Final = 16

LOGIN_FRAME_BYTES_MAX = 16 * 1024  # while nobody has logged in
TEXT_CHARACTERS_MAX = 8_192  # of an error's text, so that no answer grows with its cause

NO_SUCH_METHOD = "org.apache.hadoop.ipc.RpcNoSuchMethodException"
NO_SUCH_PROTOCOL = "org.apache.hadoop.ipc.RpcNoSuchProtocolException"
VERSION_MISMATCH = "org.apache.hadoop.ipc.RPC$VersionMismatch"
SERVER_EXCEPTION = "org.apache.hadoop.ipc.RpcServerException"
ACCESS_CONTROL = "org.apache.hadoop.security.AccessControlException"
INVALID_TOKEN = "org.apache.hadoop.security.token.SecretManager$InvalidToken"
IO_EXCEPTION = "java.io.IOException"

_Status = pb.RpcResponseHeaderProto.RpcStatusProto
ErrorCode = pb.RpcResponseHeaderProto.RpcErrorCodeProto


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
class LoginReply:
    """Send `reply`; the login goes on, or is complete when `user` is set."""

    reply: bytes
    user: str | None


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


ServerEvent: TypeAlias = Context | Request | Ping | LoginReply | Refusal


class ServerConnection:
    """Bytes of a client in, events out. After a Refusal everything else is ignored.

    With a `login` nothing else is served before it is complete; without one, SASL is refused.
    """

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, login: ServerLogin | None = None
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        before_login = min(frame_bytes_max, LOGIN_FRAME_BYTES_MAX)
        self._frames = FrameDecoder(frame_bytes_max if login is None else before_login)
        self._login = login
        self._greeted = False
        self._refused = False

    @property
    def user(self) -> str:
        """Who logged in; empty when nobody had to."""
        return (self._login.user or "") if self._login is not None else ""

    @property
    def ready(self) -> bool:
        """Whether calls are served: nobody has to log in, or somebody did."""
        return self._login is None or self._login.user is not None

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
            if refusal := _check_preamble(preamble, with_login=self._login is not None):
                return refusal
            self._greeted = True
        body = self._frames.take_frame()
        if body is None:
            return None
        if self._login is not None and not self.ready:
            return self._log_in(self._login, body)
        return _decode_request(body)

    def _log_in(self, login: ServerLogin, body: bytes) -> ServerEvent:
        header, position = take_message(pb.RpcRequestHeaderProto, body, 0)
        if header.callId != CALL_ID_SASL:
            text = f"call {header.callId} before the login"
            return _refuse(ACCESS_CONTROL, text, ErrorCode.FATAL_UNAUTHORIZED)
        message, position = take_delimited(body, position)
        check_end(body, position)
        try:
            reply = login.answer(message)
        except UnauthenticatedError as error:
            # The peer learns what a stranger may know; the reason in full is for our log.
            code = ErrorCode.FATAL_UNAUTHORIZED
            return _refuse(INVALID_TOKEN, str(error), code, CALL_ID_SASL)
        if login.user is not None:
            self._frames.frame_bytes_max = self._frame_bytes_max
        return LoginReply(encode_frame(_success_header(CALL_ID_SASL, b"", -1), reply), login.user)


def _check_preamble(preamble: bytes, *, with_login: bool) -> Refusal | None:
    if not preamble.startswith(MAGIC):
        raise RemoteProtocolError("not a Hadoop RPC client", found=preamble[: len(MAGIC)])
    version, auth = preamble[4], preamble[6]
    if version != VERSION:
        text = f"this server speaks version {VERSION}, the client {version}"
        return _refuse(VERSION_MISMATCH, text, ErrorCode.FATAL_VERSION_MISMATCH)
    if auth == (AUTH_SASL if with_login else AUTH_NONE):
        return None
    call_id = CALL_ID_INVALID
    if auth == AUTH_SASL:
        # A client takes this for the answer to its NEGOTIATE and shows the text to its user.
        call_id = CALL_ID_SASL
        text = "this server offers no SASL; connect without a token and with simple authentication"
    elif auth == AUTH_NONE:
        text = "SIMPLE authentication is not enabled; connect with the container's token"
    else:
        text = f"unknown authentication {auth:#04x}"
    return _refuse(ACCESS_CONTROL, text, ErrorCode.FATAL_UNAUTHORIZED, call_id)


def _decode_request(body: bytes) -> ServerEvent:
    header, position = take_message(pb.RpcRequestHeaderProto, body, 0)
    if header.callId == CALL_ID_PING:
        return Ping()
    if header.callId == CALL_ID_CONTEXT:
        context, position = take_message(pb.IpcConnectionContextProto, body, position)
        check_end(body, position)
        return read_text(lambda: Context(context.userInfo.effectiveUser, context.protocol))
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
    method, position = take_message(pb.RequestHeaderProto, body, position)
    message, position = take_delimited(body, position)
    check_end(body, position)
    return read_text(
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
    header = _success_header(request.call_id, request.client_id, request.retry_count)
    return encode_frame(header, body)


def encode_error(request: Request, error: RpcError) -> bytes:
    header = _error_header(error, request.call_id, request.client_id, request.retry_count)
    return encode_frame(header)


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
        """What goes first without a login: the preamble and who calls."""
        return PREAMBLE + self._context(pb.UserInformationProto(effectiveUser=user))

    def start_login(self, login: ClientLogin) -> bytes:
        """What goes first with one: the preamble and the login's first word."""
        return _SASL_PREAMBLE + self._login_frame(login.start())

    def feed_login(self, login: ClientLogin, data: bytes) -> bytes:
        """What to send next; the last of it, when `login.done`, says what we call.

        UnauthenticatedError when the server refuses the token or does not know it.
        """
        self._frames.feed(data)
        sent = b""
        while not login.done and (body := self._frames.take_frame()) is not None:
            reply = _decode_response(body)
            if reply.error is not None:
                raise UnauthenticatedError(f"the login was refused: {reply.error.text}")
            if reply.call_id != CALL_ID_SASL:
                raise RemoteProtocolError(f"an answer to call {reply.call_id} during the login")
            answer = login.answer(reply.body)
            # The token says who we are; a name beside it would have to be the same.
            sent += self._context(None) if answer is None else self._login_frame(answer)
        return sent

    def call(self, call_id: int, method: str, body: bytes, *, retry_count: int = 0) -> bytes:
        """A repeated call keeps its id and counts up `retry_count`."""
        named = pb.RequestHeaderProto(
            methodName=method,
            declaringClassProtocolName=self._protocol,
            clientProtocolVersion=self._version,
        )
        return encode_frame(self._header(call_id, retry_count), named, body)

    def ping(self) -> bytes:
        return encode_frame(self._header(CALL_ID_PING))

    def feed(self, data: bytes) -> list[Response]:
        self._frames.feed(data)
        responses = []
        while (body := self._frames.take_frame()) is not None:
            responses.append(_decode_response(body))
        return responses

    def _context(self, user: pb.UserInformationProto | None) -> bytes:
        context = pb.IpcConnectionContextProto(userInfo=user, protocol=self._protocol)
        return encode_frame(self._header(CALL_ID_CONTEXT), context)

    def _login_frame(self, message: bytes) -> bytes:
        return encode_frame(self._header(CALL_ID_SASL), message)

    def _header(self, call_id: int, retry_count: int = -1) -> pb.RpcRequestHeaderProto:
        return pb.RpcRequestHeaderProto(
            rpcKind=pb.RPC_PROTOCOL_BUFFER,
            rpcOp=pb.RpcRequestHeaderProto.RPC_FINAL_PACKET,
            callId=call_id,
            clientId=self._client_id,
            retryCount=retry_count,
        )


def _decode_response(body: bytes) -> Response:
    header, position = take_message(pb.RpcResponseHeaderProto, body, 0)
    call_id = header.callId - 2**32 if header.callId >> 31 else header.callId
    if header.status == _Status.SUCCESS:
        message, position = take_delimited(body, position)
        check_end(body, position)
        return Response(call_id, message)
    check_end(body, position)
    error = read_text(
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
    return Refusal(encode_frame(_error_header(error, call_id, b"", -1)), text)


def _success_header(call_id: int, client_id: bytes, retry_count: int) -> pb.RpcResponseHeaderProto:
    return pb.RpcResponseHeaderProto(
        callId=call_id & 0xFFFFFFFF,
        status=_Status.SUCCESS,
        serverIpcVersionNum=VERSION,
        clientId=client_id,
        retryCount=retry_count,
    )


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
