"""A data plane with its endpoint: what it tells is what happened, and Prometheus can read it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.client.iggy import IggyClient
from headrace.config.broker import BrokerSettings
from headrace.config.process import ObservabilitySettings
from headrace.config.settings import Settings
from headrace.errors import ConfigError, HeadraceError, StorageError
from headrace.net.addresses import parse_address
from headrace.observability.logging import configure_logging
from headrace.observability.metrics import TABLE
from headrace.process.data_plane import DataPlane
from headrace.process.http_server import Endpoint
from headrace.process.roles import Role
from headrace.process.startup.role_process import make_role
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.integration.server import Server

BROKER = BrokerSettings(root_username="iggy", root_password="iggy")


def settings(folder: Path, **observability: object) -> Settings:
    return Settings(
        data_dir=str(folder), iggy_port=0, quic_port=0, placement_port=0, node_port=0,
        metrics_port=0, broker=BROKER, observability=ObservabilitySettings(**observability),  # type: ignore[arg-type]
    )  # fmt: skip


@asynccontextmanager
async def serving(chosen: Settings) -> AsyncIterator[tuple[DataPlane, Endpoint, IggyClient]]:
    runtime = system_runtime()
    plane = DataPlane(runtime, chosen)
    endpoint = Endpoint(runtime, chosen, plane.observed())
    await endpoint.start()
    try:
        assert (await get(endpoint, "/ready")).status_code == 503, "it has not started"
        assert (await get(endpoint, "/health")).status_code == 200
        await read(endpoint)
        await plane.start()
        address = parse_address(plane.addresses()["iggy"])
        async with await IggyClient.connect(runtime, *address) as client:
            await client.login("iggy", "iggy")
            yield plane, endpoint, client
    finally:
        await plane.close()
        assert (await get(endpoint, "/health")).status_code == 200
        await endpoint.close()


async def get(endpoint: Endpoint, path: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(f"http://{endpoint.addresses()['metrics']}{path}")


async def wait_ready(endpoint: Endpoint) -> dict[str, Any]:
    """A broker takes over, or hears who did."""
    async with asyncio.timeout(30):
        while True:
            answer: dict[str, Any] = (await get(endpoint, "/ready")).json()
            if answer["ready"]:
                return answer
            await asyncio.sleep(0.02)


async def read(endpoint: Endpoint) -> dict[str, float]:
    """Samples as `name{label,label}`; every family as the table has it."""
    answer = await get(endpoint, "/metrics")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        counter = family.type == "counter"
        metric = TABLE[f"{family.name}_total" if counter else family.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels), sample
            if not sample.name.endswith("_bucket"):
                key = ",".join(sample.labels[name] for name in metric.labels)
                found[sample.name.removeprefix("headrace_") + (f"{{{key}}}" if key else "")] = (
                    sample.value
                )
    return found


async def test_a_data_plane_tells_what_happened(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, labels_max=1)) as (plane, endpoint, client):
        await client.create_stream("shop")
        for topic in ("orders", "returns", "stock"):
            await client.create_topic("shop", topic, partitions_count=2)
        await client.create_group("shop", "orders", "billing")
        where = Partitioning.to_partition(1)
        for _ in range(3):
            await client.send("shop", "orders", [Message(b"x" * 100)] * 10, partitioning=where)
        for topic in ("returns", "stock"):
            await client.send("shop", topic, [Message(b"y")], partitioning=where)
        for _ in range(3):
            polled = await client.poll(
                "shop", "orders", partition=1, strategy=Strategy.offset(0), count=10
            )
            assert polled.count == 10
        group = Consumer.group("billing")
        await client.store_consumer_offset(group, "shop", "orders", partition=1, offset=11)
        with pytest.raises(HeadraceError):
            await client.send("shop", "nothing", [Message(b"z")])
        found = await read(endpoint)
        expected = {
            "broker_leading": 1,
            "broker_coordinating": 1,
            "broker_shards_led": 64,
            "broker_requests_passed_on_total": 0,
            "broker_requests_total{send_messages,B2}": 6,
            "broker_requests_total{poll_messages,B2}": 3,
            "broker_request_duration_seconds_count{send_messages}": 6,
            "broker_messages_received_total": 32,
            "broker_messages_delivered_total": 30,
            "broker_connections{tcp}": 1,
            "broker_connections{quic}": 0,
            "broker_topics": 3,
            "broker_topic_messages_total{shop,orders}": 30,
            "broker_topic_stored_messages{shop,orders}": 30,
            "broker_topic_stored_messages{other,other}": 2,
            "broker_group_lag_messages{shop,orders,billing}": 18,
            "broker_group_members{shop,orders,billing}": 0,
            "node_in_touch": 1,
            "node_append_failures_total": 0,
            "node_fetches_located_total": 0,
            "node_ranges_failed": 0,
            "node_replication_lag_records": 0,
            "placement_leading": 1,
            "placement_nodes{alive}": 1,
            "placement_nodes{lost}": 0,
            "placement_ranges_under_replicated": 0,
            "placement_leases_held": 1,
            "process_ready{broker}": 1,
            "process_ready{data-node}": 1,
            "process_ready{placement-manager}": 1,
        }
        assert {name: found.get(name) for name in expected} == expected
        refused = [name for name in found if name.startswith("broker_request_errors_total")]
        assert refused == ["broker_request_errors_total{send_messages,2010}"]
        assert found["broker_received_bytes_total"] > 30 * 164
        assert found["broker_sent_bytes_total"] > 30 * 164
        assert found["node_append_duration_seconds_count"] == found["node_appends_total"] > 5
        assert found["node_written_bytes_total"] > 30 * 100
        assert found["node_disk_free_bytes"] > 0
        assert found["node_ranges{open}"] > 3
        ready = (await get(endpoint, "/ready")).json()
        assert ready["ready"], ready
        assert ready["roles"]["broker"]["leader"] == {"ok": True, "reason": "leads"}
        await check_troubles(plane, endpoint)


async def check_troubles(plane: DataPlane, endpoint: Endpoint) -> None:
    """A disk that cannot be written and a lease that is lost are reasons not to be ready."""
    assert plane.node is not None
    assert plane.broker is not None
    term = plane.broker.term
    assert term is not None
    node_role = endpoint._roles[1]
    node_role._disk = None  # type: ignore[attr-defined]  # what it found is kept for a while

    async def refuse() -> None:
        raise StorageError("read-only file system")

    plane.node.probe_disk = refuse  # type: ignore[method-assign]
    term.leadership._until = 0.0
    answer = await get(endpoint, "/ready")
    assert answer.status_code == 503
    reasons = " ".join(answer.json()["reasons"])
    assert "data-node: cannot be written: read-only file system" in reasons
    assert "broker: nobody leads yet" in reasons or "broker: stands by" in reasons


async def test_logs_name_the_request(tmp_path: Path) -> None:
    output = io.StringIO()
    async with serving(settings(tmp_path)) as (_, _, client):
        configure_logging(format="json", level="DEBUG", output=output, role="data-plane")
        me = await client.get_me()
        with pytest.raises(HeadraceError):
            await client.send("nowhere", "nothing", [Message(b"z")])
        logging.getLogger().setLevel(logging.WARNING)
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    (refused,) = (line for line in lines if line["event"] == "request refused")
    assert refused["request"] == f"{me.client.client_id:08x}-3"  # after login and GET_ME
    assert refused["role"] == "data-plane"
    assert all({"event", "level", "timestamp", "logger"} <= set(line) for line in lines)


def test_telling_a_network_needs_a_token() -> None:
    told = ObservabilitySettings(metrics_host="0.0.0.0")
    Settings(observability=told).check()
    with pytest.raises(ConfigError, match="metrics_token"):
        Settings(observability=told, metrics_port=9464).check()
    Settings(observability=told, metrics_port=9464, insecure=True).check()
    told = ObservabilitySettings(metrics_host="0.0.0.0", metrics_token="env:TOKEN")
    Settings(observability=told, metrics_port=9464).check()


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    first = Endpoint(system_runtime(), settings(tmp_path), [])
    await first.start()
    port = parse_address(first.addresses()["metrics"])[1]
    chosen = Settings(metrics_port=port)
    with pytest.raises(ConfigError, match="--metrics-port"):
        await Endpoint(system_runtime(), chosen, []).start()
    await first.close()
    off = Endpoint(system_runtime(), Settings(), [])
    await off.start()
    assert off.addresses() == {}
    await off.close()


async def test_each_role_by_itself_tells_whether_it_is_ready(tmp_path: Path) -> None:
    """A placement manager, a data node and two brokers, as a cluster has them."""
    async with AsyncExitStack() as stack:

        async def start(name: str, managers: tuple[str, ...] = ()) -> tuple[Role, Endpoint]:
            folder = tmp_path / f"{name}-{len(started)}"
            chosen = msgspec.structs.replace(settings(folder), placement_managers=managers)
            role = await make_role(name, chosen, b"\x07" * 32, "text")
            endpoint = Endpoint(system_runtime(), chosen, role.observed())
            await endpoint.start()
            stack.push_async_callback(endpoint.close)
            assert (await get(endpoint, "/ready")).status_code == 503
            await role.start()
            stack.push_async_callback(role.close)
            started.append(name)
            return role, endpoint

        started: list[str] = []
        manager, told = await start("placement-manager")
        assert (await get(told, "/ready")).json()["ready"]
        found = await read(told)
        assert (found["placement_leading"], found["placement_nodes{alive}"]) == (1, 0)
        managers = (manager.addresses()["placement_manager"],)
        _, told = await start("data-node", managers)
        assert (await get(told, "/ready")).json()["ready"]
        assert (await read(told))["node_id"] >= 0
        reasons = []
        for _ in range(2):
            _, told = await start("broker", managers)
            answer = await wait_ready(told)
            reasons.append(answer["roles"]["broker"]["leader"]["reason"])
            leading = (await read(told))["broker_leading"]
            assert leading == (reasons[-1] == "leads")
    assert reasons[0] == "leads"
    assert reasons[1].startswith("stands by; 127.0.0.1:")


def test_up_opens_a_port_for_each_process_and_logs_json(tmp_path: Path) -> None:
    options = ("--dev", "--metrics-port", "0", "--log-format", "json")
    server = Server(tmp_path / "server", arguments=options).start()
    try:
        told = {}
        for name in ("metrics", "control_metrics"):
            base = f"http://{server.addresses[name]}"
            ready = httpx.get(f"{base}/ready", trust_env=False)
            assert ready.status_code == 200, ready.text
            told[name] = set(ready.json()["roles"])
            text = httpx.get(f"{base}/metrics", trust_env=False).text
            assert list(text_string_to_metric_families(text))
            assert "headrace_process_memory_bytes 0" not in text
        assert told == {
            "metrics": {"placement-manager", "data-node", "broker"},
            "control_metrics": {"controller"},
        }
    finally:
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    assert any(line["role"] == "data-plane" and line["event"] == "broker leads" for line in lines)
    notes = [line for line in server.log.splitlines() if not line.startswith("{")]
    assert not any("[info" in line for line in notes)
