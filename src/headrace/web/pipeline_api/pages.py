"""What the dashboard's front page and its pages of pipelines read.

The pages follow live topics: `alerts` (how much is wrong, for every page), `problems` (the front
page), and `pipeline/<name>` for each pipeline whose page somebody looks at. Everything is looked
at once a second while any page is open, and never when none is.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.errors import NotFoundError
from headrace.pipeline.controller.views import (
    ApplicationRow,
    ApplicationView,
    ContainerView,
    OperatorView,
    UnreadableApplication,
    WindowPoint,
)
from headrace.web.broker_api.catalogue import may
from headrace.web.diagnosis import failures, problems
from headrace.web.diagnosis.types import LastError, PipelineHealth, Problem, Situation
from headrace.web.pipeline_api.control import PIPELINE
from headrace.web.pipeline_api.graph import Graphs, graphs
from headrace.web.pipeline_api.pipelines import PipelineRights
from headrace.web.server.endpoints import Endpoint, NumberParameter, TextParameter
from headrace.web.server.live import Live, Sampler, View
from headrace.web.server.logins import Login
from headrace.wire.iggy.commands import Permission
from headrace.wire.umbilical.windows import format_window

ERRORS_MAX = 50
LOG_LINES_MAX = 10_000
POINTS_MAX = 180
SECONDS = 1.0
SENT_MS = 20_000  # windows that are sent again and again; a page fetches older ones itself
_FAILED = ("FAILED", "UNREADABLE")
_AFTER = NumberParameter("after_ms", "Only windows that were heard of after this time.")
_LINES = NumberParameter("lines", "How many.", default=100, most=LOG_LINES_MAX, least=1)
_CONTAINER_LINES = NumberParameter("lines", "How many.", default=200, most=LOG_LINES_MAX, least=1)
_LEVEL = TextParameter(
    "level", "Only these and worse.", choices=("INFO", "WARNING", "ERROR"), upper=True
)
_TRIGGER = re.compile(r"(\d+(?:\.\d+)?) (millisecond|second|minute|hour|day)s?\Z")
_UNITS_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
}


class WatchedPipelines(Protocol):
    """What this layer needs of the controller."""

    def list(self) -> list[ApplicationRow]: ...

    def glance(self, name: str) -> ApplicationView: ...

    def history(self, name: str) -> dict[int, tuple[WindowPoint, ...]]: ...

    async def logs(self, name: str, lines: int) -> str: ...

    async def container_log(self, name: str, container_id: str, lines: int = 100) -> str: ...

    async def log_before(self, name: str, container_id: str, offset: int) -> str: ...


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's windows, one list for each figure."""

    operator: str
    id: int
    query: str | None
    at_ms: list[int]
    window: list[str]
    duration_ms: list[int]
    checkpoint_ms: list[int]
    rows: list[int]
    lag: list[int]
    rows_late: list[int]
    rows_bad: list[int]
    state_rows: list[int]
    watermark_ms: list[int]


class LiveOperator(OperatorView, frozen=True, kw_only=True):
    """An operator with the attributes that were declared for it."""

    attributes: dict[str, Any]


