"""Consumer groups, clients and users, as the user who asks; lag over time as it was sampled."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError, UnauthorizedError
from headrace.web.broker_api import types as t
from headrace.web.broker_api.lag import GroupState, GroupWatch, lags
from headrace.web.broker_api.messages import TOPIC
from headrace.web.broker_api.topics import topic_details
from headrace.web.server.exchange import json_answer, read_body
from headrace.web.server.live import Sampler, View
from headrace.web.server.logins import Broker
from headrace.web.stram.routes import AddRoute
from headrace.wire.iggy.messages.consumers import GroupDetails
from headrace.wire.iggy.messages.topics import TopicDetails

GROUP = f"{TOPIC}/groups/{{group}}"


def sample(sampler: Sampler, watch: GroupWatch) -> None:
    async def rows() -> View:
        await watch.sample()
        return watch.rows

    sampler.add("groups", rows, seconds=2.0, idle_seconds=5.0)


def routes(add: AddRoute, broker: Broker, watch: GroupWatch) -> list[Route]:
    async def listed(request: Request) -> Response:
        return json_answer(t.GroupRows(groups=watch.rows(request.state.login)))

    async def show(request: Request) -> Response:
        stream, topic, name = _names(request)
        async with broker.as_user(request.state.credentials) as client:
            details, group = await _found(client, stream, topic, name)
            parts = await lags(client, stream, topic, name, details.partitions)
            members = await _members(client, group)
        known = watch.find(stream, topic, name)
        return json_answer(_info(stream, topic, group, parts, members, known))

    async def create(request: Request) -> Response:
        wanted = await read_body(request, t.CreateGroup)
        stream, topic = request.path_params["stream"], request.path_params["topic"]
        async with broker.as_user(request.state.credentials) as client:
            await client.create_group(stream, topic, wanted.name)
            await _look(client, watch, stream, topic)
        return json_answer(t.Done(detail=f"group {wanted.name} of {stream}/{topic}"), 201)

    async def delete(request: Request) -> Response:
        stream, topic, name = _names(request)
        async with broker.as_user(request.state.credentials) as client:
            await client.delete_group(stream, topic, name)
            await _look(client, watch, stream, topic)
        return json_answer(t.Done(detail=f"group {name} of {stream}/{topic}"))

    return [
        add("/api/v1/groups", listed),
        add(f"{TOPIC}/groups", create, "POST"),
        add(GROUP, show),
        add(GROUP, delete, "DELETE"),
    ]


def _names(request: Request) -> tuple[str, str, str]:
    given = request.path_params
    return given["stream"], given["topic"], given["group"]


async def _found(
    client: IggyClient, stream: str, topic: str, name: str
) -> tuple[TopicDetails, GroupDetails]:
    details = await topic_details(client, stream, topic)
    group = await client.get_group(stream, topic, name)
    if group is None:
        raise NotFoundError(f"there is no group {name} of {stream}/{topic}")
    return details, group


async def _look(client: IggyClient, watch: GroupWatch, stream: str, topic: str) -> None:
    details = await client.get_stream(stream)
    found = None if details is None else await client.get_topic(stream, topic)
    if details is not None and found is not None:
        await watch.look_at(client, details.stream.id, found.topic.id)


async def _members(client: IggyClient, group: GroupDetails) -> list[t.GroupMember]:
    """Where members are connected from is for those who may see clients."""
    found = []
    for member in group.members:
        address = None
        with suppress(UnauthorizedError):
            known = await client.get_client(member.id)
            address = None if known is None else known.client.address
        found.append(
            t.GroupMember(client_id=member.id, address=address, partitions=list(member.partitions))
        )
    return found


def _info(
    stream: str,
    topic: str,
    details: GroupDetails,
    parts: list[t.GroupPartition],
    members: list[t.GroupMember],
    known: GroupState | None,
) -> t.GroupInfo:
    owners = {number: one.client_id for one in members for number in one.partitions}
    state = known or GroupState(stream, topic, details.group)
    row: dict[str, Any] = msgspec.structs.asdict(state.row())
    row |= {"lag": sum(one.lag for one in parts), "members": len(members)}
    return t.GroupInfo(
        **row,
        members_list=members,
        parts=[msgspec.structs.replace(one, member=owners.get(one.partition)) for one in parts],
        history=[list(one) for one in state.history],
    )
