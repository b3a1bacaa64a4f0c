"""The login of a link: both sides prove that they hold the cluster's secret, and tell who they are.

    opener            listener        head
      HELLO     ->                    u16 version, 32 bytes of chance, name
                <-    CHALLENGE       u16 version, 32 bytes of chance, name
      PROOF     ->                    HMAC-SHA256(secret, "opener" + what both said)
                <-    PROOF           HMAC-SHA256(secret, "listener" + what both said)

Names are UTF-8 and take what is left of the head. "What both said" is the head of HELLO with its
length in front (u32) and the head of CHALLENGE. Chance of either side makes a proof worthless a
second time, and the two words keep one side from sending the other's proof back. The opener proves
itself first: whoever merely connects gets nothing that was made with the secret. Proofs are
compared in constant time.

A version that is not ours ends the login with the two numbers in the error. A peer in the middle
could pass a login on and speak afterwards: where the network is not trusted the link runs in TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from headrace.errors import RemoteProtocolError, UnauthenticatedError

VERSION = 1
CHANCE_BYTES = 32
NAME_BYTES_MAX = 255
LOGIN_FRAME_BYTES_MAX = 1024
"""Of L, before the login is over."""

_HELLO = struct.Struct(f"<H{CHANCE_BYTES}s")
_LENGTH = struct.Struct("<I")
_OPENER = b"headrace peer opener\0"
_LISTENER = b"headrace peer listener\0"


def encode_hello(name: str, chance: bytes) -> bytes:
    encoded = name.encode()
    assert len(chance) == CHANCE_BYTES
    assert 0 < len(encoded) <= NAME_BYTES_MAX, "a name of a bad length"
    return _HELLO.pack(VERSION, chance) + encoded


def decode_hello(head: bytes) -> str:
    """The name of the peer. RemoteProtocolError when it speaks another version."""
    if len(head) < _HELLO.size:
        raise RemoteProtocolError("half a greeting", bytes=len(head))
    version, _ = _HELLO.unpack_from(head)
    if version != VERSION:
        raise RemoteProtocolError("link of another version", version=version, ours=VERSION)
    name = head[_HELLO.size :]
    if not 0 < len(name) <= NAME_BYTES_MAX:
        raise RemoteProtocolError("a peer's name of a bad length", bytes=len(name))
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("a peer's name is not UTF-8") from error


class Login:
    """One side's view. `hello` is what this side said; `is_opener` which side it is."""

    def __init__(self, secret: bytes, hello: bytes, *, is_opener: bool) -> None:
        self._secret = secret
        self.hello = hello
        self._is_opener = is_opener
        self._said = b""
        self.peer_name = ""

    def on_hello(self, head: bytes) -> None:
        """The other side's HELLO or CHALLENGE."""
        self.peer_name = decode_hello(head)
        first, second = (self.hello, head) if self._is_opener else (head, self.hello)
        self._said = _LENGTH.pack(len(first)) + first + second

    @property
    def proof(self) -> bytes:
        assert self._said, "the other side has not said hello"
        return self._mac(_OPENER if self._is_opener else _LISTENER)

    def check(self, proof: bytes) -> None:
        """UnauthenticatedError when the other side does not hold the secret."""
        assert self._said, "the other side has not said hello"
        if not hmac.compare_digest(proof, self._mac(_LISTENER if self._is_opener else _OPENER)):
            raise UnauthenticatedError("a peer does not hold this cluster's secret")

    def _mac(self, side: bytes) -> bytes:
        return hmac.new(self._secret, side + self._said, hashlib.sha256).digest()
