"""The token login of Hadoop RPC, both sides, without I/O: RpcSaslProto in, RpcSaslProto out.

    client   NEGOTIATE
    server   NEGOTIATE, auths [TOKEN by DIGEST-MD5, with the first challenge]
    client   INITIATE, the chosen auth, the digest response
    server   SUCCESS, the server's own proof

A client may leave the early challenge unused: INITIATE without a token gets it as CHALLENGE, and
the digest comes as RESPONSE. The digest is SASL's DIGEST-MD5 (RFC 2831), authentication alone, no
layers; its user is the token's identifier and its password the token's password, both in base64:

    challenge  realm="default",nonce="...",qop="auth",charset=utf-8,algorithm=md5-sess
    response   username="...",realm="default",nonce="...",nc=00000001,cnonce="...",
               digest-uri="/default",response=<32 hex digits>,qop=auth,charset=utf-8
    final      rspauth=<32 hex digits>

MD5 is the protocol's choice. It guards a random 256-bit secret against somebody who listens, and
proves both sides to each other; it hides nothing of what follows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from google.protobuf import message as protobuf

from headrace.errors import RemoteProtocolError, UnauthenticatedError
from headrace.wire.umbilical._generated import hadoop_rpc_pb2 as pb
from headrace.wire.umbilical.tokens import TOKEN_BYTES_MAX, Token

REALM = "default"
DIGEST_BYTES_MAX = 8_192
_DIRECTIVES_MAX = 32
_FIRST_USE = "00000001"  # nc: a nonce is good for one login
_DIRECTIVE = re.compile(
    rb'[ \t,]*([A-Za-z0-9_-]{1,32})=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))[ \t]*(?=,|$)'
)
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Secret:
    """What both sides know; `user` and `password` are base64 texts."""

    user: str
    password: str


def encode_challenge(nonce: str) -> bytes:
    return f'realm="{REALM}",nonce="{nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()


def respond(
    challenge: bytes, secret: Secret, *, digest_uri: str, cnonce: str
) -> tuple[bytes, bytes]:
    """The answer to a server's challenge, and what the server must say in the end."""
    given = parse_directives(challenge)
    if given.get("algorithm") != "md5-sess" or "nonce" not in given:
        raise RemoteProtocolError("a challenge that is not DIGEST-MD5")
    if "auth" not in given.get("qop", "auth").replace(" ", "").split(","):
        raise RemoteProtocolError("the server insists on encryption that Hadoop's tokens lack")
    realm, nonce = given.get("realm", REALM), given["nonce"]
    key = _session_key(secret, realm=realm, nonce=nonce, cnonce=cnonce)
    proof = _digest(key, nonce, cnonce, f"AUTHENTICATE:{digest_uri}")
    answer = (
        f'charset=utf-8,username="{_escape(secret.user)}",realm="{_escape(realm)}",'
        f'nonce="{_escape(nonce)}",nc={_FIRST_USE},cnonce="{_escape(cnonce)}",'
        f'digest-uri="{_escape(digest_uri)}",response={proof},qop=auth'
    )
    return answer.encode(), f"rspauth={_digest(key, nonce, cnonce, f':{digest_uri}')}".encode()


def check_response(
    given: Mapping[str, str], secret: Secret, *, nonce: str, digest_uri: str
) -> bytes:
    """The last word to a client whose response (parsed) proves that it knows the secret.

    UnauthenticatedError when it does not.
    """
    expected = {"nonce": nonce, "nc": _FIRST_USE, "realm": REALM, "digest-uri": digest_uri}
    for name, value in expected.items():
        if given.get(name) != value:
            raise UnauthenticatedError(f"the login's {name} is not the one that was asked for")
    if given.get("qop", "auth") != "auth":
        raise UnauthenticatedError("the login asks for a protection that is not offered")
    cnonce = given.get("cnonce", "")
    key = _session_key(secret, realm=REALM, nonce=nonce, cnonce=cnonce)
    proof = _digest(key, nonce, cnonce, f"AUTHENTICATE:{digest_uri}")
    if not cnonce or not hmac.compare_digest(proof, given.get("response", "")):
        raise UnauthenticatedError("the token's secret is wrong")
    return f"rspauth={_digest(key, nonce, cnonce, f':{digest_uri}')}".encode()


