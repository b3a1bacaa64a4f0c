"""Streams."""

from __future__ import annotations

from headrace.broker.catalogue import decisions
from headrace.broker.catalogue.events import StreamRenamed
from headrace.broker.catalogue.options import keep_options
from headrace.broker.core import Broker
from headrace.broker.handlers.views import open_logs, view_stream, view_stream_details
from headrace.broker.sessions.sessions import Session
from headrace.wire.iggy.messages import streams as m
from headrace.wire.iggy.messages.system import Empty


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
