"""Every path of the REST interface against every kind of user: what a topic's pipeline shows of it
is shown to who may read the topic, and the names of what is not theirs reach nobody.

One stream, one topic, one pipeline that reads it and one group share the name `shop`/`orders`;
whatever else is there has another. The paths come from the document that the routes make, so a new
one is held as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.client.iggy import IggyClient
from headrace.web.broker_api.groups import ROLES
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.messages.users import (
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from tests.dashboard_stack import ROOT, Stack
from tests.integration.test_rest import KNOWN, Answering

PIPELINE = ("/api/v1/pipelines/{name}", "/ws/v2/stram/{name}")
STREAM = "/api/v1/events/stream"
LIVE = "overview,topics,streams,groups,cluster,alerts,problems,pipeline/shop"
USERS = ("manager", "observer", "reader", "of topic", "of stream", "outsider", "nobody")
SEE_PIPELINE = ("root", "manager", "reader", "of topic", "of stream")
HEAR_NAMES = {"observer": ("/metrics",)}
"""Where who may not see the pipeline hears of it all the same, and why that is right: figures of
the whole server, for who may read its state."""
BROKERS = "/dead-letters"  # asked of the broker as the user, who may have no right on such a topic


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(pipelines=Answering()) as started:
        started.call(_fill)
        yield started


async def _fill(client: IggyClient) -> None:
    await client.create_stream("shop")
    await client.create_topic("shop", "orders")
    await client.create_group("shop", "orders", "billing")
    await client.send("shop", "orders", [Message(payload=b'{"a": 1}')])
    await client.create_stream("elsewhere")
    await client.create_topic("elsewhere", "things")
    streams = {one.name: one.id for one in await client.get_streams()}
    topic = (await client.get_topics("shop"))[0].id
    one = TopicPermissions(topic_id=topic, read_topic=True, poll_messages=True)
    rights: dict[str, Permissions | None] = {
        "manager": Permissions(everywhere=GlobalPermissions(manage_servers=True)),
        "observer": Permissions(everywhere=GlobalPermissions(read_servers=True)),
        "reader": ROLES["read"],
        "of topic": Permissions(
            streams=(StreamPermissions(stream_id=streams["shop"], topics=(one,)),)
        ),
        "of stream": Permissions(
            streams=(StreamPermissions(stream_id=streams["shop"], read_stream=True),)
        ),
        "outsider": Permissions(
            streams=(StreamPermissions(stream_id=streams["elsewhere"], read_stream=True),)
        ),
        "nobody": None,
    }
    for name in USERS:
        await client.create_user(name, "secret", permissions=rights[name])


def _paths(stack: Stack) -> dict[str, list[str]]:
    """The methods of each path, as they are in the document."""
    answer = httpx.get(f"{stack.url}/openapi.json", auth=ROOT, trust_env=False)
    return {path: list(found) for path, found in answer.json()["paths"].items()}


def _filled(path: str) -> str:
    for name, value in KNOWN.items():
        path = path.replace(f"{{{name}}}", str(value))
    assert "{" not in path, f"{path}: say in KNOWN what to put there"
    return path


def _client(stack: Stack, user: str) -> httpx.Client:
    auth = ROOT if user == "root" else (user, "secret")
    return httpx.Client(trust_env=False, base_url=stack.url, auth=auth, timeout=30)


def _is_pipeline(path: str) -> bool:
    return path.startswith(PIPELINE)


@pytest.mark.parametrize("user", USERS)
def test_what_each_kind_of_user_reads(stack: Stack, user: str) -> None:
    wrong: list[str] = []
    looked = 0
    with _client(stack, "root") as root, _client(stack, user) as client:
        for path, methods in _paths(stack).items():
            if "get" not in methods or path == STREAM:
                continue
            looked += 1
            answer, whole = client.get(_filled(path)), root.get(_filled(path))
            sees = user in SEE_PIPELINE
            if _is_pipeline(path) and BROKERS not in path:
                expected = whole.status_code if sees else 404
                if answer.status_code != expected:
                    wrong.append(f"GET {path}: {answer.status_code}, not {expected}")
            told = answer.status_code < 300 and "shop" in answer.text
            if told and not sees and path not in HEAR_NAMES.get(user, ()):
                wrong.append(f"GET {path} tells {user}: {answer.text[:300]}")
    assert not wrong, "\n".join(wrong)
    assert looked > 50


@pytest.mark.parametrize("user", [one for one in USERS if one != "manager"])
def test_what_runs_or_changes_pipelines_is_for_managers(stack: Stack, user: str) -> None:
    done = 0
    with _client(stack, user) as client:
        for path, methods in _paths(stack).items():
            about = _is_pipeline(path) or path.startswith(
                ("/api/v1/pipelines", "/api/v1/deployments")
            )
            for method in set(methods) - {"get"} if about else ():
                answer = client.request(method, _filled(path), json={})
                assert answer.status_code == 403, f"{method} {path}: {answer.text}"
                done += 1
    assert done > 15


def _events(stack: Stack, user: str, expected: set[str]) -> dict[str, str]:
    """What comes of each live topic, until all that is expected came and the overview again."""
    found: dict[str, str] = {}
    name, times = "", 0
    with (
        _client(stack, user) as client,
        client.stream("GET", STREAM, params={"topics": LIVE}) as answer,
    ):
        assert answer.status_code == 200
        for line in answer.iter_lines():
            kind, _, rest = line.partition(": ")
            name = rest if kind == "event" else name
            if kind == "data":
                found[name] = rest
                times += name == "overview"
            if times >= 2 and expected <= found.keys():
                return found
    raise AssertionError(f"it ended, and there was only {found.keys()}")


@pytest.mark.parametrize("user", ["root", "observer", "of topic", "outsider"])
def test_what_each_kind_of_user_sees_change(stack: Stack, user: str) -> None:
    expected = {"overview", "topics", "streams", "groups", "alerts", "problems"}
    expected |= {"cluster"} if user in ("root", "observer") else set()
    sees = user in SEE_PIPELINE
    expected |= {"pipeline/shop"} if sees else set()
    found = _events(stack, user, expected)
    assert found.keys() == expected
    assert ("shop" in str(found)) == sees, found


def test_the_sums_are_those_of_the_lists_beside_them(stack: Stack) -> None:
    def overview(user: str) -> dict[str, Any]:
        with _client(stack, user) as client:
            value: dict[str, Any] = client.get("/api/v1/overview").json()
            assert value["totals"]["topics"] == client.get("/api/v1/topics").json()["total"] or (
                user == "observer"
            ), user
            return value

    for user, topics, pipelines in (
        ("reader", 2, 1),
        ("of topic", 1, 1),
        ("of stream", 0, 1),  # as the broker has it: this right reads messages and lists no topic
        ("outsider", 0, 0),
        ("nobody", 0, 0),
        ("observer", 2, 0),
    ):
        value = overview(user)
        assert value["totals"]["topics"] == topics, user
        assert value["pipelines"]["all"] == pipelines, user
        told = user in ("reader", "observer")
        assert (value["totals"]["clients"] is not None) == told
        assert (value["server"]["hostname"] is not None) == told