def parse_directives(data: bytes) -> dict[str, str]:
    """`name=value` and `name="value"` with commas between. RemoteProtocolError for the rest."""
    if len(data) > DIGEST_BYTES_MAX:
        raise RemoteProtocolError(f"a digest message longer than {DIGEST_BYTES_MAX} bytes")
    found: dict[str, str] = {}
    position = 0
    while position < len(data):
        match = _DIRECTIVE.match(data, position)
        if match is None or len(found) >= _DIRECTIVES_MAX:
            raise RemoteProtocolError("not a digest message")
        name = match[1].decode().lower()
        try:
            quoted, plain = match[2], match[3]
            value = _ESCAPED.sub(r"\1", quoted.decode()) if plain is None else plain.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError("a digest message is not UTF-8") from None
        if not value.isascii() or name in found:
            raise RemoteProtocolError(f"the digest message's {name} is not acceptable")
        found[name] = value
        position = match.end()
    return found


def _session_key(secret: Secret, *, realm: str, nonce: str, cnonce: str) -> bytes:
    login = _md5(f"{secret.user}:{realm}:{secret.password}".encode())
    return _md5(login + f":{nonce}:{cnonce}".encode())


def _digest(key: bytes, nonce: str, cnonce: str, request: str) -> str:
    what = _md5(request.encode()).hex()
    return _md5(f"{key.hex()}:{nonce}:{_FIRST_USE}:{cnonce}:auth:{what}".encode()).hex()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()  # also where MD5 is locked away


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


METHOD: Final = "TOKEN"
MECHANISM: Final = "DIGEST-MD5"
_PROTOCOL, _SERVER_ID = "", REALM
_DIGEST_URI = f"{_PROTOCOL}/{_SERVER_ID}"
_State = pb.RpcSaslProto.SaslState


@dataclass(frozen=True, slots=True)
class Credential:
    """Who holds a token, and its password."""

    user: str
    password: bytes


LookUp: TypeAlias = Callable[[bytes], Credential]
"""Identifier to credential. UnauthenticatedError for a token that is not good (any more)."""


class _Phase(Enum):
    NEW = 0
    NEGOTIATED = 1
    CHALLENGED = 2
    DONE = 3


class ServerLogin:
    """One connection's login. `user` is None until it is complete."""

    def __init__(self, look_up: LookUp, nonce: str) -> None:
        self._look_up = look_up
        self._nonce = nonce
        self._phase = _Phase.NEW
        self.user: str | None = None

    def answer(self, message: bytes) -> bytes:
        """UnauthenticatedError when the login failed, RemoteProtocolError for nonsense."""
        request = _decode(message)
        if request.state == _State.NEGOTIATE and self._phase is _Phase.NEW:
            self._phase = _Phase.NEGOTIATED
            return _encode(_State.NEGOTIATE, auth=self._offer())
        if request.state == _State.INITIATE and self._phase is _Phase.NEGOTIATED:
            self._check_choice(request)
            if not request.token:
                self._phase = _Phase.CHALLENGED
                return _encode(_State.CHALLENGE, token=encode_challenge(self._nonce))
            return self._finish(request.token)
        if request.state == _State.RESPONSE and self._phase is _Phase.CHALLENGED:
            return self._finish(request.token)
        raise RemoteProtocolError(f"SASL state {request.state} out of turn")

    def _offer(self) -> pb.RpcSaslProto.SaslAuth:
        challenge = encode_challenge(self._nonce)
        return _auth(METHOD, MECHANISM, _PROTOCOL, _SERVER_ID, challenge)

    def _check_choice(self, request: pb.RpcSaslProto) -> None:
        chosen = [(one.method, one.mechanism) for one in request.auths]
        if chosen != [(METHOD, MECHANISM)]:
            raise UnauthenticatedError(f"this server takes {METHOD} by {MECHANISM} alone")

    def _finish(self, response: bytes) -> bytes:
        given = parse_directives(response)
        user = given.get("username", "")
        try:
            if len(user) > TOKEN_BYTES_MAX:
                raise UnauthenticatedError("the token's identifier is too long")
            identifier = base64.b64decode(user, validate=True)
        except binascii.Error:
            raise UnauthenticatedError("the user name is not a token") from None
        credential = self._look_up(identifier)
        secret = Secret(user, _text(credential.password))
        final = check_response(given, secret, nonce=self._nonce, digest_uri=_DIGEST_URI)
        self._phase = _Phase.DONE
        self.user = credential.user
        return _encode(_State.SUCCESS, token=final)


