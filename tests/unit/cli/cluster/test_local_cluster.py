"""What a local cluster decides before it starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.cli.cluster import local_cluster
from headrace.cli.cluster.local_cluster import LocalCluster, LocalClusterPlan
from headrace.process.startup.worker_supervision import metrics_port


def plan(folder: Path, **wanted: Any) -> LocalClusterPlan:
    plain: dict[str, Any] = {
        "nodes": 2, "brokers": 1, "managers": 1, "data_dir": str(folder), "iggy_port": 0,
        "http_port": -1, "metrics_port": -1, "dev": True, "config": "",
    }  # fmt: skip
    return LocalClusterPlan(**{**plain, **wanted})


def test_roles_have_metrics_ports_one_after_the_other(tmp_path: Path) -> None:
    wanted = plan(tmp_path, metrics_port=9464, http_port=3000)
    cluster = LocalCluster(wanted)
    assert {name: cluster._metrics_port(name) for name in wanted.roles()} == {
        "placement-manager-1": 9464,
        "data-node-1": 9465,
        "data-node-2": 9466,
        "broker-1": 9467,
        "controller": 9468,
    }
    arguments = cluster._common("data-node-2", "data-node")
    assert arguments[arguments.index("--metrics-port") + 1] == "9466"


def test_ports_of_workers_are_behind_those_of_their_broker(tmp_path: Path) -> None:
    wanted = plan(tmp_path, metrics_port=9464, http_port=3000, brokers=2, workers=2)
    cluster = LocalCluster(wanted)
    found = {name: cluster._metrics_port(name) for name in wanted.roles()}
    taken = {"broker-1": found["broker-1"], "broker-2": found["broker-2"]}
    workers = [metrics_port(base, number) for base in taken.values() for number in range(2)]
    assert len({*found.values(), *workers}) == len(found) + len(workers), "no port twice"
    cluster._prepare()
    arguments = cluster._broker_arguments("broker-2")
    assert arguments[arguments.index("--workers") + 1] == "2"


def test_free_metrics_ports_are_kept(tmp_path: Path) -> None:
    cluster = LocalCluster(plan(tmp_path, metrics_port=0))
    first = cluster._metrics_port("data-node-1")
    assert cluster._metrics_port("data-node-1") == first
    assert cluster.state.ports == {"data-node-1 metrics": first}


def test_no_two_roles_get_one_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free is free until somebody listens there."""
    offered = iter([5001, 5001, 5001, 5002])
    monkeypatch.setattr(local_cluster, "_free_port", lambda: next(offered))
    monkeypatch.setattr(local_cluster, "_is_free", lambda _: True)
    cluster = LocalCluster(plan(tmp_path))
    assert [cluster._port(name) for name in ("a", "b", "a")] == [5001, 5002, 5001]


def test_without_being_asked_for_there_are_none(tmp_path: Path) -> None:
    cluster = LocalCluster(plan(tmp_path))
    assert "--metrics-port" not in cluster._common("data-node-1", "data-node")
    assert "controller" not in cluster.plan.roles()
