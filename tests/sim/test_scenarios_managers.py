"""Failure scenarios F8 to F11, F20 to F22, F26 and F27: placement managers and metadata."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from headrace.errors import HeadraceError, NotFoundError, NotLeaderError, SealedError, StateError
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import batch
from tests.sim.cluster import PLACEMENT_PORT
from tests.sim.ending import insist
from tests.sim.scene import CLIENT, Scene, failing, play


@pytest.mark.parametrize("seed", range(6))
def test_f08_leader_dies_between_the_seals_and_the_commit(seed: int) -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        end = await scene.append(stream, 4)
        leader = scene.leader()
        sealing = asyncio.ensure_future(scene.client.seal(stream, 0))
        answers = 1 + seed % 3

        def answered() -> int:
            return sum(
                call.reply is not None
                for call in scene.cluster.history.of(Code.SEAL_RANGES)
                if call.host == leader
            )

        await scene.until(lambda: answered() >= answers or sealing.done(), pause=0.0002)
        scene.cluster.crash(leader)
        await asyncio.gather(sealing, return_exceptions=True)
        writable = await insist(lambda: scene.client.seal(stream, 0))
        ranges = scene.ranges(stream)
        assert [r.range_index for r in ranges] == [0, 1], "one successor only"
        assert ranges[0].end == end == writable.start_offset
        await scene.append(stream, 2)
        await scene.check_written(stream)

    play(script, seed=seed)


async def leader_wakes_up_in_a_write(scene: Scene) -> None:
    """A write of the leader is on its way while it stalls; another one leads when it arrives."""
    stream = await scene.create(replicas=3)
    await scene.append(stream, 2)
    old = scene.leader()
    usual, scene.cluster.metadata.delay = scene.cluster.metadata.delay, lambda: 0.4
    sealing = asyncio.ensure_future(scene.client.seal(stream, 0))
    await scene.sleep(0.2)
    scene.simulation.pause(old)
    scene.cluster.metadata.delay = usual
    others = [host for host in scene.cluster.managers if host != old]
    await scene.until(lambda: any(scene.cluster.placements[host].leading for host in others))
    await insist(lambda: scene.client.seal(stream, 0))
    await scene.append(stream, 2)
    written = len(scene.cluster.history.transactions)
    scene.simulation.resume(old)
    await scene.sleep(1.0)
    late = scene.cluster.history.transactions[written:]
    assert not [t for t in late if t.author == old], "I12: a deposed leader wrote"
    await asyncio.gather(sealing, return_exceptions=True)
    assert len(scene.ranges(stream)) == 2
    await scene.check_written(stream)


def test_f08_a_leader_that_stalls_in_a_write_changes_nothing() -> None:
    play(leader_wakes_up_in_a_write)


def test_f09_a_repeated_seal_gets_the_same_range() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 2)
        first = await scene.client.seal(stream, 0)
        for _ in range(3):
            again = await scene.client.seal(stream, 0)
            assert again.range_index == first.range_index == 1
        assert len(scene.ranges(stream)) == 2

    play(script)


@pytest.mark.parametrize("seed", range(4))
def test_f10_two_clients_seal_the_same_range(seed: int) -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 2)
        rival = scene.cluster.client("rival")
        one, two = await asyncio.gather(scene.client.seal(stream, 0), rival.seal(stream, 0))
        assert one.range_index == two.range_index == 1
        assert len(scene.ranges(stream)) == 2
        await rival.close()

    play(script, seed=seed)


def test_f11_append_to_a_range_that_has_a_successor() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 2)
        old = scene.primary(stream)
        await scene.client.seal(stream, 0)
        written = scene.simulation.disk(old).bytes_written
        error = await failing(scene.append_to(old, stream, 0))
        assert isinstance(error, SealedError)
        assert scene.simulation.disk(old).bytes_written == written, "no data is written"

    play(script)


def test_f20_delete_during_append() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)
        hosts = scene.hosts(stream)

        async def write() -> HeadraceError:
            while True:
                try:
                    await scene.client.append(stream, batch(scene.body()), timeout=2.0)
                except HeadraceError as error:
                    return error

        writing = asyncio.ensure_future(write())
        await scene.sleep(0.05)
        await scene.client.delete_stream(stream)
        before = scene.simulation.time()
        error = await writing
        assert isinstance(error, NotFoundError | StateError)
        assert scene.simulation.time() - before < 3.0, "promptly"
        assert scene.ranges(stream) == [], "metadata is gone"

        def reclaimed() -> bool:
            return not any(
                f"/streams/{stream}/" in path
                for host in hosts
                for path in scene.simulation.disk(host).files()
            )

        await scene.until(reclaimed, 20)
        gone = await failing(scene.client.append(stream, batch(b"late"), timeout=1.0))
        assert isinstance(gone, NotFoundError | StateError)

    play(script)


def test_f21_a_follower_names_the_leader() -> None:
    async def script(scene: Scene) -> None:
        leader = scene.leader()
        follower = next(host for host in scene.cluster.managers if host != leader)
        channel = await scene.cluster.channel(CLIENT, f"{follower}:{PLACEMENT_PORT}")

        async def ask() -> None:
            reply = await channel.call(Code.DESCRIBE_STREAMS, m.DescribeStreamsRequest(1000, (0,)))
            raise_for_status(getattr(reply.message, "status", None))

        refused = await failing(ask())
        await channel.close()
        assert isinstance(refused, NotLeaderError)
        assert refused.data["leader"] == f"{leader}:{PLACEMENT_PORT}"
        # A client that knows this follower only comes through with one redirect.
        before = len(scene.cluster.history.calls)
        client = scene.cluster.client("other", managers=[follower])
        await client.create_stream(replica_nums=1)
        await client.close()
        asked = [
            call.peer
            for call in scene.cluster.history.calls[before:]
            if call.host == "other" and call.code is Code.CREATE_STREAMS
        ]
        assert asked == [f"{follower}:{PLACEMENT_PORT}", f"{leader}:{PLACEMENT_PORT}"]

    play(script)


def test_f22_without_managers_existing_ranges_go_on() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)
        scene.cluster.metadata.unreachable.update(scene.cluster.managers)
        await scene.sleep(10.0)
        await scene.append(stream, 10)
        found = await scene.fetch_from(scene.primary(stream), stream, 0)
        assert len(found) == 13
        before = scene.simulation.time()
        error = await failing(scene.client.create_stream(replica_nums=1))
        assert isinstance(error, StateError)
        assert scene.simulation.time() - before < 15.0
        scene.cluster.metadata.unreachable.clear()
        await insist(lambda: scene.client.create_stream(replica_nums=1))
        await scene.check_written(stream)

    play(script)


def test_f26_ids_are_unique_across_failovers() -> None:
    async def script(scene: Scene) -> None:
        made: list[int] = []
        for _ in range(4):
            for _ in range(3):
                stream = await insist(lambda: scene.client.create_stream(replica_nums=3))
                made.append(stream.stream_id)
            leader = scene.leader()
            scene.cluster.crash(leader)
            await scene.until(
                lambda: any(service.leading for service in scene.cluster.placements.values())
            )
            await scene.cluster.start_placement(leader)
        assert len(set(made)) == len(made) == 12
        # A node whose disk is replaced gets an id that nobody had.
        scene.cluster.wipe("dn3")
        await scene.cluster.start_node("dn3")
        assert scene.cluster.services["dn3"].node_id >= 4

    play(script)


def test_f27_a_node_silent_for_longer_than_the_idle_timeout_registers_again() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 2)
        host = scene.spare(stream)
        node_id = scene.cluster.services[host].node_id
        scene.simulation.pause(host)
        await scene.sleep(25.0)
        leader = scene.cluster.placements[scene.leader()]
        assert not leader.state.nodes.is_alive(node_id)
        scene.simulation.resume(host)
        await scene.until(lambda: leader.state.nodes.is_alive(node_id), 10)
        assert scene.cluster.services[host].node_id == node_id, "its registration is not lost"
        await scene.check_written(stream)

    play(script)


async def late_sync(scene: Scene, records: int = 0) -> None:
    """SYNC_RANGES of a leader that stalled arrives when the range is gone from its nodes.

    Would they open it again, a client with an old map of the stream could append to it, and be
    acknowledged: into a range that the placement managers have forgotten.
    """
    stream = await scene.create(replicas=3)
    end = await scene.append(stream, records) if records else 0
    hosts = scene.hosts(stream)
    late = [
        call
        for call in scene.cluster.history.of(Code.SYNC_RANGES)
        if call.peer.partition(":")[0] in hosts
    ]
    assert len(late) == 3
    for _ in range(60):  # until it is open on three other nodes
        last = scene.ranges(stream)[-1]
        await scene.client.seal(stream, last.range_index)
        if not set(scene.hosts(stream)) & set(hosts):
            break
    else:
        raise AssertionError("three of seven nodes again and again")
    await scene.append(stream, 2)
    if end:
        await scene.client.trim(stream, end)

    def dropped() -> bool:
        return not any(
            f"/streams/{stream}/" in path
            for host in hosts
            for path in scene.simulation.disk(host).files()
        )

    await scene.until(dropped, 30)
    for call in late:
        with suppress(HeadraceError):
            await scene.call(call.peer.partition(":")[0], Code.SYNC_RANGES, call.request)
    error = await failing(scene.append_to(hosts[0], stream, 0))
    assert isinstance(error, StateError)
    await scene.check_written(stream)


@pytest.mark.parametrize("records", [0, 3])
def test_f11_a_late_sync_does_not_open_a_range_again(records: int) -> None:
    play(partial(late_sync, records=records), nodes=7)
