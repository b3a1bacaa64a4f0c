"""Failure scenarios F1 to F7, F12, F16, F28 and F29: replicas, seals and what they may answer."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import (
    HeadraceError,
    NotEnoughNodesError,
    RangeNotFoundError,
    SealedError,
    StateError,
)
from headrace.wire.sbp.errors import QuorumError
from tests.log_cluster import batch
from tests.sim.ending import insist
from tests.sim.scene import Scene, failing, play
from tests.simulator.runtime import SimulatedRandom


def test_f01_primary_dies_with_appends_in_flight() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 5)
        old = scene.primary(stream)
        sent = [
            asyncio.ensure_future(scene.client.append(stream, batch(scene.body()), timeout=10.0))
            for _ in range(10)
        ]
        await scene.sleep(0.004)
        scene.cluster.crash(old)
        killed = scene.simulation.time()
        offsets = await asyncio.gather(*sent)
        assert len(set(offsets)) == 10, "each has an offset of its own"
        assert scene.simulation.time() - killed < 3.0
        assert len(scene.ranges(stream)) == 2
        first, second = scene.ranges(stream)
        assert first.end == second.start, "no gap, no overlap"
        assert old not in scene.hosts(stream)
        await scene.check_written(stream)

    play(script)


def test_f02_secondary_dies_and_is_replaced() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 5)
        dead = scene.hosts(stream)[1]
        scene.cluster.crash(dead)
        before = scene.simulation.time()
        await scene.append(stream, 5)
        assert scene.simulation.time() - before < 1.0, "two of three are enough"
        assert len(scene.ranges(stream)) == 1, "and nothing is sealed for it yet"
        await scene.until_replicated(stream, 60)
        assert all(dead not in scene.hosts(stream, index) for index in range(-1, 1))
        await scene.check_written(stream)

    play(script)


def test_f03_quorum_lost_moves_to_other_nodes() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=2)
        await scene.append(stream, 5)
        primary, secondary = scene.hosts(stream)
        scene.cluster.crash(secondary)
        error = await failing(scene.append_to(primary, stream, 0, timeout_ms=5000))
        assert isinstance(error, QuorumError | StateError)
        await insist(lambda: scene.append(stream, 5))
        assert secondary not in scene.hosts(stream)
        await scene.check_written(stream)

    play(script)


def test_f03_quorum_lost_without_a_spare_node_waits() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=2)
        await scene.append(stream, 5)
        _, secondary = scene.hosts(stream)
        scene.cluster.crash(secondary)
        await failing(scene.append(stream))
        error = await failing(scene.client.seal(stream, 0))
        assert isinstance(error, NotEnoughNodesError)
        (range_,) = scene.ranges(stream)
        assert range_.sealing
        assert range_.end < 0, "sealed in progress, its end is not guessed"
        await scene.cluster.start_node(secondary)
        await insist(lambda: scene.append(stream, 5))
        await scene.check_written(stream)

    play(script, nodes=2)


def test_f04_tail_on_one_survivor_only() -> None:
    """Acknowledged on the primary and one secondary, which is away when the range is sealed."""

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)
        primary, near, far = scene.hosts(stream)
        scene.simulation.partition(primary, far)
        end = await scene.append(stream, 3)
        scene.cluster.crash(near)
        scene.simulation.heal()
        # Before the primary can bring the other one up to date, both are sealed.
        scene.simulation.slow(far, 1)
        await insist(lambda: scene.client.seal(stream, 0))
        assert scene.ranges(stream)[0].end == end, "the tail is part of the range"
        await scene.cluster.start_node(near)
        await scene.until_replicated(stream)
        for host in scene.hosts(stream, 0):
            found = await scene.fetch_from(host, stream, 0)
            assert [offset for offset, _ in found] == list(range(end))
        await scene.check_written(stream)

    play(script)


def test_f05_isolated_primary_acknowledges_nothing() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)
        old = scene.primary(stream)
        for other in (*scene.cluster.nodes, *scene.cluster.managers):
            if other != old:
                scene.simulation.partition(old, other)
        await scene.sleep(4.0)
        stale = asyncio.ensure_future(failing(scene.append_to(old, stream, 0, timeout_ms=2000)))
        await insist(lambda: scene.append(stream, 3, timeout=5.0))
        error = await stale
        assert isinstance(error, StateError), "not acknowledged"
        assert len(scene.ranges(stream)) == 2
        scene.simulation.heal()
        await scene.until_replicated(stream)
        described = await scene.describe(old, stream, 0) if old in scene.hosts(stream, 0) else None
        if described is not None:
            assert described.end_offset == scene.ranges(stream)[0].end, "what it had beyond is cut"
        refused = await failing(scene.append_to(old, stream, 0))
        assert isinstance(refused, SealedError | RangeNotFoundError)
        await scene.check_written(stream)

    play(script)


async def sealed_replica_restarts(scene: Scene) -> None:
    """A seal reaches one replica only, which restarts; its primary has not heard of it at all."""
    stream = await scene.create(replicas=3)
    await scene.append(stream, 3)
    primary, sealed, dead = scene.hosts(stream)
    await scene.sleep(0.5)  # nothing is under way between them
    for manager in scene.cluster.managers:
        scene.simulation.partition(manager, primary)
    scene.cluster.crash(dead)
    error = await failing(scene.client.seal(stream, 0))
    assert isinstance(error, StateError), "one answer is too few"
    for manager in scene.cluster.managers:  # or they would seal it anew
        scene.simulation.partition(manager, sealed)
    scene.cluster.crash(sealed)
    await scene.cluster.start_node(sealed)
    await scene.sleep(1.0)
    late = await failing(scene.append_to(primary, stream, 0, timeout_ms=2000))
    assert isinstance(late, StateError), "a seal is for ever: no quorum for the primary"
    assert (await scene.describe(sealed, stream, 0)).end_offset == 3
    scene.simulation.heal()
    await scene.check_written(stream)


def test_f05_a_seal_outlives_a_restart() -> None:
    play(sealed_replica_restarts)


@pytest.mark.parametrize("power_cut", [True, False])
def test_f06_all_replicas_restart_then_seal(power_cut: bool) -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        end = await scene.append(stream, 7)
        hosts = scene.hosts(stream)
        for host in hosts:
            scene.cluster.crash(host, power_cut=power_cut)
        for host in hosts:
            await scene.cluster.start_node(host)
        await insist(lambda: scene.client.seal(stream, 0))
        assert scene.ranges(stream)[0].end == end, "ends are recovered, not the start"
        await scene.append(stream, 2)
        await scene.check_written(stream)

    play(script)


def test_f07_replica_comes_back_with_an_empty_disk() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        end = await scene.append(stream, 5)
        _, empty, other = scene.hosts(stream)
        old_id = scene.cluster.services[empty].node_id
        scene.cluster.crash(other)
        scene.cluster.wipe(empty)
        await scene.cluster.start_node(empty)
        assert scene.cluster.services[empty].node_id != old_id, "an empty store is another node"
        error = await failing(scene.client.seal(stream, 0))
        assert isinstance(error, StateError), "one answer is too few, an empty disk is none"
        assert scene.ranges(stream)[0].end < 0
        await scene.cluster.start_node(other)
        await insist(lambda: scene.client.seal(stream, 0))
        assert scene.ranges(stream)[0].end == end
        await scene.until_replicated(stream)
        await scene.check_written(stream)

    play(script)


def test_f07_a_store_under_a_known_id_with_other_contents_is_refused() -> None:
    """The identity file survives, the log beside it is gone."""

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        end = await scene.append(stream, 5)
        _, empty, other = scene.hosts(stream)
        scene.cluster.crash(other)
        scene.cluster.crash(empty)
        scene.simulation.disk(empty).remove_tree("/data/log")
        scene.cluster.history.lost.setdefault(empty, []).append(scene.simulation.time())
        try:
            await scene.cluster.start_node(empty)
        except HeadraceError:
            scene.cluster.crash(empty)
        await failing(scene.client.seal(stream, 0))
        assert scene.ranges(stream)[0].end < 0, "nothing is decided without a second answer"
        scene.cluster.wipe(empty)
        await scene.cluster.start_node(empty)
        await scene.cluster.start_node(other)
        await insist(lambda: scene.client.seal(stream, 0))
        assert scene.ranges(stream)[0].end == end
        await scene.check_written(stream)

    play(script)


@pytest.mark.parametrize("seed", range(6))
def test_f12_crash_after_the_write_before_the_acknowledgement(seed: int) -> None:
    """The record may survive; sent again with its sequence it is there once."""

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 2)
        primary = scene.primary(stream)
        body = scene.body()
        sent = asyncio.ensure_future(
            failing(scene.append_to(primary, stream, 0, body, producer=(77, 0)))
        )
        await scene.sleep(0.002 * (1 + seed))
        scene.cluster.crash(primary, power_cut=seed % 2 == 0)
        error = await asyncio.gather(sent, return_exceptions=True)
        assert error

        async def again() -> None:
            index = scene.ranges(stream)[-1].range_index
            writable = await scene.client.seal(stream, index)
            await scene.append_to(
                scene.primary(stream), stream, writable.range_index, body, producer=(77, 0)
            )

        await insist(again)
        found = await insist(lambda: scene.read_all(stream))
        assert list(found.values()).count(body) == 1
        await scene.check_written(stream)

    play(script, seed=seed)


def test_f16_slow_replica_does_not_slow_the_quorum() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)

        async def measured() -> float:
            before = scene.simulation.time()
            await scene.append(stream, 20)
            return scene.simulation.time() - before

        usual = await measured()
        scene.simulation.slow(scene.hosts(stream)[2], 10)
        assert await measured() < 1.5 * usual, "the other two are the quorum"
        await scene.check_written(stream)

    play(script)


def test_f28_recovery_decides_by_seals_not_by_reads() -> None:
    """A seal does not reach the primary; what it acknowledges afterwards cannot be missing."""

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)
        primary, *others = scene.hosts(stream)
        for manager in scene.cluster.managers:
            scene.simulation.partition(manager, primary)
        # The primary and its secondaries are well; only the managers do not reach it.
        sealed = await insist(lambda: scene.client.seal(stream, 0))
        end = scene.ranges(stream)[0].end
        late = await failing(scene.append_to(primary, stream, 0, timeout_ms=2000))
        assert isinstance(late, StateError), "the secondaries are sealed: no quorum any more"
        assert sealed.start_offset == end == 3
        for host in others:
            assert (await scene.describe(host, stream, 0)).end_offset == end
        scene.simulation.heal()
        await scene.check_written(stream)

    play(script)


@pytest.mark.parametrize("seed", range(8))
def test_f29_primary_crashes_before_its_own_sync(seed: int) -> None:
    """A secondary may hold an offset that its primary lost: it is never given out again there."""

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)
        primary, *others = scene.hosts(stream)
        # The disk dies with the next write, while the batch is on its way to the others.
        scene.simulation.disk(primary).cut_after(20)
        sent = asyncio.ensure_future(failing(scene.append_to(primary, stream, 0)))
        await scene.until(lambda: not scene.cluster.is_up(primary), 5)
        await asyncio.gather(sent, return_exceptions=True)
        await scene.sleep(0.1)
        if seed % 2:
            for host in others[: 1 + seed % 3 % 2]:
                scene.cluster.crash(host, power_cut=False)
        scene.cluster.crash(primary)
        await scene.cluster.start_node(primary)
        refused = await failing(scene.append_to(primary, stream, 0, timeout_ms=500))
        assert isinstance(refused, StateError), "an interrupted range takes no appends"
        for host in others:
            if not scene.cluster.is_up(host):
                await scene.cluster.start_node(host)
        await insist(lambda: scene.append(stream, 3))
        await scene.until_replicated(stream)
        await scene.check_written(stream)

    play(script, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_writes_go_on_when_two_failing_disks_of_three_are_well_again(seed: int) -> None:
    """What failed half-way is in nobody's way: it used to keep a partition from being written until
    the node was restarted."""

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 2)
        random = SimulatedRandom(f"{seed}/disks")
        for _ in range(40):
            for host in scene.cluster.nodes[:2]:
                for operation in ("sync", "sync_atomic"):
                    if random.below(2):
                        scene.simulation.disk(host).fail_next(operation)
            await asyncio.gather(scene.append(stream, 1, timeout=0.3), return_exceptions=True)
        for host in scene.cluster.nodes[:2]:
            scene.simulation.disk(host).forget_plans()
        well = scene.simulation.time()
        await insist(lambda: scene.append(stream, 1))
        assert scene.simulation.time() - well < 5
        await scene.until_replicated(stream)
        await scene.check_written(stream)

    play(script, nodes=3, seed=seed)
