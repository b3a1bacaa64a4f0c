"""Error numbers of the protocol, and the errors that clients make of them.

A reply's status is one of these numbers. `error_of` turns a number into an error that is both an
`IggyError` (with `.code`) and a member of the taxonomy (`NotFoundError`, ...). How a server's error
becomes a number is said in `refusals.py`.
"""

from __future__ import annotations

from enum import IntEnum

from headrace import errors
from headrace.errors import RemoteProtocolError, RequestError


class Status(IntEnum):
    OK = 0
    ERROR = 1
    INVALID_CONFIGURATION = 2
    INVALID_COMMAND = 3
    INVALID_FORMAT = 4
    FEATURE_UNAVAILABLE = 5
    INVALID_IDENTIFIER = 6
    INVALID_VERSION = 7
    DISCONNECTED = 8
    CANNOT_ESTABLISH_CONNECTION = 9
    RESOURCE_NOT_FOUND = 20
    STALE_CLIENT = 30
    TCP_ERROR = 31
    QUIC_ERROR = 32
    INVALID_SERVER_ADDRESS = 33
    INVALID_CLIENT_ADDRESS = 34
    UNAUTHENTICATED = 40
    UNAUTHORIZED = 41
    INVALID_CREDENTIALS = 42
    INVALID_USERNAME = 43
    INVALID_PASSWORD = 44
    INVALID_USER_STATUS = 45
    USER_ALREADY_EXISTS = 46
    USER_INACTIVE = 47
    CANNOT_DELETE_USER = 48
    CANNOT_CHANGE_PERMISSIONS = 49
    INVALID_PERSONAL_ACCESS_TOKEN_NAME = 50
    PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS = 51
    PERSONAL_ACCESS_TOKENS_LIMIT_REACHED = 52
    INVALID_PERSONAL_ACCESS_TOKEN = 53
    PERSONAL_ACCESS_TOKEN_EXPIRED = 54
    USERS_LIMIT_REACHED = 55
    INVALID_PERSONAL_ACCESS_TOKEN_EXPIRY = 56
    TRANSIENT_NOT_COMMITTED = 57
    TRANSIENT_NOT_ACCEPTED = 58
    REQUEST_ALREADY_APPLIED = 59
    NOT_CONNECTED = 61
    CLIENT_SHUTDOWN = 63
    INVALID_TLS_DOMAIN = 64
    INVALID_TLS_CERTIFICATE_PATH = 65
    INVALID_TLS_CERTIFICATE = 66
    INVALID_SIZE_BYTES = 80
    INVALID_UTF8 = 81
    INVALID_NUMBER_ENCODING = 82
    INVALID_BOOLEAN_VALUE = 83
    INVALID_NUMBER_VALUE = 84
    CLIENT_NOT_FOUND = 100
    INVALID_CLIENT_ID = 101
    CONNECTION_CLOSED = 206
    CANNOT_PARSE_HEADER_KIND = 209
    CANNOT_CREATE_STREAM = 1006
    CANNOT_DELETE_STREAM = 1007
    STREAM_ID_NOT_FOUND = 1009
    STREAM_NAME_NOT_FOUND = 1010
    STREAM_ID_ALREADY_EXISTS = 1011  # dialect A; B gives the number another, internal meaning
    STREAM_NAME_ALREADY_EXISTS = 1012
    INVALID_STREAM_NAME = 1013
    INVALID_STREAM_ID = 1014
    INVALID_TOPIC_SIZE = 1019
    TOO_MANY_STREAMS = 1020
    TOPIC_ID_NOT_FOUND = 2010
    TOPIC_NAME_NOT_FOUND = 2011
    TOPIC_ID_ALREADY_EXISTS = 2012
    TOPIC_NAME_ALREADY_EXISTS = 2013
    INVALID_TOPIC_NAME = 2014
    TOO_MANY_PARTITIONS = 2015
    INVALID_TOPIC_ID = 2016
    INVALID_REPLICATION_FACTOR = 2018
    INVALID_PARTITIONS_COUNT = 2019
    TOO_MANY_TOPICS = 2021
    CANNOT_CREATE_PARTITION = 3000
    PARTITION_NOT_FOUND = 3007
    NO_PARTITIONS = 3008
    TOPIC_FULL = 3009
    CONSUMER_OFFSET_NOT_FOUND = 3021
    NOT_RESOLVED_CONSUMER = 3022
    SEGMENT_NOT_FOUND = 4000
    SEGMENT_CLOSED = 4001
    INVALID_SEGMENT_SIZE = 4002
    INVALID_MESSAGES_COUNT = 4009
    CANNOT_APPEND_MESSAGE = 4010
    TOO_BIG_USER_HEADERS = 4017
    INVALID_HEADER_KEY = 4018
    INVALID_HEADER_VALUE = 4019
    TOO_BIG_MESSAGE_PAYLOAD = 4022
    TOO_MANY_MESSAGES = 4023
    EMPTY_MESSAGE_PAYLOAD = 4024
    INVALID_MESSAGE_PAYLOAD_LENGTH = 4025
    INVALID_MESSAGE_CHECKSUM = 4027
    INVALID_KEY_VALUE_LENGTH = 4028
    COMMAND_LENGTH_ERROR = 4029
    INVALID_SEGMENTS_COUNT = 4030
    NON_ZERO_OFFSET = 4031
    NON_ZERO_TIMESTAMP = 4032
    MISSING_INDEX = 4033
    INVALID_INDEXES_BYTE_SIZE = 4034
    INVALID_INDEXES_COUNT = 4035
    INVALID_MESSAGES_SIZE = 4036
    TOO_SMALL_MESSAGE = 4037
    INVALID_MESSAGE_TIMESTAMP_DELTA = 4038
    INVALID_BATCH_CHECKSUM = 4039
    INVALID_HEADER_KIND = 4040
    UNSUPPORTED_OPTION_KEY = 4041
    INVALID_OPTION_VALUE = 4042
    OPTIONS_BLOCK_TOO_LARGE = 4043
    INVALID_OFFSET = 4100
    INVALID_RESERVED_FIELD = 4101
    CONSUMER_GROUP_ID_NOT_FOUND = 5000
    CONSUMER_GROUP_ID_ALREADY_EXISTS = 5001
    INVALID_CONSUMER_GROUP_ID = 5002
    CONSUMER_GROUP_NAME_NOT_FOUND = 5003
    CONSUMER_GROUP_NAME_ALREADY_EXISTS = 5004
    INVALID_CONSUMER_GROUP_NAME = 5005
    CONSUMER_GROUP_MEMBER_NOT_FOUND = 5006
    CONSUMER_GROUP_PARTITION_NOT_OWNED = 5009
    INVALID_CONNECTION_STRING = 8000
    SNAPSHOT_FILE_COMPLETION_FAILED = 9000
    PUBLISHER_NOT_FOUND = 9100  # this and the next nine are ours, for commands from 9001 on
    PUBLISHER_FENCED = 9101
    WINDOW_OUT_OF_ORDER = 9102
    STAGED_DATA_GONE = 9103
    PUBLISHERS_LIMIT_REACHED = 9104
    NOT_A_WINDOW_TOPIC = 9105
    PUBLISHER_TAKEN = 9106
    WINDOWS_LIMIT_REACHED = 9107
    FIRST_SHARD_STAYS = 9108
    WORKER_NOT_FOUND = 9109
    SHARD_NOT_FOUND = 11000
    SHARD_COMMUNICATION_ERROR = 11001
    CANNOT_BIND_TO_SOCKET = 12000
    TASK_TIMEOUT = 12001
    IO_ERROR = 13000
    ALREADY_AUTHENTICATED = 14000
    INVALID_SESSION = 14001
    INCOMPATIBLE_PROTOCOL_VERSION = 14003


