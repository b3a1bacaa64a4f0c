"""Commands that name a pipeline and a topic: they ask the controller, then the broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from headrace.cli.main import app as commands
from headrace.errors import HeadraceError, NotFoundError, UnavailableError
from headrace.pipeline.controller.views import ApplicationView
from headrace.pipeline.declare.application import Application
from headrace.pipeline.plan.logical_json import to_plan
from headrace.process.http_server import WebServer
from headrace.testing import LocalBroker
from headrace.web.server.logins import Credentials, Login
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.user_headers import UserHeader, encode_headers
from tests.unit.web.stage import Broker, Pipelines, make


def declare(stream: str) -> Application:
    app = Application("shop")
    app.topic("orders", f"{stream}/orders", schema="sku string, qty int", on_bad_row="dead_letter")

    @app.operator(to=f"{stream}/totals")
    def revenue(orders):  # type: ignore[no-untyped-def]  # as users write them
        return orders

    return app


class Shop:
    """The application `shop` at a controller's web server, its topics at a broker."""

    def __init__(self, broker: LocalBroker, stream: str, pipelines: Pipelines, http: str) -> None:
        self.broker, self.stream, self.pipelines, self.http = broker, stream, pipelines, http

    async def __call__(self, *arguments: str) -> str:
        environment = {
            "HEADRACE_ADDRESS": self.broker.address, "HEADRACE_HTTP": self.http,
            "HEADRACE_USERNAME": "iggy", "HEADRACE_PASSWORD": "iggy",
        }  # fmt: skip
        result = await asyncio.to_thread(
            CliRunner().invoke, commands, [*arguments], env=environment
        )
        if isinstance(result.exception, HeadraceError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture
async def shop(
    headrace_broker: LocalBroker, headrace_stream: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shop]:
    async def login(_: Broker, credentials: Credentials) -> Login:
        username, password = credentials.username, credentials.password
        return Login(username, may_manage=(username, password) == ("iggy", "iggy"))

    monkeypatch.setattr(Broker, "login", login)
    web, pipelines = make()
    show, plan = pipelines.show, to_plan(declare(headrace_stream))

    def with_plan(name: str) -> ApplicationView:
        return replace(show(name), plan=plan)

    monkeypatch.setattr(pipelines, "show", with_plan)
    server = WebServer(web)
    await server.start("127.0.0.1", 0)
    host, port = server.address
    yield Shop(headrace_broker, headrace_stream, pipelines, f"{host}:{port}")
    await server.close()


async def test_letters_are_found_by_their_operator(shop: Shop) -> None:
    stream = shop.stream
    assert json.loads(await shop("dead-letters", "summary", "shop", "--json")) == []

    def produce() -> None:
        with shop.broker.client() as client:
            client.run(lambda c: c.create_topic(stream, "orders"))
            for number, operator in enumerate(("orders", "revenue")):
                topic = f"{operator}.dead_letter"
                client.run(lambda c, topic=topic: c.create_topic(stream, topic))  # type: ignore[misc]  # mypy and defaults of lambdas
                place = {"stream": stream, "topic": "orders", "partition": "0"}
                said = {**place, "offset": str(number), "operator": operator, "reason": "no"}
                headers = [UserHeader.of(f"headrace.{name}", text) for name, text in said.items()]
                client.send(stream, topic, [Message(b"x", encode_headers(headers))])

    await asyncio.to_thread(produce)
    rows = json.loads(await shop("dead-letters", "summary", "shop", "--json"))
    assert [(row["operator"], row["waiting"]) for row in rows] == [("orders", 1), ("revenue", 1)]
    (only,) = json.loads(await shop("dead-letters", "list", "shop", "revenue", "--json"))
    assert (only["operator"], only["origin"]) == ("revenue", f"{stream}/orders/0/1")
    with pytest.raises(NotFoundError, match="no operator other; it has orders, revenue"):
        await shop("dead-letters", "list", "shop", "other")
    shown = await shop("dead-letters", "show", "shop", "revenue", "--offset", "0", "--json")
    assert json.loads(shown)["payload"] == "x"
    done = json.loads(await shop("dead-letters", "redrive", "shop", "--all", "--json"))
    assert done["topics"] == {f"{stream}/orders": 2}


async def test_a_profile_says_where_the_controller_is_too(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ADDRESS", "HTTP", "USERNAME", "PASSWORD", "PROFILE"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    places = ["--address", shop.broker.address, "--http", shop.http]

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, commands, [*arguments])

    await run("profile", "set", "nowhere", "--address", shop.broker.address, "--http", "[::1]:1")
    assert (await run("profile", "set", "here", *places)).exit_code == 0
    for command in (
        ["dead-letters", "summary", "shop"],
        ["dead-letters", "redrive", "shop", "--all"],
        ["replay", f"{shop.stream}/orders", "--pipeline", "shop", "--dry-run"],
        ["pipeline", "list"],
    ):
        assert isinstance((await run(*command)).exception, UnavailableError), "the current one"
        done = await run(*command, "--profile", "here")
        assert done.exit_code == 0, done.output
        done = await run(*command, "--http", shop.http)
        assert done.exit_code == 0, "an option wins"
    shown = await run("top", "--once", "--interval", "0.2", "--json", "--profile", "here")
    assert [one["name"] for one in json.loads(shown.stdout)["pipelines"]] == ["shop"]


async def test_a_pipeline_reads_its_topic_again(shop: Shop) -> None:
    source = f"{shop.stream}/orders"
    await shop("replay", source, "--pipeline", "shop", "--from", "earliest", "--dry-run")
    assert shop.pipelines.calls == []
    await shop("replay", source, "--pipeline", "shop", "--from", "2026-05-01T12:00+02:00")
    assert shop.pipelines.calls[-1] == ("replay", "shop", "orders", "2026-05-01T10:00:00+00:00")

    def create() -> None:
        with shop.broker.client() as client:
            client.run(lambda c: c.create_topic(shop.stream, "orders", partitions_count=2))

    await asyncio.to_thread(create)
    await shop("replay", source, "--pipeline", "shop", "--from", "7")
    assert json.loads(shop.pipelines.calls[-1][3]) == {"0": 7, "1": 7}
    with pytest.raises(NotFoundError, match="does not read s/none"):
        await shop("replay", "s/none", "--pipeline", "shop")
