"""The JSON API that anyone may call, and the page that reads it.

The API holds no state of its own: it asks the controller in this process and the broker over its
own protocol. Every path but `/health`, `/ready`, the page and its files asks for a broker user, by
HTTP Basic or by a session; running code needs a user who may manage the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.errors import (
    AlreadyExistsError,
    ConfigError,
    HeadraceError,
    InvalidArgumentError,
    LocalProtocolError,
    NotFoundError,
    RequestError,
    TooLargeError,
    UnauthenticatedError,
    UnauthorizedError,
)
from headrace.observability.exposition import CONTENT_TYPE
from headrace.runtime import Executor, Runtime
from headrace.web.broker_api import cluster_api, messages, people_api
from headrace.web.broker_api import groups as group_api
from headrace.web.broker_api import overview as overview_api
from headrace.web.broker_api import topics as topic_api
from headrace.web.broker_api.arrow_reader import ArrowReader
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.broker_api.cluster_api import Cluster
from headrace.web.broker_api.lag import GroupWatch
from headrace.web.broker_api.links import ReachedBroker
from headrace.web.diagnosis.cluster import BrokerTrouble
from headrace.web.metrics.checks import Observed, ask, describe
from headrace.web.metrics.pipelines import Measured, format_metrics
from headrace.web.openapi import document
from headrace.web.pipeline_api import api, letters
from headrace.web.pipeline_api.packages import SubmittedPackage, read_package
from headrace.web.pipeline_api.rights import PipelineRights, SeenPipelines
from headrace.web.server import session_api
from headrace.web.server.assets import Asset, SecurityHeaders, answer_asset
from headrace.web.server.exchange import query_number
from headrace.web.server.live import Live, Sampler
from headrace.web.server.logins import (
    NOBODYS,
    Broker,
    CodeToken,
    Guarded,
    Logins,
    Sessions,
    TokenNeededError,
)
from headrace.web.stram.routes import Stram
from headrace.web.stram.routes import routes as stram_routes


class Pipelines(Stram, Measured, api.Watched, Protocol):
    """What this layer needs of the controller."""

    async def submit(self, package: SubmittedPackage) -> dict[str, Any]: ...

    async def diff(self, package: SubmittedPackage) -> dict[str, Any]: ...

    async def deploy(
        self, package: SubmittedPackage, new_state: Collection[str] = ()
    ) -> dict[str, Any]: ...

    def list(self) -> list[dict[str, Any]]: ...

    def show(self, name: str) -> dict[str, Any]: ...

    def topics(self, name: str) -> tuple[str, ...]:
        """What an application reads and writes, `stream/topic`."""

    async def stop(self, name: str) -> None: ...

    async def remove(self, name: str) -> None: ...

    async def kill_container(self, name: str, container_id: str) -> None: ...

    async def logs(self, name: str, lines: int) -> str: ...


_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (UnauthenticatedError, 401),
    (UnauthorizedError, 403),
    (NotFoundError, 404),
    (AlreadyExistsError, 409),
    (TooLargeError, 413),
    (InvalidArgumentError, 400),
    (ConfigError, 400),
    (RequestError, 400),
    (LocalProtocolError, 400),  # what was asked for cannot be said to the broker
    (HeadraceError, 503),
)


def _error_response(request: Request, error: Exception) -> Response:
    code = next(status for kind, status in _STATUS if isinstance(error, kind))
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
    overview_api.sample(sampler, live, catalogue, totals)
    group_api.sample(sampler, groups)
    cluster_api.sample(sampler, cluster, broker, catalogue)

    async def pause() -> None:
        await runtime.clock.sleep(0)

    trouble = BrokerTrouble(runtime, catalogue, groups, cluster)
    diagnosis = api.Diagnosis(pipelines, runtime.clock.now_ms, pause, trouble.look)
    sight = api.Sight(rights)
    api.sample(sampler, live, diagnosis, sight)

    def route(
        path: str,
        answer: Callable[[Request], Awaitable[Response]],
        method: str = "GET",
        *,
        manage: bool = False,
        code: CodeToken | None = None,
    ) -> Route:
        guarded = Guarded(logins, answer, manage, code, rights.guard(path))
        return Route(path, guarded.serve, methods=[method], name=path)

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    reached = ReachedBroker(broker)

    async def ready(_request: Request) -> Response:
        found = describe(await ask([*roles, reached]))
        return JSONResponse(found, 200 if found["ready"] else 503)

    async def overview(request: Request) -> Response:
        found = await broker.overview(request.state.login)
        seen = rights.seen_rows(request.state.login, pipelines.list())
        return JSONResponse({**found, "pipelines": seen})

    async def list_pipelines(request: Request) -> Response:
        return JSONResponse(rights.seen_rows(request.state.login, pipelines.list()))

    async def show_pipeline(request: Request) -> Response:
        return JSONResponse(pipelines.show(request.path_params["name"]))

    async def submit(request: Request) -> Response:
        return JSONResponse(await pipelines.submit(await read_package(request)), 201)

    async def diff(request: Request) -> Response:
        return JSONResponse(await pipelines.diff(await read_package(request)))

    async def deploy(request: Request) -> Response:
        package = await read_package(request)
        return JSONResponse(await pipelines.deploy(package, package.new_state), 201)

    async def stop(request: Request) -> Response:
        await pipelines.stop(request.path_params["name"])
        return JSONResponse(pipelines.show(request.path_params["name"]))

    async def remove(request: Request) -> Response:
        await pipelines.remove(request.path_params["name"])
        return JSONResponse({})

    async def kill(request: Request) -> Response:
        await pipelines.kill_container(
            request.path_params["name"], request.path_params["container"]
        )
        return JSONResponse({}, 202)

    async def logs(request: Request) -> Response:
        lines = query_number(request, "lines", 100, api.LOG_LINES_MAX, least=1)
        return PlainTextResponse(await pipelines.logs(request.path_params["name"], lines))

    async def metrics(request: Request) -> Response:
        seen = SeenPipelines(pipelines, rights, request.state.login)
        return PlainTextResponse(format_metrics(seen), media_type=CONTENT_TYPE)

    async def openapi(request: Request) -> Response:
        routes = [one for one in request.app.routes if isinstance(one, Route)]
        return JSONResponse(document(routes, version("headrace")))

    files = answer_asset(assets)
    application = Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/", files),
            Route("/static/{path:path}", files),
            *session_api.routes(route, logins, live),
            *overview_api.routes(route, catalogue, totals),
            *topic_api.routes(route, broker, catalogue),
            *messages.routes(route, broker, executor, arrow),
            *group_api.routes(route, broker, groups),
            *people_api.routes(route, broker),
            *cluster_api.routes(route, cluster, broker),
            route("/api/overview", overview),
            route("/api/pipelines", list_pipelines),
            route("/api/pipelines", submit, "POST", manage=True, code=code_token),
            route("/api/deployments", deploy, "POST", manage=True, code=code_token),
            route("/api/deployments/diff", diff, "POST", manage=True, code=code_token),
            route("/api/pipelines/{name}", show_pipeline),
            route("/api/pipelines/{name}", remove, "DELETE", manage=True),
            route("/api/pipelines/{name}/stop", stop, "POST", manage=True),
            route("/api/pipelines/{name}/containers/{container}/kill", kill, "POST", manage=True),
            route("/api/pipelines/{name}/logs", logs),
            route("/metrics", metrics),
            route("/openapi.json", openapi),
            *api.routes(route, pipelines, diagnosis, sight),
            *letters.routes(route, pipelines, broker.as_user),
            *stram_routes(route, pipelines, runtime.clock.now_ms),
        ],
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={HeadraceError: _error_response, HTTPException: _unrouted},
    )
    return WebApplication(application, sampler, executor, arrow)
