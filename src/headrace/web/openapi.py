"""The API described as OpenAPI 3.1, made from the routes themselves.

Paths, methods, path parameters and permissions are read off the routes, so that they cannot be out
of step. What a route cannot say (what it takes and gives) is in DETAILS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.routing import Route

from headrace.web.openapi_rows import BROKER_DETAILS, PIPELINE_DETAILS, Detail, Parameter
from headrace.web.pipeline_api.letters import LETTERS
from headrace.web.pipeline_api.packages import SubmittedPackage
from headrace.web.stram import types as t
from headrace.web.stram.routes import BASE

VERSION = "3.1.0"
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_OPERATOR, _LOGICAL = f"{BASE}/physicalPlan/operators", f"{BASE}/logicalPlan/operators"
_CONTAINERS = f"{BASE}/physicalPlan/containers"


DETAILS: Mapping[tuple[str, str], Detail] = {
    **BROKER_DETAILS,
    **PIPELINE_DETAILS,
    ("GET", "/health"): Detail("Whether the server answers.", text=True),
    ("GET", "/ready"): Detail("Whether controller and broker can serve; 503 with why not."),
    ("GET", "/"): Detail("The dashboard's page.", text=True, media_type="text/html"),
    ("GET", "/static/{path}"): Detail(
        "A file of the dashboard: a style, a module, a picture.", text=True, media_type="*/*"
    ),
    ("GET", "/openapi.json"): Detail("This document."),
    ("GET", "/metrics"): Detail("Metrics for Prometheus.", text=True),
    ("GET", "/api/overview"): Detail("Topics and pipelines."),
    ("GET", "/api/pipelines"): Detail("All pipelines."),
    ("POST", "/api/pipelines"): Detail(
        "Submit a package and start its application.", body=SubmittedPackage
    ),
    ("POST", "/api/deployments"): Detail(
        "Deploy a package over its application, at a committed window; start it if there is none.",
        body=SubmittedPackage,
    ),
    ("POST", "/api/deployments/diff"): Detail(
        "What deploying a package would keep.", body=SubmittedPackage
    ),
    ("GET", "/api/pipelines/{name}"): Detail("One pipeline in full."),
    ("DELETE", "/api/pipelines/{name}"): Detail(
        "Remove a pipeline that has ended, with its checkpoints."
    ),
    ("POST", "/api/pipelines/{name}/stop"): Detail("Stop a pipeline."),
    ("POST", "/api/pipelines/{name}/containers/{container}/kill"): Detail("Kill a container."),
    ("GET", "/api/pipelines/{name}/logs"): Detail(
        "The last lines of a pipeline's containers.", text=True, query={"lines": "How many."}
    ),
    ("GET", BASE): Detail("The application.", t.AppInfo),
    ("GET", f"{BASE}/info"): Detail("The application.", t.AppInfo),
    ("GET", f"{BASE}/physicalPlan"): Detail("What runs where.", t.PhysicalPlanInfo),
    ("GET", _OPERATOR): Detail("Operators as they run.", t.Operators),
    ("GET", f"{BASE}/physicalPlan/streams"): Detail("Streams.", t.Streams),
    ("GET", f"{_OPERATOR}/{{id}}"): Detail("One operator.", t.OperatorInfo),
    ("GET", f"{_OPERATOR}/{{id}}/ports"): Detail("Its ports.", t.Ports),
    ("GET", f"{_OPERATOR}/{{id}}/ports/{{port}}"): Detail("One of its ports.", t.PortInfo),
    ("GET", f"{_OPERATOR}/{{id}}/properties"): Detail(
        "Its properties.", query={"propertyName": "Only this one."}
    ),
    ("GET", _CONTAINERS): Detail(
        "Containers.", t.Containers, query={"states": "Only these states, with commas between."}
    ),
    ("GET", f"{_CONTAINERS}/{{container}}"): Detail("One container.", t.ContainerInfo),
    ("GET", f"{_CONTAINERS}/{{container}}/stackTrace"): Detail(
        "What its threads are doing, asked of it now.", t.StackTrace
    ),
    ("POST", f"{_CONTAINERS}/{{container}}/kill"): Detail(
        "Kill a container; it is started again.", t.Done
    ),
    ("POST", f"{_OPERATOR}/{{id}}/properties"): Detail(
        "Set properties, by name; of an operator that has one instance.", t.Done
    ),
    ("POST", f"{_OPERATOR}/{{id}}/recordings/start"): Detail(
        "Keep sample rows of the next windows.", t.Recording, t.RecordingStart
    ),
    ("POST", f"{_OPERATOR}/{{id}}/recordings/stop"): Detail("Record no more.", t.Done),
    ("POST", f"{_OPERATOR}/{{id}}/ports/{{port}}/recordings/start"): Detail(
        "The same; an operator's recording has all its ports.", t.Recording, t.RecordingStart
    ),
    ("POST", f"{_OPERATOR}/{{id}}/ports/{{port}}/recordings/stop"): Detail(
        "Record no more.", t.Done
    ),
    ("GET", f"{BASE}/recordings/{{recording}}"): Detail("What was recorded.", t.Recorded),
    ("POST", f"{BASE}/logicalPlan"): Detail(
        "Change operators and streams, all requests or none.", t.Done, t.PlanChange
    ),
    ("POST", f"{_LOGICAL}/{{operator}}/properties"): Detail("Set properties, by name.", t.Done),
    ("POST", f"{_LOGICAL}/{{operator}}/instances"): Detail(
        "Run a stateless operator in so many containers.", t.Done, t.Instances
    ),
    ("POST", f"{BASE}/resume"): Detail("Start a stopped application again.", t.Done),
    ("POST", f"{BASE}/rollBack"): Detail("Go back to a window.", t.Done, t.RollBack),
    ("POST", f"{BASE}/replay"): Detail("Read a topic again from a point.", t.Done, t.Replay),
    ("GET", f"{BASE}/logicalPlan"): Detail("The plan as it was declared."),
    ("GET", f"{BASE}/logicalPlan/attributes"): Detail("The application's attributes."),
    ("GET", _LOGICAL): Detail("Operators as they were declared."),
    ("GET", f"{_LOGICAL}/{{operator}}"): Detail("One of them."),
    ("GET", f"{_LOGICAL}/{{operator}}/aggregation"): Detail(
        "Its metrics over all instances.", t.Aggregation
    ),
    ("GET", f"{_LOGICAL}/{{operator}}/attributes"): Detail("Its attributes."),
    ("GET", f"{_LOGICAL}/{{operator}}/ports"): Detail("Its ports."),
    ("GET", f"{_LOGICAL}/{{operator}}/ports/{{port}}"): Detail("One of its ports."),
    ("GET", f"{_LOGICAL}/{{operator}}/ports/{{port}}/attributes"): Detail("The port's attributes."),
    ("GET", f"{_LOGICAL}/{{operator}}/properties"): Detail(
        "Its properties.", query={"propertyName": "Only this one."}
    ),
    ("GET", f"{BASE}/operatorClasses"): Detail("Functions that operators run.", t.OperatorClasses),
    ("GET", f"{BASE}/operatorClasses/{{name}}"): Detail("One of them."),
    ("GET", f"{BASE}/loggers"): Detail(
        "Log levels that were set.", t.Loggers, query={"pattern": "Names, with * for anything."}
    ),
    ("GET", f"{BASE}/loggers/search"): Detail(
        "Log levels that were set.", t.Loggers, query={"pattern": "Names, with * for anything."}
    ),
    ("POST", f"{BASE}/loggers"): Detail("Set log levels in all containers.", t.Done, t.Loggers),
    ("GET", f"{BASE}/events"): Detail(
        "What happened, newest last.",
        t.Events,
        query={"offset": "Only events with a higher id.", "limit": "At most so many."},
    ),
    ("POST", f"{BASE}/shutdown"): Detail("Let the application drain and end.", t.Done),
}


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    structs = {one for row in DETAILS.values() for one in (row.answer, row.body) if one is not None}
    _, schemas = msgspec.json.schema_components(
        sorted(structs, key=lambda one: one.__name__), ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = plain_path(route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(route, method, path)
    return {
        "openapi": VERSION,
        "info": {"title": "Headrace", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": _ERROR},
            "securitySchemes": {"user": {"type": "http", "scheme": "basic"}},
        },
    }


def plain_path(path: str) -> str:
    """Without the types that the router puts into its parameters."""
    return _PARAMETER.sub(r"{\1}", path)


def needs_login(route: Route) -> bool:
    return hasattr(route.endpoint, "__self__")


def needs_manager(route: Route) -> bool:
    return bool(getattr(getattr(route.endpoint, "__self__", None), "manage", False))


_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}


def _operation(route: Route, method: str, path: str) -> dict[str, Any]:
    detail = DETAILS.get((method, path), Detail(route.name.replace("_", " ")))
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path)}".rstrip("_"),
        "summary": detail.summary,
        "parameters": [*_path_parameters(route.path), *_query_parameters(detail)],
        "responses": _responses(detail, method, path, route),
        "security": [{"user": []}] if needs_login(route) else [],
    }
    if needs_manager(route):
        operation["description"] = "Needs a user who may manage the server."
    if detail.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(detail.body)}
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer" if kind == "number" else "string"},
        }
        for name, kind in _PARAMETER.findall(path)
    ]


def _query_parameters(detail: Detail) -> list[dict[str, Any]]:
    found = []
    for name, given in (detail.query or {}).items():
        one = given if isinstance(given, Parameter) else Parameter(given, {"type": "string"})
        found.append(
            {
                "name": name,
                "in": "query",
                "description": one.description,
                "schema": one.schema,
                "required": one.required,
            }
        )
    return found


def _responses(detail: Detail, method: str, path: str, route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Found." if method == "GET" else "Done."}
    if detail.text:
        good["content"] = {detail.media_type: {"schema": {"type": "string"}}}
    elif not detail.nothing:
        good["content"] = _content(detail.answer)
    error = {"description": "Why not.", "content": {"application/json": {"schema": _REFERENCE}}}
    asks_broker = path.startswith(("/api/v1", LETTERS))
    codes = ["400"]
    codes += ["401"] if needs_login(route) or detail.body is not None else []
    codes += ["403"] if needs_manager(route) or method != "GET" or asks_broker else []
    codes += ["404"] if "{" in path else []
    codes += ["409", "413"] if method != "GET" else []
    codes += ["503"] if asks_broker else []
    if path == "/ready":
        return {"2XX": good, "503": {**good, "description": "Not now, and why."}}
    return {"2XX": good, **dict.fromkeys(codes, error)}


_REFERENCE = {"$ref": "#/components/schemas/Error"}


def _content(kind: type[msgspec.Struct] | None) -> dict[str, Any]:
    schema: dict[str, Any] = (
        {"type": ["object", "array"]}
        if kind is None
        else {"$ref": f"#/components/schemas/{kind.__name__}"}
    )
    return {"application/json": {"schema": schema}}
