"""The paths that the pages of pipelines read, and what is sent to open pages."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from headrace.errors import NotFoundError
from headrace.pipeline.controller.views import ApplicationView, WindowPoint
from headrace.runtime.system import system_runtime
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.diagnosis.types import Problem, Situation
from headrace.web.pipeline_api.pages import (
    Diagnosis,
    PipelineErrors,
    PipelineLive,
    SituationFilter,
    sample,
    trigger_ms,
)
from headrace.web.pipeline_api.pipelines import PipelineRights
from headrace.web.server.live import Live, Sampler
from headrace.web.server.logins import Login
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions
from headrace.wire.umbilical import messages as m
from tests.unit.web.stage import CONTAINER, READER, Broker, Pipelines, ask, make

LIVE = "/api/pipelines/shop/live"
LOGS = f"/api/pipelines/shop/containers/{CONTAINER}/logs"


def fail(pipelines: Pipelines) -> None:
    driver = pipelines.driver
    request = m.ReportErrorRequest(
        CONTAINER, (2,), "boom", m.LogFileInfo(f"logs/{CONTAINER}.log", 42)
    )
    driver.perform(driver.application.on_error(request, driver.now))


async def test_the_front_page_reads_one_path() -> None:
    app, _ = make()
    answer = await ask(app, "/api/problems", user=READER)
    found = msgspec.convert(answer.json(), Situation)
    assert [one.name for one in found.pipelines] == ["shop"]
    assert found.now_ms > 0


async def test_a_pipeline_in_full_with_its_last_error_beside_the_log() -> None:
    app, pipelines = make()
    fail(pipelines)
    found = msgspec.convert((await ask(app, LIVE, user=READER)).json(), PipelineLive)
    assert found.health.last_error is not None
    assert found.health.last_error.log_line == "[error] what stands before 42"
    assert [one.label for one in found.graphs.logical.nodes] == ["orders", "revenue"]
    assert [one.id for one in found.containers] == [CONTAINER]
    assert found.operators[1].attributes == {}
    assert (await ask(app, LIVE.replace("shop", "nothing"))).status_code == 404


async def test_only_windows_after_a_time_are_sent() -> None:
    app, pipelines = make()
    for number in (1, 2, 3):
        stats = m.OperatorStats(number, output_ports=(m.PortStats("output", 7, 1),))
        report = m.OperatorHeartbeat(1, m.DeployState.ACTIVE, window_stats=(stats,))
        heartbeat = m.ContainerHeartbeat(stats=m.ContainerStats(CONTAINER, (report,)))
        pipelines.heartbeat_details.on_heartbeat(heartbeat, 1_000 * number, {1, 2})
    orders = (await ask(app, f"{LIVE}?after_ms=1000")).json()["windows"][0]
    assert (orders["operator"], orders["at_ms"], orders["rows"]) == (
        "orders",
        [2_000, 3_000],
        [7, 7],
    )
    assert (await ask(app, f"{LIVE}?after_ms=x")).status_code == 400


async def test_errors_stand_beside_their_log_lines() -> None:
    app, pipelines = make()
    fail(pipelines)
    answer = await ask(app, "/api/pipelines/shop/errors", user=READER)
    (error,) = msgspec.convert(answer.json(), PipelineErrors).errors
    assert (error.text, error.operator, error.log_line) == (
        "boom",
        "revenue",
        "[error] what stands before 42",
    )


async def test_a_containers_log_by_level() -> None:
    app, _ = make()
    assert (await ask(app, f"{LOGS}?lines=2", user=READER)).text == "[info] line 8\n[error] bad 8\n"
    errors = (await ask(app, f"{LOGS}?lines=3&level=error")).text
    assert errors == "[error] bad 6\n[error] bad 7\n[error] bad 8\n"
    assert (await ask(app, f"{LOGS}?level=loud")).status_code == 400
    assert (await ask(app, f"{LOGS}?lines=0")).status_code == 400
    assert (await ask(app, LOGS.replace(CONTAINER, "other"))).status_code == 404


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1 second", 1_000), ("500 milliseconds", 500), ("1.5 minutes", 90_000), ("soon", None)],
)
def test_triggers(text: str, ms: int | None) -> None:
    assert trigger_ms(text) == ms


def problem(subject: Any, name: str) -> Problem:
    return Problem(id=name, kind="x", severity="warning", subject=subject, name=name, title="t")


def sight() -> SituationFilter:
    runtime = system_runtime()
    return SituationFilter(PipelineRights(Pipelines().topics, Catalogue(runtime, Broker())))


def test_names_of_topics_are_for_those_who_may_see_them() -> None:
    found = Situation(
        now_ms=1,
        severity="warning",
        problems=(problem("broker", "b"), problem("group", "shop/orders/g"), problem("node", "1")),
        pipelines=(),
    )

    def names(**rights: bool) -> list[str]:
        permissions = Permissions(GlobalPermissions(**rights))
        login = Login("a", may_manage=False, permissions=permissions)
        return [one.name for one in sight().situation(found, login).problems]

    assert names() == ["b"]
    assert names(read_streams=True) == ["b", "shop/orders/g"]
    assert names(read_servers=True) == ["b", "1"]
    assert names(manage_servers=True, read_topics=True) == ["b", "shop/orders/g", "1"]


async def test_open_pages_are_fed_and_only_those() -> None:
    runtime = system_runtime()
    live, pipelines = Live(runtime), Pipelines()
    sampler = Sampler(runtime, live)
    pauses = []

    async def pause() -> None:
        pauses.append(1)

    async def others() -> list[Problem]:
        return [problem("node", "1")]

    diagnosis = Diagnosis(pipelines, runtime.clock.now_ms, pause, others)
    sample(sampler, live, diagnosis, sight())
    (fed,) = sampler._sampled
    await fed.sample()
    assert "pipeline/shop" not in live._latest, "nobody looks at it"
    reader = asyncio.create_task(first_frames(live, "problems", "pipeline/shop"))
    await asyncio.sleep(0)
    alerts = await fed.sample()
    assert alerts(Login("a", may_manage=True)).warning == 1
    assert await reader == {"problems", "pipeline/shop"}
    assert len(pauses) == 2, "after each pipeline of each round"
    assert "pipeline/shop" in live._latest


async def test_a_pipeline_that_vanishes_while_it_is_looked_at_is_left_out() -> None:
    class Vanishing(Pipelines):
        def glance(self, name: str) -> ApplicationView:
            raise NotFoundError(f"there is no pipeline {name!r}")

        def history(self, name: str) -> dict[int, tuple[WindowPoint, ...]]:
            return {}

    async def nothing() -> Any:
        return []

    found = await Diagnosis(Vanishing(), lambda: 1, nothing, nothing).situation()
    assert found.pipelines == ()


async def first_frames(live: Live, *topics: str) -> set[str]:
    """Names of the events that came, until there was one of each."""
    came: set[str] = set()

    async def who() -> Login:
        return Login("a", may_manage=True)

    async for frame in live.frames(who, topics):
        if frame.startswith(b"event: "):
            came.add(frame.split(b"\n")[0].removeprefix(b"event: ").decode())
        if len(came) == len(topics):
            break
    return came
