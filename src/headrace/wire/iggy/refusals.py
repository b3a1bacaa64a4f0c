"""What a server of the protocol refuses, one class per reason, and the number of each on the wire.

A handler raises one of these classes, or an error of the taxonomy; `status_of` turns either into
the status of the reply, at the edge. There is one table, and beside it what servers of dialect A
answered otherwise: a client gets the number of the server that its SDK was written against, so its
error handling keeps working.
"""

from __future__ import annotations

from headrace import errors
from headrace.errors import (
    AlreadyExistsError,
    FencedError,
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    RequestError,
    StateError,
    TooLargeError,
    UnauthenticatedError,
)
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, IggyError, Status


class StreamNotFoundError(NotFoundError): ...


class TopicNotFoundError(NotFoundError): ...


class PartitionNotFoundError(NotFoundError): ...


class NoPartitionsError(NotFoundError): ...


class GroupNotFoundError(NotFoundError): ...


class MemberNotFoundError(NotFoundError):
    """The connection is not a member of the group it speaks for."""


class OffsetNotFoundError(NotFoundError):
    """No stored offset to delete."""


class ConsumerNotResolvedError(NotFoundError):
    """The request leaves open whose offset on which partition is meant."""


class StreamExistsError(AlreadyExistsError): ...


class TopicExistsError(AlreadyExistsError): ...


class GroupExistsError(AlreadyExistsError): ...


class StreamIdTakenError(AlreadyExistsError): ...


class TopicIdTakenError(AlreadyExistsError): ...


class GroupIdTakenError(AlreadyExistsError): ...


class UserExistsError(AlreadyExistsError): ...


class TokenExistsError(AlreadyExistsError): ...


class InvalidStreamNameError(InvalidArgumentError): ...


class InvalidTopicNameError(InvalidArgumentError): ...


class InvalidGroupNameError(InvalidArgumentError): ...


class InvalidUsernameError(InvalidArgumentError): ...


class InvalidPasswordError(InvalidArgumentError): ...


class InvalidUserStatusError(InvalidArgumentError): ...


class InvalidTokenNameError(InvalidArgumentError): ...


class InvalidTokenError(InvalidArgumentError): ...


class InvalidOffsetError(InvalidArgumentError):
    """An offset to store that no message has."""


class InvalidMessagesCountError(InvalidArgumentError):
    """A poll that asks for no messages."""


class InvalidClientIdError(InvalidArgumentError): ...


class InvalidSegmentsCountError(InvalidArgumentError): ...


class TooManyPartitionsError(InvalidArgumentError): ...


class InvalidPartitionsCountError(InvalidArgumentError):
    """More partitions to delete than there are."""


class InvalidReplicationError(InvalidArgumentError):
    """More replicas than the cluster can keep."""


class TooManyTokensError(InvalidArgumentError): ...


class TooManyUsersError(InvalidArgumentError): ...


class PayloadTooLargeError(TooLargeError): ...


class UserHeadersTooLargeError(TooLargeError): ...


class InvalidCredentialsError(UnauthenticatedError): ...


class UserInactiveError(UnauthenticatedError): ...


class TokenExpiredError(UnauthenticatedError): ...


class RootUserError(RequestError):
    """Root can not be deleted."""


class LastAdministratorError(RequestError):
    """Nobody with all rights would be left: give them to another active user first."""


class RootPermissionsError(RequestError):
    """Root's permissions can not change."""


class StaleSessionError(RequestError):
    """The session's user was deleted, or its login was revoked."""


class FeatureUnavailableError(RequestError): ...


class PublisherNotFoundError(NotFoundError): ...


class PublisherFencedError(FencedError):
    """A later run of the publisher took over; this one is over."""


class WindowOrderError(InvalidArgumentError):
    """The window is neither the next one nor one that was closed."""


class StagedDataGoneError(InvalidArgumentError):
    """The manifest names what is not staged (any more): stage it again."""


class TooManyPublishersError(RequestError): ...


class NotWindowTopicError(InvalidArgumentError):
    """The topic has no publishers set, or is to be published in another way than in windows."""


class PublisherTakenError(InvalidArgumentError):
    """The publisher belongs to another topic."""


