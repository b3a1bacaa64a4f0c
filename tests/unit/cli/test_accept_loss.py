"""headrace range accept-loss: what would be lost, and that nobody loses it by mistake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.cluster import ranges
from headrace.cli.main import app
from headrace.errors import ConfigError, InvalidArgumentError, NotFoundError
from headrace.wire.sbp import messages as m

NODES = tuple(m.ReplicaNode(m.DataNode(n, f"n{n}:1"), n == 1) for n in (1, 2))
TORN = m.Range(5, 2, start_offset=0, end_offset=121, held_offset=120, replica_nodes=NODES)
WHOLE = m.Range(5, 3, start_offset=121, end_offset=130, replica_nodes=NODES)
OPEN = m.Range(5, 4, start_offset=130, replica_nodes=NODES)
GONE = m.Range(6, 0, start_offset=4, end_offset=9, replica_nodes=NODES[:1])


class Cluster:
    """Node 1 is down."""

    def __init__(self) -> None:
        self.accepted: list[tuple[int, int, int]] = []

    async def list_ranges(self, stream_id: int) -> list[m.Range]:
        return [one for one in (TORN, WHOLE, OPEN, GONE) if one.stream_id == stream_id]

    async def describe_cluster(self, *, count_ranges: bool) -> m.DescribeClusterResponse:
        return m.DescribeClusterResponse(
            nodes=tuple(m.NodeInfo(m.DataNode(n, f"n{n}:1"), is_alive=n == 2) for n in (1, 2))
        )

    async def describe_stream(self, stream_id: int) -> m.Stream:
        return m.Stream(stream_id=stream_id, name="p/7/0/0")

    async def accept_loss(self, stream_id: int, index: int, held: int) -> m.Range:
        self.accepted.append((stream_id, index, held))
        return m.Range()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    def with_cluster(work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            return await work(made)

        return asyncio.run(main())

    monkeypatch.setattr(ranges, "with_cluster", with_cluster)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["range", "accept-loss", *arguments])


def test_a_dry_run_says_what_would_be_lost(cluster: Cluster) -> None:
    done = run("5", "2", "--dry-run", "--json")
    told = json.loads(done.stdout)
    assert (told["kept"], told["lost"], told["records"]) == ("0-119", "120-120", 1)
    assert (told["name"], told["nodes_that_may_have_it"]) == ("p/7/0/0", [1])
    assert told["given_up"] is False
    assert not cluster.accepted
    assert "nothing was changed" in run("5", "2", "--dry-run").stdout


def test_it_is_not_done_without_a_yes(cluster: Cluster) -> None:
    assert isinstance(run("5", "2").exception, ConfigError)
    assert not cluster.accepted


def test_it_is_done_for_what_was_shown(cluster: Cluster) -> None:
    assert json.loads(run("5", "2", "--yes", "--json").stdout)["given_up"] is True
    assert cluster.accepted == [(5, 2, 120)]


def test_a_range_of_which_nobody_is_left_is_given_up_whole(cluster: Cluster) -> None:
    told = json.loads(run("6", "0", "--yes", "--json").stdout)
    assert (told["kept"], told["lost"], told["records"]) == (None, "4-8", 5)
    assert cluster.accepted == [(6, 0, 4)]


@pytest.mark.parametrize("index", ["3", "4"])
def test_nothing_is_given_up_that_somebody_has(cluster: Cluster, index: str) -> None:
    assert isinstance(run("5", index, "--yes").exception, InvalidArgumentError)
    assert isinstance(run("5", "9", "--yes").exception, NotFoundError)
    assert not cluster.accepted


def test_a_list_says_what_is_missing() -> None:
    assert ranges._row(TORN)["state"] == "end missing"
    assert ranges._row(TORN)["missing"] == "120-120"
    assert ranges._row(WHOLE)["missing"] is None
    shortened = m.Range(5, 2, end_offset=120, lost_until=121)
    assert ranges._row(shortened)["given_up"] == "120-120"
