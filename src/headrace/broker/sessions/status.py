"""Each refusal's number in the replies of the protocol."""

from __future__ import annotations

from headrace.broker import errors as b
from headrace.broker.sessions.dialect_rules import Rules
from headrace.errors import HeadraceError
from headrace.wire.iggy import errors as wire
from headrace.wire.iggy.errors import Status

STATUS: dict[type[HeadraceError], Status] = {
    b.StreamNotFoundError: Status.STREAM_ID_NOT_FOUND,
    b.TopicNotFoundError: Status.TOPIC_ID_NOT_FOUND,
    b.PartitionNotFoundError: Status.PARTITION_NOT_FOUND,
    b.NoPartitionsError: Status.NO_PARTITIONS,
    b.GroupNotFoundError: Status.CONSUMER_GROUP_ID_NOT_FOUND,
    b.MemberNotFoundError: Status.CONSUMER_GROUP_MEMBER_NOT_FOUND,
    b.OffsetNotFoundError: Status.CONSUMER_OFFSET_NOT_FOUND,
    b.ConsumerNotResolvedError: Status.NOT_RESOLVED_CONSUMER,
    b.StreamExistsError: Status.STREAM_NAME_ALREADY_EXISTS,
    b.TopicExistsError: Status.TOPIC_NAME_ALREADY_EXISTS,
    b.GroupExistsError: Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS,
    b.StreamIdTakenError: Status.STREAM_ID_ALREADY_EXISTS,
    b.TopicIdTakenError: Status.TOPIC_ID_ALREADY_EXISTS,
    b.GroupIdTakenError: Status.CONSUMER_GROUP_ID_ALREADY_EXISTS,
    b.UserExistsError: Status.USER_ALREADY_EXISTS,
    b.TokenExistsError: Status.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS,
    b.InvalidStreamNameError: Status.INVALID_STREAM_NAME,
    b.InvalidTopicNameError: Status.INVALID_TOPIC_NAME,
    b.InvalidGroupNameError: Status.INVALID_CONSUMER_GROUP_NAME,
    b.InvalidUsernameError: Status.INVALID_USERNAME,
    b.InvalidPasswordError: Status.INVALID_PASSWORD,
    b.InvalidUserStatusError: Status.INVALID_USER_STATUS,
    b.InvalidTokenNameError: Status.INVALID_PERSONAL_ACCESS_TOKEN_NAME,
    b.InvalidTokenError: Status.INVALID_PERSONAL_ACCESS_TOKEN,
    b.InvalidOffsetError: Status.INVALID_OFFSET,
    b.InvalidMessagesCountError: Status.INVALID_MESSAGES_COUNT,
    b.InvalidClientIdError: Status.INVALID_CLIENT_ID,
    b.InvalidSegmentsCountError: Status.INVALID_SEGMENTS_COUNT,
    b.TooManyPartitionsError: Status.TOO_MANY_PARTITIONS,
    b.InvalidPartitionsCountError: Status.INVALID_PARTITIONS_COUNT,
    b.InvalidReplicationError: Status.INVALID_REPLICATION_FACTOR,
    b.TooManyTokensError: Status.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED,
    b.TooManyUsersError: Status.USERS_LIMIT_REACHED,
    b.PayloadTooLargeError: Status.TOO_BIG_MESSAGE_PAYLOAD,
    b.UserHeadersTooLargeError: Status.TOO_BIG_USER_HEADERS,
    b.InvalidCredentialsError: Status.INVALID_CREDENTIALS,
    b.UserInactiveError: Status.USER_INACTIVE,
    b.TokenExpiredError: Status.PERSONAL_ACCESS_TOKEN_EXPIRED,
    b.RootUserError: Status.CANNOT_DELETE_USER,
    b.RootPermissionsError: Status.CANNOT_CHANGE_PERMISSIONS,
    b.LastAdministratorError: Status.CANNOT_CHANGE_PERMISSIONS,
    b.StaleSessionError: Status.STALE_CLIENT,
    b.FeatureUnavailableError: Status.FEATURE_UNAVAILABLE,
    b.PublisherNotFoundError: Status.PUBLISHER_NOT_FOUND,
    b.PublisherFencedError: Status.PUBLISHER_FENCED,
    b.WindowOrderError: Status.WINDOW_OUT_OF_ORDER,
    b.StagedDataGoneError: Status.STAGED_DATA_GONE,
    b.TooManyPublishersError: Status.PUBLISHERS_LIMIT_REACHED,
    b.NotWindowTopicError: Status.NOT_A_WINDOW_TOPIC,
    b.PublisherTakenError: Status.PUBLISHER_TAKEN,
    b.TooManyWindowsError: Status.WINDOWS_LIMIT_REACHED,
    b.InvalidOptionError: Status.INVALID_OPTION_VALUE,
    b.UnsupportedOptionError: Status.UNSUPPORTED_OPTION_KEY,
    b.PartitionNotOwnedError: Status.CONSUMER_GROUP_PARTITION_NOT_OWNED,
    b.IncompatibleProtocolError: Status.INCOMPATIBLE_PROTOCOL_VERSION,
    b.InvalidSessionError: Status.INVALID_SESSION,
    b.RequestAppliedError: Status.REQUEST_ALREADY_APPLIED,
}


# What is missing by name, where names and ids have different numbers: the field that says which.
_MISSING_BY_NAME: dict[type[HeadraceError], tuple[str, Status]] = {
    b.StreamNotFoundError: ("stream", Status.STREAM_NAME_NOT_FOUND),
    b.TopicNotFoundError: ("topic", Status.TOPIC_NAME_NOT_FOUND),
    b.GroupNotFoundError: ("group", Status.CONSUMER_GROUP_NAME_NOT_FOUND),
}


def status_of(error: HeadraceError, rules: Rules) -> int:
    """The number to answer with, as the asker's era had it."""
    kind = type(error)
    if rules.names_apart and kind in _MISSING_BY_NAME:
        field, named = _MISSING_BY_NAME[kind]
        if isinstance(error.data.get(field), str):
            return int(named)
    if kind is b.ConsumerNotResolvedError and not rules.unresolved_apart:
        return int(Status.CONSUMER_OFFSET_NOT_FOUND)
    status = STATUS.get(kind)
    return wire.status_of(error) if status is None else int(status)
