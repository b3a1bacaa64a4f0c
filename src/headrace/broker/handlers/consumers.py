"""Consumer groups, and the offsets that consumers and groups have stored."""

from __future__ import annotations

from headrace.broker.catalogue import decisions
from headrace.broker.catalogue.resources import Partition, Topic
from headrace.broker.catalogue.state import find_group, group_of, partition_of
from headrace.broker.core import Broker
from headrace.broker.handlers.messages import resolve
from headrace.broker.handlers.views import view_group, view_group_details
from headrace.broker.partitions.offsets import DELETED, Reader, StoredOffset
from headrace.broker.partitions.open_partitions import place_of
from headrace.broker.sessions.sessions import Session
from headrace.wire.iggy.messages import consumers as m
from headrace.wire.iggy.primitives import Consumer
from headrace.wire.iggy.refusals import (
    ConsumerNotResolvedError,
    GroupNotFoundError,
    InvalidOffsetError,
    MemberNotFoundError,
    OffsetNotFoundError,
    PartitionNotFoundError,
)


async def get_group(broker: Broker, session: Session, request: m.GetGroup) -> m.GroupDetails | None:
    topic = broker.catalogue.find_topic(request.stream, request.topic)
    group = None if topic is None else find_group(topic, request.group)
    if topic is None or group is None:
        return None
    return view_group_details(broker, topic, group)


async def get_groups(broker: Broker, session: Session, request: m.GetGroups) -> m.Groups:
    if session.rules.lists_need_parent:
        broker.catalogue.topic(request.stream, request.topic)
    topic = broker.catalogue.find_topic(request.stream, request.topic)
    if topic is None:
        return m.Groups(())
    return m.Groups(tuple(view_group(broker, topic, group) for group in topic.groups.values()))


async def create_group(broker: Broker, session: Session, request: m.CreateGroup) -> m.GroupDetails:
    event = await broker.commit(
        lambda: decisions.create_group(
            broker.catalogue,
            request.stream,
            request.topic,
            name=request.name,
            wanted_id=request.group_id,
        )
    )
    topic = broker.catalogue.topic(request.stream, request.topic)
    return view_group_details(broker, topic, group_of(topic, event.id))


async def delete_group(broker: Broker, session: Session, request: m.DeleteGroup) -> None:
    await broker.commit(
        lambda: decisions.delete_group(
            broker.catalogue, request.stream, request.topic, request.group
        )
    )


async def join_group(broker: Broker, session: Session, request: m.JoinGroup) -> None:
    topic = broker.catalogue.topic(request.stream, request.topic)
    group = group_of(topic, request.group)
    broker.membership.join(group.uid, session.client_id, partitions=len(topic.partitions))
    broker.workers.on_joined(session.client_id, session.via)
    await broker.workers.wait_members()


async def leave_group(broker: Broker, session: Session, request: m.LeaveGroup) -> None:
    topic = broker.catalogue.topic(request.stream, request.topic)
    group = group_of(topic, request.group)
    broker.membership.leave(group.uid, session.client_id, partitions=len(topic.partitions))
    await broker.workers.wait_members()


async def sync_group(broker: Broker, session: Session, request: m.SyncGroup) -> m.GroupAssignment:
    topic = broker.catalogue.topic(request.stream, request.topic)
    group = group_of(topic, request.group)
    member = broker.membership.member(group.uid, session.client_id)
    generation = broker.membership.generation(group.uid)
    return m.GroupAssignment(generation, tuple(member.partitions))


def _target(
    broker: Broker, session: Session, topic: Topic, consumer: Consumer, partition: int | None
) -> tuple[Reader, Partition]:
    """Without a partition: the member's current one for a group, the first for a consumer."""
    try:
        resolved = resolve(broker, session, topic, consumer, member=partition is None)
    except (GroupNotFoundError, MemberNotFoundError) as error:
        raise ConsumerNotResolvedError(**error.data) from error
    if partition is None:
        partition = 0 if resolved.member is None else resolved.member.current_partition()
        if partition is None:
            raise ConsumerNotResolvedError("the member has no partition")
    return resolved.reader, partition_of(topic, partition)


async def get_offset(
    broker: Broker, session: Session, request: m.GetConsumerOffset
) -> m.ConsumerOffset | None:
    topic = broker.catalogue.find_topic(request.stream, request.topic)
    if topic is None:
        return None
    try:
        reader, partition = _target(broker, session, topic, request.consumer, request.partition)
    except (ConsumerNotResolvedError, PartitionNotFoundError):
        return None
    log = await broker.partitions.find(topic, partition)  # opening it may clamp the offset
    stored = broker.offsets.get(place_of(topic, partition), reader)
    if log is None or stored is None:
        return None
    return m.ConsumerOffset(partition.id, log.current_offset, stored)


async def store_offset(broker: Broker, session: Session, request: m.StoreConsumerOffset) -> None:
    topic = broker.catalogue.topic(request.stream, request.topic)
    reader, partition = _target(broker, session, topic, request.consumer, request.partition)
    log = await broker.partitions.find(topic, partition)
    if log is None or request.offset >= log.committed:
        raise InvalidOffsetError(
            offset=request.offset, messages_end=0 if log is None else log.committed
        )
    await broker.offset_logs.store(
        [StoredOffset(place_of(topic, partition), reader, request.offset)]
    )


async def delete_offset(broker: Broker, session: Session, request: m.DeleteConsumerOffset) -> None:
    topic = broker.catalogue.topic(request.stream, request.topic)
    reader, partition = _target(broker, session, topic, request.consumer, request.partition)
    place = place_of(topic, partition)
    if broker.offsets.get(place, reader) is None:
        raise OffsetNotFoundError(topic=topic.name, partition=partition.id)
    await broker.offset_logs.store([StoredOffset(place, reader, DELETED)])
