"""Headrace's own commands."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headrace.broker.catalogue.resources import Topic
from headrace.broker.core import Broker
from headrace.broker.sessions.sessions import Session
from headrace.errors import StateError
from headrace.net.credentials import make_ticket
from headrace.sbp_client.ranges import replica_addresses
from headrace.wire.iggy.commands import SERVED
from headrace.wire.iggy.messages import extensions as m
from headrace.wire.iggy.messages.system import Empty

_FIRST_CODE = 9000


async def hello(broker: Broker, session: Session, request: Empty) -> m.ServerHello:
    return m.ServerHello(
        version=broker.identity.version,
        cluster=broker.cluster_uuid,
        features=tuple(row.name for code, row in SERVED.items() if code > _FIRST_CODE),
    )


async def read_ticket(broker: Broker, session: Session, request: m.ReadTicket) -> m.Ticket:
    """Reads of these topics straight from the data nodes, for as long as the ticket lasts.

    Makes the SBP streams that do not exist yet, so that a reader may wait for their first message.
    """
    topics = [broker.catalogue.topic(stream, topic) for stream, topic in request.topics]
    views = await asyncio.gather(*(_topic(broker, topic) for topic in topics))
    stream_ids = [partition.sbp_stream for view in views for partition in view.partitions]
    expires_ms = broker.runtime.clock.now_ms() + broker.settings.ticket_ms
    return m.Ticket(
        cluster=broker.cluster_uuid,
        ticket=make_ticket(broker.identity.secret, stream_ids, expires_ms),
        expires_ms=expires_ms,
        placement=broker.identity.placement_address,
        nodes=await _nodes(broker, stream_ids),
        topics=tuple(views),
    )


async def _nodes(broker: Broker, stream_ids: list[int]) -> tuple[str, ...]:
    """Where the streams' data is, replicas included; a hint, so an unknown place is no error."""
    with suppress(StateError):
        found = await broker.client.list_ranges_of(stream_ids)
        return tuple(
            sorted(
                {
                    address
                    for ranges in found.values()
                    for range_ in ranges
                    for address in replica_addresses(range_)
                }
            )
        )
    return ()


async def _topic(broker: Broker, topic: Topic) -> m.TicketTopic:
    partitions = list(topic.partitions)
    logs = await asyncio.gather(
        *(broker.partitions.get(topic, partition) for partition in partitions)
    )
    stream = broker.catalogue.stream_by_uid(topic.stream_uid)
    return m.TicketTopic(
        stream="" if stream is None else stream.name,
        topic=topic.name,
        stream_id=0 if stream is None else stream.id,
        topic_id=topic.id,
        uid=topic.uid,
        partitions=tuple(
            m.TicketPartition(
                partition=partition.id,
                generation=partition.generation,
                sbp_stream=log.stream_id,
                start=log.start_offset,
                next=log.committed,
            )
            for partition, log in zip(partitions, logs, strict=True)
        ),
    )