class TooManyWindowsError(StateError):
    """Nobody purged the topic for long: publish again when somebody did."""


class ShardNotFoundError(NotFoundError): ...


class FirstShardError(InvalidArgumentError):
    """The first shard is led by whoever coordinates, and cannot be moved."""


class WorkerNotFoundError(NotFoundError):
    """No worker that lives has this name or number."""


class InvalidOptionError(InvalidArgumentError):
    """A known option with a value it can not have."""


class UnsupportedOptionError(InvalidArgumentError):
    """A known option that can not be set here."""


class PartitionNotOwnedError(RequestError):
    """The partition is another member's: ask again which are yours."""


class IncompatibleProtocolError(RequestError): ...


class InvalidSessionError(RequestError):
    """The connection has another session than its request says."""


class RequestAppliedError(RequestError):
    """The request was applied before, and what was answered then is not known any more."""


_STATUS: dict[type[HeadraceError], Status] = {
    StreamNotFoundError: Status.STREAM_ID_NOT_FOUND,
    TopicNotFoundError: Status.TOPIC_ID_NOT_FOUND,
    PartitionNotFoundError: Status.PARTITION_NOT_FOUND,
    NoPartitionsError: Status.NO_PARTITIONS,
    GroupNotFoundError: Status.CONSUMER_GROUP_ID_NOT_FOUND,
    MemberNotFoundError: Status.CONSUMER_GROUP_MEMBER_NOT_FOUND,
    OffsetNotFoundError: Status.CONSUMER_OFFSET_NOT_FOUND,
    ConsumerNotResolvedError: Status.NOT_RESOLVED_CONSUMER,
    StreamExistsError: Status.STREAM_NAME_ALREADY_EXISTS,
    TopicExistsError: Status.TOPIC_NAME_ALREADY_EXISTS,
    GroupExistsError: Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS,
    StreamIdTakenError: Status.STREAM_ID_ALREADY_EXISTS,
    TopicIdTakenError: Status.TOPIC_ID_ALREADY_EXISTS,
    GroupIdTakenError: Status.CONSUMER_GROUP_ID_ALREADY_EXISTS,
    UserExistsError: Status.USER_ALREADY_EXISTS,
    TokenExistsError: Status.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS,
    InvalidStreamNameError: Status.INVALID_STREAM_NAME,
    InvalidTopicNameError: Status.INVALID_TOPIC_NAME,
    InvalidGroupNameError: Status.INVALID_CONSUMER_GROUP_NAME,
    InvalidUsernameError: Status.INVALID_USERNAME,
    InvalidPasswordError: Status.INVALID_PASSWORD,
    InvalidUserStatusError: Status.INVALID_USER_STATUS,
    InvalidTokenNameError: Status.INVALID_PERSONAL_ACCESS_TOKEN_NAME,
    InvalidTokenError: Status.INVALID_PERSONAL_ACCESS_TOKEN,
    InvalidOffsetError: Status.INVALID_OFFSET,
    InvalidMessagesCountError: Status.INVALID_MESSAGES_COUNT,
    InvalidClientIdError: Status.INVALID_CLIENT_ID,
    InvalidSegmentsCountError: Status.INVALID_SEGMENTS_COUNT,
    TooManyPartitionsError: Status.TOO_MANY_PARTITIONS,
    InvalidPartitionsCountError: Status.INVALID_PARTITIONS_COUNT,
    InvalidReplicationError: Status.INVALID_REPLICATION_FACTOR,
    TooManyTokensError: Status.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED,
    TooManyUsersError: Status.USERS_LIMIT_REACHED,
    PayloadTooLargeError: Status.TOO_BIG_MESSAGE_PAYLOAD,
    UserHeadersTooLargeError: Status.TOO_BIG_USER_HEADERS,
    InvalidCredentialsError: Status.INVALID_CREDENTIALS,
    UserInactiveError: Status.USER_INACTIVE,
    TokenExpiredError: Status.PERSONAL_ACCESS_TOKEN_EXPIRED,
    RootUserError: Status.CANNOT_DELETE_USER,
    RootPermissionsError: Status.CANNOT_CHANGE_PERMISSIONS,
    LastAdministratorError: Status.CANNOT_CHANGE_PERMISSIONS,
    StaleSessionError: Status.STALE_CLIENT,
    FeatureUnavailableError: Status.FEATURE_UNAVAILABLE,
    PublisherNotFoundError: Status.PUBLISHER_NOT_FOUND,
    PublisherFencedError: Status.PUBLISHER_FENCED,
    WindowOrderError: Status.WINDOW_OUT_OF_ORDER,
    StagedDataGoneError: Status.STAGED_DATA_GONE,
    TooManyPublishersError: Status.PUBLISHERS_LIMIT_REACHED,
    NotWindowTopicError: Status.NOT_A_WINDOW_TOPIC,
    PublisherTakenError: Status.PUBLISHER_TAKEN,
    TooManyWindowsError: Status.WINDOWS_LIMIT_REACHED,
    ShardNotFoundError: Status.SHARD_NOT_FOUND,
    FirstShardError: Status.FIRST_SHARD_STAYS,
    WorkerNotFoundError: Status.WORKER_NOT_FOUND,
    InvalidOptionError: Status.INVALID_OPTION_VALUE,
    UnsupportedOptionError: Status.UNSUPPORTED_OPTION_KEY,
    PartitionNotOwnedError: Status.CONSUMER_GROUP_PARTITION_NOT_OWNED,
    IncompatibleProtocolError: Status.INCOMPATIBLE_PROTOCOL_VERSION,
    InvalidSessionError: Status.INVALID_SESSION,
    RequestAppliedError: Status.REQUEST_ALREADY_APPLIED,
    # Kinds of error that have no number of their own; the nearest base counts.
    errors.NotFoundError: Status.RESOURCE_NOT_FOUND,
    errors.UnauthenticatedError: Status.UNAUTHENTICATED,
    errors.UnauthorizedError: Status.UNAUTHORIZED,
    errors.TooLargeError: Status.TOO_BIG_MESSAGE_PAYLOAD,
    errors.OffsetOutOfRangeError: Status.INVALID_OFFSET,
    errors.InvalidArgumentError: Status.INVALID_COMMAND,
    errors.NotLeaderError: Status.DISCONNECTED,  # SDKs reconnect and ask for the leader
    errors.FencedError: Status.DISCONNECTED,
    errors.DeadlineError: Status.TASK_TIMEOUT,
    errors.ThrottledError: Status.TASK_TIMEOUT,
    errors.MissingRecordsError: Status.IO_ERROR,  # as damage is told: no try brings them back
    errors.StateError: Status.TASK_TIMEOUT,  # true for now: worth another try
    errors.StorageError: Status.IO_ERROR,
    errors.WireError: Status.INVALID_COMMAND,
}

