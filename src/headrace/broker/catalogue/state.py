"""The catalogue: users, tokens, streams, topics, partitions, groups. Pure: no clock, no I/O.

`decisions.py` turns a request into an event or refuses it; `Catalogue.apply` is the only thing
that changes the state. Applying the same events always gives the same state, so a broker that
takes over replays the log and continues where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from headrace.broker.catalogue import events as e
from headrace.broker.catalogue.resources import (
    SHARDS,
    UNASSIGNED,
    Group,
    Partition,
    Permissions,
    Stream,
    StreamGrant,
    Token,
    Topic,
    User,
)
from headrace.broker.sessions.request_dedup import Requests
from headrace.errors import FormatError, NotFoundError
from headrace.wire.iggy.refusals import (
    GroupNotFoundError,
    PartitionNotFoundError,
    StreamNotFoundError,
    TopicNotFoundError,
)

SNAPSHOT_VERSION = 1

Reference: TypeAlias = int | str
"""How a request names a resource: its numeric id or its name."""


class _Head(msgspec.Struct, frozen=True):
    next_uid: int
    doomed: list[int]
    users: int
    streams: int
    topics: int
    cluster_uuid: str = ""
    requests: list[tuple[int, int, str, int]] = []  # msgspec copies the default
    shards: int = SHARDS
    divided: list[int] = []
    pins: dict[int, str] = {}


class Catalogue:
    def __init__(self) -> None:
        self.version = 0
        """Rises with every change: what was looked up under the same one still holds."""
        self.next_uid = 1
        self.cluster_uuid = ""
        self.shards = SHARDS
        """How many there are; the same for ever."""
        self.divided: set[int] = set()
        """Shards whose consumers' offsets are in logs of their own, not in the first shard's."""
        self.pins: dict[int, str] = {}
        """Shards that an operator gave to a worker, by the worker's name."""
        self.requests = Requests()
        """Numbered requests whose effect is part of this state."""
        self.users: dict[int, User] = {}  # by id, as are streams
        self.streams: dict[int, Stream] = {}
        self.doomed: set[int] = set()
        """SBP streams nobody refers to any more, not yet deleted at the placement manager."""
        self._users_by_uid: dict[int, User] = {}
        self._users_by_name: dict[str, User] = {}
        self._users_by_token: dict[bytes, tuple[User, Token]] = {}
        self._streams_by_uid: dict[int, Stream] = {}
        self._streams_by_name: dict[str, Stream] = {}
        self._topics_by_uid: dict[int, Topic] = {}
        self._topics_by_name: dict[tuple[int, str], Topic] = {}  # by the stream's uid and the name
        self._groups_by_uid: dict[int, tuple[Topic, Group]] = {}

    # -- looking things up

    def user(self, reference: Reference) -> User:
        user = self.find_user(reference)
        if user is None:
            raise NotFoundError("no such user", user=reference)
        return user

    def find_user(self, reference: Reference) -> User | None:
        if isinstance(reference, int):
            return self.users.get(reference)
        return self._users_by_name.get(reference)

    def user_by_uid(self, uid: int) -> User | None:
        return self._users_by_uid.get(uid)

    def user_by_token(self, digest: bytes) -> tuple[User, Token] | None:
        return self._users_by_token.get(digest)

    def stream(self, reference: Reference) -> Stream:
        stream = self.find_stream(reference)
        if stream is None:
            raise StreamNotFoundError(stream=reference)
        return stream

    def find_stream(self, reference: Reference) -> Stream | None:
        if isinstance(reference, int):
            return self.streams.get(reference)
        return self._streams_by_name.get(reference)

    def stream_by_uid(self, uid: int) -> Stream | None:
        return self._streams_by_uid.get(uid)

    def topic(self, stream: Reference, topic: Reference) -> Topic:
        found = self._topic_in(self.stream(stream), topic)
        if found is None:
            raise TopicNotFoundError(stream=stream, topic=topic)
        return found

    def find_topic(self, stream: Reference, topic: Reference) -> Topic | None:
        parent = self.find_stream(stream)
        return None if parent is None else self._topic_in(parent, topic)

    def _topic_in(self, stream: Stream, reference: Reference) -> Topic | None:
        if isinstance(reference, int):
            return stream.topics.get(reference)
        return self._topics_by_name.get((stream.uid, reference))

    def topic_by_uid(self, uid: int) -> Topic | None:
        return self._topics_by_uid.get(uid)

    def topics(self) -> Iterable[Topic]:
        return self._topics_by_uid.values()

    def group_by_uid(self, uid: int) -> tuple[Topic, Group] | None:
        return self._groups_by_uid.get(uid)

    def groups_count(self) -> int:
        return len(self._groups_by_uid)

    # -- changing them

    def apply(self, event: e.Event) -> None:
        self.version += 1
        _APPLY[type(event)](self, event)

    def _used(self, uid: int) -> None:
        self.next_uid = max(self.next_uid, uid + 1)

    def _add_stream(self, stream: Stream) -> None:
        self._used(stream.uid)
        self.streams[stream.id] = stream
        self._streams_by_uid[stream.uid] = stream
        self._streams_by_name[stream.name] = stream

    def _stream_created(self, event: e.StreamCreated) -> None:
        self._add_stream(
            Stream(
                uid=event.uid,
                id=event.id,
                name=event.name,
                created_at=event.created_at,
                options=event.options,
            )
        )

    def _stream_renamed(self, event: e.StreamRenamed) -> None:
        stream = self._streams_by_uid[event.uid]
        del self._streams_by_name[stream.name]
        stream.name = event.name
        self._streams_by_name[stream.name] = stream
        if event.options is not None:
            stream.options = event.options

    def _stream_deleted(self, event: e.StreamDeleted) -> None:
        stream = self._streams_by_uid.pop(event.uid)
        for topic in list(stream.topics.values()):
            self._drop_topic(stream, topic)
        del self.streams[stream.id]
        del self._streams_by_name[stream.name]
        self._change_grants(lambda streams: _without(streams, stream.uid))

    def _add_topic(self, topic: Topic) -> None:
        self._used(topic.uid)
        self._streams_by_uid[topic.stream_uid].topics[topic.id] = topic
        self._topics_by_uid[topic.uid] = topic
        self._topics_by_name[topic.stream_uid, topic.name] = topic
        for group in topic.groups.values():
            self._add_group(topic, group)

    def _topic_created(self, event: e.TopicCreated) -> None:
        self._add_topic(
            Topic(
                uid=event.uid,
                stream_uid=event.stream_uid,
                id=event.id,
                name=event.name,
                created_at=event.created_at,
                compression=event.compression,
                expiry=event.expiry,
                max_size=event.max_size,
                replication=event.replication,
                partitions=[
                    Partition(id=index, created_at=event.created_at, generation=0, shard=shard)
                    for index, shard in enumerate(event.shards or [0] * event.partitions)
                ],
                options=event.options,
            )
        )

    def _topic_updated(self, event: e.TopicUpdated) -> None:
        topic = self._topics_by_uid[event.uid]
        del self._topics_by_name[topic.stream_uid, topic.name]
        topic.name = event.name
        self._topics_by_name[topic.stream_uid, topic.name] = topic
        topic.compression = event.compression
        topic.expiry = event.expiry
        topic.max_size = event.max_size
        topic.replication = event.replication
        if event.options is not None:
            topic.options = event.options

    def _topic_deleted(self, event: e.TopicDeleted) -> None:
        topic = self._topics_by_uid[event.uid]
        stream = self._streams_by_uid[topic.stream_uid]
        self._drop_topic(stream, topic)

        def strip(streams: dict[int, StreamGrant]) -> dict[int, StreamGrant]:
            grant = streams.get(stream.uid)
            if grant is None or topic.uid not in grant.topics:
                return streams
            kept = msgspec.structs.replace(grant, topics=_without(grant.topics, topic.uid))
            return {**streams, stream.uid: kept}

        self._change_grants(strip)

    def _drop_topic(self, stream: Stream, topic: Topic) -> None:
        for partition in topic.partitions:
            self._doom(partition)
        for group in topic.groups.values():
            del self._groups_by_uid[group.uid]
        del stream.topics[topic.id]
        del self._topics_by_uid[topic.uid]
        del self._topics_by_name[topic.stream_uid, topic.name]

    def _change_grants(
        self, change: Callable[[dict[int, StreamGrant]], dict[int, StreamGrant]]
    ) -> None:
        for user in self.users.values():
            if user.permissions is not None and user.permissions.streams:
                user.permissions = Permissions(
                    rights=user.permissions.rights, streams=change(user.permissions.streams)
                )

    def _doom(self, partition: Partition) -> None:
        if partition.stream_id != UNASSIGNED:
            self.doomed.add(partition.stream_id)
            partition.stream_id = UNASSIGNED

    def _topics_purged(self, event: e.TopicsPurged) -> None:
        for uid in event.uids:
            topic = self._topics_by_uid[uid]
            topic.generation += 1
            for partition in topic.partitions:
                self._doom(partition)
                partition.generation = topic.generation

    def _partitions_added(self, event: e.PartitionsAdded) -> None:
        topic = self._topics_by_uid[event.topic_uid]
        first = len(topic.partitions)
        topic.partitions.extend(
            Partition(
                id=index, created_at=event.created_at, generation=topic.generation, shard=shard
            )
            for index, shard in enumerate(event.shards or [0] * event.count, first)
        )

    def _partitions_removed(self, event: e.PartitionsRemoved) -> None:
        topic = self._topics_by_uid[event.topic_uid]
        for _ in range(event.count):
            self._doom(topic.partitions.pop())
        # A partition made later under the same number must not meet this one's offsets.
        topic.generation += 1

    def _partition_assigned(self, event: e.PartitionAssigned) -> None:
        partition = self.find_partition(event.topic_uid, event.partition, event.generation)
        if partition is None:  # deleted or purged while the stream was being made
            self.doomed.add(event.stream_id)
        else:
            partition.stream_id = event.stream_id

    def find_partition(self, topic_uid: int, partition: int, generation: int) -> Partition | None:
        topic = self._topics_by_uid.get(topic_uid)
        if topic is None or partition >= len(topic.partitions):
            return None
        found = topic.partitions[partition]
        return found if found.generation == generation else None

    def _streams_reclaimed(self, event: e.StreamsReclaimed) -> None:
        self.doomed.difference_update(event.stream_ids)

    def _add_group(self, topic: Topic, group: Group) -> None:
        self._used(group.uid)
        topic.groups[group.id] = group
        self._groups_by_uid[group.uid] = (topic, group)

    def _group_created(self, event: e.GroupCreated) -> None:
        topic = self._topics_by_uid[event.topic_uid]
        self._add_group(topic, Group(uid=event.uid, id=event.id, name=event.name))

    def _group_deleted(self, event: e.GroupDeleted) -> None:
        topic, group = self._groups_by_uid.pop(event.uid)
        del topic.groups[group.id]

    def _add_user(self, user: User) -> None:
        self._used(user.uid)
        self.users[user.id] = user
        self._users_by_uid[user.uid] = user
        self._users_by_name[user.name] = user
        for token in user.tokens.values():
            self._users_by_token[token.digest] = (user, token)

    def _user_created(self, event: e.UserCreated) -> None:
        self._add_user(
            User(
                uid=event.uid,
                id=event.id,
                name=event.name,
                created_at=event.created_at,
                status=event.status,
                password_hash=event.password_hash,
                permissions=event.permissions,
                options=event.options,
            )
        )

    def _user_updated(self, event: e.UserUpdated) -> None:
        user = self._users_by_uid[event.uid]
        del self._users_by_name[user.name]
        user.name, user.status = event.name, event.status
        self._users_by_name[user.name] = user
        if event.options is not None:
            user.options = event.options

    def _user_deleted(self, event: e.UserDeleted) -> None:
        user = self._users_by_uid.pop(event.uid)
        del self.users[user.id]
        del self._users_by_name[user.name]
        for token in user.tokens.values():
            del self._users_by_token[token.digest]

    def _permissions_changed(self, event: e.PermissionsChanged) -> None:
        self._users_by_uid[event.uid].permissions = event.permissions

    def _password_changed(self, event: e.PasswordChanged) -> None:
        user = self._users_by_uid[event.uid]
        user.password_hash = event.password_hash
        if event.ends_tokens:
            for token in user.tokens.values():
                del self._users_by_token[token.digest]
            user.tokens.clear()

    def _token_created(self, event: e.TokenCreated) -> None:
        user = self._users_by_uid[event.user_uid]
        token = Token(name=event.name, digest=event.digest, expiry_at=event.expiry_at)
        user.tokens[token.name] = token
        self._users_by_token[token.digest] = (user, token)

    def _token_deleted(self, event: e.TokenDeleted) -> None:
        token = self._users_by_uid[event.user_uid].tokens.pop(event.name)
        del self._users_by_token[token.digest]

    def _cluster_named(self, event: e.ClusterNamed) -> None:
        self.cluster_uuid = event.uuid
        self.shards = event.shards

    def _offsets_divided(self, event: e.OffsetsDivided) -> None:
        self.divided.update(event.shards)

    def _partitions_moved(self, event: e.PartitionsMoved) -> None:
        for topic_uid, number, generation, shard in event.moves:
            partition = self.find_partition(topic_uid, number, generation)
            if partition is not None:
                partition.shard = shard

    def _shard_pinned(self, event: e.ShardPinned) -> None:
        if event.worker:
            self.pins[event.shard] = event.worker
        else:
            self.pins.pop(event.shard, None)

    # -- snapshots

    def snapshot(self) -> tuple[int, Iterator[bytes]]:
        """(version, chunks): a head, then a chunk per user, per stream, per topic.

        Taken as one moment: the caller consumes the chunks before the next `apply`.
        """
        return SNAPSHOT_VERSION, self._chunks()

    def _chunks(self) -> Iterator[bytes]:
        encode = msgspec.msgpack.Encoder().encode
        yield encode(
            _Head(
                next_uid=self.next_uid,
                doomed=sorted(self.doomed),
                users=len(self.users),
                streams=len(self.streams),
                topics=len(self._topics_by_uid),
                cluster_uuid=self.cluster_uuid,
                requests=list(self.requests.rows()),
                shards=self.shards,
                divided=sorted(self.divided),
                pins=self.pins,
            )
        )
        yield from map(encode, self.users.values())
        for stream in self.streams.values():
            yield encode(msgspec.structs.replace(stream, topics={}))
        yield from map(encode, self._topics_by_uid.values())

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        """Become what `snapshot` saw."""
        if version != SNAPSHOT_VERSION:
            raise FormatError("catalogue snapshot of a newer version", version=version)
        self.__init__()  # type: ignore[misc]  # every field starts over, none can be forgotten
        remaining = iter(chunks)

        def take(kind: type[Any], count: int) -> Iterator[Any]:
            for _ in range(count):
                yield msgspec.msgpack.decode(next(remaining), type=kind)

        try:
            (head,) = take(_Head, 1)
            for user in take(User, head.users):
                self._add_user(user)
            for stream in take(Stream, head.streams):
                self._add_stream(stream)
            for topic in take(Topic, head.topics):
                self._add_topic(topic)
        except (RuntimeError, ValueError, msgspec.MsgspecError) as error:
            # A generator that meets StopIteration raises RuntimeError: the snapshot is cut short.
            raise FormatError("catalogue snapshot does not decode") from error
        self.next_uid = head.next_uid
        self.doomed = set(head.doomed)
        self.cluster_uuid = head.cluster_uuid
        self.shards = head.shards
        self.divided = set(head.divided)
        self.pins = dict(head.pins)
        self.requests.restore(head.requests)

    def dump(self) -> object:
        """The whole state as plain values, for comparison."""
        return msgspec.to_builtins(
            [
                self.next_uid,
                sorted(self.doomed),
                self.users,
                self.streams,
                self.cluster_uuid,
                list(self.requests.rows()),
                self.shards,
                sorted(self.divided),
                self.pins,
            ],
            builtin_types=(bytes,),
        )


