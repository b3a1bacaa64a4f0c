"""Streams and topics: one in full, and what changes them. All of it as the user who asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue, TopicState
from headrace.web.broker_api.messages import TOPIC
from headrace.web.broker_api.visibility import may
from headrace.web.server.exchange import json_answer, read_body
from headrace.web.server.logins import Broker, Login
from headrace.web.stram.routes import AddRoute
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.topics import (
    SERVER_DEFAULT,
    UNLIMITED,
    PartitionInfo,
    TopicDetails,
)

STREAM = "/api/v1/streams/{stream}"

Change = Callable[[IggyClient, Request], Awaitable[str]]
"""Does it, and says what was done."""


def routes(add: AddRoute, broker: Broker, catalogue: Catalogue) -> list[Route]:
    def change(path: str, method: str, act: Change, status: int = 200) -> Route:
        async def answer(request: Request) -> Response:
            async with broker.as_user(request.state.credentials) as client:
                detail = await act(client, request)
            await catalogue.look_again()
            return json_answer(t.Done(detail=detail), status)

        return add(path, answer, method)

    async def show_topic(request: Request) -> Response:
        stream, topic = _names(request)
        async with broker.as_user(request.state.credentials) as client:
            details = await topic_details(client, stream, topic)
        state = catalogue.find(stream, topic)
        if state is None:
            await catalogue.look_again()
            state = catalogue.find(stream, topic)
        if state is None:
            raise NotFoundError(f"there is no topic {stream}/{topic}")
        return json_answer(_topic_info(state, details, request.state.login))

    return [
        change("/api/v1/streams", "POST", _create_stream, 201),
        change(STREAM, "DELETE", _delete_stream),
        change(f"{STREAM}/purge", "POST", _purge_stream),
        change(f"{STREAM}/topics", "POST", _create_topic, 201),
        add(TOPIC, show_topic),
        change(TOPIC, "PUT", _update_topic),
        change(TOPIC, "DELETE", _delete_topic),
        change(f"{TOPIC}/purge", "POST", _purge_topic),
        change(f"{TOPIC}/partitions", "POST", _add_partitions, 201),
    ]


async def topic_details(client: IggyClient, stream: str, topic: str) -> TopicDetails:
    details = await client.get_topic(stream, topic)
    if details is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    return details


async def _create_stream(client: IggyClient, request: Request) -> str:
    wanted = await read_body(request, t.CreateStream)
    await client.create_stream(wanted.name)
    return f"stream {wanted.name}"


async def _delete_stream(client: IggyClient, request: Request) -> str:
    await client.delete_stream(request.path_params["stream"])
    return f"stream {request.path_params['stream']}"


async def _purge_stream(client: IggyClient, request: Request) -> str:
    await client.purge_stream(request.path_params["stream"])
    return f"all messages of stream {request.path_params['stream']}"


async def _create_topic(client: IggyClient, request: Request) -> str:
    wanted = await read_body(request, t.CreateTopic)
    await client.create_topic(
        request.path_params["stream"],
        wanted.name,
        partitions_count=wanted.partitions,
        message_expiry_us=_given(wanted.expiry_ms, 1000, SERVER_DEFAULT),
        max_size_bytes=_given(wanted.max_bytes, 1, SERVER_DEFAULT),
        replication_factor=wanted.replicas,
    )
    return f"topic {request.path_params['stream']}/{wanted.name}"


async def _update_topic(client: IggyClient, request: Request) -> str:
    wanted = await read_body(request, t.UpdateTopic)
    stream, name = _names(request)
    old = (await topic_details(client, stream, name)).topic
    await client.update_topic(
        stream,
        name,
        wanted.name or old.name,
        compression=old.compression,
        message_expiry_us=_given(wanted.expiry_ms, 1000, old.message_expiry_us),
        max_size_bytes=_given(wanted.max_bytes, 1, old.max_size_bytes),
    )
    return f"topic {stream}/{wanted.name or old.name}"


async def _delete_topic(client: IggyClient, request: Request) -> str:
    await client.delete_topic(*_names(request))
    return "topic {}/{}".format(*_names(request))


async def _purge_topic(client: IggyClient, request: Request) -> str:
    await client.purge_topic(*_names(request))
    return "all messages of topic {}/{}".format(*_names(request))


async def _add_partitions(client: IggyClient, request: Request) -> str:
    wanted = await read_body(request, t.AddPartitions)
    await client.create_partitions(*_names(request), wanted.count)
    return f"{wanted.count} partitions"


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
