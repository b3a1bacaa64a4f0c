"""A cluster backed up and restored by the steps of docs/operations.md."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from headrace.client.iggy import IggyClient
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.cluster_processes import ClusterProcesses, headrace, running_cluster, wait_for
from tests.integration.server import wait_until_gone

QUICK = """
[advanced.data_node]
heartbeat_interval_ms = 300
"""
SENT = [b"message %d" % number for number in range(600)]
NODES = ("data-node-1", "data-node-2", "data-node-3")


def ok(*arguments: str | Path) -> str:
    done = headrace(*map(str, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


async def fill(client: IggyClient) -> None:
    await client.create_stream("shop")
    await client.create_topic("shop", "orders", partitions_count=2)
    for number, part in enumerate((SENT[:300], SENT[300:])):
        where = Partitioning.to_partition(number)
        await client.send("shop", "orders", map(Message, part), partitioning=where)
    await client.create_user("bob", "secret-of-bob")


async def read(client: IggyClient) -> list[bytes]:
    found: list[bytes] = []
    for partition in (0, 1):
        polled = await client.poll(
            "shop", "orders", partition=partition, strategy=Strategy.first(), count=1000
        )
        found += [message.payload for message in polled.messages()]
    return found


def stop(cluster: ClusterProcesses, *names: str) -> None:
    for name in names:
        cluster.signal(name, signal.SIGTERM)
    assert not wait_until_gone([cluster.pid(name) for name in names])


def test_a_cluster_comes_back_from_its_backups(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    with running_cluster(tmp_path, "--managers", "1", settings=QUICK) as cluster:
        data = {name: cluster.folder / name / "data" for name in (*NODES, "placement-manager-1")}
        leader = cluster.wait_leader()
        (standby,) = set(cluster.names("broker")) - {leader}
        cluster.call(leader, fill)
        stop(cluster, standby, leader)
        for name, folder in data.items():
            ok("backup", backups / name, "--data-dir", folder)
            assert ok("verify", backups / name).rstrip().endswith("sound")
        cluster.restart(standby)
        wait_for(lambda: cluster.brokers("leader") == [standby], 30, "it takes over")
        assert cluster.call(standby, read) == SENT, "by the first that asks, at once"
        cluster.call(standby, lambda client: client.delete_topic("shop", "orders"))
    for name in (*data, "broker-1", "broker-2"):
        shutil.rmtree(cluster.folder / name / "data")
    for name, folder in data.items():
        ok("restore", backups / name, "--data-dir", folder)
    with running_cluster(tmp_path, "--managers", "1", settings=QUICK) as cluster:
        leader = cluster.wait_leader()
        assert cluster.call(leader, read) == SENT
        users = cluster.call(leader, lambda client: client.get_users())
        assert [user.username for user in users] == ["iggy", "bob"]
        assert cluster.status().ranges_unavailable == 0
        where = Partitioning.to_partition(0)
        more = [Message(b"next")]
        cluster.call(leader, lambda c: c.send("shop", "orders", more, partitioning=where))
        assert cluster.call(leader, read) == [*SENT[:300], b"next", *SENT[300:]]
