"""Streams, topics, partitions and segments: made, shown, changed and deleted."""

from __future__ import annotations

from headrace.broker.catalogue import decisions, events
from headrace.broker.catalogue.events import StreamRenamed
from headrace.broker.catalogue.options import keep_options, read_options
from headrace.broker.catalogue.resources import UNASSIGNED
from headrace.broker.catalogue.state import partition_of
from headrace.broker.core import Broker
from headrace.broker.handlers.views import (
    open_logs,
    view_stream,
    view_stream_details,
    view_topic,
    view_topic_details,
)
from headrace.broker.sessions.sessions import Session
from headrace.broker.term.broker_registry import topic_replicas
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages import topics as m
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.refusals import InvalidSegmentsCountError


async def get_topic(broker: Broker, session: Session, request: m.GetTopic) -> m.TopicDetails | None:
    topic = broker.catalogue.find_topic(request.stream, request.topic)
    return None if topic is None else await view_topic_details(broker, topic)


async def get_topics(broker: Broker, session: Session, request: m.GetTopics) -> m.Topics:
    if session.rules.lists_need_parent:
        broker.catalogue.stream(request.stream)
    stream = broker.catalogue.find_stream(request.stream)
    if stream is None:
        return m.Topics(())
    topics = list(stream.topics.values())
    logs = await open_logs(broker, topics)
    return m.Topics(tuple(view_topic(broker, topic, logs) for topic in topics))


async def create_topic(broker: Broker, session: Session, request: m.CreateTopic) -> m.TopicDetails:
    given = read_options(request.options, creating=True)
    options = keep_options(given.options)

    def decide(replicas: int) -> events.TopicCreated:
        return decisions.create_topic(
            broker.catalogue,
            request.stream,
            name=request.name,
            partitions=request.partitions_count,
            compression=_either(given.compression, request.compression),
            expiry=_either(given.expiry, request.message_expiry_us),
            max_size=_either(given.max_size, request.max_size_bytes),
            replication=replicas,
            now_us=broker.runtime.clock.now_us(),
            wanted_id=request.topic_id,
            options=options,
        )

    decide(1)  # a name that is taken is told before a lack of data nodes
    replicas = await topic_replicas(broker.settings, broker.registry, request.replication_factor)
    event = await broker.commit(lambda: decide(replicas))
    topic = broker.catalogue.topic_by_uid(event.uid)
    # Between the event and this line it may have been deleted again by somebody else.
    return await view_topic_details(
        broker, topic or broker.catalogue.topic(request.stream, event.id)
    )


def _either(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given


async def delete_topic(broker: Broker, session: Session, request: m.DeleteTopic) -> None:
    await broker.commit(
        lambda: decisions.delete_topic(broker.catalogue, request.stream, request.topic)
    )


async def update_topic(broker: Broker, session: Session, request: m.UpdateTopic) -> None:
    """Another replication factor holds for what is written from now on, and soon for the rest."""
    replicas = request.replication_factor
    if replicas:
        replicas = await topic_replicas(broker.settings, broker.registry, replicas)
    given = read_options(request.options, creating=False)

    def decide() -> events.TopicUpdated:
        before = broker.catalogue.topic(request.stream, request.topic)
        stays = session.dialect is Dialect.C  # what its options do not name
        return decisions.update_topic(
            broker.catalogue,
            request.stream,
            request.topic,
            name=request.name,
            compression=_either(
                given.compression, before.compression if stays else request.compression
            ),
            expiry=_either(given.expiry, before.expiry if stays else request.message_expiry_us),
            max_size=_either(given.max_size, before.max_size if stays else request.max_size_bytes),
            replication=replicas,
            options=keep_options(given.options, before.options) if stays else None,
        )

    event = await broker.commit(decide)
    topic = broker.catalogue.topic_by_uid(event.uid)
    for partition in () if topic is None or not replicas else topic.partitions:
        if partition.stream_id != UNASSIGNED:
            await broker.client.update(partition.stream_id, replica_nums=replicas)


async def purge_topic(broker: Broker, session: Session, request: m.PurgeTopic) -> None:
    await broker.commit(
        lambda: decisions.purge_topic(broker.catalogue, request.stream, request.topic)
    )


async def create_partitions(broker: Broker, session: Session, request: m.CreatePartitions) -> None:
    await broker.commit(
        lambda: decisions.create_partitions(
            broker.catalogue,
            request.stream,
            request.topic,
            count=request.partitions_count,
            now_us=broker.runtime.clock.now_us(),
        )
    )


async def delete_partitions(broker: Broker, session: Session, request: m.DeletePartitions) -> None:
    await broker.commit(
        lambda: decisions.delete_partitions(
            broker.catalogue,
            request.stream,
            request.topic,
            count=request.partitions_count,
            clamp=session.rules.removes_what_exists,
        )
    )


async def delete_segments(broker: Broker, session: Session, request: m.DeleteSegments) -> None:
    """Remove up to that many of the oldest closed segments."""
    topic = broker.catalogue.topic(request.stream, request.topic)
    partition = partition_of(topic, request.partition)
    if request.segments_count == 0:
        raise InvalidSegmentsCountError(segments=0)
    closed = await broker.partitions.closed_segments(topic, partition)
    doomed = closed[: request.segments_count]
    if doomed:
        await broker.trim(topic, partition, doomed[-1].end)


async def get_stream(
    broker: Broker, session: Session, request: m.GetStream
) -> m.StreamDetails | None:
    stream = broker.catalogue.find_stream(request.stream)
    return None if stream is None else await view_stream_details(broker, stream)


async def get_streams(broker: Broker, session: Session, request: Empty) -> m.Streams:
    logs = await open_logs(broker, list(broker.catalogue.topics()))
    return m.Streams(
        tuple(view_stream(stream, logs) for stream in broker.catalogue.streams.values())
    )


async def create_stream(
    broker: Broker, session: Session, request: m.CreateStream
) -> m.StreamDetails:
    event = await broker.commit(
        lambda: decisions.create_stream(
            broker.catalogue,
            name=request.name,
            now_us=broker.runtime.clock.now_us(),
            wanted_id=request.stream_id,
            options=keep_options(request.options),
        )
    )
    return await view_stream_details(broker, broker.catalogue.stream(event.id))


async def delete_stream(broker: Broker, session: Session, request: m.DeleteStream) -> None:
    await broker.commit(lambda: decisions.delete_stream(broker.catalogue, request.stream))


async def update_stream(broker: Broker, session: Session, request: m.UpdateStream) -> None:
    def decide() -> StreamRenamed:
        before = broker.catalogue.stream(request.stream).options
        options = keep_options(request.options, before) if request.options else None
        return decisions.rename_stream(
            broker.catalogue, request.stream, name=request.name, options=options
        )

    await broker.commit(decide)


async def purge_stream(broker: Broker, session: Session, request: m.PurgeStream) -> None:
    await broker.commit(lambda: decisions.purge_stream(broker.catalogue, request.stream))
