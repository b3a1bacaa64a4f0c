"""The web application on a stage: a real application's state, a broker that knows two users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import httpx
from starlette.applications import Starlette
from starlette.routing import Route

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError, UnauthenticatedError, UnavailableError
from headrace.pipeline.controller import application_views
from headrace.pipeline.controller.application.events import Event
from headrace.pipeline.controller.running import HeartbeatDetails
from headrace.pipeline.controller.views import (
    ApplicationRow,
    ApplicationView,
    ControllerStatistics,
    RecordedWindow,
    WindowPoint,
)
from headrace.pipeline.plan.logical import plan_topics
from headrace.runtime.system import system_runtime
from headrace.web.app import create_app
from headrace.web.broker_api.groups import ROLES
from headrace.web.broker_api.types import ClusterInfo, RangeRow
from headrace.web.server.assets import Asset
from headrace.web.server.endpoints import Endpoint, ServedEndpoint
from headrace.web.server.logins import Credentials, Login
from headrace.wire.umbilical import messages as m
from tests.unit.pipeline.controller.application.test_state import START, Driver

CONTAINER = "shop.1.1"
MANAGER, READER = ("root", "secret"), ("reader", "secret")


def running() -> Driver:
    """Both operators ran two windows."""
    driver = Driver()
    driver.start()
    driver.beat(CONTAINER)
    for count in (1, 2):
        driver.beat(CONTAINER, report(1, count, driver.now), report(2, count, driver.now), ms=1_000)
    return driver


def report(operator: int, count: int, now_ms: int) -> m.OperatorHeartbeat:
    window = (START // 1000) << 32 | count
    name = "orders"
    port = m.PortStats(name, 100, now_ms + 10 * operator, 2_000, 5)
    stats = m.OperatorStats(
        window,
        checkpoint=m.Checkpoint(window),
        input_ports=(port,) if operator == 2 else (),
        output_ports=() if operator == 2 else (m.PortStats("output", 100, now_ms + 10, 0, 5),),
        cpu_time_used=1_000_000_000,
        checkpoint_stats=m.CheckpointStats(now_ms, 40),
        metrics={"rows": 100, "ratio": 0.5, "label": 'a"b\n', "flag": True},
        batch_id=count,
        run_id="run",
    )
    return m.OperatorHeartbeat(operator, m.DeployState.ACTIVE, window_stats=(stats,))


# `list` is a method of the class below
Recorded: TypeAlias = list[RecordedWindow]
Happened: TypeAlias = list[Event]


class Pipelines:
    """What the web layer asks of a controller, with one application."""

    def __init__(self) -> None:
        self.driver = running()
        self.heartbeat_details = HeartbeatDetails()
        self.calls: list[tuple[Any, ...]] = []

    def list(self) -> list[ApplicationRow]:
        return [application_views.summary(self.driver.application, self.driver.now)]

    def show(self, name: str) -> ApplicationView:
        if name != "shop":
            raise NotFoundError(f"there is no pipeline {name!r}")
        view = application_views.details(self.driver.application, self.driver.now)
        return self.heartbeat_details.annotate(view, self.driver.now)

    def topics(self, name: str) -> tuple[str, ...]:
        self.show(name)
        return plan_topics(self.driver.application.record.plan)

    def glance(self, name: str) -> ApplicationView:
        return self.show(name)

    def history(self, name: str) -> dict[int, tuple[WindowPoint, ...]]:
        self.show(name)
        return self.heartbeat_details.history()

    async def container_log(self, name: str, container_id: str, lines: int = 100) -> str:
        if container_id not in [one.id for one in self.show(name).containers]:
            raise NotFoundError("no log of such a container", container_id=container_id)
        return "".join(f"[info] line {number}\n[error] bad {number}\n" for number in range(9))

    async def log_before(self, name: str, container_id: str, offset: int) -> str:
        return f"[error] what stands before {offset}\n"

    def events(self, name: str, *, after: int = 0) -> Happened:
        self.show(name)
        return self.driver.application.events.list(after=after)

    def statistics(self) -> ControllerStatistics:
        return ControllerStatistics(umbilical={"connections": 1, "calls_served": 3})

    def log_levels(self, name: str) -> dict[str, str]:
        return {"headrace.spark": "DEBUG", "py4j": "WARN"}

    async def recorded(self, name: str, recording: str) -> Recorded:
        self.show(name)
        return [RecordedWindow(window="1", rows=[])]

    async def start_recording(self, name: str, operator: str, windows: int = 100) -> str:
        self.calls.append(("start_recording", name, operator, windows))
        return f"{operator}-1"

    async def stack_trace(self, name: str, container_id: str) -> str:
        return '{"python": [{"name": "main", "stack": []}], "jvm": []}'

    async def logs(self, name: str, lines: int) -> str:
        return "a line\n"

    def __getattr__(self, method: str) -> Any:
        """Everything that changes something is only written down."""
        if method.startswith("_"):
            raise AttributeError(method)

        async def record(*arguments: Any, **named: Any) -> Any:
            self.calls.append((method, *arguments, *named.values()))
            return self.show("shop") if method in ("submit", "deploy") else None

        return record


class Broker:
    async def login(self, credentials: Credentials) -> Login:
        username = credentials.username
        if (username, credentials.password) not in (MANAGER, READER):
            raise UnauthenticatedError("unknown user or wrong password")
        role = "admin" if username == "root" else "read"
        return Login(username, may_manage=username == "root", permissions=ROLES[role])

    async def overview(self, login: Login) -> dict[str, Any]:
        return {"topics": []}

    def as_user(self, credentials: Credentials) -> AbstractAsyncContextManager[IggyClient]:
        raise UnavailableError("there is none behind this stage")

    def as_service(self) -> AbstractAsyncContextManager[IggyClient]:
        raise UnavailableError("there is none behind this stage")


class Cluster:
    async def describe(self) -> ClusterInfo:
        raise UnavailableError("there is none behind this stage")

    async def ranges(self, streams: Sequence[tuple[int, int]]) -> list[RangeRow]:
        return []

    async def durability(self, stream: int) -> str:
        return "synced"


def make() -> tuple[Starlette, Pipelines]:
    pipelines = Pipelines()
    assets = {"index.html": Asset(b"<html>", "text/html", '"1"')}
    return create_app(system_runtime(), pipelines, Broker(), Cluster(), assets).asgi, pipelines


def endpoints(app: Starlette) -> list[Endpoint]:
    """What the application serves, each once, whatever paths it had before."""
    routes = [one for one in app.routes if isinstance(one, Route)]
    return list(dict.fromkeys(map(endpoint_of, routes)))


def endpoint_of(route: Route) -> Endpoint:
    served = getattr(route.endpoint, "__self__", None)
    assert isinstance(served, ServedEndpoint)
    return served.endpoint


async def ask(
    app: Starlette,
    path: str,
    method: str = "GET",
    *,
    user: tuple[str, str] | None = MANAGER,
    headers: Iterable[tuple[str, str]] = (),
    json: object = None,
) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://h") as client:
        return await client.request(method, path, auth=user, headers=list(headers), json=json)
