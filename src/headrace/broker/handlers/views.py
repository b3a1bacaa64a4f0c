"""Catalogue resources as replies show them, with the figures of their logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from headrace.broker.catalogue import resources as r
from headrace.broker.catalogue.options import view_options
from headrace.broker.core import Broker
from headrace.broker.partitions.stored_sizes import PartitionFigures
from headrace.broker.sessions.request_dedup import Effect
from headrace.wire.iggy.commands import Encodable
from headrace.wire.iggy.messages import consumers, topics, users
from headrace.wire.iggy.primitives import decode_options
from headrace.wire.iggy.refusals import RequestAppliedError

FiguresByTopic: TypeAlias = dict[int, list[PartitionFigures | None]]
"""Figures of partitions by topic uid; None where nothing was ever written."""


async def open_logs(broker: Broker, which: Iterable[r.Topic]) -> FiguresByTopic:
    """The figures of these topics' partitions."""
    pairs = [(topic, partition) for topic in which for partition in topic.partitions]
    figures = await broker.partitions.figures(pairs)
    found: FiguresByTopic = {topic.uid: [] for topic, _ in pairs}
    for (topic, _), each in zip(pairs, figures, strict=True):
        found[topic.uid].append(each)
    return found


def _sums(figures: Iterable[PartitionFigures | None]) -> tuple[int, int]:
    """(bytes, messages)"""
    stored = [each for each in figures if each is not None]
    return sum(each.size_bytes for each in stored), sum(each.messages_count for each in stored)


def view_topic(broker: Broker, topic: r.Topic, logs: FiguresByTopic) -> topics.Topic:
    size, messages = _sums(logs.get(topic.uid, ()))
    expiry, max_size = broker.expiry_of(topic), broker.max_size_of(topic)
    options, derived = view_options(topic, expiry=expiry, max_size=max_size)
    return topics.Topic(
        id=topic.id,
        created_at_us=topic.created_at,
        partitions_count=len(topic.partitions),
        message_expiry_us=expiry,
        compression=topics.Compression(topic.compression),
        max_size_bytes=max_size,
        replication_factor=topic.replication,
        size_bytes=size,
        messages_count=messages,
        name=topic.name,
        options=options,
        derived=derived,
    )


async def view_topic_details(broker: Broker, topic: r.Topic) -> topics.TopicDetails:
    logs = await open_logs(broker, [topic])
    return topics.TopicDetails(
        view_topic(broker, topic, logs),
        tuple(
            _view_partition(partition, log)
            for partition, log in zip(topic.partitions, logs.get(topic.uid, ()), strict=False)
        ),
    )


def _view_partition(partition: r.Partition, log: PartitionFigures | None) -> topics.PartitionInfo:
    return topics.PartitionInfo(
        id=partition.id,
        created_at_us=partition.created_at,
        segments_count=1 if log is None else max(1, len(log.segments)),
        current_offset=0 if log is None else log.current_offset,
        size_bytes=0 if log is None else log.size_bytes,
        messages_count=0 if log is None else log.messages_count,
    )


def view_stream(stream: r.Stream, logs: FiguresByTopic) -> topics.Stream:
    size, messages = _sums(
        log for topic in stream.topics.values() for log in logs.get(topic.uid, ())
    )
    return topics.Stream(
        id=stream.id,
        created_at_us=stream.created_at,
        topics_count=len(stream.topics),
        size_bytes=size,
        messages_count=messages,
        name=stream.name,
        options=decode_options(stream.options),
    )


async def view_stream_details(broker: Broker, stream: r.Stream) -> topics.StreamDetails:
    logs = await open_logs(broker, list(stream.topics.values()))
    return topics.StreamDetails(
        view_stream(stream, logs),
        tuple(view_topic(broker, topic, logs) for topic in stream.topics.values()),
    )


def view_group(broker: Broker, topic: r.Topic, group: r.Group) -> consumers.Group:
    return consumers.Group(
        id=group.id,
        partitions_count=len(topic.partitions),
        members_count=len(broker.membership.members(group.uid)),
        name=group.name,
    )


def view_group_details(broker: Broker, topic: r.Topic, group: r.Group) -> consumers.GroupDetails:
    return consumers.GroupDetails(
        view_group(broker, topic, group),
        tuple(
            consumers.GroupMember(member.client_id, tuple(member.partitions))
            for member in broker.membership.members(group.uid)
        ),
    )


# -- users


def view_user(user: r.User) -> users.User:
    return users.User(
        id=user.id,
        created_at_us=user.created_at,
        status=users.UserStatus(user.status),
        username=user.name,
        options=decode_options(user.options),
    )


def view_user_details(broker: Broker, user: r.User) -> users.UserDetails:
    return users.UserDetails(view_user(user), _view_permissions(broker, user.permissions))


_GLOBAL = tuple(str(flag.name).lower() for flag in r.GlobalRight)
_STREAM = tuple(str(flag.name).lower() for flag in r.StreamRight)
_TOPIC = tuple(str(flag.name).lower() for flag in r.TopicRight)


def _flags(bits: int, names: tuple[str, ...]) -> dict[str, bool]:
    return {name: bool(bits >> position & 1) for position, name in enumerate(names)}


def _bits(body: object, names: tuple[str, ...]) -> int:
    return sum(bool(getattr(body, name)) << position for position, name in enumerate(names))


def _view_permissions(
    broker: Broker, permissions: r.Permissions | None
) -> users.Permissions | None:
    if permissions is None:
        return None
    granted = []
    for stream_uid, grant in permissions.streams.items():
        stream = broker.catalogue.stream_by_uid(stream_uid)
        if stream is None:
            continue
        ids = {topic.uid: topic.id for topic in stream.topics.values()}
        granted.append(
            users.StreamPermissions(
                stream_id=stream.id,
                **_flags(grant.rights, _STREAM),
                topics=tuple(
                    users.TopicPermissions(topic_id=ids[uid], **_flags(bits, _TOPIC))
                    for uid, bits in grant.topics.items()
                    if uid in ids
                ),
            )
        )
    return users.Permissions(
        users.GlobalPermissions(**_flags(permissions.rights, _GLOBAL)), tuple(granted)
    )


def read_permissions(
    block: users.Permissions,
) -> tuple[int, dict[int, tuple[int, dict[int, int]]]]:
    """Bits by id, as `decisions.resolve_permissions` takes them."""
    return _bits(block.everywhere, _GLOBAL), {
        stream.stream_id: (
            _bits(stream, _STREAM),
            {topic.topic_id: _bits(topic, _TOPIC) for topic in stream.topics},
        )
        for stream in block.streams
    }


# -- answers that an earlier term gave


async def repeat_answer(broker: Broker, effect: Effect) -> Encodable | None:
    """What was made is shown as it is now; a change without an answer needs none.

    RequestAppliedError when it is gone, or was a secret that nobody else keeps.
    """
    catalogue, uid = broker.catalogue, effect.uid
    match effect.kind:
        case "StreamCreated":
            if (stream := catalogue.stream_by_uid(uid)) is not None:
                return await view_stream_details(broker, stream)
        case "TopicCreated":
            if (topic := catalogue.topic_by_uid(uid)) is not None:
                return await view_topic_details(broker, topic)
        case "GroupCreated":
            if (group := catalogue.group_by_uid(uid)) is not None:
                return view_group_details(broker, *group)
        case "UserCreated":
            if (user := catalogue.user_by_uid(uid)) is not None:
                return view_user_details(broker, user)
        case "TokenCreated":
            pass
        case _:
            return None
    raise RequestAppliedError(effect=effect.kind)