class DecodeError(RemoteProtocolError):
    """The peer's bytes break a rule; `code` is the number to answer with."""

    def __init__(self, code: Status, message: str = "", /, **data: object) -> None:
        super().__init__(message or code.name.lower(), **data)
        self.code = int(code)


class IggyError(RequestError):
    """A refusal that has a number of its own. Make one with `error_of`."""

    command = ""
    """What was refused, where a client knows."""

    def __init__(self, code: int, message: str = "", /, **data: object) -> None:
        super().__init__(message or name_of(code), **data)
        self.code = int(code)


class IggyNotFoundError(IggyError, errors.NotFoundError): ...


class IggyAlreadyExistsError(IggyError, errors.AlreadyExistsError): ...


class IggyInvalidError(IggyError, errors.InvalidArgumentError): ...


class IggyUnauthenticatedError(IggyError, errors.UnauthenticatedError): ...


class IggyUnauthorizedError(IggyError, errors.UnauthorizedError): ...


class IggyTooLargeError(IggyError, errors.TooLargeError): ...


class IggyOffsetError(IggyError, errors.OffsetOutOfRangeError): ...


class IggyFencedError(IggyError, errors.FencedError):
    """Another run of the publisher took over: this one is over."""


class IggyUnavailableError(IggyError, errors.UnavailableError):
    """The server could not do it now; `retryable` is true, unlike for its siblings."""


