"""The JSON API that anyone may call, and the page that reads it.

The API holds no state of its own: it asks the controller in this process and the broker over its
own protocol. Every path but `/health`, `/ready`, the page and its files asks for a broker user, by
HTTP Basic or by a session; running code needs a user who may manage the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from headrace.errors import HeadraceError
from headrace.observability.exposition import CONTENT_TYPE
from headrace.runtime import Executor, Runtime
from headrace.web.broker_api import groups as group_api
from headrace.web.broker_api import messages
from headrace.web.broker_api import overview as overview_api
from headrace.web.broker_api import topics as topic_api
from headrace.web.broker_api.arrow_reader import ArrowReader
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.broker_api.lag import GroupWatch
from headrace.web.broker_api.links import ReachedBroker
from headrace.web.broker_api.overview import Cluster
from headrace.web.diagnosis.cluster import BrokerTrouble
from headrace.web.metrics.checks import Observed, Readiness, ask, describe
from headrace.web.metrics.pipelines import Measured, format_metrics
from headrace.web.openapi import document
from headrace.web.pipeline_api import letters, pages
from headrace.web.pipeline_api import pipelines as pipeline_api
from headrace.web.pipeline_api.control import Control, Controlled
from headrace.web.pipeline_api.pipelines import Submitted
from headrace.web.pipeline_api.rights import PipelineRights, SeenPipelines
from headrace.web.server import session_api
from headrace.web.server.assets import Asset, SecurityHeaders, answer_asset
from headrace.web.server.endpoints import Endpoint, Entrance
from headrace.web.server.exchange import json_answer
from headrace.web.server.live import Live, Sampler
from headrace.web.server.logins import (
    NOBODYS,
    Broker,
    CodeToken,
    Logins,
    Sessions,
    TokenNeededError,
)
from headrace.web.server.statuses import status_of
from headrace.web.stram import routes as stram


class Pipelines(Controlled, Measured, pages.Watched, Submitted, Protocol):
    """What this layer needs of the controller."""

    def topics(self, name: str) -> tuple[str, ...]:
        """What an application reads and writes, `stream/topic`."""


def _error_response(request: Request, error: Exception) -> Response:
    code = status_of(error)
    # A page asks for a password itself: the header would bring up the browser's own window.
    asks = code == 401 and "sec-fetch-site" not in request.headers
    headers = {"WWW-Authenticate": 'Basic realm="headrace"'} if asks else None
    body = {"error": str(error)}
    if isinstance(error, TokenNeededError) and error.path:
        body["token_file"] = error.path  # the command line reads it there
    return JSONResponse(body, status_code=code, headers=headers)


def _unrouted(_request: Request, error: Exception) -> Response:
    """No such path, or not with this method: said as everything else is."""
    assert isinstance(error, HTTPException), "it is registered for these"
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


@dataclass(frozen=True, slots=True)
class WebApplication:
    """The ASGI application, and the task that feeds its live pages: start it, and close it."""

    asgi: Starlette
    sampler: Sampler
    executor: Executor
    arrow: ArrowReader

    async def close(self) -> None:
        await self.sampler.close()
        await self.arrow.close()
        self.executor.close()


def create_app(
    runtime: Runtime,
    pipelines: Pipelines,
    broker: Broker,
    cluster: Cluster,
    assets: Mapping[str, Asset],
    roles: Sequence[Observed] = (),
    code_token: CodeToken = NOBODYS,
) -> WebApplication:
    """`roles` run in this process; `/ready` asks them, and whether the broker answers."""
    logins = Logins(broker, Sessions(runtime))
    live, catalogue = Live(runtime), Catalogue(runtime, broker)
    groups = GroupWatch(runtime, broker, catalogue)
    rights = PipelineRights(pipelines.topics, catalogue)
    executor, arrow = runtime.executor("web", 1), ArrowReader(runtime)
    sampler = Sampler(runtime, live)
    totals = overview_api.Totals(catalogue, groups, pipelines, rights)
    overview_api.sample(sampler, live, catalogue, totals, cluster, broker)
    group_api.sample(sampler, groups)

    async def pause() -> None:
        await runtime.clock.sleep(0)

    trouble = BrokerTrouble(runtime, catalogue, groups, cluster)
    diagnosis = pages.Diagnosis(pipelines, runtime.clock.now_ms, pause, trouble.look)
    sight = pages.Sight(rights)
    pages.sample(sampler, live, diagnosis, sight)
    control = Control(pipelines)
    endpoints = [
        *_own_endpoints([*roles, ReachedBroker(broker)], assets),
        *session_api.endpoints(logins, live),
        *overview_api.endpoints(catalogue, totals, cluster, broker),
        *topic_api.endpoints(broker, catalogue),
        *messages.endpoints(broker, executor, arrow),
        *group_api.endpoints(broker, groups),
        *pipeline_api.endpoints(pipelines, rights),
        *pages.endpoints(pipelines, diagnosis, sight),
        *control.endpoints(),
        *letters.endpoints(pipelines, broker.as_user),
        *_endpoints_of_before(broker, pipelines, rights),
        *stram.endpoints(control, runtime.clock.now_ms),
    ]

    async def metrics(request: Request) -> Response:
        seen = SeenPipelines(pipelines, rights, request.state.login)
        return PlainTextResponse(format_metrics(seen), media_type=CONTENT_TYPE)

    async def openapi(_request: Request) -> dict[str, Any]:
        return document(endpoints, version("headrace"))

    endpoints += [
        Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus.", media_type="text/plain"),
        Endpoint("GET", "/openapi.json", openapi, "This document."),
    ]
    entrance = Entrance(logins, code_token, rights.guard)
    application = Starlette(
        routes=entrance.routes(endpoints),
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={HeadraceError: _error_response, HTTPException: _unrouted},
    )
    return WebApplication(application, sampler, executor, arrow)


def _own_endpoints(roles: Sequence[Observed], assets: Mapping[str, Asset]) -> list[Endpoint]:
    """Whether the server works, and the files of its pages."""

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        found = describe(await ask(roles))
        return json_answer(found, 200 if found.ready else 503)

    files = answer_asset(assets)
    return [
        Endpoint(
            "GET",
            "/health",
            health,
            "Whether the server answers.",
            login=False,
            media_type="text/plain",
        ),
        Endpoint(
            "GET",
            "/ready",
            ready,
            "Whether controller and broker can serve; 503 with why not.",
            login=False,
            answer=Readiness,
        ),
        Endpoint("GET", "/", files, "The dashboard's page.", login=False, media_type="text/html"),
        Endpoint(
            "GET",
            "/static/{path:path}",
            files,
            "A file of the dashboard: a style, a module, a picture.",
            login=False,
            media_type="*/*",
        ),
    ]


def _endpoints_of_before(
    broker: Broker, pipelines: Pipelines, rights: PipelineRights
) -> list[Endpoint]:
    async def overview(request: Request) -> dict[str, Any]:
        found = await broker.overview(request.state.login)
        seen = rights.seen_rows(request.state.login, pipelines.list())
        return {**found, "pipelines": seen}

    return [
        Endpoint(
            "GET", "/api/overview", overview, "Topics and pipelines; `/api/v1` has more of both."
        )
    ]
