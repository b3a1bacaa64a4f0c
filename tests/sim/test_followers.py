"""Followers of a StateLog while its cluster, its writers and they themselves are in trouble."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from headrace.errors import HeadraceError
from headrace.sbp_client.state_follower import StateFollower
from headrace.sbp_client.state_log import StateLog
from tests.sim.cluster import Cluster
from tests.sim.ending import insist, mend
from tests.sim.faults import Faults
from tests.sim.followers import Followers
from tests.sim.run import ALL_FAULTS
from tests.sim.scene import Scene, play
from tests.sim.workload import Numbers, Workload
from tests.simulator.runtime import SimulatedRandom

NAME = "s/state"
FAULTS = tuple(kind for kind in ALL_FAULTS if kind not in ("rot", "wipe"))
"""What is lost with two disks of two replicas ends a follower, and rightly."""


async def meddle(cluster: Cluster, random: SimulatedRandom, followers: list[str]) -> None:
    """Cut followers off from nodes or managers, or let them sleep through snapshots."""
    while True:
        await asyncio.sleep(0.5 + 4 * random.uniform())
        host = followers[random.below(len(followers))]
        others = [*cluster.nodes, *cluster.managers]
        kind = random.below(3)
        if kind == 0:
            cluster.simulation.pause(host)
        for other in others if kind == 1 else others[: len(cluster.nodes)] if kind == 2 else []:
            cluster.simulation.partition(host, other)
        await asyncio.sleep(8 * random.uniform() ** 2)
        cluster.simulation.resume(host)
        for other in others:
            cluster.simulation.heal(host, other)


async def troubled(cluster: Cluster, followers: Followers, replicas: int) -> None:
    random = SimulatedRandom(f"{cluster.simulation.seed}/followers")
    workload = Workload(cluster, random.derive("workload"), replicas)
    answers = workload.answered[NAME] = _Timed(followers)
    faults = Faults(cluster, random.derive("faults"), FAULTS)
    await cluster.start()
    hosts = ["follower1", "follower2"]
    following = [cluster.simulation.start(host, followers.follow(host)) for host in hosts]
    epochs = [0]
    for _ in range(2):
        workload.start("state", partial(workload.keep_state, name=NAME, epochs=epochs))
    meddling = asyncio.ensure_future(meddle(cluster, random.derive("meddle"), hosts))
    await faults.run(6, 10.0)
    await cluster.sleep(2.0)
    await faults.stop()
    meddling.cancel()
    await asyncio.gather(meddling, return_exceptions=True)
    await mend(cluster)
    for host in hosts:
        cluster.simulation.resume(host)
    await workload.finish()
    await finish(cluster, followers, epochs[-1] + 1, replicas)
    states = await asyncio.gather(*following)
    for state in states:
        if state.numbers != followers.truth:
            followers.complain(f"{len(state.numbers)} events, not {len(followers.truth)}")
    if missing := set(answers) - set(followers.truth):
        followers.complain(f"answered events {missing} are nowhere")


async def finish(cluster: Cluster, followers: Followers, epoch: int, replicas: int) -> None:
    """A last writer knows what the log holds, and where it ends."""
    client = cluster.client("last")
    state = Numbers()

    async def write() -> StateLog:
        nonlocal epoch
        epoch += 1
        return await StateLog.open(
            client, name=NAME, epoch=epoch, clean=False, apply=state.apply,
            snapshot=state.snapshot, restore=state.restore, runtime=client.runtime,
            replica_nums=replicas,
        )  # fmt: skip

    log: StateLog = await insist(write)
    await log.append("event", 1_000_000)
    followers.end = log.applied_offset
    followers.stopping = True
    await log.close()
    await client.close()
    if state.numbers[: len(followers.truth)] != followers.truth:
        followers.complain("what a follower applied is not what the log holds")


class _Timed(list[int]):
    """Answered events, with the time of their answer."""

    def __init__(self, followers: Followers) -> None:
        super().__init__()
        self._followers = followers

    def append(self, event: int) -> None:
        super().append(event)
        self._followers.answered_at[event] = self._followers.cluster.simulation.time()


def run_troubled(seed: int, replicas: int) -> Followers:
    cluster = Cluster(seed, nodes=4, duplicates=0.03)
    followers = Followers(cluster, NAME)
    cluster.simulation.run(troubled(cluster, followers, replicas), seconds_max=1000)
    assert not cluster.history.complaints, "\n".join(cluster.history.complaints[:10])
    assert not followers.failures
    assert len(followers.truth) > 1
    return followers


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_followers_in_trouble_apply_everything_once_and_nothing_in_doubt(replicas: int) -> None:
    restores = sum(run_troubled(seed, replicas).restores for seed in range(20))
    assert restores, "some of them slept through a trim"


async def open_log(scene: Scene, state: Numbers, epoch: int, replicas: int) -> StateLog:
    return await StateLog.open(
        scene.client, name=NAME, epoch=epoch, clean=False, apply=state.apply,
        snapshot=state.snapshot, restore=state.restore, runtime=scene.client.runtime,
        replica_nums=replicas,
    )  # fmt: skip


async def open_follower(scene: Scene, state: Numbers, host: str = "follower") -> StateFollower:
    client = scene.cluster.client(host)

    def on_failed(error: HeadraceError) -> None:
        raise AssertionError(f"follower failed: {error}")

    return await StateFollower.open(
        client, name=NAME, apply=state.apply, restore=state.restore, runtime=client.runtime,
        on_failed=on_failed,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("back", ["copied", "lost"])
def test_an_event_in_doubt_is_not_applied(seed: int, back: str) -> None:
    """One disk of two holds it, and the seal takes it in: it may be lost until it is copied."""

    async def script(scene: Scene) -> None:
        log = await open_log(scene, Numbers(), 1, 2)
        stream_id = log.stream.stream_id
        for event in range(3):
            await log.append("event", event)
        state = Numbers()
        follower = await open_follower(scene, state)
        primary, secondary = scene.hosts(stream_id)
        scene.cluster.crash(secondary)
        answer = asyncio.ensure_future(log.append("event", 3))
        await scene.sleep(1.0)
        assert not answer.done()
        assert state.numbers == [0, 1, 2], "written, and on one disk of two"
        for other in scene.cluster.nodes:
            if other != primary:  # who might copy it
                scene.simulation.partition(primary, other)
        scene.cluster.crash(primary, power_cut=False)  # it no longer knows what it acknowledged
        await scene.cluster.start_node(primary)
        await scene.until(lambda: scene.ranges(stream_id)[0].doubtful >= 0)
        await scene.sleep(5.0)
        sealed = scene.ranges(stream_id)[0]
        assert 0 <= sealed.doubtful < sealed.end == 4
        assert not answer.done()
        assert state.numbers == [0, 1, 2], "part of the range, and in doubt"
        if back == "lost":
            scene.cluster.wipe(primary)
            await scene.cluster.start_node(primary)
            scene.simulation.heal()
            await scene.cluster.start_node(secondary)
            await scene.sleep(20.0)
            assert state.numbers == [0, 1, 2], "it was never acknowledged, and is gone"
            answer.cancel()
        else:
            scene.simulation.heal()
            await scene.cluster.start_node(secondary)
            await answer
            scene.cluster.history.check_held(stream_id, 4)
            await follower.wait_applied(log.applied_offset, 5.0)
            assert state.numbers == [0, 1, 2, 3]
        await follower.close()
        await asyncio.gather(answer, return_exceptions=True)
        with suppress(HeadraceError):
            await log.close()

    play(script, seed=seed, whole=back == "copied")


@pytest.mark.parametrize("seed", range(4))
def test_a_primary_that_was_cut_off_is_not_believed_to_be_the_end(seed: int) -> None:
    """It says that there is nothing new, while the log goes on elsewhere."""

    async def script(scene: Scene) -> None:
        log = await open_log(scene, Numbers(), 1, 3)
        stream_id = log.stream.stream_id
        await log.append("event", 0)
        state = Numbers()
        follower = await open_follower(scene, state)
        primary = scene.primary(stream_id)
        rest = [h for h in (*scene.cluster.nodes, *scene.cluster.managers) if h != primary]
        for other in (*rest, "client"):
            scene.simulation.partition(primary, other)
        for manager in scene.cluster.managers:
            scene.simulation.partition("follower", manager)
        cut = scene.simulation.time()
        await log.append("event", 1)
        assert scene.primary(stream_id) != primary
        await scene.sleep(2.0)
        assert state.numbers == [0], "its own primary tells of nothing"
        assert follower.current_at <= cut
        for manager in scene.cluster.managers:
            scene.simulation.heal("follower", manager)
        await follower.wait_applied(log.applied_offset, 8.0)
        assert state.numbers == [0, 1]
        scene.simulation.heal()
        await log.close()
        await follower.close()

    play(script, seed=seed, whole=False)  # by itself, such an answer breaks a rule of the checker


@pytest.mark.parametrize("seed", range(4))
def test_the_primary_is_killed_under_a_follower(seed: int) -> None:
    async def script(scene: Scene) -> None:
        log = await open_log(scene, Numbers(), 1, 3)
        state = Numbers()
        follower = await open_follower(scene, state)
        for event in range(30):
            if event % 10 == 5:
                scene.cluster.crash(scene.primary(log.stream.stream_id))
                scene.cluster.crash(scene.leader())
            await log.append("event", event)
            await follower.wait_applied(log.applied_offset, 5.0)
            assert state.numbers == list(range(event + 1))
            if event % 10 == 9:
                await mend(scene.cluster)
                await scene.until_replicated(log.stream.stream_id)
        await log.close()
        await follower.close()

    play(script, seed=seed, nodes=5)


def test_a_seed_repeats_the_run() -> None:
    first, second = (run_troubled(5, 3).cluster.simulation for _ in range(2))
    assert first.digest() == second.digest()
