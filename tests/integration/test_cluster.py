"""A local cluster of real processes: how it starts, shows itself, fails over and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.cli.main import main
from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError, UnavailableError
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.cluster_processes import (
    HEADRACE,
    ClusterProcesses,
    headrace,
    running_cluster,
    wait_for,
)
from tests.integration.server import PEERS, ROOT, wait_until_gone

QUICK = """
[advanced.broker]
lease_ms = 6000
[advanced.placement]
leader_ttl_ms = 10000
[advanced.data_node]
heartbeat_interval_ms = 300
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    folder = tmp_path_factory.mktemp("cluster")
    options = ("--nodes", "3", "--metrics-port", "0")
    with running_cluster(folder, *options, settings=QUICK) as cluster:
        cluster.wait_leader()
        yield cluster
        pids = cluster.pids()
        assert cluster.stop(signal.SIGINT) == 0
        assert not wait_until_gone(pids), "Ctrl-C ends all of it"


def peer(version: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script under a real Iggy client of that version."""
    python = ROOT / f".venv/peers/iggy-{version}/bin/python"
    return subprocess.run(
        [str(python), str(PEERS / "run.py"), str(PEERS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_cluster_shows_itself(cluster: ClusterProcesses) -> None:
    found: dict[str, Any] = {}

    def whole() -> bool:
        shown = headrace("cluster", "status", "--json", "--data-dir", str(cluster.folder))
        assert shown.returncode == 0, shown.stderr
        found.update(json.loads(shown.stdout))
        states = sorted(each["state"] for each in found["placement_managers"])
        roles = sorted(each["role"] for each in found["brokers"])
        alive = [node["alive"] for node in found["data_nodes"]]
        return (states, roles, alive) == (
            ["follower", "follower", "leader"], ["leader", "standby"], [True] * 3
        )  # fmt: skip

    wait_for(whole, 30, "not everybody is seen")
    assert all(node["disk_free_bytes"] > 0 for node in found["data_nodes"])
    assert found["ranges_unavailable"] == 0
    shown = headrace("cluster", "status", "--data-dir", str(cluster.folder))
    assert shown.returncode == 0
    for word in ("Placement managers", "follower", "standby", "GiB", "ranges"):
        assert word in shown.stdout


def test_every_role_tells_that_it_is_ready(cluster: ClusterProcesses) -> None:
    roles = cluster.ready["roles"]
    served = {name: role["addresses"] for name, role in roles.items() if "addresses" in role}
    assert len(served) == 3 + 3 + 2
    for name, addresses in served.items():
        answer = httpx.get(f"http://{addresses['metrics']}/ready", trust_env=False)
        assert (answer.status_code, answer.json()["ready"]) == (200, True), (name, answer.text)
        (role,) = answer.json()["roles"]
        assert name.startswith(role)


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.9.0"])
def test_a_client_of_any_version_may_go_to_any_broker(
    cluster: ClusterProcesses, version: str
) -> None:
    for name in cluster.names("broker"):
        stream = f"any-{version}-{name}"
        done = peer(version, "any_broker.py", cluster.address(name), stream)
        assert done.returncode == 0, done.stderr
        assert stream in cluster.streams(name)


def test_one_authority_is_enough_for_tls_with_any_broker(cluster: ClusterProcesses) -> None:
    authority = str(cluster.folder / "secrets/tls/ca.pem")
    for name in cluster.names("broker"):
        address = cluster.address(name)
        listed = headrace("stream", "list", "--tls-ca", authority, "--address", address)
        assert listed.returncode == 0, listed.stderr


def test_topics_keep_the_replication_they_were_given(cluster: ClusterProcesses) -> None:
    address = cluster.address(cluster.names("broker")[0])
    done = peer("0.8.0", "replication.py", address)
    assert done.returncode == 0, done.stderr


def test_a_data_node_may_join_later(cluster: ClusterProcesses, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [*HEADRACE, "data-node", "--node-port", "0", "--data-dir", str(tmp_path / "data")]
    command += ["--placement-managers", ",".join(cluster.ready["placement_managers"])]
    command += ["--secret", cluster.ready["secret"], "--ready-file", str(ready)]
    config = tmp_path / "settings.toml"
    config.write_text(QUICK)
    command += ["--config", str(config)]
    node = subprocess.Popen(command)
    try:
        wait_for(ready.exists, 30, "the node is not ready")
        address = json.loads(ready.read_text())["data_node"]
        broker = cluster.wait_leader()
        cluster.create_stream(broker, "grown")

        async def fill(client: IggyClient, topic: str) -> None:
            await client.create_topic("grown", topic)
            await client.send("grown", topic, [Message(payload=b"x")])

        for number in range(20):
            topic = f"t{number}"
            cluster.call(broker, lambda client, topic=topic: fill(client, topic))  # type: ignore[misc]  # mypy cannot infer a lambda's default
            nodes = cluster.status().data_nodes
            if any(node.address == address and node.open_ranges for node in nodes):
                break
        else:
            pytest.fail("no range was placed on the new node")
    finally:
        node.terminate()
        assert node.wait(60) == 0


def test_a_leader_that_dies_is_succeeded(cluster: ClusterProcesses) -> None:
    old = cluster.wait_leader()
    (other,) = [name for name in cluster.names("broker") if name != old]
    cluster.create_stream(old, "kept")
    cluster.kill(old)
    new = cluster.wait_leader(other_than=old)
    assert new == other
    assert "kept" in cluster.streams(new)
    cluster.restart(old)
    wait_for(lambda: cluster.brokers("standby") == [old], 30, "it does not stand by")
    cluster.create_stream(old, "after")


def test_a_leader_that_was_stalled_changes_nothing_when_it_wakes(
    cluster: ClusterProcesses,
) -> None:
    old = cluster.wait_leader()
    asyncio.run(stall(cluster, old))
    wait_for(lambda: "broker stands by" in cluster.role_log(old), 30, "it does not stand by")


async def stall(cluster: ClusterProcesses, old: str) -> None:
    topic = ("stalled", "t")
    where = Partitioning.to_partition(0)
    acknowledged: list[bytes] = []

    async def send(client: IggyClient, payload: bytes) -> None:
        await client.send(*topic, [Message(payload=payload)], partitioning=where)
        acknowledged.append(payload)

    async def write(client: IggyClient) -> None:
        for number in count():
            await send(client, b"old %d" % number)

    writers = [await cluster.connect(old) for _ in range(4)]
    await writers[0].create_stream(topic[0])
    await writers[0].create_topic(*topic, replication_factor=3)
    writing = [asyncio.create_task(write(client)) for client in writers]
    while len(acknowledged) < 50:
        await asyncio.wait(writing, timeout=0.01)
    cluster.signal(old, signal.SIGSTOP)  # with requests of all writers in its hands, or nearly so
    await asyncio.sleep(1.0)  # answers that it sent before are still on their way to us
    before = list(acknowledged)
    try:
        new = await asyncio.to_thread(cluster.wait_leader, other_than=old)
        async with await cluster.connect(new) as client:
            await retrying(lambda: send(client, b"new"))
            after = [m.payload for m in await poll(client, topic)]
    finally:
        cluster.signal(old, signal.SIGCONT)
    outcomes = await asyncio.gather(*writing, return_exceptions=True)
    assert all(isinstance(outcome, HeadraceError) for outcome in outcomes), "told to go"
    assert set(acknowledged) - set(before) == {b"new"}, "it acknowledged nothing more"
    for client in writers:
        await client.close()
    async with await cluster.connect(old) as client:  # which passes it on now
        assert [m.payload for m in await poll(client, topic)] == after, "and changed nothing"
    assert set(acknowledged) <= set(after)
    assert await asyncio.to_thread(cluster.brokers, "leader") == [new]


async def retrying(call: Callable[[], Awaitable[None]]) -> None:
    """A leader that has just taken over may have to ask for patience."""
    for _ in range(20):
        try:
            return await call()
        except UnavailableError:
            await asyncio.sleep(0.5)
    raise AssertionError("the new leader does not take it")


async def poll(client: IggyClient, topic: tuple[str, str]) -> list[Message]:
    polled = await client.poll(*topic, partition=0, strategy=Strategy.first(), count=100_000)
    return list(polled.messages())


def test_a_small_cluster_from_its_start_to_its_end(tmp_path: Path) -> None:
    small = ("--nodes", "1", "--managers", "1", "--brokers", "1")
    cluster = ClusterProcesses(tmp_path, *small)
    folder = ("--data-dir", str(cluster.folder))
    background = headrace(
        "cluster", "start", "--detach", "--dev", "--iggy-port", "0", "--http-port", "0",
        "--ready-file", str(cluster.ready_file), *folder, *small,
    )  # fmt: skip
    assert background.returncode == 0, background.stderr
    cluster.read_ready()
    broker, pids = cluster.address("broker-1"), cluster.pids()
    cluster.create_stream(cluster.wait_leader(), "kept")
    http = cluster.ready["roles"]["controller"]["addresses"]["http"]
    listed = headrace("pipeline", "list", "--json", "--http", http)
    assert (listed.returncode, json.loads(listed.stdout)) == (0, []), listed.stderr
    second = headrace("cluster", "start", *folder, *small)
    assert second.returncode == 1
    assert "a cluster runs on" in second.stderr
    stopped = headrace("cluster", "stop", *folder)
    assert stopped.returncode == 0, stopped.stderr
    assert not wait_until_gone(pids)
    again = headrace("cluster", "stop", *folder)
    assert again.returncode == 1
    assert "no cluster runs" in again.stderr
    cluster.start()
    try:
        cluster.wait_leader()
        assert cluster.address("broker-1") == broker, "ports are kept"
        assert cluster.streams("broker-1") == {"kept"}
        pids = cluster.pids()
        cluster.process.kill()
        assert not wait_until_gone(pids), "nothing outlives the parent"
    finally:
        cluster.stop()


SECRET = "ab" * 32


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (("data-node", "--placement-managers", "127.0.0.1:1"), {}, "openssl rand -hex 32"),
        (("broker", "--secret", "env:S"), {"S": SECRET}, "--placement-managers"),
        (("broker", "--secret", "env:NOTHING"), {}, "the environment has no NOTHING"),
        (("broker", "--secret", SECRET), {}, "env:NAME or file:PATH"),
        (("broker", "--secret", "env:S"), {"S": "short"}, "64 hex digits"),
        (("broker", "--secret", "file:/nowhere/x"), {}, "cannot read /nowhere/x"),
        (
            ("data-node", "--secret", "env:S", "--host", "0.0.0.0", "--insecure",
             "--placement-managers", "a:1"), {"S": SECRET}, "--advertise",
        ),
        (
            ("broker", "--secret", "env:S", "--placement-managers", "nonsense"),
            {"S": SECRET}, "host:port",
        ),
        (("placement-manager", "--secret", "env:S", "--metadata", "mysql"), {"S": SECRET}, "etcd"),
        (("placement-manager", "--host", "192.0.2.1"), {}, "refusing to listen"),
        (("cluster", "start", "--nodes", "1"), {"PATH": "/nowhere"}, "--managers 1"),
        (("cluster", "status", "--data-dir", "/nowhere"), {}, "--placement-managers"),
    ],
)  # fmt: skip
def test_what_cannot_start_says_why_and_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    environment: dict[str, str],
    said: str,
) -> None:
    folder = () if "status" in arguments else ("--data-dir", str(tmp_path / "d"))
    monkeypatch.setattr("sys.argv", ["headrace", *arguments, *folder])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert SECRET not in told


def test_a_wrong_secret_is_told_at_once(cluster: ClusterProcesses, tmp_path: Path) -> None:
    managers = ",".join(cluster.ready["placement_managers"])
    started = {
        role: subprocess.Popen(
            [*HEADRACE, role, "--secret", "env:S", "--placement-managers", managers, "--data-dir",
             str(tmp_path / role)],
            env={**os.environ, "S": SECRET}, stderr=subprocess.PIPE, text=True,
        )
        for role in ("broker", "data-node", "controller")
    }  # fmt: skip
    for role, process in started.items():
        _, told = process.communicate(timeout=60)
        assert process.returncode == 1, role
        assert "credential" in told
        assert "Traceback" not in told
