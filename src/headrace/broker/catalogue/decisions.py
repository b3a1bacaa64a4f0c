"""Requests in, events out, or a refusal. Pure: times, hashes and digests are arguments.

The caller holds the catalogue still from a decision until its event is applied.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from headrace.broker.catalogue import events as e
from headrace.broker.catalogue.resources import (
    NEVER,
    ROOT_ID,
    ROOT_PERMISSIONS,
    GlobalRight,
    Permissions,
    StreamGrant,
    User,
    UserStatus,
)
from headrace.broker.catalogue.state import Catalogue, Reference, find_group, group_of
from headrace.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from headrace.wire.iggy.refusals import (
    GroupExistsError,
    GroupIdTakenError,
    InvalidCredentialsError,
    InvalidGroupNameError,
    InvalidPartitionsCountError,
    InvalidStreamNameError,
    InvalidTokenNameError,
    InvalidTopicNameError,
    InvalidUsernameError,
    InvalidUserStatusError,
    LastAdministratorError,
    RootPermissionsError,
    RootUserError,
    StreamExistsError,
    StreamIdTakenError,
    StreamNotFoundError,
    TokenExistsError,
    TooManyPartitionsError,
    TooManyTokensError,
    TooManyUsersError,
    TopicExistsError,
    TopicIdTakenError,
    TopicNotFoundError,
    UserExistsError,
)

NAME_BYTES_MAX = 255
_MOVES_MAX = 1000
USERNAME_BYTES = (3, 50)
TOKEN_NAME_BYTES = (3, 30)
PARTITIONS_MAX = 1000  # in one request
TOKENS_PER_USER_MAX = 100
USERS_MAX = 1 << 20
COMPRESSIONS = (1, 2)


def lowest_free(taken: Container[int]) -> int:
    slot = 0
    while slot in taken:
        slot += 1
    return slot


def _choose_id(taken: Container[int], wanted: int | None, refusal: type[AlreadyExistsError]) -> int:
    """The id a client asked for, else the lowest free one."""
    if wanted is None:
        return lowest_free(taken)
    if wanted in taken:
        raise refusal(id=wanted)
    return wanted


def _check_name(name: str, refusal: type[InvalidArgumentError]) -> None:
    if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise refusal(f"a name has 1 to {NAME_BYTES_MAX} bytes")


# -- streams


def create_stream(
    state: Catalogue,
    *,
    name: str,
    now_us: int,
    wanted_id: int | None = None,
    options: bytes = b"",
) -> e.StreamCreated:
    _check_name(name, InvalidStreamNameError)
    if state.find_stream(name) is not None:
        raise StreamExistsError(stream=name)
    return e.StreamCreated(
        uid=state.next_uid,
        id=_choose_id(state.streams, wanted_id, StreamIdTakenError),
        name=name,
        created_at=now_us,
        options=options,
    )


def rename_stream(
    state: Catalogue, stream: Reference, *, name: str, options: bytes | None = None
) -> e.StreamRenamed:
    found = state.stream(stream)
    _check_name(name, InvalidStreamNameError)
    other = state.find_stream(name)
    if other is not None and other is not found:
        raise StreamExistsError(stream=name)
    return e.StreamRenamed(uid=found.uid, name=name, options=options)


def delete_stream(state: Catalogue, stream: Reference) -> e.StreamDeleted:
    return e.StreamDeleted(uid=state.stream(stream).uid)


def purge_stream(state: Catalogue, stream: Reference) -> e.TopicsPurged:
    return e.TopicsPurged(uids=[topic.uid for topic in state.stream(stream).topics.values()])


# -- topics and partitions


def create_topic(
    state: Catalogue,
    stream: Reference,
    *,
    name: str,
    partitions: int,
    compression: int,
    expiry: int,
    max_size: int,
    replication: int,
    now_us: int,
    wanted_id: int | None = None,
    options: bytes = b"",
) -> e.TopicCreated:
    parent = state.stream(stream)
    _check_name(name, InvalidTopicNameError)
    if partitions > PARTITIONS_MAX:
        raise TooManyPartitionsError(partitions=partitions, limit=PARTITIONS_MAX)
    _check_compression(compression)
    if state.find_topic(parent.id, name) is not None:
        raise TopicExistsError(topic=name)
    return e.TopicCreated(
        uid=state.next_uid,
        stream_uid=parent.uid,
        id=_choose_id(parent.topics, wanted_id, TopicIdTakenError),
        name=name,
        created_at=now_us,
        partitions=partitions,
        compression=compression,
        expiry=expiry,
        max_size=max_size,
        replication=replication,
        options=options,
        shards=_spread(state, state.next_uid, range(partitions)),
    )


def _spread(state: Catalogue, topic_uid: int, partitions: range) -> list[int]:
    """Neighbours go to different shards, and so do topics that were made one after the other."""
    return [(topic_uid + partition) % state.shards for partition in partitions]


def spread_partitions(state: Catalogue) -> list[e.PartitionsMoved]:
    """What takes every partition of the first shard to where a new one would be: those of before
    there were shards are all there. Several events, each of a size that a log takes."""
    moves = [
        (topic.uid, partition.id, partition.generation, shard)
        for topic in state.topics()
        for partition, shard in zip(
            topic.partitions, _spread(state, topic.uid, range(len(topic.partitions))), strict=True
        )
        if partition.shard == 0 and shard
    ]
    return [
        e.PartitionsMoved(moves[at : at + _MOVES_MAX]) for at in range(0, len(moves), _MOVES_MAX)
    ]


def _check_compression(compression: int) -> None:
    if compression not in COMPRESSIONS:
        raise InvalidArgumentError("unknown compression", compression=compression)


def update_topic(
    state: Catalogue,
    stream: Reference,
    topic: Reference,
    *,
    name: str,
    compression: int,
    expiry: int,
    max_size: int,
    replication: int,
    options: bytes | None = None,
) -> e.TopicUpdated:
    found = state.topic(stream, topic)
    _check_name(name, InvalidTopicNameError)
    _check_compression(compression)
    other = state.find_topic(stream, name)
    if other is not None and other is not found:
        raise TopicExistsError(topic=name)
    return e.TopicUpdated(
        uid=found.uid,
        name=name,
        compression=compression,
        expiry=expiry,
        max_size=max_size,
        replication=replication or found.replication,  # 0 = as it is
        options=options,
    )


def delete_topic(state: Catalogue, stream: Reference, topic: Reference) -> e.TopicDeleted:
    return e.TopicDeleted(uid=state.topic(stream, topic).uid)


def purge_topic(state: Catalogue, stream: Reference, topic: Reference) -> e.TopicsPurged:
    return e.TopicsPurged(uids=[state.topic(stream, topic).uid])


def create_partitions(
    state: Catalogue, stream: Reference, topic: Reference, *, count: int, now_us: int
) -> e.PartitionsAdded:
    found = state.topic(stream, topic)
    if not 1 <= count <= PARTITIONS_MAX:
        raise TooManyPartitionsError(partitions=count, limit=PARTITIONS_MAX)
    first = len(found.partitions)
    return e.PartitionsAdded(
        topic_uid=found.uid,
        count=count,
        created_at=now_us,
        shards=_spread(state, found.uid, range(first, first + count)),
    )


def delete_partitions(
    state: Catalogue, stream: Reference, topic: Reference, *, count: int, clamp: bool = False
) -> e.PartitionsRemoved:
    """`clamp`: more than exist means all of them."""
    found = state.topic(stream, topic)
    if not 1 <= count <= PARTITIONS_MAX:
        raise TooManyPartitionsError(partitions=count, limit=PARTITIONS_MAX)
    if clamp:
        count = min(count, len(found.partitions))
    if count > len(found.partitions):
        raise InvalidPartitionsCountError(asked=count, partitions=len(found.partitions))
    return e.PartitionsRemoved(topic_uid=found.uid, count=count)


# -- consumer groups


def create_group(
    state: Catalogue,
    stream: Reference,
    topic: Reference,
    *,
    name: str,
    wanted_id: int | None = None,
) -> e.GroupCreated:
    found = state.topic(stream, topic)
    _check_name(name, InvalidGroupNameError)
    if find_group(found, name) is not None:
        raise GroupExistsError(group=name)
    return e.GroupCreated(
        uid=state.next_uid,
        topic_uid=found.uid,
        id=_choose_id(found.groups, wanted_id, GroupIdTakenError),
        name=name,
    )


def delete_group(
    state: Catalogue, stream: Reference, topic: Reference, group: Reference
) -> e.GroupDeleted:
    found = state.topic(stream, topic)
    return e.GroupDeleted(uid=group_of(found, group).uid)


# -- users


def _check_username(name: str) -> None:
    shortest, longest = USERNAME_BYTES
    if not shortest <= len(name.encode()) <= longest:
        raise InvalidUsernameError(f"a user name has {shortest} to {longest} bytes")


def create_root(state: Catalogue, *, name: str, password_hash: str, now_us: int) -> e.UserCreated:
    assert not state.users, "root is the first user"
    _check_username(name)
    return e.UserCreated(
        uid=state.next_uid,
        id=ROOT_ID,
        name=name,
        created_at=now_us,
        status=UserStatus.ACTIVE,
        password_hash=password_hash,
        permissions=ROOT_PERMISSIONS,
    )


def create_user(
    state: Catalogue,
    *,
    name: str,
    password_hash: str,
    status: int,
    permissions: Permissions | None,
    now_us: int,
    options: bytes = b"",
) -> e.UserCreated:
    _check_username(name)
    if status not in tuple(UserStatus):
        raise InvalidUserStatusError(status=status)
    if state.find_user(name) is not None:
        raise UserExistsError(user=name)
    if len(state.users) >= USERS_MAX:
        raise TooManyUsersError(limit=USERS_MAX)
    return e.UserCreated(
        uid=state.next_uid,
        id=lowest_free(state.users),
        name=name,
        created_at=now_us,
        status=status,
        password_hash=password_hash,
        permissions=permissions,
        options=options,
    )


def update_user(
    state: Catalogue,
    user: Reference,
    *,
    name: str | None,
    status: int | None,
    options: bytes | None = None,
) -> e.UserUpdated:
    found = state.user(user)
    if name is not None:
        _check_username(name)
        other = state.find_user(name)
        if other is not None and other is not found:
            raise UserExistsError(user=name)
    if status is not None and status not in tuple(UserStatus):
        raise InvalidUserStatusError(status=status)
    if status == UserStatus.INACTIVE:
        _check_others_manage(state, found)
    return e.UserUpdated(
        uid=found.uid,
        name=found.name if name is None else name,
        status=found.status if status is None else status,
        options=options,
    )


def delete_user(state: Catalogue, user: Reference) -> e.UserDeleted:
    found = state.user(user)
    if found.id == ROOT_ID:
        raise RootUserError(user=found.name)
    _check_others_manage(state, found)
    return e.UserDeleted(uid=found.uid)


def change_permissions(
    state: Catalogue, user: Reference, permissions: Permissions | None
) -> e.PermissionsChanged:
    found = state.user(user)
    if found.id == ROOT_ID:
        raise RootPermissionsError(user=found.name)
    if permissions is None or permissions.rights & GlobalRight.ALL != GlobalRight.ALL:
        _check_others_manage(state, found)
    return e.PermissionsChanged(uid=found.uid, permissions=permissions)


def _check_others_manage(state: Catalogue, user: User) -> None:
    """LastAdministratorError if nobody with all rights would be left without this user."""
    if _manages(user) and not any(
        _manages(other) for other in state.users.values() if other is not user
    ):
        raise LastAdministratorError(user=user.name)


def _manages(user: User) -> bool:
    rights = 0 if user.permissions is None else user.permissions.rights
    return user.active and rights & GlobalRight.ALL == GlobalRight.ALL


def change_password(
    state: Catalogue, user: Reference, *, verified_hash: str, password_hash: str
) -> e.PasswordChanged:
    """`verified_hash` is the stored hash that the current password was checked against."""
    found = state.user(user)
    if found.password_hash != verified_hash:  # changed by somebody else meanwhile
        raise InvalidCredentialsError(user=found.name)
    return e.PasswordChanged(uid=found.uid, password_hash=password_hash, ends_tokens=True)


def resolve_permissions(
    state: Catalogue, *, rights: int, streams: Mapping[int, tuple[int, Mapping[int, int]]]
) -> Permissions:
    """From ids as clients name them to uids.

    An id without a resource is refused: the right would come alive for whatever is created under
    that id next.
    """
    grants = {}
    for stream_id, (stream_rights, topics) in streams.items():
        stream = state.streams.get(stream_id)
        if stream is None:
            raise StreamNotFoundError(stream=stream_id)
        topic_rights = {}
        for topic_id, bits in topics.items():
            if topic_id not in stream.topics:
                raise TopicNotFoundError(stream=stream_id, topic=topic_id)
            topic_rights[stream.topics[topic_id].uid] = bits
        grants[stream.uid] = StreamGrant(rights=stream_rights, topics=topic_rights)
    return Permissions(rights=rights, streams=grants)


# -- personal access tokens


def create_token(
    state: Catalogue, user: User, *, name: str, digest: bytes, expiry_us: int, now_us: int
) -> e.TokenCreated:
    """`expiry_us` counts from now; 0 and NEVER mean that the token does not expire."""
    shortest, longest = TOKEN_NAME_BYTES
    if not shortest <= len(name.encode()) <= longest:
        raise InvalidTokenNameError(f"a token name has {shortest} to {longest} bytes")
    if name in user.tokens:
        raise TokenExistsError(token=name)
    if len(user.tokens) >= TOKENS_PER_USER_MAX:
        raise TooManyTokensError(limit=TOKENS_PER_USER_MAX)
    expiry_at = 0 if expiry_us in (0, NEVER) else min(now_us + expiry_us, NEVER)
    return e.TokenCreated(user_uid=user.uid, name=name, digest=digest, expiry_at=expiry_at)


def delete_token(state: Catalogue, user: User, *, name: str) -> e.TokenDeleted:
    if name not in user.tokens:
        raise NotFoundError("no such token", token=name)
    return e.TokenDeleted(user_uid=user.uid, name=name)
