"""What servers of one era answer differently from those of another, one row per dialect.

Bytes differ in the codecs; this is what the same request *means*, and which number a refusal has in
the reply. A client gets the behaviour of the server that its SDK was written against, so its error
handling keeps working.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.broker import errors as b
from headrace.errors import HeadraceError
from headrace.wire.iggy import errors as wire
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    names_apart: bool
    """A stream, topic or group that is missing by name has another number than one by id."""
    unresolved_apart: bool
    """An offset whose owner cannot be told has a number of its own."""
    hides_forbidden: bool
    """What a user may not see looks as if it did not exist (GET of one thing)."""
    lists_need_parent: bool
    """Listing topics or groups of something missing is an error, not an empty list."""
    polls_need_count: bool
    """A poll of no messages is an error, not an empty reply."""
    removes_what_exists: bool
    """Deleting more partitions than exist deletes all, instead of being refused."""
    members_poll_any: bool
    """A group member may poll a partition that is another member's, if it says which."""
    refuses_unowned: bool = False
    """Such a poll is an error otherwise, instead of empty: the member asks for its part again."""
    login_token: bool
    """A login is answered with an access token behind the user's id."""


_B1 = Rules(
    names_apart=False,
    unresolved_apart=True,
    hides_forbidden=True,
    lists_need_parent=False,
    polls_need_count=False,
    removes_what_exists=False,
    members_poll_any=False,
    login_token=False,
)
_B2 = Rules(
    names_apart=False,
    unresolved_apart=True,
    hides_forbidden=False,
    lists_need_parent=False,
    polls_need_count=False,
    removes_what_exists=False,
    members_poll_any=False,
    login_token=False,
)
RULES: dict[Dialect, Rules] = {
    Dialect.A: Rules(
        names_apart=True,
        unresolved_apart=False,
        hides_forbidden=True,
        lists_need_parent=True,
        polls_need_count=True,
        removes_what_exists=True,
        members_poll_any=True,
        login_token=True,
    ),
    Dialect.B1: _B1,
    Dialect.B2: _B2,
    Dialect.C: replace(_B2, refuses_unowned=True),
}


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