class PipelineLive(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline as its page shows it."""

    now_ms: int
    entry: str
    submitted_ms: int
    window_ms: int
    trigger_ms: int | None
    health: PipelineHealth
    graphs: Graphs
    windows: list[Windows]
    containers: list[ContainerView]
    operators: list[LiveOperator]
    events: list[dict[str, Any]]


class PipelineErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first."""

    errors: list[LastError]


class Diagnosis:
    """The judgements of `problems` on what the controller has."""

    def __init__(
        self,
        watched: WatchedPipelines,
        now_ms: Callable[[], int],
        pause: Callable[[], Awaitable[None]],
        others: Callable[[], Awaitable[Sequence[Problem]]],
    ) -> None:
        """`pause` lets the server do something else between two pipelines; `others` are problems
        of the broker and its cluster."""
        self._watched = watched
        self._now_ms = now_ms
        self._pause = pause
        self._others = others

    async def situation(self) -> Situation:
        healths = []
        for one in self._watched.list():
            try:
                healths.append(self._health(one))
            except NotFoundError:
                continue  # it was replaced while we looked
            await self._pause()
        return problems.situation(healths, await self._others(), self._now_ms())

    def _health(self, summary: ApplicationRow) -> PipelineHealth:
        if isinstance(summary, UnreadableApplication):
            return problems.unreadable(summary)
        name, now_ms = summary.name, self._now_ms()
        return problems.health(self._watched.glance(name), self._watched.history(name), now_ms)

    async def live(self, name: str, after_ms: int) -> PipelineLive:
        now_ms = self._now_ms()
        view, history = self._watched.glance(name), self._watched.history(name)
        health = problems.health(view, history, now_ms)
        if health.last_error is not None:
            error = await self._with_log(name, health.last_error)
            health = msgspec.structs.replace(health, last_error=error)
        declared = view.declared
        return PipelineLive(
            now_ms=now_ms,
            entry=view.entry,
            submitted_ms=view.submitted_ms,
            window_ms=view.window_ms,
            trigger_ms=trigger_ms(view.plan.get("attributes", {}).get("TRIGGER")),
            health=health,
            graphs=graphs(view, history, now_ms),
            windows=[_windows(one, history.get(one.id, ()), after_ms) for one in view.operators],
            containers=view.containers,
            operators=[
                LiveOperator(
                    **msgspec.structs.asdict(one),
                    attributes=declared.get(one.name, {}).get("attributes", {}),
                )
                for one in view.operators
            ],
            events=[one.to_json() for one in view.events],
        )

    async def errors(self, name: str) -> PipelineErrors:
        found = failures.errors(self._watched.glance(name).events)[:ERRORS_MAX]
        return PipelineErrors(errors=[await self._with_log(name, one) for one in found])

    async def _with_log(self, name: str, error: LastError) -> LastError:
        if error.log_offset < 0 or not error.container:
            return error
        try:
            before = await self._watched.log_before(name, error.container, error.log_offset)
        except NotFoundError:
            return error  # old logs are deleted
        return failures.with_log(error, before)


class SituationFilter:
    """What of the situation a user sees: their pipelines and topics, and the state of the servers
    if they may look at it."""

    def __init__(self, rights: PipelineRights) -> None:
        self._rights = rights

    def situation(self, found: Situation, login: Login) -> Situation:
        pipelines = self._rights.seen(login, found.pipelines, lambda one: one.name)
        others = [
            one
            for one in found.problems
            if one.subject != "pipeline" and self._may_hear(login, one)
        ]
        return problems.situation(pipelines, others, found.now_ms)

    def live(self, value: PipelineLive, login: Login) -> PipelineLive | None:
        return value if self._rights.sees(login, value.health.name) else None

    def _may_hear(self, login: Login, problem: Problem) -> bool:
        if problem.subject in ("group", "topic"):
            address = "/".join(problem.name.split("/")[:2])
            return self._rights.may_see_topic(login, address)
        may_look = login.may_manage or may(login.permissions, Permission.READ_SERVERS)
        return may_look or problem.subject == "broker"


def endpoints(
    watched: WatchedPipelines, diagnosis: Diagnosis, sight: SituationFilter
) -> list[Endpoint]:
    async def situation(request: Request) -> Situation:
        return sight.situation(await diagnosis.situation(), request.state.login)

    async def live(request: Request) -> PipelineLive:
        return await diagnosis.live(request.path_params["name"], _AFTER.read(request))

    async def errors(request: Request) -> PipelineErrors:
        return await diagnosis.errors(request.path_params["name"])

    async def logs(request: Request) -> Response:
        name, lines = request.path_params["name"], _LINES.read(request)
        return PlainTextResponse(await watched.logs(name, lines))

    async def container_log(request: Request) -> Response:
        level, lines = _LEVEL.read(request), _CONTAINER_LINES.read(request)
        name, container = request.path_params["name"], request.path_params["container"]
        # Lines of lower levels are read too, so that enough are left of the wanted ones.
        wanted = LOG_LINES_MAX if level else lines
        text = failures.filter_lines(await watched.container_log(name, container, wanted), level)
        return PlainTextResponse("".join(text.splitlines(keepends=True)[-lines:]))

    former = "/api/pipelines/{name}"
    return [
        Endpoint(
            "GET",
            "/api/v1/problems",
            situation,
            "Everything that is wrong, worst first, and how all pipelines are.",
            former_path="/api/problems",
        ),
        Endpoint(
            "GET",
            f"{PIPELINE}/live",
            live,
            "One pipeline as its page shows it.",
            query=(_AFTER,),
            former_path=f"{former}/live",
        ),
        Endpoint(
            "GET",
            f"{PIPELINE}/errors",
            errors,
            "Its errors, newest first, each with its log lines.",
            former_path=f"{former}/errors",
        ),
        Endpoint(
            "GET",
            f"{PIPELINE}/logs",
            logs,
            "The last lines of a pipeline's containers.",
            query=(_LINES,),
            media_type="text/plain",
            former_path=f"{former}/logs",
        ),
        Endpoint(
            "GET",
            f"{PIPELINE}/containers/{{container}}/logs",
            container_log,
            "The last lines of a container.",
            query=(_CONTAINER_LINES, _LEVEL),
            media_type="text/plain",
            former_path=f"{former}/containers/{{container}}/logs",
        ),
    ]


def trigger_ms(text: Any) -> int | None:
    """How often Spark starts a batch, as the plan says it: `1 second`."""
    found = _TRIGGER.match(text) if isinstance(text, str) else None
    return round(float(found[1]) * _UNITS_MS[found[2]]) if found else None


def _windows(one: OperatorView, points: Sequence[WindowPoint], after_ms: int) -> Windows:
    new = [point for point in points if point.at_ms > after_ms][-POINTS_MAX:]
    return Windows(
        operator=one.name,
        id=one.id,
        query=one.query,
        at_ms=[point.at_ms for point in new],
        window=[format_window(point.window) for point in new],
        duration_ms=[point.duration_ms for point in new],
        checkpoint_ms=[point.checkpoint_ms for point in new],
        rows=[point.rows_out or point.rows_in for point in new],
        lag=[point.lag for point in new],
        rows_late=[point.rows_late for point in new],
        rows_bad=[point.rows_bad for point in new],
        state_rows=[point.state_rows for point in new],
        watermark_ms=[point.watermark_ms for point in new],
    )


class Alerts(msgspec.Struct, frozen=True, kw_only=True):
    critical: int
    warning: int
    notice: int
    pipelines: int
    failed: int


def alerts_of(situation: Situation) -> Alerts:
    severities = [one.severity for one in situation.problems]
    return Alerts(
        critical=severities.count("critical"),
        warning=severities.count("warning"),
        notice=severities.count("notice"),
        pipelines=len(situation.pipelines),
        failed=sum(one.state in _FAILED for one in situation.pipelines),
    )


def sample(sampler: Sampler, live: Live, diagnosis: Diagnosis, sight: SituationFilter) -> None:
    async def alerts() -> View:
        found = await diagnosis.situation()
        live.publish("problems", lambda login: sight.situation(found, login))
        for one in found.pipelines:
            await publish(one.name, found.now_ms)
        return lambda login: alerts_of(sight.situation(found, login))

    async def publish(name: str, now_ms: int) -> None:
        topic = f"pipeline/{name}"
        if not live.wanted(topic):
            return
        try:
            value = await diagnosis.live(name, now_ms - SENT_MS)
        except NotFoundError:
            return  # it cannot be read, or was replaced a moment ago
        live.publish(topic, lambda login: sight.live(value, login))

    sampler.add("alerts", alerts, seconds=SECONDS, also=("problems",))
