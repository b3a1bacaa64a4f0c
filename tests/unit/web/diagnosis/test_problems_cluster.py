"""What the front page says of the broker and its cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.process.cluster_state import cluster_info
from headrace.web.broker_api import types as t
from headrace.web.diagnosis.cluster import broker_problems
from headrace.wire.iggy.messages.system import Stats
from headrace.wire.sbp import messages as m

GIB = 1 << 30


def stats(free: int = 80 * GIB, total: int = 100 * GIB) -> Stats:
    class Told:
        hostname, free_disk_space, total_disk_space = "h1", free, total

    return Told()  # type: ignore[return-value]  # the three fields that are looked at


def node(id_: int, *, alive: bool = True) -> t.NodeRow:
    return t.NodeRow(
        id=id_,
        address=f"n{id_}:1",
        alive=alive,
        draining=False,
        disk_free_bytes=None,
        ranges=5,
        open_ranges=1,
    )


CLUSTER = t.ClusterInfo(
    healthy=True,
    problems=[],
    placement_managers=[t.ManagerRow(address="m1", state="leader")],
    data_nodes=[node(1), node(2)],
    brokers=[t.BrokerRow(address="b1", role="leader"), t.BrokerRow(address="b2", role="standby")],
    streams=1,
    ranges=5,
    ranges_sealing=0,
    ranges_under_replicated=0,
    ranges_unavailable=0,
)


def kinds(**changes: Any) -> list[tuple[str, str]]:
    cluster = msgspec.structs.replace(CLUSTER, **changes)
    return [(one.kind, one.severity) for one in broker_problems(stats(), 0, cluster=cluster)]


def test_a_healthy_cluster_has_no_problem() -> None:
    assert kinds() == []
    assert broker_problems(None, 10**9) == [], "nobody has asked yet"


def test_a_broker_that_is_silent_is_all_that_is_said() -> None:
    (found,) = broker_problems(stats(free=0), 30_000, cluster=CLUSTER)
    assert (found.kind, found.severity) == ("unreachable", "critical")
    assert "30 s" in found.title


@pytest.mark.parametrize(("free", "severity"), [(8, "warning"), (2, "critical")])
def test_a_disk_that_fills_up(free: int, severity: str) -> None:
    (found,) = broker_problems(stats(free * GIB), 0)
    assert (found.kind, found.severity) == ("disk nearly full", severity)
    assert f"{free}.0 GiB are left" in found.title


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data_nodes": [node(1), node(2, alive=False)]}, [("node down", "critical")]),
        ({"ranges_under_replicated": 3}, [("under-replicated", "warning")]),
        ({"ranges_unavailable": 1}, [("unavailable", "critical")]),
        ({"brokers": CLUSTER.brokers[:1]}, [("standby missing", "warning")]),
        (
            {"placement_managers": [t.ManagerRow(address="m1", state="silent")]},
            [("manager down", "warning"), ("no leader", "critical")],
        ),
        ({"brokers": CLUSTER.brokers[:1], "data_nodes": [node(1)]}, []),
    ],
    ids=["node", "under-replicated", "unavailable", "standby", "manager", "one machine"],
)
def test_what_is_wrong_in_a_cluster(
    changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert kinds(**changes) == expected


def test_a_range_without_its_end_says_what_is_missing_and_what_to_do() -> None:
    missing = m.Range(
        stream_id=5,
        range_index=2,
        end_offset=121,
        held_offset=120,
        replica_nodes=(m.ReplicaNode(data_node=m.DataNode(node_id=1)),),
    )
    described = m.DescribeClusterResponse(ranges_unavailable=1, ranges_torn=(missing,))
    status = cluster_info((), (), described)
    told = (
        "range 2 of log stream 5: offsets 120 to 120 are on no living data node (node 1 may have"
        " them); `headrace range accept-loss 5 2` gives them up"
    )
    assert told in status.problems
    assert not any("without a living replica" in problem for problem in status.problems)
    cluster = msgspec.structs.replace(CLUSTER, ranges_unavailable=1, ranges_torn=status.ranges_torn)
    (found,) = broker_problems(stats(), 0, cluster=cluster)
    assert (found.kind, found.severity) == ("end missing", "critical")
    assert "offsets 120 to 120" in found.title
    assert "accept-loss 5 2" in found.next_step


def group(lag: int, per_second: float, members: int = 1) -> t.GroupRow:
    return t.GroupRow(
        stream="s",
        topic="t",
        id=1,
        name="g",
        members=members,
        partitions=1,
        lag=lag,
        lag_per_second=per_second,
    )


@pytest.mark.parametrize(
    ("row", "severities"),
    [
        (group(50_000, 10.0), ["warning"]),
        (group(50_000, 0.0, members=0), ["notice"]),
        (group(50_000, -100.0), []),
        (group(50_000, 0.0), []),
        (group(100, 10.0), []),
    ],
    ids=["grows", "nobody reads", "falls", "stands", "small"],
)
def test_groups_that_lag(row: t.GroupRow, severities: list[str]) -> None:
    found = broker_problems(stats(), 0, groups=[row])
    assert [one.severity for one in found] == severities
