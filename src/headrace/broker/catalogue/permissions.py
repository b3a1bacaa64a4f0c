"""Which rights allow which action: any one of those listed suffices. Pure.

Who a connection speaks for when that is no user of the catalogue.

The controller is the cluster itself: it proves that by the cluster's secret, may do everything, and
nothing that is done to a user takes that away. A container holds a grant (`net/credentials`) for
the topics of its application. Neither is listed among users, has a password or may have tokens.
Their uids lie above all that the catalogue ever gives out, and stay the same over restarts:
publishers belong to uids.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from headrace.broker.catalogue.resources import (
    ROOT_PERMISSIONS,
    Permissions,
    StreamGrant,
    User,
    UserStatus,
)
from headrace.broker.catalogue.resources import GlobalRight as G
from headrace.broker.catalogue.resources import StreamRight as S
from headrace.broker.catalogue.resources import TopicRight as T
from headrace.net.credentials import Grant
from headrace.wire.iggy.commands import Permission


@dataclass(frozen=True, slots=True)
class Rule:
    everywhere: G
    stream: int = 0
    topic: int = 0


RULES: dict[Permission, Rule] = {
    Permission.READ_SERVERS: Rule(G.MANAGE_SERVERS | G.READ_SERVERS),
    Permission.READ_USERS: Rule(G.MANAGE_USERS | G.READ_USERS),
    Permission.MANAGE_USERS: Rule(G.MANAGE_USERS),
    Permission.CREATE_STREAM: Rule(G.MANAGE_STREAMS),
    Permission.LIST_STREAMS: Rule(G.MANAGE_STREAMS | G.READ_STREAMS),
    Permission.GET_STREAM: Rule(G.MANAGE_STREAMS | G.READ_STREAMS, S.MANAGE_STREAM | S.READ_STREAM),
    Permission.MANAGE_STREAM: Rule(G.MANAGE_STREAMS, S.MANAGE_STREAM),
    Permission.READ_TOPIC: Rule(
        G.READ_STREAMS | G.MANAGE_STREAMS | G.MANAGE_TOPICS | G.READ_TOPICS,
        S.MANAGE_TOPICS | S.READ_TOPICS,
        T.MANAGE_TOPIC | T.READ_TOPIC,
    ),
    Permission.CREATE_TOPIC: Rule(G.MANAGE_STREAMS | G.MANAGE_TOPICS, S.MANAGE_TOPICS),
    Permission.MANAGE_TOPIC: Rule(
        G.MANAGE_STREAMS | G.MANAGE_TOPICS, S.MANAGE_TOPICS, T.MANAGE_TOPIC
    ),
    Permission.POLL: Rule(
        G.POLL_MESSAGES,
        S.READ_STREAM | S.MANAGE_TOPICS | S.READ_TOPICS | S.POLL_MESSAGES,
        T.POLL_MESSAGES | T.READ_TOPIC | T.MANAGE_TOPIC,
    ),
    Permission.SEND: Rule(
        G.SEND_MESSAGES,
        S.MANAGE_STREAM | S.MANAGE_TOPICS | S.SEND_MESSAGES,
        T.SEND_MESSAGES | T.MANAGE_TOPIC,
    ),
}

_NO_GRANT = StreamGrant(rights=0)
_EVERYWHERE = {action: int(rule.everywhere) for action, rule in RULES.items()}
"""Plain numbers: an enum's `&` takes longer than the rest of the question."""


def allowed_everywhere(permissions: Permissions | None, action: Permission) -> bool:
    """Whether `action` is allowed on whatever there is."""
    return permissions is not None and permissions.rights & _EVERYWHERE[action] != 0


def may_somewhere(permissions: Permissions | None, action: Permission) -> bool:
    """Whether there is anything, now, that `action` is allowed on."""
    if permissions is None or allowed_everywhere(permissions, action):
        return permissions is not None
    rule = RULES[action]
    return any(
        grant.rights & rule.stream or any(bits & rule.topic for bits in grant.topics.values())
        for grant in permissions.streams.values()
    )


def allowed(
    permissions: Permissions | None,
    action: Permission,
    *,
    stream_uid: int = -1,
    topic_uid: int = -1,
) -> bool:
    """Whether the holder of `permissions` may do `action` to that stream or topic."""
    if permissions is None:
        return False
    if allowed_everywhere(permissions, action):
        return True
    rule = RULES[action]
    grant = permissions.streams.get(stream_uid, _NO_GRANT)
    return bool(grant.rights & rule.stream or grant.topics.get(topic_uid, 0) & rule.topic)


OUTSIDE_UID = 1 << 62
"""Uids from here on are nobody's in the catalogue."""
OUTSIDE_ID = (1 << 32) - 2
"""What the wire shows of such a user: no slot of the catalogue."""
_HOLDER_BITS = 61


def _user(uid: int, name: str, *, everything: bool = False) -> User:
    return User(
        uid=uid,
        id=OUTSIDE_ID,
        name=name,
        created_at=0,
        status=UserStatus.ACTIVE,
        password_hash="",
        permissions=ROOT_PERMISSIONS if everything else None,
    )


SERVICE = _user(OUTSIDE_UID, "controller", everything=True)


def holder_of(grant: Grant) -> User:
    """The same for every grant of one holder."""
    digest = hashlib.blake2b(grant.holder.encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") & ((1 << _HOLDER_BITS) - 1)
    return _user(OUTSIDE_UID + 1 + number, grant.holder)