def find_group(topic: Topic, reference: Reference) -> Group | None:
    if isinstance(reference, int):
        return topic.groups.get(reference)
    return next((g for g in topic.groups.values() if g.name == reference), None)


def group_of(topic: Topic, reference: Reference) -> Group:
    group = find_group(topic, reference)
    if group is None:
        raise GroupNotFoundError(topic=topic.name, group=reference)
    return group


def partition_of(topic: Topic, partition: int) -> Partition:
    if partition >= len(topic.partitions):
        raise PartitionNotFoundError(topic=topic.name, partition=partition)
    return topic.partitions[partition]


def _without(values: dict[int, Any], key: int) -> dict[int, Any]:
    return {k: v for k, v in values.items() if k != key}


_APPLY: dict[type[e.Event], Callable[[Catalogue, Any], None]] = {
    e.StreamCreated: Catalogue._stream_created,
    e.StreamRenamed: Catalogue._stream_renamed,
    e.StreamDeleted: Catalogue._stream_deleted,
    e.TopicCreated: Catalogue._topic_created,
    e.TopicUpdated: Catalogue._topic_updated,
    e.TopicDeleted: Catalogue._topic_deleted,
    e.TopicsPurged: Catalogue._topics_purged,
    e.PartitionsAdded: Catalogue._partitions_added,
    e.PartitionsRemoved: Catalogue._partitions_removed,
    e.PartitionAssigned: Catalogue._partition_assigned,
    e.GroupCreated: Catalogue._group_created,
    e.GroupDeleted: Catalogue._group_deleted,
    e.UserCreated: Catalogue._user_created,
    e.UserUpdated: Catalogue._user_updated,
    e.UserDeleted: Catalogue._user_deleted,
    e.PermissionsChanged: Catalogue._permissions_changed,
    e.PasswordChanged: Catalogue._password_changed,
    e.TokenCreated: Catalogue._token_created,
    e.TokenDeleted: Catalogue._token_deleted,
    e.StreamsReclaimed: Catalogue._streams_reclaimed,
    e.ClusterNamed: Catalogue._cluster_named,
    e.OffsetsDivided: Catalogue._offsets_divided,
    e.PartitionsMoved: Catalogue._partitions_moved,
    e.ShardPinned: Catalogue._shard_pinned,
}
