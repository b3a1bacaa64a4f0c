"""The REST interface against its own OpenAPI document, and who may do what."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace.client.iggy import IggyClient
from headrace.pipeline.controller.views import ApplicationView, VersionComparison
from headrace.web.broker_api.groups import ROLES
from headrace.wire.iggy.messages.messages import Message
from tests.dashboard_stack import ROOT, Stack
from tests.unit.web.broker_api.test_arrow_reader import nulls
from tests.unit.web.stage import CONTAINER, Pipelines

READER, NOBODY = ("reader", "reader"), ("nobody", "nobody")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
KNOWN = {
    "stream": "shop",
    "topic": "orders",
    "group": "billing",
    "user": "reader",
    "name": "shop",
    "id": 2,
    "operator": "revenue",
    "container": CONTAINER,
    "port": "orders",
    "recording": "revenue-1",
    "path": "app.js",
    "shard": 5,
    "class": "shop:revenue",
}
ENDLESS = ("/api/v1/events/stream",)
SESSION = "/api/v1/session"
PATIENT = settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Answering(Pipelines):
    """What is submitted is accepted."""

    async def submit(self, package: Any) -> ApplicationView:
        return self.show("shop")

    async def diff(self, package: Any) -> VersionComparison:
        return VersionComparison(
            name=package.name,
            deployed="",
            package="",
            verdict="COMPATIBLE",
            state_compared=False,
            operators=[],
        )

    async def deploy(self, package: Any, new_state: Any = ()) -> ApplicationView:
        return self.show("shop")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(pipelines=Answering()) as started:
        started.call(_fill)
        yield started


async def _fill(client: IggyClient) -> None:
    await client.create_user(*READER, permissions=ROLES["read"])
    await client.create_user(*NOBODY)
    await client.create_stream("shop")
    await client.create_topic("shop", "orders")
    await client.create_group("shop", "orders", "billing")
    await client.send("shop", "orders", [Message(payload=b'{"a": 1}')])


def _operations(stack: Stack) -> list[Any]:
    """Those that delete come last, so that the others find something."""
    answer = httpx.get(f"{stack.url}/openapi.json", auth=ROOT, trust_env=False)
    schema = schemathesis.openapi.from_dict(answer.json())
    found = [one.ok() for one in schema.get_all_operations() if isinstance(one, Ok)]
    return sorted(
        (one for one in found if one.path not in ENDLESS),
        key=lambda one: ("get", "put", "post", "delete").index(one.method.lower()),
    )


@pytest.mark.parametrize("user", [NOBODY, ROOT], ids=["nobody", "root"])
def test_the_interface_is_what_its_document_says(stack: Stack, user: tuple[str, str]) -> None:
    changed: list[str] = []
    wrong: list[str] = []
    headers = {"x-headrace-page": "1", "x-headrace-token": stack.code_token}
    with requests.Session() as session:
        session.trust_env = False
        session.auth = user

        def check(case: Case[Any], known: bool) -> None:
            if known:
                found = {
                    name: KNOWN.get(name, value) for name, value in case.path_parameters.items()
                }
                case.path_parameters.update(found)
            answer = case.call(base_url=stack.url, session=session, headers=headers, timeout=20)
            case.validate_response(answer, checks=CHECKS)
            if case.method != "GET" and answer.status_code < 400 and case.operation.path != SESSION:
                changed.append(f"{case.method} {case.operation.path}")

        for operation in _operations(stack):
            try:
                _explore(operation, check)
            except FailureGroup as error:
                wrong.append(f"{operation.method.upper()} {operation.path}: {error}")
    assert not wrong, "\n".join(wrong)
    if user == NOBODY:
        assert changed == []
    else:
        assert len(set(changed)) > 10


def _explore(operation: Any, check: Callable[[Case[Any], bool], None]) -> None:
    turns = iter(range(1_000))

    @given(case=operation.as_strategy())
    @PATIENT
    def explore(case: Case[Any]) -> None:
        check(case, next(turns) % 3 != 2)

    explore()


def _changes() -> list[tuple[str, str, dict[str, Any] | None]]:
    topic = "/api/v1/streams/shop/topics/orders"
    return [
        ("POST", "/api/v1/streams", {"name": "mine"}),
        ("DELETE", "/api/v1/streams/shop", None),
        ("POST", "/api/v1/streams/shop/purge", None),
        ("POST", "/api/v1/streams/shop/topics", {"name": "mine"}),
        ("PUT", topic, {"expiry_ms": 1000}),
        ("DELETE", topic, None),
        ("POST", f"{topic}/purge", None),
        ("POST", f"{topic}/partitions", {"count": 1}),
        ("POST", f"{topic}/messages", {"value": "x"}),
        ("POST", "/api/v1/users", {"name": "mine", "password": "secret"}),
        ("PUT", "/api/v1/users/nobody", {"active": False}),
        ("DELETE", "/api/v1/users/nobody", None),
        ("PUT", "/api/v1/shards/5", {"worker": "0"}),
    ]


@pytest.mark.parametrize("user", [READER, NOBODY], ids=["reader", "nobody"])
def test_every_change_needs_its_right(user: tuple[str, str]) -> None:
    with Stack() as stack, httpx.Client(trust_env=False, base_url=stack.url, auth=user) as client:
        stack.call(_fill)
        for method, path, body in _changes():
            answer = client.request(method, path, json=body)
            assert answer.status_code == 403, f"{method} {path}: {answer.text}"
        if user == NOBODY:
            topic = "/api/v1/streams/shop/topics/orders"
            group = {"name": "mine"}  # as in Iggy whoever may read a topic may make groups of it
            assert client.post(f"{topic}/groups", json=group).status_code == 403
            assert client.delete(f"{topic}/groups/billing").status_code == 403
            servers = ("/api/v1/clients", "/api/v1/cluster", "/api/v1/workers")
            for path in (topic, f"{topic}/messages", *servers):
                assert client.get(path).status_code == 403, path
            assert client.get("/api/v1/topics").json() == {"topics": [], "total": 0}
            assert client.get("/api/overview").json()["topics"] == []


def test_workers_are_told_and_a_shard_is_given_to_one() -> None:
    with Stack() as stack, httpx.Client(trust_env=False, base_url=stack.url, auth=ROOT) as client:
        stack.call(_fill)
        found = client.get("/api/v1/workers").json()
        (worker,) = found["workers"]
        assert (worker["number"], worker["shards"], worker["coordinates"]) == (0, 64, True)
        assert {one["worker"] for one in found["shards"]} == {worker["name"]}
        assert [one["pinned"] for one in found["shards"]] == [None] * 64
        moved = client.put("/api/v1/shards/5", json={"worker": "0"})
        assert moved.json() == {"shard": 5, "worker": worker["name"], "pinned": worker["name"]}
        shards = client.get("/api/v1/workers").json()["shards"]
        assert [one["shard"] for one in shards if one["pinned"]] == [5]
        assert client.put("/api/v1/shards/5", json={"worker": ""}).json()["pinned"] is None
        for shard, status in (("0", 400), ("64", 404), ("x", 404), ("9" * 40, 404)):
            refused = client.put(f"/api/v1/shards/{shard}", json={"worker": ""})
            assert refused.status_code == status, refused.text
        assert client.put("/api/v1/shards/5", json={"worker": "7"}).status_code == 404
        forged = client.put(
            "/api/v1/shards/5", json={"worker": ""}, headers={"origin": "http://evil"}
        )
        assert forged.status_code == 403


def test_a_message_that_was_made_to_harm_who_looks_at_it_harms_nobody() -> None:
    """Arrow, one row: a list of 20 million nulls, in 336 bytes."""
    topic = "/api/v1/streams/shop/topics/orders/messages"
    sent = {"value": base64.b64encode(nulls(20_000_000)).decode(), "encoding": "base64"}
    with Stack() as stack, httpx.Client(trust_env=False, base_url=stack.url, auth=ROOT) as client:
        stack.call(_fill)
        assert client.post(topic, json=sent).status_code == 201
        with stack.watched() as longest:
            rows = client.get(topic, timeout=60).json()["messages"]
        assert [one["format"] for one in rows] == ["json", "arrow"]
        assert rows[1]["table"]["count"] == 1
        assert longest["busy"] < 1.0, "the loop had nothing of it"
