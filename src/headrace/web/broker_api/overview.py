"""`/api/v1/overview`, `/streams`, `/topics`, `/cluster`: what the sampler knows, and live topics.

The catalogue tells of streams and topics, the placement managers of the cluster: who is there, who
leads, how replicated the log is, and where a topic lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.requests import Request

from headrace.errors import UnauthorizedError, UnavailableError
from headrace.pipeline.controller.views import ApplicationRow
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue, may
from headrace.web.broker_api.groups import GroupWatch
from headrace.web.broker_api.messages import TOPIC
from headrace.web.pipeline_api.pipelines import PipelineRights
from headrace.web.server.endpoints import Endpoint, NumberParameter, TextParameter
from headrace.web.server.live import Live, Sampler, View
from headrace.web.server.logins import Broker, Login
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.system import Stats

TOPICS_MAX = 5_000
DURABILITIES_A_SAMPLE = 50
_SEARCH = TextParameter("search", "Only those with this in `stream/topic`.")
_OFFSET = NumberParameter("offset", "How many to leave out.")
_LIMIT = NumberParameter("limit", "At most so many.", default=TOPICS_MAX, most=TOPICS_MAX)
_RUNNING = ("RUNNING", "STARTING", "ACCEPTED")
_FAILED = ("FAILED", "UNREADABLE")


class ListedPipelines(Protocol):
    def list(self) -> list[ApplicationRow]: ...


class Cluster(Protocol):
    """What this layer needs of the placement managers."""

    async def describe(self) -> t.ClusterInfo: ...

    async def ranges(self, streams: Sequence[tuple[int, int]]) -> list[t.RangeRow]:
        """List the ranges of (partition, SBP stream) pairs."""

    async def durability(self, stream: int) -> str: ...


class OverviewTotals:
    """What the overview says to a user: of the server to who may read its state, else of what they
    may see, so that the sums are those of the lists beside them."""

    def __init__(
        self,
        catalogue: Catalogue,
        groups: GroupWatch,
        pipelines: ListedPipelines,
        rights: PipelineRights,
    ) -> None:
        self._catalogue = catalogue
        self._groups = groups
        self._pipelines = pipelines
        self._rights = rights

    def of(self, login: Login, *, history: bool = True) -> t.Overview:
        stats = self._catalogue.stats
        if stats is None:
            raise UnavailableError("the broker has not answered yet")
        states = [one.state for one in self._rights.seen_rows(login, self._pipelines.list())]
        pipelines = t.PipelineTotals(
            all=len(states),
            running=sum(one in _RUNNING for one in states),
            failed=sum(one in _FAILED for one in states),
        )
        if not may(login.permissions, Permission.READ_SERVERS):
            return self._of_theirs(login, stats, pipelines)
        messages, size = self._catalogue.rates()
        return t.Overview(
            time_ms=self._catalogue.sampled_ms,
            server=_server(stats),
            totals=_all(stats),
            rates=t.Rates(messages_in=round(messages, 2), bytes_in=round(size, 1)),
            pipelines=pipelines,
            history=[list(one) for one in self._catalogue.history] if history else [],
        )

    def _of_theirs(self, login: Login, stats: Stats, pipelines: t.PipelineTotals) -> t.Overview:
        rows = self._catalogue.topic_rows(login)
        return t.Overview(
            time_ms=self._catalogue.sampled_ms,
            server=t.ServerInfo(version=stats.server_version),
            totals=t.Totals(
                streams=len(self._catalogue.stream_rows(login)),
                topics=len(rows),
                partitions=sum(one.partitions for one in rows),
                messages=sum(one.messages for one in rows),
                bytes=sum(one.bytes for one in rows),
                groups=len(self._groups.rows(login)),
            ),
            rates=t.Rates(
                messages_in=round(sum(one.messages_per_second for one in rows), 2),
                bytes_in=round(sum(one.bytes_per_second for one in rows), 1),
            ),
            pipelines=pipelines,
        )


def _server(stats: Stats) -> t.ServerInfo:
    return t.ServerInfo(
        version=stats.server_version,
        hostname=stats.hostname,
        process_id=stats.process_id,
        uptime_ms=stats.run_time_us // 1000,
        started_ms=stats.start_time_us // 1000,
        cpu_percent=round(stats.cpu_usage, 1),
        memory_bytes=stats.memory_usage,
        disk_free_bytes=stats.free_disk_space,
        disk_total_bytes=stats.total_disk_space,
        read_bytes=stats.read_bytes,
        written_bytes=stats.written_bytes,
    )


def _all(stats: Stats) -> t.Totals:
    return t.Totals(
        streams=stats.streams_count,
        topics=stats.topics_count,
        partitions=stats.partitions_count,
        segments=stats.segments_count,
        messages=stats.messages_count,
        bytes=stats.messages_size_bytes,
        clients=stats.clients_count,
        groups=stats.consumer_groups_count,
    )


def sample(
    sampler: Sampler,
    live: Live,
    catalogue: Catalogue,
    totals: OverviewTotals,
    cluster: Cluster,
    broker: Broker,
) -> None:
    """`overview` (without its history, which grows by what is sent), `topics` and `streams`;
    `cluster`; and, for the catalogue alone, what topics promise about durability."""

    async def refreshed() -> View:
        await catalogue.refresh()
        live.publish("topics", lambda login: changing(catalogue, login))
        live.publish("streams", catalogue.stream_rows)
        return lambda login: totals.of(login, history=False)

    async def described() -> View:
        found = await cluster.describe()
        return lambda login: found if _may_look(login) else None

    async def durabilities() -> View:
        """A topic never changes its durability: each is asked for once."""
        await learn_durabilities(cluster, broker, catalogue)
        return lambda _login: None

    sampler.add("overview", refreshed, seconds=2.0, idle_seconds=5.0, also=("topics", "streams"))
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


def changing(catalogue: Catalogue, login: Login) -> list[list[float]]:
    """[stream id, topic id, messages, bytes, messages a second, bytes a second] of each topic."""
    return [
        [
            one.stream_id,
            one.id,
            one.messages,
            one.bytes,
            one.messages_per_second,
            one.bytes_per_second,
        ]
        for one in catalogue.topic_rows(login)
    ]


def endpoints(
    catalogue: Catalogue, totals: OverviewTotals, cluster: Cluster, broker: Broker
) -> list[Endpoint]:
    async def fresh() -> None:
        if catalogue.stats is None:
            await catalogue.refresh()

    async def show(request: Request) -> t.Overview:
        await fresh()
        return totals.of(request.state.login)

    async def streams(request: Request) -> t.StreamRows:
        await fresh()
        return t.StreamRows(streams=catalogue.stream_rows(request.state.login))

    async def topics(request: Request) -> t.TopicRows:
        await fresh()
        limit, skip = _LIMIT.read(request), _OFFSET.read(request)
        words = _SEARCH.read(request).lower()
        rows = [
            one
            for one in catalogue.topic_rows(request.state.login)
            if words in f"{one.stream}/{one.name}".lower()
        ]
        return t.TopicRows(topics=rows[skip : skip + limit], total=len(rows))

    async def show_cluster(request: Request) -> t.ClusterInfo:
        if not _may_look(request.state.login):
            raise UnauthorizedError("this needs a user who may read the server's state")
        return await cluster.describe()

    async def ranges(request: Request) -> t.RangeRows:
        names = request.path_params["stream"], request.path_params["topic"]
        async with broker.as_user(request.state.credentials) as client:
            ticket = await client.read_ticket([names])
        found = [
            (one.partition, one.sbp_stream) for topic in ticket.topics for one in topic.partitions
        ]
        return t.RangeRows(ranges=await cluster.ranges(found))

    return [
        Endpoint("GET", "/api/v1/overview", show, "The server, totals and rates."),
        Endpoint("GET", "/api/v1/streams", streams, "Streams that the user may see."),
        Endpoint(
            "GET",
            "/api/v1/topics",
            topics,
            "Topics that the user may see.",
            query=(_SEARCH, _OFFSET, _LIMIT),
        ),
        Endpoint(
            "GET", "/api/v1/cluster", show_cluster, "Nodes, brokers, placement managers, health."
        ),
        Endpoint("GET", f"{TOPIC}/ranges", ranges, "Where a topic lies: ranges and replicas."),
    ]


def _may_look(login: Login) -> bool:
    return may(login.permissions, Permission.READ_SERVERS)
