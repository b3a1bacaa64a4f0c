"""`SbpClient.append` of plain batches against nodes that fail in a given order."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import (
    CorruptionError,
    DeadlineError,
    DiskFullError,
    HeadraceError,
    InvalidArgumentError,
    NotEnoughNodesError,
    SealedError,
)
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.errors import QuorumError
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import batch
from tests.simulator.runtime import Simulation
from tests.unit.client.fake_nodes import FakeCluster, hang

BEFORE = Code.SYNC_RANGES  # the step before a batch is stored


def run(main: Callable[[FakeCluster, SbpClient], Awaitable[None]]) -> None:
    simulation = Simulation(1)
    cluster = FakeCluster("a", "b", "c")
    cluster.create(1)

    async def whole() -> None:
        client = cluster.client(simulation.runtime("client"))
        await main(cluster, client)
        await client.close()

    simulation.run(whole())


@pytest.mark.parametrize("error", [QuorumError(), SealedError(), DiskFullError()])
def test_f15_a_range_that_takes_no_more_is_left_for_the_next(error: HeadraceError) -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([error])
        assert await client.append(1, batch(b"x"), timeout=5.0) == 0
        assert cluster.bodies(1) == [b"x"]
        assert [r.replicas[0] for r in cluster.streams[1]] == ["a", "b"]

    run(main)


def test_f15_nodes_that_are_full_one_after_the_other_are_left() -> None:
    """The second one is so full that it cannot even open the range: the seal says so."""

    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([DiskFullError()])
        cluster.placement.script[Code.SEAL_RANGES] = deque([DiskFullError()])
        cluster.nodes["b"].script[BEFORE] = deque([DiskFullError()])
        assert await client.append(1, batch(b"x"), timeout=5.0) == 0
        assert cluster.bodies(1) == [b"x"]

    run(main)


def test_f15_disks_that_stay_full_are_told_when_the_time_is_over() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        for node in cluster.nodes.values():
            node.script[BEFORE] = deque([DiskFullError()] * 1000)
        with pytest.raises(DiskFullError):
            await client.append(1, batch(b"x"), timeout=2.0)
        assert len(cluster.streams[1]) < 20, "with pauses in between"

    run(main)


@pytest.mark.parametrize("answers", [[], [NotEnoughNodesError()]])
def test_f15_a_seal_without_an_answer_ends_with_the_append_and_its_reason(
    answers: list[HeadraceError],
) -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([QuorumError()])
        cluster.placement.script[Code.SEAL_RANGES] = deque([*answers, hang])
        before = client.runtime.clock.monotonic()
        with pytest.raises(QuorumError):
            await client.append(1, batch(b"x"), timeout=2.0)
        assert client.runtime.clock.monotonic() - before < 2.1

    run(main)


def test_no_answer_says_what_the_attempt_before_met() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        met = NotEnoughNodesError("1 of 2 nodes")
        cluster.placement.script[Code.SEAL_RANGES] = deque([met, hang])
        with pytest.raises(DeadlineError, match="1 of 2 nodes"):
            await client.seal(1, 0, timeout=1.0)

    run(main)


@pytest.mark.parametrize("error", [CorruptionError("broken"), InvalidArgumentError("no")])
def test_what_another_range_would_refuse_too_costs_no_seal(error: HeadraceError) -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([error])
        with pytest.raises(type(error)):
            await client.append(1, batch(b"x"), timeout=5.0)
        assert len(cluster.streams[1]) == 1

    run(main)
