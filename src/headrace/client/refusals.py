"""What a server refused, as a sentence.

On the wire a refusal is a number. Here it meets the request that it answers, so that its text can
name the stream, the topic or the user by the name that the caller gave.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.wire.iggy.batch import PAYLOAD_BYTES_MAX
from headrace.wire.iggy.errors import IggyError, Status, error_of, name_of
from headrace.wire.iggy.primitives import Consumer, ConsumerKind, Partitioning, PartitioningKind
from headrace.wire.iggy.user_headers import USER_HEADERS_BYTES_MAX

_A_TOPIC = "the topic"


class Asked:
    """A request by the words that its refusal needs."""

    def __init__(self, command: str, request: object) -> None:
        self.command = command
        self._request = request

    @property
    def words(self) -> str:
        """The command as one would say it."""
        return self.command.lower().replace("_", " ")

    def named(self, field: str) -> str:
        """A field that holds a name or a number; empty when the request has none."""
        value = getattr(self._request, field, None)
        if value is None:
            return ""
        return repr(value) if isinstance(value, str) else str(value)

    @property
    def topic(self) -> str:
        stream = getattr(self._request, "stream", None)
        topic = getattr(self._request, "topic", None)
        if topic is None:
            topic = getattr(self._request, "name", None)
        return f"{stream}/{topic}" if stream is not None and topic is not None else _A_TOPIC

    @property
    def new_topic(self) -> str:
        """The one to be made, or the name that one should get."""
        stream, name = (getattr(self._request, each, "") for each in ("stream", "name"))
        return f"{stream}/{name}"

    @property
    def partition(self) -> str:
        where = getattr(self._request, "partitioning", None)
        if isinstance(where, Partitioning) and where.kind is PartitioningKind.PARTITION:
            return f"partition {where.partition}"
        partition = getattr(self._request, "partition", None)
        return "such partition" if partition is None else f"partition {partition}"

    @property
    def consumer(self) -> str:
        found = getattr(self._request, "consumer", None)
        if not isinstance(found, Consumer):
            return "the consumer"
        return f"{'group' if found.kind is ConsumerKind.GROUP else 'consumer'} {found.id}"

    @property
    def group(self) -> str:
        found = getattr(self._request, "consumer", None)
        if isinstance(found, Consumer):
            return repr(found.id)
        return self.named("group") or self.named("name")

    @property
    def user(self) -> str:
        return self.named("user") or self.named("username")


def refusal(status: int, command: str, request: object) -> IggyError:
    """The error to raise: its text is whole; `code`, `name` and `command` are for programs."""
    asked = Asked(command, request)
    tell = _TEXTS.get(Status(status)) if status in _KNOWN else None
    if tell is None:
        reason = name_of(status).replace("_", " ")
        text = f"the server refused to {asked.words}: {reason} (error {status})"
    else:
        text = tell(asked)
    error = error_of(status, text)
    error.command = command
    return error


def _not_found(asked: Asked) -> str:
    if "LOGIN" in asked.command:
        return "the server does not know this token; it was deleted, or is of another server"
    if "TOKEN" in asked.command:
        return f"there is no token {asked.named('name')}"
    if asked.user:
        return f"there is no user {asked.user}"
    return f"the server found nothing to {asked.words}"


def _no_stream(asked: Asked) -> str:
    return f"there is no stream {asked.named('stream')}"


def _no_topic(asked: Asked) -> str:
    return (
        "there is no such topic" if asked.topic is _A_TOPIC else f"there is no topic {asked.topic}"
    )


def _no_group(asked: Asked) -> str:
    return f"{asked.topic} has no group {asked.group}"


def _not_allowed(asked: Asked) -> str:
    where = "" if asked.topic is _A_TOPIC else f" ({asked.topic})"
    if not where and asked.named("stream"):
        where = f" ({asked.named('stream')})"
    return f"this user may not {asked.words}{where}"


def _no_offset(asked: Asked) -> str:
    if asked.command == "STORE_CONSUMER_OFFSET":
        return (
            f"{asked.partition} of {asked.topic} has no message {asked.named('offset')} yet, so it "
            "cannot be stored as read"
        )
    return f"{asked.topic} has no such offset in {asked.partition}"


def _too_few_partitions(asked: Asked) -> str:
    return f"{asked.topic} has fewer than {asked.named('partitions_count')} partitions"


_TEXTS: dict[Status, Callable[[Asked], str]] = {
    Status.RESOURCE_NOT_FOUND: _not_found,
    Status.STREAM_ID_NOT_FOUND: _no_stream,
    Status.STREAM_NAME_NOT_FOUND: _no_stream,
    Status.TOPIC_ID_NOT_FOUND: _no_topic,
    Status.TOPIC_NAME_NOT_FOUND: _no_topic,
    Status.CONSUMER_GROUP_ID_NOT_FOUND: _no_group,
    Status.CONSUMER_GROUP_NAME_NOT_FOUND: _no_group,
    Status.CONSUMER_GROUP_MEMBER_NOT_FOUND: (
        lambda a: f"this client is no member of group {a.group} of {a.topic}"
    ),
    Status.CONSUMER_GROUP_PARTITION_NOT_OWNED: (
        lambda a: f"{a.partition} of {a.topic} belongs to another member of the group"
    ),
    Status.PARTITION_NOT_FOUND: lambda a: f"{a.topic} has no {a.partition}",
    Status.NO_PARTITIONS: lambda a: f"{a.topic} has no partitions, so nothing can be sent to it",
    Status.CONSUMER_OFFSET_NOT_FOUND: (
        lambda a: f"{a.consumer} has stored no offset in {a.partition} of {a.topic}"
    ),
    Status.NOT_RESOLVED_CONSUMER: lambda a: f"{a.consumer} has no partition of {a.topic}",
    Status.STREAM_NAME_ALREADY_EXISTS: lambda a: f"there is a stream {a.named('name')} already",
    Status.TOPIC_NAME_ALREADY_EXISTS: (lambda a: f"there is a topic {a.new_topic} already"),
    Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS: (
        lambda a: f"{a.topic} has a group {a.named('name')} already"
    ),
    Status.USER_ALREADY_EXISTS: lambda a: f"there is a user {a.named('username')} already",
    Status.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS: (
        lambda a: f"you have a token {a.named('name')} already"
    ),
    Status.INVALID_CREDENTIALS: (
        lambda a: (
            "the current password is wrong"
            if a.command == "CHANGE_PASSWORD"
            else f"unknown user {a.user}, or wrong password"
        )
    ),
    Status.USER_INACTIVE: lambda a: f"user {a.user} is disabled",
    Status.INVALID_PERSONAL_ACCESS_TOKEN: lambda _: "this is not a token",
    Status.PERSONAL_ACCESS_TOKEN_EXPIRED: lambda _: "the token has expired",
    Status.UNAUTHENTICATED: lambda _: "the server wants a login first",
    Status.UNAUTHORIZED: _not_allowed,
    Status.CANNOT_DELETE_USER: lambda a: f"user {a.user} is root, which cannot be deleted",
    Status.CANNOT_CHANGE_PERMISSIONS: lambda a: f"user {a.user} is root, which may do everything",
    Status.INVALID_STREAM_NAME: lambda _: "the name of a stream has 1 to 255 bytes",
    Status.INVALID_TOPIC_NAME: lambda _: "the name of a topic has 1 to 255 bytes",
    Status.INVALID_CONSUMER_GROUP_NAME: lambda _: "the name of a group has 1 to 255 bytes",
    Status.INVALID_USERNAME: lambda _: "the name of a user has 3 to 50 bytes",
    Status.INVALID_PASSWORD: lambda _: "a password has 3 to 100 bytes",
    Status.INVALID_PERSONAL_ACCESS_TOKEN_NAME: lambda _: "the name of a token has 3 to 30 bytes",
    Status.TOO_MANY_PARTITIONS: lambda _: "1 to 1000 partitions can be made at once",
    Status.INVALID_PARTITIONS_COUNT: _too_few_partitions,
    Status.INVALID_REPLICATION_FACTOR: (
        lambda a: (
            f"{a.named('replication_factor')} replicas are more than there are data nodes, "
            "or than three"
        )
    ),
    Status.INVALID_OFFSET: _no_offset,
    Status.TOO_BIG_MESSAGE_PAYLOAD: (
        lambda _: f"a message is too large: its payload may have {PAYLOAD_BYTES_MAX:,} bytes"
    ),
    Status.TOO_BIG_USER_HEADERS: (
        lambda _: (
            f"headers are too large: those of a message, with its key, may have "
            f"{USER_HEADERS_BYTES_MAX:,} bytes"
        )
    ),
    Status.SHARD_NOT_FOUND: lambda a: f"there is no shard {a.named('shard')}",
    Status.FIRST_SHARD_STAYS: (
        lambda a: (
            f"shard {a.named('shard')} stays with the worker that coordinates; only others move"
        )
    ),
    Status.WORKER_NOT_FOUND: (
        lambda a: f"no worker that lives has the name or number {a.named('worker')}"
    ),
    Status.TASK_TIMEOUT: lambda a: f"the server could not {a.words} in time",
    Status.IO_ERROR: lambda a: f"the server's disk failed it: it could not {a.words}",
    Status.DISCONNECTED: lambda _: "the server has ended this session",
    Status.STALE_CLIENT: lambda _: "the server has ended this session, which was silent too long",
}
_KNOWN = frozenset(int(status) for status in Status)