class ClientLogin:
    """A client's side; `done` once the server has proved that it knows the token too."""

    def __init__(self, token: Token, cnonce: str) -> None:
        self._secret = Secret(_text(token.identifier), _text(token.password))
        self._cnonce = cnonce
        self._phase = _Phase.NEW
        self._digest_uri = ""
        self._expected = b""

    @property
    def done(self) -> bool:
        return self._phase is _Phase.DONE

    def start(self) -> bytes:
        return _encode(_State.NEGOTIATE)

    def answer(self, message: bytes) -> bytes | None:
        """What to send next; None when the login is complete."""
        reply = _decode(message)
        if reply.state == _State.NEGOTIATE and self._phase is _Phase.NEW:
            return self._choose(reply)
        if reply.state == _State.CHALLENGE and self._phase is _Phase.NEGOTIATED:
            self._phase = _Phase.CHALLENGED
            return _encode(_State.RESPONSE, token=self._respond(reply.token))
        if reply.state == _State.SUCCESS and self._phase is _Phase.CHALLENGED:
            if not hmac.compare_digest(reply.token, self._expected):
                raise UnauthenticatedError("the server does not know this token")
            self._phase = _Phase.DONE
            return None
        raise RemoteProtocolError(f"SASL state {reply.state} out of turn")

    def _choose(self, reply: pb.RpcSaslProto) -> bytes:
        offers = [one for one in reply.auths if (one.method, one.mechanism) == (METHOD, MECHANISM)]
        if not offers:
            offered = sorted({f"{one.method} by {one.mechanism}" for one in reply.auths})
            raise UnauthenticatedError(f"the server takes no tokens, only {offered}")
        offer = offers[0]
        self._digest_uri = f"{offer.protocol}/{offer.serverId}"
        chosen = _auth(offer.method, offer.mechanism, offer.protocol, offer.serverId)
        if not offer.challenge:
            self._phase = _Phase.NEGOTIATED
            return _encode(_State.INITIATE, auth=chosen)
        self._phase = _Phase.CHALLENGED
        return _encode(_State.INITIATE, auth=chosen, token=self._respond(offer.challenge))

    def _respond(self, challenge: bytes) -> bytes:
        answer, self._expected = respond(
            challenge, self._secret, digest_uri=self._digest_uri, cnonce=self._cnonce
        )
        return answer


def _auth(
    method: str, mechanism: str, protocol: str, server_id: str, challenge: bytes | None = None
) -> pb.RpcSaslProto.SaslAuth:
    return pb.RpcSaslProto.SaslAuth(
        method=method,
        mechanism=mechanism,
        protocol=protocol,
        serverId=server_id,
        challenge=challenge,
    )


def _encode(
    state: pb.RpcSaslProto.SaslState,
    *,
    token: bytes | None = None,
    auth: pb.RpcSaslProto.SaslAuth | None = None,
) -> bytes:
    message = pb.RpcSaslProto(state=state, token=token, auths=[auth] if auth else [])
    return message.SerializeToString()


def _decode(data: bytes) -> pb.RpcSaslProto:
    message = pb.RpcSaslProto()
    try:
        message.ParseFromString(data)
        for one in message.auths:  # texts are decoded when they are read, not when they are parsed
            _ = one.method, one.mechanism, one.protocol, one.serverId
    except (protobuf.DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"not a SASL message: {error}") from error
    return message


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
