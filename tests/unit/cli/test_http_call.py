"""Requests by the standard library, to a real server."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.cli.http_call import Answer, call
from headrace.errors import ConfigError, UnavailableError
from headrace.net.tls import ClientTls
from headrace.process.http_server import WebServer
from tests.unit.net.certificates import contexts, development

USER = ("ann", "p:ä ss")


async def echo(request: Request) -> Response:
    body = await request.body()
    told = {
        "method": request.method,
        "path": request.url.path,
        "query": dict(request.query_params),
        "login": request.headers["authorization"],
        "body": json.loads(body) if body else None,
    }
    return JSONResponse(told, 418 if "tea" in request.url.path else 200)


def web() -> WebServer:
    methods = ["GET", "POST", "DELETE"]
    return WebServer(Starlette(routes=[Route("/{path:path}", echo, methods=methods)]))


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = web()
    await server.start("127.0.0.1", 0)
    host, port = server.address
    yield f"{host}:{port}"
    await server.close()


async def ask(method: str, url: str, body: object = None) -> Answer:
    return await asyncio.to_thread(call, method, url, user=USER, tls=None, seconds=5.0, body=body)


async def test_what_is_asked_arrives(address: str) -> None:
    answer = await ask("POST", f"http://{address}/api/a b/ü?states=A,B&x=1%202", {"n": [1, "ö"]})
    told = answer.json()
    assert (answer.status, answer.is_good) == (200, True)
    assert (told["method"], told["path"]) == ("POST", "/api/a b/ü")
    assert told["query"] == {"states": "A,B", "x": "1 2"}
    assert told["body"] == {"n": [1, "ö"]}
    assert told["login"] == "Basic YW5uOnA6w6Qgc3M="
    assert (await ask("GET", f"http://{address}/x")).json()["body"] is None
    assert "DELETE" in (await ask("DELETE", f"http://{address}/x")).text


async def test_a_refusal_is_an_answer(address: str) -> None:
    answer = await ask("GET", f"http://{address}/tea")
    assert (answer.status, answer.is_good) == (418, False)


async def test_no_answer_is_an_error(address: str) -> None:
    with pytest.raises(UnavailableError, match="refused"):
        await ask("GET", "http://127.0.0.1:1/x")
    with pytest.raises(UnavailableError):
        await ask("GET", "http://no-such-host.invalid:80/x")
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        await ask("GET", "http://127.0.0.1:port/x")


async def test_tls_trusts_whom_it_was_told_to_and_nobody_else(tmp_path: Path) -> None:
    certificate, _ = development()
    files = tmp_path / "chain.pem", tmp_path / "key.pem"
    files[0].write_bytes(certificate.chain)
    files[1].write_bytes(certificate.key)
    server = web()
    await server.start("127.0.0.1", 0, certificate=(str(files[0]), str(files[1])))
    url = f"https://127.0.0.1:{server.address[1]}/x"
    _, trusting = contexts()

    async def get(tls: ClientTls) -> Answer:
        return await asyncio.to_thread(call, "GET", url, user=USER, tls=tls, seconds=5.0)

    try:
        assert (await get(ClientTls(context=trusting, server_name="localhost"))).is_good
        for tls in (
            ClientTls(context=trusting, server_name="another"),
            ClientTls(context=ssl.create_default_context()),
        ):
            with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                await get(tls)
    finally:
        await server.close()
