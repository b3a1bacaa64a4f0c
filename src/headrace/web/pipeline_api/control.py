"""What a pipeline is made of, and what changes it while it runs: `/api/v1/pipelines/<name>/...`.

Answers and bodies have the names and shapes of Apache Apex's Stram, whose paths
(`headrace.web.stram.routes`) lead to the same handlers.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from starlette.requests import Request

from headrace.errors import InvalidArgumentError, NotFoundError
from headrace.pipeline.controller.application.events import Event
from headrace.pipeline.controller.views import ApplicationView, RecordedWindow
from headrace.web.server.endpoints import (
    Endpoint,
    Handler,
    NumberParameter,
    Parameter,
    TextParameter,
    check_numbers,
    read_values,
)
from headrace.web.stram import types as t
from headrace.web.stram import views

PIPELINE = "/api/v1/pipelines/{name}"
EVENTS_MAX = 1_000
STATES = TextParameter("states", "Only these states, with commas between.")
PATTERN = TextParameter("pattern", "Names, with * for anything.")
PROPERTY = TextParameter("propertyName", "Only this one.")
AFTER = NumberParameter("offset", "Only events with a higher id.")
LIMIT = NumberParameter("limit", "At most so many.", default=EVENTS_MAX, most=EVENTS_MAX)
_RECORDING = t.RecordingStart()


class ControlledPipelines(Protocol):
    """What this layer needs of the controller."""

    def show(self, name: str) -> ApplicationView: ...

    def events(self, name: str, *, after: int = 0) -> list[Event]: ...

    async def stop(self, name: str) -> None: ...

    async def kill_container(self, name: str, container_id: str) -> None: ...

    async def stack_trace(self, name: str, container_id: str) -> str: ...

    async def set_log_levels(self, name: str, levels: Mapping[str, str]) -> None: ...

    async def set_property(self, name: str, operator: str, values: Mapping[str, Any]) -> None: ...

    async def set_instances(self, name: str, operator: str, instances: int) -> None: ...

    async def change_plan(self, name: str, requests: Sequence[Mapping[str, Any]]) -> None: ...

    async def start_recording(self, name: str, operator: str, windows: int = 100) -> str: ...

    async def stop_recording(self, name: str, operator: str) -> None: ...

    async def recorded(self, name: str, recording: str) -> list[RecordedWindow]: ...

    async def resume(self, name: str) -> ApplicationView: ...

    async def roll_back(self, name: str, window: str, operators: Sequence[str] = ()) -> None: ...

    async def replay(self, name: str, topic: str, starting: str) -> None: ...

    def log_levels(self, name: str) -> dict[str, str]: ...


class Control:
    """Handlers of what is below a pipeline's name."""

    def __init__(self, controlled: ControlledPipelines) -> None:
        self._controlled = controlled

    def view(self, request: Request) -> ApplicationView:
        return self._controlled.show(_name(request))

    def change(self, path: str, handler: Handler, summary: str) -> Endpoint:
        """A path for managers, with NotFoundError before anything that is wrong with a body."""
        return Endpoint("POST", path, handler, summary, status=202, manage=True, first=self.view)

    def endpoints(self) -> list[Endpoint]:
        def get(path: str, handler: Handler, summary: str, *query: Parameter) -> Endpoint:
            return Endpoint("GET", f"{PIPELINE}{path}", handler, summary, query=query)

        def post(path: str, handler: Handler, summary: str) -> Endpoint:
            return self.change(f"{PIPELINE}{path}", handler, summary)

        operator, declared = "/operators/{id:number}", "/plan/operators/{operator}"
        return [
            get("/containers", self.containers, "Containers.", STATES),
            get("/containers/{container}", self.container, "One container."),
            get(
                "/containers/{container}/stack-trace",
                self.stack_trace,
                "What a container's threads are doing, asked of it now.",
            ),
            Endpoint(
                "POST",
                f"{PIPELINE}/containers/{{container}}/kill",
                self.kill,
                "Kill a container; it is started again.",
                status=202,
                manage=True,
                former_path="/api/pipelines/{name}/containers/{container}/kill",
            ),
            get("/operators", self.operators, "Operators as they run."),
            get(operator, self.operator, "One operator as it runs."),
            post(
                f"{operator}/recordings/start",
                self.record,
                "Keep sample rows of an operator's next windows.",
            ),
            post(f"{operator}/recordings/stop", self.stop_recording, "Record no more."),
            get("/recordings/{recording}", self.recording, "What was recorded."),
            get("/plan", self.plan, "The plan as it was declared."),
            post("/plan", self.change_plan, "Change operators and streams, all requests or none."),
            get(
                f"{declared}/properties",
                self.declared_properties,
                "An operator's properties.",
                PROPERTY,
            ),
            post(f"{declared}/properties", self.set_declared, "Set properties, by name."),
            post(
                f"{declared}/instances",
                self.set_instances,
                "Run a stateless operator in so many containers.",
            ),
            get("/loggers", self.loggers, "Log levels that were set.", PATTERN),
            post("/loggers", self.set_loggers, "Set log levels in all containers."),
            get("/events", self.events, "What happened, newest last.", AFTER, LIMIT),
            post("/resume", self.resume, "Start a stopped pipeline again."),
            post("/roll-back", self.roll_back, "Go back to a window."),
            post("/replay", self.replay, "Read a topic again from a point."),
        ]

    async def containers(self, request: Request) -> t.Containers:
        wanted = frozenset(filter(None, STATES.read(request).upper().split(",")))
        return t.Containers(containers=views.container_infos(self.view(request), wanted))

    async def container(self, request: Request) -> t.ContainerInfo:
        return views.container_info(self.view(request), request.path_params["container"])

    async def stack_trace(self, request: Request) -> t.StackTrace:
        container = (await self.container(request)).id
        text = await self._controlled.stack_trace(_name(request), container)
        found = msgspec.json.decode(text)
        return t.StackTrace(
            container=container, python=found.get("python", []), jvm=found.get("jvm", [])
        )

    async def kill(self, request: Request) -> t.Done:
        await self._controlled.kill_container(_name(request), request.path_params["container"])
        return t.Done(detail="it is started again")

    async def operators(self, request: Request) -> t.Operators:
        return t.Operators(operators=views.operator_infos(self.view(request)))

    async def operator(self, request: Request) -> t.OperatorInfo:
        return views.operator_info(self.view(request), request.path_params["id"])

    async def record(self, request: Request, wanted: t.RecordingStart = _RECORDING) -> t.Recording:
        operator = await self._recorded(request)
        found = await self._controlled.start_recording(_name(request), operator, wanted.num_windows)
        return t.Recording(id=found)

    async def stop_recording(self, request: Request) -> t.Done:
        await self._controlled.stop_recording(_name(request), await self._recorded(request))
        return t.Done(detail="what was recorded stays")

    async def _recorded(self, request: Request) -> str:
        """The operator that a recording is of; with a port in the path, one that it has."""
        operator = await self.operator(request)
        if "port" in request.path_params:
            views.port_info(operator, request.path_params["port"])
        return operator.name

    async def recording(self, request: Request) -> t.Recorded:
        name, wanted = _name(request), request.path_params["recording"]
        try:
            rows = await self._controlled.recorded(name, wanted)
        except NotFoundError:
            if not any(
                one.data.get("recording") == wanted for one in self._controlled.events(name)
            ):
                raise
            rows = []  # it was started, and no window has passed yet
        return t.Recorded(windows=rows)

    async def plan(self, request: Request) -> dict[str, Any]:
        return self.view(request).plan

    async def change_plan(self, request: Request, wanted: t.PlanChange) -> t.Done:
        for one in wanted.requests:
            check_numbers(one)
        await self._controlled.change_plan(_name(request), wanted.requests)
        return t.Done(detail=f"{len(wanted.requests)} changes")

    async def declared_properties(self, request: Request) -> dict[str, Any]:
        return self.properties(request, request.path_params["operator"])

    def properties(self, request: Request, operator: str) -> dict[str, Any]:
        """Properties of an operator as they are now, all or the one that the query names."""
        properties = views.properties(self.view(request), operator)
        wanted = request.query_params.get(PROPERTY.name)
        if wanted is None:
            return properties
        if wanted not in properties:
            raise NotFoundError("no such property", operator=operator, property=wanted)
        return {wanted: properties[wanted]}

    async def set_declared(self, request: Request) -> t.Done:
        values, operator = await read_values(request), request.path_params["operator"]
        views.logical_operator(self.view(request), operator)
        await self._controlled.set_property(_name(request), operator, values)
        return t.Done(detail=f"{len(values)} properties")

    async def set_physical(self, request: Request) -> t.Done:
        values, operator = await read_values(request), (await self.operator(request)).name
        copies = sum(one.name == operator for one in self.view(request).operators)
        if copies > 1:
            raise InvalidArgumentError("an instance has no properties of its own; set them on all")
        await self._controlled.set_property(_name(request), operator, values)
        return t.Done(detail=f"{len(values)} properties")

    async def set_instances(self, request: Request, wanted: t.Instances) -> t.Done:
        operator = request.path_params["operator"]
        await self._controlled.set_instances(_name(request), operator, wanted.instances)
        return t.Done(detail="at a committed window")

    async def loggers(self, request: Request) -> t.Loggers:
        pattern = PATTERN.read(request, "*")
        levels = self._controlled.log_levels(self.view(request).name)
        return t.Loggers(
            loggers=[
                t.LoggerSetting(target=target, log_level=level)
                for target, level in levels.items()
                if fnmatch.fnmatchcase(target, pattern)
            ]
        )

    async def set_loggers(self, request: Request, wanted: t.Loggers) -> t.Done:
        levels = {one.target: one.log_level for one in wanted.loggers}
        await self._controlled.set_log_levels(_name(request), levels)
        return t.Done(detail=f"{len(wanted.loggers)} loggers")

    async def events(self, request: Request) -> t.Events:
        after, limit = AFTER.read(request), LIMIT.read(request)
        found = self._controlled.events(_name(request), after=after)
        return t.Events(events=views.events(found[-limit:] if limit else []))

    async def shut_down(self, request: Request) -> t.Done:
        await self._controlled.stop(_name(request))
        return t.Done(detail="it drains and ends")

    async def resume(self, request: Request) -> t.Done:
        await self._controlled.resume(_name(request))
        return t.Done(detail="from its checkpoints")

    async def roll_back(self, request: Request, wanted: t.RollBack) -> t.Done:
        await self._controlled.roll_back(_name(request), wanted.window_id, wanted.operators)
        return t.Done(detail=f"to {wanted.window_id}")

    async def replay(self, request: Request, wanted: t.Replay) -> t.Done:
        await self._controlled.replay(_name(request), wanted.topic, wanted.starting)
        return t.Done(detail=f"{wanted.topic} from {wanted.starting}")


def _name(request: Request) -> str:
    return str(request.path_params["name"])
