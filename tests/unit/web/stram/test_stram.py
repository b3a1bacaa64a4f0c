"""Stram's REST paths: what they answer, and to whom."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from headrace.web.server.endpoints import Endpoint, openapi_document, plain_path
from headrace.web.stram.routes import BASE
from tests.unit.web.stage import CONTAINER, READER, ask, endpoint_of, endpoints, make

VALUES = {
    "id": "2",
    "operator": "revenue",
    "container": CONTAINER,
    "name": "shop",
    "recording": "revenue-1",
    "class": "shop:revenue",
    "port": "orders",
}
HERE = "/ws/v2/stram/shop"


def all_endpoints() -> list[Endpoint]:
    app, _ = make()
    return endpoints(app)


def fill(path: str) -> str:
    for name, value in VALUES.items():
        path = path.replace(f"{{{name}}}", value)
    return path


ENDPOINTS = {(one.method, plain_path(one.path)): one for one in all_endpoints()}
GETS = [path for method, path in ENDPOINTS if method == "GET" and path.startswith(BASE)]
POSTS = [path for (method, path), one in ENDPOINTS.items() if method == "POST" and one.manage]
GUARDED = [key for key, one in ENDPOINTS.items() if one.login]
OPEN = {"/health", "/ready", "/", "/static/{path}", "/api/v1/session"}


@pytest.mark.parametrize("path", GETS)
async def test_every_path_answers_in_the_shape_that_is_described(path: str) -> None:
    app, _ = make()
    answer = await ask(app, fill(path), user=READER)
    assert answer.status_code == 200, answer.text
    told = msgspec.convert(answer.json(), ENDPOINTS["GET", path].answer_type)
    assert msgspec.to_builtins(told) == answer.json()


@pytest.mark.parametrize("path", GETS)
async def test_an_unknown_application_is_not_found(path: str) -> None:
    app, _ = make()
    answer = await ask(app, fill(path).replace("/shop", "/nothing", 1))
    assert answer.status_code == 404


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_nobody_gets_in_without_a_login(method: str, path: str) -> None:
    app, _ = make()
    for user in (None, ("root", "wrong")):
        assert (await ask(app, fill(path), method, user=user)).status_code == 401


@pytest.mark.parametrize("path", POSTS)
async def test_what_changes_something_needs_a_manager(path: str) -> None:
    app, pipelines = make()
    assert (await ask(app, fill(path), "POST", user=READER, json={})).status_code == 403
    other = [("sec-fetch-site", "cross-site")]
    assert (await ask(app, fill(path), "POST", headers=other, json={})).status_code == 403
    assert pipelines.calls == []


def test_only_the_page_and_the_way_in_are_open() -> None:
    assert {path for method, path in ENDPOINTS if (method, path) not in GUARDED} == OPEN


def test_the_document_has_every_endpoint_and_no_other() -> None:
    found = openapi_document(all_endpoints(), "1")
    listed = {(method.upper(), path) for path, row in found["paths"].items() for method in row}
    assert listed == set(ENDPOINTS)
    for (method, path), one in ENDPOINTS.items():
        row = found["paths"][path][method.lower()]
        assert bool(row["security"]) == one.login
        if one.manage or method != "GET":
            assert "403" in row["responses"]
        assert ("description" in row) == one.manage
        named = {each["name"] for each in row["parameters"] if each["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))
        assert ("requestBody" in row) == (one.body_type is not None)
    ids = [row["operationId"] for rows in found["paths"].values() for row in rows.values()]
    assert len(ids) == len(set(ids))


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*(references(one) for one in value.values()))
    if isinstance(value, list):
        return set().union(*(references(one) for one in value))
    return set()


async def test_the_document_is_served_and_whole() -> None:
    app, _ = make()
    found = (await ask(app, "/openapi.json", user=READER)).json()
    assert found["openapi"] == "3.1.0"
    schemas = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert references(found) <= schemas


async def test_operators_have_the_origins_fields() -> None:
    app, _ = make()
    one = (await ask(app, f"{HERE}/physicalPlan/operators/2")).json()
    assert one["name"] == "revenue"
    assert one["className"] == "shop:revenue"
    assert one["container"] == CONTAINER
    assert one["status"] == "ACTIVE"
    assert one["totalTuplesProcessed"] == 200
    assert one["tuplesProcessedPSMA"] == 20.0
    assert one["latencyMA"] == 10
    assert one["checkpointTime"] == 40
    assert one["metrics"]["rows"] == 100
    assert [port["name"] for port in one["ports"]] == ["orders"]
    assert one["currentWindowId"].endswith("2")


async def test_the_application_tells_its_critical_path() -> None:
    app, _ = make()
    info = (await ask(app, f"{HERE}/info")).json()
    assert info["stats"]["criticalPath"] == [1, 2]
    assert info["stats"]["latency"] == 10
    assert info["stats"]["allocatedContainers"] == 1
    assert info | {"elapsedTime": 0} == (await ask(app, HERE)).json() | {"elapsedTime": 0}


@pytest.mark.parametrize(("states", "count"), [("ACTIVE", 1), ("killed", 0), ("killed,active", 1)])
async def test_containers_by_state(states: str, count: int) -> None:
    app, _ = make()
    found = await ask(app, f"{HERE}/physicalPlan/containers?states={states}")
    assert len(found.json()["containers"]) == count


@pytest.mark.parametrize(
    "path",
    [
        "/physicalPlan/operators/9",
        "/physicalPlan/operators/2/ports/none",
        "/physicalPlan/containers/none",
        "/physicalPlan/containers/none/stackTrace",
        "/logicalPlan/operators/none",
        "/logicalPlan/operators/revenue/ports/none",
        "/logicalPlan/operators/revenue/properties?propertyName=none",
        "/operatorClasses/none",
    ],
)
async def test_what_is_not_there_is_not_found(path: str) -> None:
    app, _ = make()
    answer = await ask(app, f"{HERE}{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]


async def test_properties_are_what_they_are_now() -> None:
    app, pipelines = make()
    path = f"{HERE}/physicalPlan/operators/1/properties"
    assert (await ask(app, path)).json() == {"topic": "shop/orders"}
    assert (await ask(app, f"{path}?propertyName=topic")).json() == {"topic": "shop/orders"}
    changed = {"topic": "shop/others"}
    pipelines.driver.application.record.properties["orders"] = changed
    assert (await ask(app, path)).json() == changed
    assert (await ask(app, f"{HERE}/logicalPlan/operators/orders/properties")).json() == changed


async def test_events_from_a_point_on() -> None:
    app, _ = make()
    every = (await ask(app, f"{HERE}/events")).json()["events"]
    assert [one["type"] for one in every][:1] == ["StartContainer"]
    later = (await ask(app, f"{HERE}/events?offset={every[0]['id']}")).json()["events"]
    assert later == every[1:]
    assert len((await ask(app, f"{HERE}/events?limit=1")).json()["events"]) == 1
    for wrong in ("offset=-1", "limit=x", "limit=100000"):
        assert (await ask(app, f"{HERE}/events?{wrong}")).status_code == 400


async def test_loggers() -> None:
    app, pipelines = make()
    wanted = {"loggers": [{"target": "py4j", "logLevel": "INFO"}]}
    assert (await ask(app, f"{HERE}/loggers", "POST", json=wanted)).status_code == 202
    assert pipelines.calls == [("set_log_levels", "shop", {"py4j": "INFO"})]
    found = (await ask(app, f"{HERE}/loggers/search?pattern=head*")).json()
    assert found == {"loggers": [{"target": "headrace.spark", "logLevel": "DEBUG"}]}
    refused: list[dict[str, Any]] = [{}, {"loggers": [{}]}, {"loggers": [], "more": 1}]
    for wrong in refused:
        answer = await ask(app, f"{HERE}/loggers", "POST", json=wrong)
        assert answer.status_code == 400
    plain = [("content-type", "text/plain")]
    assert (await ask(app, f"{HERE}/loggers", "POST", headers=plain)).status_code == 400


async def test_shutdown_and_kill() -> None:
    app, pipelines = make()
    assert (await ask(app, f"{HERE}/shutdown", "POST")).status_code == 202
    path = f"{HERE}/physicalPlan/containers/{CONTAINER}/kill"
    assert (await ask(app, path, "POST")).status_code == 202
    assert pipelines.calls == [("stop", "shop"), ("kill_container", "shop", CONTAINER)]


R = f"{HERE}/physicalPlan/operators/2"


@pytest.mark.parametrize(
    ("path", "body", "call"),
    [
        (f"{HERE}/logicalPlan", {"requests": [{"a": 1}]}, ("change_plan", "shop", [{"a": 1}])),
        (
            f"{HERE}/logicalPlan/operators/revenue/properties",
            {"limit": 3},
            ("set_property", "shop", "revenue", {"limit": 3}),
        ),
        (f"{R}/properties", {"limit": 3}, ("set_property", "shop", "revenue", {"limit": 3})),
        (
            f"{HERE}/logicalPlan/operators/revenue/instances",
            {"instances": 2},
            ("set_instances", "shop", "revenue", 2),
        ),
        (f"{R}/recordings/start", None, ("start_recording", "shop", "revenue", 100)),
        (
            f"{R}/ports/orders/recordings/start",
            {"numWindows": 5},
            ("start_recording", "shop", "revenue", 5),
        ),
        (f"{R}/recordings/stop", None, ("stop_recording", "shop", "revenue")),
        (f"{R}/ports/orders/recordings/stop", None, ("stop_recording", "shop", "revenue")),
        (f"{HERE}/resume", None, ("resume", "shop")),
        (f"{HERE}/rollBack", {"windowId": "a1"}, ("roll_back", "shop", "a1", [])),
        (
            f"{HERE}/replay",
            {"topic": "orders", "starting": "earliest"},
            ("replay", "shop", "orders", "earliest"),
        ),
    ],
)
async def test_changes_reach_the_controller(path: str, body: Any, call: tuple[Any, ...]) -> None:
    app, pipelines = make()
    answer = await ask(app, path, "POST", json=body)
    assert answer.status_code == 202, answer.text
    assert pipelines.calls == [call]
    wrong = await ask(app, path, "POST", json=[1])
    if body is not None:
        assert wrong.status_code == 400
    missing = await ask(app, path.replace("/shop/", "/none/"), "POST", json=body)
    assert missing.status_code == 404
    assert pipelines.calls == [call] or body is None


async def test_changes_of_what_is_not_there() -> None:
    app, pipelines = make()
    for path in (
        f"{HERE}/physicalPlan/operators/9/recordings/start",
        f"{R}/ports/none/recordings/start",
        f"{HERE}/logicalPlan/operators/none/properties",
    ):
        assert (await ask(app, path, "POST", json={})).status_code == 404
    assert pipelines.calls == []


def test_a_path_of_before_leads_to_the_same_endpoint() -> None:
    app, _ = make()
    served = {
        (one.path, method): endpoint_of(one)
        for one in app.routes
        if isinstance(one, Route)
        for method in one.methods or ()
    }
    former = [one for one in all_endpoints() if one.former_path]
    assert len(former) > 10
    for one in former:
        assert served[one.former_path, one.method] == served[one.path, one.method]
        assert one.former_path == one.path.replace("/api/v1/", "/api/")
