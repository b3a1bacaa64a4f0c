"""The umbilical's calls, bound to a service that knows dataclasses and no transport.

Whoever logged in with a container's token speaks for that container alone.

Tokens by which launched containers log in to the controller.

A token's password is an HMAC of its identifier under a key that only the controller has, so that
nothing need be stored, and a controller that starts again knows the tokens of containers that
outlived it. A token is good while its container runs: `is_alive` says which do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.errors import RemoteProtocolError, UnauthenticatedError, UnauthorizedError
from headrace.net.hadoop_rpc import Handler
from headrace.wire.umbilical import codec
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.sasl import Credential
from headrace.wire.umbilical.tokens import (
    Token,
    TokenIdentifier,
    decode_identifier,
    encode_identifier,
)


class UmbilicalService(Protocol):
    async def get_init_context(
        self, request: m.GetInitContextRequest
    ) -> m.GetInitContextResponse: ...

    async def log(self, request: m.LogRequest) -> m.LogResponse: ...

    async def report_error(self, request: m.ReportErrorRequest) -> m.ReportErrorResponse: ...

    async def process_heartbeat(
        self, request: m.ContainerHeartbeat
    ) -> m.ContainerHeartbeatResponse: ...


def build_handlers(service: UmbilicalService) -> Mapping[str, Handler]:
    """One handler per row of the call table; a row without one is an error at start."""
    methods: dict[str, Callable[[Any], Awaitable[m.Message]]] = {
        codec.GET_INIT_CONTEXT.name: service.get_init_context,
        codec.LOG.name: service.log,
        codec.REPORT_ERROR.name: service.report_error,
        codec.PROCESS_HEARTBEAT.name: service.process_heartbeat,
    }
    if methods.keys() != codec.TABLE.keys():
        raise RuntimeError(f"calls out of step: {sorted(methods.keys() ^ codec.TABLE.keys())}")
    return {name: _bind(codec.TABLE[name], method) for name, method in methods.items()}


def _bind(call: codec.Call[Any, Any], method: Callable[[Any], Awaitable[m.Message]]) -> Handler:
    async def handle(body: bytes, caller: str) -> bytes:
        request = codec.decode(call.request, body)
        container = _container_of(request)
        if caller and container != caller:
            raise UnauthorizedError(
                "a container speaks for itself alone", caller=caller, container=container[:100]
            )
        return codec.encode(await method(request))

    return handle


def _container_of(request: m.Message) -> str:
    if isinstance(request, m.ContainerHeartbeat):
        return request.stats.id
    assert isinstance(request, m.GetInitContextRequest | m.LogRequest | m.ReportErrorRequest)
    return request.container_id


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
