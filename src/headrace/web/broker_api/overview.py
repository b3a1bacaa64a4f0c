"""`/api/v1/overview`, `/streams`, `/topics`: what the sampler knows, and its live topics."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import UnavailableError
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.broker_api.lag import GroupWatch
from headrace.web.broker_api.visibility import may
from headrace.web.pipeline_api.rights import PipelineRights
from headrace.web.server.exchange import json_answer, query_number
from headrace.web.server.live import Live, Sampler, View
from headrace.web.server.logins import Login
from headrace.web.stram.routes import AddRoute
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.system import Stats

TOPICS_MAX = 5_000
_RUNNING = ("RUNNING", "STARTING", "ACCEPTED")
_FAILED = ("FAILED", "UNREADABLE")


class Listed(Protocol):
    def list(self) -> list[dict[str, Any]]: ...


class Totals:
    """What the overview says to a user: of the server to who may read its state, else of what they
    may see, so that the sums are those of the lists beside them."""

    def __init__(
        self, catalogue: Catalogue, groups: GroupWatch, pipelines: Listed, rights: PipelineRights
    ) -> None:
        self._catalogue = catalogue
        self._groups = groups
        self._pipelines = pipelines
        self._rights = rights

    def of(self, login: Login, *, history: bool = True) -> t.Overview:
        stats = self._catalogue.stats
        if stats is None:
            raise UnavailableError("the broker has not answered yet")
        states = [one["state"] for one in self._rights.seen_rows(login, self._pipelines.list())]
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


def sample(sampler: Sampler, live: Live, catalogue: Catalogue, totals: Totals) -> None:
    """`overview` (without its history, which grows by what is sent), `topics` and `streams`."""

    async def refreshed() -> View:
        await catalogue.refresh()
        live.publish("topics", lambda login: changing(catalogue, login))
        live.publish("streams", catalogue.stream_rows)
        return lambda login: totals.of(login, history=False)

    sampler.add("overview", refreshed, seconds=2.0, idle_seconds=5.0, also=("topics", "streams"))


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


def routes(add: AddRoute, catalogue: Catalogue, totals: Totals) -> list[Route]:
    async def fresh() -> None:
        if catalogue.stats is None:
            await catalogue.refresh()

    async def show(request: Request) -> Response:
        await fresh()
        return json_answer(totals.of(request.state.login))

    async def streams(request: Request) -> Response:
        await fresh()
        return json_answer(t.StreamRows(streams=catalogue.stream_rows(request.state.login)))

    async def topics(request: Request) -> Response:
        await fresh()
        limit = query_number(request, "limit", TOPICS_MAX, TOPICS_MAX)
        skip = query_number(request, "offset", 0)
        words = request.query_params.get("search", "").lower()
        rows = [
            one
            for one in catalogue.topic_rows(request.state.login)
            if words in f"{one.stream}/{one.name}".lower()
        ]
        return json_answer(t.TopicRows(topics=rows[skip : skip + limit], total=len(rows)))

    return [
        add("/api/v1/overview", show),
        add("/api/v1/streams", streams),
        add("/api/v1/topics", topics),
    ]
