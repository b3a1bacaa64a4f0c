"""The JSON API that anyone may call, and the page that reads it.

The API holds no state of its own: it asks the controller in this process and the broker over its
own protocol. Every path but `/health`, `/ready`, the page and its files asks for a broker user, by
HTTP Basic or by a session; running code needs a user who may manage the server.

The paths of other rooms are put together here. Those of the server itself are here too: whether it
works, the files of its pages, sessions (log in, who am I, log out) and the stream of events.
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
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from headrace.errors import HeadraceError, InvalidArgumentError, ThrottledError
from headrace.observability.exposition import CONTENT_TYPE
from headrace.runtime import Executor, Runtime
from headrace.web.broker_api import groups as group_api
from headrace.web.broker_api import messages, workers
from headrace.web.broker_api import overview as overview_api
from headrace.web.broker_api import topics as topic_api
from headrace.web.broker_api.arrow_reader import ArrowReader
from headrace.web.broker_api.broker_connections import ReachedBroker
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.broker_api.groups import GroupWatch
from headrace.web.broker_api.overview import Cluster
from headrace.web.broker_api.types import Rights, SessionInfo, SessionStart
from headrace.web.diagnosis.cluster import BrokerDiagnosis
from headrace.web.metrics.pipelines import MeasuredPipelines, format_metrics
from headrace.web.metrics.process import ObservedRole, Readiness, ask, describe
from headrace.web.pipeline_api import letters, pages
from headrace.web.pipeline_api import pipelines as pipeline_api
from headrace.web.pipeline_api.control import Control, ControlledPipelines
from headrace.web.pipeline_api.pipelines import PipelineRights, SubmittedPipelines, VisiblePipelines
from headrace.web.server.assets import Asset, SecurityHeaders, answer_asset
from headrace.web.server.endpoints import (
    Endpoint,
    Entrance,
    TextParameter,
    json_answer,
    openapi_document,
)
from headrace.web.server.live import LISTENERS_MAX, Live, Sampler
from headrace.web.server.logins import (
    COOKIE,
    NOBODYS,
    SESSION_SECONDS,
    Broker,
    CodeToken,
    Credentials,
    Login,
    Logins,
    Sessions,
    TokenNeededError,
    check_origin,
    host_of,
)
from headrace.web.server.statuses import status_of
from headrace.web.stram import routes as stram


class Pipelines(
    ControlledPipelines, MeasuredPipelines, pages.WatchedPipelines, SubmittedPipelines, Protocol
):
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
    roles: Sequence[ObservedRole] = (),
    code_token: CodeToken = NOBODYS,
) -> WebApplication:
    """`roles` run in this process; `/ready` asks them, and whether the broker answers."""
    logins = Logins(broker, Sessions(runtime))
    live, catalogue = Live(runtime), Catalogue(runtime, broker)
    groups = GroupWatch(runtime, broker, catalogue)
    rights = PipelineRights(pipelines.topics, catalogue)
    executor, arrow = runtime.executor("web", 1), ArrowReader(runtime)
    sampler = Sampler(runtime, live)
    totals = overview_api.OverviewTotals(catalogue, groups, pipelines, rights)
    overview_api.sample(sampler, live, catalogue, totals, cluster, broker)
    group_api.sample(sampler, groups)

    async def pause() -> None:
        await runtime.clock.sleep(0)

    trouble = BrokerDiagnosis(runtime, catalogue, groups, cluster)
    diagnosis = pages.Diagnosis(pipelines, runtime.clock.now_ms, pause, trouble.look)
    sight = pages.SituationFilter(rights)
    pages.sample(sampler, live, diagnosis, sight)
    control = Control(pipelines)
    endpoints = [
        *_own_endpoints([*roles, ReachedBroker(broker)], assets),
        *_session_endpoints(logins, live),
        *overview_api.endpoints(catalogue, totals, cluster, broker),
        *topic_api.endpoints(broker, catalogue),
        *messages.endpoints(broker, executor, arrow),
        *group_api.endpoints(broker, groups),
        *workers.endpoints(broker),
        *pipeline_api.endpoints(pipelines, rights),
        *pages.endpoints(pipelines, diagnosis, sight),
        *control.endpoints(),
        *letters.endpoints(pipelines, broker.as_user),
        *_endpoints_of_before(broker, pipelines, rights),
        *stram.endpoints(control, runtime.clock.now_ms),
    ]

    async def metrics(request: Request) -> Response:
        seen = VisiblePipelines(pipelines, rights, request.state.login)
        return PlainTextResponse(format_metrics(seen), media_type=CONTENT_TYPE)

    async def openapi(_request: Request) -> dict[str, Any]:
        return openapi_document(endpoints, version("headrace"))

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


def _own_endpoints(roles: Sequence[ObservedRole], assets: Mapping[str, Asset]) -> list[Endpoint]:
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


SESSION_PATH = "/api/v1/session"
STREAM_PATH = "/api/v1/events/stream"
EVENT_TOPICS_MAX = 32
_TOPICS = TextParameter(
    "topics",
    "overview, topics, streams, groups, cluster, alerts, problems, pipeline/<name>,"
    " with commas between.",
    pattern="^[a-z]+(,[a-z]+){0,31}$",
    required=True,
)


def _session_endpoints(logins: Logins, live: Live) -> list[Endpoint]:
    async def log_in(request: Request, wanted: SessionStart) -> Response:
        credentials = Credentials(wanted.username, wanted.password, host_of(request))
        login = await logins.verify(credentials)
        answer = json_answer(session_info(login), 201)
        answer.set_cookie(
            COOKIE,
            logins.sessions.open(credentials),
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def log_out(request: Request) -> Response:
        check_origin(request)
        logins.sessions.end(request.cookies.get(COOKIE, ""))
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    async def show(request: Request) -> Response:
        """Nobody is no error here: a page asks this before it shows a login."""
        if "authorization" not in request.headers and not logins.has_session(request):
            return Response(status_code=204)
        return json_answer(session_info(await logins.check(request)))

    async def stream(request: Request) -> Response:
        topics = list(dict.fromkeys(_TOPICS.read(request).split(",")))
        if not topics[0] or len(topics) > EVENT_TOPICS_MAX:
            raise InvalidArgumentError("topics names what to send, with commas between")
        if live.full:
            raise ThrottledError(f"at most {LISTENERS_MAX} pages are fed at a time")
        return StreamingResponse(
            live.frames(lambda: logins.check(request), topics),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    return [
        Endpoint(
            "POST",
            SESSION_PATH,
            log_in,
            "Log in: sets the cookie of a session. Needs the header X-Headrace-Page.",
            login=False,
            first=check_origin,
            answer=SessionInfo,
        ),
        Endpoint(
            "GET",
            SESSION_PATH,
            show,
            "Who is logged in and what they may do; nothing (204) for nobody.",
            login=False,
            answer=SessionInfo,
        ),
        Endpoint(
            "DELETE",
            SESSION_PATH,
            log_out,
            "Log out. Needs the header X-Headrace-Page.",
            login=False,
        ),
        Endpoint(
            "GET",
            STREAM_PATH,
            stream,
            "Server-sent events: the newest value of each topic of events, when it changes.",
            query=(_TOPICS,),
            media_type="text/event-stream",
        ),
    ]


def session_info(login: Login) -> SessionInfo:
    permissions = login.permissions
    everywhere = None if permissions is None else permissions.everywhere
    names = Rights.__struct_fields__
    rights = Rights(**{name: bool(everywhere and getattr(everywhere, name)) for name in names})
    return SessionInfo(
        username=login.username,
        may_manage=login.may_manage,
        rights=rights,
        version=version("headrace"),
    )
