"""Consumer groups."""

from __future__ import annotations

from headrace.broker.catalogue import decisions
from headrace.broker.catalogue.state import find_group, group_of
from headrace.broker.core import Broker
from headrace.broker.handlers.views import view_group, view_group_details
from headrace.broker.sessions.sessions import Session
from headrace.wire.iggy.messages import consumers as m


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


async def leave_group(broker: Broker, session: Session, request: m.LeaveGroup) -> None:
    topic = broker.catalogue.topic(request.stream, request.topic)
    group = group_of(topic, request.group)
    broker.membership.leave(group.uid, session.client_id, partitions=len(topic.partitions))


async def sync_group(broker: Broker, session: Session, request: m.SyncGroup) -> m.GroupAssignment:
    topic = broker.catalogue.topic(request.stream, request.topic)
    group = group_of(topic, request.group)
    member = broker.membership.member(group.uid, session.client_id)
    generation = broker.membership.generation(group.uid)
    return m.GroupAssignment(generation, tuple(member.partitions))
