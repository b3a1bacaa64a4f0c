"""Who logged in and who changed what: one log line each, from the logger `headrace.audit`.

A line says who asked (user, address), for what (command and its target) and how it ended. It holds
no password, token or payload: only the fields named here are taken from a request. Reading and
writing messages is not administration and leaves no line; nor does a command before the login,
which anyone could send as fast as the network goes.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.core import Broker
from headrace.broker.sessions.authorization import SERVICE
from headrace.broker.sessions.sessions import Login, Session
from headrace.observability.logging import get_logger
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.messages.users import LoginRegister, LoginUser, Permissions

log = get_logger("headrace.audit")

_ADMINISTRATION = (
    Permission.MANAGE_SERVERS,
    Permission.MANAGE_USERS,
    Permission.CREATE_STREAM,
    Permission.MANAGE_STREAM,
    Permission.CREATE_TOPIC,
    Permission.MANAGE_TOPIC,
)
_LOGINS = (
    c.LOGIN_USER,
    c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN,
    c.LOGIN_REGISTER,
    c.LOGIN_REGISTER_WITH_TOKEN,
)
_OTHERS = (
    *_LOGINS,
    c.LOGOUT_USER,
    c.CHANGE_PASSWORD,
    c.CREATE_PERSONAL_ACCESS_TOKEN,
    c.DELETE_PERSONAL_ACCESS_TOKEN,
    c.CREATE_CONSUMER_GROUP,
    c.DELETE_CONSUMER_GROUP,
    c.GET_SNAPSHOT_FILE,
)
AUDITED = frozenset(
    [row.code for row in c.SERVED.values() if row.permission in _ADMINISTRATION]
    + [row.code for row in _OTHERS]
)

_TARGET = ("stream", "topic", "partition", "group", "user", "name", "username", "status",
           "partitions_count", "segments_count", "message_expiry_us", "max_size_bytes",
           "types", "shard", "worker")  # fmt: skip
_TEXT_MAX = 255
_STREAMS_MAX = 20


class AuditEntry:
    """One line of the audit log, made before the command runs: that may end the session or user."""

    def __init__(
        self, broker: Broker, session: Session, command: c.AnyCommand, request: object
    ) -> None:
        self._broker = broker
        self._session = session
        self._is_login = command in _LOGINS
        self._fields: dict[str, Any] = {
            "command": command.name,
            "address": session.address,
            **({"behalf": session.behalf} if session.behalf else {}),
            **_who(broker, session),
            **_target(request),
        }
        if isinstance(request, LoginUser | LoginRegister):
            self._fields["by"] = _short(request.username)
            del self._fields["username"]

    def done(self) -> None:
        if self._is_login:
            self._fields |= _who(self._broker, self._session)
            self._fields["login"] = self._session.login.value
        log.info("audit", outcome="ok", **self._fields)

    def refused(self, status: int) -> None:
        if status == Status.UNAUTHENTICATED and not self._is_login:
            return
        log.warning("audit", outcome="refused", error=status, **self._fields)


def _who(broker: Broker, session: Session) -> dict[str, Any]:
    """The user's name; `kind` tells the controller and containers from users of these names."""
    if session.login is Login.SERVICE and session.user_uid == SERVICE.uid:
        return {"by": SERVICE.name, "kind": Login.SERVICE.value}
    if session.grant is not None:
        return {"by": _short(session.grant.holder), "kind": Login.GRANT.value}
    user = None if session.user_uid is None else broker.catalogue.user_by_uid(session.user_uid)
    return {"by": "" if user is None else user.name}


def _target(request: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _TARGET:
        value = getattr(request, name, None)
        if value is not None:
            found[name] = _short(value)
    permissions = getattr(request, "permissions", None)
    if isinstance(permissions, Permissions):
        found["granted"] = _granted(permissions)
    return found


def _short(value: object) -> object:
    return value[:_TEXT_MAX] if isinstance(value, str) else value


def _granted(permissions: Permissions) -> dict[str, list[str]]:
    """Flags that are set, everywhere and per stream and topic id."""
    found = {"everywhere": _flags(permissions.everywhere)}
    for stream in permissions.streams[:_STREAMS_MAX]:
        found[f"stream {stream.stream_id}"] = _flags(stream)
        for topic in stream.topics[:_STREAMS_MAX]:
            found[f"stream {stream.stream_id} topic {topic.topic_id}"] = _flags(topic)
    return found


def _flags(body: object) -> list[str]:
    return [name for name in body.__slots__ if getattr(body, name) is True]  # type: ignore[attr-defined]  # dataclasses with slots
