"""OpenLineage's account of an application, as a collector receives it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import UUID

import pytest
from openlineage.client.event_v2 import RunEvent as TheirEvent

from headrace.config.controller import ControllerSettings
from headrace.observability.lineage import Dataset, LineageEmitter, RunEvent
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.controller.lineage import Lineage, datasets, run_id
from headrace.runtime.system import system_runtime
from tests.unit.pipeline.controller.test_controller import World, package, simulate
from tests.unit.web.stage import running

BROKER = "headrace://127.0.0.1:8090"


def operator(name: str, class_: str, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "class": class_, "properties": {}, "attributes": attributes}


def test_datasets_are_named_as_others_name_them() -> None:
    topic = {
        "name": "orders",
        "class": "headrace.pipeline.declare.stages:read_topic",
        "properties": {"topic": "shop/orders"},
        "attributes": {},
    }
    stores = "headrace.pipeline.declare.stores:"
    plan = {
        "operators": [
            topic,
            operator("revenue", "shop:revenue", OUTPUT_TOPIC="shop/revenue"),
            operator("files", f"{stores}Parquet", STORE={"path": "/data/orders"}),
            operator("table", f"{stores}Delta", STORE={"path": "s3://lake/orders"}),
            operator("seen", f"{stores}Console", STORE={"rows_max": 20}),
            operator(
                "one",
                f"{stores}Postgres",
                STORE={"address": "postgresql://me@db:5433/sales", "table": "orders"},
            ),
            operator(
                "two",
                f"{stores}Postgres",
                STORE={"address": "host=db dbname=sales", "table": "eu.orders"},
            ),
            operator("three", f"{stores}Postgres", STORE={"address": "env:DB", "table": "orders"}),
            operator("quiet", "shop:quiet"),
        ]
    }
    inputs, outputs = datasets(plan, BROKER)
    assert inputs == [("orders", Dataset(BROKER, "shop/orders"))]
    assert outputs == [
        ("revenue", Dataset(BROKER, "shop/revenue")),
        ("files", Dataset("file", "/data/orders")),
        ("table", Dataset("s3://lake", "orders")),
        ("one", Dataset("postgres://db:5433", "sales.public.orders")),
        ("two", Dataset("postgres://db:5432", "sales.eu.orders")),
        ("three", Dataset("postgres", "public.orders")),
    ]


class Collector(BaseHTTPRequestHandler):
    taken: list[tuple[str, dict[str, Any]]]
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.taken.append((self.path, json.loads(body)))
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    taken: list[tuple[str, dict[str, Any]]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Own", (Collector,), {"taken": taken}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", taken
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_run_is_told_from_start_to_failure(
    collector: tuple[str, list[tuple[str, dict[str, Any]]]],
) -> None:
    url, taken = collector
    driver = running()
    application, events = driver.application, driver.application.events
    emitter = LineageEmitter(url)
    lineage = Lineage(
        system_runtime(),
        lambda: emitter,
        broker=("127.0.0.1", 8090),
        namespace="headrace",
        interval_ms=1_000,
    )
    begun = events.add(driver.now, EventType.SUBMIT)
    lineage.on_event(application, begun)
    lineage.on_event(application, events.add(driver.now, EventType.START_OPERATOR))
    lineage.on_tick(application, driver.now + 999)
    lineage.on_tick(application, driver.now + 1_000)
    lineage.on_tick(application, driver.now + 1_500)
    over = events.add(driver.now + 2_000, EventType.FINISH, "out of memory", state="FAILED")
    lineage.on_event(application, over)
    await lineage.close()
    assert [path for path, _ in taken] == ["/api/v1/lineage"] * 3
    start, alive, failed = (event for _, event in taken)
    assert [e["eventType"] for e in (start, alive, failed)] == ["START", "RUNNING", "FAIL"]
    assert {e["run"]["runId"] for e in (start, alive, failed)} == {run_id(application)}
    assert UUID(run_id(application)).version == 5
    for event in (start, alive, failed):
        assert event["job"]["namespace"] == "headrace"
        assert event["job"]["name"] == "shop"
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        assert event["schemaURL"].startswith("https://openlineage.io/spec/")
        assert [(d["namespace"], d["name"]) for d in event["inputs"]] == [(BROKER, "shop/orders")]
        assert event["run"]["facets"]["processing_engine"]["name"] == "headrace"
        assert event["run"]["facets"]["headrace"]["package"] == "0" * 64
        check(event)
    assert alive["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 200
    assert failed["run"]["facets"]["errorMessage"]["message"] == "out of memory"
    events.add(driver.now + 3_000, EventType.RESUME)
    assert run_id(application) != start["run"]["runId"], "a resumed application is another run"


def check(event: dict[str, Any]) -> None:
    """By the validators of OpenLineage's own classes, field by field."""
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunState

    TheirEvent(
        eventType=RunState[event["eventType"]],
        eventTime=event["eventTime"],
        run=Run(runId=event["run"]["runId"]),
        job=Job(namespace=event["job"]["namespace"], name=event["job"]["name"]),
        inputs=[InputDataset(d["namespace"], d["name"]) for d in event["inputs"]],
        outputs=[OutputDataset(d["namespace"], d["name"]) for d in event["outputs"]],
        producer=event["producer"],
    )
    facets = {**event["run"]["facets"], **event["job"]["facets"]}
    for one in (*event["inputs"], *event["outputs"]):
        facets |= {**one.get("inputFacets", {}), **one.get("outputFacets", {})}
    ours = {"processing_engine", "headrace", "jobType", "errorMessage", "inputStatistics"}
    assert set(facets) - ours <= {"tags"}, "the client's own"
    for facet in (facet for name, facet in facets.items() if name in ours):
        assert facet["_producer"] == "urn:headrace:controller"
        assert facet["_schemaURL"].startswith("https://openlineage.io/spec/")


