"""The one table of commands: code, name, bodies, and what a caller must be allowed to do.

Dispatch, authorisation, metrics, the client and the protocol page read this table; a broker
supplies one handler per served row. Codes from 9000 are Headrace's own (`messages/extensions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.messages import consumers, extensions, messages, system, topics, users
from headrace.wire.iggy.messages.system import Empty


class Encodable(Protocol):
    @classmethod
    def decode(cls, data: Buffer, dialect: Dialect = ...) -> Self: ...

    def encode(self, dialect: Dialect = ...) -> bytes: ...


Q = TypeVar("Q", bound=Encodable)
P = TypeVar("P", bound=Encodable)
R = TypeVar("R")


class Permission(Enum):
    """Rows of the permission table: which flags, at which level, let a user do it."""

    NONE = "none"  # logging in is enough, or the handler decides
    READ_SERVERS = "read servers"
    MANAGE_SERVERS = "manage servers"
    READ_USERS = "read users"
    MANAGE_USERS = "manage users"
    CREATE_STREAM = "create stream"
    LIST_STREAMS = "list streams"
    GET_STREAM = "get stream"
    MANAGE_STREAM = "manage stream"
    READ_TOPIC = "read topic"
    CREATE_TOPIC = "create topic"
    MANAGE_TOPIC = "manage topic"
    POLL = "poll messages"
    SEND = "send messages"

    __hash__ = object.__hash__  # as of `Dialect`


@dataclass(frozen=True, slots=True, eq=False)
class Command(Generic[Q, R]):
    code: int
    name: str
    request: type[Q]
    response: type[Any]
    """The class of a full reply; `Empty` where success says everything."""
    permission: Permission
    authenticated: bool
    """Only for connections that have logged in (else UNAUTHENTICATED)."""
    optional: bool
    """A missing target is success with an empty body: None."""
    used_by_0_8_0: bool
    """The Python client 0.8.0 sends it."""
    served: bool
    """False: reserved, not yet offered; a broker answers FEATURE_UNAVAILABLE."""
    only_c: bool = False
    """Dialect C alone has it; elsewhere it is an unknown command."""

    def decode_request(self, payload: Buffer, dialect: Dialect = Dialect.B2) -> Q:
        return self.request.decode(payload, dialect)

    def encode_request(self, request: Q, dialect: Dialect = Dialect.B2) -> list[Buffer]:
        return _pieces(request, dialect)

    def decode_response(self, payload: Buffer, dialect: Dialect = Dialect.B2) -> R:
        if self.optional and len(payload) == 0:
            return None  # type: ignore[return-value]  # R includes None exactly for these rows
        return self.response.decode(payload, dialect)  # type: ignore[no-any-return]

    def encode_response(self, response: R, dialect: Dialect = Dialect.B2) -> list[Buffer]:
        return [] if response is None else _pieces(response, dialect)


AnyCommand: TypeAlias = Command[Any, Any]

TABLE: dict[int, AnyCommand] = {}


def _pieces(body: Any, dialect: Dialect) -> list[Buffer]:
    """SEND and POLL keep their messages where they are; other bodies are small."""
    pieces: Callable[[Dialect], Sequence[Buffer]] | None = getattr(body, "pieces", None)
    if pieces is not None:
        return list(pieces(dialect))
    encoded = body.encode(dialect)
    return [encoded] if encoded else []


def _row(
    code: int,
    name: str,
    request: type[Q],
    response: type[P],
    permission: Permission = Permission.NONE,
    *,
    authenticated: bool = True,
    used_by_0_8_0: bool = False,
    served: bool = True,
    only_c: bool = False,
) -> Command[Q, P]:
    row: Command[Q, P] = Command(
        code, name, request, response, permission, authenticated, False, used_by_0_8_0, served,
        only_c,
    )  # fmt: skip
    TABLE[code] = row
    return row


def _optional_row(
    code: int,
    name: str,
    request: type[Q],
    response: type[P],
    permission: Permission,
    *,
    used_by_0_8_0: bool = False,
) -> Command[Q, P | None]:
    row: Command[Q, P | None] = Command(
        code, name, request, response, permission, True, True, used_by_0_8_0, True
    )
    TABLE[code] = row
    return row


PING = _row(1, "PING", Empty, Empty, authenticated=False, used_by_0_8_0=True)
GET_STATS = _row(10, "GET_STATS", Empty, system.Stats, Permission.READ_SERVERS)
GET_SNAPSHOT_FILE = _row(
    11, "GET_SNAPSHOT_FILE", system.GetSnapshot, system.Snapshot, Permission.READ_SERVERS
)
GET_CLUSTER_METADATA = _row(
    12, "GET_CLUSTER_METADATA", Empty, system.ClusterMetadata, used_by_0_8_0=True
)
DESCRIBE_OPTIONS = _row(
    13, "DESCRIBE_OPTIONS", system.DescribeOptions, system.DescribedOptions, only_c=True
)
GET_ME = _row(20, "GET_ME", Empty, system.ClientDetails)
GET_CLIENT = _optional_row(
    21, "GET_CLIENT", system.GetClient, system.ClientDetails, Permission.READ_SERVERS
)
GET_CLIENTS = _row(22, "GET_CLIENTS", Empty, system.Clients, Permission.READ_SERVERS)
GET_USER = _optional_row(31, "GET_USER", users.GetUser, users.UserDetails, Permission.READ_USERS)
GET_USERS = _row(32, "GET_USERS", Empty, users.Users, Permission.READ_USERS)
CREATE_USER = _row(33, "CREATE_USER", users.CreateUser, users.UserDetails, Permission.MANAGE_USERS)
DELETE_USER = _row(34, "DELETE_USER", users.DeleteUser, Empty, Permission.MANAGE_USERS)
UPDATE_USER = _row(35, "UPDATE_USER", users.UpdateUser, Empty, Permission.MANAGE_USERS)
UPDATE_PERMISSIONS = _row(
    36, "UPDATE_PERMISSIONS", users.UpdatePermissions, Empty, Permission.MANAGE_USERS
)
CHANGE_PASSWORD = _row(37, "CHANGE_PASSWORD", users.ChangePassword, Empty)
LOGIN_USER = _row(
    38, "LOGIN_USER", users.LoginUser, users.Identity, authenticated=False, used_by_0_8_0=True
)
LOGOUT_USER = _row(39, "LOGOUT_USER", Empty, Empty)
LOGIN_REGISTER = _row(
    40, "LOGIN_REGISTER", users.LoginRegister, users.Registered, authenticated=False, only_c=True
)
GET_PERSONAL_ACCESS_TOKENS = _row(
    41, "GET_PERSONAL_ACCESS_TOKENS", Empty, users.PersonalAccessTokens
)
CREATE_PERSONAL_ACCESS_TOKEN = _row(
    42,
    "CREATE_PERSONAL_ACCESS_TOKEN",
    users.CreatePersonalAccessToken,
    users.RawPersonalAccessToken,
)
DELETE_PERSONAL_ACCESS_TOKEN = _row(
    43, "DELETE_PERSONAL_ACCESS_TOKEN", users.DeletePersonalAccessToken, Empty
)
LOGIN_WITH_PERSONAL_ACCESS_TOKEN = _row(
    44,
    "LOGIN_WITH_PERSONAL_ACCESS_TOKEN",
    users.LoginWithPersonalAccessToken,
    users.Identity,
    authenticated=False,
    used_by_0_8_0=True,
)
LOGIN_REGISTER_WITH_TOKEN = _row(
    45,
    "LOGIN_REGISTER_WITH_TOKEN",
    users.LoginRegisterWithToken,
    users.Registered,
    authenticated=False,
    only_c=True,
)
POLL_MESSAGES = _row(
    100,
    "POLL_MESSAGES",
    messages.PollMessages,
    messages.PolledMessages,
    Permission.POLL,
    used_by_0_8_0=True,
)
SEND_MESSAGES = _row(
    101,
    "SEND_MESSAGES",
    messages.SendMessages,
    messages.SentMessages,
    Permission.SEND,
    used_by_0_8_0=True,
)
FLUSH_UNSAVED_BUFFER = _row(
    102, "FLUSH_UNSAVED_BUFFER", messages.FlushUnsavedBuffer, Empty, Permission.SEND
)
GET_CONSUMER_OFFSET = _optional_row(
    120,
    "GET_CONSUMER_OFFSET",
    consumers.GetConsumerOffset,
    consumers.ConsumerOffset,
    Permission.POLL,
)
STORE_CONSUMER_OFFSET = _row(
    121,
    "STORE_CONSUMER_OFFSET",
    consumers.StoreConsumerOffset,
    Empty,
    Permission.POLL,
    used_by_0_8_0=True,
)
DELETE_CONSUMER_OFFSET = _row(
    122,
    "DELETE_CONSUMER_OFFSET",
    consumers.DeleteConsumerOffset,
    Empty,
    Permission.POLL,
    used_by_0_8_0=True,
)
GET_STREAM = _optional_row(
    200,
    "GET_STREAM",
    topics.GetStream,
    topics.StreamDetails,
    Permission.GET_STREAM,
    used_by_0_8_0=True,
)
GET_STREAMS = _row(201, "GET_STREAMS", Empty, topics.Streams, Permission.LIST_STREAMS)
CREATE_STREAM = _row(
    202,
    "CREATE_STREAM",
    topics.CreateStream,
    topics.StreamDetails,
    Permission.CREATE_STREAM,
    used_by_0_8_0=True,
)
DELETE_STREAM = _row(203, "DELETE_STREAM", topics.DeleteStream, Empty, Permission.MANAGE_STREAM)
UPDATE_STREAM = _row(204, "UPDATE_STREAM", topics.UpdateStream, Empty, Permission.MANAGE_STREAM)
PURGE_STREAM = _row(205, "PURGE_STREAM", topics.PurgeStream, Empty, Permission.MANAGE_STREAM)
GET_TOPIC = _optional_row(
    300,
    "GET_TOPIC",
    topics.GetTopic,
    topics.TopicDetails,
    Permission.READ_TOPIC,
    used_by_0_8_0=True,
)
GET_TOPICS = _row(301, "GET_TOPICS", topics.GetTopics, topics.Topics, Permission.READ_TOPIC)
CREATE_TOPIC = _row(
    302,
    "CREATE_TOPIC",
    topics.CreateTopic,
    topics.TopicDetails,
    Permission.CREATE_TOPIC,
    used_by_0_8_0=True,
)
DELETE_TOPIC = _row(303, "DELETE_TOPIC", topics.DeleteTopic, Empty, Permission.MANAGE_TOPIC)
UPDATE_TOPIC = _row(304, "UPDATE_TOPIC", topics.UpdateTopic, Empty, Permission.MANAGE_TOPIC)
PURGE_TOPIC = _row(305, "PURGE_TOPIC", topics.PurgeTopic, Empty, Permission.MANAGE_TOPIC)
CREATE_PARTITIONS = _row(
    402, "CREATE_PARTITIONS", topics.CreatePartitions, Empty, Permission.MANAGE_TOPIC
)
DELETE_PARTITIONS = _row(
    403, "DELETE_PARTITIONS", topics.DeletePartitions, Empty, Permission.MANAGE_TOPIC
)
DELETE_SEGMENTS = _row(
    503, "DELETE_SEGMENTS", topics.DeleteSegments, Empty, Permission.MANAGE_TOPIC
)
GET_CONSUMER_GROUP = _optional_row(
    600,
    "GET_CONSUMER_GROUP",
    consumers.GetGroup,
    consumers.GroupDetails,
    Permission.READ_TOPIC,
    used_by_0_8_0=True,
)
GET_CONSUMER_GROUPS = _row(
    601, "GET_CONSUMER_GROUPS", consumers.GetGroups, consumers.Groups, Permission.READ_TOPIC
)
CREATE_CONSUMER_GROUP = _row(
    602,
    "CREATE_CONSUMER_GROUP",
    consumers.CreateGroup,
    consumers.GroupDetails,
    Permission.READ_TOPIC,
    used_by_0_8_0=True,
)
DELETE_CONSUMER_GROUP = _row(
    603, "DELETE_CONSUMER_GROUP", consumers.DeleteGroup, Empty, Permission.READ_TOPIC
)
JOIN_CONSUMER_GROUP = _row(
    604,
    "JOIN_CONSUMER_GROUP",
    consumers.JoinGroup,
    Empty,
    Permission.READ_TOPIC,
    used_by_0_8_0=True,
)
LEAVE_CONSUMER_GROUP = _row(
    605, "LEAVE_CONSUMER_GROUP", consumers.LeaveGroup, Empty, Permission.READ_TOPIC
)
SYNC_CONSUMER_GROUP = _row(
    606,
    "SYNC_CONSUMER_GROUP",
    consumers.SyncGroup,
    consumers.GroupAssignment,
    Permission.READ_TOPIC,
    only_c=True,
)
HELLO = _row(9000, "HELLO", Empty, extensions.ServerHello)
OPEN_PUBLISHER = _row(9001, "OPEN_PUBLISHER", extensions.OpenPublisher, extensions.PublisherOpened)
STAGE = _row(9002, "STAGE", extensions.Stage, extensions.Staged, Permission.SEND)
CLOSE = _row(9003, "CLOSE", extensions.CloseWindow, extensions.WindowClosed)
LIST_WINDOWS = _row(
    9004, "LIST_WINDOWS", extensions.ListWindows, extensions.WindowsListed, Permission.POLL
)
SET_PUBLISHERS = _row(
    9005, "SET_PUBLISHERS", extensions.SetPublishers, Empty, Permission.MANAGE_TOPIC
)
RESET_AFTER = _row(9006, "RESET_AFTER", extensions.ResetAfter, Empty, Permission.MANAGE_TOPIC)
PURGE_TO = _row(9007, "PURGE_TO", extensions.PurgeTo, Empty, Permission.MANAGE_TOPIC)
PRESENT_GRANT = _row(9009, "PRESENT_GRANT", extensions.PresentGrant, Empty, authenticated=False)
SPEAK_FOR = _row(9010, "SPEAK_FOR", extensions.SpeakFor, Empty, authenticated=False)
GET_PUBLISHING = _row(
    9011, "GET_PUBLISHING", Empty, extensions.PublishingFigures, Permission.READ_SERVERS
)
GET_SHARDS = _row(9012, "GET_SHARDS", Empty, extensions.ShardMap)
MOVE_SHARD = _row(
    9013, "MOVE_SHARD", extensions.MoveShard, extensions.ShardMoved, Permission.MANAGE_SERVERS
)
READ_TICKET = _row(9008, "READ_TICKET", extensions.ReadTicket, extensions.Ticket, Permission.POLL)

SERVED: dict[int, AnyCommand] = {code: row for code, row in TABLE.items() if row.served}