# What dialect A answers otherwise: its servers had no number for an offset whose owner cannot be
# told, and another number for what is missing by name than by id. The field says what was asked.
_STATUS_IN_A: dict[type[HeadraceError], Status] = {
    ConsumerNotResolvedError: Status.CONSUMER_OFFSET_NOT_FOUND,
}
_MISSING_BY_NAME_IN_A: dict[type[HeadraceError], tuple[str, Status]] = {
    StreamNotFoundError: ("stream", Status.STREAM_NAME_NOT_FOUND),
    TopicNotFoundError: ("topic", Status.TOPIC_NAME_NOT_FOUND),
    GroupNotFoundError: ("group", Status.CONSUMER_GROUP_NAME_NOT_FOUND),
}


def status_of(error: HeadraceError, dialect: Dialect | None = None) -> int:
    """Give the number to answer with, as the dialect of the connection has it."""
    if isinstance(error, IggyError | DecodeError):
        return error.code
    kind = type(error)
    if dialect is Dialect.A:
        field, named = _MISSING_BY_NAME_IN_A.get(kind, ("", Status.ERROR))
        if field and isinstance(error.data.get(field), str):
            return int(named)
        if kind in _STATUS_IN_A:
            return int(_STATUS_IN_A[kind])
    for base in kind.__mro__:
        if base in _STATUS:
            return int(_STATUS[base])
    return int(Status.ERROR)
