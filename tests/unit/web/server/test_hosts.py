"""Other sites' pages: by a name that leads here (DNS rebinding), or across origins."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headrace.errors import ConfigError, UnauthorizedError
from headrace.process.http_server import WebServer
from headrace.runtime.system import system_runtime
from headrace.web.app import create_app
from headrace.web.server.hosts import OwnNames, host_name
from headrace.web.server.logins import TOKEN_HEADER, CodeToken, Credentials, Login
from tests.unit.web.stage import MANAGER, Broker, Cluster, Pipelines


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:3000", "localhost"),
        ("LOCALHOST", "localhost"),
        ("[::1]:3000", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("", ""),
        ("a b", ""),
        ("user@localhost", ""),
        ("localhost:3000:1", ""),
        ("localhost/evil.example", ""),
        ("::1", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_only_loopbacks_names_are_ours(bound: str) -> None:
    names = OwnNames(bound, ["dash.example.org"], "builder.corp")
    for good in ("127.0.0.1:3000", "localhost:8888", "[::1]:3000", "127.0.0.2", "Dash.Example.Org"):
        assert names.has(good), good
    for bad in (
        "evil.example:3000",
        "builder",
        "192.0.2.7:3000",
        "localhost.evil.example",
        "",
        "x",
    ):
        assert not names.has(bad), bad


def test_beyond_loopback_addresses_and_the_machines_name_are_ours_too() -> None:
    names = OwnNames("0.0.0.0", [], "builder.corp")
    for good in ("192.0.2.7:3000", "[2001:db8::1]", "builder", "builder.corp:3000", "localhost"):
        assert names.has(good), good
    assert not names.has("evil.example:3000")
    assert OwnNames("mill.example", []).has("mill.example:3000")
    anything = OwnNames("0.0.0.0", ["*"])
    assert anything.has("headrace.default.svc:3000")
    assert not anything.is_own_page("http://evil.example", "headrace.default.svc:3000")


async def _answer(_request: Request) -> Response:
    return PlainTextResponse("done")


async def test_every_http_server_refuses_foreign_names_and_foreign_pages() -> None:
    methods = ["GET", "POST", "DELETE"]
    server = WebServer(Starlette(routes=[Route("/", _answer, methods=methods)]), names=["dash.org"])
    await server.start("127.0.0.1", 0)
    try:
        port = server.address[1]
        async with httpx.AsyncClient(
            trust_env=False, base_url=f"http://127.0.0.1:{port}"
        ) as client:

            async def status(method: str = "POST", **headers: str) -> int:
                return (await client.request(method, "/", headers=headers)).status_code

            assert await status("GET") == 200
            assert await status("GET", host=f"localhost:{port}") == 200
            for method in methods:
                assert await status(method, host=f"evil.example:{port}") == 421
            assert await status() == 200  # programs name no origin
            assert await status(origin=f"http://127.0.0.1:{port}") == 200
            assert await status(origin="https://dash.org") == 200
            for origin in (
                "http://evil.example",
                f"http://localhost:{port + 1}",
                f"http://localhost:{port}",  # reached by another name than it was opened by
                "null",
                "",
                f"file://127.0.0.1:{port}",
                f"http://127.0.0.1:{port}.evil.example",
            ):
                assert await status(origin=origin) == 403, origin
                assert await status("DELETE", origin=origin) == 403, origin
                assert await status("GET", origin=origin) == 200, "it is told nothing by CORS"
    finally:
        await server.close()


async def test_no_server_is_made_that_listens_everywhere_by_mistake() -> None:
    server = WebServer(Starlette())
    for host in ("", "  "):
        with pytest.raises(ConfigError, match="every interface"):
            await server.start(host, 0)


def test_the_well_known_password_alone_runs_no_code() -> None:
    token = CodeToken("ab" * 32, "/data/secrets/http-token")
    token.check(Credentials("iggy", "another"), "")
    token.check(Credentials("iggy", "iggy"), "ab" * 32)
    for given in ("", "ab" * 31, "ü"):
        with pytest.raises(UnauthorizedError, match="http-token"):
            token.check(Credentials("iggy", "iggy"), given)
    with pytest.raises(UnauthorizedError):
        CodeToken().check(Credentials("iggy", "iggy"), "")


class _DevBroker(Broker):
    async def login(self, credentials: Credentials) -> Login:
        if credentials == Credentials("iggy", "iggy"):
            return Login(credentials.username, may_manage=True)
        return await super().login(credentials)


async def test_what_runs_code_asks_who_comes_with_it_for_the_token() -> None:
    pipelines, token = Pipelines(), CodeToken("ab" * 32, "/data/secrets/http-token")
    web = create_app(system_runtime(), pipelines, _DevBroker(), Cluster(), {}, (), token)
    transport = httpx.ASGITransport(web.asgi)
    package = {"entry": "a.py", "files": {"a.py": "cHJpbnQoKQ=="}}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/api/pipelines", "/api/deployments", "/api/deployments/diff"):
            refused = await client.post(path, json=package, auth=("iggy", "iggy"))
            assert refused.status_code == 403, path
            assert refused.json()["token_file"] == "/data/secrets/http-token"
            assert not pipelines.calls
            wrong = await client.post(
                path, json=package, auth=("iggy", "iggy"), headers={TOKEN_HEADER: "x"}
            )
            assert wrong.status_code == 403
        headers = {TOKEN_HEADER: "ab" * 32}
        for path in ("/api/pipelines", "/api/deployments", "/api/deployments/diff"):
            for user, more in ((("iggy", "iggy"), headers), (MANAGER, {})):
                taken = await client.post(path, json=package, auth=user, headers=more)
                assert taken.status_code < 300, (path, taken.text)
        assert len(pipelines.calls) == 6
        stopped = await client.post("/api/pipelines/shop/stop", auth=("iggy", "iggy"))
        assert stopped.status_code == 200, "it runs no code"
    await web.close()
