"""What a data node has given up is not opened again, across restarts and bad disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.datanode.control.node_files import ALL_RANGES, FENCES_FILE, FenceFile, Fences
from headrace.errors import DiskFullError, StorageError
from tests.simulator.runtime import Simulation

HOUR = 3_600_000


class World:
    """A disk, and fences that are read from it anew."""

    def __init__(self) -> None:
        self.disk = Simulation(1).disk("node")
        self.disk.make_folder("/node")
        self.now_ms = 1_000
        self.writes = 0

    def open(self, *, count_max: int = 100) -> tuple[Fences, FenceFile]:
        fences = Fences(HOUR, count_max)
        file = FenceFile(
            self.disk, "/node", fences, now_ms=lambda: self.now_ms, on_disk=self._on_disk
        )
        file.load()
        return fences, file

    async def _on_disk(self, work: Callable[[], None]) -> None:
        self.writes += 1
        await asyncio.sleep(0)
        work()

    def data(self) -> bytes:
        return self.disk.read(f"/node/{FENCES_FILE}")


async def test_fences_survive_a_power_cut() -> None:
    world = World()
    fences, file = world.open()
    assert not fences.forbids(7, 0)
    await file.give_up(7, 2)
    await file.give_up(8, ALL_RANGES)
    await file.give_up(7, 4)
    await file.give_up(7, 1)  # nothing new
    for _ in range(2):
        assert [fences.forbids(7, index) for index in (0, 4, 5)] == [True, True, False]
        assert fences.forbids(8, 1_000_000)
        assert not fences.forbids(9, 0)
        world.disk.power_cut()
        fences, _ = world.open()


async def test_a_fence_stands_while_it_is_written() -> None:
    world = World()
    fences, file = world.open()
    giving_up = asyncio.ensure_future(file.give_up(7, 2))
    await asyncio.sleep(0)
    assert fences.forbids(7, 2)
    await giving_up


async def test_fences_of_one_moment_are_written_together() -> None:
    world = World()
    _, file = world.open()
    await asyncio.gather(*(file.give_up(stream_id, 0) for stream_id in range(50)))
    assert world.writes <= 2
    fences, _ = world.open()
    assert all(fences.forbids(stream_id, 0) for stream_id in range(50))


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_what_could_not_be_written_goes_with_the_next(operation: str) -> None:
    world = World()
    _, file = world.open()
    await file.give_up(1, 0)
    world.disk.fail_next(operation)
    with pytest.raises(StorageError):
        await file.give_up(2, 0)
    await file.give_up(2, 0)
    await file.give_up(3, 0)
    world.disk.power_cut()
    fences, _ = world.open()
    assert [fences.forbids(stream_id, 0) for stream_id in (1, 2, 3, 4)] == [*[True] * 3, False]


async def test_a_full_disk_is_told_and_the_fence_stands() -> None:
    world = World()
    fences, file = world.open()
    world.disk.full = True
    with pytest.raises(DiskFullError):
        await file.give_up(1, 0)
    assert fences.forbids(1, 0)
    world.disk.full = False
    await file.give_up(1, 0)
    assert world.open()[0].forbids(1, 0)


@pytest.mark.parametrize("cut", [1, 5, 15])
async def test_a_torn_end_costs_only_what_was_never_relied_on(cut: int) -> None:
    world = World()
    _, file = world.open()
    for stream_id in (1, 2, 3):
        await file.give_up(stream_id, 5)
    world.disk.write_atomic(f"/node/{FENCES_FILE}", world.data()[:-cut])
    fences, file = world.open()
    assert [fences.forbids(stream_id, 5) for stream_id in (1, 2, 3)] == [True, True, False]
    await file.give_up(4, 5)
    fences, _ = world.open()
    assert [fences.forbids(stream_id, 5) for stream_id in (1, 2, 4)] == [True] * 3


async def test_a_rotten_line_costs_no_other() -> None:
    world = World()
    _, file = world.open()
    for stream_id in (1, 2, 3):
        await file.give_up(stream_id, 5)
    path = f"/node/{FENCES_FILE}"
    world.disk.flip_bit(path, len(world.data()) // 2, 1)
    fences, file = world.open()
    assert [fences.forbids(stream_id, 5) for stream_id in (1, 2, 3)] == [True, False, True]
    await file.give_up(2, 5)
    fences, _ = world.open()
    assert [fences.forbids(stream_id, 5) for stream_id in (1, 2, 3)] == [True] * 3


async def test_fences_expire_and_are_bounded() -> None:
    world = World()
    fences, file = world.open(count_max=3)
    await file.give_up(1, 0)
    world.now_ms += HOUR // 2
    await file.give_up(2, 0)
    await file.give_up(1, 1)  # remembered from now on
    world.now_ms += HOUR // 2 + 1
    await file.give_up(3, 0)
    assert [fences.forbids(n, 0) for n in (1, 2, 3)] == [True] * 3
    await file.give_up(4, 0)
    assert [fences.forbids(n, 0) for n in (1, 2, 3, 4)] == [True, False, True, True]
    world.now_ms += HOUR // 2
    fences, _ = world.open(count_max=3)
    assert [fences.forbids(n, 0) for n in (1, 2, 3, 4)] == [False, False, True, True]


async def test_the_file_does_not_grow_for_ever() -> None:
    world = World()
    _, file = world.open(count_max=10)
    for index in range(3_000):
        await file.give_up(index % 7, index)
    assert len(world.data().splitlines()) < 1_100
    fences, _ = world.open(count_max=10)
    assert all(fences.forbids(2_999 % 7, index) for index in (0, 2_999))


def test_no_file_is_no_fence() -> None:
    fences, _ = World().open()
    assert not fences.forbids(0, 0)
