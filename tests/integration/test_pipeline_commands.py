"""Commands about pipelines against the web application on a real port."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from headrace.cli import server_names
from headrace.cli.advice import advice
from headrace.cli.main import app as commands
from headrace.errors import HeadraceError, NotFoundError
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.views import ApplicationView
from headrace.process.http_server import WebServer
from tests.unit.pipeline.controller.application.test_state import START
from tests.unit.web.stage import CONTAINER, MANAGER, READER, Pipelines, make


@dataclass
class Served:
    pipelines: Pipelines
    address: str

    async def run(self, *arguments: str, user: tuple[str, str] = MANAGER) -> str:
        """What the command prints; its error is raised."""
        options = ["--http", self.address, "--username", user[0], "--password", user[1]]
        command = [*arguments, *options]
        result = await asyncio.to_thread(CliRunner().invoke, commands, command)
        if isinstance(result.exception, HeadraceError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    web, pipelines = make()
    server = WebServer(web)
    await server.start("127.0.0.1", 0)
    host, port = server.address
    yield Served(pipelines, f"{host}:{port}")
    await server.close()


async def test_looking(served: Served) -> None:
    assert CONTAINER in await served.run("container", "list", "shop", user=READER)
    shown = json.loads(await served.run("container", "show", "shop", CONTAINER, "--json"))
    assert shown["id"] == CONTAINER
    rows = json.loads(await served.run("operator", "list", "shop", "--json", user=READER))
    assert [one["name"] for one in rows] == ["orders", "revenue"]
    lines = (await served.run("operator", "list", "shop", user=READER)).splitlines()
    assert lines[0].split()[:4] == ["id", "name", "status", "container"]
    assert lines[2].split()[:5] == ["2", "revenue", "ACTIVE", CONTAINER, "200"]
    assert max(map(len, lines)) <= 80
    one = json.loads(await served.run("operator", "show", "shop", "2", "--json", user=READER))
    assert (one["name"], "properties" in one) == ("revenue", True)
    windows = json.loads(await served.run("window", "list", "shop", "--json", user=READER))
    assert [one["operator"] for one in windows["operators"]] == ["orders", "revenue"]
    listed = json.loads(await served.run("event", "list", "shop", "--json"))
    assert listed[0]["type"] == "StartContainer"
    assert "StartContainer" not in await served.run("event", "list", "shop", "--after", "1")
    lines = (await served.run("event", "list", "shop")).splitlines()
    assert lines[1].split() == ["1", "2023-11-14", "22:13:20Z", "StartContainer", CONTAINER, "-"]
    assert "python main" in await served.run("container", "stack-trace", "shop", CONTAINER)
    sample = await served.run("pipeline", "recording", "shop", "revenue-1")
    assert json.loads(sample)["window"] == "1"


async def test_who_names_no_pipeline_is_sent_to_the_list_of_them(served: Served) -> None:
    for command in (["pipeline", "show", "x"], ["event", "list", "x"]):
        with pytest.raises(NotFoundError) as caught:
            await served.run(*command)
        assert "`headrace pipeline list`" in advice(caught.value)


@pytest.mark.parametrize("columns", [80, 100])
async def test_a_pipeline_is_shown_within_a_terminal(
    served: Served, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    reason = "the process ended with status -9; it is started again from its checkpoint"
    served.pipelines.driver.application.events.add(START, EventType.STOP_CONTAINER, reason)
    show = served.pipelines.show

    def failed(name: str) -> ApplicationView:
        view = show(name)
        story = "cannot cast\n=== Query ===\nIdentifier:"
        operators = [replace(one, last_error=f"{story} {one.name}") for one in view.operators]
        error = operators[0].last_error or ""
        events = [dataclasses.replace(view.events[0], reason=error), *view.events[1:]]
        return replace(view, operators=operators, last_error=error, events=events)

    monkeypatch.setattr(served.pipelines, "show", failed)
    shown = await served.run("pipeline", "show", "shop")
    assert max(map(len, shown.splitlines())) <= columns
    fields, containers, operators, events, error = shown.split("\n\n")
    assert "rows per second   20.0" in fields
    assert shown.count("=== Query ===") == 1, "the story is told once, at the end"
    assert error.splitlines()[:2] == ["last error of orders, revenue", "cannot cast"]
    assert containers.splitlines()[2].split()[:2] == [CONTAINER, "ACTIVE"]
    assert [line.split()[:5] for line in operators.splitlines()[2:]] == [
        ["orders", "ACTIVE", "0", "200", "20.0"],
        ["revenue", "ACTIVE", "200", "0", "20.0"],
    ]
    assert "StartOperator" in events
    told = " ".join(line[30:] for line in events.splitlines()[-4:])
    assert all(word in told for word in reason.split())


async def test_pipelines_are_completed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_names, "SECONDS", 30.0)
    context = click.Context(commands)
    parameter = click.Argument(["name"])
    context.params = {"http": served.address, "username": READER[0], "password": READER[1]}
    assert await asyncio.to_thread(server_names.pipelines, context, parameter, "sh") == ["shop"]
    assert await asyncio.to_thread(server_names.pipelines, context, parameter, "x") == []
    context.params["password"] = "wrong"
    assert await asyncio.to_thread(server_names.pipelines, context, parameter, "sh") == []


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (["container", "kill", "shop", CONTAINER], ("kill_container", "shop", CONTAINER)),
        (
            ["pipeline", "log-level", "shop", "py4j", "info"],
            ("set_log_levels", "shop", {"py4j": "info"}),
        ),
        (["pipeline", "resume", "shop"], ("resume", "shop")),
        (["pipeline", "remove", "shop"], ("remove", "shop")),
        (
            ["pipeline", "set", "shop", "revenue", "limit=3", "label=abc"],
            ("set_property", "shop", "revenue", {"limit": 3, "label": "abc"}),
        ),
        (["pipeline", "scale", "shop", "revenue", "2"], ("set_instances", "shop", "revenue", 2)),
        (
            ["pipeline", "roll-back", "shop", "a1", "--operator", "revenue"],
            ("roll_back", "shop", "a1", ["revenue"]),
        ),
        (
            ["pipeline", "replay", "shop", "orders", "earliest"],
            ("replay", "shop", "orders", "earliest"),
        ),
        (
            ["pipeline", "record", "shop", "2", "--windows", "7"],
            ("start_recording", "shop", "revenue", 7),
        ),
        (["pipeline", "record", "shop", "2", "--stop"], ("stop_recording", "shop", "revenue")),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
async def test_changing(served: Served, arguments: list[str], call: tuple[Any, ...]) -> None:
    with pytest.raises(HeadraceError, match="may not manage"):
        await served.run(*arguments, user=READER)
    assert served.pipelines.calls == []
    await served.run(*arguments)
    assert served.pipelines.calls == [call]


async def test_changing_the_plan(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "requests.json"
    requests = [{"requestType": "RemoveOperatorRequest", "operatorName": "late"}]
    file.write_text(json.dumps(requests))
    await served.run("pipeline", "change", "shop", str(file))
    assert served.pipelines.calls == [("change_plan", "shop", requests)]
    file.write_text("not json")
    with pytest.raises(HeadraceError, match="not JSON"):
        await served.run("pipeline", "change", "shop", str(file))
