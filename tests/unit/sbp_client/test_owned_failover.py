"""The writer of an owned stream when nodes and placement managers come and go."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import pytest

from headrace.config.process import ClientSettings
from headrace.errors import (
    DeadlineError,
    DiskFullError,
    FencedError,
    HeadraceError,
    NotEnoughNodesError,
    NotLeaderError,
    RangeNotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.sbp_client.channels import PlacementChannel
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.wire.sbp.errors import NotPrimaryError, QuorumError, SealUnansweredError
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import batch
from tests.simulator.runtime import Simulation
from tests.unit.client.fake_nodes import FakeCluster, FakePlacement

BEFORE = Code.SYNC_RANGES  # the step before a batch is stored
Main = Callable[[FakeCluster, SbpClient, OwnedStream], Awaitable[None]]
WINDOW = 64


def run(main: Main, **settings: int) -> None:
    simulation = Simulation(1)
    cluster = FakeCluster("a", "b", "c")
    cluster.create(1)

    async def whole() -> None:
        client = cluster.client(simulation.runtime("client"), ClientSettings(**settings))
        stream = await OwnedStream.open(client, 1, 7, clean=True)
        await main(cluster, client, stream)
        await stream.close()
        await client.close()

    simulation.run(whole())


def put(stream: OwnedStream, body: bytes) -> asyncio.Future[int]:
    header, *rest = batch(body, base_offset=stream.next_offset)
    assert isinstance(header, bytearray)
    return stream.append(header, rest)


def put_many(stream: OwnedStream, count: int) -> list[asyncio.Future[int]]:
    return [put(stream, b"%d" % n) for n in range(count)]


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    "error",
    [
        QuorumError(),
        DiskFullError(),
        NotPrimaryError(),
        RangeNotFoundError(),
        SealedError(),
        UnavailableError("connection lost"),
        DeadlineError("timeout"),
    ],
)
@pytest.mark.parametrize("position", [0, 30])
def test_trouble_in_a_replicated_range_moves_the_writer_at_once(
    error: HeadraceError, position: int
) -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([*[None] * position, error])
        before = now()
        assert await asyncio.gather(*put_many(stream, WINDOW)) == list(range(WINDOW))
        assert now() - before < 0.1
        assert cluster.bodies(1) == [b"%d" % n for n in range(WINDOW)]
        assert [r.replicas[0] for r in cluster.streams[1]] == ["a", "b"]

    run(main)


PRIMARY, ANOTHER = 0, 5  # node ids


@pytest.mark.parametrize(
    ("home", "error", "preferred"),
    [
        (PRIMARY, SealedError(), PRIMARY),
        (PRIMARY, QuorumError(), PRIMARY),  # the others failed
        (PRIMARY, DiskFullError(), -1),  # the home is what failed
        (PRIMARY, UnavailableError("connection lost"), -1),
        (PRIMARY, DeadlineError("timeout"), -1),
        (ANOTHER, DiskFullError(), ANOTHER),
        (ANOTHER, UnavailableError("connection lost"), ANOTHER),
        (-1, SealedError(), -1),
    ],
)
def test_the_home_is_asked_for_unless_it_failed(
    home: int, error: HeadraceError, preferred: int
) -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        cluster.placement.preferred.clear()
        stream.home_node = home
        cluster.nodes["a"].script[BEFORE] = deque([error])
        await put(stream, b"x")
        assert cluster.placement.preferred == [preferred]

    run(main)


def test_a_home_whose_range_took_nothing_is_not_asked_for_again() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        cluster.placement.preferred.clear()
        stream.home_node = PRIMARY
        for name in "abc":
            cluster.nodes[name].script[BEFORE] = deque([SealedError()])
        await put(stream, b"x")
        assert cluster.placement.preferred == [PRIMARY, -1, -1]
        cluster.nodes[cluster.streams[1][-1].replicas[0]].script[BEFORE] = deque([SealedError()])
        await put(stream, b"y")
        assert cluster.placement.preferred[3:] == [PRIMARY], "something was stored since"

    run(main)


def test_the_home_of_the_client_is_that_of_its_writers() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        client.home_node = ANOTHER
        cluster.placement.preferred.clear()
        writers = [
            await OwnedStream.open(client, 1, 8),
            await OwnedStream.open(client, 1, 9, home_node=-1),
            await OwnedStream.open(client, 1, 10, home_node=PRIMARY, clean=True),
        ]
        assert cluster.placement.preferred == [ANOTHER, -1, PRIMARY]
        assert [writer.home_node for writer in writers] == [ANOTHER, -1, PRIMARY]
        assert [writer.is_home for writer in writers] == [False, True, True]
        for writer in writers:
            await writer.close()

    run(main)


def test_f1_a_killed_primary_costs_a_seal_and_no_record() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        await asyncio.gather(*put_many(stream, 10))
        answers = put_many(stream, WINDOW)
        await asyncio.sleep(0)
        cluster.nodes["a"].down = True
        before = now()
        await asyncio.gather(*answers, put(stream, b"after"))
        assert now() - before < 0.5
        assert len(cluster.bodies(1)) == 10 + WINDOW + 1

    run(main)


def test_a_primary_that_hangs_is_left_after_the_request_time_out() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        async def frozen() -> None:
            await asyncio.sleep(1.0)
            raise DeadlineError("no answer in time")

        cluster.nodes["a"].script[Code.APPEND] = deque([frozen] * WINDOW)
        before = now()
        await asyncio.gather(*put_many(stream, WINDOW))
        assert now() - before < 1.5
        assert cluster.bodies(1) == [b"%d" % n for n in range(WINDOW)]

    run(main, request_timeout_ms=1000)


def test_seals_that_find_no_quorum_are_repeated_until_there_is_one() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([QuorumError()])
        refusals = [SealUnansweredError(), NotEnoughNodesError(), DiskFullError()]
        cluster.placement.script[Code.SEAL_RANGES] = deque(refusals * 3)
        assert await put(stream, b"x") == 0

    run(main)


def test_a_successor_whose_primary_is_dead_is_sealed_too() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        real = cluster.seal

        def seal(stream_id: int, epoch: int = -1) -> object:
            new = real(stream_id, epoch)
            if new.index == 1:
                cluster.nodes[new.replicas[0]].down = True
            return new

        cluster.seal = seal  # type: ignore[method-assign, assignment]
        await put(stream, b"0")
        cluster.nodes["a"].down = True
        before = now()
        assert await put(stream, b"1") == 1
        assert now() - before < 1.0
        assert [r.index for r in cluster.streams[1]] == [0, 1, 2]

    run(main)


def test_ranges_that_keep_failing_are_left_for_the_whole_recovery_time() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        for node in cluster.nodes.values():
            node.script[BEFORE] = deque([QuorumError()] * 5)  # more than a disk would be given
        assert await put(stream, b"x") == 0
        assert len(cluster.streams[1]) > 6

    run(main)


def test_ranges_that_fail_for_ever_end_the_writer() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        for node in cluster.nodes.values():
            node.script[BEFORE] = deque([QuorumError()] * 1000)
        before = now()
        with pytest.raises(QuorumError):
            await put(stream, b"x")
        assert 30 < now() - before < 40
        assert len(cluster.streams[1]) < 50

    run(main)


def test_a_higher_epoch_ends_the_writer_for_ever() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        await put(stream, b"0")
        cluster.streams[1][-1].epoch = 8
        with pytest.raises(FencedError):
            await put(stream, b"1")
        with pytest.raises(FencedError):
            put(stream, b"2")
        assert isinstance(stream.failure, FencedError)
        assert cluster.bodies(1) == [b"0"]

    run(main)


def test_a_higher_epoch_found_out_by_the_seal_ends_it_too() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        await put(stream, b"0")
        cluster.seal(1, 8)
        before = now()
        with pytest.raises(FencedError):
            await put(stream, b"1")
        assert now() - before < 0.1, "never retried"

    run(main)


# GOAWAY


def test_a_node_that_goes_away_is_left_for_another_range() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        await put(stream, b"0")
        cluster.nodes["a"].going_away = True
        before = now()
        assert await asyncio.gather(*put_many(stream, 5)) == [1, 2, 3, 4, 5]
        assert now() - before < 0.5
        assert cluster.streams[1][-1].replicas[0] != "a"

    run(main)


def test_an_idle_writer_moves_early() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        await put(stream, b"0")
        node = cluster.nodes["a"]
        node.going_away = node.down = True
        client.nodes.to("a")._on_goaway(node)
        await asyncio.sleep(1.0)
        assert cluster.streams[1][-1].index == 1, "before anything was to be sent"
        before = now()
        assert await put(stream, b"1") == 1
        assert now() == before

    run(main)


def test_an_idle_writer_that_finds_no_other_node_waits_for_the_next_append() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        await put(stream, b"0")
        for node in cluster.nodes.values():
            node.down = True
        client.nodes.to("a")._on_goaway(cluster.nodes["a"])
        await asyncio.sleep(60.0)
        assert stream.failure is None
        for node in cluster.nodes.values():
            node.down = False
        assert await put(stream, b"1") == 1

    run(main)


def test_a_connection_that_ended_while_idle_costs_no_seal() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, stream: OwnedStream) -> None:
        await put(stream, b"0")
        cluster.nodes["a"].going_away = True  # that connection; the node listens on

        async def connect_again() -> object:
            cluster.nodes["a"].going_away = False
            return cluster.nodes["a"]

        client.nodes.to("a")._connect = connect_again  # type: ignore[assignment]
        assert await put(stream, b"1") == 1
        assert len(cluster.streams[1]) == 1

    run(main)


# Placement managers


def test_the_leading_placement_manager_changes_during_a_seal() -> None:
    async def main() -> None:
        cluster = FakeCluster("a", "b", "c")
        cluster.create(1)
        managers = {"p": cluster.placement, "q": FakePlacement(cluster)}
        leader = "p"
        lost_answers = 0

        class Led:
            def __init__(self, name: str) -> None:
                self.name = name

            async def call(self, code, message, payload=(), *, timeout=3.0):  # type: ignore[no-untyped-def]
                nonlocal leader, lost_answers
                if leader != self.name:
                    raise NotLeaderError(leader=leader)
                answer = await managers[self.name].call(code, message, payload, timeout=timeout)
                sealing = code is Code.SEAL_RANGES and message.ranges[0].range_index >= 0
                if sealing and not lost_answers:
                    lost_answers += 1
                    leader = "q"  # it was carried out; nobody learns of it
                    raise UnavailableError("connection lost")
                return answer

            async def close(self) -> None:
                pass

        def connect_to(name: str):  # type: ignore[no-untyped-def]
            async def connect() -> Led:
                return Led(name)

            return connect

        client = SbpClient(
            simulation.runtime("client"),
            placement=PlacementChannel(("p", "q"), connect_to),
            node=cluster._connect,
        )
        stream = await OwnedStream.open(client, 1, 7, clean=True)
        await put(stream, b"0")
        cluster.nodes["a"].script[BEFORE] = deque([QuorumError()])
        assert await put(stream, b"1") == 1
        assert (lost_answers, len(cluster.streams[1])) == (1, 2)
        await stream.close()
        await client.close()

    simulation = Simulation(1)
    simulation.run(main())
