"""Clients and users of the broker, as the user who asks."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError, UnauthorizedError
from headrace.web.broker_api import types as t
from headrace.web.server.exchange import json_answer, read_body
from headrace.web.server.logins import Broker
from headrace.web.stram.routes import AddRoute
from headrace.wire.iggy.messages.users import (
    GlobalPermissions,
    Permissions,
    User,
    UserDetails,
    UserStatus,
)

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


def routes(add: AddRoute, broker: Broker) -> list[Route]:
    async def clients(request: Request) -> Response:
        async with broker.as_user(request.state.credentials) as client:
            found = await client.get_clients()
            names = await _names(client)
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
        return json_answer(t.ClientRows(clients=rows))

    async def users(request: Request) -> Response:
        async with broker.as_user(request.state.credentials) as client:
            found = await client.get_users()
        return json_answer(t.UserRows(users=[t.UserRow(**_row(one)) for one in found]))

    async def show(request: Request) -> Response:
        name = request.path_params["user"]
        async with broker.as_user(request.state.credentials) as client:
            details = await client.get_user(name)
        if details is None:
            raise NotFoundError(f"there is no user {name}")
        return json_answer(_info(details))

    async def create(request: Request) -> Response:
        wanted = await read_body(request, t.CreateUser)
        async with broker.as_user(request.state.credentials) as client:
            await client.create_user(wanted.name, wanted.password, permissions=ROLES[wanted.role])
        return json_answer(t.Done(detail=f"user {wanted.name}"), 201)

    async def update(request: Request) -> Response:
        wanted = await read_body(request, t.UpdateUser)
        name = request.path_params["user"]
        status = UserStatus.ACTIVE if wanted.active else UserStatus.INACTIVE
        async with broker.as_user(request.state.credentials) as client:
            await client.update_user(name, status=status)
        return json_answer(t.Done(detail=f"user {name}"))

    async def delete(request: Request) -> Response:
        name = request.path_params["user"]
        async with broker.as_user(request.state.credentials) as client:
            await client.delete_user(name)
        return json_answer(t.Done(detail=f"user {name}"))

    return [
        add("/api/v1/clients", clients),
        add("/api/v1/users", users),
        add("/api/v1/users", create, "POST"),
        add(USER, show),
        add(USER, update, "PUT"),
        add(USER, delete, "DELETE"),
    ]


async def _names(client: IggyClient) -> dict[int, str]:
    with suppress(UnauthorizedError):
        return {one.id: one.username for one in await client.get_users()}
    return {}


def _row(user: User) -> dict[str, Any]:
    return {
        "id": user.id,
        "name": user.username,
        "created_ms": user.created_at_us // 1000,
        "active": user.status is UserStatus.ACTIVE,
    }


def _info(details: UserDetails) -> t.UserInfo:
    permissions = details.permissions
    everywhere = GlobalPermissions() if permissions is None else permissions.everywhere
    names = t.Rights.__struct_fields__
    return t.UserInfo(
        **_row(details.user),
        rights=t.Rights(**{name: getattr(everywhere, name) for name in names}),
        streams=[] if permissions is None else [one.stream_id for one in permissions.streams],
    )
