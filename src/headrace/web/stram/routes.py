"""Stram's REST interface, for one application each: `/ws/v2/stram/<application>/...`.

In the origin every application had a controller, and with it an address, of its own; here one
controller has them all, so the application's name stands in the path. What follows it is the
origin's. Answers are `stram_types`, made by `stram_views` from the same view as the JSON API's.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import InvalidArgumentError, NotFoundError
from headrace.web.server.exchange import (
    check_numbers,
    json_answer,
    query_number,
    read_body,
    read_values,
)
from headrace.web.stram import types as t
from headrace.web.stram import views

BASE = "/ws/v2/stram/{application}"
EVENTS_MAX = 1_000

Answer = Callable[[Request], Awaitable[Response]]


class Stram(Protocol):
    """What this layer needs of the controller."""

    def show(self, name: str) -> dict[str, Any]: ...

    def events(self, name: str, *, after: int = 0) -> list[dict[str, Any]]: ...

    async def stop(self, name: str) -> None: ...

    async def kill_container(self, name: str, container_id: str) -> None: ...

    async def stack_trace(self, name: str, container_id: str) -> str: ...

    async def set_log_levels(self, name: str, levels: Mapping[str, str]) -> None: ...

    async def set_property(self, name: str, operator: str, values: Mapping[str, Any]) -> None: ...

    async def set_instances(self, name: str, operator: str, instances: int) -> None: ...

    async def change_plan(self, name: str, requests: Sequence[Mapping[str, Any]]) -> None: ...

    async def start_recording(self, name: str, operator: str, windows: int = 100) -> str: ...

    async def stop_recording(self, name: str, operator: str) -> None: ...

    async def recorded(self, name: str, recording: str) -> list[dict[str, Any]]: ...

    async def resume(self, name: str) -> dict[str, Any]: ...

    async def roll_back(self, name: str, window: str, operators: Sequence[str] = ()) -> None: ...

    async def replay(self, name: str, topic: str, starting: str) -> None: ...

    def log_levels(self, name: str) -> dict[str, str]: ...


class AddRoute(Protocol):
    """Makes a route that only users who logged in reach; `manage`: only those who may manage."""

    def __call__(
        self, path: str, answer: Answer, method: str = "GET", *, manage: bool = False
    ) -> Route: ...


def routes(add: AddRoute, stram: Stram, now_ms: Callable[[], int]) -> list[Route]:
    def view(request: Request) -> dict[str, Any]:
        return stram.show(request.path_params["application"])

    def get(path: str, make: Callable[[dict[str, Any], Request], Any]) -> Route:
        async def answer(request: Request) -> Response:
            return json_answer(make(view(request), request))

        return add(f"{BASE}{path}", answer)

    def post(path: str, act: Callable[[str, Request], Awaitable[Any]]) -> Route:
        async def answer(request: Request) -> Response:
            stram.show(request.path_params["application"])  # NotFoundError comes first
            return json_answer(await act(request.path_params["application"], request), 202)

        return add(f"{BASE}{path}", answer, "POST", manage=True)

    async def shutdown(name: str, _request: Request) -> t.Done:
        await stram.stop(name)
        return t.Done(detail="it drains and ends")

    async def kill(name: str, request: Request) -> t.Done:
        await stram.kill_container(name, request.path_params["container"])
        return t.Done(detail="it is started again")

    async def stack_trace(request: Request) -> Response:
        name, container = request.path_params["application"], request.path_params["container"]
        views.container_info(view(request), container)
        found = msgspec.json.decode(await stram.stack_trace(name, container))
        return json_answer(
            t.StackTrace(
                container=container, python=found.get("python", []), jvm=found.get("jvm", [])
            )
        )

    async def events(request: Request) -> Response:
        after = query_number(request, "offset", 0)
        limit = query_number(request, "limit", EVENTS_MAX, EVENTS_MAX)
        found = stram.events(request.path_params["application"], after=after)
        return json_answer(t.Events(events=views.events(found[-limit:] if limit else [])))

    async def set_loggers(name: str, request: Request) -> t.Done:
        wanted = await read_body(request, t.Loggers)
        await stram.set_log_levels(name, {one.target: one.log_level for one in wanted.loggers})
        return t.Done(detail=f"{len(wanted.loggers)} loggers")

    async def change_plan(name: str, request: Request) -> t.Done:
        wanted = await read_body(request, t.PlanChange)
        for one in wanted.requests:
            check_numbers(one)
        await stram.change_plan(name, wanted.requests)
        return t.Done(detail=f"{len(wanted.requests)} changes")

    async def set_logical(name: str, request: Request) -> t.Done:
        values = await read_values(request)
        views.logical_operator(stram.show(name), request.path_params["operator"])
        await stram.set_property(name, request.path_params["operator"], values)
        return t.Done(detail=f"{len(values)} properties")

    async def set_physical(name: str, request: Request) -> t.Done:
        values = await read_values(request)
        found = stram.show(name)
        operator = _operator(found, request).name
        if sum(one["name"] == operator for one in found["operators"]) > 1:
            raise InvalidArgumentError("an instance has no properties of its own; set them on all")
        await stram.set_property(name, operator, values)
        return t.Done(detail=f"{len(values)} properties")

    async def set_instances(name: str, request: Request) -> t.Done:
        wanted = await read_body(request, t.Instances)
        await stram.set_instances(name, request.path_params["operator"], wanted.instances)
        return t.Done(detail="at a committed window")

    async def record(name: str, request: Request) -> t.Recording:
        operator = _recorded(stram.show(name), request)
        wanted = await read_body(request, t.RecordingStart, t.RecordingStart())
        return t.Recording(id=await stram.start_recording(name, operator, wanted.num_windows))

    async def stop_recording(name: str, request: Request) -> t.Done:
        await stram.stop_recording(name, _recorded(stram.show(name), request))
        return t.Done(detail="what was recorded stays")

    async def recording(request: Request) -> Response:
        name = request.path_params["application"]
        wanted = request.path_params["recording"]
        try:
            rows = await stram.recorded(name, wanted)
        except NotFoundError:
            if not any(one.get("recording") == wanted for one in stram.events(name)):
                raise
            rows = []  # it was started, and no window has passed yet
        return json_answer(t.Recorded(windows=rows))

    async def resume(name: str, _request: Request) -> t.Done:
        await stram.resume(name)
        return t.Done(detail="from its checkpoints")

    async def roll_back(name: str, request: Request) -> t.Done:
        wanted = await read_body(request, t.RollBack)
        await stram.roll_back(name, wanted.window_id, wanted.operators)
        return t.Done(detail=f"to {wanted.window_id}")

    async def replay(name: str, request: Request) -> t.Done:
        wanted = await read_body(request, t.Replay)
        await stram.replay(name, wanted.topic, wanted.starting)
        return t.Done(detail=f"{wanted.topic} from {wanted.starting}")

    def loggers(found: dict[str, Any], request: Request) -> t.Loggers:
        pattern = request.query_params.get("pattern", "*")
        levels = stram.log_levels(found["name"])
        return t.Loggers(
            loggers=[
                t.LoggerSetting(target=target, log_level=level)
                for target, level in levels.items()
                if fnmatch.fnmatchcase(target, pattern)
            ]
        )

    operator, logical = "/physicalPlan/operators/{id:number}", "/logicalPlan/operators/{operator}"
    return [
        get("", lambda found, _: views.app_info(found, now_ms())),
        get("/info", lambda found, _: views.app_info(found, now_ms())),
        get("/physicalPlan", lambda found, _: views.physical_plan(found)),
        get(
            "/physicalPlan/operators",
            lambda found, _: t.Operators(operators=views.operator_infos(found)),
        ),
        get("/physicalPlan/streams", lambda found, _: t.Streams(streams=views.streams(found))),
        get(operator, lambda found, request: _operator(found, request)),
        get(
            f"{operator}/ports",
            lambda found, request: t.Ports(ports=_operator(found, request).ports),
        ),
        get(
            f"{operator}/ports/{{port}}",
            lambda found, request: views.port_info(
                _operator(found, request), request.path_params["port"]
            ),
        ),
        get(
            f"{operator}/properties",
            lambda found, request: _properties(found, request, _operator(found, request).name),
        ),
        get("/physicalPlan/containers", _containers),
        get(
            "/physicalPlan/containers/{container}",
            lambda found, request: views.container_info(found, request.path_params["container"]),
        ),
        add(f"{BASE}/physicalPlan/containers/{{container}}/stackTrace", stack_trace),
        post("/physicalPlan/containers/{container}/kill", kill),
        post(f"{operator}/properties", set_physical),
        post(f"{operator}/recordings/start", record),
        post(f"{operator}/recordings/stop", stop_recording),
        post(f"{operator}/ports/{{port}}/recordings/start", record),
        post(f"{operator}/ports/{{port}}/recordings/stop", stop_recording),
        add(f"{BASE}/recordings/{{recording}}", recording),
        post("/logicalPlan", change_plan),
        post(f"{logical}/properties", set_logical),
        post(f"{logical}/instances", set_instances),
        get("/logicalPlan", lambda found, _: found["plan"]),
        get("/logicalPlan/attributes", lambda found, _: found["plan"].get("attributes", {})),
        get(
            "/logicalPlan/operators",
            lambda found, _: {"operators": found["plan"]["operators"]},
        ),
        get(logical, _logical),
        get(
            f"{logical}/aggregation",
            lambda found, request: views.aggregation(found, request.path_params["operator"]),
        ),
        get(
            f"{logical}/attributes",
            lambda found, request: _logical(found, request).get("attributes", {}),
        ),
        get(
            f"{logical}/ports",
            lambda found, request: {"ports": _logical(found, request).get("ports", [])},
        ),
        get(f"{logical}/ports/{{port}}", _logical_port),
        get(
            f"{logical}/ports/{{port}}/attributes",
            lambda found, request: _logical_port(found, request).get("attributes", {}),
        ),
        get(
            f"{logical}/properties",
            lambda found, request: _properties(found, request, request.path_params["operator"]),
        ),
        get(
            "/operatorClasses",
            lambda found, _: t.OperatorClasses(operator_classes=views.operator_classes(found)),
        ),
        get("/operatorClasses/{name}", _operator_class),
        get("/loggers", loggers),
        get("/loggers/search", loggers),
        post("/loggers", set_loggers),
        add(f"{BASE}/events", events),
        post("/shutdown", shutdown),
        post("/resume", resume),
        post("/rollBack", roll_back),
        post("/replay", replay),
    ]


def _operator(found: dict[str, Any], request: Request) -> t.OperatorInfo:
    return views.operator_info(found, request.path_params["id"])


def _recorded(found: dict[str, Any], request: Request) -> str:
    """The operator that a recording is of; with a port in the path, one that it has."""
    operator = _operator(found, request)
    if "port" in request.path_params:
        views.port_info(operator, request.path_params["port"])
    return operator.name


def _logical(found: dict[str, Any], request: Request) -> dict[str, Any]:
    return views.logical_operator(found, request.path_params["operator"])


def _logical_port(found: dict[str, Any], request: Request) -> dict[str, Any]:
    return views.logical_port(found, request.path_params["operator"], request.path_params["port"])


def _containers(found: dict[str, Any], request: Request) -> t.Containers:
    states = request.query_params.get("states", "")
    wanted = frozenset(filter(None, states.upper().split(",")))
    return t.Containers(containers=views.container_infos(found, wanted))


def _properties(found: dict[str, Any], request: Request, operator: str) -> dict[str, Any]:
    """As they are now, all or the one that `propertyName` names."""
    properties = views.properties(found, operator)
    wanted = request.query_params.get("propertyName")
    if wanted is None:
        return properties
    if wanted not in properties:
        raise NotFoundError("no such property", operator=operator, property=wanted)
    return {wanted: properties[wanted]}


def _operator_class(found: dict[str, Any], request: Request) -> dict[str, Any]:
    name = request.path_params["name"]
    row = next((one for one in views.operator_classes(found) if one["name"] == name), None)
    if row is None:
        raise NotFoundError("no such operator class", name=name)
    example = views.logical_operator(found, row["operators"][0])
    return {**row, "ports": example.get("ports", []), "properties": example.get("properties", {})}
