"""What the parent of several workers decides, and what it does when one of them ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from headrace.broker.service import RootCredentials
from headrace.config.broker import BrokerSettings
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.process.startup import worker_supervision
from headrace.process.startup.worker_supervision import (
    ObservedWorkers,
    WorkerChild,
    choose_first,
    count_workers,
    metrics_port,
    on_one_host,
    usable_cores,
)
from headrace.sbp_client.leadership import Holder


@pytest.mark.parametrize(
    ("wanted", "cores", "count"),
    [(1, 64, 1), (5, 2, 5), (0, 1, 1), (0, 2, 1), (0, 8, 7), (0, 17, 16), (0, 128, 16)],
)
def test_how_many_workers_there_are(wanted: int, cores: int, count: int) -> None:
    assert count_workers(wanted, cores) == count


@pytest.mark.parametrize(
    ("quota", "most"),
    [("max 100000\n", 4096), ("150000 100000\n", 2), ("1 100000\n", 1), ("?", 4096)],
)
def test_a_control_group_may_have_fewer_cores_than_the_machine(
    tmp_path: Path, quota: str, most: int
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    assert 1 <= usable_cores(file) <= most
    assert usable_cores(tmp_path / "none") >= 1


def test_who_still_has_the_lease_starts_first() -> None:
    holders = [Holder("a", clean_epoch=4), Holder("b"), Holder("c", clean_epoch=7), Holder("d")]
    assert choose_first(holders, "b") == 1
    assert choose_first(holders, "") == 2, "the last that stopped cleanly"
    assert choose_first(holders, "somebody of before") == 2
    assert choose_first([Holder("a"), Holder("b")], "") == 0


def test_ports_of_figures_follow_those_of_the_control_plane() -> None:
    assert [metrics_port(9000, worker) for worker in range(3)] == [9002, 9003, 9004]
    assert [metrics_port(base, 5) for base in (0, -1)] == [0, -1]


def test_several_data_nodes_of_one_host_hold_one_replica_unless_told() -> None:
    settings = Settings()
    assert on_one_host(settings, 1) is settings
    several = on_one_host(settings, 3).broker
    assert (several.replicas, several.log_replicas) == (1, 1)
    told = Settings(broker=BrokerSettings(replicas=2, log_replicas=3))
    assert on_one_host(told, 3) == told


# -- one worker

START = """
import json, sys
def say(**told): print(json.dumps(told), flush=True)
told = json.loads(sys.stdin.readline())
"""
SERVES = f"""{START}
if told["waits"]:
    say(nodes={{}})
    assert sys.stdin.readline() == "serve\\n"
    say(root=["r", "p", True])
print(flush=True)
say(ready={{"iggy": "here"}}, holder="me")
for line in sys.stdin:
    if line == "end\\n":
        break
    if line == "die\\n":
        sys.exit(9)
    say(done=line.strip())
"""
REFUSES = f"""{START}
say(error="cannot listen on 127.0.0.1:1: taken", config=True)
"""


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        monkeypatch.setattr(
            worker_supervision, "worker_arguments", lambda: [sys.executable, "-c", script]
        )
        self.roots: list[RootCredentials] = []
        self.dead: list[str] = []
        self.died, self.go_on = asyncio.Event(), asyncio.Event()
        self.child = WorkerChild(3, {}, None, on_root=self.roots.append, on_dead=self._on_dead)

    async def _on_dead(self, holder: str) -> None:
        self.dead.append(holder)
        self.died.set()
        await self.go_on.wait()

    async def kill(self) -> None:
        assert self.child._process is not None
        assert self.child._process.stdin is not None
        self.child._process.stdin.write(b"die\n")


async def test_a_worker_waits_for_the_others_and_then_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, SERVES)
    child = world.child
    await child.start()
    observed = ObservedWorkers(lambda: [child])
    assert not (await observed.checks())[0].ok
    await child.serve()
    assert (await observed.checks())[0].ok
    assert child.addresses == {"iggy": "here"}
    assert world.roots == [RootCredentials("r", "p", generated=True)]
    for step in ("retire", "close broker"):
        await child.ask(step)
    await child.stop()
    assert child.pid is None
    assert world.dead == []


async def test_what_a_dead_worker_held_is_told_and_its_next_life_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, SERVES)
    child = world.child
    await child.start()
    await child.serve()
    observed = ObservedWorkers(lambda: [child])
    keeping = asyncio.create_task(child.keep())
    try:
        await world.kill()
        async with asyncio.timeout(30):
            await world.died.wait()
            assert not (await observed.checks())[0].ok
            world.go_on.set()
            for _ in range(3000):
                if (await observed.checks())[0].ok:
                    break
                await asyncio.sleep(0.01)
        assert world.dead == ["me"]
        assert child.restarts == 1
        assert (await observed.checks())[0].ok
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await child.stop()


async def test_why_a_worker_cannot_start_is_said_as_it_said_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, REFUSES)
    with pytest.raises(ConfigError, match=r"^cannot listen on 127\.0\.0\.1:1: taken$"):
        await world.child.start()
