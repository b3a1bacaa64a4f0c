"""The cluster: who is there, who leads, how replicated the log is, and where a topic lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import UnauthorizedError
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.broker_api.messages import TOPIC
from headrace.web.broker_api.visibility import may
from headrace.web.server.exchange import json_answer
from headrace.web.server.live import Sampler, View
from headrace.web.server.logins import Broker, Login
from headrace.web.stram.routes import AddRoute
from headrace.wire.iggy.commands import Permission

DURABILITIES_A_SAMPLE = 50


class Cluster(Protocol):
    """What this layer needs of the placement managers."""

    async def describe(self) -> t.ClusterInfo: ...

    async def ranges(self, streams: Sequence[tuple[int, int]]) -> list[t.RangeRow]:
        """Of (partition, SBP stream) pairs."""

    async def durability(self, stream: int) -> str: ...


def sample(sampler: Sampler, cluster: Cluster, broker: Broker, catalogue: Catalogue) -> None:
    async def described() -> View:
        found = await cluster.describe()
        return lambda login: found if _may_look(login) else None

    async def durabilities() -> View:
        """A topic never changes its durability: each is asked for once."""
        await learn_durabilities(cluster, broker, catalogue)
        return lambda _login: None

    sampler.add("cluster", described, seconds=4.0)
    sampler.add("durability", durabilities, seconds=5.0, idle_seconds=5.0)


async def learn_durabilities(cluster: Cluster, broker: Broker, catalogue: Catalogue) -> None:
    unknown = [one for one in catalogue.topics.values() if one.durability is None]
    chosen = [one for one in unknown if one.topic.partitions_count][:DURABILITIES_A_SAMPLE]
    if not chosen:
        return
    async with broker.as_service() as client:
        for one in chosen:
            ticket = await client.read_ticket([(one.stream.id, one.topic.id)])
            partitions = ticket.topics[0].partitions if ticket.topics else ()
            if partitions:
                one.durability = await cluster.durability(partitions[0].sbp_stream)


def routes(add: AddRoute, cluster: Cluster, broker: Broker) -> list[Route]:
    async def show(request: Request) -> Response:
        if not _may_look(request.state.login):
            raise UnauthorizedError("this needs a user who may read the server's state")
        return json_answer(await cluster.describe())

    async def ranges(request: Request) -> Response:
        names = request.path_params["stream"], request.path_params["topic"]
        async with broker.as_user(request.state.credentials) as client:
            ticket = await client.read_ticket([names])
        streams = [
            (one.partition, one.sbp_stream) for topic in ticket.topics for one in topic.partitions
        ]
        return json_answer(t.RangeRows(ranges=await cluster.ranges(streams)))

    return [add("/api/v1/cluster", show), add(f"{TOPIC}/ranges", ranges)]


def _may_look(login: Login) -> bool:
    return may(login.permissions, Permission.READ_SERVERS)
