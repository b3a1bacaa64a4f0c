"""Sessions: how many, how long, and what a request must bring to be one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from headrace.errors import UnauthenticatedError
from headrace.runtime import Clock
from headrace.runtime.system import system_runtime
from headrace.web.app import create_app
from headrace.web.server import logins
from headrace.web.server.logins import Credentials, Login, Sessions
from tests.unit.web.stage import MANAGER, READER, Broker, Cluster, Pipelines, make

PAGE = {"x-headrace-page": "1"}
PATH = "/api/v1/session"


class FakeClock(Clock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_session_ends_by_itself_and_by_hand() -> None:
    clock = FakeClock()
    table = Sessions(replace(system_runtime(), clock=clock))
    first, second = (table.open(Credentials(name, "secret")) for name in ("a", "b"))
    assert first != second
    found = table.find(first)
    assert found == Credentials("a", "secret")
    assert "secret" not in repr(found)
    table.end(first)
    assert table.find(first) is None
    clock.now = logins.SESSION_SECONDS - 1
    assert table.find(second) is not None
    clock.now += 1
    assert table.find(second) is None
    assert len(table) == 0


def test_who_was_away_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "SESSIONS_MAX", 3)
    table = Sessions(system_runtime())
    tokens = [table.open(Credentials(str(number), "")) for number in range(3)]
    table.find(tokens[0])
    table.open(Credentials("new", ""))
    assert [table.find(token) is not None for token in tokens] == [True, False, True]


def client_of(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://h")


def named(user: tuple[str, str]) -> dict[str, Any]:
    return {"username": user[0], "password": user[1]}


async def test_a_cookie_stands_for_a_login() -> None:
    app, pipelines = make()
    async with client_of(app) as client:
        assert (await client.get(PATH)).status_code == 204
        assert (await client.get("/api/pipelines")).status_code == 401
        wrong = {"username": "root", "password": "wrong"}
        assert (await client.post(PATH, json=wrong, headers=PAGE)).status_code == 401
        answer = await client.post(PATH, json=named(MANAGER), headers=PAGE)
        assert answer.status_code == 201
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await client.get("/api/pipelines")).status_code == 200
        assert (await client.get(PATH)).json()["username"] == "root"
        stop = "/api/pipelines/shop/stop"
        assert (await client.post(stop)).status_code == 403, "any site's page could send that"
        other = {**PAGE, "sec-fetch-site": "same-site"}
        assert (await client.post(stop, headers=other)).status_code == 403
        assert pipelines.calls == []
        assert (await client.post(stop, headers=PAGE)).status_code == 200
        assert pipelines.calls == [("stop", "shop")]
        assert (await client.delete(PATH)).status_code == 403
        assert (await client.delete(PATH, headers=PAGE)).status_code == 204
        assert (await client.get("/api/pipelines")).status_code == 401


async def test_a_session_has_its_users_rights() -> None:
    app, _ = make()
    async with client_of(app) as client:
        answer = await client.post(PATH, json=named(READER), headers=PAGE)
        assert answer.json()["may_manage"] is False
        stopped = await client.post("/api/pipelines/shop/stop", headers=PAGE)
        assert stopped.status_code == 403


async def test_a_login_is_not_asked_for_by_the_browser_itself() -> None:
    """With the header a browser would show a window of its own before our page says anything."""
    app, _ = make()
    async with client_of(app) as client:
        assert "www-authenticate" in (await client.get("/api/pipelines")).headers
        ours = await client.get("/api/pipelines", headers={"sec-fetch-site": "same-origin"})
        assert ours.status_code == 401
        assert "www-authenticate" not in ours.headers


class Moody(Broker):
    """Takes rights away between two requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.demoted = self.gone = False

    async def login(self, credentials: Credentials) -> Login:
        self.asked += 1
        if self.gone:
            raise UnauthenticatedError("unknown user or wrong password")
        login = await super().login(credentials)
        return replace(login, may_manage=False) if self.demoted else login


@pytest.mark.parametrize("basic", [True, False])
async def test_rights_that_were_taken_away_are_gone_with_the_next_request(*, basic: bool) -> None:
    broker, pipelines = Moody(), Pipelines()
    app = create_app(system_runtime(), pipelines, broker, Cluster(), {}).asgi
    stop = "/api/pipelines/shop/stop"
    async with client_of(app) as client:
        auth: httpx.Auth = httpx.BasicAuth(*MANAGER) if basic else httpx.Auth()
        if not basic:
            await client.post(PATH, json=named(MANAGER), headers=PAGE)
        for expected in (200, 403, 401):
            answer = await client.post(stop, headers=PAGE, auth=auth)
            assert answer.status_code == expected
            broker.gone = broker.demoted
            broker.demoted = True
        assert len(pipelines.calls) == 1
        asked = broker.asked
        await client.get("/api/pipelines", auth=auth)
        assert broker.asked == asked + basic, "a page does not go on with a session that ended"