async def test_a_collector_that_is_away_holds_nobody_up() -> None:
    sent: list[RunEvent] = []

    class Away:
        def send(self, event: RunEvent) -> None:
            from headrace.errors import UnavailableError

            sent.append(event)
            raise UnavailableError("nobody there")

        def close(self) -> None: ...

    driver = running()
    lineage = Lineage(system_runtime(), Away, broker=("h", 1), namespace="n", interval_ms=1_000)
    lineage.on_event(driver.application, driver.application.events.add(1, EventType.SUBMIT))
    stopped = driver.application.events.add(2, EventType.FINISH, state="STOPPED")
    lineage.on_event(driver.application, stopped)
    await lineage.close()
    assert [one.state for one in sent] == ["START", "ABORT"]


def test_a_controller_tells_of_its_applications_over_a_restart_of_its_own() -> None:
    told: list[RunEvent] = []

    class Kept:
        def send(self, event: RunEvent) -> None:
            told.append(event)

        def close(self) -> None: ...

    async def start(world: World) -> Controller:
        controller = Controller(
            world.runtime,
            ControllerSettings(),
            data_dir="/data",
            open_log=world.log.open,
            launcher=world.launcher,
            secret=b"the cluster's",
            host="c",
            lineage=Lineage(
                world.runtime, Kept, broker=("b", 1), namespace="n", interval_ms=10_000
            ),
        )
        await controller.start()
        return controller

    async def main(world: World) -> None:
        controller = await start(world)
        await controller.operations.submit(package())
        await world.sleep(25)
        await controller.close()
        controller = await start(world)
        await world.sleep(5)
        waiting = asyncio.ensure_future(controller.operations.wait("shop"))
        await controller.operations.stop("shop")
        await waiting
        await controller.close()

    simulate(main)
    assert [event.state for event in told] == ["START", "RUNNING", "RUNNING", "ABORT"]
    assert len({event.run_id for event in told}) == 1
    assert {event.job for event in told} == {"shop"}
