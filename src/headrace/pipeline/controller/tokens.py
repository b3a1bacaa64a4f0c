"""Tokens by which launched containers log in to the controller.

A token's password is an HMAC of its identifier under a key that only the controller has, so that
nothing need be stored, and a controller that starts again knows the tokens of containers that
outlived it. A token is good while its container runs: `is_alive` says which do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import RemoteProtocolError, UnauthenticatedError
from headrace.wire.umbilical.sasl import Credential
from headrace.wire.umbilical.tokens import (
    Token,
    TokenIdentifier,
    decode_identifier,
    encode_identifier,
)

_KEY_LABEL = b"umbilical tokens"


@dataclass(slots=True)
class ContainerTokens:
    """`secret` is the cluster's; `now_ms` wall time, because tokens outlive a controller."""

    secret: bytes
    now_ms: Callable[[], int]
    is_alive: Callable[[str], bool]
    lifetime_ms: int
    _sequence: int = 0

    def issue(self, container_id: str, service: str) -> Token:
        self._sequence += 1
        issued_ms = self.now_ms()
        identifier = encode_identifier(
            TokenIdentifier(
                container_id, issued_ms, issued_ms + self.lifetime_ms, sequence=self._sequence
            )
        )
        return Token(identifier, self._password(identifier), service=service)

    def look_up(self, identifier: bytes) -> Credential:
        """UnauthenticatedError for a token that is not, or no more, good.

        Whether the client knows the password is checked after this; the texts here tell a stranger
        nothing that it did not write itself.
        """
        try:
            token = decode_identifier(identifier)
        except RemoteProtocolError as error:
            raise UnauthenticatedError(f"not a token of this controller: {error}") from error
        if self.now_ms() >= token.expires_ms:
            raise UnauthenticatedError("the token has expired", container=token.owner[:100])
        if not self.is_alive(token.owner):
            raise UnauthenticatedError(
                "the token was taken back: no such container runs", container=token.owner[:100]
            )
        return Credential(token.owner, self._password(identifier))

    def _password(self, identifier: bytes) -> bytes:
        key = hmac.digest(self.secret, _KEY_LABEL, hashlib.sha256)
        return hmac.digest(key, identifier, hashlib.sha256)
