"""What is wrong is found and comes with its fix."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import doctor
from headrace.cli.connection import TARGET, Target
from headrace.cli.doctor import Finding, Level
from headrace.process.cluster_state import cluster_info
from headrace.web.broker_api import types as t
from headrace.wire.iggy.messages.extensions import (
    PublishingFigures,
    ShardLeader,
    ShardMap,
    WorkerFigures,
)
from headrace.wire.sbp import messages as m


def only(found: Any) -> Finding:
    (finding,) = found
    assert isinstance(finding, Finding)
    return finding


def test_this_machine_is_fit_for_the_tests() -> None:
    assert only(doctor.check_python()).level is Level.OK
    assert [each.level for each in doctor.check_versions()] == [Level.OK, Level.OK]
    java = only(doctor.check_java())
    assert (java.level, java.text.startswith("Java ")) == (Level.OK, True)


def test_a_small_disk_and_a_closed_folder_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "not/yet/there"
    assert only(doctor.check_disk(folder)).level is Level.OK
    monkeypatch.setattr(doctor, "FREE_BYTES_LOW", 1 << 60)
    assert only(doctor.check_disk(folder)).level is Level.WARNING
    monkeypatch.setattr("os.access", lambda *_: False)
    closed = only(doctor.check_disk(folder))
    assert (closed.level, "--data-dir" in closed.fix) == (Level.BROKEN, True)


def test_a_slow_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not/yet/there"
    monkeypatch.setattr(doctor, "SYNC_MS_HIGH", 1e9)
    assert only(doctor.check_sync(folder)).level is Level.OK
    monkeypatch.setattr(doctor, "SYNC_MS_HIGH", 0.0)
    slow = only(doctor.check_sync(folder))
    assert (slow.level, "written" in slow.fix) == (Level.WARNING, True)
    assert not list(tmp_path.iterdir())


def test_few_files_and_little_memory_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FILES_LOW", 1 << 62)
    monkeypatch.setattr(doctor, "MEMORY_LOW", 1 << 62)
    assert "ulimit" in only(doctor.check_files()).fix
    assert only(doctor.check_memory()).level is Level.WARNING


def test_a_taken_port_is_named_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(doctor, "PORTS", {"data node": taken.getsockname()[1]})
        found = only(doctor.check_ports())
        assert (found.level, "--node-port 0" in found.fix) == (Level.WARNING, True)
    assert only(doctor.check_ports()).level is Level.OK


def test_what_is_staged_and_not_published_is_told() -> None:
    fine, staged = doctor._staged(
        PublishingFigures(publishers=3, publishers_max=10, staged_messages=7, staged_bytes=1 << 20)
    )
    assert (fine.level, fine.text) == (Level.OK, "3 publishers of 10")
    assert (staged.level, staged.fix) == (Level.OK, "")
    many, old = doctor._staged(
        PublishingFigures(
            publishers=9,
            publishers_max=10,
            staged_messages=7,
            staged_oldest_ms=5_400_000,
            staged_ms_max=86_400_000,
        )
    )
    assert (many.level, "publishers_max" in many.fix) == (Level.WARNING, True)
    assert old.level is Level.WARNING
    assert "for 1.5 h" in old.text
    assert "after 24 h" in old.fix


@pytest.mark.parametrize(
    ("address", "level"), [("127.0.0.1:1", Level.WARNING), ("192.0.2.1.invalid:1", Level.BROKEN)]
)
def test_no_server_is_broken_only_where_one_was_named(
    address: str, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PORTS", {})
    token = TARGET.set(Target(address=address))
    try:
        first, *rest = doctor.check_server()
    finally:
        TARGET.reset(token)
    assert first.level is level
    assert "headrace up" in first.fix
    assert len(rest) == (level is Level.WARNING)


def test_what_placement_managers_complain_of_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(doctor.check_cluster(str(tmp_path))) == [], "no cluster was started there"
    info = t.ClusterInfo(
        healthy=True, problems=[], placement_managers=[], data_nodes=[], brokers=[], streams=1,
        ranges=3, ranges_sealing=0, ranges_under_replicated=0, ranges_unavailable=0,
    )  # fmt: skip
    monkeypatch.setattr("headrace.cli.cluster.cluster_status.look", lambda *_: info)
    assert only(doctor.check_cluster(str(tmp_path))).level is Level.OK
    node = m.NodeInfo(m.DataNode(4, "n:1"), is_alive=True, ranges_quarantined=2)
    told = m.DescribeClusterResponse(nodes=(node,), metadata_version=3, metadata_seen=9)
    bad = cluster_info((), (), told)
    monkeypatch.setattr("headrace.cli.cluster.cluster_status.look", lambda *_: bad)
    found = list(doctor.check_cluster(str(tmp_path)))
    assert {each.level for each in found} == {Level.BROKEN}
    text = "\n".join(each.text for each in found)
    assert "accept-metadata" in text
    assert "data node 4 keeps 2 ranges aside" in text


def test_pipelines_that_do_not_keep_up_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    still = {
        "subject": "pipeline",
        "severity": "critical",
        "title": "revenue of shop has finished no batch for 90 s, and 2 rows wait",
        "next_step": "Look at its stack trace.",
    }
    group = {**still, "subject": "group"}
    running = {"state": "RUNNING", "keeps_up": False}
    said: dict[str, Any] = {"problems": [still, group], "pipelines": [running]}
    monkeypatch.setattr(doctor, "_ask_control", lambda: said)
    told = only(doctor.check_pipelines())
    assert (told.level, told.text, told.fix) == (Level.BROKEN, still["title"], still["next_step"])
    said |= {"problems": [], "pipelines": [{"state": "RUNNING", "keeps_up": True}]}
    assert only(doctor.check_pipelines()).text == "1 run and keep up"


def test_a_control_plane_that_is_not_there_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", "http://127.0.0.1:1")
    assert list(doctor.check_pipelines()) == []


def test_workers_are_told_against_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("platform.node", lambda: "here")

    def found(count: int, leader: str = "w0", late: float = 1.0) -> ShardMap:
        workers = tuple(
            WorkerFigures(name=f"w{n}", number=n, host="here", loop_delay_ms=late)
            for n in range(count)
        )
        return ShardMap(shards=(ShardLeader(shard=0, worker=leader),), workers=workers)

    one = only(doctor._workers(found(1), True))
    assert (one.level, one.text) == (
        Level.OK, "1 worker for 1 shard; 1 on the 2 cores of this machine",
    )  # fmt: skip
    assert only(doctor._workers(found(3), False)).text == "3 workers for 1 shard"
    assert only(doctor._workers(found(3), True)).level is Level.WARNING
    _, nobody = doctor._workers(found(1, leader=""), True)
    assert "nobody leads 1 shard" in nobody.text
    _, late = doctor._workers(found(1, late=900.0), True)
    assert "late by 900 ms" in late.text
