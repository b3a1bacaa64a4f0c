"""What containers log in with: tokens for the umbilical, grants for the broker.

A grant says what the containers of an application may do at the broker, and for how long. It
(`net/credentials`) names what the plan says: the topics that the application reads and writes, its
dead letters, the edges between its containers, and OTHER_TOPICS, which its functions use by
themselves. A script is run as it is, and nobody knows beforehand what it uses: it may read and
write every topic, but administer nothing.

The grant is in a file of mode 0600 that HEADRACE_TOKEN_FILE names. It lasts GRANT_MS and is written
anew when a quarter of that is over, or when the plan has changed; a controller that comes back goes
on with it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from headrace.errors import RemoteProtocolError, UnauthenticatedError
from headrace.net.credentials import EVERYTHING, SCOPE_BYTES_MAX, Scope, exactly, make_grant
from headrace.pipeline.plan.logical import OTHER_TOPICS, LogicalPlan, letter_topics, topic_inputs
from headrace.pipeline.plan.scripts import RUN_SCRIPT
from headrace.wire.umbilical.sasl import Credential
from headrace.wire.umbilical.tokens import (
    Token,
    TokenIdentifier,
    decode_identifier,
    encode_identifier,
)

GRANT_MS = 12 * 3_600_000
OUTPUT_TOPIC = "OUTPUT_TOPIC"


def grant_path(application_path: str, container_id: str) -> str:
    return f"{application_path}/tokens/{container_id}.broker"


def application_scope(plan: LogicalPlan, expires_ms: int) -> Scope:
    name, holder = plan.name, f"pipeline {plan.name}"
    publishers = (f"pipeline/{exactly(name)}/*", "spark/*")
    if any(operator.function == RUN_SCRIPT for operator in plan.operators):
        return Scope(expires_ms, holder, (EVERYTHING,), (EVERYTHING,), publishers)
    source = plan.to_json()
    own = f"{exactly(f'_pipeline.{name}')}/*"
    other = [str(each) for each in source["attributes"].get(OTHER_TOPICS, ())]
    letters = [topic for topics in letter_topics(source).values() for topic in topics]
    outputs = [
        str(operator.attributes[OUTPUT_TOPIC])
        for operator in plan.operators
        if operator.attributes.get(OUTPUT_TOPIC)
    ]
    # What is read may be a pattern, as the connector takes it; what is written has one name.
    reads = [own, *other, *topic_inputs(source).values()]
    writes = [own, *other, *map(exactly, (*outputs, *letters))]
    scope = Scope(expires_ms, holder, _unique(reads), _unique(writes), publishers)
    if len(msgspec.msgpack.encode(scope)) <= SCOPE_BYTES_MAX:
        return scope
    # A plan of hundreds of topics: the streams that they are in.
    scope = Scope(expires_ms, holder, _streams(reads), _streams(writes), publishers)
    if len(msgspec.msgpack.encode(scope)) <= SCOPE_BYTES_MAX:
        return scope
    return Scope(expires_ms, holder, (EVERYTHING,), (EVERYTHING,), publishers)


@dataclass(frozen=True, slots=True)
class _Held:
    due_ms: int
    plan: LogicalPlan
    text: str = field(repr=False)


@dataclass(slots=True)
class Grants:
    """Which containers hold which grant; empty after a restart, so that all are written anew."""

    secret: bytes = field(repr=False)
    _held: dict[str, _Held] = field(default_factory=dict)

    def renewed(self, container_id: str, plan: LogicalPlan, now_ms: int) -> str | None:
        """The grant to hand out now; None while the one that is held will do."""
        held = self._held.get(container_id)
        if held is not None and now_ms < held.due_ms and held.plan is plan:
            return None
        text = make_grant(self.secret, application_scope(plan, now_ms + GRANT_MS))
        self._held[container_id] = _Held(now_ms + GRANT_MS // 4, plan, text)
        return text

    def held(self, container_id: str) -> str:
        """Empty for none."""
        held = self._held.get(container_id)
        return "" if held is None else held.text

    def end(self, container_id: str) -> None:
        self._held.pop(container_id, None)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _streams(patterns: Iterable[str]) -> tuple[str, ...]:
    return _unique(f"{pattern.partition('/')[0]}/*" for pattern in patterns)


_KEY_LABEL = b"umbilical tokens"


@dataclass(slots=True)
class ContainerTokens:
    """Tokens by which launched containers log in to the controller.

    A token's password is an HMAC of its identifier under a key that only the controller has, so
    that nothing need be stored, and a controller that starts again knows the tokens of containers
    that outlived it. A token is good while its container runs: `is_alive` says which do. `secret`
    is the cluster's; `now_ms` wall time, because tokens outlive a controller.
    """

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
