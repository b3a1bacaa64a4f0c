"""Users, permissions, logins and personal access tokens (codes 31 to 45)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Annotated, TypeAlias

from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.fields import (
    STR8,
    U32,
    U32_LAYOUT,
    U64,
    Body,
    Codec,
    Flag,
    Id,
    Reader,
    Str8,
    Str32,
    Writer,
    chained,
    choice,
    nested,
    optional,
    to_end,
)
from headrace.wire.iggy.primitives import OptionsBlock, OptionsToEnd, Reference


class UserStatus(IntEnum):
    ACTIVE = 1
    INACTIVE = 2


_STATUS = choice(UserStatus, Status.INVALID_USER_STATUS)


@dataclass(frozen=True, slots=True)
class GlobalPermissions(Body):
    manage_servers: Flag = False
    read_servers: Flag = False
    manage_users: Flag = False
    read_users: Flag = False
    manage_streams: Flag = False
    read_streams: Flag = False
    manage_topics: Flag = False
    read_topics: Flag = False
    poll_messages: Flag = False
    send_messages: Flag = False

    @classmethod
    def all(cls) -> GlobalPermissions:
        return cls(**{field.name: True for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class TopicPermissions(Body):
    topic_id: Id
    manage_topic: Flag = False
    read_topic: Flag = False
    poll_messages: Flag = False
    send_messages: Flag = False


@dataclass(frozen=True, slots=True)
class StreamPermissions(Body):
    stream_id: Id
    manage_stream: Flag = False
    read_stream: Flag = False
    manage_topics: Flag = False
    read_topics: Flag = False
    poll_messages: Flag = False
    send_messages: Flag = False
    topics: Annotated[tuple[TopicPermissions, ...], chained(nested(TopicPermissions))] = ()


@dataclass(frozen=True, slots=True)
class Permissions(Body):
    everywhere: Annotated[GlobalPermissions, nested(GlobalPermissions)] = GlobalPermissions()
    streams: Annotated[tuple[StreamPermissions, ...], chained(nested(StreamPermissions))] = ()


def _read_permissions(reader: Reader) -> Permissions | None:
    """`u8 present [, u32 length, permissions]`."""
    if reader.u8() != 1:
        return None
    block = reader.take(reader.u32())
    return Permissions.decode(block, reader.dialect)


def _write_permissions(writer: Writer, value: Permissions | None) -> None:
    writer.append(0 if value is None else 1)
    if value is not None:
        block = value.encode(writer.dialect)
        writer.number(U32_LAYOUT, len(block))
        writer += block


def _write_user_permissions(writer: Writer, value: Permissions | None) -> None:
    _write_permissions(writer, value)
    if value is None:
        writer += bytes(3)  # in replies "none" is four zero bytes, in requests one


OptionalPermissions: TypeAlias = Annotated[
    Permissions | None, Codec(_read_permissions, _write_permissions)
]
UserPermissions: TypeAlias = Annotated[
    Permissions | None, Codec(_read_permissions, _write_user_permissions)
]


@dataclass(frozen=True, slots=True)
class User(Body):
    id: Id
    created_at_us: U64
    status: Annotated[UserStatus, _STATUS]
    username: Str8
    options: OptionsBlock = ()


@dataclass(frozen=True, slots=True)
class UserDetails(Body):
    user: Annotated[User, nested(User)]
    permissions: UserPermissions = None


@dataclass(frozen=True, slots=True)
class Users(Body):
    users: Annotated[tuple[User, ...], to_end(nested(User))]


@dataclass(frozen=True, slots=True)
class GetUser(Body):
    user: Reference


@dataclass(frozen=True, slots=True)
class CreateUser(Body):
    username: Str8
    password: Str8 = field(repr=False)
    status: Annotated[UserStatus, _STATUS] = UserStatus.ACTIVE
    permissions: OptionalPermissions = None
    options: OptionsToEnd = ()


@dataclass(frozen=True, slots=True)
class DeleteUser(Body):
    user: Reference


@dataclass(frozen=True, slots=True)
class UpdateUser(Body):
    user: Reference
    username: Annotated[str | None, optional(STR8)] = None
    status: Annotated[UserStatus | None, optional(_STATUS)] = None
    options: OptionsToEnd = ()


@dataclass(frozen=True, slots=True)
class UpdatePermissions(Body):
    user: Reference
    permissions: OptionalPermissions = None


@dataclass(frozen=True, slots=True)
class ChangePassword(Body):
    user: Reference
    current_password: Str8 = field(repr=False)
    new_password: Str8 = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoginUser(Body):
    """`version` is the SDK's, and the only hint of its dialect; Node leaves it empty."""

    username: Str8
    password: Str8 = field(repr=False)
    version: Str32 = ""
    context: Str32 = ""


def _write_access_token(writer: Writer, token: str) -> None:
    if token:
        STR8.write(writer, token)


AccessToken: TypeAlias = Annotated[
    str, Codec(lambda r: STR8.read(r) if r.remaining else "", _write_access_token)
]


@dataclass(frozen=True, slots=True)
class Identity(Body):
    """Reply of both logins: four bytes, as every client expects.

    The protocol's published description, which is of dialect A, has an access token behind them. It
    goes there as a `str8`; clients skip what stands behind the id. Empty: no bytes.
    """

    user_id: Id
    token: AccessToken = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PersonalAccessToken(Body):
    name: Str8
    expires_at_us: U64
    """0: never."""


@dataclass(frozen=True, slots=True)
class PersonalAccessTokens(Body):
    tokens: Annotated[tuple[PersonalAccessToken, ...], to_end(nested(PersonalAccessToken))]


@dataclass(frozen=True, slots=True)
class CreatePersonalAccessToken(Body):
    name: Str8
    expiry_us: U64
    """Microseconds from now; 0 and all ones: never."""


@dataclass(frozen=True, slots=True)
class RawPersonalAccessToken(Body):
    token: Str8 = field(repr=False)


@dataclass(frozen=True, slots=True)
class DeletePersonalAccessToken(Body):
    name: Str8


@dataclass(frozen=True, slots=True)
class LoginWithPersonalAccessToken(Body):
    token: Str8 = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoginRegister(Body):
    """Dialect C's login: begins the session that the client's id names."""

    protocol_version: U32
    sdk_name: Str8
    sdk_version: Str8
    username: Str8
    password: Str8 = field(repr=False)
    context: Str32 = ""


@dataclass(frozen=True, slots=True)
class LoginRegisterWithToken(Body):
    protocol_version: U32
    sdk_name: Str8
    sdk_version: Str8
    token: Str8 = field(repr=False)
    context: Str32 = ""


@dataclass(frozen=True, slots=True)
class Registered(Body):
    """The session's number is never 0; requests that change something carry it from now on."""

    user_id: Id
    session: U64
    protocol_version: U32
    server_version: Str8
