"""Who asks, and what they may do: the permission column of the command table against a session's
user, or against the grant that the session logged in with.

Two kinds of callers are no users of the catalogue. The controller is the cluster itself: it proves
that by the cluster's secret, may do everything, and nothing that is done to a user takes that away.
A container holds a grant (`net/credentials.py`) for the topics of its application. Neither is
listed among users, has a password or may have tokens. Their uids lie above all that the catalogue
ever gives out, and stay the same over restarts, because publishers belong to uids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.catalogue.resources import (
    OUTSIDE_ID,
    OUTSIDE_UID,
    ROOT_PERMISSIONS,
    Permissions,
    StreamGrant,
    User,
    UserStatus,
)
from headrace.broker.catalogue.resources import GlobalRight as G
from headrace.broker.catalogue.resources import StreamRight as S
from headrace.broker.catalogue.resources import TopicRight as T
from headrace.broker.core import Broker
from headrace.broker.sessions.sessions import Session
from headrace.errors import UnauthenticatedError, UnauthorizedError
from headrace.net.credentials import Grant
from headrace.wire.iggy.commands import (
    CREATE_STREAM,
    CREATE_TOPIC,
    GET_USER,
    AnyCommand,
    Permission,
)
from headrace.wire.iggy.messages.extensions import ReadTicket
from headrace.wire.iggy.primitives import Identifier

# -- rights


@dataclass(frozen=True, slots=True)
class Rule:
    """The rights that allow an action; any one of them suffices."""

    everywhere: G
    stream: int = 0
    topic: int = 0


RULES: dict[Permission, Rule] = {
    Permission.READ_SERVERS: Rule(G.MANAGE_SERVERS | G.READ_SERVERS),
    Permission.MANAGE_SERVERS: Rule(G.MANAGE_SERVERS),
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


# -- callers that are no users of the catalogue

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


# -- what a session may do


def is_logged_in(session: Session) -> bool:
    return session.user_uid is not None


def current_user(broker: Broker, session: Session) -> User:
    """Who asks. One without a place in the catalogue has no password or token."""
    user = None if session.user_uid is None else broker.catalogue.user_by_uid(session.user_uid)
    if user is None:
        return _outside(broker, session)
    if user.status != UserStatus.ACTIVE:
        raise UnauthenticatedError("log in first")
    return user


def _outside(broker: Broker, session: Session) -> User:
    if session.user_uid == SERVICE.uid:
        return SERVICE
    grant = session.grant
    if grant is None:
        raise UnauthenticatedError("log in first")
    if grant.expires_ms <= broker.runtime.clock.now_ms():
        raise UnauthenticatedError("the grant has expired", holder=grant.holder)
    return holder_of(grant)


def catalogue_user(broker: Broker, session: Session) -> User:
    """Who asks, if it is somebody with a password."""
    user = current_user(broker, session)
    if user.uid >= OUTSIDE_UID:
        raise UnauthorizedError("this is for users of the catalogue", user=user.name)
    return user


def require(
    broker: Broker,
    session: Session,
    action: Permission,
    stream: Identifier | None = None,
    topic: Identifier | None = None,
) -> None:
    """UnauthorizedError unless the user may. What does not exist is covered by global rights only,
    so that nobody learns which names are taken."""
    user = current_user(broker, session)
    if session.grant is not None:
        return _require_granted(broker, session.grant, action, stream, topic)
    stream_uid = topic_uid = -1
    if stream is not None:
        found = broker.catalogue.find_stream(stream)
        if found is not None:
            stream_uid = found.uid
            target = None if topic is None else broker.catalogue.find_topic(found.id, topic)
            topic_uid = -1 if target is None else target.uid
    if not allowed(user.permissions, action, stream_uid=stream_uid, topic_uid=topic_uid):
        raise UnauthorizedError(user=user.name, action=action.value)


def require_topic(broker: Broker, session: Session, action: Permission, topic_uid: int) -> None:
    """As `require`, of a topic by its uid. One that is gone is covered by global rights only."""
    topic = broker.catalogue.topic_by_uid(topic_uid)
    stream_uid = -1 if topic is None else topic.stream_uid
    user = current_user(broker, session)
    if session.grant is not None:
        stream = broker.catalogue.stream_by_uid(stream_uid)
        id_ = None if topic is None else topic.id
        return _require_granted(
            broker, session.grant, action, None if stream is None else stream.id, id_
        )
    if not allowed(user.permissions, action, stream_uid=stream_uid, topic_uid=topic_uid):
        raise UnauthorizedError(user=user.name, action=action.value)


def authorize(broker: Broker, session: Session, command: AnyCommand, request: object) -> None:
    user = current_user(broker, session)
    if command.permission is Permission.NONE:
        return
    if allowed_everywhere(user.permissions, command.permission):
        return  # nothing has to be looked up
    if command is GET_USER and broker.catalogue.find_user(request.user) is user:  # type: ignore[attr-defined]  # the row says GetUser
        return
    if isinstance(request, ReadTicket):
        for pair in request.topics:
            require(broker, session, command.permission, *pair)
        return
    stream: Identifier | None = getattr(request, "stream", None)
    topic: Identifier | None = getattr(request, "topic", None)
    if session.grant is not None and command in (CREATE_STREAM, CREATE_TOPIC):
        made: str = request.name  # type: ignore[attr-defined]  # the rows say which bodies they have
        stream, topic = (made, None) if command is CREATE_STREAM else (stream, made)
    require(broker, session, command.permission, stream, topic)


# -- grants name topics by their names, also those that are not there yet


def _require_granted(
    broker: Broker,
    grant: Grant,
    action: Permission,
    stream: Identifier | None,
    topic: Identifier | None,
) -> None:
    stream_name = _stream_name(broker, stream)
    if topic is None:
        granted = action in _OF_STREAMS and grant.knows_stream(stream_name)
    else:
        name = _topic_name(broker, stream, topic)
        granted = any(may(grant, stream_name, name) for may in _OF_TOPICS.get(action, ()))
    if not granted:
        raise UnauthorizedError(user=grant.holder, action=action.value)


_OF_STREAMS = (Permission.GET_STREAM, Permission.READ_TOPIC, Permission.CREATE_STREAM)
_OF_TOPICS: dict[Permission, tuple[Callable[[Grant, str, str], bool], ...]] = {
    Permission.READ_TOPIC: (Grant.may_read, Grant.may_write),
    Permission.POLL: (Grant.may_read,),
    Permission.SEND: (Grant.may_write,),
    Permission.CREATE_TOPIC: (Grant.may_write,),
}


def _stream_name(broker: Broker, stream: Identifier | None) -> str:
    found = None if stream is None else broker.catalogue.find_stream(stream)
    return found.name if found is not None else (stream if isinstance(stream, str) else "")


def _topic_name(broker: Broker, stream: Identifier | None, topic: Identifier) -> str:
    found = None if stream is None else broker.catalogue.find_topic(stream, topic)
    return found.name if found is not None else (topic if isinstance(topic, str) else "")
