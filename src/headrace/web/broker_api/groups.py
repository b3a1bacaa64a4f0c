"""Consumer groups, clients and users, as the user who asks; lag over time as it was sampled.

`GroupWatch` samples as the service which groups there are and how far they are behind. A sample
asks for a bounded number of things and goes on from there the next time, so many topics make it
slower and never heavier. Lag is the newest offset less the stored one; of a partition of
which a group stored nothing it is all that is retained.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError, UnauthorizedError
from headrace.runtime import Runtime
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue, may
from headrace.web.broker_api.messages import TOPIC
from headrace.web.broker_api.topics import topic_details
from headrace.web.server.endpoints import Endpoint
from headrace.web.server.live import Sampler, View
from headrace.web.server.logins import Broker, Login
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.consumers import Group, GroupDetails
from headrace.wire.iggy.messages.topics import PartitionInfo, TopicDetails
from headrace.wire.iggy.messages.users import (
    GlobalPermissions,
    Permissions,
    User,
    UserDetails,
    UserStatus,
)
from headrace.wire.iggy.primitives import Consumer

TOPICS_A_SAMPLE = 200
PARTITIONS_A_SAMPLE = 256
GROUPS_MAX = 2_000
HISTORY_SAMPLES = 360

GroupKey = tuple[int, int, int]
"""Ids of stream, topic and group."""


@dataclass(slots=True)
class GroupState:
    stream: str
    topic: str
    group: Group
    lag: int | None = None
    lag_per_second: float = 0.0
    at: float = 0.0
    history: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=HISTORY_SAMPLES)
    )

    def on_lag(self, lag: int, now: float, now_ms: int) -> None:
        if self.lag is not None and now > self.at:
            self.lag_per_second = (lag - self.lag) / (now - self.at)
        self.lag, self.at = lag, now
        self.history.append((float(now_ms), float(lag)))

    def row(self) -> t.GroupRow:
        return t.GroupRow(
            stream=self.stream,
            topic=self.topic,
            id=self.group.id,
            name=self.group.name,
            members=self.group.members_count,
            partitions=self.group.partitions_count,
            lag=self.lag,
            lag_per_second=round(self.lag_per_second, 2),
        )


class GroupWatch:
    def __init__(self, runtime: Runtime, broker: Broker, catalogue: Catalogue) -> None:
        self._clock = runtime.clock
        self._broker = broker
        self._catalogue = catalogue
        self._topics_left: deque[tuple[int, int]] = deque()
        self._groups_left: deque[GroupKey] = deque()
        self.groups: dict[GroupKey, GroupState] = {}

    async def sample(self) -> None:
        stats = self._catalogue.stats
        if stats is None or (not stats.consumer_groups_count and not self.groups):
            return
        async with self._broker.as_service() as client:
            await self._discover(client)
            await self._measure(client)

    async def _discover(self, client: IggyClient) -> None:
        if not self._topics_left:
            self._topics_left.extend(self._catalogue.topics)
            gone = [key for key in self.groups if key[:2] not in self._catalogue.topics]
            for key in gone:
                del self.groups[key]
        for _ in range(min(TOPICS_A_SAMPLE, len(self._topics_left))):
            await self.look_at(client, *self._topics_left.popleft())

    async def look_at(self, client: IggyClient, stream_id: int, topic_id: int) -> None:
        """Learn the groups of one topic."""
        state = self._catalogue.topics.get((stream_id, topic_id))
        if state is None:
            return
        try:
            found = await client.get_groups(stream_id, topic_id)
        except NotFoundError:
            found = ()
        kept = set()
        for group in found:
            key = (stream_id, topic_id, group.id)
            kept.add(key)
            known = self.groups.get(key)
            if known is not None and known.group.name == group.name:
                known.group = group
            elif len(self.groups) < GROUPS_MAX:
                self.groups[key] = GroupState(state.stream.name, state.topic.name, group)
        for key in [key for key in self.groups if key[:2] == (stream_id, topic_id)]:
            if key not in kept:
                del self.groups[key]

    async def _measure(self, client: IggyClient) -> None:
        if not self._groups_left:
            self._groups_left.extend(self.groups)
        asked = 0
        while self._groups_left and asked < PARTITIONS_A_SAMPLE:
            key = self._groups_left.popleft()
            state = self.groups.get(key)
            if state is None:
                continue
            details = await client.get_topic(*key[:2])
            if details is None:
                continue
            asked += len(details.partitions) + 1
            parts = await lags(client, *key, details.partitions)
            now, now_ms = self._clock.monotonic(), self._clock.now_ms()
            state.on_lag(sum(one.lag for one in parts), now, now_ms)

    def rows(self, login: Login) -> list[t.GroupRow]:
        return [
            state.row()
            for key, state in self.groups.items()
            if may(login.permissions, Permission.READ_TOPIC, *key[:2])
        ]

    def find(self, stream: str, topic: str, group: str) -> GroupState | None:
        return next(
            (
                one
                for one in self.groups.values()
                if (one.stream, one.topic, one.group.name) == (stream, topic, group)
            ),
            None,
        )


async def lags(
    client: IggyClient,
    stream: int | str,
    topic: int | str,
    group: int | str,
    partitions: tuple[PartitionInfo, ...],
) -> list[t.GroupPartition]:
    found = []
    for one in partitions:
        stored = await client.get_consumer_offset(Consumer.group(group), stream, topic, one.id)
        offset = None if stored is None else stored.stored_offset
        newest = one.current_offset if stored is None else stored.current_offset
        found.append(
            t.GroupPartition(
                partition=one.id,
                member=None,
                stored_offset=offset,
                current_offset=newest,
                lag=one.lag(offset),
            )
        )
    return found


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
