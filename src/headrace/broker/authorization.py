"""Who may do what: the permission column of the command table against a session's user."""

from __future__ import annotations

from headrace.broker.core import Broker
from headrace.broker.permissions import allowed, allowed_everywhere
from headrace.broker.resources import User
from headrace.broker.sessions import Session
from headrace.errors import UnauthenticatedError, UnauthorizedError
from headrace.wire.iggy.commands import GET_USER, AnyCommand, Permission
from headrace.wire.iggy.messages.extensions import ReadTicket
from headrace.wire.iggy.primitives import Identifier


def current_user(broker: Broker, session: Session) -> User:
    user = None if session.user_uid is None else broker.catalogue.user_by_uid(session.user_uid)
    if user is None or not user.active:
        raise UnauthenticatedError("log in first")
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
        for stream, topic in request.topics:
            require(broker, session, command.permission, stream, topic)
        return
    require(
        broker,
        session,
        command.permission,
        getattr(request, "stream", None),
        getattr(request, "topic", None),
    )
