"""SASL DIGEST-MD5 (RFC 2831) as Hadoop's token login uses it: authentication alone, no layers.

    challenge  realm="default",nonce="...",qop="auth",charset=utf-8,algorithm=md5-sess
    response   username="...",realm="default",nonce="...",nc=00000001,cnonce="...",
               digest-uri="/default",response=<32 hex digits>,qop=auth,charset=utf-8
    final      rspauth=<32 hex digits>

MD5 is the protocol's choice. It guards a random 256-bit secret against somebody who listens, and
proves both sides to each other; it hides nothing of what follows.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import RemoteProtocolError, UnauthenticatedError

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