_CLASSES: dict[type[IggyError], tuple[Status, ...]] = {
    IggyNotFoundError: (
        Status.SHARD_NOT_FOUND,
        Status.WORKER_NOT_FOUND,
        Status.RESOURCE_NOT_FOUND,
        Status.STREAM_ID_NOT_FOUND,
        Status.STREAM_NAME_NOT_FOUND,
        Status.TOPIC_ID_NOT_FOUND,
        Status.TOPIC_NAME_NOT_FOUND,
        Status.PARTITION_NOT_FOUND,
        Status.CONSUMER_OFFSET_NOT_FOUND,
        Status.NOT_RESOLVED_CONSUMER,
        Status.SEGMENT_NOT_FOUND,
        Status.CONSUMER_GROUP_ID_NOT_FOUND,
        Status.CONSUMER_GROUP_NAME_NOT_FOUND,
        Status.CONSUMER_GROUP_MEMBER_NOT_FOUND,
        Status.PUBLISHER_NOT_FOUND,
    ),
    IggyAlreadyExistsError: (
        Status.USER_ALREADY_EXISTS,
        Status.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS,
        Status.STREAM_ID_ALREADY_EXISTS,
        Status.STREAM_NAME_ALREADY_EXISTS,
        Status.TOPIC_ID_ALREADY_EXISTS,
        Status.TOPIC_NAME_ALREADY_EXISTS,
        Status.CONSUMER_GROUP_ID_ALREADY_EXISTS,
        Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS,
    ),
    IggyUnauthenticatedError: (
        Status.UNAUTHENTICATED,
        Status.INVALID_CREDENTIALS,
        Status.USER_INACTIVE,
        Status.INVALID_PERSONAL_ACCESS_TOKEN,
        Status.PERSONAL_ACCESS_TOKEN_EXPIRED,
    ),
    IggyUnauthorizedError: (Status.UNAUTHORIZED,),
    IggyTooLargeError: (
        Status.TOO_BIG_USER_HEADERS,
        Status.TOO_BIG_MESSAGE_PAYLOAD,
        Status.TOO_MANY_MESSAGES,
    ),
    IggyOffsetError: (Status.INVALID_OFFSET,),
    IggyFencedError: (Status.PUBLISHER_FENCED,),
    IggyInvalidError: (
        Status.WINDOW_OUT_OF_ORDER,
        Status.STAGED_DATA_GONE,
        Status.NOT_A_WINDOW_TOPIC,
        Status.PUBLISHER_TAKEN,
        Status.FIRST_SHARD_STAYS,
    ),
    IggyUnavailableError: (
        Status.DISCONNECTED,
        Status.STALE_CLIENT,
        Status.NOT_CONNECTED,
        Status.CLIENT_NOT_FOUND,
        Status.CONNECTION_CLOSED,
        Status.TASK_TIMEOUT,
        Status.WINDOWS_LIMIT_REACHED,
    ),
}
_CLASS_OF = {code: cls for cls, codes in _CLASSES.items() for code in codes}


def name_of(code: int) -> str:
    """`stream_name_already_exists`; numbers without a name here read `error_<number>`."""
    try:
        return Status(code).name.lower()
    except ValueError:
        return f"error_{code}"


def error_of(code: int, message: str = "", /, **data: object) -> IggyError:
    """The error for a number: on the server to raise it, on the client to report it."""
    if code in _CLASS_OF:
        return _CLASS_OF[Status(code)](code, message, **data)
    named = name_of(code)
    if named.startswith(("invalid_", "too_")):
        return IggyInvalidError(code, message, **data)
    return IggyError(code, message, **data)
