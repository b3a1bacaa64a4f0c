"""Stram's REST interface, for one application each: `/ws/v2/stram/<application>/...`.

In the origin every application had a controller, and with it an address, of its own; here one
controller has them all, so the application's name stands in the path. What follows it is the
origin's. What `/api/v1/pipelines` has too is answered by the same handlers (`Control`); the rest,
made by `headrace.web.stram.views` from the same view, is for clients of the origin alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from headrace.errors import NotFoundError
from headrace.web.pipeline_api.control import AFTER, LIMIT, PATTERN, PROPERTY, STATES, Control
from headrace.web.server.endpoints import Endpoint, Handler, Parameter
from headrace.web.stram import types as t
from headrace.web.stram import views

BASE = "/ws/v2/stram/{name}"


def endpoints(control: Control, now_ms: Callable[[], int]) -> list[Endpoint]:
    def get(path: str, handler: Handler, summary: str, *query: Parameter) -> Endpoint:
        return Endpoint("GET", f"{BASE}{path}", handler, summary, query=query)

    def post(path: str, handler: Handler, summary: str) -> Endpoint:
        return control.change(f"{BASE}{path}", handler, summary)

    async def application(request: Request) -> t.AppInfo:
        return views.app_info(control.view(request), now_ms())

    async def physical_plan(request: Request) -> t.PhysicalPlanInfo:
        return views.physical_plan(control.view(request))

    async def streams(request: Request) -> t.Streams:
        return t.Streams(streams=views.streams(control.view(request)))

    async def ports(request: Request) -> t.Ports:
        return t.Ports(ports=(await control.operator(request)).ports)

    async def port(request: Request) -> t.PortInfo:
        return views.port_info(await control.operator(request), request.path_params["port"])

    async def properties(request: Request) -> dict[str, Any]:
        return control.properties(request, (await control.operator(request)).name)

    async def attributes(request: Request) -> dict[str, Any]:
        found: dict[str, Any] = (await control.plan(request)).get("attributes", {})
        return found

    async def declared_operators(request: Request) -> dict[str, Any]:
        return {"operators": (await control.plan(request))["operators"]}

    async def declared(request: Request) -> dict[str, Any]:
        return views.logical_operator(control.view(request), request.path_params["operator"])

    async def aggregation(request: Request) -> t.Aggregation:
        return views.aggregation(control.view(request), request.path_params["operator"])

    async def operator_attributes(request: Request) -> dict[str, Any]:
        found: dict[str, Any] = (await declared(request)).get("attributes", {})
        return found

    async def declared_ports(request: Request) -> dict[str, Any]:
        return {"ports": (await declared(request)).get("ports", [])}

    async def declared_port(request: Request) -> dict[str, Any]:
        given = request.path_params
        return views.logical_port(control.view(request), given["operator"], given["port"])

    async def port_attributes(request: Request) -> dict[str, Any]:
        found: dict[str, Any] = (await declared_port(request)).get("attributes", {})
        return found

    async def operator_classes(request: Request) -> t.OperatorClasses:
        return t.OperatorClasses(operator_classes=views.operator_classes(control.view(request)))

    async def operator_class(request: Request) -> dict[str, Any]:
        name, found = request.path_params["class"], control.view(request)
        row = next((one for one in views.operator_classes(found) if one["name"] == name), None)
        if row is None:
            raise NotFoundError("no such operator class", name=name)
        one = views.logical_operator(found, row["operators"][0])
        return {**row, "ports": one.get("ports", []), "properties": one.get("properties", {})}

    containers, operator = "/physicalPlan/containers", "/physicalPlan/operators/{id:number}"
    logical = "/logicalPlan/operators/{operator}"
    return [
        get("", application, "The application."),
        get("/info", application, "The application."),
        get("/physicalPlan", physical_plan, "What runs where."),
        get("/physicalPlan/operators", control.operators, "Operators as they run."),
        get("/physicalPlan/streams", streams, "Streams."),
        get(operator, control.operator, "One operator."),
        get(f"{operator}/ports", ports, "Its ports."),
        get(f"{operator}/ports/{{port}}", port, "One of its ports."),
        get(f"{operator}/properties", properties, "Its properties.", PROPERTY),
        get(containers, control.containers, "Containers.", STATES),
        get(f"{containers}/{{container}}", control.container, "One container."),
        get(
            f"{containers}/{{container}}/stackTrace",
            control.stack_trace,
            "What its threads are doing, asked of it now.",
        ),
        post(
            f"{containers}/{{container}}/kill",
            control.kill,
            "Kill a container; it is started again.",
        ),
        post(
            f"{operator}/properties",
            control.set_physical,
            "Set properties, by name; of an operator that has one instance.",
        ),
        post(
            f"{operator}/recordings/start",
            control.record,
            "Keep sample rows of the next windows.",
        ),
        post(f"{operator}/recordings/stop", control.stop_recording, "Record no more."),
        post(
            f"{operator}/ports/{{port}}/recordings/start",
            control.record,
            "The same; an operator's recording has all its ports.",
        ),
        post(
            f"{operator}/ports/{{port}}/recordings/stop",
            control.stop_recording,
            "Record no more.",
        ),
        get("/recordings/{recording}", control.recording, "What was recorded."),
        post(
            "/logicalPlan",
            control.change_plan,
            "Change operators and streams, all requests or none.",
        ),
        post(f"{logical}/properties", control.set_declared, "Set properties, by name."),
        post(
            f"{logical}/instances",
            control.set_instances,
            "Run a stateless operator in so many containers.",
        ),
        get("/logicalPlan", control.plan, "The plan as it was declared."),
        get("/logicalPlan/attributes", attributes, "The application's attributes."),
        get("/logicalPlan/operators", declared_operators, "Operators as they were declared."),
        get(logical, declared, "One of them."),
        get(f"{logical}/aggregation", aggregation, "Its metrics over all instances."),
        get(f"{logical}/attributes", operator_attributes, "Its attributes."),
        get(f"{logical}/ports", declared_ports, "Its ports."),
        get(f"{logical}/ports/{{port}}", declared_port, "One of its ports."),
        get(f"{logical}/ports/{{port}}/attributes", port_attributes, "The port's attributes."),
        get(f"{logical}/properties", control.declared_properties, "Its properties.", PROPERTY),
        get("/operatorClasses", operator_classes, "Functions that operators run."),
        get("/operatorClasses/{class}", operator_class, "One of them."),
        get("/loggers", control.loggers, "Log levels that were set.", PATTERN),
        get("/loggers/search", control.loggers, "Log levels that were set.", PATTERN),
        post("/loggers", control.set_loggers, "Set log levels in all containers."),
        get("/events", control.events, "What happened, newest last.", AFTER, LIMIT),
        post("/shutdown", control.shut_down, "Let the application drain and end."),
        post("/resume", control.resume, "Start a stopped application again."),
        post("/rollBack", control.roll_back, "Go back to a window."),
        post("/replay", control.replay, "Read a topic again from a point."),
    ]
