"""A cluster whose every broker leads, in real processes: three brokers with two workers each."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster_load import BROKERS, WORKERS, Load, shard_map, strike, wait_spread, workers_of
from tests.cluster_processes import ClusterProcesses, headrace, running_cluster, wait_for
from tests.integration.test_cluster import peer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    folder = tmp_path_factory.mktemp("cluster")
    options = ("--nodes", "3", "--managers", "1", "--brokers", str(BROKERS))
    with running_cluster(folder, *options, "--workers", str(WORKERS)) as cluster:
        wait_spread(cluster)
        yield cluster
        assert cluster.stop(signal.SIGINT) == 0


def test_every_worker_of_every_broker_leads(cluster: ClusterProcesses) -> None:
    found = wait_spread(cluster)
    assert len({worker.number for worker in found.workers}) == BROKERS * WORKERS
    by_address = Counter(worker.address for worker in found.workers)
    assert by_address == {cluster.address(name): WORKERS for name in cluster.names("broker")}
    assert sum(worker.coordinates for worker in found.workers) == 1
    assert cluster.brokers("leader") == cluster.names("broker")
    assert headrace("cluster", "status", "--data-dir", str(cluster.folder)).returncode == 0


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.9.0"])
def test_a_client_of_any_version_may_go_to_any_broker(
    cluster: ClusterProcesses, version: str
) -> None:
    names = cluster.names("broker")
    name = names[int(version[2]) % len(names)]
    stream = f"any-{version}"
    done = peer(version, "any_broker.py", cluster.address(name), stream)
    assert done.returncode == 0, done.stderr
    for each in names:
        assert stream in cluster.streams(each), "what one broker was told, all know"


def test_one_authority_is_enough_for_tls_with_any_broker(cluster: ClusterProcesses) -> None:
    authority = str(cluster.folder / "secrets/tls/ca.pem")
    for name in cluster.names("broker"):
        address = cluster.address(name)
        listed = headrace("stream", "list", "--tls-ca", authority, "--address", address)
        assert listed.returncode == 0, listed.stderr


def test_a_broker_that_would_lead_alone_is_refused(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    managers = ",".join(cluster.ready["placement_managers"])
    done = headrace(
        "broker", "--data-dir", str(tmp_path), "--placement-managers", managers,
        "--secret", cluster.ready["secret"], "--iggy-port", "0", "--quic-port", "-1", "--dev",
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "--workers" in done.stderr


def test_a_shard_moves_to_another_broker(cluster: ClusterProcesses) -> None:
    found = wait_spread(cluster)
    shard = next(each for each in found.shards if each.shard)
    other = next(
        worker
        for worker in found.workers
        if worker.address not in {w.address for w in found.workers if w.name == shard.worker}
    )
    address = cluster.address("broker-2")
    moved = headrace(
        "shard", "move", str(shard.shard), str(other.number), "--address", address
    )  # fmt: skip
    assert moved.returncode == 0, moved.stderr
    now = {each.shard: each.worker for each in shard_map(cluster, "broker-3").shards}
    assert now[shard.shard] == other.name
    cluster.call("broker-1", lambda client: client.move_shard(shard.shard, ""))


async def test_workers_of_each_broker_are_killed(cluster: ClusterProcesses) -> None:
    load = Load(cluster, "killed")
    async with load.running():
        await asyncio.sleep(1.0)
        for broker in cluster.names("broker"):
            struck = await strike(cluster, load, broker)
            assert struck.led, "it led something"
        await load.wait_window()
    await load.check()
    assert all(len(workers_of(cluster, each)) == WORKERS for each in cluster.names("broker"))


async def test_a_whole_broker_is_killed_and_comes_back(cluster: ClusterProcesses) -> None:
    """Nobody is left to tell of its workers' end: their leases run out."""
    await asyncio.to_thread(wait_spread, cluster)
    broker = cluster.names("broker")[-1]
    load = Load(cluster, "lost")
    async with load.running():
        await asyncio.sleep(1.0)
        killed = time.monotonic()
        cluster.kill(broker)
        await load.pauses(killed)
        await asyncio.to_thread(cluster.restart, broker)
        await asyncio.to_thread(wait_spread, cluster)
    await load.check()


def test_children_do_not_outlive_a_broker(cluster: ClusterProcesses) -> None:
    broker = cluster.names("broker")[-1]
    pids = workers_of(cluster, broker)
    assert len(pids) == WORKERS
    cluster.signal(broker, signal.SIGTERM)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), 30, "workers live on")
    with suppress(subprocess.TimeoutExpired):
        cluster._again[broker].wait(30)
