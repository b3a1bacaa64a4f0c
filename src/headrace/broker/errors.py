"""What a broker refuses, one class per reason. `sessions/dialect_rules.py` gives each its
number on the wire."""

from headrace.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    RequestError,
    StateError,
    TooLargeError,
    UnauthenticatedError,
)


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
    """It was applied before, and what was answered then is not known any more."""
