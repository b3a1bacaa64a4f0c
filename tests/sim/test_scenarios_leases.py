"""Workers that lead shards by leases, over a network, while placement managers come and go."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from headrace.errors import HeadraceError, StateError
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp import messages as m
from tests.sim.scene import Scene, play

PREFIX = "broker/shard/"
SHARDS = 64
DURATION_MS = 3_000


@dataclass
class Worker:
    """Asks for every shard each second, in one request, and believes what it is told."""

    scene: Scene
    name: str
    client: SbpClient
    epochs: dict[str, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    requests: int = 0

    def leads(self, shard: str) -> bool:
        return self.scene.simulation.time() < self.until.get(shard, 0.0)

    async def ask(self, shards: range) -> None:
        asked = self.scene.simulation.time()
        changes = [
            m.LeaseChange(name, m.LeaseAction.ACQUIRE, self.epochs.get(name, -1))
            for name in (f"{PREFIX}{n}" for n in shards)
        ]
        self.requests += 1
        for result in await self.client.change_leases(changes, self.name, DURATION_MS, "x:1"):
            if result.granted:
                self.epochs[result.name] = result.epoch
                self.until[result.name] = asked + DURATION_MS / 1000
            else:
                self.epochs.pop(result.name, None)
                self.until.pop(result.name, None)

    async def keep_asking(self, shards: range) -> None:
        while True:
            with suppress(StateError):  # no placement manager leads
                await self.ask(shards)
            await self.scene.sleep(DURATION_MS / 3000)


async def watch(workers: list[Worker], epochs: dict[str, int]) -> None:
    """No shard has two leaders, and its epoch never falls."""
    scene = workers[0].scene
    while True:
        for number in range(SHARDS):
            shard = f"{PREFIX}{number}"
            leading = [worker for worker in workers if worker.leads(shard)]
            assert len(leading) <= 1, f"{[one.name for one in leading]} lead {shard}"
            for worker in leading:
                assert worker.epochs[shard] >= epochs.get(shard, 0)
                epochs[shard] = worker.epochs[shard]
        await scene.sleep(0.02)


@pytest.mark.parametrize("seed", range(4))
def test_a_shard_has_one_leader_while_placement_managers_die(seed: int) -> None:
    async def script(scene: Scene) -> None:
        workers = [
            Worker(scene, f"w{number}", scene.cluster.client(f"worker{number}"))
            for number in range(3)
        ]
        epochs: dict[str, int] = {}
        watching = asyncio.ensure_future(watch(workers, epochs))
        asking = [asyncio.ensure_future(w.keep_asking(range(SHARDS))) for w in workers]
        for _ in range(3):
            await scene.sleep(4)
            leader = scene.leader()
            scene.cluster.crash(leader)
            await scene.sleep(2)
            await scene.cluster.start_placement(leader)
            await scene.until(lambda: any(p.leading for p in scene.cluster.placements.values()))
        dead, *rest = sorted(workers, key=lambda w: -len(w.epochs))
        asking[workers.index(dead)].cancel()
        lost = dict(dead.epochs)
        dead.until.clear()  # its process has ended, and its supervisor says so
        answer = await rest[0].client.release_holder(dead.name, PREFIX)
        assert {one.name for one in answer} == set(lost)
        await scene.until(lambda: all(any(w.leads(s) for w in rest) for s in lost), 2.0)
        for shard, epoch in lost.items():
            assert epochs[shard] > epoch or any(w.epochs.get(shard, 0) > epoch for w in rest)
        dead.epochs = dict(lost)
        await dead.ask(range(SHARDS))
        assert not dead.epochs, "should it live after all: refused"
        for task in (*asking, watching):
            task.cancel()
        for outcome in await asyncio.gather(*asking, watching, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        for worker in workers:
            await worker.client.close()

    play(script, seed=seed)


def test_a_follower_of_the_map_hears_of_every_change() -> None:
    """It asks with the version it knows and waits; what it then has is what the leader has."""

    async def script(scene: Scene) -> None:
        worker = Worker(scene, "w0", scene.cluster.client("worker0"))
        follower = scene.cluster.client("follower")
        known: dict[str, str] = {}
        answers = 0

        async def follow() -> None:
            nonlocal answers
            version = -1
            while True:
                try:
                    told = await follower.list_leases(PREFIX, version=version, wait_ms=5_000)
                except HeadraceError:
                    await scene.sleep(0.1)
                    continue
                answers += 1
                if told.version != version:
                    known.clear()
                    known.update({one.name: one.holder for one in told.leases})
                    version = told.version

        following = asyncio.ensure_future(follow())
        await worker.ask(range(SHARDS))
        everything = {f"{PREFIX}{n}": "w0" for n in range(SHARDS)}
        await scene.until(lambda: known == everything, 0.5, pause=0.01)
        for _ in range(10):
            await worker.ask(range(SHARDS))
            await scene.sleep(1)
        assert answers < 8, "renewals are no news"
        leader = scene.leader()
        scene.cluster.crash(leader)
        await scene.until(lambda: set(known.values()) == {""}, 20)
        worker.epochs.clear()
        await worker.ask(range(10))
        await scene.until(lambda: list(known.values()).count("w0") == 10, 0.5, pause=0.01)
        following.cancel()
        await scene.cluster.start_placement(leader)
        await follower.close()
        await worker.client.close()

    play(script)
