"""Streams and topics: one in full, and what changes them. All of it as the user who asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import Request

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue, TopicState, may
from headrace.web.broker_api.messages import TOPIC
from headrace.web.server.endpoints import Endpoint
from headrace.web.server.logins import Broker, Login
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.topics import (
    SERVER_DEFAULT,
    UNLIMITED,
    PartitionInfo,
    TopicDetails,
)

STREAM = "/api/v1/streams/{stream}"


def endpoints(broker: Broker, catalogue: Catalogue) -> list[Endpoint]:
    @asynccontextmanager
    async def changing(request: Request) -> AsyncIterator[IggyClient]:
        """Change something as the user; what was changed is in the catalogue afterwards."""
        async with broker.as_user(request.state.credentials) as client:
            yield client
        await catalogue.look_again()

    async def create_stream(request: Request, wanted: t.CreateStream) -> t.Done:
        async with changing(request) as client:
            await client.create_stream(wanted.name)
        return t.Done(detail=f"stream {wanted.name}")

    async def delete_stream(request: Request) -> t.Done:
        stream = request.path_params["stream"]
        async with changing(request) as client:
            await client.delete_stream(stream)
        return t.Done(detail=f"stream {stream}")

    async def purge_stream(request: Request) -> t.Done:
        stream = request.path_params["stream"]
        async with changing(request) as client:
            await client.purge_stream(stream)
        return t.Done(detail=f"all messages of stream {stream}")

    async def create_topic(request: Request, wanted: t.CreateTopic) -> t.Done:
        stream = request.path_params["stream"]
        async with changing(request) as client:
            await client.create_topic(
                stream,
                wanted.name,
                partitions_count=wanted.partitions,
                message_expiry_us=_given(wanted.expiry_ms, 1000, SERVER_DEFAULT),
                max_size_bytes=_given(wanted.max_bytes, 1, SERVER_DEFAULT),
                replication_factor=wanted.replicas,
            )
        return t.Done(detail=f"topic {stream}/{wanted.name}")

    async def show_topic(request: Request) -> t.TopicInfo:
        stream, topic = _names(request)
        async with broker.as_user(request.state.credentials) as client:
            details = await topic_details(client, stream, topic)
        state = catalogue.find(stream, topic)
        if state is None:
            await catalogue.look_again()
            state = catalogue.find(stream, topic)
        if state is None:
            raise NotFoundError(f"there is no topic {stream}/{topic}")
        return _topic_info(state, details, request.state.login)

    async def update_topic(request: Request, wanted: t.UpdateTopic) -> t.Done:
        stream, name = _names(request)
        async with changing(request) as client:
            old = (await topic_details(client, stream, name)).topic
            await client.update_topic(
                stream,
                name,
                wanted.name or old.name,
                compression=old.compression,
                message_expiry_us=_given(wanted.expiry_ms, 1000, old.message_expiry_us),
                max_size_bytes=_given(wanted.max_bytes, 1, old.max_size_bytes),
            )
        return t.Done(detail=f"topic {stream}/{wanted.name or old.name}")

    async def delete_topic(request: Request) -> t.Done:
        stream, topic = _names(request)
        async with changing(request) as client:
            await client.delete_topic(stream, topic)
        return t.Done(detail=f"topic {stream}/{topic}")

    async def purge_topic(request: Request) -> t.Done:
        stream, topic = _names(request)
        async with changing(request) as client:
            await client.purge_topic(stream, topic)
        return t.Done(detail=f"all messages of topic {stream}/{topic}")

    async def add_partitions(request: Request, wanted: t.AddPartitions) -> t.Done:
        async with changing(request) as client:
            await client.create_partitions(*_names(request), wanted.count)
        return t.Done(detail=f"{wanted.count} partitions")

    return [
        Endpoint("POST", "/api/v1/streams", create_stream, "Create a stream.", status=201),
        Endpoint("DELETE", STREAM, delete_stream, "Delete a stream and all its topics."),
        Endpoint("POST", f"{STREAM}/purge", purge_stream, "Delete all messages of a stream."),
        Endpoint("POST", f"{STREAM}/topics", create_topic, "Create a topic.", status=201),
        Endpoint("GET", TOPIC, show_topic, "One topic, its partitions, its rates over time."),
        Endpoint("PUT", TOPIC, update_topic, "Change a topic; 0 takes a limit away."),
        Endpoint("DELETE", TOPIC, delete_topic, "Delete a topic."),
        Endpoint("POST", f"{TOPIC}/purge", purge_topic, "Delete all messages of a topic."),
        Endpoint("POST", f"{TOPIC}/partitions", add_partitions, "Add partitions.", status=201),
    ]


async def topic_details(client: IggyClient, stream: str, topic: str) -> TopicDetails:
    details = await client.get_topic(stream, topic)
    if details is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    return details


def _names(request: Request) -> tuple[str, str]:
    return request.path_params["stream"], request.path_params["topic"]


def _given(value: int | None, unit: int, default: int) -> int:
    """None: as it is, or the server's default; 0: no limit."""
    return default if value is None else value * unit or UNLIMITED


def _topic_info(state: TopicState, details: TopicDetails, login: Login) -> t.TopicInfo:
    ids = state.stream.id, state.topic.id
    row = msgspec.structs.asdict(state.row())
    row |= {
        "partitions": details.topic.partitions_count,
        "messages": details.topic.messages_count,
        "bytes": details.topic.size_bytes,
    }
    return t.TopicInfo(
        **row,
        parts=[partition_row(one) for one in details.partitions],
        history=[list(one) for one in state.history],
        may_manage=may(login.permissions, Permission.MANAGE_TOPIC, *ids),
        may_send=may(login.permissions, Permission.SEND, *ids),
        may_poll=may(login.permissions, Permission.POLL, *ids),
    )


def partition_row(one: PartitionInfo) -> t.PartitionRow:
    return t.PartitionRow(
        id=one.id,
        messages=one.messages_count,
        bytes=one.size_bytes,
        segments=one.segments_count,
        start_offset=one.start_offset if one.messages_count else None,
        next_offset=one.next_offset,
    )
