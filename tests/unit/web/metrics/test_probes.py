"""/metrics, /health and /ready of a process, for roles that are well, ill or not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import HeadraceError, NotLeaderError
from headrace.observability.exposition import Family, format_families
from headrace.runtime.system import system_runtime
from headrace.web.app import create_app
from headrace.web.metrics.pipelines import ObservedController
from headrace.web.metrics.process import (
    Check,
    ObservedProcess,
    ObservedRole,
    Probes,
    ProcessReading,
)
from tests.unit.web.stage import Broker, Cluster, Pipelines


class Role:
    def __init__(self, role: str, *checks: Check) -> None:
        self.role = role
        self._checks = list(checks)

    async def families(self) -> Iterable[Family]:
        return []

    async def checks(self) -> list[Check]:
        return self._checks


async def get(
    roles: list[ObservedRole], path: str, *, token: str = "", sent: str = ""
) -> httpx.Response:
    reading = ProcessReading(memory_bytes=123, threads=4)
    process = ObservedProcess(system_runtime(), "1.2.3", lambda: reading)
    app = Probes(process, roles, token=token).app()
    transport = httpx.ASGITransport(app=app)
    headers = {"authorization": sent} if sent else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://probes") as client:
        return await client.get(path, headers=headers)


WELL = Role("broker", Check("leader", True, "leads"))
ILL = Role("data-node", Check("disk", False, "full"), Check("registered", True))


async def test_a_process_is_ready_when_all_its_roles_are() -> None:
    answer = await get([WELL], "/ready")
    assert answer.status_code == 200
    assert answer.json() == {
        "ready": True,
        "reasons": [],
        "roles": {"broker": {"leader": {"ok": True, "reason": "leads"}}},
    }
    answer = await get([WELL, ILL], "/ready")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["data-node: full"]
    alive = await get([WELL, ILL], "/health")
    assert alive.status_code == 200
    assert alive.json() == {"alive": True, "roles": ["broker", "data-node"]}


class ThereBroker(Broker):
    """Behind it a client that answers, or does not."""

    def __init__(self, error: HeadraceError | None = None) -> None:
        self._error = error

    def as_service(self) -> AbstractAsyncContextManager[Any]:
        @asynccontextmanager
        async def connected() -> AsyncIterator[ThereBroker]:
            yield self

        return connected()

    async def ping(self) -> None:
        if self._error is not None:
            raise self._error


async def test_the_control_planes_port_tells_too() -> None:
    """Without a login: whoever routes traffic has none."""

    async def ready(broker: Broker, *roles: ObservedRole) -> httpx.Response:
        web = create_app(system_runtime(), Pipelines(), broker, Cluster(), {}, roles)
        transport = httpx.ASGITransport(app=web.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
            answer = await client.get("/ready")
        await web.close()
        return answer

    controller = Role("controller", Check("leader", True, "works"))
    answer = await ready(ThereBroker(), controller)
    assert (answer.status_code, answer.json()["ready"]) == (200, True)
    assert list(answer.json()["roles"]) == ["controller", "broker"]
    answer = await ready(ThereBroker(NotLeaderError("who leads is not known")), controller)
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert answer.json()["reasons"] == ["broker: who leads is not known"]
    lost = Role("controller", Check("leader", False, "the lease is lost"))
    answer = await ready(ThereBroker(), lost)
    assert (answer.status_code, answer.json()["reasons"]) == (
        503,
        ["controller: the lease is lost"],
    )


async def test_every_process_tells_of_itself() -> None:
    answer = await get([WELL, ILL], "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["headrace_process_info", "broker", "1.2.3"] == 1
    assert found["headrace_process_ready", "broker"] == 1
    assert found["headrace_process_ready", "data-node"] == 0
    assert found["headrace_process_memory_bytes",] == 123
    assert found["headrace_process_threads",] == 4
    assert found["headrace_process_cpu_seconds_total",] > 0


async def test_a_token_is_asked_for_where_there_is_one() -> None:
    for path in ("/metrics", "/ready"):
        for sent in ("", "Bearer wrong", "Basic right", "Bearer", "right"):
            answer = await get([WELL], path, token="right", sent=sent)
            assert answer.status_code == 401, sent
            assert "headrace" not in answer.text
        assert (await get([WELL], path, token="right", sent="Bearer right")).status_code == 200
    assert (await get([WELL], "/health", token="right")).status_code == 200


async def test_a_controller_is_ready_while_it_works() -> None:
    failure: list[HeadraceError] = []
    started: list[Pipelines] = []
    role = ObservedController(
        lambda: started[0] if started else None, lambda: failure[0] if failure else None
    )
    assert (await get([role], "/ready")).status_code == 503
    started.append(Pipelines())
    assert (await get([role], "/ready")).status_code == 200
    text = (await get([role], "/metrics")).text
    assert 'headrace_pipeline_rows_total{application="shop"} 200' in text
    assert 'headrace_pipeline_restarts_total{application="shop"} 0' in text
    assert 'headrace_pipeline_windows_behind{application="shop"}' in text
    failure.append(NotLeaderError("another controller works"))
    answer = await get([role], "/ready")
    assert answer.status_code == 503
    assert "another controller works" in answer.json()["reasons"][0]


async def test_applications_beyond_the_limit_are_one() -> None:
    pipelines = Pipelines()
    one = pipelines.list()[0]
    many = [replace(one, name=f"shop{n}") for n in range(5)]
    pipelines.list = lambda: many  # type: ignore[method-assign]
    view = pipelines.show("shop")
    pipelines.show = lambda name: replace(view, name=name)  # type: ignore[method-assign]
    role = ObservedController(lambda: pipelines, lambda: None, labels_max=2)
    text = (await get([role], "/metrics")).text
    rows = [line for line in text.splitlines() if line.startswith("headrace_pipeline_rows_total{")]
    assert rows == [
        'headrace_pipeline_rows_total{application="shop0"} 200.0',
        'headrace_pipeline_rows_total{application="shop1"} 200.0',
        'headrace_pipeline_rows_total{application="other"} 600.0',
    ]
    assert 'application="shop2"' not in text


async def test_the_loops_delay_is_measured() -> None:
    process = ObservedProcess(system_runtime(), "1")
    process.start()
    await asyncio.sleep(0)
    text = format_families(process.families({}))
    assert "\nheadrace_process_loop_delay_seconds 0.0\n" in text
    await process.close()
