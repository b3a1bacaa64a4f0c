"""Reading from replicas that fail, lag, hang or lie."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from headrace.config.process import ClientSettings
from headrace.errors import (
    CorruptionError,
    DeadlineError,
    HeadraceError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    ThrottledError,
    UnavailableError,
)
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.ranges import Fetched, Replicas, Want, primary_address
from headrace.wire.sbp.errors import NotPrimaryError
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import batch, bodies
from tests.simulator.runtime import Simulation
from tests.unit.client.fake_nodes import FakeCluster, hang

Main = Callable[[FakeCluster, SbpClient], Awaitable[None]]


def run(cluster: FakeCluster, main: Main, settings: ClientSettings | None = None) -> None:
    simulation = Simulation(1)

    async def whole() -> None:
        client = cluster.client(simulation.runtime("client"), settings)
        await main(cluster, client)
        await client.close()

    simulation.run(whole())


def sealed_stream() -> FakeCluster:
    """Offsets 0 to 3 sealed on a, b, c; open from 4 on, on b, c, a."""
    cluster = FakeCluster("a", "b", "c")
    cluster.create(1)
    cluster.put(1, batch(b"0"), batch(b"1", b"2"), batch(b"3"))
    cluster.seal(1)
    cluster.put(1, batch(b"4"))
    return cluster


async def read(client: SbpClient, offset: int, *, wait_ms: int = 0) -> list[tuple[int, bytes]]:
    fetched = await client.fetch(1, offset, max_bytes=1 << 20, max_wait_ms=wait_ms)
    return bodies(fetched.pieces)


def asked(cluster: FakeCluster) -> list[str]:
    return [name for name, node in cluster.nodes.items() for _ in node.fetches]


SEALED = [(0, b"0"), (1, b"12"), (3, b"3")]


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("gone"),
        DeadlineError("slow"),
        CorruptionError("flipped bit"),
        NotPrimaryError("not known to be committed"),
        RangeNotFoundError("not here"),
        ThrottledError("busy"),
    ],
)
def test_the_next_replica_is_asked(error: HeadraceError) -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        for node in cluster.nodes.values():
            node.script[Code.FETCH] = deque()
        first, second, third = client.replicas.order((await client.ranges(1)).ranges[0])
        cluster.nodes[first].script[Code.FETCH].append(error)
        cluster.nodes[second].script[Code.FETCH].append(error)
        listed = len(cluster.placement.calls)
        assert await read(client, 0) == SEALED
        assert asked(cluster) == [third]
        assert len(cluster.placement.calls) == listed  # one pass was enough
        assert await read(client, 1) == SEALED[1:]
        assert asked(cluster) == [third, third]  # it stays with the one that answered

    run(sealed_stream(), main)


def test_after_one_pass_the_ranges_are_looked_up_afresh() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        await client.ranges(1)
        cluster.nodes["d"] = type(cluster.nodes["a"])(cluster, "d")
        cluster.streams[1][0].replicas = ["d"]  # healed onto another node
        assert await read(client, 0) == SEALED
        assert asked(cluster).count("d") == 1

    run(sealed_stream(), main)


def test_when_all_fail_for_long_the_error_comes_out() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        for node in cluster.nodes.values():
            node.down = True
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(UnavailableError):
            await read(client, 0)
        assert 1.0 < loop.time() - before <= 3.5

    run(sealed_stream(), main)


def test_a_replica_that_comes_back_in_time_is_read() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        for node in cluster.nodes.values():
            node.down = True
        asyncio.get_running_loop().call_later(1.0, setattr, cluster.nodes["c"], "down", False)
        assert await read(client, 0) == SEALED

    run(sealed_stream(), main)


def test_damage_on_all_replicas_is_told_as_damage() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        for node in cluster.nodes.values():
            node.script[Code.FETCH] = deque([CorruptionError("bits")] * 9)
        with pytest.raises(CorruptionError):
            await read(client, 0)

    run(sealed_stream(), main)


def test_damage_on_one_and_another_away_is_worth_waiting_for() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.streams[1][0].replicas = ["a", "b"]
        cluster.nodes["a"].script[Code.FETCH] = deque([CorruptionError("bits")] * 20)
        cluster.nodes["b"].down = True
        asyncio.get_running_loop().call_later(1.0, setattr, cluster.nodes["b"], "down", False)
        assert await read(client, 0) == SEALED

    run(sealed_stream(), main)


def test_f18_a_reader_crosses_from_range_to_range() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        found: list[tuple[int, bytes]] = []
        offset = 0
        while offset < 5:
            fetched = await client.fetch(1, offset, max_bytes=1, max_wait_ms=100)
            found += bodies(fetched.pieces)
            assert fetched.next_offset > offset
            offset = fetched.next_offset
        assert found == [*SEALED, (4, b"4")]

    run(sealed_stream(), main)


def test_a_reader_at_a_seal_waits_for_the_next_range() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        await client.ranges(1)
        last = cluster.streams[1][-1]
        last.end = last.next  # sealed, the successor is still being made
        assert (await client.fetch(1, 5, max_bytes=1)).pieces == []

        def go_on() -> None:
            last.end = -1
            cluster.seal(1)
            cluster.put(1, batch(b"5"))

        asyncio.get_running_loop().call_later(0.3, go_on)
        assert await read(client, 5, wait_ms=2000) == [(5, b"5")]

    run(sealed_stream(), main)


def test_the_tail_of_an_open_range_is_the_primarys() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        assert await read(client, 4) == [(4, b"4")]
        assert await read(client, 5) == []
        assert asked(cluster) == ["b", "b"]

    run(sealed_stream(), main)


def test_a_secondary_never_tells_the_end() -> None:
    """With the primary gone, nobody knows whether the stream ends here: no empty success."""

    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["b"].down = True
        assert await read(client, 4) == [(4, b"4")]
        with pytest.raises((UnavailableError, NotPrimaryError)):
            await read(client, 5)

    run(sealed_stream(), main)


def test_a_secondary_behind_the_primary_is_passed_over() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.put(1, batch(b"5"), batch(b"6"))
        cluster.nodes["b"].script[Code.FETCH] = deque([UnavailableError("once")])
        cluster.nodes["c"].committed[1, 1] = 5
        fetched = await client.fetch(1, 4, max_bytes=1 << 20)
        assert (bodies(fetched.pieces), fetched.next_offset) == ([(4, b"4")], 5)
        assert await read(client, 5) == [(5, b"5"), (6, b"6")]

    run(sealed_stream(), main)


@pytest.mark.parametrize("honest", ["a", "b", "c"])
def test_an_empty_answer_of_a_sealed_range_is_no_answer(honest: str) -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        for name, node in cluster.nodes.items():
            if name != honest:
                node._read = lambda info: []  # type: ignore[method-assign]
        assert await read(client, 0) == SEALED

    run(sealed_stream(), main)


def test_an_empty_answer_of_a_secondary_is_no_answer() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["b"].down = True
        for name in "ac":
            cluster.nodes[name]._read = lambda info: []  # type: ignore[method-assign]
        with pytest.raises((UnavailableError, NotPrimaryError)):
            await read(client, 5)

    run(sealed_stream(), main)


def test_a_dead_node_is_not_asked_first_for_every_range_it_holds() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["a"].down = True
        for stream_id in range(10, 30):
            cluster.create(stream_id, "a", "b")
            cluster.put(stream_id, batch(b"x"))
            await client.fetch(stream_id, 0, max_bytes=1)
        assert cluster.dialed.count("a") == 1

    run(sealed_stream(), main)


def test_an_answer_for_another_offset_is_not_believed() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        first = client.replicas.order((await client.ranges(1)).ranges[0])[0]
        batches = cluster.streams[1][0].batches
        cluster.nodes[first]._read = lambda info: batches[2:]  # type: ignore[method-assign]
        assert await read(client, 0) == SEALED

    run(sealed_stream(), main)


def test_what_lies_beyond_the_final_end_is_cut_off() -> None:
    """A replica that has not learned the end yet still holds batches that never happened."""

    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        ranges = (await client.ranges(1)).ranges
        first = client.replicas.order(ranges[0])[0]
        garbage = b"".join(batch(b"x", base_offset=4))
        batches = [*cluster.streams[1][0].batches, garbage]
        cluster.nodes[first]._read = lambda info: batches  # type: ignore[method-assign]
        fetched = await client.fetch(1, 0, max_bytes=1 << 20)
        assert (bodies(fetched.pieces), fetched.next_offset) == (SEALED, 4)
        whole = [b"".join(batches)]
        cluster.nodes[first]._read = lambda info: whole  # type: ignore[method-assign]
        fetched = await client.fetch(1, 0, max_bytes=1 << 20)
        assert (bodies(fetched.pieces), fetched.next_offset) == (SEALED, 4)

    run(sealed_stream(), main)


def test_an_old_primary_that_was_cut_off_is_not_believed_for_long() -> None:
    """F5 for readers: the stream went on elsewhere, the old primary says "nothing new"."""

    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        await client.ranges(1)
        cluster.nodes["b"]._read = lambda info: []  # type: ignore[method-assign]
        cluster.seal(1)
        cluster.put(1, batch(b"5"))
        await asyncio.sleep(10)
        assert await read(client, 5) == [(5, b"5")]

    run(sealed_stream(), main)


def test_f22_the_tail_is_read_without_placement_managers() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        await client.ranges(1)
        cluster.placement.script[Code.LIST_RANGES] = deque([UnavailableError("no quorum")] * 99)
        await asyncio.sleep(10)
        assert await read(client, 4) == [(4, b"4")]
        assert await read(client, 5) == []

    run(sealed_stream(), main)


def test_a_slow_replica_is_raced() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        first = client.replicas.order((await client.ranges(1)).ranges[0])[0]
        cluster.nodes[first].script[Code.FETCH] = deque([hang])
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert await read(client, 0) == SEALED
        assert loop.time() - before == pytest.approx(0.5, abs=0.01)
        assert await read(client, 0) == SEALED  # and is not asked first any more
        assert loop.time() - before == pytest.approx(0.5, abs=0.01)

    run(sealed_stream(), main)


def test_a_long_poll_is_not_raced() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        async def slowly() -> None:
            await asyncio.sleep(1.5)

        cluster.nodes["b"].script[Code.FETCH] = deque([slowly])
        assert await read(client, 5, wait_ms=2000) == []
        assert asked(cluster) == ["b"]

    run(sealed_stream(), main)


def test_hedging_can_be_switched_off() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        async def slowly() -> None:
            await asyncio.sleep(2.0)

        first = client.replicas.order((await client.ranges(1)).ranges[0])[0]
        cluster.nodes[first].script[Code.FETCH] = deque([slowly])
        assert await read(client, 0) == SEALED
        assert asked(cluster) == [first]

    run(sealed_stream(), main, ClientSettings(hedge_after_ms=0))


def test_below_the_start_and_beyond_the_end() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        await client.ranges(1)
        cluster.streams[1][0].start = 3  # trimmed meanwhile
        del cluster.streams[1][0].batches[:2]
        with pytest.raises(OffsetOutOfRangeError):
            await read(client, 0)
        with pytest.raises(OffsetOverflowError):
            await read(client, 6)

    run(sealed_stream(), main)


def test_sealed_ranges_are_spread_over_replicas() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        range_ = (await client.ranges(1)).ranges[0]
        firsts = {
            Replicas(client.runtime.clock, spread=spread, suspect_seconds=1).order(range_)[0]
            for spread in range(3)
        }
        assert firsts == {"a", "b", "c"}

    run(sealed_stream(), main)


def test_who_is_on_this_machine_comes_first_unless_it_failed() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        range_ = (await client.ranges(1)).ranges[0]
        last = client.replicas.order(range_)[-1]
        client.replicas.on_files_read(last, here=True)
        assert client.replicas.order(range_)[0] == last
        is_open = replace(range_, end_offset=-1)
        assert client.replicas.order(is_open)[0] == primary_address(range_)
        client.replicas.suspect(last)
        assert client.replicas.order(range_)[-1] == last
        client.replicas.on_files_read(last, here=False)
        client.replicas.on_answered(range_, last)  # suspected no more
        assert client.replicas.order(replace(range_, range_index=3))[0] != last

    run(sealed_stream(), main)


def test_a_node_that_failed_is_asked_last_for_a_while() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        range_ = (await client.ranges(1)).ranges[0]
        first = client.replicas.order(range_)[0]
        client.replicas.suspect(first)
        assert client.replicas.order(range_)[-1] == first
        await asyncio.sleep(client.settings.suspect_ms / 1000)
        assert client.replicas.order(range_)[0] == first

    run(sealed_stream(), main)


# Many streams


def many() -> FakeCluster:
    """Streams 1 to 4, one batch each, on two nodes in turn."""
    cluster = FakeCluster("a", "b")
    for stream_id in range(1, 5):
        cluster.create(stream_id, *("ab" if stream_id % 2 else "ba"))
        cluster.put(stream_id, batch(f"s{stream_id}".encode()))
    return cluster


def told(results: list[Fetched | HeadraceError | None]) -> list[object]:
    return [
        bodies(each.pieces) if isinstance(each, Fetched) else each and type(each)
        for each in results
    ]


def test_f24_many_streams_take_one_request_per_node() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        wants = [Want(stream_id, 0, 1 << 20) for stream_id in (4, 1, 3, 2)]
        results = await client.fetch_many(wants, min_bytes=10_000)
        assert told(results) == [[(0, f"s{n}".encode())] for n in (4, 1, 3, 2)]
        assert sorted(asked(cluster)) == ["a", "b"]
        assert cluster.placement.calls == [Code.LIST_RANGES]

    run(many(), main)


def test_a_stream_of_many_that_fails_does_not_spoil_the_others() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        wants = [Want(1, 0, 1), Want(2, 0, 1), Want(3, 9, 1), Want(99, 0, 1)]
        cluster.nodes["b"].script[Code.FETCH] = deque([UnavailableError("gone")])
        results = await client.fetch_many(wants, min_bytes=10_000)
        assert told(results)[:2] == [[(0, b"s1")], [(0, b"s2")]]
        assert told(results)[2] is OffsetOverflowError
        assert isinstance(results[3], HeadraceError)

    run(many(), main)


def test_a_node_that_has_not_answered_is_not_called_empty() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["b"].script[Code.FETCH] = deque([hang])
        results = await client.fetch_many([Want(1, 0, 1), Want(2, 0, 1)], max_wait_ms=1000)
        assert told(results) == [[(0, b"s1")], None]

    run(many(), main)


# Times and descriptions


def test_a_time_is_looked_for_range_by_range() -> None:
    """Node a holds ranges 0 and 2: its first hit may stand behind one that only b holds."""

    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        first = cluster.create(2, "a")
        cluster.put(2, batch(b"0", timestamp=100))
        cluster.seal(2).replicas = ["b"]
        cluster.put(2, batch(b"1", timestamp=200))
        cluster.seal(2).replicas = first.replicas
        cluster.put(2, batch(b"2", timestamp=300))
        assert [await client.offset_at(2, at) for at in (50, 100, 101, 200, 201, 300)] == [
            0, 0, 1, 1, 2, 2,
        ]  # fmt: skip
        assert await client.offset_at(2, 301) == 3

    run(sealed_stream(), main)


def test_a_time_is_asked_of_the_next_replica_when_one_fails() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        first = client.replicas.order((await client.ranges(1)).ranges[0])[0]
        cluster.nodes[first].script[Code.FETCH] = deque([CorruptionError("bits")])
        assert await client.offset_at(1, 0) == 0

    run(sealed_stream(), main)


def test_a_sealed_range_is_described_by_any_replica_that_has_all_of_it() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["a"].down = True
        cluster.nodes["b"].committed[1, 0] = 2
        described = await client.describe_range(1, 0)
        assert described.range is not None
        assert described.range.next_offset == 4

    run(sealed_stream(), main)


def test_only_the_primary_describes_an_open_range() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        cluster.nodes["c"].committed[1, 1] = 4
        assert await client.bounds(1) == (0, 5)
        cluster.nodes["b"].down = True
        with pytest.raises(UnavailableError):
            await client.bounds(1)

    run(sealed_stream(), main)


def test_many_ranges_are_described_though_a_node_is_away() -> None:
    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        ranges = await client.list_ranges(1)
        cluster.nodes["a"].down = True
        sealed, open_ = await client.describe_ranges(ranges)
        assert sealed is not None
        assert open_ is not None
        cluster.streams[1][0].replicas = []  # moved meanwhile
        sealed, open_ = await client.describe_ranges(ranges)
        assert sealed is None
        assert open_ is not None

    run(sealed_stream(), main)


def test_a_range_that_was_just_sealed_is_described_by_another_replica() -> None:
    """Its primary leads it no more, and has not heard yet where it ends."""

    async def main(cluster: FakeCluster, client: SbpClient) -> None:
        sealed, open_ = await client.list_ranges(1)
        cluster.nodes["a"].ended.add((1, 0))
        first, second = await client.describe_ranges([sealed, open_])
        assert first is not None
        assert first.range is not None
        assert (first.range.next_offset, second is None) == (4, False)
        cluster.nodes["b"].ended |= {(1, 0), (1, 1)}
        cluster.nodes["c"].ended.add((1, 0))
        assert await client.describe_ranges([sealed, open_]) == [None, None]

    run(sealed_stream(), main)
