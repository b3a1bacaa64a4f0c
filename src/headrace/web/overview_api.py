"""`/api/v1/overview`, `/streams`, `/topics`: what the sampler knows, and its live topics."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import UnavailableError
from headrace.web import broker_types as t
from headrace.web.catalogue import Catalogue
from headrace.web.exchange import json_answer, query_number
from headrace.web.live import Live, Sampler, View
from headrace.web.logins import Login
from headrace.web.stram import AddRoute

TOPICS_MAX = 5_000
_RUNNING = ("RUNNING", "STARTING", "ACCEPTED")
_FAILED = ("FAILED", "UNREADABLE")


class Listed(Protocol):
    def list(self) -> list[dict[str, Any]]: ...


def overview(catalogue: Catalogue, pipelines: Listed, *, history: bool = True) -> t.Overview:
    stats = catalogue.stats
    if stats is None:
        raise UnavailableError("the broker has not answered yet")
    states = [one["state"] for one in pipelines.list()]
    messages, size = catalogue.rates()
    return t.Overview(
        time_ms=catalogue.sampled_ms,
        server=t.ServerInfo(
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
        ),
        totals=t.Totals(
            streams=stats.streams_count,
            topics=stats.topics_count,
            partitions=stats.partitions_count,
            segments=stats.segments_count,
            messages=stats.messages_count,
            bytes=stats.messages_size_bytes,
            clients=stats.clients_count,
            groups=stats.consumer_groups_count,
        ),
        rates=t.Rates(messages_in=round(messages, 2), bytes_in=round(size, 1)),
        pipelines=t.PipelineTotals(
            all=len(states),
            running=sum(one in _RUNNING for one in states),
            failed=sum(one in _FAILED for one in states),
        ),
        history=[list(one) for one in catalogue.history] if history else [],
    )


def sample(sampler: Sampler, live: Live, catalogue: Catalogue, pipelines: Listed) -> None:
    """`overview` (without its history, which grows by what is sent), `topics` and `streams`."""

    async def totals() -> View:
        await catalogue.refresh()
        live.publish("topics", lambda login: changing(catalogue, login))
        live.publish("streams", catalogue.stream_rows)
        found = overview(catalogue, pipelines, history=False)
        return lambda _login: found

    sampler.add("overview", totals, seconds=2.0, idle_seconds=5.0, also=("topics", "streams"))


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


def routes(add: AddRoute, catalogue: Catalogue, pipelines: Listed) -> list[Route]:
    async def fresh() -> None:
        if catalogue.stats is None:
            await catalogue.refresh()

    async def show(_request: Request) -> Response:
        await fresh()
        return json_answer(overview(catalogue, pipelines))

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
