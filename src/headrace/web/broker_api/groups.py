"""Consumer groups, clients and users, as the user who asks; lag over time as it was sampled."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import Request

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError, UnauthorizedError
from headrace.web.broker_api import types as t
from headrace.web.broker_api.lag import GroupState, GroupWatch, lags
from headrace.web.broker_api.messages import TOPIC
from headrace.web.broker_api.topics import topic_details
from headrace.web.server.endpoints import Endpoint
from headrace.web.server.live import Sampler, View
from headrace.web.server.logins import Broker
from headrace.wire.iggy.messages.consumers import GroupDetails
from headrace.wire.iggy.messages.topics import TopicDetails
from headrace.wire.iggy.messages.users import (
    GlobalPermissions,
    Permissions,
    User,
    UserDetails,
    UserStatus,
)

GROUP = f"{TOPIC}/groups/{{group}}"
USER = "/api/v1/users/{user}"
_READ = GlobalPermissions(
    read_servers=True, read_users=True, read_streams=True, read_topics=True, poll_messages=True
)
_WRITE = GlobalPermissions(
    read_servers=True,
    read_users=True,
    read_streams=True,
    read_topics=True,
    poll_messages=True,
    send_messages=True,
)
ROLES: dict[str, Permissions | None] = {
    "none": None,
    "read": Permissions(_READ),
    "write": Permissions(_WRITE),
    "admin": Permissions(GlobalPermissions.all()),
}


def sample(sampler: Sampler, watch: GroupWatch) -> None:
    async def rows() -> View:
        await watch.sample()
        return watch.rows

    sampler.add("groups", rows, seconds=2.0, idle_seconds=5.0)


def endpoints(broker: Broker, watch: GroupWatch) -> list[Endpoint]:
    return [*_group_endpoints(broker, watch), *_user_endpoints(broker)]


def _group_endpoints(broker: Broker, watch: GroupWatch) -> list[Endpoint]:
    async def listed(request: Request) -> t.GroupRows:
        return t.GroupRows(groups=watch.rows(request.state.login))

    async def show(request: Request) -> t.GroupInfo:
        stream, topic, name = _names(request)
        async with broker.as_user(request.state.credentials) as client:
            details, group = await _found(client, stream, topic, name)
            parts = await lags(client, stream, topic, name, details.partitions)
            members = await _members(client, group)
        known = watch.find(stream, topic, name)
        return _group_info(stream, topic, group, parts, members, known)

    async def create(request: Request, wanted: t.CreateGroup) -> t.Done:
        stream, topic = request.path_params["stream"], request.path_params["topic"]
        async with broker.as_user(request.state.credentials) as client:
            await client.create_group(stream, topic, wanted.name)
            await _look(client, watch, stream, topic)
        return t.Done(detail=f"group {wanted.name} of {stream}/{topic}")

    async def delete(request: Request) -> t.Done:
        stream, topic, name = _names(request)
        async with broker.as_user(request.state.credentials) as client:
            await client.delete_group(stream, topic, name)
            await _look(client, watch, stream, topic)
        return t.Done(detail=f"group {name} of {stream}/{topic}")

    return [
        Endpoint("GET", "/api/v1/groups", listed, "Consumer groups that the user may see."),
        Endpoint("POST", f"{TOPIC}/groups", create, "Create a consumer group.", status=201),
        Endpoint(
            "GET", GROUP, show, "A consumer group: members, lag of each partition, lag over time."
        ),
        Endpoint("DELETE", GROUP, delete, "Delete a consumer group."),
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


def _group_info(
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


def _user_endpoints(broker: Broker) -> list[Endpoint]:
    async def clients(request: Request) -> t.ClientRows:
        async with broker.as_user(request.state.credentials) as client:
            found = await client.get_clients()
            names = await _user_names(client)
        rows = [
            t.ClientRow(
                id=one.client_id,
                user_id=one.user_id,
                user=None if one.user_id is None else names.get(one.user_id),
                transport=one.transport.name.lower(),
                address=one.address,
                groups=one.groups_count,
            )
            for one in found
        ]
        return t.ClientRows(clients=rows)

    async def users(request: Request) -> t.UserRows:
        async with broker.as_user(request.state.credentials) as client:
            found = await client.get_users()
        return t.UserRows(users=[t.UserRow(**_user_row(one)) for one in found])

    async def show(request: Request) -> t.UserInfo:
        name = request.path_params["user"]
        async with broker.as_user(request.state.credentials) as client:
            details = await client.get_user(name)
        if details is None:
            raise NotFoundError(f"there is no user {name}")
        return _user_info(details)

    async def create(request: Request, wanted: t.CreateUser) -> t.Done:
        async with broker.as_user(request.state.credentials) as client:
            await client.create_user(wanted.name, wanted.password, permissions=ROLES[wanted.role])
        return t.Done(detail=f"user {wanted.name}")

    async def update(request: Request, wanted: t.UpdateUser) -> t.Done:
        name = request.path_params["user"]
        status = UserStatus.ACTIVE if wanted.active else UserStatus.INACTIVE
        async with broker.as_user(request.state.credentials) as client:
            await client.update_user(name, status=status)
        return t.Done(detail=f"user {name}")

    async def delete(request: Request) -> t.Done:
        name = request.path_params["user"]
        async with broker.as_user(request.state.credentials) as client:
            await client.delete_user(name)
        return t.Done(detail=f"user {name}")

    return [
        Endpoint("GET", "/api/v1/clients", clients, "Who is connected to the broker."),
        Endpoint("GET", "/api/v1/users", users, "Users."),
        Endpoint("POST", "/api/v1/users", create, "Create a user with a role.", status=201),
        Endpoint("GET", USER, show, "A user and their rights."),
        Endpoint("PUT", USER, update, "Let a user in or keep them out."),
        Endpoint("DELETE", USER, delete, "Delete a user."),
    ]


async def _user_names(client: IggyClient) -> dict[int, str]:
    with suppress(UnauthorizedError):
        return {one.id: one.username for one in await client.get_users()}
    return {}


def _user_row(user: User) -> dict[str, Any]:
    return {
        "id": user.id,
        "name": user.username,
        "created_ms": user.created_at_us // 1000,
        "active": user.status is UserStatus.ACTIVE,
    }


def _user_info(details: UserDetails) -> t.UserInfo:
    permissions = details.permissions
    everywhere = GlobalPermissions() if permissions is None else permissions.everywhere
    names = t.Rights.__struct_fields__
    return t.UserInfo(
        **_user_row(details.user),
        rights=t.Rights(**{name: getattr(everywhere, name) for name in names}),
        streams=[] if permissions is None else [one.stream_id for one in permissions.streams],
    )
